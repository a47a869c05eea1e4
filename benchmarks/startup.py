"""`gpunode --help` against the one import it needs."""

from __future__ import annotations

import sys

from benchmarks.measure import GPUNODE, best_of_pairs, row, run


def main() -> None:
    help_, click = best_of_pairs(
        lambda: run(GPUNODE, "--help"), lambda: run(sys.executable, "-c", "import click"), times=20
    )
    row(
        "`gpunode --help` against `python -c 'import click'`",
        f"{help_ / click:.2f} × ({help_ * 1000:.0f} ms against {click * 1000:.0f} ms)",
        "≤ 1.5 ×",
    )


if __name__ == "__main__":
    main()
