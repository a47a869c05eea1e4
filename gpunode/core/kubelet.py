"""Which engine the kubelet runs pods on, and whether both have the same cgroup driver.

Sources: kubernetes.io container-runtimes and kubelet-config-v1beta1; KEP-4033 (the kubelet asks the engine for the
driver: containerd 2.0 and CRI-O 1.28 answer; asked by default from 1.31 on).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpunode.core.model import Kubernetes, NodeFacts, Runtime

_DOCKER_SOCKETS = ("/run/cri-dockerd.sock", "/run/dockershim.sock", "/run/k3s/cri-dockerd/cri-dockerd.sock")
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


def _engine(runtimes: Iterable[Runtime], kubernetes: Kubernetes) -> Runtime | None:
    if not kubernetes.kind and not kubernetes.kubelet:
        return None
    socket = re.sub(r"\A/var/run/", "/run/", kubernetes.cri_socket)
    if socket in _DOCKER_SOCKETS or (not socket and release(kubernetes.kubelet) < (1, 24)):
        return _named(runtimes, "docker")
    if socket.endswith("/crio.sock"):
        return _named(runtimes, "crio")
    own = socket == "/run/containerd/containerd.sock" or not socket
    bring = "" if own else kubernetes.kind if kubernetes.kind in _DISTRIBUTIONS else None
    return next(
        (
            r
            for r in runtimes
            if r.name == "containerd" and (r.distribution == bring if bring is not None else r.socket == socket)
        ),
        None,
    )


def _named(runtimes: Iterable[Runtime], name: str) -> Runtime | None:
    return next((runtime for runtime in runtimes if runtime.name == name), None)


def release(version: str) -> tuple[int, int]:
    """Major and minor of a version, (99, 0) where it is unknown: as new as can be."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (99, 0)
