"""What Ctrl-C and SIGTERM do while something must not be left half done.  Only a program's main thread may say."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def handling_sigterm() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with _signals({signal.SIGTERM: interrupt}):
        yield


@contextlib.contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Do not let a second Ctrl-C break off the cleaning up."""
    with _signals({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
        yield


@contextlib.contextmanager
def _signals(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
