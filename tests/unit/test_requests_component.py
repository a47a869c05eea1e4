"""The role options `gpunode_scheduler` and `gpunode_kubelet`: from a probe of the node to the request of commit.sh."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
from edit_cases import case

from gpunode.core.edits.commit import target_request
from gpunode.core.edits.kubernetes.request import (
    absent,
    component_paths,
    component_target,
    records,
    spec_values,
)
from gpunode.core.edits.target import EditTarget, probed_files
from gpunode.core.edits.target import texts as texts_of
from gpunode.core.edits.undo import undo_data
from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.model import ConfigFile, Edit
from gpunode.edge.load import load_scheduler_rules

RULES = load_scheduler_rules()
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG = "/etc/kubernetes/scheduler-policy-config.yaml"


def probed(found: Mapping[str, bytes], **more: bytes) -> dict[str, ConfigFile]:
    texts = {**found, **more}
    return {
        path: ConfigFile(path=path, sha256=hashlib.sha256(data).hexdigest(), size=len(data), data=data)
        for path, data in texts.items()
    }


def texts(files: dict[str, ConfigFile]) -> dict[str, bytes]:
    return {path: file.data or b"" for path, file in files.items()}


def request_of(
    target: EditTarget, edit: Edit, files: Mapping[str, ConfigFile], used: tuple[str, ...] | None = None
) -> dict[str, bytes]:
    seen = probed_files(files, target.files)
    return target_request(target, edit, seen, target.activation(texts_of(seen), edit), used=used)


def test_a_manifest_is_found_read_and_edited_in_one_transaction() -> None:
    files = probed(case("scheduler", "kubeadm-1.34").before)
    assert MANIFEST in component_paths({"state": "present"})
    component = component_target("scheduler", {"state": "present"}, texts(files), RULES)
    seen = probed_files(files, component.files)
    assert {MANIFEST, CONFIG} <= set(seen)
    edit = component.configure(texts_of(seen))
    request = request_of(component, edit, files)
    rows = [line.split("\t") for line in request["changes"].decode().splitlines()]
    assert [(row[1], row[5]) for row in rows if row[1] != "read"] == [("write", CONFIG), ("write", MANIFEST)]
    assert {row[5]: row[3] for row in rows}[MANIFEST] == files[MANIFEST].sha256
    after = request["after"].decode().splitlines()
    assert {"unit kubelet.service", "verb await", "process kube-scheduler", "settle 10"} <= set(after)
    assert "https://127.0.0.1:10259/healthz" in request["health"].decode()
    assert json.loads(request["undo"])["label"] == f"kube-scheduler {MANIFEST}"


@pytest.mark.parametrize(
    ("gpushare", "expected"),
    [
        ({}, {}),
        ({"memory_unit": "MiB"}, {}),
        ({"kube_proxy": "iptables"}, {"proxy_mode": "iptables"}),
        ({"kube_proxy": "ipvs", "node_port": 31000}, {"proxy_mode": "ipvs", "node_port": 31000}),
        ({"extender_url": "http://10.0.0.9:80/"}, {"extender_url": "http://10.0.0.9:80/gpushare-scheduler"}),
        (
            {"kube_proxy": "none", "extender_url": "http://a:1/gpushare-scheduler"},
            {"extender_url": "http://a:1/gpushare-scheduler"},
        ),
    ],
)
def test_a_spec_says_where_the_extender_answers(gpushare: dict[str, Any], expected: dict[str, Any]) -> None:
    assert spec_values({"kubernetes": {"gpushare": gpushare}}) == expected
    component_target("scheduler", expected, texts(probed(case("scheduler", "kubeadm-1.34").before)), RULES)


def test_without_kube_proxy_a_spec_has_to_give_the_url() -> None:
    assert spec_values({}) == {}
    with pytest.raises(InputError, match="kube_proxy is none"):
        spec_values({"kubernetes": {"gpushare": {"kube_proxy": "none"}}})


@pytest.mark.parametrize("port", [0, 70000, "x"])
def test_a_port_is_a_port(port: Any) -> None:
    with pytest.raises(InputError, match="node_port"):
        component_target("scheduler", {"node_port": port}, {}, RULES)


def test_another_port_stands_in_the_configuration() -> None:
    files = probed(case("scheduler", "kubeadm-1.34").before)
    component = component_target("scheduler", {"node_port": 31000}, texts(files), RULES)
    read = texts_of(probed_files(files, component.files))
    assert b"urlPrefix: http://127.0.0.1:31000/gpushare-scheduler" in component.configure(read).changes[CONFIG]


def test_what_configure_recorded_undoes_it_and_leaves_no_record() -> None:
    files = probed(case("scheduler", "kubeadm-1.34").before)
    component = component_target("scheduler", {"state": "present"}, texts(files), RULES)
    edit = component.configure(texts(files))
    record = json.dumps({"label": component.label, **undo_data(edit.undo)}).encode()
    other = json.dumps({"label": "docker", **undo_data(edit.undo)}).encode()
    backup = "/var/lib/gpunode/backup"
    later = probed(
        case("scheduler", "kubeadm-1.34").done, **{f"{backup}/2/undo.json": record, f"{backup}/1/undo.json": other}
    )
    kept = records(later, component.label)
    assert list(kept) == ["2"]
    read = texts_of(probed_files(later, component.files))
    assert {MANIFEST, CONFIG} <= set(read)
    back = component.unconfigure(read, tuple(kept.values()))
    assert back.changes == {MANIFEST: files[MANIFEST].data, CONFIG: None}
    request = request_of(component, back, later, used=tuple(kept))
    assert (request["used"], "undo" in request) == (b"2\n", False)
    rows = [line.split("\t") for line in request["changes"].decode().splitlines()]
    changes = [(row[1], row[5]) for row in rows if row[1] != "read"]
    assert changes == [("write", MANIFEST), ("remove", CONFIG)], "what is named goes last"


def test_the_kubelets_unit_is_restarted() -> None:
    files = probed(case("kubelet", "kubeadm-1.34").before)
    value = {"server_version": "1.34", "node_labels": {"gpushare": True}, "kube_reserved": {"cpu": "200m"}}
    component = component_target("kubelet", value, texts(files), RULES)
    edit = component.configure(texts(files))
    assert b"--node-labels=gpushare=true\n" in (edit.changes["/etc/default/kubelet"] or b""), "a boolean in YAML"
    request = request_of(component, edit, files)
    assert {"unit kubelet.service", "verb restart"} <= set(request["after"].decode().splitlines())


BAD: list[tuple[str, dict[str, Any], type[GpunodeError], str]] = [
    ("scheduler", {"state": "present", "colour": "red"}, InputError, "unknown key 'colour'"),
    ("scheduler", {"proxy_mode": "userspace"}, InputError, "proxy_mode is 'userspace'"),
    ("scheduler", {"server_version": "one"}, InputError, "server version 'one'"),
    ("scheduler", {"manifest": "/x", "unit": "/y", "server_version": "1.30"}, InputError, "a static pod's manifest or"),
    ("kubelet", {"unit": "/u", "node_labels": "a=b"}, InputError, "node_labels is 'a=b'"),
    ("kubelet", {"server_version": "1.30"}, RefusedError, "kubelet is not on this host"),
    ("kubelet", {"unit": "/u", "server_version": ""}, InputError, "the release of Kubernetes is not known"),
    ("kubelet", {"unit": "/u", "server_version": "1.30", "cgroup_driver": "x"}, InputError, "cgroup_driver is 'x'"),
]


@pytest.mark.parametrize(("kind", "value", "error", "words"), BAD, ids=[row[3] for row in BAD])
def test_a_value_without_sense_is_one_clear_message(
    kind: str, value: dict[str, Any], error: type[GpunodeError], words: str
) -> None:
    files = texts(probed(case("scheduler", "kubeadm-1.34").before))
    with pytest.raises(error) as caught:
        component_target(kind, value, files, RULES).configure(files)
    assert words in caught.value.what


def test_a_state_is_present_or_absent() -> None:
    assert [absent({}), absent({"state": "present"}), absent({"state": "absent"})] == [False, False, True]
    with pytest.raises(InputError):
        absent({"state": "latest"})


def test_a_node_without_a_scheduler_and_a_file_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(RefusedError):
        component_target("scheduler", {"state": "present"}, {}, RULES)
    files = probed(case("scheduler", "kubeadm-1.34").before)
    component = component_target("scheduler", {"state": "present"}, texts(files), RULES)
    with pytest.raises(RefusedError):
        probed_files({MANIFEST: ConfigFile(path=MANIFEST, size=9)}, component.files)


def test_a_damaged_record_is_named() -> None:
    path = "/var/lib/gpunode/backup/7/undo.json"
    with pytest.raises(InputError) as caught:
        records({path: ConfigFile(path=path, sha256="x", size=1, data=b"{")}, "any")
    assert path in caught.value.what
