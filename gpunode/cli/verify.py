"""gpunode verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option, spec_option, target_options, worst_exit
from gpunode.cli.completion import complete_runs
from gpunode.cli.image import expected_options, image_options
from gpunode.cli.lazy import Verb
from gpunode.cli.lock import locked_option
from gpunode.cli.output import echo
from gpunode.cli.provision import show_results

if TYPE_CHECKING:
    from gpunode.core.plan.lockfile import Lock
    from gpunode.edge.detect import Targets


@click.command(
    cls=Verb,
    epilog="Examples:\n\n\b\n"
    "  gpunode verify -i inventory/hosts.yml\n"
    "  gpunode verify gpu1 --no-smoke --format json\n"
    "  gpunode verify -i inventory/hosts.yml --since last      (what changed since the last provision)\n\n"
    "Exit codes: 0 all checks passed, 1 a check failed (GPUs gone, say), 3 differences from the spec, or no GPU, "
    "4 unreachable, 5 refused.",
)
@target_options
@spec_option
@image_options
@expected_options
@locked_option
@click.option("--smoke/--no-smoke", default=True, show_default=True, help="Run GPU smoke tests; --no-smoke only reads.")
@click.option(
    "--since",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Report changes since this run of provision (gpunode runs list; last); smoke tests only on changed hosts.",
)
@click.option(
    "--since-acceptance",
    "accepted",
    metavar="NAME",
    help="Report what changed since this acceptance: its name, last, or a folder of records.",
)
@format_option("text", "json", "slurm")
def verify(
    targets: Targets,
    spec_data: dict[str, Any],
    expected: dict[str, Any],
    lock: Lock | None,
    smoke: bool,
    since: str | None,
    accepted: str | None,
    output_format: str,
) -> int:
    """Check that nodes match gpunode.yml and that their GPUs are healthy and usable."""
    from gpunode.cli.progress import probing
    from gpunode.core.spec import merge_spec
    from gpunode.edge.desired import DesiredState
    from gpunode.edge.fleet import workflow
    from gpunode.edge.fleet.runs import Runs
    from gpunode.edge.fleet.since import verify_since

    if since and accepted:
        raise click.UsageError("--since does not go with --since-acceptance")
    desired = DesiredState(merge_spec(spec_data, expected), to_run=False, lock=lock)
    runs = Runs() if since else None
    run = runs.get(since, "compare").name if runs and since else ""
    with probing(output_format) as on_done:
        if runs:
            results = verify_since(targets, desired, runs, run, smoke=smoke, on_done=on_done)
        else:
            results = workflow.verify(targets, desired, smoke=smoke, on_done=on_done, accepted=accepted)
    if output_format == "slurm":
        from gpunode.core.report.slurm import slurm_line

        for result in results:
            echo(slurm_line(result))
        return worst_exit(r.outcome for r in results)
    other = [r for r in results if not r.unchanged_since]
    show_results(results if output_format == "json" else other, output_format, brief=True)
    if runs and output_format == "text":
        echo(f"{len(results) - len(other)} of {len(results)} hosts are as run {run} left them")
    return worst_exit(r.outcome for r in results)
