"""Work that is begun early, by a process of its own, while this one goes on.

Reading an inventory takes a third of a second, nearly all of it Ansible's start: as long as our own imports.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any, TypeVar

LOG = logging.getLogger("gpunode")
T = TypeVar("T")


def begin(act: Callable[[], T]) -> Callable[[], T]:
    """Begin `act` in a child process; the function that comes back waits for its value, which must be plain data.

    What goes wrong there (`act` raises, the child is killed) is done again here, so that errors are those of `act`
    itself.  Where other threads run, whose locks a child would inherit, `act` waits until it is asked for.
    """
    if threading.active_count() > 1:
        return act
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(_send(act, writer))
    os.close(writer)

    @functools.cache
    def value() -> T:
        with os.fdopen(reader, "rb") as answer:
            sent = answer.read()
        if os.waitpid(child, 0)[1] != 0:
            return _quietly(act)
        made, warnings = pickle.loads(sent)  # noqa: S301  of our own child
        if warnings.strip():
            LOG.warning("%s", warnings.rstrip("\n"))
        return made  # type: ignore[no-any-return]

    return value


def _quietly(act: Callable[[], T]) -> T:
    """What `act` returns or raises; what it writes to stderr meanwhile is for those who ask for it (-v)."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as warnings:
        os.dup2(warnings.fileno(), 2)
        try:
            return act()
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            warnings.seek(0)
            LOG.info("%s", warnings.read().decode(errors="replace").rstrip("\n"))


def _send(act: Callable[[], Any], writer: int) -> int:
    """The child's whole life; its exit status."""
    try:
        with os.fdopen(writer, "wb") as answer, tempfile.TemporaryFile() as warnings:
            os.dup2(warnings.fileno(), 2)
            made = act()
            sys.stderr.flush()
            warnings.seek(0)
            pickle.dump((made, warnings.read().decode(errors="replace")), answer)
    except BaseException:
        return 1
    return 0
