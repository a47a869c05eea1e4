"""perftest's ib_write_bw between two machines: one port of each, RDMA writes between their memories."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpunode.core.accept import Call, Measure, Reading, Tool, ToolRequest, unread
from gpunode.core.accept.text import lines, number, tail
from gpunode.core.late import regex
from gpunode.core.model import RdmaPort

_ROW = regex(r"\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)(?:\s+[\d.]+)?\s*$")
_NAME = regex(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,39}")
SECONDS, QUEUES, SIZE = 10, 4, 65536  # as NVIDIA's ngc_rdma_test.sh has them, whose bound is the floor


def _call(ask: ToolRequest) -> Call:
    """-d DEVICE, and on the client the server's address, are added where the pair is known."""
    return Call(arguments=("-F", "--report_gbits", "-D", str(SECONDS), "-s", str(SIZE), "-q", str(QUEUES)), seconds=60)


def read_write_bw(output: str, status: int, ask: ToolRequest) -> Reading:
    """The average of the last row, in Gb/s.  The row ends with -D in a peak of 0: only the average counts."""
    device, size, average, unit, queues = "", 0, None, "", ""
    for line in lines(output):
        if found := re.search(r"Device\s*:\s*([A-Za-z0-9_.-]{1,40})", line):
            device = found[1]
        elif found := re.search(r"Number of qps\s*:\s*(\d{1,5})\b", line):
            queues = f"{found[1]} queue pairs"
        elif found := re.search(r"BW average\[(Gb/sec|MB/sec|MiB/sec)\]", line):
            unit = found[1]
        elif unit and (found := _ROW.match(line)):
            size, average = int(found[1][:12]), number(found[4])
    if average is None or unit != "Gb/sec":
        return unread("pair", f"ib_write_bw gave no result in Gb/s (exit status {status}): {tail(output)}")
    measure = Measure(
        metric="pair",
        value=average,
        unit="Gb/s",
        where=device,
        tool="perftest",
        size=size,
        kind="average",
        algorithm=queues,
    )
    return Reading(measures=(measure,))


def ports_of(rdma: Sequence[RdmaPort]) -> list[RdmaPort]:
    """The active ports of the highest rate, by name: slower ones are for storage and management."""
    active = [port for port in rdma if port.state == "ACTIVE" and _NAME.fullmatch(port.device) and number(port.rate)]
    most = max((number(port.rate) or 0 for port in active), default=0)
    return sorted((port for port in active if number(port.rate) == most), key=_by_number)


def _by_number(port: RdmaPort) -> tuple[tuple[int, ...], str, int]:
    """mlx5_10 comes after mlx5_9."""
    return tuple(int(digits[:9]) for digits in re.findall(r"\d+", port.device)), port.device, port.port


def port_arguments(port: RdmaPort) -> tuple[str, ...]:
    return ("-d", port.device, "-i", str(port.port))


WRITE_BW = Tool(
    name="ib_write_bw", programs=("ib_write_bw",), install="the package perftest", call=_call, read=read_write_bw
)
