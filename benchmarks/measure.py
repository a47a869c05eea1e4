"""What the benchmarks share: timing, rows of the table, and commands that must not fail."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
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
