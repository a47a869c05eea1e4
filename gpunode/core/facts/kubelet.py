"""Which engine the kubelet runs pods on, and which cgroup driver each of the two has.

Sources: kubernetes.io container-runtimes and kubelet-config-v1beta1; KEP-4033 (the kubelet asks the engine for the
driver: containerd 2.0 and CRI-O 1.28 answer; asked by default from 1.31 on).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from gpunode.core.engines import ROWS
from gpunode.core.late import dataclass
from gpunode.core.model import Kubernetes, NodeFacts, Runtime
from gpunode.core.numbers import release

_DOCKER_SOCKETS = ("/run/cri-dockerd.sock", "/run/k3s/cri-dockerd/cri-dockerd.sock")
# what says the kubelet's driver where no flag does
_KUBELET_CONFIGS = (
    "/var/lib/kubelet/config.yaml",
    "/etc/kubernetes/kubelet/config.json",
    "/run/k0s/kubelet/config.yaml",
    "/var/lib/k0s/kubelet-config.yaml",
    "/var/snap/microk8s/current/args/kubelet",
)
_DISTRIBUTIONS = ("k3s", "rke2", "k0s", "microk8s")


def kubelet_engine(facts: NodeFacts) -> Runtime | None:
    """The engine whose socket the kubelet uses; None without a kubelet, or where no engine found has that socket."""
    return _engine(facts.runtimes, facts.kubernetes)


def kubelets_first(runtimes: Iterable[Runtime], kubernetes: Kubernetes) -> tuple[Runtime, ...]:
    """The engines with the kubelet's in front: of two containerd the one that matters is found by its name."""
    found = tuple(runtimes)
    first = _engine(found, kubernetes)
    return tuple(sorted(found, key=lambda runtime: runtime is not first)) if _twice(found) else found


def _twice(runtimes: tuple[Runtime, ...]) -> bool:
    return len({runtime.name for runtime in runtimes}) < len(runtimes)


def _same_name(socket: str, sockets: Iterable[str]) -> bool:
    return any(posixpath.basename(socket) == posixpath.basename(one) for one in sockets)


def _engine(runtimes: Iterable[Runtime], kubernetes: Kubernetes) -> Runtime | None:
    if not kubernetes.present:
        return None
    socket = re.sub(r"\A/var/run/", "/run/", kubernetes.cri_socket)
    if socket in _DOCKER_SOCKETS:
        return _named(runtimes, "docker")
    other = next((n for n, row in ROWS.items() if n != "containerd" and _same_name(socket, row.sockets)), "")
    if other:
        return _named(runtimes, other)
    containerds = [runtime for runtime in runtimes if runtime.name == "containerd"]
    if socket in ("", "/run/containerd/containerd.sock"):
        return next((one for one in containerds if not one.distribution), None)
    if kubernetes.kind in _DISTRIBUTIONS:
        return next((one for one in containerds if one.distribution == kubernetes.kind), None)
    return next((one for one in containerds if one.socket == socket), None)


def _named(runtimes: Iterable[Runtime], name: str) -> Runtime | None:
    return next((runtime for runtime in runtimes if runtime.name == name), None)


# ---------------------------------------------------------------- cgroup drivers


@dataclass(frozen=True)
class Driver:
    """A cgroup driver, systemd or cgroupfs, and what says so; ("", why not) where it is not known."""

    value: str
    source: str


def engine_driver(facts: NodeFacts, runtime: Runtime) -> Driver:
    """The driver of an engine's default runtime."""
    unread = [path for path in runtime.files if path not in facts.files or facts.files[path].data is None]
    if runtime.cgroup_driver:
        root = next(iter(runtime.files), runtime.config)
        return Driver(runtime.cgroup_driver, f"its configuration, {root}" if runtime.files else "its default")
    if unread or runtime.effective_error or "files" in facts.unread:
        return Driver("", f"{runtime.name}'s configuration could not be read")
    return Driver("cgroupfs", f"{runtime.name}'s default")


def kubelet_driver(facts: NodeFacts) -> Driver:
    """The driver that the kubelet uses: asked of the engine, given by a flag or a file, or its default."""
    kubernetes, engine = facts.kubernetes, kubelet_engine(facts)
    if engine and follows_engine(engine, kubernetes):
        found = engine_driver(facts, engine)
        return Driver(found.value, f"{engine.name}, which this kubelet asks (KubeletCgroupDriverFromCRI)")
    if kubernetes.cgroup_driver:
        return Driver(kubernetes.cgroup_driver, kubernetes.cgroup_source or "its configuration")
    if engine and engine.distribution in ("k3s", "rke2"):
        return Driver(engine_driver(facts, engine).value, f"{engine.distribution}, which sets both alike")
    known = any(path in facts.files and facts.files[path].data is not None for path in _KUBELET_CONFIGS)
    return Driver("cgroupfs", "its default") if known else Driver("", "no kubelet configuration was read")


def follows_engine(engine: Runtime, kubernetes: Kubernetes) -> bool:
    """Whether the kubelet has the driver that its engine has, whatever that is: it asks, and the engine answers."""
    return _asks(kubernetes) and _answers(engine, kubernetes)


def _asks(kubernetes: Kubernetes) -> bool:
    """Whether the kubelet asks the engine: a feature gate, on from 1.31, always from 1.34."""
    number, gate = release(kubernetes.kubelet), kubernetes.cgroup_from_cri
    return number >= (1, 34) or (gate if gate is not None else number >= (1, 31))


def _answers(engine: Runtime, kubernetes: Kubernetes) -> bool:
    number = release(engine.version)
    if engine.name == "crio":
        return number >= (1, 28) or number == (0, 0)
    if engine.distribution and number >= (1, 20):  # the distribution's own version: containerd 2 came with 1.36
        return engine.distribution in ("k0s", "microk8s") and (1, 36) <= number < (2, 0)
    return engine.name == "containerd" and number >= (2, 0)
