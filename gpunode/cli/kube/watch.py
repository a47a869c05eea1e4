"""gpunode kube watch."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option
from gpunode.cli.kube.options import cluster_options, render_options
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit, GpunodeError

if TYPE_CHECKING:
    from gpunode.core.kube import Rendered
    from gpunode.core.kube.watching import Turn
    from gpunode.edge.kube.client import Api
    from gpunode.edge.kube.watch import Metrics, Watcher


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode kube watch -c gpunode.yml\n"
    "  gpunode kube watch -c gpunode.yml --once --format json\n"
    "  gpunode kube watch --objects cluster/ --events --metrics-listen :9405\n\n"
    "Exit codes: 0 nothing found (or stopped by a signal), 1 something found (--once), 2 usage or input, "
    "4 no connection (--once), 5 no right to read nodes and pods."
)
@render_options
@cluster_options
@click.option(
    "--objects",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Compare with all objects in this file or folder, in place of those that gpunode.yml makes.",
)
@click.option("--once", is_flag=True, help="Look once and end: for cron, and for pipelines.")
@click.option(
    "--interval", type=click.FloatRange(1), default=60.0, show_default=True, metavar="S", help="Seconds between looks."
)
@click.option("--events", is_flag=True, help="Write a Kubernetes Event when something is found, and when it is gone.")
@click.option("--metrics-listen", default="", metavar="[ADDR]:PORT", help="Serve /metrics for Prometheus there.")
@format_option("text", "json")
def watch(
    rendered: Callable[[Api], Rendered],
    connect: Callable[[], Api],
    objects: Path | None,
    once: bool,
    interval: float,
    events: bool,
    metrics_listen: str,
    output_format: str,
) -> int:
    """Report what drifts in a cluster: our objects, nodes that lost GPUs, pools without capacity.

    It only reads (and writes Events, with --events); gpunode kube apply changes.  A line for each thing that is found
    or gone; with --format json an object on each line.
    """
    from gpunode.core.kube.render import node_wishes
    from gpunode.edge.kube.watch import Metrics, Watcher, read_marks, read_objects, serving, wanted_objects

    api = connect()
    if objects:
        watcher = Watcher(api=api, wanted=read_objects(objects), marks=read_marks(objects), events=events)
    else:
        what = rendered(api)
        watcher = Watcher(
            api=api,
            wanted=wanted_objects(what.objects),
            marks=tuple(node_wishes(what.cluster)),
            namespace=what.cluster.spec.namespace,
            events=events,
        )
    metrics = Metrics(watcher)
    with serving(metrics, metrics_listen) if metrics_listen else contextlib.nullcontext():
        if once:
            return _once(watcher, output_format)
        with _stoppable():
            _go_on(watcher, metrics, interval, output_format)
    return Exit.OK


def _once(watcher: Watcher, output_format: str) -> int:
    from gpunode.core.kube.watching import finding_data

    watcher.round(once=True)
    if output_format == "json":
        print_json({"findings": [finding_data(one) for one in watcher.found], "unread": list(watcher.unread)})
    else:
        for one in watcher.found:
            echo(f"{one.check}  {one.about}: {one.message} (fix: {one.fix})")
        for text in watcher.unread:
            echo(f"not read: {text}", err=True)
        if not watcher.found:
            echo(f"nothing found: {len(watcher.wanted)} objects, {len(watcher.usage.nodes if watcher.usage else ())} "
                 "nodes with GPUs")  # fmt: skip
    return Exit.FAILED if watcher.found or watcher.unread else Exit.OK


def _go_on(watcher: Watcher, metrics: Metrics, interval: float, output_format: str) -> None:
    unread: tuple[str, ...] = ()
    first = True
    while True:
        try:
            changed = watcher.round()
            metrics.up = True
        except GpunodeError as error:
            if first and error.exit in (Exit.INPUT, Exit.REFUSED):
                raise
            changed, metrics.up = (), False
            _line(output_format, "unread", {"message": error.what, "fix": error.fix}, f"not read: {error.what}")
        for turn in changed:
            _turn(turn, output_format)
        for text in (one for one in watcher.unread if one not in unread):
            _line(output_format, "unread", {"message": text}, f"not read: {text}")
        unread = watcher.unread
        if first and metrics.up and not watcher.found:
            text = f"nothing found: {len(watcher.wanted)} objects; looking every {interval:g} s"
            _line(output_format, "watching", {"objects": len(watcher.wanted), "interval": interval}, text)
        first = False
        watcher.api.pause(interval)


def _turn(turn: Turn, output_format: str) -> None:
    from gpunode.core.kube.watching import finding_data

    one = turn.finding
    found = f"{one.check}  {one.about}: {one.message} (fix: {one.fix})"
    text = found if turn.state == "found" else f"{one.check}  {one.about}: no longer: {one.message}"
    _line(output_format, turn.state, finding_data(one), text)


def _line(output_format: str, state: str, data: dict[str, Any], text: str) -> None:
    from datetime import UTC, datetime

    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if output_format == "json":
        echo(json.dumps({"time": stamp, "state": state, **data}))
    else:
        echo(f"{stamp}  {text}")


class _Stop(BaseException):
    """A signal asked to end."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _Stop

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except _Stop:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
