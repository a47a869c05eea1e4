"""How a pod learns of its GPUs on a real kubelet: by CDI, by mounts, by a variable; one node with containerd 1.7.

The CDI specification is the one that NVIDIA's device plugin makes of the node, on the lab's NVML.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import FOLDER, REASON, Cluster, wait_for

from gpunode.lab import Lab

_NEEDED = ("nvidia-device-plugin", "gpu-feature-discovery", "mps-control-daemon")
_LACKING = [name for name in _NEEDED if not Path(FOLDER, name).exists()]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not FOLDER, reason=REASON),
    pytest.mark.skipif(bool(_LACKING), reason=f"{FOLDER} has no {', '.join(_LACKING)}"),
]

NODE = "t-kube-cdi-1"
GPU = "nvidia.com/gpu"
RUNC = {"containerd": {"default_runtime": "runc"}}
_SAMPLE = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"


def _spec(cluster: Cluster, *strategies: str, **plugin: Any) -> Path:
    plugin["device_list_strategy"] = list(strategies)
    return cluster.spec({"runtimes": RUNC, "kubernetes": {"device_plugin": plugin}})


@pytest.fixture(scope="module")
def node(
    lab_up: Callable[..., Lab],
    run_gpunode: Callable[..., subprocess.CompletedProcess[str]],
    controller: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Cluster:
    """Its default runtime is runc, so that GPUs which come without a RuntimeClass come by CDI."""
    lab = lab_up(
        1, name=NODE.removesuffix("-1"), distro="debian:13", kubernetes=FOLDER, gpus=("h100",) * 2,
        engines=("containerd",),
    )  # fmt: skip
    found = Cluster(lab=lab, folder=tmp_path_factory.mktemp("kube"), run_gpunode=run_gpunode, controller=controller)
    words = ("provision", "-i", lab.inventory, "-c", _spec(found, "cdi-cri"), "--yes")
    found.gpunode(*words, exit=None)  # the first restart of containerd may replace the pods that run (docs/lab.md)
    found.gpunode(*words)
    return found


@pytest.fixture
def clean(node: Cluster) -> Iterator[Cluster]:
    """The provisioned node; what the test applied is removed afterwards."""
    yield node
    node.kubectl("delete", "pod", "--all", "--force", "-n", "default")
    node.kube("remove", node.spec({"kubernetes": {}}, "remove.yml"))


def test_the_engine_takes_cdi_as_the_device_plugin_gives_gpus_by_it(node: Cluster) -> None:
    assert "enable_cdi = true" in node.lab.run(NODE, "cat /etc/containerd/config.toml").stdout
    assert node.lab.run(NODE, "containerd --version").stdout.split()[2].startswith("1.7")


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations"])
def test_a_pod_without_a_runtime_class_gets_its_gpu_by_cdi(strategy: str, clean: Cluster) -> None:
    _proven(clean, _spec(clean, strategy))
    seen = [_gpus(clean, _pod(name, {GPU: 1})) for name in ("one", "two")]
    assert sorted(seen) == [["nvidia0"], ["nvidia1"]], "each has one, and not the other's"
    environment = clean.kubectl("exec", "one", "--", "sh", "-c", "env; nvidia-smi -L")
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment
    assert environment.count("UUID: GPU-") == 1
    assert _gpus(clean, _pod("none", {})) == []


def test_gpus_by_mounts_are_accepted_by_the_toolkit(clean: Cluster) -> None:
    """Finding: its configuration passes over such mounts, and every pod was without a GPU."""
    spec = _spec(clean, "volume-mounts")
    clean.gpunode("provision", "-i", clean.lab.inventory, "-c", spec, "--yes")
    _proven(clean, spec)
    assert len(_gpus(clean, _pod("one", {GPU: 1}, runtimeClassName="nvidia"))) == 1
    assert "nvidia-container-devices/GPU-" in clean.kubectl("exec", "one", "--", "sh", "-c", "cat /proc/mounts")


def test_gpus_by_index_with_their_files_given_by_the_kubelet(clean: Cluster) -> None:
    _proven(clean, _spec(clean, "envvar", device_id_strategy="index", pass_device_specs=True))
    (seen,) = _gpus(clean, _pod("one", {GPU: 1}, runtimeClassName="nvidia"))
    environment = clean.kubectl("exec", "one", "--", "sh", "-c", "env")
    assert f"NVIDIA_VISIBLE_DEVICES={seen.removeprefix('nvidia')}" in environment.splitlines()


# ---------------------------------------------------------------- helpers


def _proven(cluster: Cluster, spec: Path) -> None:
    cluster.kube("apply", spec, "-i", cluster.lab.inventory)
    found = cluster.checks("verify", spec, "-i", cluster.lab.inventory, "--smoke")
    assert [check for checks in found.values() for check in checks if check[1] != "passed"] == []


def _pod(name: str, limits: dict[str, int], **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": _SAMPLE, "command": ["sh", "-c", "exec sleep 3600"],
                 "resources": {"limits": limits}}  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}}  # fmt: skip


def _gpus(cluster: Cluster, pod: dict[str, Any]) -> list[str]:
    """Names of the GPUs' device files in a new pod."""
    name = pod["metadata"]["name"]
    cluster.apply(pod)
    wait_for(lambda: cluster.get("pod", name)["status"]["phase"] == "Running")
    listed = cluster.kubectl("exec", name, "--", "ls", "/dev").split()
    return [word for word in listed if word.removeprefix("nvidia").isdecimal()]
