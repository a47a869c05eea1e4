"""The role options `scheduler_edit` and `kubelet_edit`: a component of a node, as it was probed, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpunode.core.edits.commit import runtime_request
from gpunode.core.edits.engine import Component
from gpunode.core.edits.kubernetes.kubelet import UNITS as KUBELET_UNITS
from gpunode.core.edits.kubernetes.kubelet import KubeletRequest, check_kubelet_request, kubelet_component
from gpunode.core.edits.kubernetes.kubelet import completed as completed_kubelet
from gpunode.core.edits.kubernetes.scheduler import (
    MANIFEST,
    PREFIX,
    UNITS,
    SchedulerRequest,
    completed,
    scheduler_component,
)
from gpunode.core.edits.undo import recorded_edits
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.knowledge.scheduler import SchedulerRules
from gpunode.core.model import ConfigFile, Edit, Undo
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
Files = Mapping[str, bytes]


def component_paths(value: Mapping[str, Any]) -> tuple[str, ...]:
    """What to read first: what can start the component, and the records of earlier edits."""
    named = [str(value[key]) for key in ("manifest", "unit") if value.get(key)]
    return (*named, MANIFEST, *UNITS, *KUBELET_UNITS, RECORDS)


def component_of(kind: str, value: Mapping[str, Any], files: Files, rules: SchedulerRules) -> Component:
    """{state, server_version, …} of a role's option → what is asked; `files` are those of component_paths.

    Raises InputError for what makes no sense, RefusedError where the node has no such component.
    """
    asked = _checked(kind, value)
    if kind == "scheduler":
        return scheduler_component(completed(files, SchedulerRequest(**asked)), rules)
    request = completed_kubelet(files, KubeletRequest(**asked))
    check_kubelet_request(request)
    return kubelet_component(request, rules)


def spec_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a spec's kubernetes.gpushare says of where the extender answers, as keys of `scheduler_edit`.

    Only what is written there counts: without it an extender that is there keeps its URL.  Raises InputError.
    """
    gpushare = parse_spec(data).kubernetes.gpushare
    written = (data.get("kubernetes") or {}).get("gpushare") or {}
    if gpushare.extender_url:
        return {"extender_url": f"{gpushare.extender_url.rstrip('/').removesuffix(PREFIX)}{PREFIX}"}
    if gpushare.kube_proxy == "none" and written:
        raise InputError(
            "kubernetes.gpushare.kube_proxy is none", expected="kubernetes.gpushare.extender_url with it", fix="set it"
        )
    named = {"kube_proxy": "proxy_mode", "node_port": "node_port"}
    return {named[key]: getattr(gpushare, key) for key in named if key in written}


def absent(value: Mapping[str, Any]) -> bool:
    """Whether the edit is to be taken back."""
    if value.get("state", "present") not in ("present", "absent"):
        raise InputError(f"state is {value['state']!r}", expected="present or absent")
    return value.get("state") == "absent"


def _checked(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    shape = SHAPES[kind]
    check_keys(f"{kind} edit", value, shape.keys)
    for key, said in value.items():
        choices = shape.keys[key].choices
        if key != "state" and choices and said not in choices:
            raise InputError(f"{kind} edit: {key} is {said!r}", expected=f"one of {', '.join(choices[1:])}")
        if key in _PAIRS and not isinstance(said, Mapping):
            raise InputError(f"{kind} edit: {key} is {said!r}", expected="a mapping")
    return {key: _value(key, said) for key, said in value.items() if key != "state"}


def _value(key: str, said: Any) -> Any:
    if key in _PAIRS:
        return {str(name): _text(one) for name, one in said.items()}
    if key != "node_port":
        return str(said)
    if not str(said).isdecimal() or not 0 < int(said) < 65536:
        raise InputError(f"scheduler edit: node_port is {said!r}", expected="a port, 1 to 65535")
    return int(said)


def _text(value: Any) -> str:
    """A label or quantity as YAML has it, as the text that was meant: true is a boolean there."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_files(component: Component, files: Mapping[str, ConfigFile]) -> tuple[dict[str, bytes], set[str]]:
    """Those of the probe's files that count, and the paths and globs that the edit, or the way back, needs."""
    texts: dict[str, bytes] = {}
    for path, file in files.items():
        if file.data is None and (file.size or not file.sha256):
            raise RefusedError(f"{path} could not be read", fix="run as root; is it a file?")
        if not path.endswith("/undo.json"):
            texts[path] = file.data or b""
    recorded = records(files, component.label).values()
    return texts, {*component.files(texts), *(path for one in recorded for path in one)}


def records(files: Mapping[str, ConfigFile], label: str) -> dict[str, Mapping[str, Undo]]:
    """What edits of that label left in the node's journal, newest first: id → record."""
    return recorded_edits({path: file.data or b"" for path, file in files.items()}, label)


def component_request(
    component: Component,
    edit: Edit,
    files: Mapping[str, ConfigFile],
    texts: Files,
    *,
    used: Sequence[str] | None = None,
    check: bool = False,
) -> dict[str, bytes]:
    """The transaction on the node: every file that was read, or was not there, is compared.

    `used` are the records that an edit which takes others back has used up; such an edit leaves none of its own.
    """
    paths = {*texts, *edit.changes, *(path for path in component.files(texts) if not set(path) & set("*?["))}
    read = {path: (files[path].sha256, files[path].mode) if path in files else ("", 0) for path in paths}
    return runtime_request(
        edit,
        read,
        component.activation(texts, edit),
        label=component.label if used is None else "",
        used=used or (),
        settle=component.settle,
        check=check,
    )
