"""What a person sees while hosts are at work: live lines on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpunode.cli.output import fitted
from gpunode.cli.terminal import say, screen
from gpunode.core.late import dataclass, field, replace
from gpunode.core.model import Check, HostResult
from gpunode.core.printable import few, printable
from gpunode.core.report.model import duration
from gpunode.core.report.text import MANY, in_short
from gpunode.edge.side_by_side import beating

if TYPE_CHECKING:
    from gpunode.edge.ansible.runner import Event
    from gpunode.edge.detect import Detected
    from gpunode.edge.fleet.driver import RunCallbacks


@contextlib.contextmanager
def probing(output_format: str = "text") -> Iterator[Callable[[Detected], None]]:
    """While hosts are probed: call the function with each host that is done.  Formats for machines get no lines."""
    count = failed = 0

    if not sys.stderr.isatty():
        reported = time.monotonic()

        def line(host: Detected) -> None:
            nonlocal count, failed, reported
            count, failed = count + 1, failed + bool(host.error)
            if output_format != "text":
                return
            if host.error or count <= MANY:
                say(f"{host.host}: {host.error.outcome if host.error else 'probed'}")
            elif time.monotonic() - reported > _EVERY:
                reported = time.monotonic()
                say(f"{count} hosts probed")

        yield line
        if count > MANY and output_format == "text":
            say(f"{count} hosts probed, {failed} failed")
        return

    with screen(stderr=True).status("probing …") as status:

        def tick(host: Detected) -> None:
            nonlocal count
            count += 1
            status.update(f"probing … {count} done, last: {host.host}")

        yield tick


def is_shown(event: Event, output_format: str = "text") -> bool:
    """Whether an event is worth a line that stays: what changed, what failed, how the checks went."""
    if event.kind in ("failed", "unreachable"):
        return True
    if output_format != "text":
        return False
    return event.kind in ("changed", "waiting") or (event.kind == "ok" and "checks" in event.result)


_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ROWS = 20  # hosts that have a line of their own while they run
_BEAT = 60.0  # seconds between lines that say what still runs, where there is no terminal
Steps = Mapping[str, Sequence[str]]  # the titles of each host's steps, in their order


@dataclass(kw_only=True)
class _Row:
    """Where a host is."""

    began: float
    number: int = 0  # of its step, from 1
    task: str = ""
    note: str = ""  # what it waits for
    ended: float | None = None
    failed: bool = False
    printed: bool = False  # its last line is
    installed: list[str] = field(default_factory=list)


class Board:
    """The hosts that a playbook runs on: the step that each is at, since when, and how it ended."""

    def __init__(self, steps: Steps | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._now = steps or {}, now
        self._began = now()
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()
        self.wave = ""

    def event(self, event: Event) -> str:
        """Take an event; the last line of a host that failed by it, else ""."""
        with self._lock:
            row = self._rows.setdefault(event.host, _Row(began=self._now()))
            if event.kind == "waiting":
                row.note = event.task
                return ""
            titles = self._steps.get(event.host, ())
            row.number = titles.index(event.task) + 1 if event.task in titles else row.number
            row.task, row.note = event.task, ""
            if text := event.result.get("installed"):
                row.installed.append(str(text))
            if event.kind in ("failed", "unreachable") and not row.printed:
                row.failed = row.printed = True
                row.ended = self._now()
                return self._line("✗", event.host, ": ".join(filter(None, (event.task, _message(event)))))
            if event.kind in ("ok", "changed") and row.number and row.number == len(titles):
                row.ended = self._now()  # what follows is the controller's
        return ""

    def end(self, result: HostResult) -> str:
        """The last line of a host, "" where it has been printed."""
        with self._lock:
            row = self._rows.setdefault(result.host, _Row(began=self._now()))
            row.failed = not result.ok
            row.ended = self._now() if row.ended is None else row.ended
            if row.printed:
                return ""
            row.printed = True
            text = " · ".join([result.sentence, *row.installed])
            return self._line("✓" if result.ok else "✗", result.host, text)

    def lines(self) -> list[str]:
        """The hosts that run, and the state of all of them."""
        with self._lock:
            running = {host: row for host, row in self._rows.items() if not row.printed}
            frame = _FRAMES[int(self._now() * 8) % len(_FRAMES)]
            shown = [
                self._line("·" if row.ended else frame, host, " · ".join(filter(None, (self._doing(row), row.note))))
                for host, row in list(running.items())[:_ROWS]
            ]
            more = [f"  and {len(running) - _ROWS} more"] if len(running) > _ROWS else []
            return [*shown, *more, self._footer(len(running))]

    def beat(self) -> str:
        """What still runs, in a line for a log."""
        with self._lock:
            running = [
                f"{host} {self._place(host, row)}{self._doing(row)} ({duration(self._now() - row.began)})"
                for host, row in self._rows.items()
                if not row.printed
            ]
            if not self._rows:
                return f"waiting for the first host ({duration(self._now() - self._began)})"
            return f"running: {few(running, between='; ')}" if running else ""

    def place(self, event: Event) -> str:
        """[2/8], where the event belongs to a step of the plan."""
        with self._lock:
            titles = self._steps.get(event.host, ())
            return f"[{titles.index(event.task) + 1}/{len(titles)}] " if event.task in titles else ""

    @staticmethod
    def _doing(row: _Row) -> str:
        return "checking again" if row.ended else row.task

    def _place(self, host: str, row: _Row) -> str:
        total = len(self._steps.get(host, ()))
        return f"{row.number}/{total} " if row.number else ""

    def _line(self, mark: str, host: str, text: str) -> str:
        row = self._rows[host]
        width = max([len(name) for name in (*self._steps, *self._rows)], default=0)
        took = duration((self._now() if row.ended is None else row.ended) - row.began)
        return f"{mark} {host:<{width}}  {self._place(host, row)} {took:>11}  {text}"

    def _footer(self, running: int) -> str:
        ended = [row for row in self._rows.values() if row.printed]
        failed = sum(row.failed for row in ended)
        waiting = len(set(self._steps) - set(self._rows))
        counts = {"done": len(ended) - failed, "failed": failed, "running": running, "waiting": waiting}
        stated = [f"{count} {what}" for what, count in counts.items() if count]
        return "  " + " · ".join([*filter(None, [self.wave]), *stated, duration(self._now() - self._began)])


@dataclass(frozen=True)
class _Shown:
    """Where a board is shown: `event` takes an event, `say` prints a line that stays."""

    event: Callable[[Event], None]
    say: Callable[[str], None]


@contextlib.contextmanager
def showing(board: Board, output_format: str) -> Iterator[_Shown]:
    """While a playbook runs: `event` of what is yielded takes each event."""
    if sys.stderr.isatty():
        with _live(board) as shown:
            yield shown
        return

    def line(event: Event) -> None:
        board.event(event)
        if is_shown(event, output_format):
            say(_line(event, board.place(event)))

    with beating(board.beat, _BEAT, say) if output_format == "text" else contextlib.nullcontext():
        yield _Shown(line, say)


@contextlib.contextmanager
def _live(board: Board) -> Iterator[_Shown]:
    """A line for each host that runs, drawn again and again; the lines of those that ended stay above."""
    from rich.live import Live
    from rich.text import Text

    console = screen(stderr=True)

    def draw() -> Text:
        return Text("\n".join(board.lines()), no_wrap=True, overflow="ellipsis")

    def keep(text: str) -> None:
        if text:
            colour = {"✗": "red", "✓": "green"}.get(text[0], "")
            line = Text(fitted(text, console.width))
            line.stylize(colour, 0, 1)
            console.print(line, soft_wrap=True)

    with Live(get_renderable=draw, console=console, refresh_per_second=8, transient=True):
        yield _Shown(lambda event: keep(board.event(event)), keep)


_FAILURES = 20  # that are reported while it runs
_EVERY = 10.0  # seconds between lines of counts


@contextlib.contextmanager
def fleet(output_format: str = "text", steps: Steps | None = None) -> Iterator[RunCallbacks]:
    """While provision goes through the hosts of `steps`: few hosts one by one, many in numbers."""
    from gpunode.edge.fleet.driver import RunCallbacks

    hosts = steps or {}
    if len(hosts) <= MANY:
        board = Board(hosts)
        with showing(board, output_format) as shown:

            def wave_of_few(pool: str, number: int, what: str) -> None:
                board.wave = f"pool {pool}, wave {number + 1}"
                if number or what != "begins":  # worth a line where there are several, or where one stops
                    shown.say(f"pool {pool}, wave {number + 1}: {what}")

            def result(ended: HostResult) -> None:
                if (text := board.end(ended)) and sys.stderr.isatty():
                    shown.say(text)

            def without_reason(event: Event) -> None:  # why a host failed its result says, with the fix
                bad = event.kind in ("failed", "unreachable")
                shown.event(replace(event, message="") if bad else event)

            yield RunCallbacks(event=without_reason, wave=wave_of_few, result=result, notice=shown.say)
        return
    with _counting(len(hosts), output_format) as count:

        def event(event: Event) -> None:
            count.work(event)
            if event.kind in ("failed", "unreachable"):
                count.fail(event)

        def wave(pool: str, number: int, what: str) -> None:
            count.say(f"pool {pool}, wave {number + 1}: {what}")

        yield RunCallbacks(event=event, wave=wave, result=count.result, notice=count.say)


@contextlib.contextmanager
def _counting(total: int, output_format: str) -> Iterator[_Count]:
    if not sys.stderr.isatty():
        count = _Count(total, say)
        with beating(count.beat, _BEAT, say) if output_format == "text" else contextlib.nullcontext():
            yield count
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
        self._began = time.monotonic()
        self._reported = 0.0
        self._reported_failures = 0

    def work(self, event: Event) -> None:
        self._working.add(event.host)
        self._update()

    def fail(self, event: Event) -> None:
        """The first failures in their own words, the others as numbers: the results have their causes."""
        self._reported_failures += 1
        if self._reported_failures <= _FAILURES:
            self.say(_line(event))
        elif self._reported_failures == _FAILURES + 1:
            self.say("more fail; their causes follow at the end")

    def result(self, result: HostResult) -> None:
        self._working.discard(result.host)
        self._done += 1
        self._failed += not result.ok
        self._update(last=self._done == self._total)

    def beat(self) -> str:
        """The counts for a log; "" where a line of them was printed less than a minute ago."""
        now = time.monotonic()
        return f"{self._text()} ({duration(now - self._began)})" if now - self._reported >= _BEAT else ""

    def _text(self) -> str:
        return f"{self._done} of {self._total} done, {self._failed} failed, {len(self._working)} running"

    def _update(self, *, last: bool = False) -> None:
        text = self._text()
        if self._show:
            self._show(self._done, text)
        elif last or time.monotonic() - self._reported > _EVERY:
            self._reported = time.monotonic()
            self.say(text)


def _line(event: Event, place: str = "") -> str:
    if event.kind == "waiting":
        return f"{event.host}: {event.task}"
    message = f": {text}" if (text := _message(event)) else ""
    return f"{event.host}: {place}{event.task}: {event.kind} ({event.seconds:.1f} s){message}"


def _message(event: Event) -> str:
    """What is said of it; what failed checks found stands at the end."""
    failed = [one for one in event.result.get("checks", ()) if isinstance(one, dict) and one.get("status") == "failed"]
    checks = tuple(Check(id=_word(one, "id"), status="failed", message=_word(one, "message")) for one in failed)
    return in_short(HostResult(host=event.host, message=event.message, checks=checks))


def _word(check: Mapping[str, object], name: str) -> str:
    return printable(str(check.get(name, "")))
