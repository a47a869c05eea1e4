"""Where gpunode keeps what it writes on the controller: 0700 folders, 0600 files, written whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import socket
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO


def state_dir() -> Path:
    """$XDG_STATE_HOME/gpunode, made 0700."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    path = base / "gpunode"
    path.mkdir(parents=True, mode=0o700, exist_ok=True)
    return path


def run_name() -> str:
    """A new run's name, which sorts by time: in the journals of the nodes, and of its folder here."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def new_run() -> Path:
    """A new folder for one run's plan, playbook and artifacts."""
    path = state_dir() / "runs" / run_name()
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
    if not path.exists():
        name = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:60] or "controller"
        own = path.with_name(f".controller.{secrets.token_hex(8)}")
        write_private(own, f"{name}-{secrets.token_hex(3)}\n")
        with contextlib.suppress(FileExistsError):
            os.link(own, path)
        own.unlink()
    return path.read_text(encoding="utf-8").strip()


def make_private(folder: Path) -> None:
    """Take from others what they may do in a folder that another program wrote to."""
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # jobs run at the same time, and their temporary files go
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                path.chmod(stat.S_IMODE(mode) & 0o700)


def append_private(path: Path) -> IO[str]:
    """A file that only its owner may read, opened to add to it."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        file.write(text)
    temporary.replace(path)
