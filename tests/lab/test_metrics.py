"""Metrics of the GPUs on a node without Kubernetes and without a driver: the real systemd runs the timer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.lab import Lab

pytestmark = pytest.mark.lab

FOLDER = "/var/lib/prometheus/node-exporter"


@pytest.mark.timeout(900)
def test_a_timer_writes_metrics_also_of_a_node_whose_driver_is_gone(
    lab_up: Any, run_gpunode: Any, tmp_path: Path
) -> None:
    lab: Lab = lab_up(distro="debian:12", gpus=("10de:20b5",), engines=(), name="metrics")
    spec = tmp_path / "gpunode.yml"
    request = {"driver": {"branch": "none"}, "toolkit": {"version": "none"}, "fabric": {"metrics": FOLDER}}
    spec.write_text(yaml.safe_dump(request))
    given = ("-i", lab.inventory, "-c", spec)

    def sh(command: str) -> str:
        return str(lab.run(lab.nodes[0], command).stdout)

    sh(f"mkdir -p {FOLDER}")
    run_gpunode("provision", *given, "--yes", exit=0)
    [host] = json.loads(run_gpunode("plan", *given, "--format", "json", exit=0).stdout)["hosts"]
    assert host["converged"]
    assert sh("systemctl is-active gpunode-metrics.timer; systemctl is-enabled gpunode-metrics.timer").split() == [
        "active",
        "enabled",
    ]
    until = time.monotonic() + 90
    while not (text := sh(f"cat {FOLDER}/gpunode.prom 2>/dev/null")) and time.monotonic() < until:
        time.sleep(3)
    lines = text.splitlines()
    assert {"gpunode_driver_up 0", "gpunode_gpus 0"} <= set(lines)
    assert sh("systemctl show -p Result --value gpunode-metrics.service").strip() == "success"
