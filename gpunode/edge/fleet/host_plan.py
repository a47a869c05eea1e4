"""One host on its way through a run."""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.core.errors import Exit, GpunodeError
from gpunode.core.model import Plan
from gpunode.core.report.text import plan_exit
from gpunode.edge.detect import Detected
from gpunode.edge.planner import Planned


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
    def exit(self) -> Exit:
        if self.error:
            return Exit(self.error.exit)
        return plan_exit(self.planned.plan) if self.planned else Exit.FAILED
