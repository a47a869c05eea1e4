"""Distributions that are made from another one, and machines of arm64 that are no servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.core.facts import parse_probe
from gpunode.core.model import Kernel, NodeFacts
from gpunode.core.solve import SolveRequest, request_of, solve
from gpunode.core.spec import DriverSpec, Spec
from gpunode.edge.load import load_knowledge

KNOWLEDGE = load_knowledge()
MINT = 'ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22"\nVERSION_CODENAME=wilma\nUBUNTU_CODENAME=noble'
LMDE = 'ID=linuxmint\nID_LIKE=debian\nVERSION_ID="6"\nVERSION_CODENAME=faye\nDEBIAN_CODENAME=bookworm'
POP = 'ID=pop\nID_LIKE="ubuntu debian"\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\nUBUNTU_CODENAME=jammy'
RASPBIAN = 'ID=raspbian\nID_LIKE=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm'
EUROLINUX = 'ID="eurolinux"\nID_LIKE="rhel fedora centos"\nVERSION_ID="9.4"'
KALI = 'ID=kali\nID_LIKE=debian\nVERSION_ID="2026.3"\nVERSION_CODENAME=kali-rolling'
MICRO = 'ID="sle-micro"\nID_LIKE="suse"\nVERSION_ID="5.5"'


def machine(release: str, *system: str) -> NodeFacts:
    lines = ["#: gpunode-probe 1", "#: system", "| machine aarch64", *(f"| {line}" for line in system), "#: os_release"]
    return parse_probe("\n".join([*lines, *(f"| {line}" for line in release.splitlines()), "#: end\n"]))


def asked(facts: NodeFacts, driver: DriverSpec | None = None) -> SolveRequest:
    return replace(request_of(facts, Spec(driver=driver or DriverSpec())), gpus=("10de:2331",), arch="x86_64")


@pytest.mark.parametrize(
    ("release", "key", "base", "packages"),
    [
        (MINT, "linuxmint:22", "ubuntu:24.04", "nvidia-open"),
        (LMDE, "linuxmint:6", "debian:12", "nvidia-persistenced"),
        (POP, "pop:22.04", "ubuntu:22.04", "nvidia-open"),
        (RASPBIAN, "raspbian:12", "debian:12", "nvidia-persistenced"),
        (EUROLINUX, "eurolinux:9.4", "rhel:9", "nvidia-open"),
    ],
)
def test_a_derivative_gets_the_packages_of_what_it_is_made_from(
    release: str, key: str, base: str, packages: str
) -> None:
    solution = solve(asked(machine(release)), KNOWLEDGE)
    assert [reason.why for reason in solution.reasons if reason.what == "distribution"][:1] == [
        f"{key} is taken as {base}, which its os-release says that it is made from, untested"
    ]
    assert solution.driver and packages in {want.name for want in solution.driver.packages}
    assert KNOWLEDGE.distros[base].dir in next(one.url for one in solution.repositories if one.name == "nvidia-cuda")


@pytest.mark.parametrize(("release", "key"), [(KALI, "kali:2026.3"), (MICRO, "sle-micro:5.5")])
def test_what_is_made_from_nothing_that_is_known_is_refused(release: str, key: str) -> None:
    (problem,) = solve(asked(machine(release)), KNOWLEDGE).problems
    assert problem.what == f"distribution {key!r} is not known"
    assert problem.fix.startswith("gpunode solves ubuntu, debian, rhel, "), "names, no list of all releases"


def test_ubuntu_and_debian_are_made_from_nothing_else() -> None:
    facts = machine("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=24.04\nVERSION_CODENAME=noble\nUBUNTU_CODENAME=noble")
    assert facts.distro.made_from == ""
    assert not [reason for reason in solve(asked(facts), KNOWLEDGE).reasons if reason.what == "distribution"]


PI = ("compatible raspberrypi,5-model-b brcm,bcm2712 ", "model Raspberry Pi 5 Model B Rev 1.0")
DEBIAN = "ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm"


def on_arm(*system: str, driver: DriverSpec | None = None) -> SolveRequest:
    return replace(asked(machine(DEBIAN, *system), driver), arch="aarch64")


def test_a_raspberry_pi_is_no_server() -> None:
    (problem,) = solve(on_arm(*PI), KNOWLEDGE).problems
    assert problem.what.startswith("this is a Raspberry Pi 5 Model B Rev 1.0, ")
    assert "preinstalled" in problem.fix
    assert solve(on_arm(*PI, driver=DriverSpec(branch="none")), KNOWLEDGE).problems == ()
    loaded = replace(on_arm(*PI, driver=DriverSpec(method="preinstalled")), loaded_driver="580.95.05")
    assert solve(loaded, KNOWLEDGE).problems == ()


def test_another_board_is_warned_of_and_a_server_with_acpi_is_not() -> None:
    board = solve(on_arm("compatible rockchip,rk3588", "model Radxa ROCK 5B"), KNOWLEDGE)
    assert board.driver and not board.problems
    assert [r.why[:31] for r in board.reasons if r.level == "warning"][:1] == ["this is a Radxa ROCK 5B, which "]
    server = solve(on_arm(), KNOWLEDGE)
    assert not [r for r in server.reasons if "device tree" in r.why]


@pytest.mark.parametrize(
    ("distro", "release", "line"),
    [  # as linux-restricted-modules of jammy and noble have them for arm64
        ("ubuntu:24.04", "6.17.0-1032-nvidia-64k", "nvidia-64k-6.17"),
        ("ubuntu:22.04", "6.8.0-1068-nvidia-64k", "nvidia-64k-6.8"),
        ("ubuntu:22.04", "6.8.0-149-lowlatency-64k", "lowlatency-64k-6.8"),
        ("ubuntu:24.04", "7.0.0-44-generic-64k", "generic-64k-hwe-24.04"),
    ],
)
def test_kernels_of_arm64_with_pages_of_64k_have_the_metapackage_of_their_line(
    distro: str, release: str, line: str
) -> None:
    kernel = Kernel(release=release, image=True, running=True)
    request = SolveRequest(
        gpus=("10de:2342",),
        distro=distro,
        arch="aarch64",
        secure_boot=True,
        kernels=(kernel,),
        driver=DriverSpec(branch="580"),
    )
    driver = solve(request, KNOWLEDGE).driver
    assert driver and f"linux-modules-nvidia-580-server-open-{line}" in {want.name for want in driver.packages}
