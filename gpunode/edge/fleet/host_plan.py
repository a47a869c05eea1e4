"""One host on its way through a run."""

from __future__ import annotations

from gpunode.core.errors import GpunodeError
from gpunode.core.late import dataclass
from gpunode.core.model import HostOutcome, Plan
from gpunode.edge.desired import Planned
from gpunode.edge.detect import Detected


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """One host on its way through a run: what was found, what is planned, or the error that stopped it."""

    detected: Detected
    planned: Planned | None = None
    error: GpunodeError | None = None

    @property
    def host(self) -> str:
        return self.detected.host

    @property
    def plan(self) -> Plan | None:
        return self.planned.plan if self.planned else None

    @property
    def outcome(self) -> HostOutcome:
        """How planning ended: ok (nothing to do), pending (also without a GPU), refused, or that of the error."""
        return self.error.outcome if self.error else self.plan.outcome if self.plan else "failed"
