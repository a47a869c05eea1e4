"""gpunode kube verify."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING

import click

from gpunode.cli.common import cluster_options, format_option, seconds, worst_exit
from gpunode.cli.output import echo
from gpunode.core.errors import Exit, GpunodeError
from gpunode.kube.cli.options import notifying, render_options

if TYPE_CHECKING:
    from gpunode.core.model import HostResult
    from gpunode.kube.core import Rendered
    from gpunode.kube.edge.client import Api


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode kube verify -c gpunode.yml -i inventory/hosts.yml\n"
    "  gpunode kube verify --smoke --max-failures 2\n"
    "  gpunode kube verify --smoke --unproven\n"
    "  gpunode kube verify --every 60 --format json\n"
    "  gpunode kube verify --format prometheus >/var/lib/node_exporter/gpunode.prom\n\n"
    "Exit codes: 0 all checks passed, 1 a check failed, 2 usage or input, 3 only differences from gpunode.yml, "
    "4 no connection, 5 refused."
)
@render_options
@cluster_options
@click.option("--smoke", is_flag=True, help="Start pods that use GPUs, on each node, in a namespace of their own.")
@click.option("--keep", is_flag=True, help="Leave the pods of failed proofs and their namespace, to look at them.")
@seconds("--timeout", "Seconds for each proof, and at most for what passes by itself.", least=0, default=300.0)
@click.option(
    "--max-failures",
    type=click.IntRange(0),
    metavar="N",
    help="With --smoke: leave the remaining nodes out after more than N have failed.",
)
@click.option(
    "--unproven", is_flag=True, help="With --smoke: only nodes that have the taint gpunode/unproven (kubernetes.gate)."
)
@click.option("--every", type=click.FloatRange(1), metavar="S", help="Go on, and report what changes every S seconds.")
@format_option("text", "json", "prometheus")
def verify(
    rendered: Callable[[Api], Rendered],
    connect: Callable[[], Api],
    smoke: bool,
    keep: bool,
    timeout: float,
    max_failures: int | None,
    unproven: bool,
    every: float | None,
    output_format: str,
) -> int:
    """Check that a cluster matches gpunode.yml, and with --smoke that pods can use its GPUs.

    It only reads, and an account that may read is enough. The proof pods of --smoke run in the namespace
    gpunode-verify, which is deleted afterwards, also when you interrupt it. With kubernetes.gate they also open
    the nodes that they passed on.
    """
    from gpunode.kube.edge.verify import PATIENCE, ProofOptions
    from gpunode.kube.edge.verify import verify as prove

    if (max_failures is not None or keep or unproven) and not smoke:
        raise click.UsageError("--keep, --max-failures and --unproven are for the pods of --smoke")
    if every and smoke:
        raise click.UsageError("--every only reads: run --smoke by itself")
    how = ProofOptions(
        smoke=smoke,
        keep=keep,
        timeout=timeout,
        max_failures=max_failures,
        unproven=unproven,
        patience=min(timeout, PATIENCE),
    )
    before = signal.signal(signal.SIGTERM, _interrupt)  # so that the pods go then too
    try:
        with notifying(output_format) as notify:
            api = connect()
            results = prove(api, rendered(api), how, notify=notify)
        _show(results, output_format)
        if every:
            _go_on(api, lambda: prove(api, rendered(api), how, notify=lambda _: None), every, results, output_format)
    finally:
        signal.signal(signal.SIGTERM, before)
    return worst_exit(result.outcome for result in results)


def _go_on(
    api: Api, again: Callable[[], list[HostResult]], every: float, results: list[HostResult], output_format: str
) -> None:
    """Until a signal; a cluster that cannot be read for a while is reported, and tried again."""
    unread = ""
    try:
        while True:
            api.pause(every)
            try:
                now, told = again(), ""
            except GpunodeError as error:
                if error.exit in (Exit.INPUT, Exit.REFUSED):
                    raise
                now, told = results, error.what
                if told != unread:
                    echo(f"not read: {told}", err=True)
            if now != results or (unread and not told):
                _show(now, output_format)
            results, unread = now, told
    except KeyboardInterrupt:
        return


def _show(results: Sequence[HostResult], output_format: str) -> None:
    from gpunode.cli.provision import show_results
    from gpunode.kube.core.judge import metrics

    if output_format == "prometheus":
        echo(metrics(results), nl=False)
    else:
        show_results(list(results), output_format, brief=True)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end what cleans up
    raise KeyboardInterrupt
