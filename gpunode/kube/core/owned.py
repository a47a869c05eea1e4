"""Which objects of a cluster are ours: keys, the label, and the inventory that says what was applied.

The inventory is a ConfigMap in our namespace.  It is written before objects are applied (with the old and the new
ones) and after (with the new ones alone), so that nothing that we made is ever forgotten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from gpunode.core.errors import RefusedError
from gpunode.core.late import dataclass, field
from gpunode.core.yaml_text import yaml_text
from gpunode.kube.core.cluster import OWNED, Object

MANAGER = "gpunode"  # the field manager of everything that we apply
INVENTORY = "gpunode-inventory"
INVENTORY_LABELS = {"app.kubernetes.io/name": INVENTORY, "app.kubernetes.io/part-of": "gpunode", **OWNED}
INVENTORY_FORMAT = 1
(_LABEL, _VALUE), *_ = OWNED.items()
OWNED_SELECTOR = f"{_LABEL}={_VALUE}"


@dataclass(frozen=True, order=True)
class ObjectKey:
    """An object by what never changes; `namespace` is "" for those of the whole cluster."""

    api: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    @property
    def same(self) -> tuple[str, str, str, str]:
        """Equal for the same object in another version of its API."""
        return (self.api.rpartition("/")[0], self.kind, self.namespace, self.name)


def key_of(item: Object) -> ObjectKey:
    metadata = item["metadata"]
    return ObjectKey(item["apiVersion"], item["kind"], metadata.get("namespace", ""), metadata["name"])


def is_ours(live: Object) -> bool:
    return bool((live["metadata"].get("labels") or {}).get(_LABEL) == _VALUE)


def owner_words(live: Object) -> str:
    """Who looks after a foreign object, as far as it says so."""
    metadata = live["metadata"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    if release := annotations.get("meta.helm.sh/release-name"):
        return f"helm's release {release}"
    if annotations.get("objectset.rio.cattle.io/owner-name"):
        return "k3s"
    if managed := labels.get(_LABEL):
        return str(managed)
    entries = [one for one in metadata.get("managedFields") or [] if not one.get("subresource")]  # of status: anybody
    managers = dict.fromkeys(entry.get("manager", "") for entry in entries)
    return ", ".join(filter(None, managers)) or "another program"


# ---------------------------------------------------------------- the inventory


@dataclass(frozen=True, kw_only=True)
class NodeMarks:
    """What we put on a node: names of labels, and taints as KEY=VALUE:EFFECT."""

    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What we applied.  Adding two gives what either of them has.

    `digests` of objects as they were rendered: what differs on an object that is rendered alike came by other hands, or
    by an admission policy that rewrote gpunode's own request.
    """

    objects: tuple[ObjectKey, ...] = ()
    nodes: Mapping[str, NodeMarks] = field(default_factory=dict)
    digests: Mapping[ObjectKey, str] = field(default_factory=dict)

    def __add__(self, other: Inventory) -> Inventory:
        nodes = dict(self.nodes)
        for name, marks in other.nodes.items():
            before = nodes.get(name, NodeMarks())
            nodes[name] = NodeMarks(
                labels=tuple(dict.fromkeys((*before.labels, *marks.labels))),
                taints=tuple(dict.fromkeys((*before.taints, *marks.taints))),
            )
        objects = tuple(dict.fromkeys((*self.objects, *other.objects)))
        return Inventory(objects=objects, nodes=nodes, digests={**self.digests, **other.digests})

    def without(self, kept: Iterable[ObjectKey]) -> tuple[ObjectKey, ...]:
        """Our objects that are not among these, in whatever version of their API; what was applied last comes first."""
        names = {key.same for key in kept}
        return tuple(key for key in reversed(self.objects) if key.same not in names)


def digest(item: Object) -> str:
    """Of an object as it is rendered."""
    return hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest()[:16]


def inventory_key(namespace: str) -> ObjectKey:
    return ObjectKey("v1", "ConfigMap", namespace, INVENTORY)


def inventory_object(inventory: Inventory, namespace: str) -> Object:
    data = {
        "format": INVENTORY_FORMAT,
        "objects": [
            {"apiVersion": k.api, "kind": k.kind, "namespace": k.namespace, "name": k.name}
            | ({"rendered": inventory.digests[k]} if k in inventory.digests else {})
            for k in inventory.objects
        ],
        "nodes": {
            name: {"labels": list(marks.labels), "taints": list(marks.taints)}
            for name, marks in sorted(inventory.nodes.items())
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": INVENTORY, "namespace": namespace, "labels": dict(INVENTORY_LABELS)},
        "data": {"inventory.json": json.dumps(data, indent=1)},
    }


def parse_inventory(live: Object) -> Inventory:
    """The ConfigMap → Inventory.  Raises RefusedError for one that is not readable or of a newer gpunode."""
    where = key_of({"apiVersion": "v1", "kind": "ConfigMap", **live})
    fix = "use the gpunode that wrote it; or delete it, and what it names by hand"
    try:
        data = json.loads((live.get("data") or {})["inventory.json"])
        if data["format"] != INVENTORY_FORMAT:
            raise RefusedError(f"{where} has format {data['format']}", expected=f"format {INVENTORY_FORMAT}", fix=fix)
        keys = [ObjectKey(o["apiVersion"], o["kind"], o["namespace"], o["name"]) for o in data["objects"]]
        return Inventory(
            objects=tuple(keys),
            digests={key: str(o["rendered"]) for key, o in zip(keys, data["objects"], strict=True) if "rendered" in o},
            nodes={
                name: NodeMarks(labels=tuple(marks["labels"]), taints=tuple(marks["taints"]))
                for name, marks in data["nodes"].items()
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RefusedError(f"{where} cannot be read: {error}", expected="what gpunode wrote", fix=fix) from error


# ---------------------------------------------------------------- diffs

_SERVER_SIDE = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")


def shown(item: Object | None) -> str:
    """An object as YAML without what only the server writes; "" for None.

    Its kind stands where manifests have it: an answer of the API begins with it, and an item of a list has none.
    """
    if item is None:
        return ""
    metadata = {k: v for k, v in item["metadata"].items() if k not in _SERVER_SIDE}
    head = {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": metadata}
    return yaml_text({**head, **{k: v for k, v in item.items() if k not in (*head, "status")}})
