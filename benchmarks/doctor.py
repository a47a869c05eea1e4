"""gpunode doctor on 100 MB of logs, in wall time, against reading them as text alone."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from benchmarks.measure import best_of_pairs, row
from gpunode.edge.doctor import examine_logs

SIZE = 100_000_000  # bytes
LINES = (
    'Nov 22 01:02:{:02d} gpu{:03d} kubelet[1234]: "SyncLoop (PLEG): event for pod" pod="gpu-operator/nvidia-{:05x}"\n',
    'Nov 22 01:02:{:02d} gpu{:03d} containerd[99]: level=info msg="CreateContainer for Name:nvidia-{:08x} returns"\n',
    "Nov 22 01:02:{:02d} gpu{:03d} kernel: [{}] nvidia-nvlink: Nvlink Core is being initialized, major number 510\n",
)
LAST = "NVRM: Xid (PCI:0000:ca:00): 79, pid=1\n"


def write_log(path: Path) -> None:
    """Lines of a Kubernetes node, nothing wrong but in the last one."""
    draw = random.Random(1)
    size = 0
    with path.open("w") as file:
        while size < SIZE:
            line = draw.choice(LINES).format(draw.randrange(60), draw.randrange(999), draw.randrange(1 << 32))
            size += file.write(line)
        file.write(LAST)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "node.log")
        write_log(path)
        seen = examine_logs((path,)).diagnosis
        assert seen and [xid.code for xid in seen.xids] == [79]
        ours, floor = best_of_pairs(lambda: examine_logs((path,)), lambda: path.read_text().lower(), times=3)
    row("doctor: 100 MB of logs", f"{ours:.1f} s, {ours / floor:.0f} × reading them as text", "≤ 10 s")


if __name__ == "__main__":
    main()
