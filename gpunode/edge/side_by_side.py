"""The one way to work on many hosts: each has a deadline, its result is seen as it comes, and Ctrl-C ends all."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from gpunode.core.errors import InterruptedByUser, UnreachableError
from gpunode.core.late import dataclass

T = TypeVar("T")
R = TypeVar("R")

_TICK = 0.2  # seconds between looks at the deadlines, and whether all is to end
_MOMENT = 1.5  # seconds that threads get to close what they have open, or to uncordon a node, when all is to end

SENDING, OUTPUT = "sending the program", "waiting for output"


class Deadline:
    """The time that one host has for all that is done with it, the part it is in, and what closes when it is over.

    Safe for threads: one works, and another cuts it off.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self.part = "connecting"
        self.is_cut = False
        self._until = time.monotonic() + seconds
        self._closers: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Seconds; 0 and less when the time is over."""
        return self._until - time.monotonic()

    def within(self, name: str, most: float = math.inf) -> float:
        """Seconds for the next step on host `name`, at most `most`.  Raises UnreachableError when no time is left."""
        if self.left <= 0:
            raise self.late(name)
        return min(self.left, most)

    def late(self, name: str) -> UnreachableError:
        """The time of host `name` is over, and where it went."""
        if self.part == OUTPUT:
            return UnreachableError(
                f"{name}: the host answered, but its script did not end within {self.seconds:g} s: the time went to "
                f"{self.part}",
                fix="see what hangs there (a dead mount, a stuck nvidia-smi), or allow more with --timeout",
            )
        return UnreachableError(
            f"{name}: not done within {self.seconds:g} s: the time went to {self.part}",
            fix="look at the network, and at sshd and the load of the host, or allow more with --timeout",
        )

    @contextlib.contextmanager
    def closes(self, close: Callable[[], object]) -> Iterator[None]:
        """Within, `close` is called when the deadline is cut; at once where it has been."""
        with self._lock:
            self._closers.append(close)
            cut = self.is_cut
        try:
            if cut:
                close()
            yield
        finally:
            with self._lock:
                self._closers.remove(close)

    def cut(self) -> threading.Thread:
        """End what is open, so that whoever waits for it fails; the thread that does it, since closing may wait."""
        with self._lock:
            self.is_cut = True
            closers = self._closers[::-1]

        def close() -> None:
            for one in closers:
                with contextlib.suppress(Exception):
                    one()

        thread = threading.Thread(target=close, daemon=True)
        thread.start()
        return thread

    @contextlib.contextmanager
    def watched(self) -> Iterator[Deadline]:
        """Within, the deadline is cut when its time is over; for those that nobody else watches."""
        timer = threading.Timer(max(0.0, self.left), self.cut)
        timer.daemon = True
        timer.start()
        try:
            yield self
        finally:
            timer.cancel()


@contextlib.contextmanager
def beating(state: Callable[[], str], seconds: float, say: Callable[[str], None]) -> Iterator[None]:
    """Say every so many seconds what still runs, where that is something."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(seconds):
            if text := state():
                say(text)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def side_by_side(
    work: Callable[[T, Deadline], R],
    items: Sequence[T],
    *,
    at_once: int,
    on_done: Callable[[R], None] = lambda result: None,
    seconds: float = math.inf,
    late: Callable[[T, Deadline], R] | None = None,
    stop: threading.Event | None = None,
) -> list[R]:
    """What `work` makes of each item, `at_once` at a time, in the order of the items; `on_done` sees each as it comes.

    With `late` an item has `seconds` from its start: then its deadline is cut, `late` says what came of it, and nobody
    waits for it any more.  When `stop` is set, InterruptedByUser is raised; at Ctrl-C, it is set.  Either way nothing
    is waited for longer than moments: deadlines are cut, threads are daemons.  What `work` raises ends all of it.
    """
    walk = _Walk(items, work, seconds)
    try:
        for _ in range(min(at_once, len(items))):
            walk.start()
        while walk.left:
            if stop and stop.is_set():
                raise InterruptedByUser("interrupted")
            for index, came in walk.come():
                on_done(walk.end(index, came))
            if late is None:
                continue
            for index in walk.late():
                on_done(walk.end(index, late(items[index], walk.deadlines[index])))
                walk.start()
    except BaseException as error:
        if stop and isinstance(error, KeyboardInterrupt):
            stop.set()  # for what `work` itself waits for
        walk.leave()
        raise
    return [walk.results[index] for index in range(len(items))]


@dataclass(frozen=True)
class _Raised:
    error: BaseException


class _Walk(Generic[T, R]):
    """The threads of one call, and what has come of it."""

    def __init__(self, items: Sequence[T], work: Callable[[T, Deadline], R], seconds: float) -> None:
        self._items, self._work, self._seconds = items, work, seconds
        self._over = threading.Event()
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, R | _Raised]] = queue.SimpleQueue()
        self._came: set[int] = set()  # in time, though `on_done` may be busy with others until theirs is over
        self._threads: list[threading.Thread] = []
        self.deadlines: dict[int, Deadline] = {}
        self.results: dict[int, R] = {}
        for index in range(len(items)):
            self._todo.put(index)

    @property
    def left(self) -> int:
        return len(self._items) - len(self.results)

    def start(self) -> None:
        """One more thread."""
        self._threads.append(threading.Thread(target=self._turn, daemon=True))
        self._threads[-1].start()

    def _turn(self) -> None:
        with contextlib.suppress(queue.Empty):
            while not self._over.is_set():
                index = self._todo.get_nowait()
                deadline = self.deadlines[index] = Deadline(self._seconds)
                came: R | _Raised
                try:
                    came = self._work(self._items[index], deadline)
                except BaseException as error:
                    came = _Raised(error)
                self._came.add(index)
                self._done.put((index, came))
                if deadline.is_cut:
                    return  # another thread has its place

    def come(self) -> Iterator[tuple[int, R]]:
        """What has come within a moment."""
        with contextlib.suppress(queue.Empty):
            index, came = self._done.get(timeout=_TICK)
            if index in self.results:  # it was late
                return
            if isinstance(came, _Raised):
                raise came.error
            yield index, came

    def end(self, index: int, result: R) -> R:
        self.results[index] = result
        return result

    def late(self) -> list[int]:
        """Those whose time is over now; their deadlines are cut."""
        ended = self._came | self.results.keys()
        late = [i for i, deadline in list(self.deadlines.items()) if deadline.left <= 0 and i not in ended]
        for index in late:
            self.deadlines[index].cut()
        return late

    def leave(self) -> None:
        """Cut all that is at work, and give it a moment to close what it has open."""
        self._over.set()
        cuts = [deadline.cut() for index, deadline in list(self.deadlines.items()) if index not in self.results]
        until = time.monotonic() + _MOMENT
        for thread in (*cuts, *self._threads):
            thread.join(max(0.0, until - time.monotonic()))
