"""`gpunode --help` against the one import it needs; CPU time of commands that ask no node."""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import GPUNODE, best_of_pairs, row, run

PROBE = Path(__file__).parents[1] / "tests/cases/probes/debian12-h100-fresh/probe.txt"
LINE = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"


def main() -> None:
    help_, click = best_of_pairs(
        lambda: run(GPUNODE, "--help"), lambda: run(sys.executable, "-c", "import click"), times=20
    )
    row(
        "`gpunode --help` against `python -c 'import click'`",
        f"{help_ / click:.2f} × ({help_ * 1000:.0f} ms against {click * 1000:.0f} ms)",
        "≤ 1.5 ×",
    )
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        log.write(LINE)
        log.flush()
        commands = {
            ("plan", "--probe", PROBE): ("`plan --probe`", 0.35),
            ("solve", "--gpu", "10de:2330", "--distro", "ubuntu:24.04"): ("`solve`", 0.25),
            ("doctor", "--log", log.name): ("`doctor --log` of one line", 0.2),
        }
        for words, (what, goal) in commands.items():
            row(f"{what}, CPU time", f"{min(_cpu(*words) for _ in range(10)):.2f} s", f"≤ {goal} s")


def _cpu(*words: object) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(GPUNODE, *words, ok=(0, 1, 3))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
