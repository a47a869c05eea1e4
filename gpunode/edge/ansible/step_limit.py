"""How long a script of one of Ansible's steps may take.

Ansible's own task time-out names neither the script nor what to do, plays that people write have none, and what it has
started goes on.  This is the same signal with an end of our own: ssh and all else below this worker is ended, too.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gpunode.core.errors import UnreachableError
from gpunode.edge.supervise import descendants, send

READING = 120.0  # seconds for all that one step reads of a node: --timeout, gpunode_timeout
LOOKING = 600.0  # for a script that changes nothing, or proves: check mode, questions, containers one after the other
CHANGING = 6 * 3600.0  # the slowest download and build are far below, and a node may never end


class _Over(BaseException):
    """No Exception: what waits for a node catches those."""


@contextmanager
def time_limit(script: str, seconds: float, *, spent: float = 0.0) -> Iterator[None]:
    """Within, `script` runs on a node through Ansible's connection; others have `spent` some of the time before.

    Raises UnreachableError when the time is over.
    """

    def over(_signal: int, _frame: FrameType | None) -> None:
        raise _Over

    outer = signal.getitimer(signal.ITIMER_REAL)[0]  # Ansible's
    left = max(seconds - spent, 0.01)
    if threading.current_thread() is not threading.main_thread() or 0 < outer <= left:
        yield
        return
    began, handler = time.monotonic(), signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        yield
    except _Over:
        send(signal.SIGKILL, descendants())
        raise UnreachableError(
            f"{script} did not end within {seconds:g} s: the time went to sending it or to waiting for output",
            fix="see what hangs on the host (its sshd, a dead mount, a stuck nvidia-smi), or allow more with --timeout",
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - began), 0.01) if outer else 0)
        signal.signal(signal.SIGALRM, handler)
