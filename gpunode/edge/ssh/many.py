"""Run a shell program on many hosts at once.

The program (core/remote.py) goes to the standard input of `sh -s`, as root by sudo where asked, and its output comes
back, bounded in time and size.  Every way to fail is an UnreachableError that names host, cause and next step.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpunode.core.errors import GpunodeError
from gpunode.edge.isolate import as_error
from gpunode.edge.ssh.connection import Connection, Jumps, NotServed, connect
from gpunode.edge.ssh.shell import Target, local_run, parse_host

__all__ = ["Connection", "Jumps", "NotServed", "Ran", "Target", "connect", "local_run", "parse_host", "run_many"]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a program on one host: its output, or the error that kept it from running."""

    target: Target
    rc: int = 0
    stdout: str = ""
    stderr: str = ""
    error: GpunodeError | None = None


def run_many(
    targets: Sequence[Target],
    program: str,
    *,
    forks: int = 50,
    connect_timeout: float = 10,
    timeout: float = 120,
    accept_new: bool = False,
    on_done: Callable[[Ran], None] = lambda ran: None,
) -> list[Ran]:
    """Run the program on all targets, `forks` at a time; results in the order of `targets`, errors among them."""
    todo: queue.SimpleQueue[tuple[int, Target]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Ran]] = queue.SimpleQueue()
    for item in enumerate(targets):
        todo.put(item)

    with Jumps(timeout=connect_timeout, accept_new=accept_new) as jumps:

        def one(target: Target) -> Ran:
            try:
                if target.connection == "local":
                    rc, stdout, stderr = local_run(program, target=target, timeout=timeout)
                else:
                    with connect(target, timeout=connect_timeout, accept_new=accept_new, jumps=jumps) as connection:
                        rc, stdout, stderr = connection.run(program, timeout=timeout)
            except Exception as error:  # a bug met on one host must not take the others along
                return Ran(target=target, error=as_error(error, host=target.name))
            return Ran(target=target, rc=rc, stdout=stdout, stderr=stderr)

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    index, target = todo.get_nowait()
                    done.put((index, one(target)))

        # daemon threads: Ctrl-C ends the process at once, whatever a dead host keeps them waiting for
        for _ in range(min(forks, len(targets))):
            threading.Thread(target=work, daemon=True).start()
        results: dict[int, Ran] = {}
        while len(results) < len(targets):
            index, ran = done.get()
            results[index] = ran
            on_done(ran)
    return [results[index] for index in range(len(targets))]
