"""Codes of the driver, of GPUs (Xid) and of NVSwitches (SXid), as programs report them."""

from __future__ import annotations

import re
from collections.abc import Mapping

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


def _report(text: str, pattern: str, line: str, nvswitch: bool = False, also: str = "") -> CodeReport:
    return CodeReport(text=text, pattern=re.compile(pattern, re.IGNORECASE), line=line, nvswitch=nvswitch, also=also)


_XID = r"\bXid \((?P<gpu>[^) ]{1,60})[^)]{0,60}\):"
REPORTS = (
    # nvidia.ko; with MIG (PCI:0000:01:00 GPU-I:05)
    _report("xid (", _XID + r" ?(?P<code>\d{1,3})\b", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3"),
    _report(
        "xid (", _XID + r".{0,200} caused by previous Xid (?P<code>\d{1,3})\b",
        "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed, caused by previous Xid 149",
        also=" caused by previous xid ",
    ),
    # nvidia-nvswitch.ko
    _report(
        "sxid (", r"SXid \(PCI:(?P<gpu>[^)]{0,60})\): (?P<code>\d{4,5})",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", nvswitch=True,
    ),
    # nv-fabricmanager
    _report(
        "detected nvswitch ",
        r"detected NVSwitch (?:non-)?fatal error (?P<code>\d{5}) on .{0,20}NVSwitch pci bus id (?P<gpu>[0-9a-f:.]+)",
        "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:c1:00.0 physical id 5 port 30",
        nvswitch=True,
    ),
    # the device plugin
    _report(
        "xidcriticalerror: xid=", r"XidCriticalError: Xid=(?P<code>\d{1,3}) on *Device=(?P<gpu>[\w-]+)",
        "XidCriticalError: Xid=48 on Device=GPU-7d3b1c3e-0000; marking device as unhealthy.",
    ),
    # dcgm-exporter
    _report(
        "xid_errors{", r"XID_ERRORS\{(?:gpu='(?P<gpu>\d{1,3})')?[^}]{0,500}\} {0,3}(?P<code>[1-9]\d{0,2})\b",
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1"} 79',
    ),
    _report(
        "xid_errors_count{", r"XID_ERRORS_COUNT\{[^}]{0,400}\bxid='(?P<code>\d{1,3})'[^}]{0,400}\} {0,3}[1-9]",
        'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",xid="43"} 1',
    ),
    # conditions and events of nodes: NVSentinel, GKE, EKS
    _report(
        "xiderror", r"XIDError\w{0,40}.{0,60}ErrorCode\W{1,5}(?P<code>\d{1,3})\b",
        "SysLogsXIDErrorIsNotHealthy Message:ErrorCode:119 PCI:0002:00:00 GPU_UUID:GPU-1",
    ),
    _report(
        "xidcriticalerror ", r"XidCriticalError {1,9}True\b.{0,120}\{'(?P<code>\d{1,3})':true",
        'XidCriticalError  True  Mon, 23 Jun 2025 18:45:43 +0000  {"31":true}  6e43a052',
    ),
    _report(  # gpud
        "nvidia-error-xid", r"nvidia-error-xid\W{1,5}xid\W{1,5}(?P<code>\d{1,3})\b",
        '{"component":"accelerator-nvidia-error-xid","xid":95}',
    ),
    _report(
        "nvidiaxid", r"NvidiaXID(?P<code>\d{1,3})(?:Error|Warning)",
        "Warning  NvidiaXID31Warning  eks-node-monitoring-agent"
    ),
)  # fmt: skip


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
