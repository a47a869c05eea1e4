"""Runs a command for as long as its controller lives: a program of its own, `supervise.py FIFO COMMAND…`.

The controller holds the writing end of FIFO.  When that closes (the controller was killed, or lets go of the command),
the command and all that descends from it are ended: SIGTERM first, which ansible-playbook passes on to its workers and
they to theirs, and after GRACE seconds SIGKILL to whatever is left.  A pipe is closed by the kernel however its holder
dies and works on every Unix; PR_SET_PDEATHSIG alone does not do here, because it fires when the *thread* that forked
ends, and reaches neither Ansible's workers (each is a session of its own) nor their ssh.

On Linux this process is also the subreaper: a descendant whose parent is gone is still found below it.  And the
command gets SIGTERM should this process be killed itself; it has one thread, so that is sound here.

It imports the standard library alone: it is run by `python -I -S`, and starts in a few milliseconds.
"""

# pathlib takes as long to import as all the rest, and a shell between would be one process more
# ruff: noqa: PTH108, PTH110, PTH123, PTH208, S606

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from types import FrameType

GRACE = 5.0  # seconds from SIGTERM to SIGKILL
GIVE_UP = 10.0  # seconds of SIGKILL; what is left then belongs to another user (sudo on this machine)
_TICK = 0.05
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
NOT_FOUND = 127  # a shell's exit status for a command that is not there; a signal's is 128 and its number


def main(fifo: str, command: list[str]) -> int:
    """The exit status of the command, or 130 when it was ended because the controller let go of it."""
    adopts = prctl(PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    # without waiting for a writer: where there is none any more, the first read says so
    leash = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    child = start(command)
    while True:
        status = reap(child)
        if status is not None:
            if os.WIFSIGNALED(status):  # its workers do not know yet
                end(child, adopts=adopts)
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        if stopped or let_go(leash):
            end(child, adopts=adopts)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fifo)  # nothing is left: who waits for that goes on
            return 128 + signal.SIGINT
        select.select([leash, woken], [], [])
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)


def start(command: list[str]) -> int:
    """The command in this process's session and group: it prompts on this terminal."""
    parent, child = os.getpid(), os.fork()
    if child:
        return child
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == parent:  # else it died before it could be asked for
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(NOT_FOUND)


def reap(child: int) -> int | None:
    """The wait status of the child once it has ended; adopted descendants that end are buried on the way."""
    with contextlib.suppress(ChildProcessError):
        while found := os.waitpid(-1, os.WNOHANG):
            if found[0] in (0, child):
                return found[1] if found[0] else None
    return None


def let_go(leash: int) -> bool:
    try:
        return os.read(leash, 1) == b""
    except BlockingIOError:
        return False


def end(child: int, *, adopts: bool) -> None:
    """End the child, then all that descends from this process.

    Where orphans are not adopted they are found no more, so those that were there before are remembered.
    """
    before = set() if adopts else descendants()
    send(signal.SIGTERM, {child})
    started, asked = time.monotonic(), False
    while (now := time.monotonic()) < started + GRACE + GIVE_UP:
        reap(child)
        left = descendants() | {pid for pid in before if lives(pid)}
        if not left:
            return
        if now > started + GRACE:
            send(signal.SIGKILL, left)
        elif child not in left and not asked:  # such as ssh that keeps a connection open for the next command
            asked = True
            send(signal.SIGTERM, left)
        time.sleep(_TICK)


def send(number: int, processes: set[int]) -> None:
    for pid in processes:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def descendants() -> set[int]:
    """The processes below this one, zombies left out."""
    children: dict[int, list[int]] = {}
    for pid, parent in processes():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found.update(below)
        todo += below
    return found


def processes() -> list[tuple[int, int]]:
    """(process, parent) of all that live: from /proc, else from ps."""
    if not os.path.exists("/proc/self/stat"):
        return processes_by_ps()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    found.append((int(name), int(parent)))
    return found


def processes_by_ps() -> list[tuple[int, int]]:
    import subprocess

    command = ["ps", "-A", "-o", "pid=,ppid=,stat="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ps:
        rows = [line.split() for line in ps.communicate()[0].splitlines()]
    return [(int(pid), int(parent)) for pid, parent, state in rows if "Z" not in state and int(pid) != ps.pid]


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def prctl(option: int, value: int) -> bool:
    """prctl(2), where the system has it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0  # type: ignore[no-any-return]
    except (ImportError, OSError, AttributeError):
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
