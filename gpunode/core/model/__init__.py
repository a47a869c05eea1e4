"""The values gpunode works with.  All frozen: a change is a new value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from gpunode.core.engines import RuntimeName
from gpunode.core.late import dataclass
from gpunode.core.model.choice import (
    Archive,
    CudaChoice,
    DriverChoice,
    Edit,
    FabricChoice,
    Flavour,
    Hunk,
    MigLayout,
    MigPlace,
    Offer,
    PackageWant,
    Plan,
    Problem,
    Reason,
    Repository,
    Runfile,
    SharingChoice,
    Solution,
    Step,
    ToolkitChoice,
    TuningChoice,
    Undo,
    Unresolved,
)
from gpunode.core.model.node import (
    Cdi,
    CdiGpu,
    CdiSpec,
    ConfigFile,
    DeviceNode,
    Distribution,
    Distro,
    DriverState,
    FirstBoot,
    GpuContainer,
    GpuState,
    InstalledPackage,
    Invalid,
    Kernel,
    KernelFault,
    Kubernetes,
    MigInstance,
    NodeFacts,
    NotStarted,
    NvmlGpu,
    PciDevice,
    PciLink,
    RdmaPort,
    Running,
    Runtime,
    Service,
    Sharing,
    Topology,
    Tuning,
    Xid,
)

NO_GPU = "no NVIDIA GPU on PCI"
# how a verb ended on a host; the command line has an exit code for each (core/errors.py)
HostOutcome = Literal["ok", "failed", "invalid", "pending", "unreachable", "refused", "interrupted"]
Status = Literal["unchanged", "changed", "failed", "rolled_back", "refused"]
# statuses of a check that are the outcome of a host, the first that is found before the others
ENDS: tuple[Literal["refused", "failed", "pending"], ...] = ("refused", "failed", "pending")


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A thing that changed, or in check mode would: its kind and name for programs, a sentence for people.

    `kind` is file, package, unit, module, or that of a setting (sysctl, argument, alternative, gpu, user, group …), ""
    where nobody said.  Of packages `was` and `now` are the versions, as far as they are known.
    """

    kind: str = ""
    name: str = ""
    was: str = ""
    now: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a node script did, parsed from its `gpunode<TAB>KEY<TAB>VALUE` lines (core/remote.py)."""

    status: Status
    message: str = ""
    fix: str = ""
    code: str = ""  # of a refusal that programs tell apart: not-yet (it needs what is not installed)
    changed: tuple[Changed, ...] = ()
    notes: tuple[str, ...] = ()
    log: str = ""  # every other line it printed
    rollback: str = ""  # those that it printed after a failure, of what undid it
    stale: tuple[str, ...] = ()  # files that changed since they were read: read again, and ask again

    @property
    def texts(self) -> tuple[str, ...]:
        """What changed, in sentences."""
        return tuple(one.text for one in self.changed)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding of verify with a stable id: gpu.count, driver.versions-match, containerd.cri-pod …"""

    id: str
    # pending: the spec asks for more than there is; refused: it cannot be met
    status: Literal["failed", "refused", "pending", "warning", "not-proven", "skipped", "passed"]
    message: str
    fix: str = ""


def outcome_of(checks: Iterable[Check]) -> HostOutcome:
    """How it ends for a host that these checks were made of."""
    found = {check.status for check in checks}
    return next((status for status in ENDS if status in found), "ok")


def counted_checks(checks: Iterable[Check], *statuses: str) -> str:
    """How many checks have each of these statuses: «3 passed, 1 warning»."""
    counts = Counter[str](check.status for check in checks)
    return ", ".join(f"{counts[one]} {one}" for one in statuses if counts[one])


@dataclass(frozen=True, kw_only=True)
class HostResult:
    """What a verb did on one host."""

    host: str
    outcome: HostOutcome = "ok"
    message: str = ""
    fix: str = ""  # what to do next, where something is wrong
    changed: tuple[Changed, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()  # what stays as it is, and why
    diffs: tuple[str, ...] = ()  # of files, secrets masked, where diffs were asked for
    run: str = ""  # the run that it is part of (`gpunode runs`); "" for none, as in check mode
    seconds: float | None = None  # from the start of the host's job to its end
    started: bool = True  # False: the run stopped before this host
    touched: bool = True  # False: it failed before anything was done on the host
    no_gpu: bool = False  # the machine lacks the GPU that it should have: no run can do anything on it
    since: str = ""  # the earlier run that the host was compared with (`verify --since`)
    unchanged_since: bool | None = None  # whether it is as that run left it; None: not compared

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def state(self) -> Literal["done", "pending", "failed"]:
        """Of the host in a run; pending: it waits for its GPU, which no run can bring."""
        return "done" if self.ok else "pending" if self.no_gpu else "failed"

    @property
    def sentence(self) -> str:
        """The message with what to do next, once."""
        if self.fix in self.message:
            return self.message
        more = f"\n  do next:  {self.fix}" if "\n" in self.message else f" (fix: {self.fix})"
        return self.message + more
