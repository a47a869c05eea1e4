"""What a report holds, as values.  `--format json` is exactly this; docs/report.schema.json is made from it."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Mapping
from typing import Literal, get_args

from gpunode.core.late import dataclass, field
from gpunode.core.model import Topology
from gpunode.core.rollout import State as RunState

State = Literal["failed", "unreachable", "refused", "running", "waiting", "pending", "warning", "not-proven", "ok"]
STATES: tuple[State, ...] = get_args(State)
Status = Literal["failed", "unreachable", "refused", "pending", "warning", "not-proven", "skipped", "passed"]
STATUSES: tuple[Status, ...] = get_args(Status)
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU: by PCI, and by the driver where that sees it."""

    slot: str  # 0000:17:00.0
    id: str  # 10de:2330
    model: str = ""
    index: int | None = None  # nvidia-smi's; null: the driver does not see it
    uuid: str = ""
    memory_mib: int | None = None
    driver: str = ""  # the kernel driver that has it: nvidia, nouveau, vfio-pci
    mig: str = ""  # Enabled, Disabled, "" where it cannot be cut
    mig_devices: int = 0
    ecc_errors: int | None = None  # uncorrected ones since boot
    xids: tuple[int, ...] = ()  # codes since boot


@dataclass(frozen=True, kw_only=True)
class Versions:
    """What a host runs; "" for what it does not have."""

    distro: str = ""  # ubuntu:24.04
    arch: str = ""
    kernel: str = ""
    driver: str = ""  # of the loaded module, else of user space
    flavour: str = ""  # open, proprietary
    cuda: tuple[str, ...] = ()  # toolkits on the host
    toolkit: str = ""  # NVIDIA Container Toolkit
    engines: tuple[str, ...] = ()  # "containerd 1.7.24"
    kubernetes: str = ""  # "kubeadm v1.33.1"


@dataclass(frozen=True, kw_only=True)
class ReportFinding:
    """A check of verify or of the probe, a problem of a plan, or a step that is left to do (`plan.ROLE.OPTION`)."""

    id: str
    status: Status
    message: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class ProbeSummary:
    """What one probe says of a host, as far as a report shows it."""

    kind: str  # the class of the host: DISTRIBUTION/ARCHITECTURE/GPUs
    versions: Versions
    gpus: tuple[Gpu, ...] = ()
    nvswitches: int = 0
    topology: Topology = Topology()
    links_down: tuple[str, ...] = ()  # "GPU 0 link 3"
    checks: tuple[ReportFinding, ...] = ()  # of its health


@dataclass(frozen=True, kw_only=True)
class HostRun:
    """A host's part in a run.  Times are UTC, 2026-11-22T10:15:00Z, "" for not yet."""

    wave: int  # counted from 0
    state: RunState
    exit: int | None = None
    step: str = ""  # what it is at, or was at last
    started: str = ""
    ended: str = ""
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReportHost:
    """One host.  `findings` are worst first, without those that passed or were skipped."""

    name: str
    state: State
    pool: str = ""
    message: str = ""  # the worst of it in a sentence
    seen: ProbeSummary | None = None  # null: never read, or the input says nothing of it
    findings: tuple[ReportFinding, ...] = ()
    passed: tuple[str, ...] = ()  # ids of checks
    run: HostRun | None = None
    standards: Mapping[str, str] = field(default_factory=dict)  # requirement of others → what an acceptance says of it


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A message that several hosts share; a host's own name in it is HOST."""

    message: str
    fix: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Issue:
    """Findings of one id and status, over the fleet; the most frequent message first."""

    id: str
    status: Status
    hosts: int
    variants: tuple[Variant, ...]


@dataclass(frozen=True, kw_only=True)
class PoolRow:
    """A pool: how many hosts got how far (each stage holds those of the next), and in which states they are."""

    name: str
    hosts: int
    gpus: int
    reached: int  # could be read
    accepted: int  # nothing stands against a plan
    provisioned: int  # no step is left
    healthy: int  # and no check fails
    states: Mapping[str, int]
    steps: Mapping[str, int]  # role → hosts that it has steps left on


@dataclass(frozen=True, kw_only=True)
class VersionCount:
    version: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """Hosts of one class: for each component its versions, the most frequent first.  More than one is drift."""

    kind: str
    gpus: str  # 8 × H100
    hosts: int
    versions: Mapping[str, tuple[VersionCount, ...]]


@dataclass(frozen=True, kw_only=True)
class GpuRow:
    """All GPUs of one model."""

    model: str
    id: str
    gpus: int
    hosts: int
    unseen: int  # that the driver does not see
    memory_mib: int | None
    mig: int  # with MIG on
    ecc_errors: int  # GPUs with uncorrected ones
    xids: int  # GPUs with Xids


@dataclass(frozen=True, kw_only=True)
class Wave:
    """A wave of a pool: from the first host's start to the last one's end."""

    pool: str
    number: int  # counted from 1
    hosts: int
    done: int
    failed: int
    started: str = ""
    ended: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportRun:
    name: str
    verb: str
    status: str  # running, done, stopped (a budget), failed, interrupted, killed
    started: str
    ended: str
    controller: str
    waves: tuple[Wave, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One number of an acceptance over machines of one kind: what each host reached, and how the values lie."""

    metric: str  # h2d, allreduce …
    kind: str  # 8 × 10de:2330 (nvswitch)
    unit: str
    least: float
    median: float
    most: float
    mad: float  # median of the distances from the median
    full: float | None  # the floor; null: none is known under these conditions
    source: str
    hosts: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The whole: what it is about, the fleet in numbers, what is wrong first, then host by host."""

    format: int = FORMAT
    title: str
    made: str  # UTC
    version: str  # gpunode's
    source: str  # run NAME, plan FILE, folder DIR
    states: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Issue, ...] = ()
    drift: tuple[Issue, ...] = ()
    pools: tuple[PoolRow, ...] = ()
    classes: tuple[ClassRow, ...] = ()
    gpus: tuple[GpuRow, ...] = ()
    run: ReportRun | None = None
    metrics: tuple[MetricRow, ...] = ()  # of an acceptance
    hosts: tuple[ReportHost, ...] = ()  # worst first


# ---------------------------------------------------------------- times


def between(start: str, end: str) -> int | None:
    """Seconds from one time to another, not below 0; None where one is not known."""
    if not start or not end:
        return None
    return max(0, _seconds(end) - _seconds(start))


def duration(seconds: float | None) -> str:
    """ "1 h 05 min", "3 min 20 s", "12 s"; "" for None."""
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _seconds(time: str) -> int:
    year, month, day, hour, minute, second = map(int, re.findall(r"\d+", time)[:6])
    return timegm((year, month, day, hour, minute, second))
