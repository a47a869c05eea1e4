"""What the verbs of gpunode kube that talk to a cluster share: which cluster, which pools, progress."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import Command, options, spec_option
from gpunode.cli.output import echo
from gpunode.cli.terminal import screen

if TYPE_CHECKING:
    from gpunode.kube.core import Rendered
    from gpunode.kube.edge.client import Api

_POOLS = (
    click.option(
        "-i",
        "--inventory",
        multiple=True,
        metavar="PATH",
        help="Ansible inventory: its hosts are the nodes to label, and pools by kubernetes.pool. Repeatable.",
    ),
    click.option("--limit", default="", metavar="PATTERN", help="Only these hosts of the inventory (Ansible pattern)."),
)
_VERSION = click.option(
    "--server-version", default="", metavar="V", help="The API server's, such as 1.34; else kubernetes.server_version."
)
_NODES = click.option(
    "--nodes",
    "selector",
    default="",
    metavar="SELECTOR",
    help="Without an inventory: label the cluster's nodes that this label selector chooses, such as gpu=yes.",
)


def offline_options(command: Command) -> Command:
    """-c, -i, --limit, and the version of a server that is not asked."""
    return spec_option(options(*_POOLS, _VERSION)(command))


def render_options(command: Command, *, optional: bool = False) -> Command:
    """-c, -i, --limit and --nodes; the command gets `rendered`, a function that renders for a cluster.

    `optional`: None where none of them is given, and there is no gpunode.yml.
    """

    @functools.wraps(command)
    def with_rendered(
        *args: Any, spec_data: Any, inventory: tuple[str, ...], limit: str, selector: str, **given: Any
    ) -> Any:
        if selector and (inventory or limit):
            raise click.UsageError("--nodes takes the nodes from the cluster; leave out --inventory and --limit")

        def rendered(api: Api) -> Rendered:
            return rendered_for(api, spec_data, inventory, limit, selector)

        known = spec_data or inventory or selector or not optional
        return command(*args, rendered=rendered if known else None, **given)

    return spec_option(options(*_POOLS, _NODES)(with_rendered), optional)  # type: ignore[return-value]


def rendered_for(api: Api, spec_data: Any, inventory: tuple[str, ...], limit: str, selector: str = "") -> Rendered:
    """What this cluster needs, for the version that its server has; `selector`: that of the only pool."""
    from gpunode.core.late import replace
    from gpunode.edge.load import load_kube_knowledge
    from gpunode.kube.core import cluster_of, render
    from gpunode.kube.core.checks.preflight import with_nodes
    from gpunode.kube.edge import provisioned_gpus, specs_of, with_pool

    specs = specs_of(with_pool(spec_data, selector) if selector else spec_data, inventory, limit)
    cluster = cluster_of(specs, api.version(), load_kube_knowledge())
    cluster = replace(cluster, gpus=provisioned_gpus(specs) if inventory else {})
    by_label = any(pool.selector for pool in cluster.pools)
    return render(with_nodes(cluster, api.items("/api/v1/nodes")) if by_label else cluster)


@contextlib.contextmanager
def notifying(output_format: str) -> Iterator[Callable[[str], None]]:
    """While the cluster works: call the function with the progress.  Formats for machines get no lines."""
    if output_format != "text":
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.markup import escape

        with screen(stderr=True).status("connecting …") as status:
            yield lambda text: status.update(escape(text))
    else:
        yield lambda text: echo(text, err=True)
