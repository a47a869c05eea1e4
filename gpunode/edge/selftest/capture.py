"""Programs and files of this machine → captures, each with a time limit, and all of them with one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpunode.core.errors import GpunodeError
from gpunode.core.late import dataclass, field
from gpunode.core.selftest.record import Capture

LARGEST = 8 << 20  # bytes of a program's output that are kept
SYSTEM_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/nvidia/bin")


@dataclass(frozen=True)
class Clock:
    """How much of a selftest's time is left."""

    limit: float  # seconds
    start: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        return time.monotonic() - self.start

    def seconds(self, wanted: float) -> float:
        """What a capture may take that would like to have `wanted` seconds."""
        return max(0.0, min(wanted, self.limit - self.spent))


def find(program: str) -> str:
    """The path of a program, also where only root has it on the PATH; "" when it is not there."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *SYSTEM_PATH]
    return shutil.which(program, path=os.pathsep.join(folders)) or ""


def capture(
    command: Sequence[str], clock: Clock, seconds: float, *, text: str = "", env: Mapping[str, str] | None = None
) -> Capture:
    """What the program prints on both outputs; it is killed with all that it started when its time is over."""
    path = find(command[0])
    if not path:
        return Capture(error=f"{command[0]} is not on this machine")
    limit = clock.seconds(seconds)
    if limit <= 0:
        return Capture(error="no time was left for it", stopped=True)
    started = time.monotonic()
    process = subprocess.Popen(
        [path, *command[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C", **(env or {})},
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(text.encode(), timeout=limit)
    except subprocess.TimeoutExpired as late:
        kill(process)
        shown = (late.stdout or b"").decode(errors="replace")
        return Capture(text=shown[:LARGEST], error=f"stopped after {limit:.0f} s", stopped=True, seconds=limit)
    except BaseException:
        kill(process)
        raise
    shown = out[:LARGEST].decode(errors="replace")
    error = "" if process.returncode == 0 else f"exit code {process.returncode}: {_last(shown)}"
    return Capture(text=shown, error=error, exit=process.returncode, seconds=time.monotonic() - started)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End the program and its group; one that hangs in the driver is left to the kernel."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)


def only_if_good(one: Capture) -> Capture:
    """What a program printed counts only where it ended well: else its words are the reason."""
    return one if one.exit == 0 else Capture(error=one.error, stopped=one.stopped, exit=one.exit, seconds=one.seconds)


def timed(read: Callable[[], str], clock: Clock) -> Capture:
    """What a function of this process gives back; what it raises is the error."""
    if clock.seconds(1) <= 0:
        return Capture(error="no time was left for it", stopped=True)
    started = time.monotonic()
    try:
        text, error = read(), ""
    except Exception as cause:  # one part that fails is a result, and the others have to go on
        text, error = "", cause.what if isinstance(cause, GpunodeError) else f"{type(cause).__name__}: {cause}"
    return Capture(text=text, error=error, exit=0 if not error else None, seconds=time.monotonic() - started)


def first_line(path: Path) -> str:
    """The file's first line, "" where it cannot be read."""
    try:
        return path.read_text(errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"
