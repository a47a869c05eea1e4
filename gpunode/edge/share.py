"""What one host's answer may cost the controller: its share of processor time and memory, and no more.

Answers are read and planned one after the other in the main thread.  One that takes all memory would end the process,
and one that takes hours would keep the others waiting: over its share it is that host's error, and the others go on.
"""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TypeVar

from gpunode.core.errors import GpunodeError
from gpunode.edge.isolate import isolated

T = TypeVar("T")
SECONDS = 60.0  # of processor time; a usual host takes 0.003
MEMORY = 2 << 30  # bytes on top of what the process has; a usual host takes 0.15 MB
_AGAIN = 5.0  # seconds after which the signal comes again, where somebody has caught the exception


class TooCostlyError(GpunodeError):
    """A host's answer took more than its share."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"reading and planning it took more than {what}",
            fix="gpunode detect HOST --save DIR keeps its answer: look for a file in it that is not what it should be",
        )


def in_its_share(
    host: str, call: Callable[[], T], *, seconds: float = SECONDS, memory: int = MEMORY
) -> T | GpunodeError:
    """What `call` returns, as `isolated` does; in the main thread bounded in processor time and memory as well."""

    def bounded() -> T:
        with share(seconds, memory):
            return call()

    return isolated(host, bounded)


Lifted = Callable[[], AbstractContextManager[None]]


@contextmanager
def share(seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[Lifted]:
    """Within, the main thread is bounded, but for what it does while the yielded is entered: waiting for the host.

    One share within another is the outer one.  Raises TooCostlyError.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_VIRTUAL)[0]:
        yield nullcontext
        return

    def over(_signal: int, _frame: FrameType | None) -> None:
        raise TooCostlyError(f"{seconds:g} seconds of processor time")

    before = resource.getrlimit(resource.RLIMIT_DATA)
    handler = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _AGAIN)
    resource.setrlimit(resource.RLIMIT_DATA, data_limit(memory))

    @contextmanager
    def lifted() -> Iterator[None]:
        time, data = signal.setitimer(signal.ITIMER_VIRTUAL, 0), resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, before)
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, data)
            signal.setitimer(signal.ITIMER_VIRTUAL, *time)

    try:
        yield lifted
    except MemoryError:
        raise TooCostlyError(f"{memory >> 20} MiB of memory") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def data_limit(more: int) -> tuple[int, int]:
    """RLIMIT_DATA by which this process may take that many bytes on top of what it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # what the limit counts is what may be written to, not what is reserved: proc(5), setrlimit(2)
    size = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    return min([size + more, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]), hard
