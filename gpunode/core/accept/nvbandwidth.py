"""nvbandwidth: copies between host and GPU, and between GPUs; its text, and its `-j`.

Rows are where from, columns where to; of host copies the only row is the host.  A test that the machine cannot do is
«waived»: no peers, or one GPU alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.accept import MAX_GPUS, Call, Measure, Reading, Tool, ToolRequest, unread
from gpunode.core.accept.text import brief, json_after, lines, number, tail
from gpunode.core.late import dataclass, regex
from gpunode.core.model import Check

HOST_TO_DEVICE, DEVICE_TO_HOST = "host_to_device_memcpy_ce", "device_to_host_memcpy_ce"
PEERS = "device_to_device_memcpy_read_ce"
METRICS = {HOST_TO_DEVICE: "h2d", DEVICE_TO_HOST: "d2h", PEERS: "p2p"}
_NAME = regex(r"[a-z][a-z0-9_]{2,60}")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A test of nvbandwidth: what came of it, and its matrix in GB/s (None: no such pair)."""

    name: str
    status: str  # passed, waived, error, not found
    matrix: tuple[tuple[float | None, ...], ...] = ()


def _asked(ask: ToolRequest) -> list[str]:
    return [HOST_TO_DEVICE, DEVICE_TO_HOST, *([PEERS] if ask.gpus > 1 else [])]


def _call(ask: ToolRequest) -> Call:
    return Call(arguments=("-t", *_asked(ask)), seconds=600)  # as text: -j came with 0.5


def parse_nvbandwidth(output: str) -> tuple[str, tuple[Case, ...]]:
    """The version, and the tests in their order; ("", ()) for what is no output of nvbandwidth."""
    data = json_after(output, ("nvbandwidth",))
    if data is not None:
        root = data["nvbandwidth"]
        return _of_json(root) if isinstance(root, Mapping) else ("", ())
    return _of_text(lines(output))


def _of_json(root: Mapping[str, Any]) -> tuple[str, tuple[Case, ...]]:
    cases = []
    tests = root.get("testcases")
    for test in tests[:100] if isinstance(tests, list) else ():
        if not isinstance(test, Mapping) or not _NAME.fullmatch(str(test.get("name", ""))):
            continue
        rows = test.get("bandwidth_matrix")
        cases.append(
            Case(
                name=str(test["name"]),
                status=brief(str(test.get("status", "")).lower()),
                matrix=_matrix(rows if isinstance(rows, list) else ()),
            )
        )
    return _version(str(root.get("version", ""))), tuple(cases)


def _matrix(rows: Iterable[Any]) -> tuple[tuple[float | None, ...], ...]:
    kept = [row for row in rows if isinstance(row, list | tuple)][:MAX_GPUS]
    return tuple(tuple(number(cell) for cell in row[:MAX_GPUS]) for row in kept)


def _of_text(given: Iterator[str]) -> tuple[str, tuple[Case, ...]]:
    version, cases, name, status = "", [], "", ""
    rows: list[Sequence[str]] = []
    for line in [*given, "Running end."]:
        if found := re.match(r"nvbandwidth Version: (\S+)", line):
            version = _version(found[1])
        elif found := re.match(r"Running ([a-z0-9_]+)\.", line):
            if name:
                cases.append(Case(name=name, status=status or ("passed" if rows else "error"), matrix=_matrix(rows)))
            name, status, rows = found[1], "", []
        elif line.startswith("Waived") and not rows:  # after a matrix it is the next test's, which 0.8 does not name
            status = status or "waived"
        elif re.match(r"(ERROR|ASSERT|\[?error| Invalid value)", line):
            status = "error"
        elif re.match(r" *\d+( +([\d.]+|N/A))+ *$", line) and "." in line:
            rows.append(line.split()[1:])
    return version, tuple(cases[:100])


def _version(text: str) -> str:
    return text[:20] if re.fullmatch(r"v?\d+(\.\d+)*", text[:20]) else ""


def read_nvbandwidth(output: str, status: int, ask: ToolRequest) -> Reading:
    """Measures of each GPU and of each pair; a wrong pattern is data that came out other than it went in."""
    version, cases = parse_nvbandwidth(output)
    if not cases:
        return unread("nvbandwidth", f"nvbandwidth gave no result (exit status {status}): {tail(output)}")
    checks: list[Check] = []
    measures: list[Measure] = []
    for case in cases:
        if case.name not in METRICS:
            continue
        metric, found = METRICS[case.name], list(_measures(case, version))
        measures += found
        if case.status == "passed" and found:
            continue
        if case.status == "waived":
            checks.append(Check(id=f"accept.{metric}", status="not-proven", message=f"{case.name} was waived"))
        else:
            text = f"{case.name} ended with «{case.status}»: {tail(output)}"
            checks.append(
                Check(id=f"accept.{metric}", status="failed", message=text, fix="dmesg | grep -e NVRM -e Xid")
            )
    for name in sorted(set(_asked(ask)) - {case.name for case in cases}):
        text = f"nvbandwidth did not run {name}"
        checks.append(Check(id=f"accept.{METRICS[name]}", status="not-proven", message=text))
    if status and not any(check.status == "failed" for check in checks):
        text = f"nvbandwidth ended with {status}: {tail(output)}"
        checks.append(Check(id="accept.nvbandwidth", status="failed", message=text))
    return Reading(checks=tuple(checks), measures=tuple(measures))


def _measures(case: Case, version: str) -> Iterator[Measure]:
    for row, values in enumerate(case.matrix):
        for column, value in enumerate(values):
            if value is None or (case.name == PEERS and row == column):
                continue
            where = f"GPU {row} to {column}" if case.name == PEERS else f"GPU {column}"
            yield Measure(
                metric=METRICS[case.name], value=value, unit="GB/s", where=where, tool="nvbandwidth", version=version
            )


NVBANDWIDTH = Tool(
    name="nvbandwidth",
    programs=("nvbandwidth", "/usr/libexec/datacenter-gpu-manager-4/plugins/*/nvbandwidth"),
    install="datacenter-gpu-manager-4-cuda13 (or -cuda12), which brings it; or build github.com/NVIDIA/nvbandwidth",
    call=_call,
    read=read_nvbandwidth,
)
