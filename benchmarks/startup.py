"""`gpunode --help` against the one import it needs; CPU time of commands that ask no node."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import GPUNODE, best_of_pairs, cpu, row, run

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
            used = min(cpu(partial(run, GPUNODE, *words, ok=(0, 1, 3))) for _ in range(10))
            row(f"{what}, CPU time", f"{used:.2f} s", f"≤ {goal} s")


if __name__ == "__main__":
    main()
