"""gpunode runs: what this controller ran, and going on with it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import (
    ASK_BECOME_PASS,
    cluster_options,
    format_option,
    secrets_option,
    sudo_password,
    worst_exit,
)
from gpunode.cli.completion import complete_runs
from gpunode.cli.output import echo, print_json
from gpunode.cli.plan import detail_option, show_drains, show_plans, step_titles
from gpunode.cli.rollout import MAX_FAILURES, run_options, with_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpunode.core.model import HostResult
    from gpunode.core.report.text import Detail
    from gpunode.edge.desired import DesiredState
    from gpunode.edge.detect import Detected, Targets
    from gpunode.edge.fleet.draining import Connect
    from gpunode.edge.fleet.events import EventLog
    from gpunode.edge.fleet.host_plan import HostPlan
    from gpunode.edge.fleet.runs import HostRow, RunRow, Runs


@click.group(
    epilog="Examples:\n\n\b\n"
    "  gpunode runs list\n"
    "  gpunode runs show last\n"
    "  gpunode runs resume last --yes\n"
    "  gpunode runs diff 20261121 last"
)
def runs() -> None:
    """Runs of this controller: requests, hosts, results.

    RUN is a run's name, the beginning of one, or `last`: the newest that was started in the current folder, else the
    newest of all, of provision, uninstall or rollback.
    """


@runs.command("list", epilog="Examples:\n\n\b\n  gpunode runs list\n  gpunode runs list --format json")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many, the newest first.")
@format_option("text", "json")
def list_runs(limit: int, output_format: str) -> int:
    """The newest runs first."""
    journal = _journal()
    rows = [(run, journal.hosts(run.name)) for run in journal.latest(limit)]
    if output_format == "json":
        print_json({"runs": [_run_data(run, hosts) for run, hosts in rows]})
        return 0
    if not rows:
        echo("no run yet: gpunode provision makes one where it has something to do")
    for run, hosts in rows:
        counts = ", ".join(f"{n} {state}" for state, n in sorted(Counter(h.state for h in hosts).items()))
        echo(f"{run.name}  {run.verb:<10} {run.outcome:<12} {counts}{f'  ({run.place})' if run.place else ''}")
    return 0


@runs.command("show", epilog="Examples:\n\n\b\n  gpunode runs show last\n  gpunode runs show 20261122T081500Z-1f2e3d")
@click.argument("name", metavar="[RUN]", default="last", shell_complete=complete_runs)
@click.option("--hosts", "every", is_flag=True, help="A line for each host, however many they are.")
@format_option("text", "json")
def show(name: str, every: bool, output_format: str) -> int:
    """One run, host by host; of many hosts the counts, causes of failures, and the slowest."""
    from gpunode.core.report.fleet import run_text
    from gpunode.core.report.text import MANY

    journal = _journal()
    run = journal.get(name)
    hosts = journal.hosts(run.name)
    if output_format == "json":
        print_json(_run_data(run, hosts, full=True))
        return 0
    echo(f"{run.name}: {run.verb}, {run.outcome}, {run.started} to {run.ended or '…'}, by {run.process}")
    for what, text in (("of", run.place), ("it continues", run.resumes)):
        if text:
            echo(f"{what} {text}")
    few = every or len(hosts) <= MANY
    if not few:
        echo(run_text({h.host: h.state for h in hosts}, [_result(h) for h in hosts if h.exit is not None]))
    for host in hosts if few else ():
        stated = _result(host).sentence or (f"at: {host.step}" if host.step else "")
        place = f"{host.pool}/{host.wave + 1}" if host.pool else "-"
        echo(f"  {host.host:<24} {place:<8} {host.state:<8} {stated}")
        for note in host.notes:
            echo(f"    note: {note}")
    logs = {host.log for host in hosts if host.log}
    for log in sorted(logs):
        echo(f"logs: {log}")
    if run.outcome != "done" and run.verb == "provision":
        echo(f"resume: gpunode runs resume {run.name}")
    return 0


@runs.command("diff", epilog="Examples:\n\n\b\n  gpunode runs diff 20261121 last")
@click.argument("first", metavar="RUN", shell_complete=complete_runs)
@click.argument("second", metavar="[RUN]", default="last", shell_complete=complete_runs)
@format_option("text", "json")
def diff(first: str, second: str, output_format: str) -> int:
    """Differences between two runs: hosts, plans, results."""
    journal = _journal()
    old, new = journal.get(first), journal.get(second)
    before, after = ({h.host: h for h in journal.hosts(run.name)} for run in (old, new))
    rows = [
        {"host": host, "first": _end(before.get(host)), "second": _end(after.get(host))}
        for host in sorted(before.keys() | after.keys())
        if _end(before.get(host)) != _end(after.get(host))
    ]
    if output_format == "json":
        print_json({"first": old.name, "second": new.name, "hosts": rows})
        return 0
    echo(f"{old.name} → {new.name}: {len(rows)} hosts differ")
    for row in rows:
        echo(f"  {row['host']:<24} {_words(row['first'])} → {_words(row['second'])}")
    return 0


@runs.command(
    "resume",
    epilog="Examples:\n\n\b\n  gpunode runs resume last\n  gpunode runs resume 20261122T081500Z-1f2e3d --yes\n"
    "  gpunode runs resume last --limit '!gpu7' --max-failures 2",
)
@click.argument("name", metavar="[RUN]", default="last", shell_complete=complete_runs)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@ASK_BECOME_PASS
@click.option("--limit", metavar="HOSTS", help="Only these of its hosts: a pattern of Ansible, or names.")
@MAX_FAILURES
@secrets_option
@detail_option
@run_options
@cluster_options
@format_option("text", "json")
def resume(
    name: str,
    yes: bool,
    ask_become_pass: bool,
    limit: str | None,
    max_failures: str | None,
    read_spec: Callable[[], dict[str, Any]],
    detail: Detail,
    deadline: float,
    break_lock: bool,
    events: EventLog | None,
    connect: Connect,
    output_format: str,
) -> int:
    """Continue a run of provision on its hosts that are not done: they are probed and planned again.

    Hosts that failed go last. A run that continued another one stands for it: all hosts that are left are tried.
    """
    import tomli

    from gpunode.cli.progress import fleet as fleet_progress
    from gpunode.cli.progress import probing
    from gpunode.cli.provision import ask, show_results
    from gpunode.core.errors import RefusedError
    from gpunode.core.plan.lockfile import parse_lock
    from gpunode.core.secrets import is_recorded
    from gpunode.edge.desired import DesiredState, with_secrets
    from gpunode.edge.detect import one_name_each, probe
    from gpunode.edge.fleet import provision as fleet
    from gpunode.edge.fleet import workflow
    from gpunode.edge.fleet.driver import RunOptions

    journal = _journal()
    run = journal.get(name, "resume")
    if run.outcome == "running":
        raise RefusedError(f"run {run.name} is still at work ({run.process})", fix=run.ways_out)
    if run.resumes:
        run = journal.get(run.resumes)
    left = {host.host for host in journal.hosts(run.name) if host.state != "done"}
    if not left:
        if output_format == "json":
            print_json({"hosts": []})
        else:
            echo(f"{run.name}: every host is done")
        return 0
    targets = _targets(run, limit, ask_become_pass=ask_become_pass, break_lock=break_lock)
    stated = f"of run {run.name}"
    text = run.request.get("lock")
    lock = None if text is None else parse_lock(tomli.loads(text), f"the lock {stated}")
    recorded = run.request["spec"]
    given = read_spec() if is_recorded(recorded) else {}
    desired = DesiredState(with_secrets(recorded, given), source=f"the spec {stated}", lock=lock)
    if output_format == "text":
        _say_changed(run, desired, read_spec)
    known = _known(run, left, targets, limit)
    with probing(output_format) as on_done:
        found = one_name_each(probe(known, targets, on_done=on_done))
    hosts = workflow.plan_all(found, targets, desired)
    if output_format == "text":
        hosts = show_plans(hosts, detail)
        show_drains(hosts, connect)
    if any(h.plan and h.plan.steps for h in hosts) and not yes:
        ask(hosts)
    with fleet_progress(output_format, step_titles(hosts)) as callbacks:
        results = fleet.provision(
            hosts,
            targets,
            desired,
            options=RunOptions(
                arguments=tuple(run.request["arguments"]),
                rollout=run.request["rollout"] | ({"max_failures": max_failures} if max_failures else {}),
                resumes=run.name,
                last=_failed(journal, run),
                deadline=deadline,
                diff=detail.diff,
                cluster=connect,
            ),
            callbacks=with_log(callbacks, events),
        )
    _note_done(journal, run, hosts, results)
    show_results(results, output_format)
    return worst_exit(result.outcome for result in results)


def _say_changed(run: RunRow, desired: DesiredState, read_spec: Callable[[], dict[str, Any]]) -> None:
    """That gpunode.yml is another one by now: it does not count for a run that began with what it said then."""
    from gpunode.core.errors import GpunodeError
    from gpunode.core.secrets import seal_spec

    try:
        now = seal_spec(read_spec(), recorded=True)[0]
    except GpunodeError:  # it is not needed
        return
    of_options = ("verify", "image")  # what a command line may have said, too
    keys = sorted({*now, *desired.spec_data} - {*of_options}) if now else []
    if changed := [key for key in keys if now.get(key) != desired.spec_data.get(key)]:
        echo(
            f"gpunode.yml has changed since run {run.name} began ({', '.join(changed)}): the run goes on with what it "
            "began with; gpunode provision applies gpunode.yml as it is now",
            err=True,
        )


def _targets(run: RunRow, limit: str | None, *, ask_become_pass: bool, break_lock: bool) -> Targets:
    """The targets of the run, with --limit where there is an inventory."""
    from gpunode.edge.detect import SETTLE, Targets

    password = sudo_password(asked=ask_become_pass)
    asked: dict[str, Any] = dict(run.request["where"])
    for key in ("hosts", "inventory", "probes", "vault_password_files"):
        asked[key] = tuple(asked[key])
    if limit and asked["inventory"]:
        asked["limit"] = limit
    return Targets(**(asked | {"break_lock": break_lock, "settle": SETTLE}), become_password=password)


def _known(run: RunRow, left: set[str], targets: Targets, limit: str | None) -> list[Detected]:
    """The hosts to resume: of those that are left the ones in the inventory and in --limit."""
    from gpunode.core.errors import InputError, RefusedError
    from gpunode.edge.detect import find_hosts

    known = [host for host in find_hosts(targets) if host.host in left]
    if limit and not targets.inventory:
        known = [host for host in known if host.host in limit.split(",")]
    if limit and not known:
        raise InputError(
            f"--limit {limit}: none of the hosts that run {run.name} left", expected=", ".join(sorted(left))
        )
    if not limit and (gone := sorted(left - {host.host for host in known})):
        echo(f"not in the inventory any more, and left as they are: {', '.join(gone)}", err=True)
    if not known:
        raise RefusedError(f"no host that run {run.name} left is in its inventory any more", fix="gpunode provision")
    return known


def _failed(journal: Runs, run: RunRow) -> frozenset[str]:
    """Hosts of the run that failed when they were last tried, an interrupt not counted."""
    from gpunode.core.errors import Exit

    newest = {row.host: row for part in (run, *journal.resumed_by(run)) for row in journal.hosts(part.name)}
    return frozenset(h for h, row in newest.items() if row.state == "failed" and row.exit != Exit.INTERRUPTED)


def _note_done(journal: Runs, run: RunRow, hosts: list[HostPlan], results: list[HostResult]) -> None:
    """A host that needed nothing any more is done with the resumed run, too."""
    from dataclasses import replace

    planned = {h.host: h.planned for h in hosts if h.planned}
    journal.keep({p.plan.facts_hash: p.facts for p in planned.values()})
    later = journal.hosts(next((r.run for r in results if r.run), ""))
    states = {host: p.plan.facts_hash for host, p in planned.items()} | {row.host: row.found for row in later}
    journal.ended(run.name, [replace(r, message=f"resumed: {r.message}") for r in results if r.state == "done"], states)


def _journal() -> Runs:
    from gpunode.edge.fleet.runs import Runs

    return Runs()


def _run_data(run: RunRow, hosts: list[HostRow], *, full: bool = False) -> dict[str, Any]:
    from dataclasses import asdict

    data = {k: v for k, v in asdict(run).items() if k != "request"} | {"status": run.outcome, "place": run.place}
    data["counts"] = dict(Counter(host.state for host in hosts))
    return data | ({"request": dict(run.request), "hosts": [asdict(host) for host in hosts]} if full else {})


def _result(host: HostRow) -> HostResult:
    """A host that ended, with the `seconds` that it took."""
    from gpunode.core.errors import Exit
    from gpunode.core.model import HostResult
    from gpunode.core.report.model import between

    took, outcome = between(host.started, host.ended) or 0, Exit(host.exit or 0).outcome
    return HostResult(host=host.host, outcome=outcome, message=host.message, fix=host.fix, seconds=took)


def _end(host: HostRow | None) -> dict[str, Any] | None:
    return {"plan": host.plan, "state": host.state, "exit": host.exit} if host else None


def _words(end: Any) -> str:
    return f"{end['state']} (plan {end['plan'][:8]})" if end else "not in it"
