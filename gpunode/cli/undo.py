"""gpunode uninstall, gpunode rollback: a node as it was, by its own journal."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli import common
from gpunode.cli.common import cluster_options, format_option, late_spec_option, show_errors, target_options, worst_exit
from gpunode.cli.completion import complete_run_names
from gpunode.cli.lazy import Verb
from gpunode.cli.output import Styled, echo, print_json
from gpunode.cli.rollout import rollout_options, with_log
from gpunode.core.errors import Exit, GpunodeError, InputError
from gpunode.core.undo.scope import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from gpunode.core.model import Changed, HostResult
    from gpunode.core.undo.journal import Run
    from gpunode.edge.ansible.runner import Event
    from gpunode.edge.detect import Targets
    from gpunode.edge.fleet.draining import Connect
    from gpunode.edge.fleet.events import EventLog

FEW = 8  # lines that are shown without headings
_CODES = """Exit codes: 0 done or nothing to do, 1 failed, 2 usage, 3 something to undo (--check), 4 unreachable,
5 refused, 130 declined."""
_HOW = common.options(
    click.option("--check", is_flag=True, help="Show what would be undone, change nothing."),
    click.option("--diff", is_flag=True, help="Show changes of files as diffs (secrets masked)."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask."),
    *(late_spec_option, rollout_options, cluster_options, format_option("text", "json")),
)


class Parts(click.Choice[str]):
    """One of them, or several with commas between."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return tuple(super(Parts, self).convert(word.strip(), param, ctx) for word in value.split(","))


@click.command(
    cls=Verb,
    epilog="Examples:\n\n\b\n"
    "  gpunode uninstall -i inventory/hosts.yml --check --diff\n"
    "  gpunode uninstall -i inventory/hosts.yml\n"
    "  gpunode uninstall root@node7 --part toolkit --part runtime --yes\n"
    "  gpunode uninstall --local\n\n" + _CODES,
)
@target_options
@click.option("--part", "parts", multiple=True, type=Parts(PARTS), help="Only this part. Repeatable.")
@_HOW
def uninstall(targets: Targets, parts: tuple[tuple[str, ...], ...], output_format: str, **how: Any) -> int:
    """Remove everything that gpunode installed or changed: packages, files, units, modules, settings.

    What others have changed since stays, and is named.
    """
    what = {"verb": "uninstall"} | ({"parts": [*chain(*parts)]} if parts else {})
    return _undo(targets, what, output_format, **how)


@click.command(
    cls=Verb,
    epilog="Examples:\n\n\b\n"
    "  gpunode rollback -i inventory/hosts.yml --list\n"
    "  gpunode rollback -i inventory/hosts.yml                    (the last run)\n"
    "  gpunode rollback -i inventory/hosts.yml --to 20261122T013821Z-1f2e3d --check\n"
    "  gpunode rollback root@node7 --to 2026-11-22T01:00:00Z --yes\n\n" + _CODES,
)
@target_options
@click.option(
    "--to",
    metavar="RUN",
    shell_complete=complete_run_names,
    help="The run to return to (the beginning of its name will do), or a time (default: the one before the last).",
)
@click.option("--list", "show_runs", is_flag=True, help="Show the runs in the journals, and change nothing.")
@_HOW
def rollback(targets: Targets, to: str | None, show_runs: bool, output_format: str, **how: Any) -> int:
    """Undo the last run, or all runs after an earlier one: the node is in the state after that run."""
    if show_runs:
        return _show_runs(targets, output_format)
    if run := next((host for host in targets.hosts if re.fullmatch(r"last|\d{8}T\d{6}Z.*", host)), ""):
        fix = "leave it out: the last run is undone by default" if run == "last" else f"--to {run}"
        raise InputError(f"{run} is a run, and no host", fix=fix)
    what = {"verb": "rollback"} | ({"to": to} if to else {})
    return _undo(targets, what, output_format, **how)


def _undo(
    targets: Targets,
    what: dict[str, Any],
    output_format: str,
    *,
    check: bool,
    diff: bool,
    yes: bool,
    read_spec: Callable[[], dict[str, Any]],
    rollout: dict[str, Any],
    deadline: float,
    break_lock: bool,
    events: EventLog | None,
    connect: Connect,
) -> int:
    """Show what it would be, ask, do it; with --yes there is nothing to wait for, and it is done at once."""
    from dataclasses import replace

    from gpunode.cli.progress import fleet as fleet_progress
    from gpunode.edge.desired import DesiredState
    from gpunode.edge.fleet.driver import RunCallbacks, RunOptions
    from gpunode.edge.fleet.undo import undo

    spec_data = {} if check else read_spec()
    targets = replace(targets, break_lock=break_lock)
    how = RunOptions(diff=diff, rollout=rollout, deadline=deadline, cluster=connect)
    found: list[HostResult] = []
    if check or not yes:
        shown: set[str] = set()

        def at_once(result: HostResult) -> None:
            """A host that never answers keeps no other from the screen."""
            if output_format == "text" and _is_good(result):
                _show_host(result, done=False)
                shown.add(result.host)

        callbacks = RunCallbacks(result=at_once)
        found = undo(targets, what, options=replace(how, check=True), callbacks=callbacks)
        if check or not any(result.changed for result in found):
            _show(found, output_format, done=False, shown=shown)
            _next(found, output_format, what)
            return worst_exit(result.outcome for result in found)
        if output_format == "text":
            _show(found, output_format, done=False, shown=shown)
        _ask(found)
    with fleet_progress(output_format) as callbacks:

        def event(event: Event) -> None:  # why a host failed its result says
            callbacks.event(replace(event, message=""))

        quiet = replace(callbacks, event=event)
        results = undo(
            targets,
            what,
            desired=DesiredState(spec_data),
            options=replace(how, diff=diff and yes),
            callbacks=with_log(quiet, events),
            shown=found,
        )
    _show(results, output_format, done=True)
    _next(results, output_format, what)
    return worst_exit(result.outcome for result in results)


def _next(results: list[HostResult], output_format: str, what: dict[str, Any]) -> None:
    """The command that follows, where there is one."""
    if output_format != "text":
        return
    parts = (f" --part {part}" for part in what.get("parts", ()))
    verb = "".join((what["verb"], *parts, f" --to {what['to']}" if "to" in what else ""))
    bad = [result for result in results if result.outcome not in ("ok", "pending", "invalid")]
    if bad and all(result.outcome == "unreachable" for result in bad):
        echo(f"next: gpunode {verb} again when they can be reached")
    elif bad:
        echo(f"next: gpunode doctor shows causes on hosts that failed; gpunode {verb} goes on where it stopped")
    elif not all(result.started for result in results):
        echo(f"next: gpunode {verb} goes on with the hosts that were not started")
    elif any(result.outcome == "pending" for result in results):
        echo(f"next: gpunode {verb} without --check does it, and asks first")
    elif any(result.changed for result in results):
        echo(f"next: gpunode {'detect' if what['verb'] == 'uninstall' else 'verify'} shows these hosts as they are now")


def _show(results: list[HostResult], output_format: str, *, done: bool, shown: Collection[str] = ()) -> None:
    """The results, but for those of the hosts that are `shown`."""
    from gpunode.core.report.fleet import causes
    from gpunode.core.report.text import MANY, results_data

    if output_format == "json":
        print_json({"hosts": results_data(results)})
        return
    bad = [result for result in results if not _is_good(result)]
    for result in results:
        if result.host not in shown and (_is_good(result) or len(bad) <= MANY):
            _show_host(result, done=done)
    if len(bad) > MANY:
        echo("\n".join([f"{len(bad)} hosts failed:", *causes(bad)]))


def _show_host(result: HostResult, *, done: bool) -> None:
    mark = Styled("ok", "green") if _is_good(result) else Styled(f"exit {Exit.of(result.outcome)}", "red")
    echo(f"{result.host}: ", mark, f": {result.sentence}")
    _show_changes(result.changed, done=done)
    for note in result.notes:
        echo(f"  note: {note}")
    for text in result.diffs:
        echo("".join(f"  {line}\n" for line in text.splitlines()), nl=False)


def _is_good(result: HostResult) -> bool:
    return result.started and result.outcome in ("ok", "pending")


def _show_changes(changed: tuple[Changed, ...], *, done: bool) -> None:
    """Few lines as they come, many by kind; all in one form: «would remove …», or «removed …»."""
    from gpunode.core.report.text import change_groups, change_sentence

    def lines(changes: Iterable[Changed], indent: str) -> str:
        return "".join(f"{indent}{change_sentence(one, done=done)}\n" for one in changes)

    groups = change_groups(changed)
    if len(changed) <= FEW or len(groups) == 1:
        echo(lines(changed, "  "), nl=False)
        return
    for name, changes in groups.items():
        echo(f"  {name} ({len(changes)})")
        echo(lines(changes, "    "), nl=False)


def _ask(found: list[HostResult]) -> None:
    from gpunode.core.printable import counted
    from gpunode.core.report.text import counted_changes

    hosts = [result for result in found if result.changed]
    total = counted_changes(one for result in hosts for one in result.changed)
    fix = "read what would be undone, then add --yes; nothing was changed"
    common.confirm(f"Undo this on {counted(len(hosts), 'host')} ({total})?", fix=fix)


def _show_runs(targets: Targets, output_format: str) -> int:
    from dataclasses import asdict

    from gpunode.core.printable import counted
    from gpunode.edge.fleet.standing import list_runs

    def show(host: str, runs: list[Run] | GpunodeError) -> None:
        if output_format != "text" or isinstance(runs, GpunodeError):
            return
        echo(f"{host}: {counted(len(runs), 'run')}")
        for run in runs:
            what = run.what or " ".join(run.parts) or "nothing"
            echo(f"  {run.name}  {run.at}  {what}{'' if run.finished else f' · {run.state}'}")

    found = list_runs(targets, show)
    errors = [(host.host, runs) for host, runs in found if isinstance(runs, GpunodeError)]
    if output_format == "json":
        data = (
            {"error": runs.what} if isinstance(runs, GpunodeError) else {"runs": [asdict(run) for run in runs]}
            for _, runs in found
        )
        print_json({"hosts": [{"host": host.host, **row} for (host, _), row in zip(found, data, strict=True)]})
    else:
        show_errors(errors)
    return worst_exit(error.outcome for _, error in errors)
