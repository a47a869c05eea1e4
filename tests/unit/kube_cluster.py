"""What tests of a cluster share: what a spec makes, nodes, and a client that does not wait for long."""

from __future__ import annotations

import time
from typing import Any

from gpunode.core.kube import cluster_of, render
from gpunode.core.kube.render import Rendered
from gpunode.core.spec import parse_spec
from gpunode.edge.cluster import Api
from gpunode.edge.load import load_kube_knowledge


def quick(api: Api) -> Api:
    """It waits between two attempts, but not for long; `pauses` says how long it wanted to."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(min(seconds, 0.02))

    api.pause = pause
    api.pauses = pauses  # type: ignore[attr-defined]
    return api


def rendered(spec: dict[str, Any] | None = None, version: str = "1.34", **pools: dict[str, Any]) -> Rendered:
    """What a spec makes; `pools`: host → its gpunode_spec."""
    from gpunode.core.spec import merge_spec

    base = spec or {}
    specs = {host: parse_spec(merge_spec(base, own)) for host, own in pools.items()} or {"": parse_spec(base)}
    return render(cluster_of(specs, version, load_kube_knowledge()))


def node(name: str, *, labels: dict[str, str] | None = None, address: str = "10.0.0.1", **more: Any) -> dict[str, Any]:
    """A ready node; `more`: resources as nvidia.com/gpu="8" by allocatable={…}, or spec={…}."""
    status = {
        "addresses": [{"type": "InternalIP", "address": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": more.pop("allocatable", {}),
    }
    metadata = {"name": name, "labels": labels or {}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": more.pop("spec", {}),
        "status": status,
        **more,
    }


def silent(_: str) -> None:
    """Progress that nobody reads."""
