"""What tests of a cluster share: what a spec makes, nodes, and a client that does not wait for long."""

from __future__ import annotations

import time
from typing import Any

from api_server import ApiServer

from gpunode.core.spec import parse_spec
from gpunode.edge.load import load_kube_knowledge
from gpunode.kube.core import cluster_of, render
from gpunode.kube.core.applied import Applied
from gpunode.kube.core.owned import INVENTORY, parse_inventory
from gpunode.kube.core.render import Rendered
from gpunode.kube.edge.apply import apply
from gpunode.kube.edge.client import Api


def quick(api: Api) -> Api:
    """Its pauses pass by its clock, and hardly take any time; `pauses` says how long they were."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(min(seconds, 0.01))  # others have their turn

    api.pause = pause
    api.clock = lambda: time.monotonic() + sum(pauses)
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


def hows(applied: Applied) -> dict[str, str]:
    return {str(change.key): change.how for change in applied.changes}


def put(api: Api, what: Rendered, **options: Any) -> Applied:
    return apply(api, what, notify=silent, timeout=5, **options)


def inventory(server: ApiServer, namespace: str = "gpunode") -> list[str]:
    live = server.get("ConfigMap", INVENTORY, namespace)
    assert live is not None
    return [str(key) for key in parse_inventory(live).objects]


def mutating(server: ApiServer) -> list[str]:
    """Requests that changed something: no dry run, no access review."""
    changes = [r for r in server.requests if not r.startswith("GET") and "accessreviews" not in r]
    return [r for r in changes if "dryRun" not in r]


def foreign(kind: str, api_version: str, name: str, namespace: str = "", **body: Any) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
