"""One reading of a cluster, which takes no right but reading: what gpunode kube verify judges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from gpunode.core.errors import GpunodeError, UnreachableError
from gpunode.core.model import Problem
from gpunode.kube.core.checks.preflight import counted
from gpunode.kube.core.checks.ready import WORKLOADS, wanted_pods
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.judge import REFUSALS, ClusterReading
from gpunode.kube.core.owned import Inventory, ObjectKey, key_of
from gpunode.kube.core.render import Rendered, node_wishes
from gpunode.kube.edge.client import Api, segment
from gpunode.kube.edge.pods import creation_denied, events, pods_of, warnings_of
from gpunode.kube.edge.preflight import inventories, others
from gpunode.kube.edge.status import read_usage

_RECENT, _JUST_NOW = timedelta(minutes=10), timedelta(seconds=20)
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def read(api: Api, rendered: Rendered) -> tuple[ClusterReading, tuple[str, ...]]:
    """The reading, and what could not be read.  Raises GpunodeError where nodes and pods cannot be."""
    wanted = {key_of(item): item for item in rendered.objects}
    live: dict[ObjectKey, Object | None] = {}
    pods: dict[ObjectKey, Sequence[Object]] = {}
    denied, known = dict[ObjectKey, str](), dict[str, ObjectKey]()
    said: dict[str, str] = {}
    unread: list[str] = []
    recorded = Inventory()
    with _noting("what apply recorded", unread):
        recorded, _ = inventories(api, rendered.cluster.spec.namespace)
    for key in (*wanted, *recorded.without(wanted)):
        with _noting(key, unread if key in wanted else []):  # of the others no account has to have the right
            live[key] = api.live(key)
    charts = _of_charts(api, rendered, unread)
    for key, there in (*((key, live.get(key)) for key in wanted), *charts.items()):
        if key.kind not in WORKLOADS or there is None:
            continue
        with _noting(key, unread):
            pods[key] = pods_of(api, key, there)
            if len(pods[key]) < wanted_pods(there) and (why := creation_denied(api, key, known)):
                denied[key] = why
            said |= warnings_of(api, pods[key])
    nodes = api.items("/api/v1/nodes", odd=[])  # what the usage names
    strangers: list[Problem] = []
    with _noting("who else hands out GPUs", unread):
        strangers += others(api, rendered, nodes)
    refusals: list[Object] = []
    with _noting("what kubelets refused", unread):
        refusals += [event for reason in REFUSALS for event in events(api, f"reason={reason}")]
    usage = read_usage(api)
    unread += usage.errors
    reading = ClusterReading(
        wanted=wanted,
        live=live,
        pods=pods,
        denied=denied,
        said=said,
        nodes=nodes,
        usage=usage,
        refusals=refusals,
        others=strangers,
        charts=charts,
        marks=tuple(node_wishes(rendered.cluster)),
        recorded=recorded,
        gpus=counted(rendered.cluster, nodes),
        handler=rendered.cluster.spec.runtime_class.handler if rendered.cluster.runtime_class else "",
        recently=(api.now - _RECENT).strftime(_TIME),
        just_now=(api.now - _JUST_NOW).strftime(_TIME),
    )
    return reading, tuple(dict.fromkeys(unread))


def _of_charts(api: Api, rendered: Rendered, unread: list[str]) -> dict[ObjectKey, Object]:
    """The workloads that helm made of our releases, as far as it did."""
    found: dict[ObjectKey, Object] = {}
    spaces = sorted({(release.namespace, kind) for release in rendered.releases for kind in WORKLOADS})
    names = {(release.namespace, release.name) for release in rendered.releases}
    for namespace, kind in spaces:
        listed: list[Object] = []
        with _noting(f"{kind}s of {namespace}", unread):
            listed = api.items(f"/apis/apps/v1/namespaces/{segment(namespace)}/{kind.lower()}s")
        for item in listed:
            metadata = item["metadata"]
            if (namespace, (metadata.get("annotations") or {}).get("meta.helm.sh/release-name")) in names:
                found[ObjectKey("apps/v1", kind, namespace, metadata["name"])] = {"kind": kind, **item}
    return found


@contextmanager
def _noting(what: object, unread: list[str]) -> Iterator[None]:
    """What cannot be read is noted: no right to, no object, an inventory of another; not a server that is away."""
    try:
        yield
    except UnreachableError:
        raise
    except GpunodeError as error:
        unread.append(f"{what}: {error.what}")
