"""Where gpunode keeps what it writes on the controller: 0700 folders, 0600 files, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.late import regex

_CONTROLLER = regex(r"[A-Za-z0-9.-]+-[0-9a-f]{6}")


OUTPUT = "stdout"  # the name of the file that results are printed to


class StateError(GpunodeError):
    """Something cannot be written on this machine; the nodes are not concerned."""

    @classmethod
    def of(cls, path: object, error: OSError) -> StateError:
        """`error` met at `path` ("" where nobody knows which file it was)."""
        stated = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            state = "" if path == OUTPUT else f" (the state directory is {state_name()})"
            fix = f"make room there, and run the same command again{state}"
        else:
            fix = f"let this user write there, or name another state directory than {state_name()}: XDG_STATE_HOME=DIR"
        return cls(f"cannot write {path or 'a file on this machine'}: {stated}", fix=fix)


def state_name() -> str:
    """The state directory, for people; where nobody can say which it is, its rule."""
    try:
        return str(state_path())
    except GpunodeError:
        return "$XDG_STATE_HOME/gpunode"


def state_path() -> Path:
    """$XDG_STATE_HOME/gpunode, whether it is there or not."""
    try:
        base = _base("XDG_STATE_HOME", "~/.local/state")
    except RuntimeError as error:
        raise StateError(f"no state directory: {error}", fix="set HOME, or XDG_STATE_HOME") from error
    return base / "gpunode"


def cache_path(name: str) -> Path:
    """$XDG_CACHE_HOME/gpunode/NAME, whether it is there or not; what is in it can be fetched again."""
    return _base("XDG_CACHE_HOME", "~/.cache") / "gpunode" / name


def _base(variable: str, otherwise: str) -> Path:
    """As the XDG specification has it: a relative path does not count."""
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path(otherwise).expanduser()


def state_dir() -> Path:
    """$XDG_STATE_HOME/gpunode, made 0700.  Raises StateError, also for one that others can write to, as ssh does."""
    path = state_path()
    try:
        path.mkdir(parents=True, mode=0o700, exist_ok=True)
        there = path.stat()
    except OSError as error:
        raise StateError.of(f"to the state directory {path}", error) from error
    if there.st_uid not in (0, os.getuid()) or there.st_mode & 0o022:
        raise StateError(
            f"others can write to the state directory {path}: what a run does to nodes is read from there",
            expected="a folder of this user that only its owner can write to",
            fix=f"look at what is in it, then chown it to this user and chmod go-w {path}; or name another one: "
            "XDG_STATE_HOME=DIR",
        )
    return path


def now() -> str:
    """The time as records have it: 2026-11-21T08:15:00Z."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def run_name() -> str:
    """A new run's name, which sorts by time: in the journals of the nodes, and of its folder here."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def new_run(name: str = "") -> Path:
    """A new folder for one run's plan, playbook and artifacts."""
    path = state_dir() / "runs" / (name or run_name())
    path.parent.mkdir(mode=0o700, exist_ok=True)  # `parents=True` would leave its mode to the umask
    path.mkdir(mode=0o700)
    return path


def next_generation() -> int:
    """A number greater than that of every run that this controller has started, whatever its clock says.

    It begins with the time, so that a state directory from a backup does not give numbers out twice.
    """
    with (state_dir() / "generation").open("a+", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last = file.read().strip()
        number = max(int(last) + 1 if last.isdecimal() else 0, int(time.time()))
        file.truncate(0)
        file.write(f"{number}\n")
    return number


def controller_name() -> str:
    """This controller's name in the leases of nodes: HOST-RANDOM, the same as long as the state directory lives.

    Two that ask for the first time at once get the same name: else they would keep each other off the nodes.
    """
    path = state_dir() / "controller"
    known = _read_name(path)
    if known:
        return known
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        known = _read_name(path)  # another may have made it meanwhile
        if not known:
            host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:60] or "controller"
            known = f"{host}-{secrets.token_hex(3)}"
            write_private(path, f"{known}\n")
    finally:
        os.close(folder)
    return known


def _read_name(path: Path) -> str:
    """The name in the file; "" where there is none, or something else, as a power cut may leave it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""
    return text if _CONTROLLER.fullmatch(text) else ""


def make_private(folder: Path) -> None:
    """Take from others what they may do in a folder that another program wrote to."""
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # jobs run at the same time, and their temporary files go
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                path.chmod(stat.S_IMODE(mode) & 0o700)


def json_lines(path: Path) -> Iterator[Any]:
    """What each line says; none where there is no file.  One that a dying controller cut off is passed over."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        yield row


def append_private(path: Path) -> IO[str]:
    """A file that only its owner may read, opened to add to it."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8")


@contextlib.contextmanager
def writing_to(place: Path | str, fix: str = "choose another file") -> Iterator[None]:
    """Within, a place is written to that a person has named.  Raises InputError where that cannot be done."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write to {place}: {error.strerror}", fix=fix) from error


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all.  An OSError names the file."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        error.filename = str(path)
        raise
