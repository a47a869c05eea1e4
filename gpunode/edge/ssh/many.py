"""Shell programs on many hosts at once.

A program (core/remote.py) goes to the standard input of `sh -s`, as root by sudo where asked, and its output comes
back, bounded in time and size.  Every way to fail is an UnreachableError that names host, cause and next step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from gpunode.core.errors import GpunodeError
from gpunode.core.late import dataclass, field
from gpunode.edge.isolate import as_error
from gpunode.edge.side_by_side import Deadline, side_by_side
from gpunode.edge.ssh.connection import Jumps, NotServed, connect
from gpunode.edge.ssh.shell import Target, local_run


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How many hosts are asked at a time, how they are reached, and how long each of them may take."""

    forks: int = 50
    connect_timeout: float = 10  # seconds for each of: TCP, the banner, the key exchange, authentication
    timeout: float = 120  # seconds for all that is done with one host
    accept_new: bool = False  # add unknown host keys to known_hosts
    stop: threading.Event = field(default_factory=threading.Event)  # when it is set, all is to end


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a program on one host: its output, or the error that kept it from running."""

    target: Target
    rc: int = 0
    stdout: str = ""
    stderr: str = ""
    error: GpunodeError | None = None


def run_many(
    pairs: Sequence[tuple[Target, str]],
    *,
    reach: Reach | None = None,
    on_done: Callable[[Ran], None] = lambda ran: None,
) -> list[Ran]:
    """Run on each target its program; the results in the order of `pairs`, errors among them.

    `on_done` sees each result when it is there.  Raises InterruptedByUser when `reach.stop` is set.
    """
    how = reach or Reach()
    with Jumps(timeout=how.connect_timeout, accept_new=how.accept_new) as jumps:

        def one(pair: tuple[Target, str], deadline: Deadline) -> Ran:
            target, program = pair
            try:
                if target.connection not in ("ssh", "local"):
                    raise NotServed(f"{target.name}: over the connection {target.connection} Ansible alone reaches it")
                if target.connection == "local":
                    rc, stdout, stderr = local_run(program, target=target, deadline=deadline)
                else:
                    with connect(
                        target, timeout=how.connect_timeout, accept_new=how.accept_new, jumps=jumps, deadline=deadline
                    ) as connection:
                        rc, stdout, stderr = connection.run(program, deadline=deadline)
            except Exception as error:  # a bug met on one host must not take the others along
                return Ran(target=target, error=target.hidden_in(as_error(error, host=target.name, hide=target.hidden)))
            return Ran(target=target, rc=rc, stdout=target.hidden(stdout), stderr=target.hidden(stderr))

        return side_by_side(
            one, pairs, at_once=how.forks, seconds=how.timeout, late=_late, on_done=on_done, stop=how.stop
        )


def _late(pair: tuple[Target, str], deadline: Deadline) -> Ran:
    return Ran(target=pair[0], error=deadline.late(pair[0].name))
