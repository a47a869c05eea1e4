"""`dcgmi diag -j`: NVIDIA's own diagnosis.  3.x names its answer «DCGM GPU Diagnostic», 4.x «DCGM Diagnostic».

A test that was skipped has proven nothing.  Where each of a failed test's warnings has DCGM's severity 5 (a setting,
such as persistence mode), the hardware is not judged by it: a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal

from gpunode.core.accept import Call, Reading, Tool, ToolRequest, unread
from gpunode.core.accept.text import brief, json_after, tail
from gpunode.core.model import Check

ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
CONFIG = 5  # DCGM_ERROR_SEV_CONFIG of dcgm_errors.h
_STATUS: Mapping[str, Literal["passed", "failed", "warning", "not-proven"]] = {
    "pass": "passed",
    "fail": "failed",
    "warn": "warning",
    "skip": "not-proven",
    "skipped": "not-proven",
}
_WORST = ("failed", "warning", "not-proven", "passed")
_MAX_TESTS = 200
SECONDS = {"quick": 900, "standard": 3600, "long": 3600}  # level 2 takes 2 to 10 minutes, 3 up to 30
SOAK = 1200  # seconds of one soak


def _call(ask: ToolRequest) -> Call:
    level = "2" if ask.level == "quick" else "3"
    return Call(arguments=("diag", "-r", level, "-j"), seconds=SECONDS[ask.level])


def _soak(ask: ToolRequest) -> Call:
    options = f"targeted_power.test_duration={SOAK}"
    return Call(arguments=("diag", "-r", "targeted_power", "-p", options, "-j"), seconds=SOAK + 600)


def read_dcgm(output: str, status: int, ask: ToolRequest) -> Reading:
    """A check for each test, by its worst result."""
    data = json_after(output, ROOTS)
    if data is None:
        fix = "systemctl start nvidia-dcgm" if "connection" in output.lower() else "dcgmi diag -r 1 on the node"
        return unread("dcgm", f"dcgmi diag gave no result (exit status {status}): {tail(output)}", fix)
    root = next(data[name] for name in ROOTS if name in data)
    root = root if isinstance(root, Mapping) else {}
    if error := root.get("runtime_error"):
        return unread("dcgm", f"dcgmi diag: {brief(str(error))}", "dcgmi diag -r 1 on the node")
    tests = (test for category in _dicts(root.get("test_categories")) for test in _dicts(category.get("tests")))
    checks = tuple(_check(test) for test in islice(tests, _MAX_TESTS))
    if not checks:
        return unread("dcgm", "dcgmi diag names no test")
    return Reading(checks=checks)


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    """The objects of a list; 3.x leaves null between its tests."""
    yield from (one for one in value if isinstance(one, Mapping)) if isinstance(value, list) else ()


def _check(test: Mapping[str, Any]) -> Check:
    name = re.sub(r"[^a-z0-9]+", "-", str(test.get("name", "")).lower()).strip("-")[:40] or "unnamed"
    summary = test.get("test_summary")
    results = [*_dicts(test.get("results")), *([summary] if isinstance(summary, Mapping) else [])]
    found = {_STATUS.get(str(one.get("status", "")).lower(), "not-proven") for one in results}
    status = next((word for word in _WORST if word in found), "not-proven")
    warnings = list(dict.fromkeys(_warning(w) for one in results for w in _listed(one.get("warnings"))))
    severities = [w.get("error_severity") for one in results for w in _dicts(one.get("warnings"))]
    text = "; ".join(dict.fromkeys(words for words in warnings if words))
    if status == "failed" and severities and all(severity == CONFIG for severity in severities):
        text = f"a setting, by which the hardware is not judged: {text}"
        return Check(id=f"accept.dcgm.{name}", status="warning", message=text, fix="gpunode provision, then again")
    if status == "passed" and warnings:  # it has been seen to pass with an error in it
        status = "warning"
    words = {"passed": "passed", "not-proven": "skipped by DCGM: this GPU or its state does not allow it"}
    message = text or words.get(status, f"DCGM says {status}")
    fix = f"dcgmi diag -r {name} -j on the node shows the whole of it" if status == "failed" else ""
    return Check(id=f"accept.dcgm.{name}", status=status, message=message, fix=fix)  # type: ignore[arg-type]


def _listed(value: Any) -> list[Any]:
    return value[:50] if isinstance(value, list) else []


def _warning(value: Any) -> str:
    text = value.get("warning", "") if isinstance(value, Mapping) else value
    return brief(text) if isinstance(text, str) else ""


_INSTALL = "fabric: {dcgm: auto} in gpunode.yml, or datacenter-gpu-manager-4-core and -cuda13 (or -cuda12) of NVIDIA"
DIAG = Tool(name="dcgmi", programs=("dcgmi",), install=_INSTALL, call=_call, read=read_dcgm)
TARGETED_POWER = Tool(name="dcgmi", programs=("dcgmi",), install=_INSTALL, call=_soak, read=read_dcgm)
