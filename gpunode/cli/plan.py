"""gpunode plan."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import (
    PROBES,
    Command,
    NewFile,
    cluster_options,
    format_option,
    options,
    show_error,
    spec_option,
    target_options,
    worst_exit,
)
from gpunode.cli.image import allow_option, image_options
from gpunode.cli.lazy import Verb
from gpunode.cli.lock import locked_option
from gpunode.cli.output import echo, fitted, print_json, terminal_width
from gpunode.core.errors import GpunodeError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpunode.core.model import Plan
    from gpunode.core.plan.lockfile import Lock
    from gpunode.core.report.drains import DrainPreview
    from gpunode.core.report.text import Detail
    from gpunode.edge.detect import Targets
    from gpunode.edge.fleet.draining import Connect
    from gpunode.edge.fleet.host_plan import HostPlan

_DIFF = click.option("--diff", is_flag=True, help="Show unified diffs of configuration files (secrets masked).")


def detail_option(command: Command) -> Command:
    """The command gets `detail`, what its plans are shown with: by --diff, and reasons and their sources by -v."""

    @functools.wraps(command)
    def with_detail(*args: Any, diff: bool, **given: Any) -> Any:
        from gpunode.cli.terminal import verbosity
        from gpunode.core.report.text import Detail

        return command(*args, detail=Detail(why=verbosity() > 0, sources=verbosity() > 1, diff=diff), **given)

    return options(_DIFF)(with_detail)  # type: ignore[return-value]


class _PlanFolder(NewFile):
    """The folder of -o: a new one, an empty one, or that of an older plan."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from gpunode.core.printable import names
        from gpunode.edge.saved import not_of

        folder = super().convert(value, param, ctx)
        if others := not_of(folder):
            raise InputError(f"-o {folder}: this folder has other files: {names(others)}", fix="name a new folder")
        return folder


@click.command(
    cls=Verb,
    epilog="Examples:\n\n\b\n"
    "  gpunode plan -i inventory/hosts.yml -v --diff\n"
    "  gpunode plan gpu1 gpu2 -c gpunode.yml -o review/\n"
    "  gpunode plan --probe saved/gpu1.probe --format json\n"
    "  gpunode plan image1 --for-gpu 10de:2330 --no-load\n\n"
    "Exit codes: 0 nothing to do, 3 steps pending or no GPU, 4 a host is unreachable, 5 refused.",
)
@target_options
@spec_option
@image_options
@allow_option
@locked_option
@PROBES
@click.option(
    "--check-repositories/--no-check-repositories",
    default=None,
    help="Look every package up in the index of its repository, where this machine reaches it; the default with -o, "
    "and where a node cannot install them.",
)
@detail_option
@cluster_options
@click.option(
    "-o",
    "--output",
    type=_PlanFolder(path_type=Path, file_okay=False),
    help="Write plan, inventory and playbook there: to review, to keep, to run.",
)
@format_option("text", "json")
def plan(
    targets: Targets,
    spec_data: dict[str, Any],
    expected: dict[str, Any],
    lock: Lock | None,
    check_repositories: bool | None,
    detail: Detail,
    output: Path | None,
    connect: Connect,
    output_format: str,
) -> int:
    """Show what provision would do, step by step; hosts with the same steps are shown once.

    -v adds the reasons, -vv where they come from. --format json and -o have everything.
    """
    from gpunode.cli.progress import probing
    from gpunode.core.spec import merge_spec
    from gpunode.edge.desired import DesiredState
    from gpunode.edge.fleet import workflow

    look_up = True if output and check_repositories is None else check_repositories
    desired = DesiredState(merge_spec(spec_data, expected), to_run=bool(output), lock=lock, look_up=look_up)
    with probing(output_format) as on_done:
        hosts = workflow.plan(targets, desired, on_done=on_done)
    if not targets.probes:  # those may be of any day
        _name_others_at_work(hosts)
    usable = any(h.plan and not h.plan.problems for h in hosts)
    if output and usable:
        workflow.write_plan(output, hosts, targets, desired)
    if output_format == "json":
        from gpunode.edge.report_data import plans_data

        print_json(
            {"hosts": plans_data(hosts, desired, drains=[] if targets.probes else drain_previews(hosts, connect))}
        )
    else:
        hosts = show_plans(hosts, detail)
        if not targets.probes:
            show_drains(hosts, connect)
        if (text := plan_summary(hosts)) and len(hosts) > 1:
            echo(text)
    if output and not usable:
        echo(f"not written: {output}: no host has a plan that can be applied", err=True)
    elif output and output_format == "text":
        from gpunode.edge.report_data import FOUND

        echo(f"written: {output}: {', '.join(sorted((*workflow.FILES, FOUND)))}")
        echo(f"next: gpunode provision {output}")
    return worst_exit(h.outcome for h in hosts)


def show_plans(hosts: list[HostPlan], detail: Detail, *, converged: bool = True) -> list[HostPlan]:
    """Plans on stdout, each class of hosts once; hosts in error on stderr, of many among the plans, by cause.

    Without `converged` those with nothing to do are left to the results, which name their warnings, too.

    Returns the hosts; one whose plan cannot be shown is in error, since nobody could read it.
    """
    from functools import partial

    from gpunode.core.report.fleet import plan_classes, plans_text
    from gpunode.core.report.text import MANY, class_text
    from gpunode.edge.share import in_its_share

    plans = [h.plan for h in hosts if h.plan]
    versions = _versions(hosts)
    if len(hosts) > MANY:
        errors = [h.error.of_host(h.host) for h in hosts if h.error]
        together = in_its_share("", lambda: plans_text(plans, errors, chosen=versions, detail=detail))
        if not isinstance(together, GpunodeError):
            echo(together)
            return hosts
    broken: dict[str, GpunodeError] = {h.host: h.error for h in hosts if h.error}

    def show(alike: Sequence[Plan], host: str = "") -> GpunodeError | None:
        chosen = versions.get(alike[0].host, "")
        text = in_its_share(host, partial(class_text, alike, chosen=chosen, detail=detail))
        if isinstance(text, GpunodeError):
            return text
        echo(text if detail.diff else fitted(text, terminal_width()))
        return None

    for alike in plan_classes(plans, versions):
        if not converged and not any(plan.steps or plan.problems for plan in alike):
            continue
        for one in alike if show(alike) else ():  # that cannot be shown together
            if error := show([one], one.host):
                broken[one.host] = error
    for host, error in broken.items():
        show_error(error, host=host)
    return [replace(h, planned=None, error=broken[h.host]) if h.host in broken else h for h in hosts]


def _name_others_at_work(hosts: list[HostPlan]) -> None:
    """Before the plans: where a run is at work, which provision would refuse."""
    from gpunode.edge.fleet.prepare import runs_at_work

    for host, text in runs_at_work([h.detected for h in hosts]).items():
        echo(f"{host}: warning: {text}; plan again when it has ended: provision refuses the node until then", err=True)


def drain_previews(hosts: list[HostPlan], connect: Connect) -> list[DrainPreview]:
    """What draining the hosts that are nodes of a cluster would do now."""
    from gpunode.edge.fleet.draining import NodeChange, NodeDrains
    from gpunode.edge.fleet.worker import Worker

    changes = {h.host: NodeChange.of(h.planned) for h in hosts if h.planned and not h.planned.plan.problems}
    return NodeDrains(connect, lambda text: None, Worker()).previews(changes)


def show_drains(hosts: list[HostPlan], connect: Connect) -> None:
    """Below the plans: which nodes are drained first, and what that would meet; which hosts are measured at the end."""
    from gpunode.core.printable import names
    from gpunode.core.report.drains import drains_text

    if previews := drain_previews(hosts, connect):
        echo(fitted(drains_text(previews), terminal_width()))
    if any(h.planned and h.planned.spec.rollout.accept != "off" for h in hosts):
        from gpunode.edge.fleet.provision import to_measure

        if measured := to_measure(hosts):
            echo(fitted(f"Measured before they count as done (rollout.accept): {names(measured)}", terminal_width()))


def step_titles(hosts: list[HostPlan]) -> dict[str, list[str]]:
    """The steps of each host that has some, as the plan numbers them, for the progress of a run."""
    from gpunode.core.report.text import news

    return {h.host: [step.title for step in news(h.plan)] for h in hosts if h.plan and h.plan.steps}


def plan_summary(hosts: list[HostPlan]) -> str:
    """What is to be done on all hosts, in a line; "" when nothing is."""
    from gpunode.core.report.text import summary_text

    plans = [h.plan for h in hosts if h.plan]
    return summary_text(plans, _versions(hosts)) if any(plan.steps for plan in plans) else ""


def _versions(hosts: list[HostPlan]) -> dict[str, str]:
    from gpunode.core.report.text import chosen_text

    return {h.host: chosen_text(h.planned.solution, h.planned.facts) for h in hosts if h.planned}
