"""A machine that boots is prepared before its GPU is there, under Secure Boot; it comes, and is there at the next boot.

The GPU is a program, and does not start: see test_vm.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from cluster import wait_for
from test_golden_image import PREPARE, check
from vm_node import MARKS, Machine, driver_alone

from gpunode.lab.vm import nodes as vm

pytestmark = MARKS


@pytest.fixture(scope="module")
def machine(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Its H100 is out of its slot, which has room for it: QEMU was started so."""
    lab = lab_up(distro="ubuntu:24.04", machine="vm", engines=("containerd",), gpus=("h100",), name="t-vm-image")
    made = Machine(lab, run_gpunode, tmp_path_factory.mktemp("spec"), driver_alone())
    vm.unplug(made.node, "pci0")
    made.cut_power()
    assert made.bound() == {}
    return made


def test_the_driver_is_there_for_the_next_boot_and_nothing_is_loaded(machine: Machine) -> None:
    with machine.timed("provision"):
        done = machine.json("provision", *PREPARE, "--yes")
    assert machine.failed(done) == []
    assert "Canonical" in machine.signer("nvidia") and "nvidia" not in machine.sh("cut -d' ' -f1 /proc/modules")
    assert check(machine.json("verify", *PREPARE), "image.first-boot")[0] == "not-proven"
    assert machine.json("provision", *PREPARE, "--yes")["changed"] == []


def test_a_gpu_that_comes_while_the_machine_runs_is_taken_by_the_driver(machine: Machine) -> None:
    vm.plug(machine.node, "pci0")
    with machine.timed("hot plug, until the module is bound"):
        wait_for(lambda: list(machine.bound().values()) == ["nvidia"], 300)
    facts = machine.json("detect")["facts"]
    assert [(gpu["id"], gpu["driver"]) for gpu in facts["gpus"]] == [("10de:2330", "nvidia")]
    assert facts["driver"]["loaded"].startswith("580.")
    assert "driver.smi" in machine.failed(machine.json("verify", exit=None)), "its firmware does not start"


def test_the_first_boot_with_it_binds_the_signed_module_and_says_that_the_gpu_does_not_start(machine: Machine) -> None:
    machine.reboot()
    assert list(machine.bound().values()) == ["nvidia"]
    status, message = check(machine.json("verify", *PREPARE, exit=None), "image.first-boot")
    assert status == "failed" and message.endswith("driver.smi: nvidia-smi sees 0 GPUs, and PCI has 1")
    assert machine.sh("systemctl is-enabled gpunode-firstboot").strip() == "enabled", "it tries again at the next boot"
