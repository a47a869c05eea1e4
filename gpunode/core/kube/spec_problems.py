"""What of the section `kubernetes` would make objects that no server takes, told by the key of the spec."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping

from gpunode.core.errors import InputError
from gpunode.core.kube.checks import words
from gpunode.core.kube.checks.pod import toleration
from gpunode.core.spec.kubernetes import KubernetesSpec

_REGISTRY = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:\d{1,5})?(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*/?")
_URL = re.compile(r"https?://[^/\s?#]+(/[^\s?#]*)?")


def check_spec(spec: KubernetesSpec, known_labels: Collection[str]) -> None:
    """Raise InputError for the first thing that is wrong."""
    for key, told, fix in _faults(spec, known_labels):
        raise InputError(f"kubernetes.{key}: {told}", fix=fix)


def _faults(spec: KubernetesSpec, known: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Key, what is wrong, what to do."""
    for key, told in _names(spec):
        if told:
            yield key, told, "choose another"
    selectors = {
        "node_selector": spec.node_selector,
        "runtime_class.node_selector": spec.runtime_class.node_selector,
    }
    for key, found in (*selectors.items(), ("monitoring.labels", spec.monitoring.labels)):
        yield from (
            (key, told.removeprefix(": "), "see kubectl get nodes --show-labels") for told in words.labels(found, "")
        )
    for key, found in selectors.items():
        yield from _typos(key, found, known)
    for one in spec.tolerations:
        yield from (("tolerations", told.removeprefix("[]"), "mend it") for told in toleration(one.given, ""))
    for component, image in spec.images.names.items():
        if told := words.image(image):
            yield f"images.names.{component}", told, "write NAME:TAG, with its registry in front"
    if spec.images.registry and not _REGISTRY.fullmatch(spec.images.registry):
        yield (
            "images.registry",
            f"{spec.images.registry!r} is no registry",
            "write HOST[:PORT][/PATH], without https://",
        )
    if spec.gpushare.extender_url and not _URL.fullmatch(spec.gpushare.extender_url):
        yield "gpushare.extender_url", f"{spec.gpushare.extender_url!r} is no URL", "write http://HOST:PORT"
    if not 1 <= spec.gpushare.node_port <= 65535:
        yield "gpushare.node_port", f"{spec.gpushare.node_port} is no port", "choose one of 30000 to 32767"
    if not re.fullmatch(r"(\d+(ms|s|m|h))+", spec.monitoring.interval):
        yield "monitoring.interval", f"{spec.monitoring.interval!r} is no duration", "write it as 30s"
    if not spec.kubelet_dir.startswith("/"):
        yield "kubelet_dir", f"{spec.kubelet_dir!r} is no absolute path", "write it as /var/lib/kubelet"


def _names(spec: KubernetesSpec) -> Iterator[tuple[str, str]]:
    """A pool's name is a label's value, and a ConfigMap's key."""
    yield "pool", words.label_value(spec.pool) if spec.pool else "'' is no name"
    yield "namespace", words.label_name(spec.namespace)
    yield "runtime_class.handler", words.label_name(spec.runtime_class.handler)
    if spec.runtime_class.name:
        yield "runtime_class.name", words.subdomain(spec.runtime_class.name)
    if spec.device_plugin.priority_class:
        yield "device_plugin.priority_class", words.subdomain(spec.device_plugin.priority_class)
    yield from (("images.pull_secrets", words.subdomain(name)) for name in spec.images.pull_secrets)


def _typos(key: str, found: Mapping[str, str], known: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """A selector that is nearly a known label would choose no node, and nobody would say so."""
    for label in found:
        near = difflib.get_close_matches(label, known, n=1, cutoff=0.92)
        if label not in known and near:
            yield key, f"{label!r} is no label that nodes carry", f"did you mean {near[0]!r}?"
