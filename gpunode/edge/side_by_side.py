"""The same work for many hosts, some at a time."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_TICK = 0.2  # seconds between two looks at the clock


def side_by_side(
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    at_once: int,
    on_done: Callable[[R], None] = lambda result: None,
    on_tick: Callable[[], None] = lambda: None,
    seconds: float = 0,
    late: Callable[[T], R] | None = None,
) -> list[R]:
    """What `work` gives for each item, in the order of the items; `on_done` sees each result as it comes.

    With `late` an item whose work takes more than `seconds` gets what `late` gives, and the next item its place.  What
    `work`, or `on_tick` a few times a second, raises is raised here.  The threads are daemons: Ctrl-C is noticed at
    once, and ends the process, whatever a dead host keeps them waiting for.
    """
    crew = _Crew(work, list(items))
    crew.start(at_once)
    while len(crew.results) < len(crew.items):
        for result in (*crew.finished(), *(crew.overdue(seconds, late) if late else ())):
            on_done(result)
        on_tick()
    return [crew.results[index] for index in range(len(crew.items))]


class _Crew(Generic[T, R]):
    def __init__(self, work: Callable[[T], R], items: Sequence[T]) -> None:
        self.items = items
        self.results: dict[int, R] = {}
        self._work = work
        self._began: dict[int, float] = {}
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, R | BaseException]] = queue.SimpleQueue()
        for index in range(len(items)):
            self._todo.put(index)

    def start(self, threads: int) -> None:
        for _ in range(min(threads, len(self.items))):
            threading.Thread(target=self._worker, daemon=True).start()

    def _worker(self) -> None:
        with contextlib.suppress(queue.Empty):
            index = -1
            while index not in self.results:  # else it came too late, and another worker has its place
                index = self._todo.get_nowait()
                self._began[index] = time.monotonic()
                self._done.put((index, self._outcome(index)))

    def _outcome(self, index: int) -> R | BaseException:
        try:
            return self._work(self.items[index])
        except BaseException as error:
            return error

    def finished(self) -> Iterator[R]:
        """The next result, waited for as long as a tick; none of an item that was too late."""
        with contextlib.suppress(queue.Empty):
            index, outcome = self._done.get(timeout=_TICK)
            if index in self.results:
                return
            if isinstance(outcome, BaseException):
                raise outcome
            self.results[index] = outcome
            yield outcome

    def overdue(self, seconds: float, late: Callable[[T], R]) -> Iterator[R]:
        now = time.monotonic()
        for index, began in list(self._began.items()):
            if index not in self.results and now - began > seconds:
                self.results[index] = late(self.items[index])
                self.start(1)
                yield self.results[index]
