"""Reads what a report is made from: a run of this controller, a plan, or a folder of probes and results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from gpunode import __version__
from gpunode.core.checks.health import Expected
from gpunode.core.errors import GpunodeError, InputError, error_data
from gpunode.core.knowledge import Knowledge
from gpunode.core.report.model import HostRun, ProbeSummary, Report, ReportHost, ReportRun
from gpunode.core.report.schema import seen_from
from gpunode.core.report.seen import see
from gpunode.core.report.summary import headline, make_host, make_report
from gpunode.core.report.text import plan_data
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Targets, detect
from gpunode.edge.fleet.runs import HostRow, Runs
from gpunode.edge.report_data import FOUND, RESULTS
from gpunode.edge.share import in_its_share
from gpunode.edge.state import json_lines, now, state_dir

_KEYS = {"steps": "plan", "checks": "result", "facts": "facts", "error": "plan"}  # of a host's JSON → what it is
_EXPECTED = "JSON of gpunode plan, verify, provision or detect (--format json)"


def load_page() -> dict[str, str]:
    """What html_text makes the page of."""
    folder = files("gpunode") / "templates"
    return {name: (folder / name).read_text(encoding="utf-8") for name in ("report.html.j2", "report.css", "report.js")}


def report_of(source: str) -> Report:
    """The report of a run (its name, the beginning of one, or last), or of a plan's file or folder.

    Raises InputError when there is none.
    """
    path = Path(source)
    if path.is_dir():
        path = path / "plan.json"
    if path.is_file():
        return of_plan(path)
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"{source}: no such plan", expected="a file or folder that gpunode plan wrote, or a run")
    return of_run(source)


def of_run(name: str) -> Report:
    """A run of this controller: all hosts that it was asked for, also those that it had nothing to do on."""
    journal = Runs()
    run = journal.get(name)
    plans: dict[str, dict[str, Any]] = {}
    results: dict[str, dict[str, Any]] = {}
    rows: dict[str, HostRow] = {}
    parts = journal.parts(run)
    for part in parts:  # of a resumed run, also the hosts that were done before
        folder = state_dir() / "runs" / part.name
        plans |= {host["host"]: host for host in _recorded(folder / "plan.json")}
        results |= _lines(folder / RESULTS)
        rows |= {row.host: _in_whole_run(row, rows.get(row.host)) for row in journal.hosts(part.name)}
    hosts = [
        _card(row.host, partial(_of_row, row, plans.get(row.host), results.get(row.host))) for row in rows.values()
    ]
    hosts += [_card(host, partial(_of_data, plan)) for host, plan in plans.items() if host not in rows]
    reported = ReportRun(
        name=run.name,
        verb=run.verb,
        status=run.outcome,
        started=parts[0].started,
        ended=run.ended,
        controller=run.controller.rpartition(":")[0],
    )
    made = _report(hosts, title="", source=f"run {run.name}", run=reported)
    return replace(made, title=headline(made))


def _in_whole_run(row: HostRow, before: HostRow | None) -> HostRow:
    """A host of a resumed run; one on which nothing was left to do keeps the pool and wave in which it was done."""
    if before is None or row.pool or not before.pool:
        return row
    return replace(
        row, pool=before.pool, wave=before.wave, plan=before.plan, started=before.started, ended=before.ended
    )


def of_plan(path: Path) -> Report:
    """A plan as `gpunode plan -o DIR` or `gpunode plan --format json` wrote it."""
    hosts = [_card(str(host["host"]), partial(_of_data, host)) for host in _recorded(path)]
    return _report(hosts, title=f"Plan {path.parent.name if path.name == 'plan.json' else path.stem}", source=str(path))


def of_folder(folder: Path, spec_data: Mapping[str, Any]) -> Report:
    """HOST.probe, HOST/probe.txt and *.json (results of verify, plans, facts) of a folder; folders in it are pools.

    With `spec_data` the probes are also compared with that gpunode.yml.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder", fix="gpunode detect HOST… --save DIR makes one")
    found: dict[str, dict[str, Any]] = {}
    desired = DesiredState(spec_data, to_run=False)
    for path in sorted([*folder.rglob("*.probe"), *folder.rglob("probe.txt")]):
        own = path.parent if path.name == "probe.txt" else path.with_suffix("")
        pool = _pool(own, folder)
        name = own.name if own.name not in found else f"{pool}/{own.name}"
        said = _or_error(own.name, partial(_of_probe, path, own.name, desired, compare=bool(spec_data)))
        found[name] = {"pool": pool, **said}
    for path in sorted(folder.rglob("*.json")):
        if path.name == "manifest.json" and path.with_name("plan.json").exists():
            continue
        for host in _recorded(path):
            reported = _or_error(str(host["host"]), partial(_reported, host, desired.knowledge, path))
            known = found.setdefault(host["host"], {"pool": _pool(path, folder)})
            known |= {key: value for key, value in reported.items() if value or key not in known}
    if not found:
        raise InputError(f"{folder}: neither a probe nor *.json in it", fix="gpunode detect HOST… --save DIR")
    hosts = [_card(name, partial(make_host, name, **reported)) for name, reported in found.items()]
    return _report(hosts, title=folder.resolve().name, source=f"folder {folder}")


def _report(hosts: list[ReportHost], *, title: str, source: str, run: ReportRun | None = None) -> Report:
    return make_report(hosts, title=title, made=now(), version=__version__, source=source, run=run)


# ---------------------------------------------------------------- one host


def _card(name: str, make: Callable[[], ReportHost]) -> ReportHost:
    """The card of a host; where none can be made of what was found, one that says so."""
    host = in_its_share(name, make)
    return make_host(name, plan={"error": error_data(host)}) if isinstance(host, GpunodeError) else host


def _of_row(row: HostRow, plan: Mapping[str, Any] | None, result: Mapping[str, Any] | None) -> ReportHost:
    """A host of a run; one without a pool had nothing to be done on it, or nothing could be."""
    last = {"exit": row.exit, "message": row.message, "fix": row.fix}
    if not row.pool:
        plan = plan or {}
        return make_host(row.host, pool=plan.get("pool", ""), probe=_seen(plan), plan=plan, result=last)
    run = HostRun(
        wave=row.wave,
        state=row.state,
        exit=row.exit,
        step=row.step,
        started=row.started,
        ended=row.ended,
        changed=tuple((result or {}).get("changed", ())),
    )
    seen = _seen(result) or _seen(plan)
    ended = {**(result or {}), **(last if row.message else {})}
    return make_host(row.host, pool=row.pool, probe=seen, plan=plan, result=ended, run=run)


def _of_data(host: Mapping[str, Any]) -> ReportHost:
    """A host of a plan's JSON."""
    return make_host(host["host"], pool=host.get("pool", ""), probe=_seen(host), plan=host)


def _pool(path: Path, folder: Path) -> str:
    """train of DIR/train/gpu1, "" of DIR/gpu1."""
    return "" if folder in (path, path.parent) else str(path.parent.relative_to(folder))


def _of_probe(path: Path, name: str, desired: DesiredState, *, compare: bool) -> dict[str, Any]:
    """What a saved probe says, for make_host; of one that cannot be read the error."""
    try:
        [found] = detect(Targets(probes=(path,)))
        assert found.facts
        expected = Expected(spec=desired.spec({}, host=name).verify) if compare else None
        said: dict[str, Any] = {"probe": see(found.facts, desired.knowledge, expected)}
    except InputError as error:
        return {"plan": {"error": error_data(error) | {"exit": 1}}}
    try:
        return said | ({"plan": plan_data(desired.plan(name, found.facts).plan)} if compare else {})
    except GpunodeError as error:
        return said | {"plan": {"error": error_data(error)}}


def _or_error(name: str, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is read of a host, for make_host, or the error that stood in the way.  Raises InputError."""
    found = in_its_share(name, read)
    if isinstance(found, InputError):
        raise found  # the file is none of ours
    return {"plan": {"error": error_data(found)}} if isinstance(found, GpunodeError) else found


def _reported(host: Mapping[str, Any], knowledge: Knowledge, path: Path) -> dict[str, Any]:
    """What a host's JSON says, for make_host."""
    from gpunode.core.facts import facts_from_data

    kind = next((kind for key, kind in _KEYS.items() if host.get(key) is not None), "")
    if not kind:
        raise InputError(f"{path}: nothing is known of {host['host']}", expected=_EXPECTED)
    if kind == "facts":
        return {"probe": see(facts_from_data(host["facts"]), knowledge)}
    reported = {kind: host, "probe": _seen(host)}
    return reported | ({"pool": host["pool"]} if host.get("pool") else {})


def _seen(data: Mapping[str, Any] | None) -> ProbeSummary | None:
    return seen_from(data["found"]) if data and data.get("found") else None


# ---------------------------------------------------------------- files


def _recorded(path: Path) -> list[dict[str, Any]]:
    """The hosts of a plan, with what was found on them; [] where there is no such file."""
    if not path.is_file():
        return []
    data, found = _json(path), _lines(path.with_name(FOUND)) if path.name == "plan.json" else {}
    return [found.get(host["host"], {}) | host for host in (*_hosts(data, path), *data.get("errors", ()))]


def _lines(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each host."""
    rows = (row for row in json_lines(path) if isinstance(row, dict) and isinstance(row.get("host"), str))
    return {row["host"]: row for row in rows}


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        stated = error.strerror if isinstance(error, OSError) else f"this is no JSON: {error}"
        fix = "name a run, a plan's folder, or --from DIR with saved probes and results"
        raise InputError(f"{path}: {stated}", expected=_EXPECTED, fix=fix) from error
    return data if isinstance(data, dict) else {}


def _hosts(data: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    hosts = data.get("hosts")
    if not isinstance(hosts, list) or not all(isinstance(h, dict) and "host" in h for h in hosts):
        raise InputError(f"{path}: names no hosts", expected=_EXPECTED)
    return hosts
