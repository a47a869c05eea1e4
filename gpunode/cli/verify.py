"""gpunode verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option, spec_option, target_options, worst_exit
from gpunode.cli.image import image_options
from gpunode.cli.lock import locked_option
from gpunode.cli.provision import show_results

if TYPE_CHECKING:
    from gpunode.core.lockfile import Lock
    from gpunode.edge.detect import Where


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode verify -i inventory/hosts.yml\n"
    "  gpunode verify gpu1 --no-smoke --format json\n\n"
    "Exit codes: 0 all proven, 1 a check failed, 3 differences from the spec, 4 unreachable, 5 refused."
)
@target_options
@spec_option
@image_options
@locked_option
@click.option(
    "--smoke/--no-smoke", default=True, show_default=True, help="Use the GPU for real; --no-smoke only reads."
)
@format_option("text", "json")
def verify(where: Where, spec_data: dict[str, Any], lock: Lock | None, smoke: bool, output_format: str) -> int:
    """Prove that nodes are what gpunode.yml asks for: the plan is empty, the GPUs are healthy and usable."""
    from gpunode.edge import workflow
    from gpunode.edge.planner import Planner
    from gpunode.edge.progress import probing

    planner = Planner(spec_data, to_run=False, lock=lock)
    with probing(output_format) as on_done:
        results = workflow.verify(where, planner, smoke=smoke, on_done=on_done)
    show_results(results, output_format)
    return worst_exit(r.exit for r in results)
