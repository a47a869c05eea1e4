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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kube_cluster import rendered, silent

from benchmarks.control_plane import ControlPlane, control_plane, wait_for
from benchmarks.sharing_under_load import (
    DRA,
    FIRST_WITH_SHARES,
    History,
    bound_use,
    kubelets,
    make_nodes,
    post,
    resource_slice,
    server,
)
from gpunode.kube.core.checks.proof_rules import NAMESPACE
from gpunode.kube.core.objects import thing
from gpunode.kube.core.render.dra import DRIVER
from gpunode.kube.edge.apply import apply
from gpunode.kube.edge.status import read_usage
from gpunode.kube.edge.verify import ProofOptions, verify

PROGRAMS = os.environ.get("GPUNODE_KUBERNETES", "")
SPEC = {"sharing": {"strategy": "dra", "dra": {"shares": "memory"}}}
pytestmark = pytest.mark.skipif(not PROGRAMS, reason="GPUNODE_KUBERNETES names no folder with Kubernetes' programs")
GATE = "--feature-gates=DRAConsumableCapacity"


@pytest.fixture(autouse=True)
def _new_enough() -> None:
    said = subprocess.run(
        [f"{PROGRAMS}/kube-apiserver", "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"v1\.(\d+)", said)
    if not found or int(found[1]) < FIRST_WITH_SHARES:
        pytest.skip(f"GPUNODE_KUBERNETES names no folder with Kubernetes 1.{FIRST_WITH_SHARES} or newer")


@contextmanager
def cluster(tmp_path: Path, *flags: str) -> Iterator[ControlPlane]:
    """Two nodes with two GPUs each, and the class that the driver's chart makes."""
    with control_plane(Path(PROGRAMS), tmp_path / "plane", *flags) as plane:
        make_nodes(plane.api, {}, count=2)
        for name in ("gpu00", "gpu01"):
            post(plane.api, resource_slice(name))
        selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
        post(plane.api, thing("DeviceClass", DRA, DRIVER, "dra", {"spec": {"selectors": selectors}}))
        plane.start_scheduler(None, *flags)
        pods = History(plane.api, f"/api/v1/namespaces/{NAMESPACE}/pods", bound_use, lambda _node: 99)
        pods.follow()
        with kubelets(plane.kubeconfig, pods):
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
        make_nodes(plane.api, {}, count=1)
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
