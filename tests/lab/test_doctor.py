"""doctor on a node: what its state and the ends of its logs say, over real SSH."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpunode.lab import Lab

pytestmark = pytest.mark.lab

INSTALLER = "ERROR: The Nouveau kernel driver is currently in use by your system.\n"
CHECKPOINT = json.dumps({"Data": {"RegisteredDevices": {"nvidia.com/gpu": []}}})


def test_logs_and_state_of_a_node_are_read(lab_up: Callable[..., Lab], run_gpunode: Callable[..., Any]) -> None:
    lab = lab_up(1)
    node = lab.nodes[0]
    files = {
        "/var/log/nvidia-installer.log": INSTALLER,
        "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": CHECKPOINT,
    }
    for path, text in files.items():
        assert lab.run(node, f"mkdir -p $(dirname {path}) && cat >{path}", stdin=text).returncode == 0
    found = findings(run_gpunode, lab)
    assert found["nouveau-in-use"]["root"]
    assert found["nouveau-in-use"]["evidence"][0].startswith("nvidia-installer:1:")
    assert "plugin-no-devices" in found
    assert "nvml-version-mismatch" not in found


def findings(run_gpunode: Callable[..., Any], lab: Lab) -> dict[str, Any]:
    ran = run_gpunode("doctor", "-i", str(lab.inventory), "--format", "json", exit=1)
    (host,) = json.loads(ran.stdout)["hosts"]
    assert host["error"] is None and host["notes"] == []
    return {finding["id"]: finding for finding in host["findings"]}
