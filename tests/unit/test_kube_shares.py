"""Shares of a GPU's memory by DRA on a real API server and scheduler: what verify proves, and what a closed gate does.

Kubelets are a loop that says Running, and ResourceSlices are written here; GPUNODE_KUBERNETES names the folder with the
programs.  With gpu-kubelet-plugin of NVIDIA's DRA driver and a mock of libnvidia-ml.so.1 in it, the slices are compared
with the driver's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from control_plane import ControlPlane, control_plane, wait_for
from kube_cluster import rendered, silent

from gpunode.kube.core.api_error import ApiError
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.objects import thing
from gpunode.kube.core.owned import key_of
from gpunode.kube.core.render.dra import DRIVER
from gpunode.kube.edge.apply import apply
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect
from gpunode.kube.edge.status import read_usage
from gpunode.kube.edge.verify import ProofOptions, verify

PROGRAMS = os.environ.get("GPUNODE_KUBERNETES", "")
SPEC = {"sharing": {"strategy": "dra", "dra": {"shares": "memory"}}}
pytestmark = pytest.mark.skipif(not PROGRAMS, reason="GPUNODE_KUBERNETES names no folder with Kubernetes' programs")
GATE = "--feature-gates=DRAConsumableCapacity"
DRA = "resource.k8s.io/v1"
FIRST_WITH_SHARES = 36  # minor version that has them on by default
GPUS, GIB = 2, 16  # of a node, memory of a GPU
PODS_PATH = "/api/v1/pods"


@pytest.fixture(autouse=True)
def _new_enough() -> None:
    said = subprocess.run(
        [f"{PROGRAMS}/kube-apiserver", "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"v1\.(\d+)", said)
    if not found or int(found[1]) < FIRST_WITH_SHARES:
        pytest.skip(f"GPUNODE_KUBERNETES names no folder with Kubernetes 1.{FIRST_WITH_SHARES} or newer")


def make_nodes(api: Api, count: int) -> None:
    for number in range(count):
        name = f"gpu{number:02}"
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "250"}
        body: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        api.request("POST", "/api/v1/nodes", body=body)
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        content = "application/merge-patch+json"
        api.request("PATCH", f"/api/v1/nodes/{name}/status", body={"status": status}, content=content)


@contextmanager
def kubelets(kubeconfig: Path) -> Iterator[None]:
    """Say of every pod that is bound that it runs, and remove those that are to end."""
    api, done = connect(str(kubeconfig)), threading.Event()

    def work() -> None:
        while not done.wait(0.1):
            for pod in api.request("GET", PODS_PATH)["items"]:
                with suppress(ApiError):
                    _as_kubelet(api, pod)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _as_kubelet(api: Api, pod: Object) -> None:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    if "deletionTimestamp" in metadata:
        gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        api.request("DELETE", path, body={"apiVersion": "v1", "kind": "DeleteOptions", **gone})
    elif pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") == "Pending":
        running = [{"name": one["name"], "state": {"running": {}}} for one in pod["spec"]["containers"]]
        status = {"status": {"phase": "Running", "containerStatuses": running}}
        api.request("PATCH", f"{path}/status", body=status, content="application/merge-patch+json")


def server(plane: ControlPlane) -> str:
    found = re.match(r"v(\d+\.\d+)", plane.api.version())
    assert found
    return found[1]


def resource_slice(node: str) -> Object:
    whole = f"{GIB}Gi"
    policy = {"default": whole, "validRange": {"min": "1Mi", "max": whole, "step": "1Mi"}}
    device = {
        "attributes": {"type": {"string": "gpu"}},
        "capacity": {"memory": {"value": whole, "requestPolicy": policy}},
        "allowMultipleAllocations": True,
    }
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{index}", **device} for index in range(GPUS)],
    }
    return {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def post(api: Api, item: Object) -> None:
    api.apply(key_of(item), item, force=True)


@contextmanager
def cluster(tmp_path: Path, *flags: str) -> Iterator[ControlPlane]:
    """Two nodes with two GPUs each, and the class that the driver's chart makes."""
    with control_plane(Path(PROGRAMS), tmp_path / "plane", *flags) as plane:
        make_nodes(plane.api, count=2)
        for name in ("gpu00", "gpu01"):
            post(plane.api, resource_slice(name))
        selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
        post(plane.api, thing("DeviceClass", DRA, DRIVER, "dra", {"spec": {"selectors": selectors}}))
        plane.start_scheduler(None, *flags)
        with kubelets(plane.kubeconfig):
            yield plane


@pytest.mark.parametrize("flags", [(), ("--emulated-version=1.34", f"{GATE}=true")], ids=["as it is", "as 1.34"])
def test_three_and_five_gib_share_a_gpu_and_seventeen_stay_pending(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with cluster(tmp_path, *flags) as plane:
        what = rendered(SPEC, version=server(plane))
        assert apply(plane.api, what, notify=silent, timeout=30).problems == ()
        for item in what.examples:  # classes, claims and pods: all of it a server takes
            post(plane.api, item)
        (pool,) = [
            r for r in verify(plane.api, what, ProofOptions(smoke=True, timeout=20), notify=silent) if "pool" in r.host
        ]
        found = {check.id: (check.status, check.message) for check in pool.checks}
        status, message = found["kube.dra-memory-two-pods"]
        assert (status, message) == ("passed", "pods with 3 and 5 GiB run side by side: 8 GiB on gpu-0")
        status, message = found["kube.dra-memory-too-large-stays-pending"]
        assert status == "passed" and message.startswith("a claim for 17 GiB stays Pending: 0/2 nodes are available: ")
        taken = [gpu.allocated for node in read_usage(plane.api).nodes for use in node.uses for gpu in use.gpus]
        assert sum(taken) == 8 * 1024, "the examples hold 3 and 5 GiB, and nothing of the proofs is left"


def test_a_server_with_the_gate_closed_is_refused(tmp_path: Path) -> None:
    with cluster(tmp_path, f"{GATE}=false") as plane:
        what = rendered(SPEC, version=server(plane))
        (problem,) = apply(plane.api, what, notify=silent, timeout=30).problems
        assert "its feature gate DRAConsumableCapacity is off" in problem.what


def test_the_driver_offers_gpus_as_the_slices_written_here(tmp_path: Path) -> None:
    needed = [Path(PROGRAMS, name) for name in ("gpu-kubelet-plugin", "libnvidia-ml.so.1")]
    if not all(path.exists() for path in needed):
        pytest.skip("GPUNODE_KUBERNETES names no folder with NVIDIA's DRA driver and a mock of NVML")
    root = tmp_path / "driver"
    libraries, programs = root / "usr/lib/x86_64-linux-gnu", root / "usr/bin"
    for folder in (libraries, programs, tmp_path / "registry"):
        folder.mkdir(parents=True)
    shutil.copy(needed[1], libraries)
    hook = programs / "nvidia-smi"  # neither it nor the hook is run
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    (release,) = rendered(SPEC, version="1.36").releases
    with control_plane(Path(PROGRAMS), tmp_path / "plane") as plane:
        make_nodes(plane.api, count=1)
        flags = {
            "kubeconfig": plane.kubeconfig, "node-name": "gpu00", "image-name": "none", "cdi-root": tmp_path / "cdi",
            "container-driver-root": root, "nvidia-driver-root": root, "nvidia-cdi-hook-path": hook,
            "kubelet-plugins-directory-path": tmp_path / "plugins",
            "kubelet-registrar-directory-path": tmp_path / "registry",
        }  # fmt: skip
        asked = {
            "CONSUMABLE_SHARES": release.values["consumableShares"],
            "FEATURE_GATES": ",".join(f"{gate}=true" for gate in release.values["featureGates"]),
        }
        plane.start(
            "gpu-kubelet-plugin", *(f"--{name}={value}" for name, value in flags.items()),
            environment={**asked, "LD_LIBRARY_PATH": str(libraries)},
        )  # fmt: skip
        path = f"/apis/{DRA}/resourceslices"
        wait_for(lambda: plane.api.request("GET", path)["items"], "the driver's ResourceSlice", plane)
        (live,) = plane.api.request("GET", path)["items"]
    (ours, *_) = resource_slice("gpu00")["spec"]["devices"]
    for device in live["spec"]["devices"]:
        memory = device["capacity"]["memory"]
        assert device["allowMultipleAllocations"] is ours["allowMultipleAllocations"] is True
        assert device["attributes"]["type"] == ours["attributes"]["type"]
        shape = ours["capacity"]["memory"]["requestPolicy"]
        whole = {"default": memory["value"], "validRange": {**shape["validRange"], "max": memory["value"]}}
        assert memory["requestPolicy"] == whole
    assert live["spec"]["devices"] and live["spec"]["driver"] == DRIVER
