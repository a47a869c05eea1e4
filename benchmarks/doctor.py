"""gpunode doctor: 100 MB of logs against reading them as text alone; hostile lines against ordinary ones."""

from __future__ import annotations

import random
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.measure import best_of_pairs, row
from gpunode.core.doctor import scan
from gpunode.core.doctor.logs import PART
from gpunode.core.doctor.table import compiled
from gpunode.edge.doctor import examine_logs, load_faults

SIZE = 100_000_000  # bytes
LINES = (
    'Nov 22 01:02:{:02d} gpu{:03d} kubelet[1234]: "SyncLoop (PLEG): event for pod" pod="gpu-operator/nvidia-{:05x}"\n',
    'Nov 22 01:02:{:02d} gpu{:03d} containerd[99]: level=info msg="CreateContainer for Name:nvidia-{:08x} returns"\n',
    "Nov 22 01:02:{:02d} gpu{:03d} kernel: [{}] nvidia-nvlink: Nvlink Core is being initialized, major number 510\n",
)
LAST = "NVRM: Xid (PCI:0000:ca:00): 79, pid=1\n"
HOSTILE = (  # repeated without end in one line
    "library version mismatch ",
    "nvidia",
    "NVRM: Xid (PCI:0000:01:00): 79, ",
    "nvidia-smi cuda kubelet dkms daemon.json libnvidia-ml.so ",
)
LINE = 1_000_000  # characters
FILLINGS = ("a", "0", " ", "nvidia", "nvidia ", "cuda ")


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
    hostile_lines()
    slowest_pattern()


def hostile_lines() -> None:
    """One hostile line against as much text in ordinary lines that have a message each."""
    faults = load_faults()
    ordinary = "Nov 22 01:02:03 gpu1 kernel: NVRM: API mismatch: something else happened to nvidia here\n"
    for fill in HOSTILE:
        text, plain = ((part * LINE)[:LINE] for part in (fill, ordinary))
        long, short = best_of_pairs(partial(scan, faults, "x", [text]), partial(scan, faults, "x", [plain]), 3)
        row(
            f"doctor: a line of {LINE // 1_000_000} MB of «{fill.strip()}»",
            f"{long / short:.1f} × ordinary lines",
            "≤ 30 ×",
        )


def slowest_pattern() -> None:
    """The slowest pattern on the longest text that it is given."""
    messages = [message for message in load_faults().messages if message.pattern]
    worst = 0.0
    for message in messages:
        for fill in (*FILLINGS, message.text, f"{message.text} "):
            text = (fill * PART)[: 2 * PART]
            start = time.process_time()
            compiled(message.pattern).search(text)
            worst = max(worst, time.process_time() - start)
    row(
        f"doctor: the slowest of {len(messages)} patterns on {2 * PART} characters",
        f"{1000 * worst:.0f} ms CPU",
        "≤ 50 ms",
    )


if __name__ == "__main__":
    main()
