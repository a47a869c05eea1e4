"""Run all benchmarks, or those named, each in a process of its own, so that memory and imports are its own."""

from __future__ import annotations

import subprocess
import sys

ALL = (
    "startup",
    "edits",
    "doctor",
    "plan_fleet",
    "ask",
    "fleet_scan",
    "first_provision",
    "noop_fleet",
    "conventional",
)


def main(names: list[str]) -> int:
    unknown = set(names) - set(ALL)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(ALL)}", file=sys.stderr)
        return 2
    print("| what | measured | goal |\n|---|---|---|", flush=True)
    return max(subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode for name in names or ALL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
