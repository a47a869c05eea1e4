"""A machine that boots with ill GPUs, named by what the real kernel and NVIDIA's real driver say of them.

Of four H100 the firmware finds memory for two, which never start; then one of these falls off the bus.
"""

from __future__ import annotations

from typing import Any

import pytest
from vm_node import MARKS, Machine, driver_alone

from gpunode.lab.vm import nodes as vm

pytestmark = MARKS


@pytest.fixture(scope="module")
def machine(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    lab = lab_up(distro="ubuntu:24.04", machine="vm", engines=("containerd",), gpus=("h100",) * 4, name="t-vm-ill")
    made = Machine(lab, run_gpunode, tmp_path_factory.mktemp("spec"), driver_alone())
    with made.timed("provision"):
        made.gpunode("provision", "--yes", exit=None)
    return made


def missing(machine: Machine) -> dict[str, str]:
    """What verify says of each GPU that the driver does not list, by its address."""
    with machine.timed("verify"):
        checks = {one["id"]: one for one in machine.json("verify", exit=None)["checks"]}
    assert checks["gpu.count"]["status"] == "failed"
    listed = checks["gpu.count"]["message"].partition("missing: ")[2].split(", ")
    return {one.split()[0]: one.rpartition("): ")[2] for one in listed}


def roots(machine: Machine) -> set[str]:
    with machine.timed("doctor"):
        said = machine.json("doctor", exit=None)
    return {one["id"] for one in said["findings"] if one["root"]}


def test_gpus_that_do_not_start_and_gpus_without_memory_are_told_apart(machine: Machine) -> None:
    bound = machine.bound()
    assert sorted(bound.values()) == ["", "", "nvidia", "nvidia"]
    words = {"nvidia": "«RmInitAdapter failed! (0x62:0x65:2028)»", "": "«no driver has taken it»"}
    assert missing(machine) == {slot: words[driver] for slot, driver in bound.items()}
    assert "BAR2 is 0M @ 0x0" in machine.sh("dmesg") and roots(machine) == {"nvrm-bar-invalid", "gsp-cannot-init"}


def test_a_gpu_that_falls_off_the_bus_is_named(machine: Machine) -> None:
    vm.lose(machine.node, "pci0")
    first = min(machine.bound())
    assert missing(machine)[first] == "«no answer on PCI: it has fallen off the bus»"
    assert roots(machine) == {"gpu-lost", "nvrm-bar-invalid", "gsp-cannot-init"}
