"""`provision` and `verify --no-smoke` of 20 converged nodes against `ssh true` to each, all at once; of one.

All nodes share the controller's cores here, so that the probe's own time counts twenty times over: the last comparison
is with the same probe, sent to all by plain ssh.  `python -m benchmarks.noop_fleet 2`: so many nodes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import GPUNODE, best_of_pairs, cpu, log, memory, row, run
from gpunode import lab
from gpunode.core.remote import program
from gpunode.node import script

NODES = 20
# Nothing to do without installing a driver twenty times: the probe that is sent and read is the same.
CONVERGED = "driver: {branch: none}\ntoolkit: {version: none}\nruntimes: {containerd: {manage: ignore}}\n"
STEP = "tuning: {inotify: raised}\n"  # for Ansible to look at in check mode, which changes nothing


def main(count: int) -> None:
    with (
        lab.up(count, name="bench-fleet", engines=("containerd",), log=log) as made,
        tempfile.TemporaryDirectory() as tmp,
    ):
        spec, due = Path(tmp, "gpunode.yml"), Path(tmp, "due.yml")
        spec.write_text(CONVERGED)
        due.write_text(CONVERGED + STEP)
        one = made.nodes[0].name

        def provision(*words: str) -> None:
            run(GPUNODE, "provision", "-i", made.inventory, "-c", spec, *words)  # asks, and fails, if anything is due

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
            assert [login.wait() for login in logins] == [0] * count

        def ssh_true() -> None:
            ssh("true", b"")

        def ssh_probe() -> None:
            ssh("sh -s", program(script("probe.sh")).encode())

        no_op = partial(provision, "--limit", one)
        single = best_of_pairs(no_op, lambda: run("ssh", "-F", made.ssh_config, one, "true"), times=5)
        used = min(cpu(no_op) for _ in range(5))
        words = ("provision", "-i", made.inventory, "-c", due, "--check", "--forks", 50)
        held = memory(GPUNODE, *words, ok=(3,)) / count

        measured = {
            ("provision", "ssh true", "≤ 2 ×"): best_of_pairs(provision, ssh_true, times=3),
            ("verify --no-smoke", "ssh true", "≤ 2 ×"): best_of_pairs(verify, ssh_true, times=3),
            ("provision", "the same probe by plain ssh", ""): best_of_pairs(provision, ssh_probe, times=3),
        }
    for (what, floor, goal), (ours, bare) in measured.items():
        row(
            f"`{what}` of {count} converged nodes against {floor} to all at once",
            f"{ours / bare:.2f} × ({ours:.2f} s against {bare:.2f} s)",
            goal,
        )
    row("one converged node against `ssh true`", f"{single[0] / single[1]:.1f} × ({single[0]:.2f} s)", "≤ 3 ×")
    row("no-op of one node, CPU time of the controller", f"{used:.2f} s", "≤ 1 s")
    row(f"memory of the controller per host, {count} nodes with a step, 50 forks", f"{held / 2**20:.0f} MiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else NODES)
