"""What `gpunode kube status` reads from a cluster."""

from __future__ import annotations

from functools import partial

from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.printable import few, printable
from gpunode.edge.isolate import isolated
from gpunode.kube.core.api_error import DeniedError
from gpunode.kube.core.checks.ready import WORKLOADS
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.owned import OWNED_SELECTOR, ObjectKey
from gpunode.kube.core.usage import Usage, usage
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.pods import unready

_DRA = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1")


def read_usage(api: Api, names: tuple[str, ...] = ()) -> Usage:
    """Usage of these nodes, of all without names.  Raises InputError for a node that is not there.

    Objects that cannot be read are left out, and named in `errors`; those of DRA where a pod has a claim.
    """
    odd: list[GpunodeError] = []
    nodes = api.items("/api/v1/nodes", odd=odd)
    there = {node["metadata"]["name"] for node in nodes}
    if lost := [name for name in names if name not in there]:
        unread = f" ({odd[0].what})" if odd else ""
        raise InputError(f"there is no node {', '.join(lost)}{unread}", expected=f"one of {few(sorted(there), 20)}")
    chosen = [node for node in nodes if not names or node["metadata"]["name"] in names]
    found = api.items("/api/v1/pods", odd=odd)
    claimed = any((pod.get("spec") or {}).get("resourceClaims") for pod in found)
    slices, claims, classes = _dra(api, odd if claimed else [])
    seen = usage(chosen, found, slices=slices, claims=claims, classes=classes, guard=isolated)
    return Usage(nodes=seen.nodes, waiting=() if names else seen.waiting, errors=(*_said(odd), *seen.errors))


def unready_workloads(api: Api) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """gpunode's workloads that are not ready, and why their pods are not there, as apply says it; what was not read."""
    lines, known = list[str](), dict[str, ObjectKey]()
    odd: list[GpunodeError] = []
    for kind in filter(partial(api.resource, "apps/v1"), WORKLOADS):
        for item in _readable(api, f"/apis/apps/v1/{kind.lower()}s", odd, labelSelector=OWNED_SELECTOR):
            key = ObjectKey("apps/v1", kind, item["metadata"]["namespace"], item["metadata"]["name"])
            if why := unready(api, key, {"kind": kind, **item}, known):  # items of a list come without their kind
                lines.append(printable(f"{key}: {why}"))
    return tuple(lines), _said(odd)


def _dra(api: Api, odd: list[GpunodeError]) -> tuple[list[Object], list[Object], list[Object]]:
    """ResourceSlices, ResourceClaims and DeviceClasses in the newest version that is served; none without DRA."""
    for version in _DRA:
        slices, claims = api.resource(version, "ResourceSlice"), api.resource(version, "ResourceClaim")
        if slices and claims:
            classes = api.resource(version, "DeviceClass")
            offered = _readable(api, f"{slices.base}/{slices.plural}", odd)
            made = _readable(api, f"{claims.base}/{claims.plural}", odd)
            return offered, made, _readable(api, f"{classes.base}/{classes.plural}", odd) if classes else []
    return [], [], []


def _readable(api: Api, path: str, odd: list[GpunodeError], **query: str) -> list[Object]:
    try:
        return api.items(path, odd=odd, **query)
    except DeniedError as error:
        odd.append(error)
        return []


def _said(odd: list[GpunodeError]) -> tuple[str, ...]:
    return tuple(f"{error.what} (fix: {error.fix})" for error in odd)
