"""What a person sees while hosts are at work: live lines on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpunode.cli.terminal import say, screen
from gpunode.core.printable import printable
from gpunode.core.report.text import MANY

if TYPE_CHECKING:
    from gpunode.core.model import HostResult
    from gpunode.edge.ansible.runner import Event
    from gpunode.edge.detect import Detected
    from gpunode.edge.fleet.provision import RunCallbacks

_ARGUMENT_CHECK = "Validating arguments against arg spec"  # ansible-core puts such a task before every role


@contextlib.contextmanager
def probing(output_format: str = "text") -> Iterator[Callable[[Detected], None]]:
    """While hosts are probed: call the function with each host that is done.  Formats for machines get no lines."""
    count = failed = 0

    if not sys.stderr.isatty():
        told = time.monotonic()

        def line(found: Detected) -> None:
            nonlocal count, failed, told
            count, failed = count + 1, failed + bool(found.error)
            if output_format != "text":
                return
            if found.error or count <= MANY:
                say(f"{found.host}: {'failed' if found.error else 'probed'}")
            elif time.monotonic() - told > _EVERY:
                told = time.monotonic()
                say(f"{count} hosts probed")

        yield line
        if count > MANY and output_format == "text":
            say(f"{count} hosts probed, {failed} failed")
        return

    with screen(stderr=True).status("probing …") as status:

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
                say(_line(event))

        yield line
        return

    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    texts = (TextColumn("{task.fields[host]}"), TextColumn("{task.description}"))
    colours = {"changed": "yellow", "failed": "red", "unreachable": "red"}
    with Progress(
        SpinnerColumn(), *texts, TimeElapsedColumn(), console=screen(stderr=True), transient=True
    ) as progress:
        rows = {host: progress.add_task("waiting", host=host, visible=len(hosts) <= 20) for host in hosts}

        def show(event: Event) -> None:
            if event.host in rows and not event.task.startswith(_ARGUMENT_CHECK):
                progress.update(rows[event.host], description=escape(event.task), visible=True)
            if is_told(event, output_format):
                progress.console.print(escape(_line(event)), style=colours.get(event.kind, ""))

        yield show


_FAILURES = 20  # that are told while it runs
_EVERY = 10.0  # seconds between lines of counts


@contextlib.contextmanager
def fleet(output_format: str = "text", hosts: Sequence[str] = ()) -> Iterator[RunCallbacks]:
    """While provision goes through `hosts`: what is done, for a few hosts as `running` does, for many in numbers."""
    from gpunode.edge.fleet.provision import RunCallbacks

    if len(hosts) <= MANY:
        with running(output_format, hosts) as on_event:
            yield RunCallbacks(event=on_event, wave=_tell_wave, notice=say)
        return
    with _counting(len(hosts)) as count:

        def event(seen: Event) -> None:
            count.work(seen)
            if seen.kind in ("failed", "unreachable"):
                count.fail(seen)

        def wave(pool: str, number: int, what: str) -> None:
            count.say(f"pool {pool}, wave {number + 1}: {what}")

        yield RunCallbacks(event=event, wave=wave, result=count.result, notice=count.say)


def _tell_wave(pool: str, number: int, what: str) -> None:
    """Waves are worth a line where there are several, or where one stops."""
    if number or what != "begins":
        say(f"pool {pool}, wave {number + 1}: {what}")


@contextlib.contextmanager
def _counting(total: int) -> Iterator[_Count]:
    if not sys.stderr.isatty():
        yield _Count(total, say)
        return
    from rich.progress import Progress, TimeElapsedColumn

    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=screen(stderr=True)) as bar:
        row = bar.add_task("provision", total=total)
        yield _Count(
            total,
            lambda text: bar.console.out(printable(text)),
            lambda done, text: bar.update(row, completed=done, description=text),
        )


class _Count:
    """How many hosts are done, failed and in work; a line of it now and then, or a bar."""

    def __init__(
        self, total: int, say: Callable[[str], None], show: Callable[[int, str], object] | None = None
    ) -> None:
        self.say, self._show = say, show
        self._total, self._done, self._failed = total, 0, 0
        self._working: set[str] = set()
        self._told = 0.0
        self._told_failures = 0

    def work(self, event: Event) -> None:
        self._working.add(event.host)
        self._update()

    def fail(self, event: Event) -> None:
        """The first failures in their own words, the others as numbers: the results have their causes."""
        self._told_failures += 1
        if self._told_failures <= _FAILURES:
            self.say(_line(event))
        elif self._told_failures == _FAILURES + 1:
            self.say("more fail; their causes follow at the end")

    def result(self, result: HostResult) -> None:
        self._working.discard(result.host)
        self._done += 1
        self._failed += not result.ok
        self._update(last=self._done == self._total)

    def _update(self, *, last: bool = False) -> None:
        text = f"{self._done} of {self._total} done, {self._failed} failed, {len(self._working)} running"
        if self._show:
            self._show(self._done, text)
        elif last or time.monotonic() - self._told > _EVERY:
            self._told = time.monotonic()
            self.say(text)


def _line(event: Event) -> str:
    if event.kind == "waiting":
        return f"{event.host}: {event.task}"
    message = f": {event.message}" if event.message else ""
    return f"{event.host}: {event.task}: {event.kind} ({event.seconds:.1f} s){message}"
