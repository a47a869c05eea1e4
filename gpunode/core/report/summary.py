"""Hosts → the report: problems and drift over the fleet, pools by stages, versions by class, GPUs by model, waves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpunode.core.errors import Exit
from gpunode.core.grouped import grouped
from gpunode.core.late import regex
from gpunode.core.printable import counted
from gpunode.core.report.model import (
    STATES,
    STATUSES,
    ClassRow,
    Gpu,
    GpuRow,
    HostRun,
    Issue,
    PoolRow,
    ProbeSummary,
    Report,
    ReportFinding,
    ReportHost,
    ReportRun,
    State,
    Status,
    Variant,
    VersionCount,
    Wave,
)
from gpunode.core.report.seen import fleet_gpus
from gpunode.core.report.text import without_host

# Checks that find what has moved since a host was set up, and does not hurt yet.
_DRIFT = regex(r"plan\.(?!problem)|boot\.|driver\.held|repository\.twice|fence\.")
COMPONENTS: Mapping[str, Callable[[ProbeSummary], str]] = {
    "kernel": lambda probe: probe.versions.kernel,
    "driver": lambda probe: f"{probe.versions.driver} {probe.versions.flavour}".strip(),
    "CUDA": lambda probe: ", ".join(probe.versions.cuda),
    "toolkit": lambda probe: probe.versions.toolkit,
    "engines": lambda probe: ", ".join(probe.versions.engines),
    "Kubernetes": lambda probe: probe.versions.kubernetes,
}


def make_report(
    hosts: Iterable[ReportHost], *, title: str, made: str, version: str, source: str, run: ReportRun | None = None
) -> Report:
    """The report of these hosts; `made` is the time of it in UTC."""
    ordered = sorted(hosts, key=lambda host: (STATES.index(host.state), host.name))
    issues = _issues(ordered)
    kinds = _by((host for host in ordered if host.seen), lambda host: host.seen.kind if host.seen else "")
    return Report(
        title=title,
        made=made,
        version=version,
        source=source,
        states=_states(ordered),
        problems=tuple(issue for issue in issues if not _is_drift(issue)),
        drift=tuple(issue for issue in issues if _is_drift(issue)),
        pools=tuple(_pool(name, members) for name, members in _by(ordered, lambda host: host.pool).items()),
        classes=tuple(_class(kind, members) for kind, members in kinds.items()),
        gpus=_gpus(ordered),
        run=replace(run, waves=_waves(ordered)) if run else None,
        hosts=tuple(ordered),
    )


_COUNTED = {"warning": "with warnings", "not-proven": "not proven"}


def headline(report: Report) -> str:
    """What came of the hosts of a run, in one line: the worst first."""
    count = len(report.hosts)
    reported = [f"{number} {_COUNTED.get(state, state)}" for state, number in report.states.items()]
    hosts = counted(count, "host")
    verb = report.run.verb if report.run else "report"
    if report.states == {"ok": count}:
        return f"{verb}: {hosts} ok"
    return (
        f"{verb}: {hosts}: {', '.join(reported)}" if count > 1 else f"{verb}: {report.hosts[0].name} {reported[0][2:]}"
    )


def left_title(report: Report) -> str:
    """The title of `report.drift`: steps of a first installation have not drifted."""
    return "Pending" if all(issue.status == "pending" for issue in report.drift) else "Pending and drift"


def _by(hosts: Iterable[ReportHost], key: Callable[[ReportHost], str]) -> dict[str, list[ReportHost]]:
    return dict(sorted(grouped((key(host), host) for host in hosts).items()))


def _states(hosts: Iterable[ReportHost]) -> dict[str, int]:
    counts = Counter(host.state for host in hosts)
    return {state: counts[state] for state in STATES if counts[state]}


# ---------------------------------------------------------------- problems and drift


def _is_drift(issue: Issue) -> bool:
    return issue.status in ("pending", "warning") and bool(_DRIFT.match(issue.id))


def _issues(hosts: Sequence[ReportHost]) -> list[Issue]:
    """Findings of all hosts by status and id, the worst and most frequent first."""
    found = grouped(((f.status, f.id), (_shared(f, host.name), host.name)) for host in hosts for f in host.findings)
    issues = []
    for (status, check_id), said in found.items():
        ranked = sorted(grouped(said).items(), key=lambda item: -len(item[1]))
        variants = tuple(Variant(message=m, fix=f, hosts=tuple(names)) for (m, f), names in ranked)
        hit = len({name for _, name in said})
        issues.append(Issue(id=check_id, status=status, hosts=hit, variants=variants))
    return sorted(issues, key=lambda issue: (STATUSES.index(issue.status), -issue.hosts, issue.id))


def _shared(finding: ReportFinding, host: str) -> tuple[str, str]:
    return without_host(finding.message, host), without_host(finding.fix, host)


# ---------------------------------------------------------------- pools, classes, GPUs


def _pool(name: str, hosts: Sequence[ReportHost]) -> PoolRow:
    roles = Counter(role for host in hosts for role in {_role(f) for f in host.findings} - {""})
    return PoolRow(
        name=name,
        hosts=len(hosts),
        gpus=sum(len(host.seen.gpus) for host in hosts if host.seen),
        reached=sum(map(_reached, hosts)),
        accepted=sum(map(_accepted, hosts)),
        provisioned=sum(map(_provisioned, hosts)),
        healthy=sum(map(_healthy, hosts)),
        states=_states(hosts),
        steps=dict(sorted(roles.items())),
    )


def _role(finding: ReportFinding) -> str:
    """Of plan.driver.packages it is driver."""
    parts = finding.id.split(".")
    return parts[1] if finding.status == "pending" and parts[0] == "plan" and len(parts) == 3 else ""


def _has(host: ReportHost, *statuses: str) -> bool:
    return any(finding.status in statuses for finding in host.findings)


def _reached(host: ReportHost) -> bool:
    return host.state != "unreachable" and (host.seen is not None or not _has(host, "unreachable"))


def _accepted(host: ReportHost) -> bool:
    return _reached(host) and not _has(host, "refused")


def _provisioned(host: ReportHost) -> bool:
    ended = host.run is None or host.run.state in ("done", "pending")
    return _accepted(host) and ended and not _has(host, "pending")


_OF_GPUS = ("driver.", "gpu.", "nvlink.", "fabric.")


def _healthy(host: ReportHost) -> bool:
    """What of the GPUs could not be proven is not known to be well."""
    unknown = any(f.status == "not-proven" and f.id.startswith(_OF_GPUS) for f in host.findings)
    return _provisioned(host) and not _has(host, "failed") and not unknown


def _class(kind: str, hosts: Sequence[ReportHost]) -> ClassRow:
    versions = {}
    for name, of in COMPONENTS.items():
        found = grouped((of(host.seen), host.name) for host in hosts if host.seen)
        ranked = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
        versions[name] = tuple(VersionCount(version=v, hosts=tuple(sorted(names))) for v, names in ranked)
    first = hosts[0].seen
    return ClassRow(kind=kind, gpus=fleet_gpus(first.gpus) if first else "", hosts=len(hosts), versions=versions)


def _gpus(hosts: Sequence[ReportHost]) -> tuple[GpuRow, ...]:
    models = grouped((gpu.id, (host.name, gpu)) for host in hosts if host.seen for gpu in host.seen.gpus)
    rows = [_gpu_row(found) for found in models.values()]
    return tuple(sorted(rows, key=lambda row: (-row.gpus, row.model)))


def _gpu_row(found: Sequence[tuple[str, Gpu]]) -> GpuRow:
    gpus = [gpu for _, gpu in found]
    memory = Counter(gpu.memory_mib for gpu in gpus if gpu.memory_mib).most_common(1)
    return GpuRow(
        model=gpus[0].model,
        id=gpus[0].id,
        gpus=len(gpus),
        hosts=len({name for name, _ in found}),
        unseen=sum(gpu.index is None for gpu in gpus),
        memory_mib=memory[0][0] if memory else None,
        mig=sum(gpu.mig.lower() == "enabled" for gpu in gpus),
        ecc_errors=sum(bool(gpu.ecc_errors) for gpu in gpus),
        xids=sum(bool(gpu.xids) for gpu in gpus),
    )


# ---------------------------------------------------------------- a run


def _waves(hosts: Sequence[ReportHost]) -> tuple[Wave, ...]:
    members = grouped(((host.pool, host.run.wave), host.run) for host in hosts if host.run)
    waves = []
    for (pool, number), runs in sorted(members.items()):
        ends = [run.ended for run in runs]
        waves.append(
            Wave(
                pool=pool,
                number=number + 1,
                hosts=len(runs),
                done=sum(run.state == "done" for run in runs),
                failed=sum(run.state == "failed" for run in runs),
                started=min((run.started for run in runs if run.started), default=""),
                ended=max(ends) if all(ends) else "",
            )
        )
    return tuple(waves)


# ---------------------------------------------------------------- one host

_BY_EXIT: Mapping[int, Status] = {Exit.PENDING: "pending", Exit.UNREACHABLE: "unreachable", Exit.REFUSED: "refused"}
_STATE_OF: Mapping[str, State] = {state: state for state in STATES if state in STATUSES}
_AROUND = ("preflight", "verify")  # roles whose steps stand in every plan that has others


def make_host(
    name: str,
    *,
    pool: str = "",
    probe: ProbeSummary | None = None,
    plan: Mapping[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
    run: HostRun | None = None,
) -> ReportHost:
    """One host from what is known of it.

    `plan` as plan_data, or with an `error` {what, fix, exit} in place of steps, `result` as results_data (verify's, or
    of a host that a run has ended) give them.  What verify says of a check comes before what the probe says.
    """
    checks = list(_checked(result or {}))
    reported = {finding.id for finding in checks}
    newer = (run and run.state in ("done", "pending")) or any(name.startswith("plan.") for name in reported)
    left = [] if newer else list(_planned(plan or {}))
    if any(finding.id.startswith("plan.driver.") for finding in left):
        reported.add("driver.loaded")  # that it is not, the plan says already
    checks += [finding for finding in (probe.checks if probe else ()) if finding.id not in reported]
    found = [*_errors((plan or {}).get("error")), *left, *checks]
    last = result or {}
    found += _ended(run.exit if run else last.get("exit"), last, found)
    open_ = sorted((f for f in found if f.status not in ("passed", "skipped")), key=lambda f: STATUSES.index(f.status))
    return ReportHost(
        name=name,
        state=_state(open_, run),
        pool=pool,
        message=_message(open_, run, last.get("message", "") if run else ""),
        seen=replace(probe, checks=()) if probe else None,
        findings=tuple(open_),
        passed=tuple(finding.id for finding in found if finding.status == "passed"),
        run=run,
    )


def _errors(error: Mapping[str, Any] | None) -> Iterator[ReportFinding]:
    if error:
        status = _BY_EXIT.get(error.get("exit", 1), "failed")
        yield ReportFinding(id=f"host.{status}", status=status, message=error["what"], fix=error.get("fix", ""))


def _planned(plan: Mapping[str, Any]) -> Iterator[ReportFinding]:
    for problem in plan.get("problems", ()):
        yield ReportFinding(id="plan.problem", status="refused", message=problem["what"], fix=problem["fix"])
    for step in plan.get("steps", ()):
        if step["role"] not in _AROUND:
            more = f" ({step['disruptive']})" if step["disruptive"] else ""
            message = f"{step['title']}{more}"
            yield ReportFinding(id=f"plan.{step['id']}", status="pending", message=message, fix="gpunode provision")


def _checked(result: Mapping[str, Any]) -> Iterator[ReportFinding]:
    for check in result.get("checks", ()):
        yield ReportFinding(**{key: check[key] for key in ("id", "status", "message", "fix")})


def _ended(code: int | None, last: Mapping[str, Any], findings: list[ReportFinding]) -> Iterator[ReportFinding]:
    """A bad end that no check explains."""
    status = _BY_EXIT.get(code or 0, "failed")
    if not code or any(f.status == status for f in findings):
        return
    check_id = "plan.left" if status == "pending" else f"host.{status}"
    message = last.get("message") or f"exit {code}"
    yield ReportFinding(id=check_id, status=status, message=message, fix=last.get("fix", ""))


def _state(findings: list[ReportFinding], run: HostRun | None) -> State:
    if run and run.state in ("waiting", "running"):
        return run.state
    return next((_STATE_OF[f.status] for f in findings if f.status in _STATE_OF), "ok")


def _message(findings: list[ReportFinding], run: HostRun | None, last_message: str) -> str:
    if run and run.state == "waiting":
        return "not started"
    if run and run.state == "running":
        return run.step
    if findings:
        return findings[0].message + (f" (and {len(findings) - 1} more)" if len(findings) > 1 else "")
    return last_message or "as it should be"
