"""gpunode kube kubelet: the settings that a GPU node needs in this host's kubelet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.edits import absolute
from gpunode.core.errors import InputError
from gpunode.kube.cli.host import ROOT, VERSION, add_verbs

if TYPE_CHECKING:
    from gpunode.edge.host.target import Host

_WHAT = (
    VERSION,
    click.option("--unit", metavar="PATH", default="", help="Its systemd unit; by default kubelet.service."),
    click.option(
        "--cgroup-driver", type=click.Choice(("systemd", "cgroupfs")), help="cgroup driver, the same as the engine's."
    ),
    click.option("--node-label", "node_labels", multiple=True, metavar="KEY=VALUE", help="Label of the node; repeat."),
    click.option(
        "--system-reserved", multiple=True, metavar="KEY=VALUE", help="Kept for the system, such as memory=1Gi; repeat."
    ),
    click.option(
        "--kube-reserved", multiple=True, metavar="KEY=VALUE", help="Kept for Kubernetes, such as cpu=200m; repeat."
    ),
    ROOT,
)


@click.group()
def kubelet() -> None:
    """Set what a GPU node needs in this host's kubelet."""


def _host(given: dict[str, Any], *, wait: bool = True) -> Host:
    from gpunode.core.edits.kubernetes.kubelet import UNITS, KubeletRequest, completed, kubelet_target
    from gpunode.edge.host.target import Host, kubelet_version, read
    from gpunode.edge.load import load_scheduler_rules

    root: Path = given["root"].resolve()
    unit = absolute(given["unit"])
    asked = KubeletRequest(
        server_version=given["server_version"] or (kubelet_version() if root == Path("/") else ""),
        unit=unit,
        cgroup_driver=given["cgroup_driver"] or "",
        **{name: _pairs(name, given[name]) for name in ("node_labels", "system_reserved", "kube_reserved")},
    )
    request = completed(read(root, filter(None, (unit, *UNITS))), asked)
    return Host(target=kubelet_target(request, load_scheduler_rules()), root=root, wait=wait)


def _pairs(name: str, given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise InputError(f"--{name.rstrip('s').replace('_', '-')} {one!r}", expected="KEY=VALUE")
        pairs[key] = value
    return pairs


add_verbs(
    kubelet, _WHAT, _host,
    writes="Write the settings where they count, restart the kubelet",
    undoes="Undo configure, to the byte.",
    examples={
        "configure": "--cgroup-driver systemd --dry-run\n"
        "--node-label nvidia.com/gpu.product=A100 --node-label pool=gpu\n"
        "--server-version 1.28 --root /mnt/image",
        "unconfigure": "\n"
        "--dry-run",
        "diff": "--server-version 1.30 --node-label gpushare=true\n"
        "--kube-reserved cpu=200m --kube-reserved memory=500Mi --format json",
    },
)  # fmt: skip
