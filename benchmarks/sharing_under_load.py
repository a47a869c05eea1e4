"""200 pods that share the GPUs of 20 nodes: how fast they are bound, what is over-committed, what lies idle.

Real etcd, API server, controllers, kube-scheduler and gpushare extender, from the folder that GPUNODE_KUBERNETES names;
the extender's rights and kube-scheduler's configuration are those that gpunode makes.  Nodes are objects alone, and
kubelets a loop here that says Running.  Every change of a pod or claim is read from the API's watch, in its order: a
GPU is over-committed when after any of them the pods on it hold more than it has.  Without the folder this says so and
measures nothing.
`python -m benchmarks.sharing_under_load gpushare dra`: these alone.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

from benchmarks.control_plane import ControlPlane, control_plane, wait_for
from benchmarks.measure import GPUNODE, log, row, run
from gpunode.core.spec import parse_spec
from gpunode.edge.load import load_kube_knowledge
from gpunode.kube.core import Object
from gpunode.kube.core.api_error import ApiError
from gpunode.kube.core.cluster import cluster_of
from gpunode.kube.core.owned import key_of
from gpunode.kube.core.quantity import quantity
from gpunode.kube.core.render import render
from gpunode.kube.core.render.dra import DRIVER, claim_template, memory_class
from gpunode.kube.core.render.gpushare import COUNT, EXTENDER, MEMORY
from gpunode.kube.edge.client import Api, Retry
from gpunode.kube.edge.kubeconfig import connect

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "gpushare-sche-extender")
NODES, PODS, GPUS, GIB = 20, 200, 2, 16  # GPUs of a node, memory of a GPU
SIZES = (1, 1, 1, 2, 2, 2, 3, 3, 5, 8, 8)  # GiB
KILLS = 5
GRACE = 10  # seconds that a pod takes to end
QUIET, LONGEST = 15.0, 300.0  # seconds without a change after which nothing more is awaited; at most
NAMESPACE = "default"
PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
DRA = "resource.k8s.io/v1"
FIRST_WITH_SHARES = 36  # minor version that has them on by default
MANIFEST = """apiVersion: v1
kind: Pod
metadata: {name: kube-scheduler, namespace: kube-system}
spec:
  containers:
  - name: kube-scheduler
    image: registry.k8s.io/kube-scheduler:v%s
    command: [kube-scheduler, --kubeconfig=/etc/kubernetes/scheduler.conf, --leader-elect=false]
"""
Gpu = tuple[str, str]  # node, GPU


def sizes(count: int = PODS, seed: int = 1, filled: float = 1.0) -> list[int]:
    """GiB of each pod, in the order in which they come; together so much of the cluster's memory."""
    rng, goal = random.Random(seed), int(NODES * GPUS * GIB * filled)
    found = [rng.choice(SIZES) for _ in range(count)]
    while (wrong := goal - sum(found)) != 0:
        at = rng.randrange(count)
        found[at] = min(GIB, max(1, found[at] + (1 if wrong > 0 else -1)))
    return found


@dataclass
class Packing:
    """How well pods are packed: those that found room, and the GPUs in use when half of the memory was."""

    pods: int = 0
    gib: int = 0
    half: int = 0

    def __str__(self) -> str:
        return f"{self.pods} pods with {self.gib} GiB, {self.half} GPUs in use when half of the memory was"


def best_fit(wanted: Sequence[int]) -> Packing:
    """Each pod, as they come, on the GPU of the whole cluster with the least memory that is enough."""
    free, found = [GIB] * (NODES * GPUS), Packing()
    for size in wanted:
        room = [at for at, left in enumerate(free) if left >= size]
        if not room:
            continue
        free[min(room, key=lambda at: free[at])] -= size
        found.pods, found.gib = found.pods + 1, found.gib + size
        if not found.half and found.gib * 2 >= NODES * GPUS * GIB:
            found.half = sum(left < GIB for left in free)
    return found


# ---------------------------------------------------------------- history


@dataclass
class History:
    """Every change of the objects at a path, as the API's watch tells them; `use` says what an object holds of what."""

    api: Api
    path: str
    use: Callable[[Object], Mapping[Gpu, int]]
    has: Callable[[Gpu], int]
    live: dict[str, Object] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)  # name → when it first held something
    worst: dict[Gpu, tuple[int, str, tuple[str, ...]]] = field(default_factory=dict)  # most, resourceVersion, holders
    changed: float = field(default_factory=time.monotonic)
    events: int = 0
    broken: str = ""
    half: int = 0  # GPUs in use when half of the memory was
    _on: dict[Gpu, dict[str, int]] = field(default_factory=dict)
    _held: dict[str, Mapping[Gpu, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def follow(self) -> None:
        """Start reading, from now on."""
        listed = self.api.request("GET", self.path, query={"limit": "1"})
        since = listed["metadata"]["resourceVersion"]
        threading.Thread(target=self._read, args=(since,), daemon=True).start()

    def _read(self, since: str) -> None:
        query = {"watch": "true", "resourceVersion": since, "timeoutSeconds": "3600"}
        for event in self.api.events(self.path, query):
            with self._lock:
                self._take(event["type"], event["object"])
        self.broken = "the watch ended"

    def _take(self, kind: str, item: Object) -> None:
        name = item["metadata"]["uid"]
        self.events += 1
        use = {} if kind == "DELETED" else self.use(item)
        if kind == "DELETED":
            self.live.pop(name, None)
        else:
            self.live[name] = item
        if use != self._held.get(name, {}):
            self.changed = time.monotonic()
        for gpu in self._held.pop(name, {}):
            self._on[gpu].pop(name)
        if use:
            self.bound.setdefault(item["metadata"]["name"], time.monotonic())
            self._held[name] = use
        for gpu, amount in use.items():
            on = self._on.setdefault(gpu, {})
            on[name] = amount
            total = sum(on.values())
            if total > max(self.has(gpu), self.worst.get(gpu, (0,))[0]):
                holders = tuple(self.live[one]["metadata"]["name"] for one in on)
                self.worst[gpu] = total, item["metadata"]["resourceVersion"], holders
        used = [sum(on.values()) for on in self._on.values() if on]
        if not self.half and sum(used) * 2 >= NODES * GPUS * GIB:
            self.half = len(used)

    def holding(self) -> dict[Gpu, int]:
        """What is in use now."""
        with self._lock:
            return {gpu: sum(on.values()) for gpu, on in self._on.items() if on}

    def objects(self) -> list[Object]:
        with self._lock:
            return list(self.live.values())

    def settle(self) -> None:
        """Wait until nothing has changed for a while."""
        deadline = time.monotonic() + LONGEST
        while time.monotonic() < deadline and time.monotonic() - self.changed < QUIET:
            if self.broken:
                raise SystemExit(f"{self.path}: {self.broken}")
            time.sleep(0.2)


def _runs(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName")) and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _asked(pod: Object, resource: str) -> int:
    return sum(quantity(c.get("resources", {}).get("limits", {}).get(resource, "0")) for c in pod["spec"]["containers"])


def gpushare_use(pod: Object) -> dict[Gpu, int]:
    index = pod["metadata"].get("annotations", {}).get("ALIYUN_COM_GPU_MEM_IDX")
    return {(pod["spec"]["nodeName"], index): _asked(pod, MEMORY)} if _runs(pod) and index is not None else {}


def resource_use(resource: str) -> Callable[[Object], dict[Gpu, int]]:
    return lambda pod: {(pod["spec"]["nodeName"], ""): _asked(pod, resource)} if _runs(pod) else {}


def bound_use(pod: Object) -> dict[Gpu, int]:
    return {(pod["spec"]["nodeName"], ""): 1} if _runs(pod) else {}


def claim_use(claim: Object) -> dict[Gpu, int]:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    whole = f"{GIB}Gi"
    return {
        (one["pool"], one["device"]): quantity(one.get("consumedCapacity", {}).get("memory", whole)) >> 30
        for one in results
    }


# ---------------------------------------------------------------- nodes, kubelets, pods


def make_nodes(api: Api, resources: Mapping[str, int], count: int = NODES) -> None:
    for number in range(count):
        name = f"gpu{number:02}"
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "250", **{key: str(n) for key, n in resources.items()}}
        body: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"gpushare": "true"}}}
        api.request("POST", "/api/v1/nodes", body=body)
        ready = {"type": "Ready", "status": "True", "reason": "Bench", "message": ""}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        content = "application/merge-patch+json"
        api.request("PATCH", f"/api/v1/nodes/{name}/status", body={"status": status}, content=content)


@contextmanager
def kubelets(kubeconfig: Path, history: History) -> Iterator[None]:
    """Say of every pod that is bound that it runs, and remove those that shall end after GRACE seconds."""
    api, done = connect(str(kubeconfig)), threading.Event()
    ends: dict[str, float] = {}

    def work() -> None:
        while not done.wait(0.1):
            for pod in history.objects():
                with suppress(ApiError):
                    _as_kubelet(api, pod, ends)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _as_kubelet(api: Api, pod: Object, ends: dict[str, float]) -> None:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    if "deletionTimestamp" in metadata:
        if time.monotonic() > ends.setdefault(metadata["uid"], time.monotonic() + GRACE):
            gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            api.request("DELETE", path, body={"apiVersion": "v1", "kind": "DeleteOptions", **gone})
    elif pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") == "Pending":
        running = [{"name": one["name"], "state": {"running": {}}} for one in pod["spec"]["containers"]]
        status = {"status": {"phase": "Running", "containerStatuses": running}}
        api.request("PATCH", f"{path}/status", body=status, content="application/merge-patch+json")


def pod_of(name: str, limits: Mapping[str, int], claim: str = "") -> Object:
    main: Object = {"name": "main", "image": "none", "resources": {"limits": {k: str(v) for k, v in limits.items()}}}
    spec: Object = {"containers": [main], "terminationGracePeriodSeconds": 60}
    if claim:
        main["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": claim}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def create(api: Api, pods: Sequence[Object]) -> float:
    """Make all of them; when the first one was sent."""
    start = time.monotonic()
    for pod in pods:
        api.request("POST", PODS_PATH, body=pod)
    return start


# ---------------------------------------------------------------- ways of sharing


@dataclass(frozen=True, kw_only=True)
class Way:
    """A cluster that shares GPUs by memory.  `held` is the history of what says which GPU a pod has."""

    name: str
    pods: History
    held: History
    pod: Callable[[str, int], Object]  # name, GiB
    decider: str  # the program that chooses GPUs, and how it is started again
    restart: Callable[[], None]


@contextmanager
def by_gpushare(plane: ControlPlane) -> Iterator[Way]:
    """The extender with the rights that gpunode renders, and kube-scheduler as gpunode configures it."""
    make_nodes(plane.api, {MEMORY: GPUS * GIB, COUNT: GPUS})
    spec = {"sharing": {"strategy": "gpushare"}, "kubernetes": {"server_version": server(plane)}}
    rendered = render(cluster_of({"": parse_spec(spec)}, "", load_kube_knowledge()))
    for item in rendered.objects:
        if item["kind"] in ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"):
            post(plane.api, item)
    token = plane.token_of(rendered.cluster.spec.namespace, EXTENDER)
    kubeconfig = plane.write_kubeconfig(plane.folder / "extender.conf", token)
    environment = {"KUBECONFIG": str(kubeconfig), "PORT": str(plane.ports["extender"]), "LOG_LEVEL": "info"}

    def start() -> None:
        plane.start("gpushare-sche-extender", environment=environment)

    start()
    plane.start_scheduler(scheduler_configuration(plane, f"http://127.0.0.1:{plane.ports['extender']}"))
    pods = History(plane.api, PODS_PATH, gpushare_use, lambda _gpu: GIB)
    pods.follow()
    with kubelets(plane.kubeconfig, pods):
        yield Way(
            name="gpushare", pods=pods, held=pods, pod=lambda name, size: pod_of(name, {MEMORY: size}),
            decider="gpushare-sche-extender", restart=start,
        )  # fmt: skip


@contextmanager
def by_dra(plane: ControlPlane) -> Iterator[Way]:
    """Claims for memory.  The ResourceSlices are ours, and as NVIDIA's driver writes them with its shares of memory."""
    make_nodes(plane.api, {})
    for number in range(NODES):
        post(plane.api, resource_slice(f"gpu{number:02}"))
    shared = memory_class(DRA)
    post(plane.api, shared)
    for size in range(1, GIB + 1):
        post(plane.api, claim_template(DRA, f"memory-{size}", shared["metadata"]["name"], memory=f"{size}Gi"))
    plane.start_scheduler()
    pods = History(plane.api, PODS_PATH, bound_use, lambda _node: PODS)
    claims = History(plane.api, f"/apis/{DRA}/namespaces/{NAMESPACE}/resourceclaims", claim_use, lambda _gpu: GIB)
    pods.follow()
    claims.follow()
    with kubelets(plane.kubeconfig, pods):
        yield Way(
            name="DRA", pods=pods, held=claims, pod=lambda name, size: pod_of(name, {}, claim=f"memory-{size}"),
            decider="kube-scheduler", restart=plane.start_scheduler,
        )  # fmt: skip


def server(plane: ControlPlane) -> str:
    found = re.match(r"v(\d+\.\d+)", plane.api.version())
    assert found
    return found[1]


def server_minor(plane: ControlPlane) -> int:
    return int(server(plane).partition(".")[2])


def scheduler_configuration(plane: ControlPlane, url: str) -> Path:
    """What `gpunode kube scheduler configure` writes next to kubeadm's manifest, with the kubeconfig that is here."""
    root = plane.folder / "root"
    manifests = root / "etc/kubernetes/manifests"
    manifests.mkdir(parents=True)
    (manifests / "kube-scheduler.yaml").write_text(MANIFEST % f"{server(plane)}.0")
    run(GPUNODE, "kube", "scheduler", "configure", "--root", root, "--extender-url", f"{url}/gpushare-scheduler")
    written = yaml.safe_load((root / "etc/kubernetes/scheduler-policy-config.yaml").read_text())
    written["clientConnection"]["kubeconfig"] = str(plane.folder / "scheduler.conf")
    path = plane.folder / "scheduler.yml"
    path.write_text(yaml.safe_dump(written))
    return path


def resource_slice(node: str) -> Object:
    whole = f"{GIB}Gi"
    policy = {"default": whole, "validRange": {"min": "1Mi", "max": whole, "step": "1Mi"}}
    device = {
        "attributes": {"type": {"string": "gpu"}},
        "capacity": {"memory": {"value": whole, "requestPolicy": policy}},
        "allowMultipleAllocations": True,
    }
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{index}", **device} for index in range(GPUS)],
    }
    return {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def post(api: Api, item: Object) -> None:
    api.apply(key_of(item), item, force=True)


# ---------------------------------------------------------------- what is measured


def settle(way: Way) -> None:
    way.held.settle()
    way.pods.settle()


def rate(history: History, started: float) -> str:
    seconds = max(history.bound.values(), default=started) - started
    return f"{len(history.bound)} in {seconds:.1f} s: {len(history.bound) / max(seconds, 0.1):.1f} a second"


def over(history: History) -> str:
    """Where, how much, at which resourceVersion."""
    if not history.worst:
        return f"never, in {history.events} changes"
    gpu, (most, version, holders) = max(history.worst.items(), key=lambda one: one[1][0])
    log(f"over-committed: {history.worst}")
    text = f"{len(history.worst)} of {NODES * GPUS} GPUs, at most {most} of {history.has(gpu)} GiB"
    return f"**{text}** (resourceVersion {version}, {len(holders)} pods)"


def full_row(plane: ControlPlane, way: Way, *, kill: bool = False) -> None:
    """As much as all GPUs have is asked for, at once."""
    wanted = sizes()
    started = create(plane.api, [way.pod(f"p{at:03}", size) for at, size in enumerate(wanted)])
    for time_of in range(1, KILLS + 1) if kill else ():
        bound = PODS * time_of // (KILLS + 1)
        wait_for(partial(_has_bound, way.held, bound), f"{bound} bound pods", plane, LONGEST)
        plane.kill(way.decider)
        time.sleep(1)
        way.restart()
    settle(way)
    name = f"{way.name}, {way.decider} killed {KILLS} times and started again" if kill else way.name
    row(f"{name}: {PODS} pods on {NODES} nodes, bound", rate(way.pods, started))
    row(f"{name}: over-committed", over(way.held), "never")
    held = way.held.holding()
    ours = Packing(pods=len(way.pods.bound), gib=sum(held.values()), half=way.held.half)
    row(f"{name}: packed", f"{ours}; best fit: {best_fit(wanted)}")


def _has_bound(history: History, count: int) -> bool:
    return len(history.bound) >= count


def replaced_row(plane: ControlPlane, way: Way, *, by: str) -> None:
    """Half of the pods are replaced while others run: at once by others, or, as a StatefulSet's, when they are gone."""
    wanted, again = sizes(filled=0.8), range(0, PODS, 2)
    create(plane.api, [way.pod(f"p{at:03}", size) for at, size in enumerate(wanted)])
    settle(way)
    log(f"over-committed before: {way.held.worst or 'never'}")
    first = {pod["metadata"]["uid"] for pod in way.pods.objects()}
    new = {at: way.pod(f"p{at:03}" if by == "namesakes" else f"q{at:03}", wanted[at]) for at in again}
    for at in again:
        plane.api.request("DELETE", f"{PODS_PATH}/p{at:03}")
        if by != "namesakes":
            create(plane.api, [new[at]])
    if by == "namesakes":
        _create_when_gone(plane.api, new, time.monotonic() + LONGEST)
    way.pods.changed = time.monotonic()
    settle(way)
    placed = [p for p in way.pods.objects() if p["metadata"]["uid"] not in first and p["spec"].get("nodeName")]
    name = f"{way.name}, half of the pods replaced by {by}"
    row(f"{name}: over-committed", over(way.held), "never")
    row(f"{name}: bound of these", f"{len(placed)} of {len(again)}")
    if way.decider in plane.running and way.name == "gpushare":
        row(f"{name}: memory that the extender counts and no pod holds", leaked(plane, way.held), "none")


def _create_when_gone(api: Api, pods: dict[int, Object], deadline: float) -> None:
    while pods and time.monotonic() < deadline:
        for at in list(pods):
            with suppress(ApiError):  # its namesake is still there
                api.request("POST", PODS_PATH, body=pods[at], retry=Retry(lost_update=False))
                del pods[at]
        time.sleep(0.1)


def leaked(plane: ControlPlane, history: History) -> str:
    """By the extender's own account of what it counts."""
    url = f"http://127.0.0.1:{plane.ports['extender']}/gpushare-scheduler/inspect"
    with urllib.request.urlopen(url, timeout=10) as answer:
        nodes = json.load(answer)["nodes"]
    held = history.holding()
    over = {
        (node["name"], str(gpu["id"])): gpu["usedGPU"] - held.get((node["name"], str(gpu["id"])), 0)
        for node in nodes
        for gpu in node.get("devs") or []
    }
    wrong = {at: amount for at, amount in over.items() if amount}
    log(f"the extender's count minus the pods' memory: {wrong or 'nothing'}")
    return f"{sum(v for v in wrong.values() if v > 0)} GiB on {sum(v > 0 for v in wrong.values())} GPUs"


def shares_row(plane: ControlPlane, name: str, resource: str, replicas: int) -> None:
    """Shares are a count of the node: kube-scheduler alone decides, and the kubelet chooses the GPU."""
    api, total = plane.api, GPUS * replicas
    make_nodes(api, {resource: total})
    plane.start_scheduler()
    history = History(api, PODS_PATH, resource_use(resource), lambda _node: total)
    history.follow()
    with kubelets(plane.kubeconfig, history):
        started = create(api, [pod_of(f"p{at:03}", {resource: 1}) for at in range(PODS)])
        history.settle()
    row(f"{name}, {NODES} nodes × {total} {resource}: {PODS} pods, bound", rate(history, started))
    row(f"{name}: over-committed", over(history), "never")


def gpushare_rows(plane: ControlPlane, measure: Callable[..., None], **how: object) -> None:
    with by_gpushare(plane) as way:
        measure(plane, way, **how)


def dra_rows(plane: ControlPlane, measure: Callable[..., None], **how: object) -> None:
    if server_minor(plane) < FIRST_WITH_SHARES:
        log(f"passed over: Kubernetes 1.{server_minor(plane)} knows no shares of a device's memory")
        return
    with by_dra(plane) as way:
        measure(plane, way, **how)


ROWS: Mapping[str, Callable[[ControlPlane], None]] = {
    "gpushare": lambda plane: gpushare_rows(plane, full_row),
    "gpushare-killed": lambda plane: gpushare_rows(plane, full_row, kill=True),
    "gpushare-replaced": lambda plane: gpushare_rows(plane, replaced_row, by="others"),
    "gpushare-namesakes": lambda plane: gpushare_rows(plane, replaced_row, by="namesakes"),
    "dra": lambda plane: dra_rows(plane, full_row),
    "dra-killed": lambda plane: dra_rows(plane, full_row, kill=True),
    "dra-replaced": lambda plane: dra_rows(plane, replaced_row, by="others"),
    "time-slicing": lambda plane: shares_row(plane, "time-slicing", "nvidia.com/gpu", 4),
    "mps": lambda plane: shares_row(plane, "MPS", "nvidia.com/gpu.shared", 5),
}


def main(names: Sequence[str]) -> int:
    if unknown := set(names) - set(ROWS):
        log(f"no row {', '.join(sorted(unknown))}; there are: {', '.join(ROWS)}")
        return 2
    programs = Path(os.environ.get("GPUNODE_KUBERNETES", ""))
    missing = [name for name in PROGRAMS if not os.access(programs / name, os.X_OK)]
    if not os.environ.get("GPUNODE_KUBERNETES") or missing:
        what = f"{programs} has no {', '.join(missing)}" if os.environ.get("GPUNODE_KUBERNETES") else "no folder given"
        log(f"sharing_under_load passed over: {what}; GPUNODE_KUBERNETES=DIR names one with {', '.join(PROGRAMS)}")
        return 0
    for name in names or ROWS:
        with tempfile.TemporaryDirectory(prefix="gpunode-bench-") as tmp:
            log(f"{name} …")
            folder = Path(os.environ.get("GPUNODE_BENCH_KEEP", tmp), name)
            with control_plane(programs.resolve(), folder) as plane:
                ROWS[name](plane)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
