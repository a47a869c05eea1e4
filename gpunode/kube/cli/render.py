"""gpunode kube render."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option, show_error
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit, RefusedError
from gpunode.kube.cli.options import offline_options

if TYPE_CHECKING:
    from gpunode.kube.core import Rendered


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode kube render -c gpunode.yml --server-version 1.34\n"
    "  gpunode kube render -c gpunode.yml -i inventory/hosts.yml --server-version 1.34 -o cluster/\n"
    "  gpunode kube render --server-version 1.34 --install helm -o cluster/\n"
    "  gpunode kube render --server-version 1.34 --format json\n\n"
    "Exit codes: 0 written, 2 usage or input, 5 refused: nothing is written."
)
@offline_options
@click.option("--install", type=click.Choice(("manifest", "helm", "operator")), help="In place of kubernetes.install.")
@click.option(
    "-o", "--output", default="-", metavar="DIR|-", show_default=True, help="A folder for git, or - for the output."
)
@click.option("--examples", is_flag=True, help="Print the examples too (a folder always gets them).")
@format_option("yaml", "json")
def render(
    spec_data: Any,
    inventory: tuple[str, ...],
    limit: str,
    server_version: str,
    install: str | None,
    output: str,
    examples: bool,
    output_format: str,
) -> int:
    """Write what the cluster needs: objects in the order of applying, values for helm charts, labels of nodes."""
    from gpunode.core.spec import merge_spec
    from gpunode.core.yaml_text import yaml_documents
    from gpunode.edge.load import load_kube_knowledge
    from gpunode.kube.core import cluster_of
    from gpunode.kube.core import render as render_cluster
    from gpunode.kube.core.render.files import files_of, rendered_data
    from gpunode.kube.edge import specs_of, write_files

    data = merge_spec(spec_data, {"kubernetes": {"install": install}}) if install else spec_data
    rendered = render_cluster(cluster_of(specs_of(data, inventory, limit), server_version, load_kube_knowledge()))
    if output_format == "json":
        print_json(rendered_data(rendered))
        return Exit.REFUSED if rendered.problems else Exit.OK
    if rendered.problems:
        for problem in rendered.problems:
            show_error(RefusedError(problem.what, fix=problem.fix))
        return Exit.REFUSED
    if output == "-":
        echo(yaml_documents((*rendered.objects, *(rendered.examples if examples else ()))), nl=False)
    else:
        for name in (changed := write_files(Path(output), files_of(rendered))):
            echo(f"{output.rstrip('/')}/{name}")
        if not changed:
            echo(f"{output} is as it should be")
    _report(rendered)
    return Exit.OK


def _report(rendered: Rendered) -> None:
    """What goes with the objects, on stderr: standard output is for kubectl."""
    for note in rendered.notes:
        echo(f"note: {note.what}: {note.why}", err=True)
    for release in rendered.releases:
        echo(f"helm: {release.command}", err=True)
    for request in rendered.nodes:
        for command in request.commands:
            echo(f"node: {command}", err=True)
