"""gpunode kube apply and remove."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import cluster_options, format_option, seconds, show_error, spec_option
from gpunode.cli.output import Styled, echo, print_json
from gpunode.core.errors import RefusedError
from gpunode.kube.cli.options import notifying, render_options

if TYPE_CHECKING:
    from gpunode.kube.core import Rendered
    from gpunode.kube.core.applied import Applied
    from gpunode.kube.edge.client import Api


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode kube apply -c gpunode.yml --dry-run\n"
    "  gpunode kube apply -c gpunode.yml -i inventory/hosts.yml\n"
    "  gpunode kube apply --nodes feature.node.kubernetes.io/pci-10de.present=true\n"
    "  gpunode kube apply --context prod --timeout 600\n\n"
    "Exit codes: 0 applied and ready, 1 broke off or not ready, 2 usage or input, 3 differences (--dry-run), "
    "4 no connection, 5 refused: nothing was changed."
)
@render_options
@cluster_options
@click.option("--dry-run", is_flag=True, help="Ask the server what would change, show it as diffs, change nothing.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until all workloads are ready.")
@seconds("--timeout", "Seconds to wait for it.", least=0, default=300.0)
@format_option("text", "json")
def apply(
    rendered: Callable[[Api], Rendered],
    connect: Callable[[], Api],
    dry_run: bool,
    wait: bool,
    timeout: float,
    output_format: str,
) -> int:
    """Apply gpunode.yml to a cluster: server-side apply, wait, delete what is no longer rendered.

    Checks come first: version, rights, foreign objects and a dry run of every object. Objects of others are
    never changed.
    """
    from gpunode.kube.edge.apply import apply as apply_to

    with notifying(output_format) as notify:
        api = connect()
        applied = apply_to(api, rendered(api), dry_run=dry_run, wait=wait, timeout=timeout, notify=notify)
    return show_applied(applied, api, output_format)


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode kube remove --dry-run\n"
    "  gpunode kube remove --context prod\n\n"
    "Exit codes: 0 gone, 1 broke off or not gone in time, 2 usage or input, 3 something would go (--dry-run), "
    "4 no connection, 5 refused: nothing was changed."
)
@spec_option
@cluster_options
@click.option("--dry-run", is_flag=True, help="Say what would go, change nothing.")
@seconds("--timeout", "Seconds to wait for it.", least=0, default=120.0)
@format_option("text", "json")
def remove(spec_data: Any, connect: Callable[[], Api], dry_run: bool, timeout: float, output_format: str) -> int:
    """Remove everything that apply created: objects, and labels and taints of nodes.

    What was applied is in the ConfigMap gpunode-inventory; gpunode.yml is needed only where we may not list
    ConfigMaps of all namespaces.
    """
    from gpunode.core.spec import parse_spec
    from gpunode.kube.edge.apply import remove as remove_from

    namespace = parse_spec(spec_data).kubernetes.namespace
    with notifying(output_format) as notify:
        api = connect()
        applied = remove_from(api, namespace, dry_run=dry_run, timeout=timeout, notify=notify)
    return show_applied(applied, api, output_format)


def show_applied(applied: Applied, api: Api, output_format: str) -> int:
    """The result: changes on stdout, what goes with them on stderr."""
    from gpunode.kube.core.applied import applied_data, applied_lines

    if output_format == "json":
        print_json(applied_data(applied, api.server, api.context))
        return int(applied.exit)
    for line in applied_lines(applied):
        echo(line)
    for problem in applied.problems:
        show_error(RefusedError(problem.what, fix=problem.fix))
    for note in applied.notes:
        echo(f"note: {note}", err=True)
    for line in applied.waiting:
        echo(Styled("not ready: ", "red"), line, err=True)
    if applied.error:
        show_error(applied.error)
        rest = ", ".join(map(str, applied.left)) or "nothing"
        echo(f"not done: {rest}. What stands above is done; run the command again to go on.", err=True)
    return int(applied.exit)
