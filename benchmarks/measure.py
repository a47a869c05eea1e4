"""What the benchmarks share: timing, rows of the table, and commands that must not fail."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

GPUNODE = str(Path(sys.executable).with_name("gpunode"))
ENVIRONMENT = {**os.environ, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": ""}  # compiled once, as when installed


def row(what: str, measured: str, goal: str = "") -> None:
    """One row of the table that `python -m benchmarks` prints."""
    print(f"| {what} | {measured} | {goal} |", flush=True)


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def best_of_pairs(first: Callable[[], object], second: Callable[[], object], times: int) -> tuple[float, float]:
    """The quickest run of each, taken in turns, so that a busy moment hits both."""
    both = [(seconds(first), seconds(second)) for _ in range(times)]
    return min(a for a, _ in both), min(b for _, b in both)


def children_cpu() -> float:
    """Seconds of CPU that processes of this one have had, of those that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu(act: Callable[[], object]) -> float:
    """Seconds of CPU that the processes have which `act` starts and waits for."""
    before = children_cpu()
    act()
    return children_cpu() - before


def run(*command: object, ok: Sequence[int] = (0,)) -> str:
    """Output of a command; fails with all it said when its exit status is not one of `ok`."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    if done.returncode not in ok:
        raise SystemExit(f"{command}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def memory(*command: object, ok: Sequence[int] = (0,)) -> int:
    """The most bytes that all processes of a command had at a time, shared pages by their share, those behind included.

    What a command leaves behind (a master connection of ssh) becomes a child of this process, and is counted.
    """
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    most = 0
    with tempfile.TemporaryFile("w+") as output:
        words = [str(word) for word in command]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=ENVIRONMENT)
        while process.poll() is None:
            most = max(most, sum(map(_proportional, _descendants(os.getpid()))))
            time.sleep(0.2)
        output.seek(0)
        if process.returncode not in ok:
            raise SystemExit(f"{command}: exit status {process.returncode}\n{output.read()}")
    return most


def _descendants(pid: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found, new = set[int](), {pid}
    while new := {child for child, parent in parents.items() if parent in new}:
        found |= new
    return found


def _proportional(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
