"""`gpunode_scheduler` and `gpunode_kubelet` of the roles: a component of a node, as probed, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode.core.edits.kubernetes.kubelet import UNITS as KUBELET_UNITS
from gpunode.core.edits.kubernetes.kubelet import KubeletRequest, kubelet_target
from gpunode.core.edits.kubernetes.kubelet import completed as completed_kubelet
from gpunode.core.edits.kubernetes.scheduler import (
    MANIFEST,
    UNITS,
    SchedulerRequest,
    completed,
    scheduler_target,
    with_prefix,
)
from gpunode.core.edits.target import EditTarget, Files
from gpunode.core.edits.undo import recorded_edits
from gpunode.core.errors import InputError
from gpunode.core.knowledge.scheduler import SchedulerRules
from gpunode.core.model import ConfigFile, Undo
from gpunode.core.spec import parse_spec
from gpunode.core.validation import check_keys, mapping, number, text

RECORDS = "/var/lib/gpunode/backup/*/undo.json"
_STATE = text("What is to be there.", choices=("present", "absent"))
_VERSION = text("Release of Kubernetes, such as 1.34; by default the one that is found.")
SHAPES = {
    "scheduler": mapping(
        "What is asked of kube-scheduler.",
        state=_STATE,
        server_version=_VERSION,
        manifest=text("Path of its static pod's manifest."),
        unit=text("Path of its unit, in place of a manifest."),
        extender_url=text("URL of the extender."),
        proxy_mode=text("Mode of kube-proxy.", choices=("", "iptables", "ipvs", "nftables")),
        node_port=number("Port of the extender's service on the node."),
        node_address=text("Address of the node."),
        config=text("Path of the scheduler's configuration."),
    ),
    "kubelet": mapping(
        "What is asked of the kubelet.",
        state=_STATE,
        server_version=_VERSION,
        unit=text("Path of its unit."),
        cgroup_driver=text("Its cgroup driver.", choices=("", "systemd", "cgroupfs")),
        node_labels=mapping("Labels that the node registers with."),
        system_reserved=mapping("Resources that are kept for the system."),
        kube_reserved=mapping("Resources that are kept for Kubernetes."),
    ),
}
_PAIRS = ("node_labels", "system_reserved", "kube_reserved")


def component_paths(value: Mapping[str, Any]) -> tuple[str, ...]:
    """What to read first: what can start the component, and the records of earlier edits."""
    named = [str(value[key]) for key in ("manifest", "unit") if value.get(key)]
    return (*named, MANIFEST, *UNITS, *KUBELET_UNITS, RECORDS)


def component_target(kind: str, value: Mapping[str, Any], files: Files, rules: SchedulerRules) -> EditTarget:
    """{state, server_version, …} of a role's option → what is asked; `files` are those of component_paths.

    Raises InputError for what makes no sense, RefusedError where the node has no such component.
    """
    asked = _checked(kind, value)
    if kind == "scheduler":
        return scheduler_target(completed(files, SchedulerRequest(**asked)), rules)
    return kubelet_target(completed_kubelet(files, KubeletRequest(**asked)), rules)


def spec_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a spec's kubernetes.gpushare says of where the extender answers, as keys of `gpunode_scheduler`.

    Only what is written there counts: without it an extender that is there keeps its URL.  Raises InputError.
    """
    gpushare = parse_spec(data).kubernetes.gpushare
    written = (data.get("kubernetes") or {}).get("gpushare") or {}
    if gpushare.extender_url:
        return {"extender_url": with_prefix(gpushare.extender_url)}
    if gpushare.kube_proxy == "none" and written:
        raise InputError(
            "kubernetes.gpushare.kube_proxy is none", expected="kubernetes.gpushare.extender_url with it", fix="set it"
        )
    named = {"kube_proxy": "proxy_mode", "node_port": "node_port"}
    return {named[key]: getattr(gpushare, key) for key in named if key in written}


def absent(value: Mapping[str, Any]) -> bool:
    """Whether the edit is to be undone."""
    if value.get("state", "present") not in ("present", "absent"):
        raise InputError(f"state is {value['state']!r}", expected="present or absent")
    return value.get("state") == "absent"


def _checked(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    shape = SHAPES[kind]
    check_keys(f"{kind} edit", value, shape.keys)
    for key, given in value.items():
        choices = shape.keys[key].choices
        if key != "state" and choices and given not in choices:
            raise InputError(f"{kind} edit: {key} is {given!r}", expected=f"one of {', '.join(choices[1:])}")
        if key in _PAIRS and not isinstance(given, Mapping):
            raise InputError(f"{kind} edit: {key} is {given!r}", expected="a mapping")
    return {key: _value(key, given) for key, given in value.items() if key != "state"}


def _value(key: str, given: Any) -> Any:
    if key in _PAIRS:
        return {str(name): _text(one) for name, one in given.items()}
    if key != "node_port":
        return str(given)
    if not str(given).isdecimal() or not 0 < int(given) < 65536:
        raise InputError(f"scheduler edit: node_port is {given!r}", expected="a port, 1 to 65535")
    return int(given)


def _text(value: Any) -> str:
    """A label or quantity as YAML has it, as the text that was meant: true is a boolean there."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def records(files: Mapping[str, ConfigFile], label: str) -> dict[str, Mapping[str, Undo]]:
    """What edits of that label left in the node's journal, newest first: id → record."""
    return recorded_edits({path: file.data or b"" for path, file in files.items()}, label)
