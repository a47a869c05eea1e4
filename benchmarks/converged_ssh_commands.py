"""How many SSH commands a converged node costs, counted by the node's own sshd."""

from __future__ import annotations

from benchmarks.measure import GPUNODE, log, row, run
from gpunode import lab
from gpunode.lab import Lab

VERBOSE = "echo 'LogLevel VERBOSE' >/etc/ssh/sshd_config.d/benchmark.conf && systemctl restart ssh"
COUNT = "journalctl --sync; journalctl -u ssh -o cat | grep -c '^Starting session' || true"


def sessions(made: Lab) -> int:
    """Sessions that sshd has logged; asking is one of them."""
    return int(made.run(made.nodes[0], COUNT).stdout)


def main() -> None:
    with lab.up(1, name="bench-converged", log=log) as made:
        provision = (GPUNODE, "provision", "-i", made.inventory, "-c", made.spec, "--yes")
        run(*provision)
        done = made.run(made.nodes[0], VERBOSE)
        assert done.returncode == 0, done.stderr
        before = sessions(made)
        run(*provision)
        commands = sessions(made) - before - 1
        row("SSH commands that `provision` sends to a converged node", str(commands), "1")


if __name__ == "__main__":
    main()
