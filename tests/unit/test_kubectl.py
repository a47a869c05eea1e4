"""The real kubectl as a second opinion: what it drains, and the commands that our messages name."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from api_server import ApiServer
from kube_cluster import node, rendered, silent
from test_drain import RULES, owner, pod

from gpunode.core.errors import RefusedError
from gpunode.core.spec.rollout import DrainSpec
from gpunode.kube.edge.apply import apply
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.drain import cordon, drain, uncordon

pytest_plugins = ("kube_fixtures",)
pytestmark = pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")


def kubectl(server: ApiServer, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    config = server.kubeconfig(folder / "for-kubectl")
    command = ["kubectl", "--kubeconfig", str(config), "--cache-dir", str(folder / "cache"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def flags(options: DrainSpec) -> list[str]:
    found = {
        "--ignore-daemonsets": True,
        "--delete-emptydir-data": options.delete_local_data,
        "--force": options.force,
    }
    return [flag for flag, wanted in found.items() if wanted]


@pytest.mark.parametrize("case", RULES)
def test_we_drain_as_kubectl_does(case: str, server: ApiServer, api: Api, tmp_path: Path) -> None:
    item, options, _ = RULES[case]
    outcomes = []
    for by_kubectl in (True, False):
        server.put(node("gpu1"))
        owner(server)
        for one in (item, pod("neighbour")):
            server.put(one)
        if by_kubectl:
            good = kubectl(server, tmp_path, "drain", "gpu1", "--timeout=20s", *flags(options)).returncode == 0
        else:
            try:
                good = bool(drain(api, "gpu1", options, notify=silent))
            except RefusedError:
                good = False
        outcomes.append((good, sorted(server.names("Pod"))))
        for name in server.names("Pod"):
            server.gone(("v1", "pods", *name.split("/")))
    assert outcomes[0] == outcomes[1]


def test_kubectl_sees_our_cordon_and_we_leave_kubectls(server: ApiServer, api: Api, tmp_path: Path) -> None:
    server.put(node("gpu1"))
    assert kubectl(server, tmp_path, "cordon", "gpu1").returncode == 0
    assert (cordon(api, "gpu1", mark="gpunode", over=""), uncordon(api, "gpu1", mark="gpunode")) == (False, False)
    assert "SchedulingDisabled" not in kubectl(server, tmp_path, "uncordon", "gpu1").stdout
    assert cordon(api, "gpu1", mark="gpunode", over="") is True
    assert kubectl(server, tmp_path, "cordon", "gpu1").stdout == "node/gpu1 already cordoned\n"


def test_the_command_that_hands_an_object_over_does_so(server: ApiServer, api: Api, tmp_path: Path) -> None:
    metadata = {"name": "nvidia"}
    server.put({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": "nvidia-old"})
    (problem,) = apply(api, rendered(), notify=silent).problems
    _, _, command = problem.fix.partition("kubectl ")
    assert kubectl(server, tmp_path, *shlex.split(command)).returncode == 0
    assert apply(api, rendered(), notify=silent, timeout=5).problems == ()


def test_the_commands_that_mark_nodes_mark_them_as_apply_does(server: ApiServer, api: Api, tmp_path: Path) -> None:
    server.put(node("gpu1"))
    server.put(node("gpu2", address="10.0.0.2"))
    spec = {"kubernetes": {"taint": True, "node_selector": {"gpu": "true"}}}
    what = rendered(spec, gpu1={})
    apply(api, what, notify=silent, timeout=5)
    for command in what.nodes[0].commands:
        assert kubectl(server, tmp_path, *shlex.split(command.replace("gpu1", "gpu2"))[1:]).returncode == 0
    one, two = server.get("Node", "gpu1"), server.get("Node", "gpu2")
    assert one and two
    assert one["metadata"]["labels"] == two["metadata"]["labels"]
    assert one["spec"]["taints"] == two["spec"]["taints"]
