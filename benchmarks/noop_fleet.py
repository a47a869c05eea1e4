"""`provision` and `verify --no-smoke` of 20 converged nodes against a bare `ssh true` to each, all at once."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import GPUNODE, best_of_pairs, log, row, run
from gpunode import lab

NODES = 20
# Nothing to do without installing a driver twenty times: the probe that is sent and read is the same.
CONVERGED = "driver: {branch: none}\ntoolkit: {version: none}\nruntimes: {containerd: {manage: ignore}}\n"


def main() -> None:
    with (
        lab.up(NODES, name="bench-fleet", engines=("containerd",), log=log) as made,
        tempfile.TemporaryDirectory() as tmp,
    ):
        spec = Path(tmp, "gpunode.yml")
        spec.write_text(CONVERGED)

        def provision() -> None:
            run(GPUNODE, "provision", "-i", made.inventory, "-c", spec)  # would ask, and fail, if there were anything

        def verify() -> None:
            run(GPUNODE, "verify", "-i", made.inventory, "-c", spec, "--no-smoke")

        def ssh_true() -> None:
            logins = [
                subprocess.Popen(["ssh", "-F", str(made.ssh_config), node.name, "true"], stdin=subprocess.DEVNULL)
                for node in made.nodes
            ]
            assert [login.wait() for login in logins] == [0] * NODES

        measured = {
            "provision": best_of_pairs(provision, ssh_true, times=3),
            "verify --no-smoke": best_of_pairs(verify, ssh_true, times=3),
        }
    for what, (ours, bare) in measured.items():
        row(
            f"`{what}` of {NODES} converged nodes against `ssh true` to all at once",
            f"{ours / bare:.2f} × ({ours:.2f} s against {bare:.2f} s)",
            "≤ 2 ×",
        )


if __name__ == "__main__":
    main()
