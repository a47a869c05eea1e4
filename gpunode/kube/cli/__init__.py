"""gpunode kube: a table of verbs, each imported when it is used."""

from __future__ import annotations

import click

from gpunode.cli.lazy import LazyGroup, Table

COMMANDS: Table = {
    "render": ("gpunode.kube.cli.render:render", "Write the cluster's objects and helm values; needs no cluster."),
    "handover": (
        "gpunode.kube.cli.handover:handover",
        "Print what the chart of another program has to know of provisioned hosts.",
    ),
    "apply": ("gpunode.kube.cli.apply:apply", "Apply the objects to a cluster: server-side apply, wait, prune."),
    "verify": (
        "gpunode.kube.cli.verify:verify",
        "Check a cluster: differences from gpunode.yml, and pods on its GPUs.",
    ),
    "status": ("gpunode.kube.cli.status:status", "Who uses which GPU: allocated and total, however they are shared."),
    "remove": ("gpunode.kube.cli.apply:remove", "Take everything that apply made out of the cluster."),
    "scheduler": ("gpunode.kube.cli.scheduler:scheduler", "This host's kube-scheduler: configure, unconfigure, diff."),
    "kubelet": ("gpunode.kube.cli.kubelet:kubelet", "This host's kubelet: configure, unconfigure, diff."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog="Examples:\n\n\b\n"
    "  gpunode kube render -c gpunode.yml --server-version 1.34\n"
    "  gpunode kube render -c gpunode.yml -i inventory/hosts.yml -o cluster/",
)
def kube() -> None:
    """Kubernetes: render, apply and verify what a cluster needs for its GPUs."""
