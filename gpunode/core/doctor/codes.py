"""Codes of the driver, of GPUs (Xid) and of NVSwitches (SXid), as programs report them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpunode.core.doctor.text import Evidence
from gpunode.core.late import dataclass, regex, replace


@dataclass(frozen=True, kw_only=True)
class CodeReport:
    """How a program reports a code: `pattern` matches where `text` begins and names the code, and often the GPU."""

    text: str  # lower case
    pattern: re.Pattern[str]
    line: str  # as the program prints it
    nvswitch: bool = False
    also: str = ""  # lower case: what else has to be there, so that the pattern is worth its time

    def match(self, text: str, lower: str, first: int) -> re.Match[str] | None:
        """What it reports at a place of a text, which `lower` is in small letters."""
        if self.also and lower.find(self.also, first, first + LONGEST) < 0:
            return None
        return self.pattern.match(text, first)


LONGEST = 1000  # characters of a report at most


def parse_reports(data: Mapping[str, Any]) -> tuple[CodeReport, ...]:
    """The parsed codes.toml."""
    return tuple(CodeReport(**{**row, "pattern": re.compile(row["pattern"], re.IGNORECASE)}) for row in data["report"])


@dataclass(frozen=True, kw_only=True)
class XidSeen:
    """A code in a log: how often, on which GPUs (PCI addresses, UUIDs or indices), and the newest line."""

    code: int
    count: int
    loads: Mapping[str, frozenset[int]]  # GPU → where the module was last loaded before each of its lines
    evidence: Evidence
    nvswitch: bool = False  # an SXid
    earlier: bool = False  # before the module was loaded again

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(self.loads)

    def with_loads(self, loads: Mapping[str, frozenset[int]]) -> Mapping[str, frozenset[int]]:
        return {gpu: self.loads.get(gpu, frozenset()) | loads.get(gpu, frozenset()) for gpu in [*self.loads, *loads]}


def add_code(
    seen: dict[tuple[int, bool], XidSeen], report: CodeReport, match: re.Match[str], evidence: Evidence, load: int
) -> None:
    """Count a code that a line reports; the further lines of an NVSwitch's error belong to the first one."""
    code, gpu = int(match["code"]), (match.groupdict().get("gpu") or "").lower().removeprefix("pci:")
    key = (code, report.nvswitch)
    old = seen.get(key)
    loads = {gpu: frozenset([load])} if gpu else {}
    if not old:
        seen[key] = XidSeen(code=code, count=1, loads=loads, evidence=evidence, nvswitch=report.nvswitch)
    elif not report.nvswitch or not _MORE.match(match.string, match.end()):
        seen[key] = replace(old, count=old.count + 1, loads=old.with_loads(loads), evidence=evidence)


_MORE = regex(r", (?:Data|Severity) ")
_VERDICT = regex(r"GPU recovery action changed from .{1,40} to 0x\w+ \(([^)]{1,40})\)", re.IGNORECASE)


def verdict(xid: XidSeen) -> str:
    """The recovery action that Xid 154 tells, "" for another code."""
    told = _VERDICT.search(xid.evidence.text) if xid.code == 154 else None
    return told[1] if told else ""
