"""What `gpunode kube status` reads from a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.core.errors import InputError
from gpunode.core.kube.cluster import Object
from gpunode.core.kube.owned import OWNED_SELECTOR
from gpunode.core.kube.render.device_plugin import CONFIG
from gpunode.core.kube.usage import Usage, usage
from gpunode.edge.kube.client import Api, ApiError

_DRA = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1")


def read_usage(api: Api, names: tuple[str, ...] = (), *, configs: Mapping[str, str] | None = None) -> Usage:
    """Usage of these nodes, of all without names.  Raises InputError for a node that is not there.

    `configs`: the device plugin's configurations by pool, where they are known; else those that apply put there.
    """
    nodes = api.items("/api/v1/nodes")
    there = {node["metadata"]["name"] for node in nodes}
    if lost := [name for name in names if name not in there]:
        raise InputError(f"there is no node {', '.join(lost)}", expected=f"one of {', '.join(sorted(there))}")
    chosen = [node for node in nodes if not names or node["metadata"]["name"] in names]
    found = api.items("/api/v1/pods")
    slices, claims = _dra(api)
    known = _configs(api) if configs is None else configs
    seen = usage(chosen, found, slices=slices, claims=claims, configs=known)
    return Usage(nodes=seen.nodes, waiting=() if names else seen.waiting)


def _dra(api: Api) -> tuple[list[Object], list[Object]]:
    """ResourceSlices and ResourceClaims in the newest version that the server serves; none where it has no DRA."""
    for version in _DRA:
        slices, claims = api.resource(version, "ResourceSlice"), api.resource(version, "ResourceClaim")
        if slices and claims:
            return _readable(api, f"{slices.base}/{slices.plural}"), _readable(api, f"{claims.base}/{claims.plural}")
    return [], []


def _readable(api: Api, path: str, **query: str) -> list[Object]:
    try:
        return api.items(path, **query)
    except ApiError as error:
        if error.status != 403:
            raise
        return []


def _configs(api: Api) -> dict[str, str]:
    """The device plugin's configurations that apply put there."""
    for found in _readable(api, "/api/v1/configmaps", labelSelector=OWNED_SELECTOR):
        if found["metadata"]["name"] == CONFIG:
            return dict(found.get("data") or {})
    return {}
