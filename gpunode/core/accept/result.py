"""What came of an acceptance: a row for each host and stage, a record for each host, the report of all.

A record is what an auditor keeps: versions and settings, what was measured and what was expected of it, with sources.
docs/accept.schema.json is made of its type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from gpunode.core.accept import Level, Measure
from gpunode.core.accept.floors import Floor, Machine, floor_of, machine_of
from gpunode.core.accept.judge import ExpectedSpeed, Spread
from gpunode.core.accept.stages import STAGES, stage_of
from gpunode.core.late import dataclass, field
from gpunode.core.model import Check, HostOutcome, NodeFacts, NvmlGpu
from gpunode.core.report.model import MetricRow
from gpunode.core.untrusted import structured

FORMAT = 1
Verdict = Literal["accepted", "accepted-with-warnings", "not-proven", "failed", "refused"]


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """What one stage found on one host.

    `ended`: done; nothing (the tool ended by an error of its own); missing (no tool); refused (the node was in use).
    """

    host: str
    stage: str
    key: str  # of the machine as it was then: a row of another one does not count
    at: str  # UTC
    seconds: float
    ended: Literal["done", "nothing", "missing", "refused"] = "done"
    program: str = ""
    checks: tuple[Check, ...] = ()
    measures: tuple[Measure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordGpu:
    slot: str
    id: str
    name: str = ""
    uuid: str = ""
    persistence: str = ""
    ecc: str = ""
    mig: str = ""


@dataclass(frozen=True, kw_only=True)
class RecordStage:
    stage: str
    status: Literal["passed", "warning", "not-proven", "failed"]
    at: str
    seconds: float
    program: str
    standards: tuple[str, ...]  # ids of requirements that it answers


@dataclass(frozen=True, kw_only=True)
class AcceptRecord:
    """One host's acceptance."""

    format: int = FORMAT
    gpunode: str
    host: str
    at: str  # UTC
    level: Level
    verdict: Verdict
    machine: str  # 8 × 10de:2330 (nvswitch)
    distro: str
    kernel: str
    driver: str
    parameters: Mapping[str, str] = field(default_factory=dict)  # of the driver's module
    gpus: tuple[RecordGpu, ...] = ()
    stages: tuple[RecordStage, ...] = ()
    checks: tuple[Check, ...] = ()
    measures: tuple[Measure, ...] = ()
    expected: tuple[ExpectedSpeed, ...] = ()  # floors that were taken


def key_of(facts: NodeFacts) -> str:
    """Of the machine and what runs it: another GPU, driver or kernel is another one."""
    seen = [(gpu.slot, gpu.uuid) for gpu in facts.nvml]
    gpus = sorted(seen or [(gpu.slot, gpu.id) for gpu in facts.gpus])
    return hashlib.sha256(repr((gpus, facts.driver.loaded, facts.kernel)).encode()).hexdigest()[:16]


def row_from(data: Any) -> StageRow:
    """The inverse of asdict(StageRow).  Raises InputError."""
    return structured(data, StageRow, "a row of an acceptance", "start the acceptance again")


def status_of(checks: Iterable[Check]) -> Literal["passed", "warning", "not-proven", "failed"]:
    """The worst of them; nothing at all proves nothing."""
    found = {check.status for check in checks}
    for word in ("failed", "not-proven", "warning"):
        if word in found:
            return word
    return "passed" if "passed" in found else "not-proven"


_VERDICTS: Mapping[str, Verdict] = {
    "passed": "accepted", "warning": "accepted-with-warnings", "not-proven": "not-proven", "failed": "failed",
}  # fmt: skip
OUTCOMES: Mapping[Verdict, HostOutcome] = {
    "accepted": "ok", "accepted-with-warnings": "ok", "not-proven": "pending", "failed": "failed", "refused": "refused",
}  # fmt: skip


def make_record(
    host: str, facts: NodeFacts, rows: Sequence[StageRow], checks: Sequence[Check], *,
    level: Level, gpunode: str, at: str,
) -> AcceptRecord:  # fmt: skip
    """`checks` are all of them, those of the fleet too."""
    refused = any(row.ended == "refused" for row in rows)
    return AcceptRecord(
        gpunode=gpunode, host=host, at=at, level=level, machine=machine_of(facts).kind, distro=facts.distro.key,
        verdict="refused" if refused else _VERDICTS[status_of(checks)],
        kernel=facts.kernel, driver=f"{facts.driver.loaded} {facts.driver.loaded_flavour}".strip(),
        parameters=dict(facts.driver.parameters), gpus=tuple(_gpus(facts)),
        stages=tuple(
            RecordStage(
                stage=row.stage, status=status_of(row.checks), at=row.at, seconds=row.seconds, program=row.program,
                standards=stage_of(row.stage).standards,
            )
            for row in rows
        ),
        checks=tuple(checks), measures=tuple(m for row in rows for m in row.measures),
    )  # fmt: skip


def _gpus(facts: NodeFacts) -> Iterable[RecordGpu]:
    seen = {gpu.slot: gpu for gpu in facts.nvml}
    for gpu in facts.gpus:
        one = seen.get(gpu.slot, NvmlGpu(index=0))  # of one that the driver does not see it says nothing
        yield RecordGpu(
            slot=gpu.slot, id=gpu.id, name=one.name, uuid=one.uuid, persistence=one.persistence, ecc=one.ecc_current,
            mig=one.mig_current,
        )  # fmt: skip


def record_from(data: Any) -> AcceptRecord:
    """The inverse of asdict(AcceptRecord).  Raises InputError."""
    return structured(data, AcceptRecord, "a record of an acceptance", "name a folder that gpunode accept wrote")


def standards_of(rows: Sequence[StageRow]) -> dict[str, str]:
    """Requirement → the worst that its stages say."""
    checks: dict[str, list[Check]] = {}
    for row in rows:
        for name in stage_of(row.stage).standards:
            checks.setdefault(name, []).extend(row.checks)
    order = [name for stage in STAGES for name in stage.standards]
    return {name: status_of(checks[name]) for name in dict.fromkeys(order) if name in checks}


def metric_rows(
    hosts: Mapping[str, tuple[Machine, Sequence[Measure]]], known: Mapping[tuple[str, str], Spread],
    floors: Sequence[Floor],
) -> tuple[MetricRow, ...]:  # fmt: skip
    """The heat map: for each kind of machine and metric the values of each host."""
    rows = []
    for (kind, metric), spread in known.items():
        mine = {
            host: [measure for measure in measures if measure.metric == metric]
            for host, (machine, measures) in hosts.items()
            if machine.kind == kind
        }
        found = {host: measures for host, measures in mine.items() if measures}
        machine = next(machine for machine, _ in hosts.values() if machine.kind == kind)
        floor = floor_of(next(iter(found.values()))[0], machine, floors)
        rows.append(
            MetricRow(
                metric=metric, kind=kind, unit=spread.unit, least=spread.least, median=spread.median, most=spread.most,
                mad=spread.mad, full=floor.full if floor else None, source=floor.source if floor else "",
                hosts={host: tuple(measure.value for measure in measures) for host, measures in found.items()},
            )
        )  # fmt: skip
    return tuple(rows)


def since_checks(record: AcceptRecord, facts: NodeFacts) -> list[Check]:
    """What of a host is other than at its acceptance, which then no longer speaks for it."""
    gpus = {gpu.slot: gpu for gpu in record.gpus}
    now = {gpu.slot: gpu for gpu in _gpus(facts)}
    changed = [
        f"GPU {slot}: {_words(gpus.get(slot))}, now {_words(now.get(slot))}"
        for slot in sorted({*gpus, *now})
        if gpus.get(slot) != now.get(slot)
    ]
    driver = f"{facts.driver.loaded} {facts.driver.loaded_flavour}".strip()
    for name, before, after in (("driver", record.driver, driver), ("kernel", record.kernel, facts.kernel)):
        changed += [f"{name} {before or 'none'}, now {after or 'none'}"] if before != after else []
    if dict(record.parameters) != dict(facts.driver.parameters):
        names = sorted(n for n in {*record.parameters, *facts.driver.parameters}
                       if record.parameters.get(n) != facts.driver.parameters.get(n))  # fmt: skip
        changed.append(f"parameters of the driver: {', '.join(names[:10])}")
    checks = [Check(id="accept.verdict", status="passed", message=f"{record.verdict} at {record.at} ({record.level})")]
    if record.verdict not in ("accepted", "accepted-with-warnings"):
        text = f"the acceptance of {record.at} ended with «{record.verdict}»"
        checks = [Check(id="accept.verdict", status="warning", message=text, fix="gpunode accept")]
    if changed:
        text = f"since the acceptance of {record.at}: {'; '.join(changed)}"
        return [*checks, Check(id="accept.since", status="warning", message=text, fix="gpunode accept")]
    return [*checks, Check(id="accept.since", status="passed", message=f"as it was accepted at {record.at}")]


def _words(gpu: RecordGpu | None) -> str:
    if gpu is None:
        return "none"
    return ", ".join(filter(None, (gpu.name or gpu.id, gpu.uuid, f"persistence {gpu.persistence}" if gpu.persistence
                     else "", f"ECC {gpu.ecc}" if gpu.ecc else "", f"MIG {gpu.mig}" if gpu.mig else "")))  # fmt: skip
