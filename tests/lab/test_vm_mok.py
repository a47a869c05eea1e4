"""A distribution's own driver by DKMS under Secure Boot, refused by the kernel until its key is enrolled, and back.

DKMS runs on the machine, makes the key there and signs there; its `make` alone is done on a node of containers beside
it, where the compiler is not emulated: on the machine itself it takes more than an hour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from test_vm import modules, state
from vm_node import MARKS, UP, Machine, MokManager

from gpunode.lab import machine as this_machine

pytestmark = MARKS

PASSWORD = "geheim12"
MAKE = """#!/bin/sh
case "$PWD $*" in /var/lib/dkms/*/build*modules*) ;; *) exec /usr/bin/make "$@" ;; esac
on() { ssh -i /root/maker.key -o StrictHostKeyChecking=no -o LogLevel=ERROR root@%s "$@"; }
set -e
tar -C / -cf - ".$PWD" | on "tar -C / -xf - && cd $PWD && make $*"
on "cd $PWD && find . -name '*.ko' | tar -cf - -T -" | tar -xf -
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What differs between the distributions."""

    distro: str
    driver: Mapping[str, str]
    package: str  # that DKMS builds from
    module: str  # by its name on disk
    says: str  # when it is loaded, before its version
    key: str
    signer: str
    kept: frozenset[str]  # after the uninstall: the firmware knows the key
    maker: Mapping[str, bool]
    tools: str  # of the maker: make, and what it has not of the compiler and the headers


CASES = (
    Case(
        distro="debian:13",
        driver={"branch": "distro", "flavour": "proprietary"},
        package="nvidia-kernel-dkms",
        module="nvidia_current",
        says="NVIDIA UNIX x86_64 Kernel Module",
        key="/var/lib/dkms/mok.pub",
        signer="DKMS module signing key",
        kept=frozenset(("./var/lib/dkms", "./var/lib/dkms/mok.key", "./var/lib/dkms/mok.pub")),
        maker={"real_driver": True},
        tools="apt-get update && apt-get -y install --no-install-recommends make",
    ),
    Case(
        distro="ubuntu:24.04",
        driver={"branch": "distro", "modules": "dkms"},
        package="nvidia-dkms-*-server-open",
        module="nvidia",
        says="NVIDIA UNIX Open Kernel Module for x86_64",
        key="/var/lib/shim-signed/mok/MOK.der",
        signer="t-vm-mok-1 Secure Boot Module Signature key",
        kept=frozenset(
            f"./var/lib/shim-signed/{name}"
            for name in ("dkms-list", "dkms-list.new", "mok/.rnd", "mok/MOK.der", "mok/MOK.priv")
        ),
        maker={},
        # the lab's own kernels are stubs, and so are their headers
        tools="rm /etc/apt/preferences.d/kernels /etc/apt/sources.list.d/kernels.sources && apt-get update && "
        "apt-get -y install --no-install-recommends make gcc linux-headers-{release}",
    ),
)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.distro)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def machine(case: Case, lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With an H100, and a compiler that is not emulated; one machine at a time."""
    spec = {
        "driver": dict(case.driver),
        "toolkit": {"version": "none"},
        "runtimes": {"containerd": {"manage": "ignore"}},
    }
    shape = {"machine": "vm", "engines": ("containerd",), "gpus": ("h100",)}
    with (
        lab_up(distro=case.distro, engines=(), gpus=(), name="t-vm-make", **case.maker) as maker,
        lab_up(distro=case.distro, name="t-vm-mok", **shape) as lab,
    ):
        machine = Machine(lab, run_gpunode, tmp_path_factory.mktemp("spec"), spec)
        tools = case.tools.format(release=machine.sh("uname -r").strip())
        installed = maker.run(maker.nodes[0], tools)
        assert not installed.returncode, installed
        for name, mode, text in (
            ("/root/maker.key", "600", this_machine.places().key.read_text()),
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


def test_the_plan_says_how_the_key_is_enrolled(case: Case, machine: Machine) -> None:
    with machine.timed("plan, with all lists to read"):
        plan = machine.json("plan", exit=3)
    [said] = [text for text in plan["warnings"] if "Secure Boot" in text]
    assert f"mokutil --import {case.key}, choose a password, reboot, and «Enroll MOK» in the blue screen" in said


def test_the_kernel_refuses_the_module_of_a_key_that_it_does_not_know(
    case: Case, machine: Machine, before: dict[str, set[str]]
) -> None:
    assert before["modules"] == {"nouveau"}
    with machine.timed("provision, with its build by DKMS"):
        done = machine.gpunode("provision", "--yes", exit=1)
    said = done.stdout + done.stderr
    assert "Secure Boot rejects the module nvidia: " in said and "Key was rejected by service" in said, said
    assert "mokutil --import" in said
    assert "Loading of module with unavailable key is rejected" in machine.sh("dmesg")
    version = machine.sh(f"modinfo -F version {case.module}").strip()
    assert machine.sh(f"dpkg-query -W -f '${{Version}}' '{case.package}'").startswith(f"{version}-")
    assert f"{version}, {machine.sh('uname -r').strip()}, x86_64: installed" in machine.sh("dkms status")
    assert machine.signer(case.module) == case.signer
    assert machine.sh(f"mokutil --test-key {case.key}").strip() == f"{case.key} is not enrolled"
    assert set(machine.bound().values()) == {""} and modules(machine) == set()


def test_verify_and_doctor_name_secure_boot_and_the_key(case: Case, machine: Machine) -> None:
    checks = machine.json("verify", "--no-smoke", exit=1)["checks"]
    left = {check["id"]: check["message"] for check in checks if check["status"] == "pending"}
    assert set(left) == {"plan.driver.activate"}, left
    failed = {check["id"]: check["message"] for check in checks if check["status"] == "failed"}
    assert set(failed) == {"driver.loaded"}, failed
    assert "Secure Boot is on, and the module for " in failed["driver.loaded"]
    [root] = [finding for finding in machine.json("doctor", exit=1)["findings"] if finding["root"]]
    assert root["id"] == "modprobe-key-rejected" and "mokutil --import" in root["fix"] and case.key in root["fix"]


def test_the_steps_of_the_plan_enrol_the_key_and_the_module_is_on_the_gpu(case: Case, machine: Machine) -> None:
    machine.sh(f"printf '{PASSWORD}\\n{PASSWORD}\\n' | mokutil --import {case.key}")
    was, screen = machine.boot_id(), MokManager(machine)
    with machine.timed("reboot, with MokManager's screens"):
        machine.lab.run(machine.node, "systemctl reboot")
        screen.enroll(PASSWORD)
        machine.wait_for_boot(was, UP)
    assert machine.sh(f"mokutil --test-key {case.key} || :").strip() == f"{case.key} is already enrolled"
    assert set(machine.bound().values()) == {"nvidia"} and modules(machine) == {"nvidia"}
    version = machine.sh(f"modinfo -F version {case.module}").strip()
    assert f"NVRM: loading {case.says}  {version}" in machine.sh("dmesg")


def test_a_provision_after_that_has_nothing_left_to_change(machine: Machine) -> None:
    with machine.timed("second run"):
        done = machine.json("provision", "--yes", exit=None)
    assert done["changed"] == [] and "mokutil" not in done["message"], done


def test_an_uninstall_and_a_reboot_leave_the_machine_as_it_was_but_for_the_key(
    case: Case, machine: Machine, before: dict[str, set[str]]
) -> None:
    with machine.timed("uninstall"):
        machine.gpunode("uninstall", "--yes", exit=None)
    machine.reboot()
    after = state(machine)
    kept = {line for line in after["tree"] - before["tree"] if line.split()[0] in case.kept}
    assert {line.split()[0] for line in kept} == case.kept
    after["tree"] -= kept
    assert after["modules"] == {"nouveau"} and set(machine.bound().values()) == {""}
    assert {name: sorted(after[name] ^ before[name])[:40] for name in before if after[name] != before[name]} == {}
    assert case.signer in machine.sh("mokutil --list-enrolled")
