"""Run shell programs on many hosts at once.

A program (core/remote.py) goes to the standard input of `sh -s`, as root by sudo where asked, and its output comes
back, bounded in time and size.  Every way to fail is an UnreachableError that names host, cause and next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpunode.core.errors import GpunodeError
from gpunode.edge.isolate import as_error
from gpunode.edge.side_by_side import side_by_side
from gpunode.edge.ssh.connection import Connection, Jumps, NotServed, Watch, connect
from gpunode.edge.ssh.shell import Target, late, local_run, parse_host

__all__ = ["Connection", "Jumps", "NotServed", "Ran", "Target", "connect", "local_run", "parse_host", "run_many"]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a program on one host: its output, or the error that kept it from running."""

    target: Target
    rc: int = 0
    stdout: str = ""
    stderr: str = ""
    error: GpunodeError | None = None


@dataclass(frozen=True)
class _Run:
    """A program for one host, and how far it is."""

    target: Target
    program: str = field(repr=False)
    watch: Watch = field(default_factory=Watch)


_MARGIN = 2.0  # seconds by which the deadline of all is later than the sum of its parts: their words say more


def run_many(
    programs: Iterable[tuple[Target, str]],
    *,
    forks: int = 50,
    connect_timeout: float = 10,
    timeout: float = 120,
    accept_new: bool = False,
    on_done: Callable[[Ran], None] = lambda ran: None,
) -> list[Ran]:
    """Run on each target its program, `forks` at a time; results in the order of the targets, errors among them.

    `timeout` bounds the program, and together with `connect_timeout` all that is done for one host: a server that
    takes a byte at a time costs no more than one that does not answer.
    """
    most = connect_timeout + timeout + _MARGIN
    with Jumps(timeout=connect_timeout, accept_new=accept_new) as jumps:

        def one(run: _Run) -> Ran:
            target = run.target
            try:
                if target.connection == "local":
                    rc, stdout, stderr = local_run(run.program, target=target, timeout=timeout)
                else:
                    with connect(
                        target, timeout=connect_timeout, accept_new=accept_new, jumps=jumps, watch=run.watch
                    ) as connection:
                        rc, stdout, stderr = connection.run(run.program, timeout=timeout)
            except Exception as error:  # a bug met on one host must not take the others along
                return Ran(target=target, error=as_error(error, host=target.name))
            return Ran(target=target, rc=rc, stdout=stdout, stderr=stderr)

        def given_up(run: _Run) -> Ran:
            run.watch.end()
            return Ran(target=run.target, error=late(run.target, most, run.watch.stage))

        runs = [_Run(target, program) for target, program in programs]
        return side_by_side(one, runs, at_once=forks, on_done=on_done, seconds=most, late=given_up)
