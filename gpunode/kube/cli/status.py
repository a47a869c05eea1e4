"""gpunode kube status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from gpunode.cli.common import cluster_options, format_option
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit
from gpunode.kube.cli.options import render_options

if TYPE_CHECKING:
    from gpunode.kube.core import Rendered
    from gpunode.kube.edge.client import Api


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode kube status\n"
    "  gpunode kube status -d gpu1 gpu2\n"
    "  kubectl gpunode status --context prod --format json\n\n"
    "Exit codes: 0 done, 1 something could not be read (the rest is shown), 2 usage or input, "
    "4 no connection, 5 no right to read nodes and pods."
)
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@click.option("-d", "--details", is_flag=True, help="What each pod holds, node by node.")
@partial(render_options, optional=True)
@cluster_options
@format_option("text", "json")
def status(
    nodes: tuple[str, ...],
    details: bool,
    rendered: Callable[[Api], Rendered] | None,
    connect: Callable[[], Api],
    output_format: str,
) -> int:
    """Who uses which GPU: allocated and total of whole GPUs, shares, MIG, gpushare memory and DRA.

    With gpunode.yml also which nodes that its pools name, by an inventory or selectors, offer something else.
    """
    from gpunode.kube.core.judge import node_faults
    from gpunode.kube.core.usage import usage_data, usage_text
    from gpunode.kube.edge.reading import read
    from gpunode.kube.edge.status import read_usage, unready_workloads

    api = connect()
    usage = read_usage(api, nodes)
    faults = node_faults(read(api, rendered(api))[0]) if rendered else ()
    lacks = (f"{one.about}: {one.message}" for one in faults if not nodes or one.about.partition(" ")[2] in nodes)
    unready, unread = unready_workloads(api)
    usage = replace(usage, unready=(*unready, *lacks), errors=(*usage.errors, *unread))
    if output_format == "json":
        print_json(usage_data(usage))
    else:
        echo(usage_text(usage, details=details), nl=False)
    return Exit.FAILED if usage.errors else Exit.OK
