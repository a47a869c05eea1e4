"""gpunode plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import PROBES, format_option, show_error, spec_option, target_options, with_probes, worst_exit
from gpunode.cli.image import image_options
from gpunode.cli.lazy import Verb
from gpunode.cli.lock import locked_option
from gpunode.cli.output import echo, print_json

if TYPE_CHECKING:
    from gpunode.core.plan.lockfile import Lock
    from gpunode.edge.detect import Targets
    from gpunode.edge.fleet.host_plan import HostPlan


@click.command(
    cls=Verb,
    epilog="Examples:\n\n\b\n"
    "  gpunode plan -i inventory/hosts.yml --diff\n"
    "  gpunode plan gpu1 gpu2 -c gpunode.yml -o review/\n"
    "  gpunode plan --probe saved/gpu1.probe --format json\n"
    "  gpunode plan image1 --for-gpu 10de:2330 --no-load\n"
    "  gpunode plan -i inventory/hosts.yml -o review/ --shards 4\n\n"
    "Exit codes: 0 nothing to do, 3 steps pending, 4 a host is unreachable, 5 refused.",
)
@target_options
@spec_option
@image_options
@locked_option
@PROBES
@click.option(
    "--check-repositories/--no-check-repositories",
    default=None,
    help="Look every package up in the index of its repository, where this machine reaches it; the default with -o.",
)
@click.option("--diff", is_flag=True, help="Show unified diffs of configuration files (secrets masked).")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write plan, inventory and playbook there: to review, to keep, to run.",
)
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    help="With -o: also N folders for `ansible-runner transmit`, for fleets too large for one controller.",
)
@format_option("text", "json")
def plan(
    targets: Targets,
    spec_data: dict[str, Any],
    lock: Lock | None,
    probes: tuple[Path, ...],
    check_repositories: bool | None,
    diff: bool,
    output: Path | None,
    shards: int | None,
    output_format: str,
) -> int:
    """Show what provision would do on each host, step by step, with reasons."""
    from gpunode.cli.progress import probing
    from gpunode.edge.ansible.shards import write_shards
    from gpunode.edge.desired import DesiredState
    from gpunode.edge.fleet import workflow

    if shards and not output:
        raise click.UsageError("--shards needs -o DIR: the shards are in it")
    targets = with_probes(targets, probes)
    look_up = bool(output) if check_repositories is None else check_repositories
    desired = DesiredState(spec_data, to_run=bool(output), lock=lock, look_up=look_up)
    with probing(output_format) as on_done:
        hosts = workflow.plan(targets, desired, on_done=on_done)
    if output:
        workflow.write_plan(output, hosts, targets, desired)
        written = write_shards(output, hosts, targets, shards) if shards else []
    if output_format == "json":
        from gpunode.edge.report_data import plans_data

        print_json({"hosts": plans_data(hosts, desired)})
    else:
        hosts = show_plans(hosts, diff=diff)
    if output and output_format == "text":
        echo(f"written: {output}/plan.json, inventory.yml, playbook.yml; run it: gpunode provision {output}")
        for shard in written:
            echo(f"a shard: {shard}; send it: ansible-runner transmit {shard} -p playbook.yml")
    return worst_exit(h.outcome for h in hosts)


def show_plans(hosts: list[HostPlan], *, diff: bool) -> list[HostPlan]:
    """Plans on stdout, of many hosts by kind; hosts in error on stderr, of many among the plans, by cause.

    Returns the hosts; one whose plan cannot be shown is in error, since nobody could read it.
    """
    from dataclasses import replace
    from functools import partial

    from gpunode.core.errors import GpunodeError
    from gpunode.core.model import HostResult
    from gpunode.core.report.fleet import plans_text
    from gpunode.core.report.text import MANY, plan_text
    from gpunode.edge.isolate import isolated

    if len(hosts) > MANY:
        errors = [HostResult(host=h.host, message=str(h.error)) for h in hosts if h.error]
        together = isolated("", lambda: plans_text([h.plan for h in hosts if h.plan], errors, diff=diff))
        if not isinstance(together, GpunodeError):
            echo(together)
            return hosts
    shown = []
    for host in hosts:
        text = isolated(host.host, partial(plan_text, host.plan, diff=diff)) if host.plan else host.error
        if isinstance(text, GpunodeError):
            show_error(text, host=host.host)
            shown.append(replace(host, planned=None, error=text))
        else:
            echo(text or "")
            shown.append(host)
    return shown
