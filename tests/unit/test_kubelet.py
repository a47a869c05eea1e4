"""The kubelet's engine and cgroup driver: facts → sentences, checks, plans."""

from __future__ import annotations

import base64
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.engines import ROWS
from gpunode.core.facts import parse_probe
from gpunode.core.facts.kubelet import kubelet_engine
from gpunode.core.items.kubelet import (
    driver_mismatch,
    driver_problem,
    engine_driver,
    kubelet_checks,
    kubelet_driver,
    kubelet_warnings,
    wanted_driver,
)
from gpunode.core.model import ConfigFile, Kubernetes, NodeFacts, Runtime

PROBES = Path(__file__).parent.parent / "cases" / "probes"
SHELLS = [shell for shell in (["dash"], ["busybox", "sh"], ["bash"]) if shutil.which(shell[0])]
CONFIG = "/var/lib/kubelet/config.yaml"
CONTAINERD = Runtime(
    name="containerd", version="1.7.28", unit="containerd.service", socket="/run/containerd/containerd.sock"
)
K3S = Runtime(name="containerd", distribution="k3s", unit="k3s.service", socket="/run/k3s/containerd/containerd.sock")
DOCKER = Runtime(name="docker", version="28.1.1")
CRIO = Runtime(name="crio", version="1.31.0")


def node(*runtimes: Runtime, read: bool = True, **kubernetes: Any) -> NodeFacts:
    files = {CONFIG: ConfigFile(path=CONFIG, data=b"kind: KubeletConfiguration\n")} if read else {}
    return NodeFacts(runtimes=runtimes, kubernetes=Kubernetes(**{"kubelet": "1.30.14", **kubernetes}), files=files)


# ---------------------------------------------------------------- the kubelet's engine


@pytest.mark.parametrize(
    ("kubernetes", "expected"),
    [
        ({"cri_socket": "/run/containerd/containerd.sock"}, CONTAINERD),
        ({"cri_socket": "/var/run/containerd/containerd.sock"}, CONTAINERD),
        ({"cri_socket": ""}, CONTAINERD),
        ({"cri_socket": "/run/cri-dockerd.sock"}, DOCKER),
        ({"cri_socket": "/var/run/crio/crio.sock"}, CRIO),
        ({"kind": "k3s", "cri_socket": "/run/k3s/containerd/containerd.sock"}, K3S),
        ({"kind": "k3s", "cri_socket": "/run/containerd/containerd.sock"}, CONTAINERD),
        ({"kind": "k3s", "cri_socket": "/run/k3s/cri-dockerd/cri-dockerd.sock"}, DOCKER),
        ({"cri_socket": "/run/own/engine.sock"}, None),
    ],
)
def test_the_kubelets_socket_says_which_engine_counts(kubernetes: dict[str, str], expected: Runtime | None) -> None:
    assert kubelet_engine(node(CONTAINERD, K3S, DOCKER, CRIO, **kubernetes)) == expected


def test_without_a_kubelet_no_engine_is_its() -> None:
    assert kubelet_engine(NodeFacts(runtimes=(CONTAINERD,))) is None
    assert list(kubelet_checks(NodeFacts(runtimes=(CONTAINERD,)))) == []
    [check] = kubelet_checks(NodeFacts(kubernetes=Kubernetes(kind="kubeadm", cri_socket="/run/other.sock")))
    assert (check.id, check.status) == ("kubelet.engine", "warning") and "/run/other.sock" in check.message
    assert list(kubelet_warnings(NodeFacts(runtimes=(CONTAINERD,)), {"containerd": "auto"})) == []


@pytest.mark.parametrize(
    ("name", "distribution", "engine"),
    [
        ("ubuntu2404-k3s", "k3s", "containerd"),
        ("ubuntu2204-rke2", "rke2", "containerd"),
        ("debian12-k0s", "k0s", "containerd"),
        ("ubuntu2404-microk8s", "microk8s", "containerd"),
        ("debian12-kubeadm-two-engines", "", "containerd"),
        ("ubuntu2004-cri-dockerd", "", "docker"),
        ("ubuntu2204-hgx-h100-kubelet", "", "containerd"),
    ],
)
def test_the_kubelets_engine_of_each_probe_is_the_one_its_name_gives(name: str, distribution: str, engine: str) -> None:
    facts = parse_probe((PROBES / name / "probe.txt").read_text())
    found = kubelet_engine(facts)
    assert found is not None
    assert (found.name, found.distribution) == (engine, distribution)
    assert facts.runtime(engine) is found


WARNINGS = [
    ((CONTAINERD, DOCKER), {}, {"docker": "configure"}, "runtimes.docker is configured, but the kubelet runs pods on"),
    ((CONTAINERD, DOCKER), {}, {"docker": "auto"}, "docker is left as it is, the kubelet runs pods on containerd"),
    ((CONTAINERD,), {}, {"docker": "auto"}, ""),
    ((CONTAINERD, K3S), {"kind": "k3s", "cri_socket": K3S.socket}, {}, "the node has two containerd: k3s.service is"),
    ((DOCKER,), {"cri_socket": "/run/x.sock"}, {}, "the kubelet's socket /run/x.sock belongs to no engine"),
    ((CONTAINERD,), {"gpu_operator": True}, {}, "the GPU Operator is or was on this node, and its toolkit configures"),
    ((CONTAINERD,), {}, {"containerd": "ignore"}, "the kubelet runs pods on containerd, which is not managed"),
]


@pytest.mark.parametrize(("runtimes", "kubernetes", "managed", "printed"), WARNINGS)
def test_a_plan_says_what_the_kubelet_gets_nothing_of(
    runtimes: tuple[Runtime, ...], kubernetes: dict[str, Any], managed: dict[str, str], printed: str
) -> None:
    facts = node(*runtimes, **{"cri_socket": "/run/containerd/containerd.sock", **kubernetes})
    found = list(kubelet_warnings(facts, {"containerd": "auto", **managed}))
    assert [warning[: len(printed)] for warning in found] == ([printed] if printed else [])


# ---------------------------------------------------------------- cgroup drivers

TWO = replace(CONTAINERD, version="2.1.9")
DRIVERS = [
    # kubelet, engine, what the kubelet has, who says so
    ({"cgroup_driver": "systemd", "cgroup_source": CONFIG}, CONTAINERD, "systemd", CONFIG),
    ({"cgroup_driver": "systemd", "cgroup_source": "--cgroup-driver"}, CONTAINERD, "systemd", "--cgroup-driver"),
    ({}, CONTAINERD, "cgroupfs", "its default"),
    # 1.31 and later ask an engine that answers, whatever their configuration says
    ({"kubelet": "1.31.0", "cgroup_driver": "systemd"}, TWO, "cgroupfs", "which this kubelet asks"),
    ({"kubelet": "1.36.1", "cgroup_driver": "systemd"}, CRIO, "systemd", "which this kubelet asks"),
    ({"kubelet": "1.31.0", "cgroup_driver": "systemd"}, CONTAINERD, "systemd", "its configuration"),
    ({"kubelet": "1.30.0", "cgroup_driver": "systemd"}, TWO, "systemd", "its configuration"),
    ({"kubelet": "1.29.0", "cgroup_driver": "systemd", "cgroup_from_cri": True}, TWO, "cgroupfs", "this kubelet asks"),
    ({"kubelet": "1.32.0", "cgroup_driver": "systemd", "cgroup_from_cri": False}, TWO, "systemd", "its configuration"),
    ({"kubelet": "1.34.0", "cgroup_driver": "systemd", "cgroup_from_cri": False}, TWO, "cgroupfs", "kubelet asks"),
]


@pytest.mark.parametrize(("kubernetes", "engine", "driver", "source"), DRIVERS)
def test_the_kubelets_driver_is_found_with_what_says_it(
    kubernetes: dict[str, Any], engine: Runtime, driver: str, source: str
) -> None:
    socket = {"crio": "/run/crio/crio.sock"}.get(engine.name, "/run/containerd/containerd.sock")
    found = kubelet_driver(node(engine, cri_socket=socket, **kubernetes))
    assert (found.value, source in found.source) == (driver, True)


def test_drivers_that_differ_are_explained_with_their_sources() -> None:
    facts = node(CONTAINERD, cgroup_driver="systemd", cgroup_source=CONFIG)
    assert driver_mismatch(facts) == (
        "cgroup drivers differ: the kubelet has systemd (/var/lib/kubelet/config.yaml), "
        "containerd has cgroupfs (its default)"
    )
    [check] = kubelet_checks(facts)
    assert (check.id, check.status) == ("cgroup.driver-match", "failed")
    assert check.fix == "gpunode provision gives containerd the kubelet's (cgroup_driver: auto)"
    assert wanted_driver(facts, CONTAINERD) == "systemd"


def test_an_engine_that_is_asked_for_its_driver_is_left_as_it_is() -> None:
    facts = node(TWO, kubelet="1.33.0", cgroup_driver="systemd", cgroup_source=CONFIG)
    assert driver_mismatch(facts) == ""
    assert wanted_driver(facts, TWO) == ""
    assert [check.status for check in kubelet_checks(facts)] == ["passed"]
    assert driver_problem(facts, "containerd", "systemd") is None


def test_only_the_kubelets_engine_gets_the_kubelets_driver() -> None:
    facts = node(CONTAINERD, DOCKER, cgroup_driver="systemd")
    assert (wanted_driver(facts, DOCKER), wanted_driver(facts, None)) == ("", "")


CRI = b'[plugins."io.containerd.cri.v1.runtime".containerd]\n'
STATED = [
    (replace(CRIO, flags=("--cgroup-manager=cgroupfs",)), b"", "cgroupfs"),
    (CRIO, b'[crio.runtime]\n[crio.metrics]\ncgroup_manager = "cgroupfs"\n', "systemd"),
    (DOCKER, b'{"exec-opts": ["Native.CgroupDriver = systemd"]}', "systemd"),
    (TWO, b"version = 3\n" + CRI + b"runtimes.runc.options = {SystemdCgroup = true}\n", "systemd"),
]


@pytest.mark.parametrize(
    ("engine", "text", "driver"), STATED, ids=["an argument", "elsewhere", "any case", "in a line"]
)
def test_an_engines_driver_is_what_its_own_reading_of_the_files_gives(
    engine: Runtime, text: bytes, driver: str
) -> None:
    path = ROWS[engine.name].config
    runtime = replace(engine, config=path)
    facts = NodeFacts(runtimes=(runtime,), files={path: ConfigFile(path=path, data=text)})
    assert engine_driver(facts, runtime).value == driver


@pytest.mark.parametrize(
    ("facts", "driver"), [(NodeFacts(init="systemd", cgroups2=True), "systemd"), (NodeFacts(), "cgroupfs")]
)
def test_dockers_own_default_is_systemd_with_control_groups_of_version_2(facts: NodeFacts, driver: str) -> None:
    assert engine_driver(facts, DOCKER).value == driver


def test_what_could_not_be_read_proves_nothing() -> None:
    unread = ConfigFile(path="/etc/containerd/config.toml", data=None)
    facts = replace(node(CONTAINERD, cgroup_driver="systemd"), files={unread.path: unread})
    assert engine_driver(facts, CONTAINERD).value == ""
    assert [(c.status, c.message) for c in kubelet_checks(facts)] == [
        ("not-proven", "containerd's configuration could not be read")
    ]
    assert wanted_driver(facts, CONTAINERD) == ""


@pytest.mark.parametrize(("asked", "problem"), [("auto", False), ("systemd", False), ("cgroupfs", True)])
def test_a_driver_in_the_spec_that_is_not_the_kubelets_is_refused(asked: str, problem: bool) -> None:
    found = driver_problem(node(CONTAINERD, cgroup_driver="systemd", cgroup_source=CONFIG), "containerd", asked)
    assert bool(found) is problem
    if found:
        assert found.what == f"runtimes.containerd.cgroup_driver is cgroupfs, and the kubelet has systemd ({CONFIG})"
    assert driver_problem(node(CONTAINERD, DOCKER, cgroup_driver="systemd"), "docker", asked) is None


def test_k3s_sets_both_drivers_and_is_not_reported_one() -> None:
    rendered = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    table = b"plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options"
    text = b"version = 3\n[%s]\nSystemdCgroup = true\n" % table
    k3s = replace(K3S, version="2.1.4-k3s2")
    facts = node(k3s, kind="k3s", kubelet="1.30.4+k3s1", cri_socket=K3S.socket, read=False)
    facts = replace(facts, files={rendered: ConfigFile(path=rendered, data=text)})
    assert kubelet_driver(facts).source == "k3s, which sets both alike"
    assert [check.status for check in kubelet_checks(facts)] == ["passed"]


# ---------------------------------------------------------------- what the kubelet was given, from a probe


def probed(kind: str, files: dict[str, str], *, start: str = "", unit: str = "", runtimes: str = "") -> NodeFacts:
    """Facts of a node with these files, and one unit with this command line."""
    marks = {
        "kubeadm": "exists /etc/kubernetes/kubelet.conf\nKubernetes v1.30.14",
        "k3s": "exists /var/lib/rancher/k3s/agent\nk3s version v1.33.5+k3s1 (fab4a5c3)",
        "k0s": "exists /var/lib/k0s\nv1.30.4+k0s.0",
    }[kind]
    words = f"argv[]={start} ; ignore_errors=no"
    units = f"ExecStart={{ path={start.split()[0]} ; {words} }}\nId={unit}\nActiveState=active\n" if start else ""
    sections = {"system": "init systemd\nuid 0", "units": units, "runtimes": runtimes, "kubernetes": marks}
    text = "#: gpunode-probe 1\n" + "".join(
        f"#: {name}\n" + "".join(f"| {line}\n" for line in printed.splitlines()) for name, printed in sections.items()
    )
    for path, printed in files.items():
        body = base64.b64encode(printed.encode()).decode()
        text += f"#: file {path}\n| 600 root:root {len(printed.encode())}\n" + (f"| {body}\n" if body else "")
    return parse_probe(text + "#: end\n")


FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
KUBEADM_ARGS = 'KUBELET_KUBEADM_ARGS="--cgroup-driver=cgroupfs"'
DEFAULTS = "/etc/default/kubelet"
K3S_CONFIG = "/etc/rancher/k3s/config.yaml"
K0S_CONFIG = "/var/lib/k0s/kubelet-config.yaml"
EKS_CONFIG = "/etc/kubernetes/kubelet/config.json"
DROP_IN = "/etc/kubernetes/kubelet.conf.d/99-ours.conf"
GIVEN = [
    ("kubeadm", {CONFIG: 'cgroupDriver: "systemd"\n'}, "", "systemd", CONFIG),
    ("kubeadm", {CONFIG: "cgroupDriver: systemd\n", FLAGS: KUBEADM_ARGS}, "", "cgroupfs", "--cgroup-driver"),
    ("kubeadm", {DEFAULTS: 'KUBELET_EXTRA_ARGS="--v 2 --cgroup-driver cgroupfs"'}, "", "cgroupfs", "--cgroup-driver"),
    ("kubeadm", {FLAGS: KUBEADM_ARGS, DEFAULTS: "--cgroup-driver=systemd"}, "", "systemd", "--cgroup-driver"),
    ("kubeadm", {FLAGS: KUBEADM_ARGS}, "/usr/bin/kubelet --cgroup-driver=systemd", "systemd", "--cgroup-driver"),
    ("kubeadm", {DEFAULTS: "# KUBELET_EXTRA_ARGS=--cgroup-driver=cgroupfs\n"}, "", "", ""),
    ("kubeadm", {}, "/usr/bin/kubelet --cgroup-driver=systemd", "systemd", "--cgroup-driver"),
    ("kubeadm", {EKS_CONFIG: '{"cgroupDriver": "systemd"}'}, "", "systemd", EKS_CONFIG),
    (
        "kubeadm",
        {CONFIG: "cgroupDriver: systemd\n", DROP_IN: "cgroupDriver: cgroupfs\n"},
        "/usr/bin/kubelet --config-dir=/etc/kubernetes/kubelet.conf.d/",
        "cgroupfs",
        DROP_IN,
    ),
    (
        "kubeadm",
        {CONFIG: "cgroupDriver: systemd\n", DROP_IN: "cgroupDriver: cgroupfs\n"},
        "/usr/bin/kubelet",
        "systemd",
        CONFIG,
    ),
    ("k0s", {K0S_CONFIG: "cgroupDriver: systemd\n"}, "", "systemd", K0S_CONFIG),
    ("k3s", {K3S_CONFIG: "kubelet-arg:\n- cgroup-driver=cgroupfs\n"}, "", "cgroupfs", f"kubelet-arg in {K3S_CONFIG}"),
    ("k3s", {}, "/usr/local/bin/k3s agent --kubelet-arg=cgroup-driver=cgroupfs", "cgroupfs", "--kubelet-arg"),
    ("k3s", {CONFIG: "cgroupDriver: systemd\n"}, "", "", ""),
]


@pytest.mark.parametrize(("kind", "files", "start", "driver", "source"), GIVEN)
def test_the_probe_says_what_gives_the_kubelet_its_driver(
    kind: str, files: dict[str, str], start: str, driver: str, source: str
) -> None:
    unit = {"kubeadm": "kubelet.service", "k3s": "k3s-agent.service"}.get(kind, "")
    kubernetes = probed(kind, files, start=start, unit=unit).kubernetes
    assert (kubernetes.cgroup_driver, kubernetes.cgroup_source) == (driver, source)


SOCKETS = [
    ("k3s", {}, "/usr/local/bin/k3s server", "/run/k3s/containerd/containerd.sock"),
    ("k3s", {}, "/usr/local/bin/k3s server --docker", "/run/k3s/cri-dockerd/cri-dockerd.sock"),
    ("k3s", {K3S_CONFIG: "docker: true\n"}, "/usr/local/bin/k3s server", "/run/k3s/cri-dockerd/cri-dockerd.sock"),
    (
        "k3s",
        {K3S_CONFIG: 'container-runtime-endpoint: "unix:///run/crio/crio.sock"\n'},
        "/usr/local/bin/k3s server",
        "/run/crio/crio.sock",
    ),
    ("k0s", {}, "/usr/local/bin/k0s worker", "/run/k0s/containerd.sock"),
    (
        "k0s",
        {},
        "/usr/local/bin/k0s worker --cri-socket=remote:unix:///run/containerd/containerd.sock",
        "/run/containerd/containerd.sock",
    ),
    ("kubeadm", {CONFIG: "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n"}, "", "/run/crio/crio.sock"),
]


@pytest.mark.parametrize(("kind", "files", "start", "socket"), SOCKETS)
def test_the_probe_says_which_socket_the_kubelet_uses(
    kind: str, files: dict[str, str], start: str, socket: str
) -> None:
    unit = {"k3s": "k3s.service", "k0s": "k0sworker.service"}.get(kind, "")
    assert probed(kind, files, start=start, unit=unit).kubernetes.cri_socket == socket


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("featureGates:\n  KubeletCgroupDriverFromCRI: false\n", False),
        ("featureGates: {KubeletCgroupDriverFromCRI: true}\n", True),
        ("featureGates: {}\n", None),
    ],
)
def test_the_feature_gate_is_read(text: str, gate: bool | None) -> None:
    assert probed("kubeadm", {CONFIG: text}).kubernetes.cgroup_from_cri is gate


def test_an_engine_of_its_own_that_k0s_was_notified_of_is_the_kubelets() -> None:
    runtimes = (
        "binary containerd /usr/bin/containerd\ncontainerd 1.7.28\nbundled k0s /var/lib/k0s/bin/containerd\nv1.7.34"
    )
    start = "/usr/local/bin/k0s worker --cri-socket=remote:unix:///run/containerd/containerd.sock"
    facts = probed("k0s", {}, start=start, unit="k0sworker.service", runtimes=runtimes)
    found = facts.runtime("containerd")
    assert found is not None
    assert (found.distribution, found.version) == ("", "1.7.28")
    assert [runtime.distribution for runtime in facts.runtimes] == ["", "k0s"]
