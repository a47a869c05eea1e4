"""A host that is measured, the acceptance that it is part of, and what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpunode.core.accept import Level, Measure, ToolRequest
from gpunode.core.accept.floors import Machine
from gpunode.core.accept.judge import Spread, spreads
from gpunode.core.accept.result import StageRow
from gpunode.core.late import dataclass, field
from gpunode.core.model import HostResult, NodeFacts
from gpunode.core.report.model import Report
from gpunode.core.spec.accept import AcceptSpec
from gpunode.edge.accept.files import append_row
from gpunode.edge.detect import Detected, Targets


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host that can be measured."""

    detected: Detected
    facts: NodeFacts
    spec: AcceptSpec
    machine: Machine
    key: str

    @property
    def name(self) -> str:
        return self.detected.host

    def ask(self, level: Level) -> ToolRequest:
        memory = [gpu.memory_mib for gpu in self.facts.nvml if gpu.memory_mib]
        return ToolRequest(level=level, gpus=len(self.facts.gpus), smallest_mib=min(memory, default=None))


@dataclass(kw_only=True)
class AcceptRun:
    """Hosts that are measured and compared with each other, at one time or as a rollout gets to them."""

    folder: Path
    targets: Targets
    level: Level
    say: Callable[[str, str], None]  # a host, and what came of a stage there
    done: dict[tuple[str, str], StageRow] = field(default_factory=dict)
    measured: dict[str, tuple[Machine, list[Measure]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spreads_with(self, hosts: Mapping[str, tuple[Machine, Sequence[StageRow]]]) -> dict[tuple[str, str], Spread]:
        """How the values of all machines lie, with what these hosts have measured now."""
        with self._lock:
            self.measured |= {
                h: (machine, [m for row in rows for m in row.measures]) for h, (machine, rows) in hosts.items()
            }
            return spreads(self.measured)

    def keep(self, row: StageRow) -> StageRow:
        """Written down, and said; a node in use is asked again by --resume."""
        with self._lock:
            self.done[row.host, row.stage] = row
            append_row(self.folder, row)
            worst = next((c for c in row.checks if c.status == "failed"), None)
            text = f"{row.stage} {row.ended} ({row.seconds:.0f} s){f': {worst.message}' if worst else ''}"
            self.say(row.host, text)
        return row


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What came of it: the folder that holds all of it, the results, the report."""

    folder: Path
    results: tuple[HostResult, ...]
    report: Report
