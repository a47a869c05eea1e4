"""gpunode kube scheduler: gpushare's extender in this host's kube-scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.edits import absolute
from gpunode.kube.cli.host import ROOT, VERSION, add_verbs

if TYPE_CHECKING:
    from gpunode.edge.host.target import Host

_WHAT = (
    VERSION,
    click.option("--manifest", metavar="PATH", default="", help="Its static pod; by default kubeadm's, where it is."),
    click.option("--unit", metavar="PATH", default="", help="Its systemd unit, where no kubelet starts it."),
    click.option("--extender-url", metavar="URL", default="", help="Where the extender answers this host."),
    click.option(
        "--kube-proxy",
        "proxy_mode",
        type=click.Choice(("iptables", "ipvs", "nftables")),
        help="Mode of kube-proxy: the URL follows from it where none is given.",
    ),
    click.option("--node-port", type=click.IntRange(1, 65535), help="NodePort of its Service, if not 32766."),
    click.option("--node-address", metavar="IP", default="", help="This node's address, for ipvs and nftables."),
    click.option("--config", metavar="PATH", default="", help="Where a new configuration goes."),
    ROOT,
)


@click.group()
def scheduler() -> None:
    """Have this host's kube-scheduler ask gpushare's extender about aliyun.com/gpu-mem, or no longer."""


def _host(given: dict[str, Any], *, wait: bool = True) -> Host:
    from gpunode.core.edits.kubernetes.scheduler import MANIFEST, UNITS, SchedulerRequest, completed, scheduler_target
    from gpunode.edge.host.target import Host, read
    from gpunode.edge.load import load_scheduler_rules

    root: Path = given.pop("root").resolve()
    paths = {name: absolute(given.pop(name)) for name in ("manifest", "unit", "config")}
    port: int | None = given.pop("node_port")
    asked = SchedulerRequest(proxy_mode=given.pop("proxy_mode") or "", node_port=port or 0, **paths, **given)
    there = read(root, filter(None, (paths["manifest"], paths["unit"], MANIFEST, *UNITS)))
    return Host(target=scheduler_target(completed(there, asked), load_scheduler_rules()), root=root, wait=wait)


add_verbs(
    scheduler, _WHAT, _host,
    writes="Write the configuration, name it in the manifest or unit",
    undoes="Undo configure, to the byte; of entries that others wrote only gpushare's extender is removed.",
    examples={
        "configure": "--server-version 1.34\n"
        "--extender-url http://10.96.0.50:12345/gpushare-scheduler\n"
        "--root /mnt/image --dry-run",
        "unconfigure": "\n"
        "--dry-run",
        "diff": "--server-version 1.34\n"
        "--root /mnt/image --kube-proxy ipvs --node-address 10.0.0.4 --format json",
    },
)  # fmt: skip
