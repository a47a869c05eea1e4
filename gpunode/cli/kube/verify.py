"""gpunode kube verify."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import click

from gpunode.cli.common import format_option, worst_exit
from gpunode.cli.kube.options import cluster_options, notifying, render_options

if TYPE_CHECKING:
    from gpunode.core.kube import Rendered
    from gpunode.edge.kube.client import Api


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode kube verify -c gpunode.yml -i inventory/hosts.yml\n"
    "  gpunode kube verify --no-smoke --format json\n"
    "  gpunode kube verify --keep --timeout 600\n"
    "  gpunode kube verify --each-node --max-failures 2\n\n"
    "Exit codes: 0 all checks passed, 1 a check failed, 2 usage or input, 3 only differences from gpunode.yml, "
    "4 no connection, 5 refused."
)
@render_options
@cluster_options
@click.option(
    "--smoke/--no-smoke", default=True, show_default=True, help="Start pods that use GPUs; --no-smoke only reads."
)
@click.option("--keep", is_flag=True, help="Leave the pods of failed proofs and their namespace, to look at them.")
@click.option(
    "--timeout", type=click.FloatRange(0), default=300.0, show_default=True, metavar="S", help="Seconds for each proof."
)
@click.option("--each-node", is_flag=True, help="Run the pods on every node of every pool, one node after the other.")
@click.option(
    "--max-failures",
    type=click.IntRange(0),
    metavar="N",
    help="With --each-node: leave the remaining nodes out after more than N have failed.",
)
@format_option("text", "json")
def verify(
    rendered: Callable[[Api], Rendered],
    connect: Callable[[], Api],
    smoke: bool,
    keep: bool,
    timeout: float,
    each_node: bool,
    max_failures: int | None,
    output_format: str,
) -> int:
    """Check that a cluster matches gpunode.yml and that pods can use its GPUs.

    The proof pods run in the namespace gpunode-verify, which is deleted afterwards, also when you interrupt it.
    """
    from gpunode.cli.provision import show_results
    from gpunode.edge.kube.verify import ProofOptions
    from gpunode.edge.kube.verify import verify as prove

    if (each_node or max_failures is not None) and not smoke:
        raise click.UsageError("--each-node starts pods, and --no-smoke starts none")
    signal.signal(signal.SIGTERM, _interrupt)  # so that the pods go then too
    with notifying(output_format) as notify:
        api = connect()
        how = ProofOptions(smoke=smoke, keep=keep, timeout=timeout, each_node=each_node, max_failures=max_failures)
        results = prove(api, rendered(api), how, notify=notify)
    show_results(results, output_format, brief=True)
    return worst_exit(result.outcome for result in results)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
