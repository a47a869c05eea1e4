"""k3s, RKE2, k0s and MicroK8s beyond the cases of tests/edits: YAML, what is undone, what follows."""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from edit_cases import case as case_of
from edit_cases import cases
from hypothesis import given
from hypothesis import strategies as st
from rows import over

from gpunode.core.edits import (
    RuntimeRequest,
    activation,
    configure_runtime,
    edit_runtime,
    runtime_files,
    runtime_state,
    unconfigure_runtime,
)
from gpunode.core.edits.target import Refusal
from gpunode.core.edits.text import yamltext
from gpunode.core.edits.undo import record
from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.model import Edit, NodeFacts, Runtime

PROBES = Path(__file__).parent.parent / "cases" / "probes"
REQUEST = RuntimeRequest(runtime="containerd")
K3S = Runtime(name="containerd", distribution="k3s", unit="k3s-agent.service")
DISTRIBUTIONS = ("k3s", "rke2", "k0s", "microk8s")


def before_of(case: str) -> dict[str, bytes]:
    return case_of(*case.split("/")).before


def after_of(case: str) -> dict[str, bytes]:
    return case_of(*case.split("/")).done


def request_of(case: str, **more: Any) -> RuntimeRequest:
    options = dict(case_of(*case.split("/")).asked)
    options["flags"] = tuple(options.get("flags", ()))
    return RuntimeRequest(runtime="containerd", distribution=case.split("/")[0], **{**options, **more})  # type: ignore[arg-type]


def facts_of(name: str) -> NodeFacts:
    return parse_probe((PROBES / name / "probe.txt").read_text())


ALL = [one.id for one in cases(*DISTRIBUTIONS, having="after")]


# ---------------------------------------------------------------- places


@pytest.mark.parametrize(
    ("case", "config"),
    [
        ("k3s/stock-2.1", "/etc/rancher/k3s/config.yaml"),
        ("rke2/stock-2.1", "/etc/rancher/rke2/config.yaml"),
        ("k0s/managed-1.36", "/etc/k0s/containerd.toml"),
        ("microk8s/stock-2.2", "/var/snap/microk8s/current/args/containerd-template.toml"),
    ],
)
def test_a_distribution_is_known_by_the_place_of_its_files(case: str, config: str) -> None:
    before, known = before_of(case), request_of(case)
    request = replace(known, distribution="", config=config or known.config)
    assert {**before, **configure_runtime(before, request).changes} == after_of(case)


# ---------------------------------------------------------------- YAML

KEYS = st.sampled_from(["token", "node-label", "kubelet-arg", "selinux", "x y", "default-runtime", "a:b"])
VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.text(alphabet="ab #:-'\"\né{}[]", max_size=12), st.none()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


HEADS = st.sampled_from(["", "# c\n", "---\n"])
TAILS = st.sampled_from(["", "---\n", "...\n", "# c\n---\n# d\n"])


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.booleans(), HEADS, TAILS)
def test_one_key_of_any_yaml_is_set_and_removed_and_nothing_else(
    doc: dict[str, Any], flow: bool, head: str, tail: str
) -> None:
    text = head + yaml.safe_dump(doc, default_flow_style=flow, allow_unicode=True) + tail
    try:
        after = yamltext.set_value(text, ("default-runtime",), "nvidia")
        assert documents(after) == [{**doc, "default-runtime": "nvidia"}]
        assert yamltext.set_value(after, ("default-runtime",), "nvidia") == after
        without = yamltext.remove(after, ("default-runtime",))
    except Refusal:
        return
    left = {key: value for key, value in doc.items() if key != "default-runtime"}
    assert (documents(without) or [{}]) == [left]


def documents(text: str) -> list[Any]:
    """What the documents say that are not empty."""
    return [found for found in yaml.safe_load_all(text) if found is not None]


@given(st.binary(max_size=80))
def test_any_bytes_as_config_yaml_are_edited_or_refused_in_our_words(data: bytes) -> None:
    path = "/etc/rancher/k3s/config.yaml"
    request = RuntimeRequest(runtime="containerd", distribution="k3s")
    try:
        edit = configure_runtime({path: data}, request)
    except InputError:
        return
    if not edit.problems:
        assert configure_runtime({path: edit.changes.get(path) or data}, request).changes == {}


@given(st.sampled_from(DISTRIBUTIONS), st.text(alphabet="[]{}\"'=.,#\n a1_{}$RUNTIME-", max_size=60))
def test_any_template_or_drop_in_is_edited_or_refused_in_our_words(engine: Any, text: str) -> None:
    path = {
        "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
        "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.tmpl",
        "k0s": "/etc/k0s/containerd.d/50-x.toml",
        "microk8s": "/var/snap/microk8s/current/args/containerd-template.toml",
    }[engine]
    request = RuntimeRequest(runtime="containerd", distribution=engine, version="2.1.4")
    files = {path: text.encode()}
    try:
        edit = configure_runtime(files, request)
        if edit.problems:
            return
        after = {p: d for p, d in {**files, **edit.changes}.items() if d is not None}
        assert configure_runtime(after, request).changes == {}
    except InputError:
        return


# ---------------------------------------------------------------- undone, and said


@over(ALL)
def test_without_a_record_nvidias_own_entries_go_and_the_rest_stays(case: str) -> None:
    request = request_of(case)
    files = after_of(case)
    edit = unconfigure_runtime(files, request)
    if edit.problems:
        assert "GPU Operator" in edit.problems[0].what
        return
    left = {path: data for path, data in {**files, **edit.changes}.items() if data is not None}
    rendered = {path for path in left if path.endswith("/agent/etc/containerd/config.toml")}
    for path, data in left.items():
        printed = [line for line in data.decode().splitlines() if not line.strip().startswith("#")]
        # a template and a drop-in of k3s are the user's: they are read, and not edited
        if (
            path not in rendered
            and not path.startswith("/var/lib/rancher/")
            and "nvidia-container-runtime]" not in data.decode()
        ):
            assert f"default-runtime: {request.name}" not in printed
            assert not [line for line in printed if request.path in line]
    assert unconfigure_runtime(left, request).changes == {}, "twice equals once"


@over(ALL)
def test_an_edit_says_what_it_means_and_where_it_got_that_from(case: str) -> None:
    edit = configure_runtime(before_of(case), request_of(case))
    assert not edit.changes or (edit.meant and edit.reasons)
    assert all(reason.source for reason in edit.reasons)
    assert all(".containerd." in path or path == "imports" or path.endswith("enable_cdi") for path in edit.meant)


@over(ALL)
def test_the_files_of_a_case_are_all_asked_for(case: str) -> None:
    request, files = request_of(case), before_of(case)
    patterns = runtime_files(files, request)
    ignored = [path for path in files if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
    assert ignored == []
    written = configure_runtime(files, request).changes
    assert [p for p in written if not any(fnmatch.fnmatchcase(p, pattern) for pattern in patterns)] == []


def test_what_k3s_adds_by_itself_is_said_when_it_is_undone() -> None:
    edit = unconfigure_runtime(after_of("k3s/stock-2.1"), request_of("k3s/stock-2.1"))
    assert [r.why for r in edit.reasons][
        -1
    ] == "k3s adds it at every start, as long as it finds nvidia-container-runtime"


FOLDER = "/var/lib/rancher/k3s/agent/etc/containerd"


@pytest.mark.parametrize("name", ["config-v3.toml.d/99-nvidia.toml", "config-v3.toml.tmpl"])
def test_what_an_earlier_gpunode_wrote_below_k3s_goes_back_by_its_record(name: str) -> None:
    """A drop-in that it made, and a template that it changed, which nothing writes any more."""
    case = "k3s/stock-with-imports"
    path, added = f"{FOLDER}/{name}", b'[plugins.x]\n  a = "nvidia"\n'
    before = b'{{ template "base" . }}\n' if name.endswith(".tmpl") else None
    after = (before or b"") + added
    files = {**before_of(case), path: after}
    edit = unconfigure_runtime(files, request_of(case), [{path: record(before, after)}])
    assert edit.changes[path] == before


def test_of_the_owner_s_files_those_with_another_default_stay_as_they_are() -> None:
    config = "/etc/rancher/k3s/config.yaml"
    files = {config: b"default-runtime: crun\n", f"{config}.d/99-gpu.yaml": b"default-runtime: nvidia\n"}
    edit = unconfigure_runtime(files, request_of("k3s/stock-2.1"))
    assert set(edit.changes) == {f"{config}.d/99-gpu.yaml"}
    flag = replace(request_of("k3s/stock-2.1"), flags=("--default-runtime=nvidia",))
    edit = unconfigure_runtime({}, flag)
    assert edit.changes == {} and edit.reasons[0].what == "--default-runtime nvidia"


def test_the_default_of_microk8s_is_its_own_placeholder_again() -> None:
    case = "microk8s/stock-2.2"
    files = after_of(case)
    edit = unconfigure_runtime(files, request_of(case))
    assert {**files, **edit.changes} == before_of(case)


def test_a_drop_in_of_k0s_is_removed_when_nothing_else_is_in_it() -> None:
    edit = unconfigure_runtime(after_of("k0s/managed-1.36"), request_of("k0s/managed-1.36"))
    assert dict(edit.changes) == {"/etc/k0s/containerd.d/99-nvidia.toml": None}
    assert [reason.what for reason in edit.reasons] == [
        "/etc/k0s/containerd.d/99-nvidia.toml",
        "the import of /etc/k0s/containerd.d/*.toml",
    ]
    assert edit.reasons[1].why.startswith("stays")


@pytest.mark.parametrize(
    ("case", "runtimes", "default", "path"),
    [
        ("k3s/converged", ("runc", "nvidia"), "nvidia", "/usr/bin/nvidia-container-runtime"),
        ("k3s/stock-2.1", ("runc",), "runc", ""),
        ("k3s/missing-files-2.1", ("runc",), "nvidia", ""),
        ("rke2/stock-1.7", ("runc", "nvidia"), "runc", "/usr/bin/nvidia-container-runtime"),
        ("k0s/managed-1.36", ("runc", "nvidia"), "nvidia", "/usr/bin/nvidia-container-runtime"),
        ("k0s/own-file-1.35", ("runc", "nvidia"), "nvidia", "/usr/bin/nvidia-container-runtime"),
        (
            "microk8s/keep-default",
            ("runc", "nvidia-container-runtime", "kata", "nvidia"),
            "runc",
            "/usr/bin/nvidia-container-runtime",
        ),
    ],
)
def test_state_is_what_the_engine_has_in_force(case: str, runtimes: tuple[str, ...], default: str, path: str) -> None:
    state = runtime_state(after_of(case), request_of(case))
    assert ((*state.runtimes,), state.default, state.path) == (runtimes, default, path)


# ---------------------------------------------------------------- from probes


@pytest.mark.parametrize(
    ("node", "distribution", "version", "unit", "written"),
    [
        ("ubuntu2404-k3s", "k3s", "2.1.4-k3s2", "k3s.service", ["/etc/rancher/k3s/config.yaml"]),
        ("ubuntu2204-rke2", "rke2", "1.7.27-k3s1", "rke2-agent.service", []),
        ("debian12-k0s", "k0s", "2.3.3", "k0sworker.service", ["/etc/k0s/containerd.d/99-nvidia.toml"]),
        (
            "ubuntu2404-microk8s",
            "microk8s",
            "1.7.28",
            "snap.microk8s.daemon-containerd.service",
            ["/var/snap/microk8s/current/args/containerd-template.toml"],
        ),
    ],
)
def test_the_kubelets_containerd_is_found_and_edited(
    node: str, distribution: str, version: str, unit: str, written: list[str]
) -> None:
    facts = facts_of(node)
    runtime = facts.runtime("containerd")
    assert runtime is not None
    assert (runtime.distribution, runtime.version, runtime.unit, runtime.active) == (distribution, version, unit, True)
    edit = edit_runtime(facts, REQUEST)
    assert (edit.problems, list(edit.changes)) == ((), written)


def test_a_distribution_whose_containerd_was_not_found_has_its_own_version() -> None:
    text = (PROBES / "debian12-k0s" / "probe.txt").read_text()
    lines = [line for line in text.splitlines() if "bundled" not in line and "containerd/v2 2.3.3" not in line]
    runtime = parse_probe("\n".join(lines)).runtime("containerd")
    assert runtime is not None
    assert (runtime.distribution, runtime.version, runtime.binary) == ("k0s", "1.36.3+k0s.2", "")


@pytest.mark.parametrize(
    ("node", "verb", "disrupts"),
    [
        ("ubuntu2404-k3s", "restart", "restarts k3s.service: running containers keep running"),
        ("debian12-k0s", "", "k0s reloads its containerd"),
        ("ubuntu2404-microk8s", "restart", "restarts snap.microk8s.daemon-containerd.service"),
    ],
)
def test_each_takes_an_edit_up_in_its_own_way(node: str, verb: str, disrupts: str) -> None:
    facts = facts_of(node)
    found = activation(facts, REQUEST, edit_runtime(facts, REQUEST))
    assert found.verb == verb
    assert found.disrupts.startswith(disrupts)
    assert found.socket in {runtime.socket for runtime in facts.runtimes}
    assert activation(facts, REQUEST, Edit()).disrupts == ""


def test_an_own_containerd_toml_of_k0s_takes_a_restart() -> None:
    runtime = Runtime(
        name="containerd", distribution="k0s", unit="k0sworker.service", config="/etc/k0s/containerd.toml"
    )
    edit = Edit(changes={"/etc/k0s/containerd.toml": b"version = 2\n"})
    found = activation(NodeFacts(runtimes=(runtime,)), REQUEST, edit)
    assert (found.verb, found.config) == ("restart", "/etc/k0s/containerd.toml")
    assert found.validate[-2:] == ("config", "dump")


def test_drop_ins_are_judged_with_the_root_that_imports_them() -> None:
    facts = facts_of("debian12-k0s")
    found = activation(facts, REQUEST, edit_runtime(facts, REQUEST))
    assert found.validate == ("/var/lib/k0s/bin/containerd", "-c", "@FILE@", "config", "dump")
    root = facts.files["/etc/k0s/containerd.toml"]
    merged = replace(root, data=b'# k0s_managed=true\nversion = 2\nimports = ["/run/k0s/containerd-cri.toml"]\n')
    old = replace(facts, files={**facts.files, root.path: merged})
    assert activation(old, REQUEST, edit_runtime(facts, REQUEST)).validate == (), "1.35 merges them itself"


def test_k3s_that_was_started_before_the_toolkit_came_has_only_to_start_again() -> None:
    case = "k3s/rendered-before-the-toolkit"
    edit = configure_runtime(before_of(case), request_of(case))
    assert (edit.changes, edit.restart) == ({}, True)
    facts = NodeFacts(runtimes=(K3S,))
    assert activation(facts, REQUEST, edit).disrupts.startswith("restarts k3s-agent.service")
