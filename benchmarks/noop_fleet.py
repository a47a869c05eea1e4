"""`provision` and `verify --no-smoke` of 20 converged nodes against a bare `ssh true` to each, all at once.

All nodes share the controller's cores here, so that the probe's own time counts twenty times over: the last comparison
is with the same probe, sent to all by plain ssh.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import GPUNODE, best_of_pairs, log, row, run
from gpunode import lab
from gpunode.core.remote import program
from gpunode.node import script

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

        def ssh(command: str, text: bytes) -> None:
            """All at once; what they answer is read, and not looked at."""
            words = [["ssh", "-F", str(made.ssh_config), node.name, command] for node in made.nodes]
            fed = Path(tmp, "input")
            fed.write_bytes(text)
            logins = []
            for one in words:
                with fed.open() as data:
                    logins.append(subprocess.Popen(one, stdin=data, stdout=subprocess.DEVNULL))
            assert [login.wait() for login in logins] == [0] * NODES

        def ssh_true() -> None:
            ssh("true", b"")

        def ssh_probe() -> None:
            ssh("sh -s", program(script("probe.sh")).encode())

        measured = {
            ("provision", "ssh true", "≤ 2 ×"): best_of_pairs(provision, ssh_true, times=3),
            ("verify --no-smoke", "ssh true", "≤ 2 ×"): best_of_pairs(verify, ssh_true, times=3),
            ("provision", "the same probe by plain ssh", ""): best_of_pairs(provision, ssh_probe, times=3),
        }
    for (what, floor, goal), (ours, bare) in measured.items():
        row(
            f"`{what}` of {NODES} converged nodes against {floor} to all at once",
            f"{ours / bare:.2f} × ({ours:.2f} s against {bare:.2f} s)",
            goal,
        )


if __name__ == "__main__":
    main()
