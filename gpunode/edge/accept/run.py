"""accept: hosts × stages, each a call of node/accept/accept.sh; what is finished is on disk, and is not run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpunode import __version__
from gpunode.core.accept import Level
from gpunode.core.accept.floors import machine_of
from gpunode.core.accept.judge import expected_of, fleet_checks, spreads
from gpunode.core.accept.result import OUTCOMES, AcceptRecord, key_of, make_record, metric_rows, standards_of
from gpunode.core.accept.stages import stages_of
from gpunode.core.errors import InputError, InterruptedByUser
from gpunode.core.items.first_boot import prepares
from gpunode.core.model import HostResult, counted_checks
from gpunode.core.report.seen import see
from gpunode.core.report.summary import make_host, make_report
from gpunode.core.report.text import results_data
from gpunode.edge.accept.files import acceptance_folder, finished_rows, write_record
from gpunode.edge.accept.model import Acceptance, AcceptRun, Host
from gpunode.edge.accept.pairs import measure_pairs
from gpunode.edge.accept.stages import measure_all
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets, detect
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.workflow import plan_one, verify_found, verify_planned
from gpunode.edge.load import load_floors
from gpunode.edge.records import sign_file
from gpunode.edge.state import now

_INTERRUPTED = "interrupted; the tools on the nodes end within seconds, and leave nothing"


def accept(
    targets: Targets, desired: DesiredState, level: Level, *, resume: str = "", sign: Path | None = None,
    say: Callable[[str], None] = lambda text: None, on_done: Callable[[Detected], None] = lambda found: None,
) -> Acceptance:  # fmt: skip
    """Measure the hosts, stage by stage; hosts side by side.  Raises InputError, InterruptedByUser."""
    folder = acceptance_folder(resume)
    found = detect(targets, on_done=on_done)
    plans = [plan_one(one, desired) for one in found]
    verified = {r.host: r for r in verify_found(found, targets, desired, smoke=False)}
    hosts, errors = _measurable(plans, verified)
    run = AcceptRun(folder=folder, targets=targets, level=level, say=lambda host, text: say(f"{host}: {text}"))
    if resume:
        run.done = finished_rows(folder, {host.name: host.key for host in hosts})
    try:
        measure_all(hosts, run, verified)
        if "pair" in stages_of(level):
            measure_pairs(hosts, run)
    except KeyboardInterrupt as error:
        raise InterruptedByUser(_INTERRUPTED, fix=f"go on: the same command with --resume {folder.name}") from error
    return _conclude(hosts, errors, run, desired, sign)


def measure(plans: Sequence[HostPlan], run: AcceptRun, desired: DesiredState) -> dict[str, HostResult]:
    """Hosts that a rollout has got to, for which `plans` were made just now.  Raises InterruptedByUser."""
    verified = {r.host: r for r in verify_planned(plans, run.targets, desired, smoke=False)}
    hosts, results = _measurable(plans, verified)
    run.folder.mkdir(mode=0o700, exist_ok=True)
    measure_all(hosts, run, verified)
    records = _records(hosts, run)
    for record in records:
        write_record(run.folder, record)
    return results | {record.host: _result(record) for record in records}


def _measurable(
    plans: Sequence[HostPlan], verified: Mapping[str, HostResult]
) -> tuple[list[Host], dict[str, HostResult]]:
    hosts, errors = [], {}
    for plan in plans:
        if plan.planned is None or plan.detected.target is None:
            error = plan.error or InputError(f"{plan.host} is a saved probe", fix="name a host that can be reached")
            errors[plan.host] = error.of_host(plan.host)
            continue
        facts, spec = plan.planned.facts, plan.planned.spec
        if prepares(spec) or not facts.gpus:
            outcome = "pending" if prepares(spec) else plan.planned.plan.outcome
            errors[plan.host] = replace(verified[plan.host], outcome=outcome, message="no NVIDIA GPU to measure")
        else:
            hosts.append(
                Host(
                    detected=plan.detected, facts=facts, spec=spec.accept, machine=machine_of(facts),
                    key=key_of(facts),
                )
            )  # fmt: skip
    return hosts, errors


def _records(hosts: Sequence[Host], run: AcceptRun) -> list[AcceptRecord]:
    """The records of these hosts, each compared with all that the run has measured."""
    floors = load_floors()
    rows = {h.name: [run.done[h.name, s] for s in stages_of(run.level) if (h.name, s) in run.done] for h in hosts}
    known, records = run.spreads_with({h.name: (h.machine, rows[h.name]) for h in hosts}), []
    for host in hosts:
        machine, measures = run.measured[host.name]
        checks = [c for row in rows[host.name] for c in row.checks] + list(fleet_checks(measures, machine, known))
        made = make_record(
            host.name, host.facts, rows[host.name], checks, level=run.level, gpunode=__version__, at=now()
        )
        records.append(replace(made, expected=expected_of(measures, machine, floors)))
    return records


def _conclude(
    hosts: Sequence[Host], errors: Mapping[str, HostResult], run: AcceptRun, desired: DesiredState, sign: Path | None
) -> Acceptance:  # fmt: skip
    records = _records(hosts, run)
    results, cards = dict(errors), {}
    for host, record in zip(hosts, records, strict=True):
        path = write_record(run.folder, record)
        if sign:
            sign_file(path, sign)
        result = results[host.name] = _result(record)
        card = make_host(host.name, probe=see(host.facts, desired.knowledge), result=results_data([result])[0])
        rows = [run.done[host.name, s] for s in stages_of(run.level) if (host.name, s) in run.done]
        cards[host.name] = replace(card, standards=standards_of(rows))
    for name, error in errors.items():
        cards[name] = make_host(name, result=results_data([error])[0])
    report = make_report(
        cards.values(), title=f"Acceptance {run.folder.name}, {run.level}", made=now(), version=__version__,
        source=f"accept {run.folder.name}",
    )  # fmt: skip
    report = replace(report, metrics=metric_rows(run.measured, spreads(run.measured), load_floors()))
    return Acceptance(folder=run.folder, results=tuple(results.values()), report=report)


def _result(record: AcceptRecord) -> HostResult:
    counts = counted_checks(record.checks, "failed", "not-proven", "warning", "passed")
    text = f"{record.verdict.replace('-', ' ')}: {counts}"
    return HostResult(host=record.host, outcome=OUTCOMES[record.verdict], message=text, checks=record.checks)
