"""`gpunode --help` against the one import it needs; what the tables of the knowledge cost."""

from __future__ import annotations

import sys
import time

from benchmarks.measure import GPUNODE, best_of_pairs, row, run
from gpunode.edge.load import load_knowledge


def main() -> None:
    help_, click = best_of_pairs(
        lambda: run(GPUNODE, "--help"), lambda: run(sys.executable, "-c", "import click"), times=20
    )
    row(
        "`gpunode --help` against `python -c 'import click'`",
        f"{help_ / click:.2f} × ({help_ * 1000:.0f} ms against {click * 1000:.0f} ms)",
        "≤ 1.5 ×",
    )
    row("the knowledge that the solver needs, CPU", f"{min(_load() for _ in range(5)) * 1000:.0f} ms", "≤ 60 ms")


def _load() -> float:
    start = time.process_time()
    load_knowledge.__wrapped__()
    return time.process_time() - start


if __name__ == "__main__":
    main()
