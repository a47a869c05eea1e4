"""nccl-tests' all_reduce_perf, and what NCCL's own log (NCCL_DEBUG=INFO) says of the way that the data took.

The speed alone does not show the way: a machine whose NVSwitches are not used may still pass a low floor.  NCCL names
the algorithm of each size where its subsystem TUNING speaks, and the transport of each channel («via P2P/CUMEM», «via
SHM/direct/direct», «via NET/IB/0»).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from gpunode.core.accept import Call, Measure, Reading, Tool, ToolRequest, unread
from gpunode.core.accept.text import lines, number, tail
from gpunode.core.late import dataclass, field, regex, replace
from gpunode.core.model import Check

_ROW = regex(r"(?:\[\d+\])?\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)(?:\s+(-?\d+))?((?:\s+[\d.e+-]+|\s+N/A){8})\s*$")
_ALGORITHM = regex(r"AllReduce: (\d+) Bytes -> Algo ([A-Za-z_]+) proto ([A-Za-z0-9]+)")
_VIA = regex(r"NCCL INFO .{0,300} via (P2P|SHM|NET/IB|NET/Socket|NET|C2C)\b")
_NVLS = regex(r"NCCL INFO .{0,300}\b(\d{1,9}) nvls channels")
ALGORITHMS = ("RING", "TREE", "NVLS", "NVLS_TREE", "COLLNET", "COLLNET_DIRECT", "COLLNET_CHAIN", "PAT")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One message size: GB/s of the bus, and how many values came out wrong (None: not looked at)."""

    size: int
    busbw: float  # the better of out-of-place and in-place
    wrong: int | None


@dataclass(frozen=True, kw_only=True)
class NcclRun:
    version: str = ""  # of NCCL
    gpus: int = 0
    rows: tuple[Row, ...] = ()
    out_of_bounds: str = ""  # OK, FAILED; "" where the run did not come to its end
    algorithms: Mapping[int, str] = field(default_factory=dict)  # by size
    via: Mapping[str, int] = field(default_factory=dict)  # transport → channels
    nvls_channels: int | None = None


def parse_nccl(output: str) -> NcclRun:
    """What of an all_reduce_perf run is there; nothing of it for another text."""
    version, bounds, nvls = "", "", None
    ranks: set[int] = set()
    rows: list[Row] = []
    algorithms: dict[int, str] = {}
    via: Counter[str] = Counter()
    for line in lines(output):
        if found := _ROW.match(line):
            row = _row(found)
            rows += [row] if row and len(rows) < 200 else []
        elif found := re.match(r"#\s+Rank\s+(\d{1,4})\b", line):
            ranks.add(int(found[1]))
        elif found := re.search(r"NCCL version (\d+\.\d+\.\d+)", line):
            version = found[1]
        elif found := re.match(r"# Out of bounds values\s*:\s*\d+ (OK|FAILED)", line):
            bounds = found[1]
        if (found := _ALGORITHM.search(line)) and found[2].upper() in ALGORITHMS and len(algorithms) < 200:
            algorithms[int(found[1][:15])] = found[2].upper()
        elif found := _VIA.search(line):
            via[found[1]] += 1
        elif found := _NVLS.search(line):
            nvls = int(found[1][:4])
    return NcclRun(
        version=version, gpus=len(ranks), rows=tuple(rows), out_of_bounds=bounds,
        algorithms=algorithms, via=dict(via), nvls_channels=nvls,
    )  # fmt: skip


def _row(found: re.Match[str]) -> Row | None:
    """Time, algbw, busbw, #wrong twice; before 2.11 the last is «error», a deviation such as 5e-07."""
    values = found[6].split()
    busbw = [bw for bw in (number(values[2]), number(values[6])) if bw is not None]
    if not busbw:
        return None
    counts = [int(text) for text in (values[3], values[7]) if re.fullmatch(r"\d{1,18}", text)]
    return Row(size=int(found[1][:15]), busbw=max(busbw), wrong=max(counts) if counts else None)


def _call(ask: ToolRequest) -> Call:
    """16 GiB where the GPUs hold it three times: send, receive, and the expected values."""
    size = next((s for s in (16384, 8192, 4096, 1024, 256) if (ask.smallest_mib or 0) > 4 * s), 64)
    first = size >> 12 or size >> 6 or 1  # by eighths
    return Call(
        arguments=("-b", f"{first}M", "-e", f"{size}M", "-f", "8", "-g", str(ask.gpus), "-n", "20", "-c", "1"),
        environment=("NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,P2P,SHM,NET,GRAPH,TUNING"),
        seconds=300,
    )


def _loopback(ask: ToolRequest) -> Call:
    """Through the network cards of one machine: neither NVLink nor shared memory may carry it."""
    within = _call(ask)
    return replace(within, environment=(*within.environment, "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1"), seconds=600)


def read_nccl(output: str, status: int, ask: ToolRequest) -> Reading:
    """In the node: the bus at the largest size, wrong values, and whether NVSwitches were used where NCCL had them."""
    return _read(output, status, "allreduce")


def read_loopback(output: str, status: int, ask: ToolRequest) -> Reading:
    """Over the network cards; without NET/IB it was not these that were measured."""
    found = _read(output, status, "loopback")
    via = parse_nccl(output).via
    if found.measures and not via.get("NET/IB"):
        way = ", ".join(via) or "a way that the log does not name"
        text = f"not over InfiniBand or RoCE, but over {way}: the network cards were not measured"
        return Reading(checks=(*found.checks, Check(id="accept.loopback", status="not-proven", message=text)))
    return found


def _read(output: str, status: int, metric: str) -> Reading:
    run = parse_nccl(output)
    if not run.rows:
        return unread(metric, f"all_reduce_perf gave no result (exit status {status}): {tail(output)}")
    largest = max(run.rows, key=lambda row: row.size)
    algorithm = run.algorithms.get(largest.size, "")
    measure = Measure(
        metric=metric, value=largest.busbw, unit="GB/s", tool="nccl-tests", version=run.version, size=largest.size,
        algorithm=algorithm, gpus=run.gpus,
    )  # fmt: skip
    checks = [_right(run, status, metric)]
    if metric == "allreduce" and run.gpus > 1:
        checks.append(_way(run, algorithm))
    return Reading(checks=tuple(checks), measures=(measure,))


def _right(run: NcclRun, status: int, metric: str) -> Check:
    wrong = [row for row in run.rows if row.wrong]
    if wrong or run.out_of_bounds == "FAILED":
        sizes = ", ".join(f"{row.wrong} at {row.size} bytes" for row in wrong[:3]) or "out of bounds"
        text = f"values came out wrong: {sizes}"
        return Check(id=f"accept.{metric}.right", status="failed", message=text, fix="dmesg | grep -e NVRM -e Xid")
    if not run.out_of_bounds or status:
        text = f"all_reduce_perf did not come to its end (exit status {status})"
        return Check(id=f"accept.{metric}.right", status="failed", message=text, fix="run it on the node with -c 1")
    if any(row.wrong is None for row in run.rows):
        return Check(id=f"accept.{metric}.right", status="not-proven", message="the values were not looked at")
    return Check(id=f"accept.{metric}.right", status="passed", message="no value came out wrong")


def _way(run: NcclRun, algorithm: str) -> Check:
    """Between GPUs of one machine shared memory and sockets are the slow ways, whatever the speed."""
    check = "accept.allreduce.way"
    used = ", ".join(f"{name} on {count} channels" for name, count in sorted(run.via.items()))
    if slow := [name for name in ("SHM", "NET/Socket", "NET/IB", "NET") if run.via.get(name)]:
        text = f"NCCL went over {', '.join(slow)} within the machine ({used})"
        return Check(id=check, status="warning", message=text, fix="nvidia-smi topo -p2p r; ACS and IOMMU: verify")
    if not run.via and not algorithm:
        return Check(id=check, status="not-proven", message="NCCL's log names neither transport nor algorithm")
    words = [f"algorithm {algorithm}"] if algorithm else []
    if run.nvls_channels is not None:
        words.append(f"{run.nvls_channels} NVLS channels")
    return Check(id=check, status="passed", message=", ".join([*words, *([used] if used else [])]))


_INSTALL = "an image that has it, such as nvcr.io/nvidia/pytorch (accept.image); or build github.com/NVIDIA/nccl-tests"
_PROGRAMS = ("all_reduce_perf", "/usr/local/bin/all_reduce_perf", "/opt/nccl-tests/build/all_reduce_perf")
ALL_REDUCE = Tool(name="all_reduce_perf", programs=_PROGRAMS, install=_INSTALL, call=_call, read=read_nccl)
LOOPBACK = Tool(name="all_reduce_perf", programs=_PROGRAMS, install=_INSTALL, call=_loopback, read=read_loopback)
