"""Which engine the kubelet runs pods on, and whether it asks that for its cgroup driver.

Sources: kubernetes.io container-runtimes and kubelet-config-v1beta1; KEP-4033 (the kubelet asks the engine for the
driver: containerd 2.0 and CRI-O 1.28 answer; asked by default from 1.31 on).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from gpunode.core.engines import CRI_DOCKERD, DISTRIBUTIONS, ROWS
from gpunode.core.model import Kubernetes, NodeFacts, Runtime
from gpunode.core.numbers import release


def kubelet_engine(facts: NodeFacts) -> Runtime | None:
    """The engine whose socket the kubelet uses; None without a kubelet, or where no engine found has that socket."""
    return _engine(facts.runtimes, facts.kubernetes)


def kubelets_first(runtimes: Iterable[Runtime], kubernetes: Kubernetes) -> tuple[Runtime, ...]:
    """The engines with the kubelet's in front: of two containerd the one that matters is found by its name."""
    found = tuple(runtimes)
    first = _engine(found, kubernetes)
    twice = len({runtime.name for runtime in found}) < len(found)
    return tuple(sorted(found, key=lambda runtime: runtime is not first)) if twice else found


def _engine(runtimes: Iterable[Runtime], kubernetes: Kubernetes) -> Runtime | None:
    if not kubernetes.present:
        return None
    socket = re.sub(r"\A/var/run/", "/run/", kubernetes.cri_socket)
    if socket in CRI_DOCKERD:
        return _named(runtimes, "docker")
    called = posixpath.basename(socket)
    of_others = (n for n, row in ROWS.items() if n != "containerd" and called in map(posixpath.basename, row.sockets))
    if other := next(of_others, ""):
        return _named(runtimes, other)
    containerds = [runtime for runtime in runtimes if runtime.name == "containerd"]
    if socket in ("", *ROWS["containerd"].sockets):
        return next((one for one in containerds if not one.distribution), None)
    if kubernetes.kind in DISTRIBUTIONS:
        return next((one for one in containerds if one.distribution == kubernetes.kind), None)
    return next((one for one in containerds if one.socket == socket), None)


def _named(runtimes: Iterable[Runtime], name: str) -> Runtime | None:
    return next((runtime for runtime in runtimes if runtime.name == name), None)


def follows_engine(engine: Runtime, kubernetes: Kubernetes) -> bool:
    """Whether the kubelet has the driver that its engine has, whatever that is: it asks, and the engine answers.

    It asks by a feature gate, on from 1.31, always from 1.34.
    """
    kubelet, gate = release(kubernetes.kubelet), kubernetes.cgroup_from_cri
    if kubelet < (1, 34) and not (gate if gate is not None else kubelet >= (1, 31)):
        return False
    number = release(engine.version)
    if engine.name == "crio":
        return number >= (1, 28) or number == (0, 0)
    if engine.distribution and number >= (1, 20):  # the distribution's own version: containerd 2 came with 1.36
        return engine.distribution in ("k0s", "microk8s") and (1, 36) <= number < (2, 0)
    return engine.name == "containerd" and number >= (2, 0)
