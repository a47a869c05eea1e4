"""Parameters of the driver's modules, and when a node is rebooted for its driver, on a real node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_provision import Node

pytestmark = pytest.mark.lab

CONF = "/etc/modprobe.d/zz-gpunode-nvidia.conf"
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
FIRMWARE = "sed -n 's/^EnableGpuFirmware: //p' /proc/driver/nvidia/params"
# a file beside the devices counts as they do; they themselves cannot be opened in a lab node
BRANCH, TOOLKIT = {"branch": "595"}, {"toolkit": {"version": "none"}}  # are not what these tests are about
HOLD = """
systemd-run --unit=busy sh -c 'exec 5>/dev/nvidia-busy; sleep infinity'
until [ -e /dev/nvidia-busy ]; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def node(provisioned: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Debian 13 with one H100 and no engine, provisioned."""
    spec = {"driver": BRANCH, **TOOLKIT}
    lab = provisioned(spec, distro="debian:13", gpus=("h100",), engines=())
    return Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), spec)


def request(node: Node, firmware: str | None, **more: Any) -> None:
    parameters = {"module_parameters": {"nvidia": {"NVreg_EnableGpuFirmware": firmware}}} if firmware else {}
    node.set({"driver": BRANCH | parameters, **TOOLKIT, **more})


@pytest.mark.timeout(1200)
def test_a_parameter_is_written_and_in_force_without_a_reboot_where_nothing_holds_the_gpu(node: Node) -> None:
    before = node.sh(BOOT_ID)
    request(node, "0x0")
    plan = node.json("plan", exit=3)
    assert [s["role"] + "." + s["option"] for s in plan["steps"]][1:3] == ["driver.files", "driver.activate"]
    done = node.json("provision", "--yes")
    assert (node.sh(f"cat {CONF}").splitlines()[-1], node.sh(FIRMWARE).strip()) == (
        "options nvidia NVreg_EnableGpuFirmware=0x0",
        "0x0",
    )
    assert node.sh(BOOT_ID) == before and done["exit"] == 0
    assert node.json("provision", "--yes")["changed"] == []


@pytest.mark.timeout(1200)
def test_policy_never_says_that_a_reboot_is_needed_and_verify_says_what_is_not_in_force(node: Node) -> None:
    before = node.sh(BOOT_ID)
    node.sh(HOLD)
    request(node, "18", reboot="never")
    done = node.json("provision", "--yes", exit=3)
    assert "still to do" in done["message"] and node.sh(BOOT_ID) == before
    host = node.json("verify", exit=3)
    assert "EnableGpuFirmware is 0x0, wanted 18" in [
        c["message"].removeprefix("parameters: ") for c in host["checks"] if c["id"] == "plan.driver.activate"
    ]


@pytest.mark.timeout(1200)
def test_the_machine_that_gpunode_runs_on_is_not_rebooted_even_over_ssh(node: Node) -> None:
    """The node gets this machine's boot id, so it is this machine as far as one can tell."""
    own = Path("/proc/sys/kernel/random/boot_id").read_text()
    [machine] = node.lab.nodes
    shown = machine.hardware / "boot_id"
    before = shown.read_text()
    request(node, "18")
    try:
        shown.write_text(own)
        done = node.json("provision", "--yes", exit=3)
    finally:
        shown.write_text(before)
    assert "still to do" in done["message"] and node.sh(BOOT_ID) == before


@pytest.mark.timeout(1200)
def test_policy_if_needed_reboots_where_a_process_holds_the_gpu(node: Node) -> None:
    before = node.sh(BOOT_ID)
    request(node, "18")
    done = node.json("provision", "--yes")
    assert any(
        "rebooted: nvidia" in text and "EnableGpuFirmware is 0x0, 18 is wanted" in text for text in done["changed"]
    )
    assert (node.sh(BOOT_ID) != before, node.sh(FIRMWARE).strip()) == (True, "18")


@pytest.mark.timeout(1200)
def test_policy_always_reboots_after_a_change_and_only_then(node: Node) -> None:
    before = node.sh(BOOT_ID)
    request(node, "0", reboot="always")
    checked = node.json("provision", "--check", exit=3)
    assert any(text.startswith("reboot: ") for text in checked["changed"]) and node.sh(BOOT_ID) == before
    assert any("rebooted: " in text for text in node.json("provision", "--yes")["changed"])
    after = node.sh(BOOT_ID)
    assert after != before
    assert node.json("provision", "--yes")["changed"] == [] and node.sh(BOOT_ID) == after


@pytest.mark.timeout(1200)
def test_a_parameter_that_is_no_longer_wanted_goes(node: Node) -> None:
    request(node, None)
    node.json("provision", "--yes")
    assert "gone" in node.sh(f"test -e {CONF} || echo gone")
    assert node.json("plan")["converged"]
