"""Canonical's real fabric manager, NSCQ and IMEX on an Ubuntu node, as far as they go without a driver in the kernel.

The node's GPUs, NVSwitches and modules are stubs; every program of NVIDIA's that runs here is Canonical's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_provision import Node

from gpunode.edge.load import load_questions

pytestmark = [pytest.mark.lab, pytest.mark.extended, pytest.mark.timeout(1200)]

BRANCHES = {"580": "580.178.04", "595": "595.91.07", "615": "615.71.09"}
NO_TOOLKIT = {"toolkit": {"version": "none"}}


def versions(node: Node, *packages: str) -> dict[str, str]:
    """Of packages whose maintainer is not the lab."""
    said = node.sh(f"dpkg-query -W -f '${{Package}} ${{Version}} ${{Maintainer}}\\n' {' '.join(packages)}").splitlines()
    return {line.split()[0]: line.split()[1].partition("-")[0] for line in said if "gpunode lab" not in line}


def on(gpu: str, name: str, lab_up: Callable[..., Any], run_gpunode: Any, folder: Any) -> Node:
    lab = lab_up(distro="ubuntu:24.04", gpus=(gpu,), engines=(), name=name)
    return Node(lab, run_gpunode, folder, NO_TOOLKIT)


@pytest.fixture(scope="module")
def switches(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Eight H100 and four NVSwitches."""
    return on("hgx-h100", "t-canonical", lab_up, run_gpunode, tmp_path_factory.mktemp("spec"))


@pytest.mark.parametrize("branch", BRANCHES)
def test_fabric_manager_and_nscq_come_with_the_driver_and_the_manager_says_why_it_ends(
    branch: str, switches: Node
) -> None:
    switches.lab.reset()
    switches.set({**NO_TOOLKIT, "driver": {"branch": branch, "modules": "precompiled"}})
    said = switches.gpunode("provision", "--yes", exit=1)
    assert "nvidia-fabricmanager.service does not start" in said.stdout + said.stderr
    names = (f"nvidia-fabricmanager-{branch}", f"libnvidia-nscq-{branch}", f"nvidia-utils-{branch}-server")
    assert versions(switches, *names) == dict.fromkeys(names, BRANCHES[branch])
    assert (
        switches.sh("nv-fabricmanager --version").splitlines()[0].strip()
        == f"Fabric Manager version is : {BRANCHES[branch]}"
    )
    assert switches.sh("systemctl is-enabled nvidia-fabricmanager").strip() == "enabled"
    switches.sh("ldconfig -p | grep libnvidia-nscq.so.2")
    journal = switches.sh("journalctl -u nvidia-fabricmanager --no-pager")
    assert "failed to allocate handle (client) to NVIDIA GPU driver" in journal
    failed = {c["id"] for c in switches.json("verify", "--no-smoke", exit=1)["checks"] if c["status"] == "failed"}
    assert "fabric.state" in failed, failed
    findings = {finding["id"] for finding in switches.json("doctor", exit=None)["findings"]}
    assert findings & {"fm-failed", "fabric-manager-missing", "fm-state-in-progress"}, findings


@pytest.mark.parametrize("branch", BRANCHES)
def test_imex_of_a_domain_says_why_it_ends_and_no_run_is_a_success_then(
    branch: str, lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """To systemd the start of 580 and 595 succeeds, and nothing runs then; that of 615 fails."""
    node = on("10de:2941", f"t-imex-{branch}", lab_up, run_gpunode, tmp_path_factory.mktemp("spec"))
    fabric = {"imex_nodes": ["10.0.7.1", "10.0.7.2"]}  # none of this node's
    node.set({**NO_TOOLKIT, "driver": {"branch": branch, "modules": "precompiled"}, "fabric": fabric})
    done = node.gpunode("provision", "--yes", exit=1)
    said = done.stdout + done.stderr
    assert "nvidia-imex.service does not start" in said and "nvidia-imex.service running" not in said
    assert versions(node, f"nvidia-imex-{branch}") == {f"nvidia-imex-{branch}": BRANCHES[branch]}
    assert node.sh("nvidia-imex --version").strip() == f"IMEX version is: {BRANCHES[branch]}"
    assert node.sh("systemctl is-active nvidia-imex || true").strip() != "active"
    assert "No matching network interface found" in node.sh("cat /var/log/nvidia-imex.log")


def test_the_real_nvidia_container_cli_takes_every_row_of_the_table_of_questions(
    lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """That of Ubuntu 26.04, the oldest archive that has one, with all that it depends on; it asks the lab's NVML."""
    lab = lab_up(distro="ubuntu:26.04", gpus=("h100", "h100"), engines=(), name="t-cli")
    node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), NO_TOOLKIT)
    node.set({**NO_TOOLKIT, "driver": {"branch": "595", "modules": "precompiled"}})
    node.gpunode("provision", "--yes")
    node.sh("apt-get -qq update && apt-get -qq -y install libnvidia-container-tools >/dev/null 2>&1")
    [installed] = versions(node, "libnvidia-container-tools").values()
    assert node.sh("nvidia-container-cli --version").splitlines()[0] == f"cli-version: {installed}"
    rows = [row for row in load_questions().commands if row.program == "nvidia-container-cli"]
    said = {row.words: node.sh(f"nvidia-container-cli {' '.join(row.words)}") for row in rows}
    assert said["--load-kmods", "info"].count("GPU UUID:") == 2
    assert "/usr/bin/nvidia-smi" in said[("list",)].splitlines()
    assert node.sh("nvidia-container-cli --no-such-option info >/dev/null 2>&1 || echo refused").strip() == "refused"
