"""gpunode kube handover."""

from __future__ import annotations

from typing import Any

import click

from gpunode.cli.output import echo
from gpunode.core.errors import Exit
from gpunode.kube.cli.options import offline_options


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode kube handover gpu-operator --server-version 1.34 > host.yml\n"
    "  helm upgrade gpu-operator ... --reuse-values -f host.yml\n"
    "  gpunode kube handover nvsentinel -c gpunode.yml -i inventory/hosts.yml\n\n"
    "Exit codes: 0 printed, 2 usage or input, 5 refused."
)
@click.argument("program", type=click.Choice(("gpu-operator", "dra-driver", "nvsentinel", "hami")))
@offline_options
def handover(program: str, spec_data: Any, inventory: tuple[str, ...], limit: str, server_version: str) -> int:
    """Print the helm values that hand provisioned hosts to PROGRAM: driver, toolkit and runtime class are there."""
    from gpunode.edge.load import load_kube_knowledge
    from gpunode.kube.core import cluster_of
    from gpunode.kube.core.render.handover import handover_text
    from gpunode.kube.edge import specs_of

    cluster = cluster_of(specs_of(spec_data, inventory, limit), server_version, load_kube_knowledge())
    echo(handover_text(cluster, program), nl=False)
    return Exit.OK
