"""What a person sees while hosts are at work: live lines on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpunode.edge.detect import Detected
    from gpunode.edge.runner import Event

_ARGUMENT_CHECK = "Validating arguments against arg spec"  # ansible-core puts such a task before every role


@contextlib.contextmanager
def probing(output_format: str = "text") -> Iterator[Callable[[Detected], None]]:
    """While hosts are probed: call the function with each host that is done.  Formats for machines get no lines."""
    count = 0

    if not sys.stderr.isatty():

        def line(found: Detected) -> None:
            if output_format == "text":
                print(f"{found.host}: {'failed' if found.error else 'probed'}", file=sys.stderr, flush=True)

        yield line
        return

    from rich.console import Console

    with Console(stderr=True).status("probing …") as status:

        def tick(found: Detected) -> None:
            nonlocal count
            count += 1
            status.update(f"probing … {count} done, last: {found.host}")

        yield tick


def is_told(event: Event, output_format: str = "text") -> bool:
    """Whether an event is worth a line that stays: what changed, what failed, how the checks went."""
    if event.kind in ("failed", "unreachable"):
        return True
    if output_format != "text" or event.task.startswith(_ARGUMENT_CHECK):
        return False
    return event.kind in ("changed", "waiting") or (event.kind == "ok" and event.role == "verify")


@contextlib.contextmanager
def running(output_format: str = "text", hosts: Sequence[str] = ()) -> Iterator[Callable[[Event], None]]:
    """While a playbook runs on `hosts`: call the function with each event."""
    if not hosts or not sys.stderr.isatty():

        def line(event: Event) -> None:
            if is_told(event, output_format):
                print(_line(event), file=sys.stderr, flush=True)

        yield line
        return

    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    texts = (TextColumn("{task.fields[host]}"), TextColumn("{task.description}"))
    colours = {"changed": "yellow", "failed": "red", "unreachable": "red"}
    with Progress(
        SpinnerColumn(), *texts, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        rows = {host: progress.add_task("waiting", host=host, visible=len(hosts) <= 20) for host in hosts}

        def show(event: Event) -> None:
            if event.host in rows and not event.task.startswith(_ARGUMENT_CHECK):
                progress.update(rows[event.host], description=escape(event.task), visible=True)
            if is_told(event, output_format):
                progress.console.print(escape(_line(event)), style=colours.get(event.kind, ""))

        yield show


def _line(event: Event) -> str:
    if event.kind == "waiting":
        return f"{event.host}: {event.task}"
    message = f": {event.message}" if event.message else ""
    return f"{event.host}: {event.task}: {event.kind} ({event.seconds:.1f} s){message}"
