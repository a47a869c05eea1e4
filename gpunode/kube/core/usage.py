"""Who uses which GPU: nodes, pods, ResourceSlices and ResourceClaims → allocated and total, of every kind of sharing.

The API knows counts for whole GPUs, shares and MIG instances (the kubelet alone knows which GPU a container got),
and single GPUs for gpushare (annotations of the pods) and DRA (claims name devices).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from gpunode.core.errors import GpunodeError
from gpunode.core.late import asdict, dataclass
from gpunode.core.plain import mapping, mappings
from gpunode.kube.core.checks.ready import has_ended, not_ready, unschedulable
from gpunode.kube.core.cluster import POOL_LABEL, Object
from gpunode.kube.core.quantity import quantity
from gpunode.kube.core.render.dra import DRIVER
from gpunode.kube.core.render.gpushare import COUNT, MEMORY

Kind = Literal["gpu", "slices", "mig", "gpushare", "dra", "dra-memory"]
WHOLE = "nvidia.com/gpu"
_SHARED = ".shared"
_MIG = "nvidia.com/mig-"
INDEX = "ALIYUN_COM_GPU_MEM_IDX"
_MOST_GPUS = 1024  # of a node: what it offers is its kubelet's word
_STATUSES = "resourceClaimStatuses"
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PodUse:
    """What a pod holds of a resource; `gpus` amount by GPU where that is known (gpushare: index, DRA: device)."""

    namespace: str
    name: str
    amount: int
    gpus: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """One GPU: `name` is its index (gpushare) or its device (DRA)."""

    name: str
    allocated: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Use:
    """A resource of a node."""

    kind: Kind
    resource: str
    allocated: int
    total: int
    replicas: int = 1  # shares of one GPU
    gpus: tuple[GpuUse, ...] = ()
    pods: tuple[PodUse, ...] = ()
    pending: int = 0  # gpushare memory with no GPU named yet
    unit: str = ""

    @property
    def name(self) -> str:
        """The resource as pods ask for it: claims ask for memory, or for whole devices."""
        return f"{self.resource} (MiB)" if self.kind == "dra-memory" else self.resource

    @property
    def free(self) -> int:
        return max(0, self.total - self.allocated)

    @property
    def most(self) -> int:
        """What one request can have: of memory that of one GPU."""
        by_gpu = self.kind in ("gpushare", "dra-memory")
        return max((gpu.total - gpu.allocated for gpu in self.gpus), default=0) if by_gpu else self.free


@dataclass(frozen=True, kw_only=True)
class NodeUse:
    name: str
    address: str
    product: str
    state: str  # Ready, NotReady, and SchedulingDisabled as kubectl get nodes says it
    uses: tuple[Use, ...]
    pool: str = ""  # that apply has marked it for, where there are several

    @property
    def is_ready(self) -> bool:
        return self.state.split(",")[0] == "Ready"


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A pod that asks for GPUs and has no node."""

    namespace: str
    name: str
    asks: Mapping[str, int]
    why: str


@dataclass(frozen=True, kw_only=True)
class Usage:
    """`errors`: what could not be read, a sentence each; all else is without it.  `unready`: workloads of gpunode's."""

    nodes: tuple[NodeUse, ...]
    waiting: tuple[Waiting, ...]
    errors: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()


Found = NodeUse | Waiting | None
# what a node or a pod comes to, or the error that is its own
Guard = Callable[[str, Callable[[], Found]], Found | GpunodeError]


def usage(
    nodes: Sequence[Object],
    pods: Sequence[Object],
    *,
    slices: Sequence[Object] = (),
    claims: Sequence[Object] = (),
    classes: Sequence[Object] = (),
    guard: Guard = lambda _name, call: call(),
) -> Usage:
    """Everything that uses GPUs; nodes without any are left out.

    `classes`: DeviceClasses, for whose devices claims ask.  `guard` calls what each node and waiting pod comes to, and
    turns what that raises into its error.
    """
    live = [pod for pod in pods if not has_ended(pod)]
    by_node: dict[str, list[Object]] = {}
    for pod in live:
        by_node.setdefault(pod["spec"].get("nodeName") or "", []).append(pod)

    def used(node: Object) -> NodeUse | None:
        name = node["metadata"]["name"]
        uses = (*_uses(node, by_node.get(name, [])), *_dra(name, slices, claims))
        return _node_use(node, uses) if uses else None

    node_uses = [guard(f"node {node['metadata']['name']}", partial(used, node)) for node in nodes]
    ours = {one["metadata"]["name"] for one in classes if _names_driver(one.get("spec"))}
    known = {name for node in nodes for name in mapping(node, "status", "allocatable")}
    waiting = [
        guard(f"pod {'/'.join(_name(pod).values())}", partial(_waits, pod, claims, ours, known))
        for pod in by_node.get("", [])
    ]
    return Usage(
        nodes=tuple(sorted((one for one in node_uses if isinstance(one, NodeUse)), key=lambda n: n.name)),
        waiting=tuple(one for one in waiting if isinstance(one, Waiting)),
        errors=tuple(f"{one.what} (fix: {one.fix})" for one in (*node_uses, *waiting) if isinstance(one, GpunodeError)),
    )


# ---------------------------------------------------------------- extended resources


def is_gpu_resource(name: str) -> bool:
    return name in (MEMORY, WHOLE, WHOLE + _SHARED) or name.startswith(_MIG)


def resources_of(node: Object, what: str) -> dict[str, int]:
    """Resource of GPUs, shares or instances → number, of a node's `capacity` or `allocatable`."""
    return {name: quantity(one) for name, one in mapping(node, "status", what).items() if is_gpu_resource(name)}


def asked(pod: Object, resource: str) -> int:
    """What the scheduler counts for the pod: its containers and sidecars together, or one init container if more.

    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """
    spec = pod["spec"]
    running = sum(_of(container, resource) for container in spec.get("containers") or [])
    neighbours = most = 0
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            neighbours += _of(container, resource)
            most = max(most, neighbours)
        else:
            most = max(most, neighbours + _of(container, resource))
    return max(running + neighbours, most)


def _of(container: Object, resource: str) -> int:
    resources = container.get("resources") or {}
    value = (resources.get("requests") or {}).get(resource) or (resources.get("limits") or {}).get(resource)
    return quantity(value) if value else 0


def _uses(node: Object, pods: Sequence[Object]) -> Iterator[Use]:
    status = node.get("status") or {}
    allocatable, has = status.get("allocatable") or {}, resources_of(node, "capacity")
    for resource in sorted(filter(is_gpu_resource, allocatable)):
        total = quantity(allocatable[resource])
        holders = [(pod, amount) for pod in pods if (amount := asked(pod, resource))]
        if not (total or holders or has.get(resource)):
            continue  # a device plugin that went leaves a zero behind: kubelets forget it when they restart
        if resource == MEMORY:
            yield _gpushare(total, quantity(allocatable.get(COUNT, "0")), holders)
            continue
        replicas = 1 if resource.startswith(_MIG) else _replicas(node)
        kind: Kind = "mig" if resource.startswith(_MIG) else "slices" if replicas > 1 or _SHARED in resource else "gpu"
        held = tuple(PodUse(**_name(pod), amount=amount, gpus={}) for pod, amount in holders)
        yield Use(
            kind=kind,
            resource=resource,
            allocated=sum(pod.amount for pod in held),
            total=total,
            replicas=replicas,
            pods=held,
        )


def _replicas(node: Object) -> int:
    """Shares of one GPU, as Feature Discovery wrote them on the node."""
    label = (node["metadata"].get("labels") or {}).get("nvidia.com/gpu.replicas", "")
    return max(1, int(label)) if re.fullmatch("[0-9]{1,9}", label) else 1


# ---------------------------------------------------------------- gpushare


def _gpushare(total: int, count: int, holders: Sequence[tuple[Object, int]]) -> Use:
    """Memory by GPU.  All GPUs of a node count as equal, as the extender does it."""
    count = min(max(count, 0), _MOST_GPUS)
    each = total // count if count else 0
    on: dict[str, int] = {str(index): 0 for index in range(count)}
    held = []
    pending = 0
    for pod, amount in holders:
        index = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
        known = index in on
        if known:
            on[index] += amount
        else:
            pending += amount
        held.append(PodUse(**_name(pod), amount=amount, gpus={index: amount} if known else {}))
    return Use(
        kind="gpushare",
        resource=MEMORY,
        allocated=sum(pod.amount for pod in held),
        total=total,
        gpus=tuple(GpuUse(name=name, allocated=amount, total=each) for name, amount in on.items()),
        pods=tuple(held),
        pending=pending,
        unit="MiB" if each > 100 else "GiB",  # the plugin's --memory-unit: no GPU has that many GiB… or so few MiB
    )


# ---------------------------------------------------------------- DRA


@dataclass(frozen=True)
class _Device:
    """A device of a ResourceSlice.  `memory`: MiB that claims share, 0 where a claim has the whole device."""

    pool: str
    name: str
    kind: str
    memory: int

    @property
    def at(self) -> tuple[str, str]:
        return self.pool, self.name


@dataclass(frozen=True)
class _Taken:
    """What a claim holds of a device; `users`: namespace and pod of each, the claim's own name while no pod uses it."""

    users: tuple[tuple[str, str], ...]
    memory: int | None  # MiB, None for all


def _dra(node: str, slices: Sequence[Object], claims: Sequence[Object]) -> Iterator[Use]:
    """Devices that NVIDIA's driver offers on this node, by the kind that it gives them (gpu, mig)."""
    devices: dict[tuple[str, bool], list[_Device]] = {}
    for device in sorted(_devices(node, slices), key=_in_order):  # the driver lists them in any order
        devices.setdefault((device.kind, bool(device.memory)), []).append(device)
    taken = _taken(claims)
    for (kind, shared), there in sorted(devices.items()):
        gpus, held = [], dict[tuple[str, str], dict[str, int]]()
        for device in there:
            total = device.memory or 1
            amounts = [
                (one, total if one.memory is None or not device.memory else one.memory)
                for one in taken.get(device.at, ())
            ]
            allocated = sum(amount for _, amount in amounts)
            gpus.append(GpuUse(name=device.name, allocated=allocated if shared else min(1, allocated), total=total))
            for one, amount in amounts:
                for user in one.users:
                    on = held.setdefault(user, {})
                    on[device.name] = on.get(device.name, 0) + amount if shared else 1
        yield Use(
            kind="dra-memory" if shared else "dra",
            resource=f"{DRIVER}/{kind}",
            allocated=sum(gpu.allocated for gpu in gpus),
            total=sum(gpu.total for gpu in gpus),
            gpus=tuple(gpus),
            pods=tuple(
                PodUse(namespace=namespace, name=name, amount=sum(on.values()), gpus=on)
                for (namespace, name), on in held.items()
            ),
            unit="MiB" if shared else "",
        )


def _in_order(device: _Device) -> list[tuple[int, str]]:
    """By pool and name, whose numbers count as numbers: gpu-2 is before gpu-10."""
    return [
        (int(word), "") if word.isdecimal() else (0, word) for word in re.split(r"([0-9]{1,9})", "/".join(device.at))
    ]


def _devices(node: str, slices: Sequence[Object]) -> Iterator[_Device]:
    newest: dict[str, int] = {}
    mine = [s["spec"] for s in slices if s["spec"].get("nodeName") == node and s["spec"].get("driver") == DRIVER]
    for spec in mine:
        newest[spec["pool"]["name"]] = max(newest.get(spec["pool"]["name"], 0), spec["pool"].get("generation", 0))
    for spec in mine:
        if spec["pool"].get("generation", 0) < newest[spec["pool"]["name"]]:
            continue  # the driver is replacing it
        for device in spec.get("devices") or []:
            attributes = device.get("attributes") or (device.get("basic") or {}).get("attributes") or {}
            kind = (attributes.get("type") or {}).get("string", "gpu")
            memory = ((device.get("capacity") or {}).get("memory") or {}).get("value", "0")
            shared = quantity(memory) // _MIB if device.get("allowMultipleAllocations") else 0
            yield _Device(spec["pool"]["name"], device["name"], kind, shared)


def _taken(claims: Sequence[Object]) -> dict[tuple[str, str], list[_Taken]]:
    """(pool, device) → what claims hold of it."""
    taken: dict[tuple[str, str], list[_Taken]] = {}
    for claim in claims:
        status, namespace = claim.get("status") or {}, claim["metadata"]["namespace"]
        pods = [use["name"] for use in status.get("reservedFor") or [] if use.get("resource") == "pods"]
        users = tuple((namespace, name) for name in pods or [f"(claim {claim['metadata']['name']})"])
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
        for result in results:
            if result.get("driver") == DRIVER and not result.get("adminAccess"):
                at = result["pool"], result["device"]
                taken.setdefault(at, []).append(_Taken(users, consumed_memory(result)))
    return taken


def consumed_memory(result: Object) -> int | None:
    """MiB of a device's memory that an allocation's result takes, rounded up; None for all of it.

    A name without a domain is the driver's own: https://kubernetes.io/docs/reference/kubernetes-api/resource/resource-slice-v1/
    """
    consumed = result.get("consumedCapacity") or {}
    amount = consumed.get("memory", consumed.get(f"{DRIVER}/memory"))
    return None if amount is None else -(-quantity(amount) // _MIB)


# ---------------------------------------------------------------- nodes and pods


def _node_use(node: Object, uses: tuple[Use, ...]) -> NodeUse:
    status, labels = node.get("status") or {}, node["metadata"].get("labels") or {}
    addresses = {a["type"]: a["address"] for a in reversed(status.get("addresses") or [])}
    off = bool((node.get("spec") or {}).get("unschedulable"))
    return NodeUse(
        name=node["metadata"]["name"],
        address=addresses.get("InternalIP") or next(iter(addresses.values()), "unknown"),
        product=labels.get("nvidia.com/gpu.product", ""),
        state=("NotReady" if not_ready(node) else "Ready") + (",SchedulingDisabled" if off else ""),
        uses=uses,
        pool=labels.get(POOL_LABEL, ""),
    )


def _waits(pod: Object, claims: Sequence[Object], classes: Collection[str], known: Collection[str]) -> Waiting | None:
    """`known`: what any node has; of what none has a name of the vendor's may be one that was mistyped."""
    domains = (WHOLE.partition("/")[0], MEMORY.partition("/")[0])
    resources = {
        name
        for container in (*(pod["spec"].get("containers") or []), *(pod["spec"].get("initContainers") or []))
        for given in (container.get("resources") or {}).values()
        if isinstance(given, Mapping)
        for name in given
        if is_gpu_resource(name) or (name not in known and name.partition("/")[0] in domains)
    }
    asks = {name: asked(pod, name) for name in sorted(resources)} | _claimed(pod, claims, classes)
    return Waiting(**_name(pod), asks=asks, why=unschedulable(pod)) if asks else None


_KINDS = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig"}  # of NVIDIA's device classes; gpunode's are of GPUs


def _claimed(pod: Object, claims: Sequence[Object], classes: Collection[str]) -> dict[str, int]:
    """What the pod's claims ask NVIDIA's driver for: devices, or MiB where they ask for memory.

    `classes`: those whose selectors name the driver, whatever they are called.
    """
    status = {one.get("name"): one.get("resourceClaimName") for one in mappings(mapping(pod, "status"), _STATUSES)}
    given = mappings(pod["spec"], "resourceClaims")
    names = {one.get("resourceClaimName") or status.get(one.get("name")) for one in given}
    asks: dict[str, int] = {}
    for claim in claims:
        metadata = claim["metadata"]
        if metadata["name"] not in names or metadata.get("namespace") != pod["metadata"]["namespace"]:
            continue
        for request in mappings(mapping(claim, "spec", "devices"), "requests"):
            one = mapping(request, "exactly") or next(iter(mappings(request, "firstAvailable")), request)
            device_class = str(one.get("deviceClassName"))
            ours = device_class in classes or device_class.endswith(".gpunode") or _names_driver(one)
            if kind := _KINDS.get(device_class, "gpu" if ours else ""):
                memory = mapping(one, "capacity", "requests").get("memory")
                amount = quantity(memory) // _MIB if memory else quantity(one.get("count") or 1)
                name = f"{DRIVER}/{kind}" + (" (MiB)" if memory else "")
                asks[name] = asks.get(name, 0) + amount
    return asks


def _names_driver(holder: Any) -> bool:
    """Whether a selector of a class or a request names NVIDIA's driver of GPUs as a text of CEL."""
    expressions = [str(mapping(one, "cel").get("expression", "")) for one in mappings(holder, "selectors")]
    return any(f"{quote}{DRIVER}{quote}" in text for text in expressions for quote in "'\"")


def _name(pod: Object) -> dict[str, str]:
    return {"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"]}


# ---------------------------------------------------------------- as a table

_TITLES: dict[Kind, str] = {
    "gpu": "GPUs",
    "slices": "Shares of GPUs",
    "mig": "MIG instances",
    "gpushare": "GPU Memory",
    "dra": "GPUs by DRA",
    "dra-memory": "GPU Memory by DRA",
}
Row = list[str]
_LONGEST = 320  # characters: a resource's name has at most 253 + 1 + 63


def usage_text(cluster: Usage, *, details: bool = False) -> str:
    """A table for each kind of sharing; with details what each pod holds, node by node."""
    parts = []
    for kind in _TITLES:
        rows = [(node, use) for node in cluster.nodes for use in node.uses if use.kind == kind]
        if rows:
            parts.append("\n".join(_details(kind, rows) if details else _summary(kind, rows)))
    if cluster.waiting:
        parts.append("\n".join(_waiting(cluster)))
    if cluster.unready:
        parts.append("\n".join(["Not ready:", *(f"  {one}" for one in cluster.unready)]))
    if cluster.errors:
        parts.append("\n".join(["Not read, and missing above:", *(f"  {error}" for error in cluster.errors)]))
    return "\n\n".join(parts) + "\n" if parts else "no node offers GPUs\n"


def usage_data(cluster: Usage) -> dict[str, Any]:
    """The shape of `gpunode kube status --format json` (docs/kubernetes.md)."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    for node in cluster.nodes:
        for use in node.uses:
            total = totals.setdefault((use.kind, use.resource, use.unit), [0, 0])
            total[0] += use.allocated
            total[1] += use.total
    return {
        "nodes": [asdict(node) for node in cluster.nodes],
        "waiting": [asdict(pod) for pod in cluster.waiting],
        "unready": list(cluster.unready),
        "errors": list(cluster.errors),
        "cluster": [
            {"kind": kind, "resource": resource, "unit": unit, "allocated": allocated, "total": total}
            for (kind, resource, unit), (allocated, total) in sorted(totals.items())
        ],
    }


def columns(rows: Sequence[Row]) -> Iterator[str]:
    """Rows padded to columns with two blanks between them; a cell that is longer than any name may be is cut."""
    rows = [[cell if len(cell) <= _LONGEST else f"{cell[: _LONGEST - 1]}…" for cell in row] for row in rows]
    count = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(count)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()


def _summary(kind: Kind, rows: Sequence[tuple[NodeUse, Use]]) -> Iterator[str]:
    unit = f"({_units(rows)})" if _units(rows) else ""
    single = kind in ("gpushare", "dra", "dra-memory")
    gpus = max(len(use.gpus) for _, use in rows) if single else 0
    pending = any(use.pending for _, use in rows)
    named = kind in ("mig", "dra", "dra-memory") or any(use.resource != rows[0][1].resource for _, use in rows)
    pools = any(node.pool for node, _ in rows)
    head = ["NAME", "IPADDRESS", *(["POOL"] if pools else []), *(["RESOURCE"] if named else [])]
    head += ["PER GPU"] if kind == "slices" else []
    head += [f"GPU{i}(Allocated/Total)" for i in range(gpus)]
    head += ["PENDING(Allocated)"] if pending else []
    head += [f"{_TITLES[kind]}{unit}" if single else f"{_TITLES[kind]}(Allocated/Total)"]
    table = [head]
    for node, use in rows:
        off = "" if node.state == "Ready" else f"  {node.state}"
        row = [node.name, node.address, *([node.pool or "-"] if pools else []), *([use.resource] if named else [])]
        row += [str(use.replicas)] if kind == "slices" else []
        row += [f"{g.allocated}/{g.total}" for g in use.gpus] if single else []
        row += ["-"] * (gpus - len(use.gpus)) if single else []
        row += [str(use.pending)] if pending else []
        table.append([*row, f"{use.allocated}/{use.total}{off}"])
    lines = list(columns(table))
    yield from lines
    yield "-" * max(map(len, lines))
    yield from _total(kind, rows)


def _total(kind: Kind, rows: Sequence[tuple[NodeUse, Use]]) -> Iterator[str]:
    allocated, total = sum(use.allocated for _, use in rows), sum(use.total for _, use in rows)
    yield f"Allocated/Total {_TITLES[kind]} In Cluster:"
    yield f"{allocated}/{total} ({100 * allocated // total if total else 0}%)"
    for node, use in rows:
        for gpu in use.gpus:
            if gpu.allocated > gpu.total:
                name = gpu.name if use.kind == "dra-memory" else f"GPU{gpu.name}"
                yield f"Over-committed: {name} of {node.name}, {gpu.allocated} of {gpu.total} {use.unit}"


def _details(kind: Kind, rows: Sequence[tuple[NodeUse, Use]]) -> Iterator[str]:
    for node, use in rows:
        product = [["PRODUCT:", node.product]] if node.product else []
        yield from columns([["NAME:", node.name], ["IPADDRESS:", node.address], ["RESOURCE:", use.resource], *product])
        yield ""
        names = [gpu.name for gpu in use.gpus]
        head = ["NAME", "NAMESPACE", *(f"{'GPU' if kind == 'gpushare' else ''}{name}(Allocated)" for name in names)]
        head += ["Pending(Allocated)"] if use.pending else []
        head += [] if names else ["Allocated"]
        table = [head]
        for pod in use.pods:
            row = [pod.name, pod.namespace, *(str(pod.gpus.get(name, 0)) for name in names)]
            row += [str(0 if pod.gpus else pod.amount)] if use.pending else []
            table.append([*row, *([] if names else [str(pod.amount)])])
        lines = list(columns(table))
        yield from lines
        percent = 100 * use.allocated // use.total if use.total else 0
        yield f"Allocated : {use.allocated} ({percent}%)"
        yield f"Total :     {use.total}"
        yield "-" * max(map(len, lines))
    yield from _total(kind, rows)


def _units(rows: Sequence[tuple[NodeUse, Use]]) -> str:
    return "/".join(dict.fromkeys(use.unit for _, use in rows if use.unit))


def _waiting(found: Usage) -> Iterator[str]:
    yield f"Waiting for GPUs: {len(found.waiting)} pods"
    table = [["NAME", "NAMESPACE", "ASKS FOR", "WHY"]]
    for pod in found.waiting:
        asks = ", ".join(f"{count} {name}" for name, count in pod.asks.items())
        table.append([pod.name, pod.namespace, asks, pod.why])
    yield from columns(table)
