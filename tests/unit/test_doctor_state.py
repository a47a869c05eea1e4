"""doctor on files of a node that hold anything: a finding where the daemon would refuse them, never an exception."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.doctor.state import proofs, state_faults
from gpunode.core.model import ConfigFile, NodeFacts, Runtime, RuntimeName
from gpunode.edge.load import load_scheduler_rules
from gpunode.node import script

PATH = "/etc/docker/daemon.json"
RULES = load_scheduler_rules()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["nvidia", "nvidia.com/gpu"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["default-runtime", "runtimes", "Data", "RegisteredDevices", "nvidia.com/gpu", "\ud800"])
            | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def faults(daemon_json: bytes) -> dict[str, list[str]]:
    file = ConfigFile(path=PATH, mode=0o644, owner="root", data=daemon_json, size=len(daemon_json))
    facts = NodeFacts(runtimes=(Runtime(name="docker", config=PATH),), files={PATH: file})
    return {name: [e.text for e in seen] for name, seen in state_faults(facts, {}, RULES).items()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "(expected: a JSON object)"),
        ("1", "is 1"),
        ('"x"', 'is "x"'),
        ('{"default-runtime": ["x"]}', "default-runtime is a list (expected: a string)"),
        ('{"default-runtime": {}}', "default-runtime is an object"),
        ('{"runtimes": ["nvidia"]}', "runtimes is a list (expected: an object)"),
        ("[" * 2_000, PATH),
        ("[" * 200_000, "recursion"),
        ('{"a": ' * 100_000, PATH),
        ('{"a": ' * 200_000, "1200000 bytes"),
        ("9" * 5_000, "digits"),
        ('{"runtimes": {"x": {}}}', "neither path nor runtimeType"),
    ],
    ids=lambda text: text[:24],
)
def test_a_daemon_json_that_dockerd_refuses_is_a_finding(text: str, words: str) -> None:
    [printed] = faults(text.encode())["docker-daemon-json"]
    assert printed.startswith(PATH) and words in printed and len(printed) < 400


def test_a_daemon_json_that_dockerd_reads_is_none() -> None:
    for text in ("null", '{"runtimes": null, "default-runtime": null}', '{"default-runtime": "io.containerd.kata.v2"}'):
        assert faults(text.encode()) == faults(text.encode("utf-8-sig")) == {}
    assert faults(b'{"default-runtime": "nvidia", "runtimes": {"nvidia": {}}}') == {}
    assert set(faults(b'{"default-runtime": "nvidia", "runtimes": {}}')) == {"docker-default-runtime-missing"}


@pytest.mark.parametrize(
    ("text", "reads"), [("[nvidia-container-cli]\n", True), ("a = 1 1", False), ("a = " + "[" * 200_000, False)]
)
def test_a_configuration_of_the_toolkit_reads_or_does_not(text: str, reads: bool) -> None:
    path = "/etc/nvidia-container-runtime/config.toml"
    file = ConfigFile(path=path, mode=0o644, owner="root", data=text.encode(), size=len(text))
    assert ("toolkit-config-reads" in proofs(NodeFacts(files={path: file}))) == reads


FAILED = ["systemd[1]: docker.service: Failed with result 'exit-code'.", "Failed to start Docker Application Container"]


@pytest.mark.parametrize(
    ("engines", "lines", "gone"),
    [
        (("containerd",), FAILED, {"docker-gone", "failed-engines-gone"}),
        (("docker",), FAILED, set()),
        (("containerd",), [*FAILED, "Job for containerd.service failed"], {"docker-gone"}),
        (("containerd",), ["[ERROR CRI]: container runtime is not running"], {"docker-gone"}),
    ],
)
def test_what_logs_say_of_an_engine_that_is_not_installed_is_over(
    engines: tuple[RuntimeName, ...], lines: list[str], gone: set[str]
) -> None:
    facts = NodeFacts(runtimes=tuple(Runtime(name=name) for name in engines))
    assert {name for name in proofs(facts, {"engine-failed": lines}) if name.endswith("gone")} == gone


@given(JSON)
def test_any_json_is_judged_and_can_be_printed(value: Any) -> None:
    text = json.dumps(value)
    found = faults(text.encode())
    sections = {"kubelet-devices": text, "kube-scheduler-manifest": text, "kube-scheduler-config": text}
    of_kubelet = state_faults(NodeFacts(), sections, RULES)
    for printed in [
        *(text for texts in found.values() for text in texts),
        *(e.text for s in of_kubelet.values() for e in s),
    ]:
        assert len(printed.encode("utf-8")) < 2_000
    if not isinstance(value, dict | None):
        assert set(found) == {"docker-daemon-json"} and "kubelet-checkpoint" in of_kubelet


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_judged(data: bytes) -> None:
    faults(data)
    state_faults(NodeFacts(), {"kubelet-devices": data.decode(errors="replace")}, RULES)


def test_the_kubelets_checkpoint_comes_whole_however_long_its_line_is(tmp_path: Path) -> None:
    """A log's line is cut on the node; of this file a part would look like a damaged one."""
    checkpoint = tmp_path / "kubelet_internal_checkpoint"
    data = {"Data": {"RegisteredDevices": {"nvidia.com/gpu": [f"GPU-{n:036d}" for n in range(500)]}}}
    checkpoint.write_text(json.dumps(data))
    text = script("logs.sh").replace("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", str(checkpoint))
    head, _, tail = text.partition("kernel_messages | reduced")
    [line] = [line for line in tail.splitlines() if str(checkpoint) in line]
    ran = subprocess.run(
        ["sh", "-s"],
        input=f"{head}\n{line}\n",
        env={"GPUNODE_IN": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    name, _, body = ran.stdout.partition("\n")
    assert name == "=== gpunode log kubelet-devices" and json.loads(body) == data and body.endswith("\n")
