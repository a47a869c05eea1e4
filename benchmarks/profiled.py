"""`python -m benchmarks.profiled FILE ARGUMENT…`: `gpunode ARGUMENT…` with the CPU time of all its threads profiled.

FILE gets the figures in the form of pstats.  cProfile itself sees the one thread that starts it.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time

from gpunode.cli.main import main

profiles: list[cProfile.Profile] = []
start = threading.Thread.start


def start_profiled(thread: threading.Thread) -> None:
    """Start a thread, of any class, that leaves its profile."""
    profile, run = cProfile.Profile(time.thread_time), thread.run
    profiles.append(profile)
    thread.run = lambda: profile.runcall(run)  # type: ignore[method-assign]
    start(thread)


if __name__ == "__main__":
    threading.Thread.start = start_profiled  # type: ignore[assignment, method-assign]
    own = cProfile.Profile(time.thread_time)
    status: str | int | None = 0
    try:
        own.runcall(main, sys.argv[2:])
    except SystemExit as end:
        status = end.code
    stats = pstats.Stats(own)
    for profile in profiles:
        stats.add(profile)
    stats.dump_stats(sys.argv[1])
    sys.exit(status)
