"""doctor on a node: what its state and the ends of its logs say, over real SSH."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def test_a_docker_that_somebody_has_stopped_is_reported_and_started(
    lab_up: Callable[..., Lab], run_gpunode: Callable[..., Any], tmp_path: Path
) -> None:
    """A step of the plan, a finding of doctor, a check of verify; provision starts it, and none of them is left."""
    lab = lab_up(1)
    spec = tmp_path / "gpunode.yml"
    spec.write_text(yaml.safe_dump(yaml.safe_load(lab.spec.read_text()) | {"driver": {"branch": "580"}}))
    words = ("-i", str(lab.inventory), "-c", str(spec), "--format", "json")
    run_gpunode("provision", *words, "--yes")
    assert lab.run(lab.nodes[0], "systemctl stop docker.socket docker.service").returncode == 0

    planned = run_gpunode("plan", *words, exit=3)
    steps = [step["title"] for step in json.loads(planned.stdout)["hosts"][0]["steps"]]
    assert [title for title in steps if "Start docker" in title], steps
    assert "docker.service is enabled and does not run" in findings(run_gpunode, lab)["engine-stopped"]["evidence"][0]
    assert "engine.stopped" in checks(run_gpunode("verify", *words, "--no-smoke", exit=None))
    ran = json.loads(run_gpunode("provision", *words, "--yes").stdout)["hosts"][0]
    assert "started docker.service" in ran["changed"], ran
    assert lab.run(lab.nodes[0], "systemctl is-active docker.service").stdout == "active\n"
    assert json.loads(run_gpunode("plan", *words).stdout)["hosts"][0]["converged"]
    assert "engine.stopped" not in checks(run_gpunode("verify", *words, "--no-smoke", exit=None))


def checks(ran: Any) -> set[str]:
    (host,) = json.loads(ran.stdout)["hosts"]
    return {check["id"] for check in host["checks"] if check["status"] != "ok"}


def findings(run_gpunode: Callable[..., Any], lab: Lab) -> dict[str, Any]:
    ran = run_gpunode("doctor", "-i", str(lab.inventory), "--format", "json", exit=1)
    (host,) = json.loads(ran.stdout)["hosts"]
    assert host["error"] is None and host["notes"] == []
    return {finding["id"]: finding for finding in host["findings"]}
