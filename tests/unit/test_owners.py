"""What the owner of a node has decided before: pins, holds, a fabric manager.  It is said, and not overruled."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.items.package import NoPackage
from gpunode.core.model import ConfigFile, InstalledPackage, NodeFacts
from gpunode.core.solve import SolveRequest, request_of, solve
from gpunode.core.solve.repo_files import strong_pins
from gpunode.core.spec import DriverSpec, Spec
from gpunode.edge.load import load_knowledge

KNOWLEDGE = load_knowledge()
ASKED = SolveRequest(gpus=("10de:2330",), distro="ubuntu:22.04")
TOOLKIT = "nvidia-container-toolkit"
LAMBDA = 'Package: *\nPin: origin "archive.lambdalabs.com"\nPin-Priority: 1001\n'
PREFERENCES = "/etc/apt/preferences.d/lambda-repository"


def with_file(path: str, text: str) -> NodeFacts:
    return NodeFacts(files={path: ConfigFile(path=path, data=text.encode())})


def warnings(request: SolveRequest) -> list[str]:
    return [reason.why for reason in solve(request, KNOWLEDGE).reasons if reason.level == "warning"]


def test_a_pin_that_downgrades_the_toolkit_is_said_with_its_file_and_what_keeps_it() -> None:
    pins = request_of(with_file(PREFERENCES, LAMBDA), Spec()).pins
    (said,) = [why for why in warnings(replace(ASKED, pins=pins)) if PREFERENCES in why]
    assert f"apt-mark hold {TOOLKIT} " in said
    assert "nvidia-open" not in said  # the driver's packages are held
    (all_loose,) = [
        why for why in warnings(replace(ASKED, pins=pins, driver=DriverSpec(hold=False))) if PREFERENCES in why
    ]
    assert "nvidia-open" in all_loose


@pytest.mark.parametrize(
    ("path", "text", "count"),
    [
        ("/etc/apt/preferences", LAMBDA, 1),
        ("/etc/apt/preferences.d/lambda.pref", "Explanation: x\n" + LAMBDA + "\n\n" + LAMBDA, 2),
        ("/etc/apt/preferences.d/lambda.bak", LAMBDA, 0),  # apt does not read it
        ("/etc/apt/preferences.d/gpunode-nvidia-driver", LAMBDA, 0),
        (PREFERENCES, LAMBDA.replace("1001", "1000"), 0),
        (PREFERENCES, "package: a\n b\npin: release o=x\npin-priority: 9999999999999999999999\n", 1),
        (PREFERENCES, "Pin-Priority: 1001\n", 0),
    ],
)
def test_a_pin_counts_where_apt_reads_it_and_above_1000(path: str, text: str, count: int) -> None:
    assert len(strong_pins(with_file(path, text).files)) == count


@pytest.mark.parametrize(
    ("packages", "to", "covers"),
    [
        ("*", "release o=x", True),
        ("libnvidia* nvidia-container-*", "release o=x", True),
        (f"{TOOLKIT}:any", "release o=x", True),
        ("/nvidia/", "release o=x", True),
        ("cuda-*", "release o=x", False),
        ("*", "version 1.20.*", False),  # just what is asked for
        ("*", "version 1.17.*", True),
    ],
)
def test_a_pin_concerns_the_packages_that_it_names(packages: str, to: str, covers: bool) -> None:
    (pin,) = strong_pins(with_file(PREFERENCES, f"Package: {packages}\nPin: {to}\nPin-Priority: 1001\n").files)
    assert pin.covers(TOOLKIT, "1.20.1-1") is covers


@pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt")
def test_apt_itself_downgrades_for_such_a_pin_and_not_what_is_held(tmp_path: Path) -> None:
    for name, version in (("theirs", "1.17.4-1"), ("nvidia", "1.20.1-1")):
        (tmp_path / name).mkdir()
        entry = f"Package: {TOOLKIT}\nVersion: {version}\nArchitecture: all\nFilename: ./x.deb\nSize: 1\n"
        (tmp_path / name / "Packages").write_text(entry + f"SHA256: {'0' * 64}\nDescription: x\n\n")
        (tmp_path / name / "Release").write_text(f"Origin: {name}\n")
    (tmp_path / "preferences.d").mkdir()
    (tmp_path / "preferences.d" / "lambda").write_text(
        LAMBDA.replace('origin "archive.lambdalabs.com"', "release o=theirs")
    )
    sources = "".join(f"deb [trusted=yes] file:{tmp_path}/{name} ./\n" for name in ("theirs", "nvidia"))
    (tmp_path / "sources.list").write_text(sources)
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    conf = tmp_path / "apt.conf"
    folders = {"State": "", "State::lists": "/lists", "State::status": "/status", "Cache": "", "Etc": ""}
    lines = [f'Dir::{key} "{tmp_path}{rest}";' for key, rest in folders.items()]
    conf.write_text("\n".join([*lines, 'APT::Sandbox::User "root";', 'Dir::Etc::parts "-";']))

    def upgrade(state: str) -> str:
        installed = f"Package: {TOOLKIT}\nStatus: {state} ok installed\nVersion: 1.20.1-1\nArchitecture: all\n"
        (tmp_path / "status").write_text(installed + "Maintainer: x\nDescription: x\n\n")
        environment = {**os.environ, "APT_CONFIG": str(conf), "LC_ALL": "C"}
        for words in (["update"], ["--simulate", "--allow-downgrades", "dist-upgrade"]):
            done = subprocess.run(["apt-get", *words], env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        return done.stdout

    assert f"Inst {TOOLKIT} [1.20.1-1] (1.17.4-1" in upgrade("install")
    assert "Inst" not in upgrade("hold")


def test_a_package_that_is_held_is_marked_where_the_plan_removes_it() -> None:
    held = InstalledPackage(name="cuda-drivers", version="580.95.05-1", held=True)
    item = NoPackage(role="driver", package="cuda-drivers")
    assert (
        item.difference(item.actual(NodeFacts(packages={"cuda-drivers": held}))) == "580.95.05-1, held, to be removed"
    )
    assert item.actual(NodeFacts(packages={"cuda-drivers": replace(held, held=False)})) == "580.95.05-1"


@pytest.mark.parametrize("branch", ["580", "535"])
def test_a_fabric_manager_is_kept_where_no_nvswitch_is_seen_and_somebody_is_asked(branch: str) -> None:
    request = replace(ASKED, installed=("nvidia-fabricmanager-550",), driver=DriverSpec(branch=branch))
    driver = solve(request, KNOWLEDGE).driver
    assert driver
    wanted = {want.name: want.version for want in driver.packages}
    name = "nvidia-fabricmanager" + "-535" * (branch == "535")
    assert wanted[name] == f"{branch}.*"
    assert "nvidia-fabricmanager-550" in driver.remove
    assert driver.services == ("nvidia-persistenced.service",)
    assert any("nvidia-fabricmanager-550 is installed, and no NVSwitch is seen" in why for why in warnings(request))
    switched = replace(request, nvswitches=("10de:22a3",))
    assert not any("no NVSwitch is seen" in why for why in warnings(switched))


def test_imex_is_kept_where_no_domain_is_seen_and_the_owner_is_asked() -> None:
    request = replace(ASKED, installed=("nvidia-imex-550", "nvidia-fabricmanager-550"), driver=DriverSpec(branch="580"))
    driver = solve(request, KNOWLEDGE).driver
    assert driver
    wanted = {want.name: want.version for want in driver.packages}
    assert (wanted["nvidia-imex"], wanted["nvidia-fabricmanager"]) == ("580.*", "580.*")
    assert {"nvidia-imex-550", "nvidia-fabricmanager-550"} <= {*driver.remove}
    assert any(
        "nvidia-imex-550 is installed, and no GPU of an NVLink domain is seen" in why for why in warnings(request)
    )
    of_domain = replace(request, gpus=("10de:2941",))
    assert not any("nvidia-imex-550 is installed" in why for why in warnings(of_domain))


def test_a_fabric_manager_that_the_distribution_does_not_have_is_a_question() -> None:
    request = replace(
        ASKED, distro="debian:12", installed=("nvidia-fabricmanager",), driver=DriverSpec(branch="distro")
    )
    (problem,) = solve(request, KNOWLEDGE).problems
    assert "nvidia-fabricmanager installed, and the distribution has no fabric manager" in problem.what
    assert "driver.branch to auto" in problem.fix


@pytest.mark.parametrize("mark", ["/etc/nvidia/gridd.conf.template", "nvidia-linux-grid-550", "nvidia_vgpu_vfio"])
def test_a_licensed_driver_of_virtual_gpus_is_known_by_a_file_a_package_or_a_module(mark: str) -> None:
    file, package = ConfigFile(path=mark, data=b""), InstalledPackage(name=mark, version="550.127.05")
    kind: dict[str, Any] = {"files": {mark: file}} if mark.startswith("/") else {"packages": {mark: package}}
    facts = NodeFacts(**({"modules": (mark,)} if "_" in mark else kind))
    assert request_of(facts, Spec()).licensed == mark


def test_a_fabric_manager_that_is_installed_goes_for_no_runfile() -> None:
    asked = replace(ASKED, installed=("nvidia-fabricmanager-580",), driver=DriverSpec(method="runfile"))
    (problem,) = solve(asked, KNOWLEDGE).problems
    assert problem.what.startswith("nvidia-fabricmanager-580 is installed, which must be of the driver's exact")
    assert "where this node needs none, remove nvidia-fabricmanager-580 first" in problem.fix
