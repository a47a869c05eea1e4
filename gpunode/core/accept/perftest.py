"""perftest's ib_write_bw between two machines: one port of each, RDMA writes between their memories."""

from __future__ import annotations

import re

from gpunode.core.accept import Call, Measure, Reading, Tool, ToolRequest, unread
from gpunode.core.accept.text import lines, number, tail

_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)(?:\s+[\d.]+)?\s*$")
SECONDS = 5


def _call(ask: ToolRequest) -> Call:
    """-d DEVICE, and on the client the server's address, are added where the pair is known."""
    return Call(arguments=("-F", "--report_gbits", "-D", str(SECONDS), "-s", "65536"), seconds=60)


def read_write_bw(output: str, status: int, ask: ToolRequest) -> Reading:
    """The average of the last row, in Gb/s.  The row ends with -D in a peak of 0: only the average counts."""
    device, size, average, unit = "", 0, None, ""
    for line in lines(output):
        if found := re.search(r"Device\s*:\s*([A-Za-z0-9_.-]{1,40})", line):
            device = found[1]
        elif found := re.search(r"BW average\[(Gb/sec|MB/sec|MiB/sec)\]", line):
            unit = found[1]
        elif unit and (found := _ROW.match(line)):
            size, average = int(found[1][:12]), number(found[4])
    if average is None or unit != "Gb/sec":
        return unread("pair", f"ib_write_bw gave no result in Gb/s (exit status {status}): {tail(output)}")
    measure = Measure(
        metric="pair", value=average, unit="Gb/s", where=device, tool="perftest", size=size, kind="average"
    )
    return Reading(measures=(measure,))


WRITE_BW = Tool(
    name="ib_write_bw", programs=("ib_write_bw",), install="the package perftest", call=_call, read=read_write_bw
)
