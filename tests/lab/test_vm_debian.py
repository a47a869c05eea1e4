"""Debian 13 under Secure Boot: Debian's own driver by DKMS, refused by the kernel until its key is enrolled, and back.

DKMS runs on the machine, makes the key there and signs there; its `make` alone is done on a node of containers beside
it, where the compiler is not emulated: on the machine itself it takes more than an hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from test_vm import modules, state
from vm_node import MARKS, UP, Machine, MokManager

from gpunode.lab import machine as this_machine

pytestmark = MARKS

SPEC = {
    "driver": {"branch": "distro", "flavour": "proprietary"},
    "toolkit": {"version": "none"},
    "runtimes": {"containerd": {"manage": "ignore"}},
}
KEY = "/var/lib/dkms/mok.pub"
KEPT = {"./var/lib/dkms", "./var/lib/dkms/mok.key", "./var/lib/dkms/mok.pub"}  # the firmware knows the key
PASSWORD = "geheim12"
MAKE = """#!/bin/sh
case "$PWD $*" in /var/lib/dkms/*/build*modules*) ;; *) exec /usr/bin/make "$@" ;; esac
on() { ssh -i /root/maker.key -o StrictHostKeyChecking=no -o LogLevel=ERROR root@%s "$@"; }
set -e
tar -C / -cf - ".$PWD" | on "tar -C / -xf - && cd $PWD && make $*"
on "cd $PWD && find . -name '*.ko' | tar -cf - -T -" | tar -xf -
"""


@pytest.fixture(scope="module")
def machine(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With an H100, and a compiler that is not emulated."""
    maker = lab_up(distro="debian:13", real_driver=True, engines=(), gpus=(), name="t-vm-make")
    installed = maker.run(maker.nodes[0], "apt-get update && apt-get -y install --no-install-recommends make")
    assert not installed.returncode, installed
    lab = lab_up(distro="debian:13", machine="vm", engines=("containerd",), gpus=("h100",), name="t-vm-deb")
    machine = Machine(lab, run_gpunode, tmp_path_factory.mktemp("spec"), SPEC)
    key = this_machine.places().key.read_text()
    for name, mode, text in (
        ("/root/maker.key", "600", key),
        ("/usr/sbin/make", "755", MAKE % maker.nodes[0].address),
    ):
        status = lab.run(machine.node, f"cat >{name} && chmod {mode} {name}", stdin=text).returncode
        assert status == 0, name
    yield machine


@pytest.fixture(scope="module")
def before(machine: Machine) -> dict[str, set[str]]:
    """With an initramfs that the machine itself has made; the image has that of another one."""
    machine.sh("update-initramfs -u -k all")
    return state(machine)


def test_the_plan_says_how_the_key_is_enrolled(machine: Machine) -> None:
    with machine.timed("plan, with all lists to read"):
        plan = machine.json("plan", exit=3)
    [said] = [text for text in plan["warnings"] if "Secure Boot" in text]
    assert f"mokutil --import {KEY}, choose a password, reboot, and «Enroll MOK» in the blue screen" in said


def test_the_kernel_refuses_the_module_of_a_key_that_it_does_not_know(
    machine: Machine, before: dict[str, set[str]]
) -> None:
    assert before["modules"] == {"nouveau"}
    with machine.timed("provision, with its build by DKMS"):
        done = machine.gpunode("provision", "--yes", exit=1)
    said = done.stdout + done.stderr
    assert "Secure Boot rejects the module nvidia: " in said and "Key was rejected by service" in said, said
    assert "mokutil --import" in said
    assert "Loading of module with unavailable key is rejected" in machine.sh("dmesg")
    assert machine.signer("nvidia_current") == "DKMS module signing key"
    assert machine.sh(f"mokutil --test-key {KEY}").strip() == f"{KEY} is not enrolled"
    assert set(machine.bound().values()) == {""} and modules(machine) == set()


def test_verify_and_doctor_name_secure_boot_and_the_key(machine: Machine) -> None:
    checks = machine.json("verify", "--no-smoke", exit=1)["checks"]
    left = {check["id"]: check["message"] for check in checks if check["status"] == "pending"}
    assert set(left) == {"plan.driver.activate"}, left
    failed = {check["id"]: check["message"] for check in checks if check["status"] == "failed"}
    assert set(failed) == {"driver.loaded"}, failed
    assert "Secure Boot is on, and the module for " in failed["driver.loaded"]
    [root] = [finding for finding in machine.json("doctor", exit=1)["findings"] if finding["root"]]
    assert root["id"] == "modprobe-key-rejected" and "mokutil --import" in root["fix"] and KEY in root["fix"]


def test_the_steps_of_the_plan_enrol_the_key_and_the_module_is_on_the_gpu(machine: Machine) -> None:
    machine.sh(f"printf '{PASSWORD}\\n{PASSWORD}\\n' | mokutil --import {KEY}")
    was, screen = machine.boot_id(), MokManager(machine)
    with machine.timed("reboot, with MokManager's screens"):
        machine.lab.run(machine.node, "systemctl reboot")
        screen.enroll(PASSWORD)
        machine.wait_for_boot(was, UP)
    assert machine.sh(f"mokutil --test-key {KEY} || :").strip() == f"{KEY} is already enrolled"
    assert set(machine.bound().values()) == {"nvidia"} and modules(machine) == {"nvidia"}
    assert "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.163.01" in machine.sh("dmesg")


def test_a_provision_after_that_has_nothing_left_to_change(machine: Machine) -> None:
    with machine.timed("second run"):
        done = machine.json("provision", "--yes", exit=None)
    assert done["changed"] == [] and "mokutil" not in done["message"], done


def test_an_uninstall_and_a_reboot_leave_the_machine_as_it_was_but_for_the_key(
    machine: Machine, before: dict[str, set[str]]
) -> None:
    with machine.timed("uninstall"):
        machine.gpunode("uninstall", "--yes", exit=None)
    machine.reboot()
    after = state(machine)
    kept = {line for line in after["tree"] - before["tree"] if line.split()[0] in KEPT}
    assert {line.split()[0] for line in kept} == KEPT
    after["tree"] -= kept
    assert after["modules"] == {"nouveau"} and set(machine.bound().values()) == {""}
    assert {name: sorted(after[name] ^ before[name])[:40] for name in before if after[name] != before[name]} == {}
    assert "CN=DKMS module signing key" in machine.sh("mokutil --list-enrolled")
