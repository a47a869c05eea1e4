"""gpunode provision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import cluster_options, confirm, format_option, spec_option, target_options, worst_exit
from gpunode.cli.image import expected_options, image_options
from gpunode.cli.lazy import Verb
from gpunode.cli.lock import locked_option
from gpunode.cli.output import Styled, echo, fitted, print_json, terminal_width
from gpunode.cli.plan import detail_option, plan_summary, show_drains, show_plans, step_titles
from gpunode.cli.rollout import rollout_options, with_log

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpunode.core.model import HostResult
    from gpunode.core.plan.lockfile import Lock
    from gpunode.core.report.text import Detail
    from gpunode.edge.detect import Targets
    from gpunode.edge.fleet.draining import Connect
    from gpunode.edge.fleet.events import EventLog
    from gpunode.edge.fleet.host_plan import HostPlan


_ARGUMENTS = "gpunode.arguments"  # key of click's Context.meta: what follows `--`


class _WithArguments(Verb):
    """What follows `--` is for ansible-playbook; click would take it for hosts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        if words := args[at + 1 :]:
            from gpunode.edge.ansible.runner import check_arguments

            check_arguments(words)
            ctx.meta[_ARGUMENTS] = words
        return rest


@click.command(
    cls=_WithArguments,
    epilog="Examples:\n\n\b\n"
    "  gpunode provision -i inventory/hosts.yml\n"
    "  gpunode provision -i inventory/hosts.yml --check --diff\n"
    "  gpunode provision review/                  (a folder that plan -o wrote)\n"
    "  gpunode provision --lab --yes              (a throw-away node on this machine)\n"
    "  gpunode provision --local --for-gpu 10de:2330 --no-load   (an image, or a server before its GPUs come)\n"
    "  gpunode provision -i hosts.yml -- -vv      (arguments for ansible-playbook)\n\n"
    "Exit codes: 0 done or nothing to do, 1 failed, 2 usage, 3 differences (--check, stale plan) or no GPU, "
    "4 unreachable, 5 refused, 130 declined.",
)
@target_options
@spec_option
@image_options
@expected_options
@locked_option
@rollout_options
@cluster_options
@click.option(
    "--lab", "use_lab", is_flag=True, help="Provision the lab's nodes (gpunode lab up), starting one if none is up."
)
@click.option(
    "--check-repositories/--no-check-repositories",
    default=True,
    show_default=True,
    help="Look every package up in the index of its repository first, where this machine reaches it.",
)
@click.option("--check", is_flag=True, help="Run Ansible in check mode: show what would change, change nothing.")
@detail_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@format_option("text", "json")
def provision(
    targets: Targets,
    spec_data: dict[str, Any],
    expected: dict[str, Any],
    lock: Lock | None,
    rollout: dict[str, Any],
    deadline: float,
    break_lock: bool,
    events: EventLog | None,
    connect: Connect,
    use_lab: bool,
    check_repositories: bool,
    check: bool,
    detail: Detail,
    yes: bool,
    output_format: str,
) -> int:
    """Apply gpunode.yml to the nodes: probe, plan, show, ask, run the playbook, check.

    HOST may be a folder that `gpunode plan -o` wrote: it is applied as reviewed, or refused with exit code 3 when
    a node, a file of the folder, the hosts or the steps have changed.
    """
    from dataclasses import replace

    from gpunode.cli.progress import fleet as fleet_progress
    from gpunode.cli.progress import probing
    from gpunode.core.spec.rollout import parse_rollout
    from gpunode.edge.fleet import provision as fleet
    from gpunode.edge.fleet.driver import RunOptions
    from gpunode.edge.fleet.prepare import prepare

    targets = replace(targets, break_lock=break_lock)
    if use_lab:
        from gpunode.cli.lab import target

        targets, spec_data = target(targets, spec_data)
    parse_rollout(rollout)
    with probing(output_format) as on_done:
        run = prepare(
            targets, spec_data, expected=expected, lock=lock, look_up=check_repositories, check=check, on_done=on_done
        )
    hosts = run.hosts
    if output_format == "text":
        hosts = show_plans(hosts, detail, converged=False)
        show_drains(hosts, connect)
    if targets.local and any(h.plan and h.plan.no_gpu for h in hosts):
        echo("This machine has no NVIDIA GPU. A throw-away node that has one: gpunode provision --lab", err=True)
    if any(h.plan and h.plan.steps for h in hosts) and not (yes or check):
        ask(hosts)
    with fleet_progress(output_format, step_titles(hosts)) as callbacks:
        results = fleet.provision(
            hosts,
            run.targets,
            run.desired,
            options=RunOptions(
                check=check,
                diff=detail.diff,
                arguments=tuple(click.get_current_context().meta.get(_ARGUMENTS, ())),
                rollout=rollout,
                deadline=deadline,
                cluster=connect,
            ),
            saved=run.saved,
            callbacks=with_log(callbacks, events),
        )
    show_results(results, output_format, shown={h.host for h in hosts if h.error or (h.plan and h.plan.problems)})
    return worst_exit(r.outcome for r in results)


def show_results(
    results: list[HostResult], output_format: str, *, brief: bool = False, shown: Collection[str] = ()
) -> None:
    """What came of each host: a line each, with its checks below; of many hosts, numbers and causes.

    The errors of hosts in `shown` stand above already.

    Of several hosts, and of one where it is to be brief, checks that passed are counted; with -v they are listed.

    Of a run that left hosts behind, also which, and the command to go on.
    """
    from gpunode.cli.terminal import verbosity
    from gpunode.core.errors import Exit
    from gpunode.core.printable import counted
    from gpunode.core.report.fleet import fleet_text, resume_command, unfinished_text
    from gpunode.core.report.text import MANY, checks_text, in_short, results_data

    if output_format == "json":
        run, command = resume_command(results)
        print_json({"hosts": results_data(results), **({"run": run, "go_on": command} if run else {})})
        return
    for result in results if len(results) <= MANY else ():
        mark = Styled("ok", "green") if result.ok else Styled(f"exit {Exit.of(result.outcome)}", "red")
        text = "see above" if result.host in shown else in_short(result)
        echo(f"{result.host}: ", mark, f"{',' if result.ok and result.changed else ':'} {text}")
        listed = verbosity() > 0 or (len(results) == 1 and not brief)
        checks = [one for one in result.checks if listed or one.status != "passed"]
        if checks:
            echo(fitted(checks_text(checks), terminal_width()))
        if len(checks) < len(result.checks):
            echo(
                f"  {counted(len(result.checks) - len(checks), 'check')} passed"
                + ("" if checks else "  (-v lists them)")
            )
    if len(results) > MANY:
        echo(fleet_text(results))
    if text := unfinished_text(results):
        echo(text)


def ask(hosts: list[HostPlan]) -> None:
    """Ask whether to apply the plans that were shown, with their summary."""
    fix = "read the plan above, then add --yes; nothing was touched"
    confirm("Apply?", fix=fix, before=fitted(plan_summary(hosts), terminal_width()))
