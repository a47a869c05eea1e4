"""NVIDIA's installers: what is chosen, and the steps."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.items.runfile import runfile_request, runfile_value
from gpunode.core.model import InstalledPackage, NodeFacts, Plan
from gpunode.core.solve import SolveRequest, solve
from gpunode.core.solve.runfile import installer_options
from gpunode.core.spec import CudaSpec, DriverSpec, parse_spec
from gpunode.core.spec.runfile import RunfileSpec
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.edge.load import load_knowledge

KNOWLEDGE = load_knowledge()
PROBE = Path(__file__).parents[1] / "cases/probes/debian12-h100-fresh/probe.txt"
H100, GTX1080, K80 = "10de:2330", "10de:1b80", "10de:102d"
SHA = "ab" * 32


# ---------------------------------------------------------------- what is chosen


@pytest.mark.parametrize(
    ("version", "flavour", "has", "lacks"),
    [
        ("580.178.04", "open", "--kernel-module-type=open", "-m=kernel-open"),
        ("580.178.04", "proprietary", "--kernel-module-type=proprietary", "--kernel-module-type=open"),
        ("535.309.01", "open", "-m=kernel-open", "--kernel-module-type=open"),
        ("470.256.02", "proprietary", "--dkms", "--allow-installation-with-running-driver"),
        ("550.163.01", "open", "--no-nouveau-check", "--kernel-module-type=open"),
        ("390.157", "proprietary", "--silent", "--no-nouveau-check"),
    ],
)
def test_an_installer_gets_the_options_that_it_knows(version: str, flavour: Any, has: str, lacks: str) -> None:
    options = installer_options(version, flavour, KNOWLEDGE.driver_runfile)
    assert {"--silent", "--dkms", has} <= set(options)
    assert lacks not in options


@pytest.mark.parametrize(
    ("gpu", "distro", "arch", "driver", "name", "url"),
    [
        (
            H100,
            "debian:12",
            "x86_64",
            DriverSpec(),
            "NVIDIA-Linux-x86_64-620.70.06.run",
            "https://us.download.nvidia.com/",
        ),
        (
            GTX1080,
            "arch",
            "x86_64",
            DriverSpec(),
            "NVIDIA-Linux-x86_64-580.178.04.run",
            "XFree86/Linux-x86_64/580.178.04",
        ),
        (K80, "debian:12", "x86_64", DriverSpec(), "NVIDIA-Linux-x86_64-470.256.02.run", "470.256.02"),
        (
            H100,
            "ubuntu:24.04",
            "aarch64",
            DriverSpec(),
            "NVIDIA-Linux-aarch64-620.70.06.run",
            "XFree86/aarch64/620.70.06",
        ),
        (
            H100,
            "centos:7",
            "x86_64",
            DriverSpec(version="535.309.01", runfile=RunfileSpec(url="http://m/{version}-{arch}.run", sha256=SHA)),
            "NVIDIA-Linux-x86_64-535.309.01.run",
            "http://m/535.309.01-x86_64.run",
        ),
    ],
)
def test_the_runfile_of_the_branch_is_chosen(
    gpu: str, distro: str, arch: str, driver: DriverSpec, name: str, url: str
) -> None:
    asked = SolveRequest(gpus=(gpu,), distro=distro, arch=arch, driver=replace(driver, method="runfile"))
    solution = solve(asked, KNOWLEDGE)
    assert solution.problems == ()
    choice = solution.driver
    assert choice and choice.runfile
    assert (choice.method, choice.runfile.name, choice.repository) == ("runfile", name, "")
    assert url in choice.runfile.urls[0]
    assert "dkms" in [package.name for package in choice.packages]


@pytest.mark.parametrize(
    ("more", "what", "fix"),
    [
        (
            {"driver": DriverSpec(runfile=RunfileSpec(path="/srv/x.run"))},
            "no checksum of driver.runfile.path",
            "sha256",
        ),
        (
            {"driver": DriverSpec(runfile=RunfileSpec(url="http://m/x.run"))},
            "no checksum of driver.runfile.url",
            "sha256",
        ),
        ({"nvswitches": ("10de:22a3",)}, "an NVLink fabric, whose manager must be of the driver's", "packages"),
        ({"driver": DriverSpec(branch="distro")}, "a distribution has no runfile", "driver.method"),
        (
            {"cuda": CudaSpec(versions=("12.8",), method="runfile")},
            "no checksum of cuda_12.8",
            "cuda.runfiles.12.8.sha256",
        ),
    ],
)
def test_what_cannot_be_installed_by_a_runfile_is_refused(more: dict[str, Any], what: str, fix: str) -> None:
    driver = replace(more.pop("driver", DriverSpec()), method="runfile")
    problems = solve(SolveRequest(gpus=(H100,), distro="debian:12", driver=driver, **more), KNOWLEDGE).problems
    assert [(what in p.what, fix in p.fix) for p in problems] == [(True, True)]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"driver": {"runfile": {"url": "http://m/x", "path": "/x"}}}, "both url and path"),
        ({"driver": {"runfile": {"url": "ftp://m/x"}}}, "url is"),
        ({"driver": {"runfile": {"sha256": "abc"}}}, "sha256 is"),
        ({"driver": {"runfile": {"path": "/x-{verison}.run"}}}, "path is"),
        ({"cuda": {"versions": ["12.8"], "runfiles": {"12.9": {}}}}, "cuda.runfiles has '12.9'"),
    ],
)
def test_a_runfile_in_the_spec_that_cannot_be_meant_is_refused(data: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        parse_spec(data)
    assert says in error.value.what


# ---------------------------------------------------------------- the steps


def plan(facts: NodeFacts, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"(a key)\n")
    return DesiredState({"toolkit": {"version": "none"}, **spec}).plan("node1", facts).plan


def facts(**more: Any) -> NodeFacts:
    found = parse_probe(PROBE.read_text())
    return replace(found, **{**more, "driver": replace(found.driver, **more.get("driver", {}))})


RUNFILE = {"driver": {"method": "runfile", "branch": "580"}}


def test_the_installer_is_fetched_before_anything_is_touched_and_run_when_dkms_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = {step.id: step.value for step in plan(facts(), RUNFILE, monkeypatch).steps}
    wanted = ["preflight.expect", "preflight.fetch", "driver.packages", "driver.runfile", "driver.files"]
    assert [name for name in steps if name in wanted] == wanted
    assert steps["preflight.fetch"] == steps["driver.runfile"]
    [value] = steps["driver.runfile"]
    assert (value["kind"], value["version"], value["modules"]) == ("driver", "580.178.04", "open")
    assert "dkms" in [package["name"] for package in steps["driver.packages"]["install"]]
    assert steps["driver.activate"]["version"] == "580.178.04"


def test_a_node_whose_runfile_driver_is_the_one_wanted_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    there = plan(facts(driver={"runfile": "580.178.04"}), RUNFILE, monkeypatch)
    # DKMS has yet to build for the kernels of this probe, which the installer's step does
    assert "nvidia module for kernel" in str([s.reasons for s in there.steps if s.id == "driver.runfile"])
    built = tuple(replace(k, module="580.178.04", flavour="open") for k in facts().kernels)
    done = plan(facts(driver={"runfile": "580.178.04"}, kernels=built), RUNFILE, monkeypatch)
    assert [step.id for step in done.steps if "runfile" in step.id or "fetch" in step.id] == []


def test_packages_of_a_driver_go_before_its_runfile_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {
        name: InstalledPackage(name=name, version="595.91.07-1")
        for name in ("nvidia-open", "libnvidia-ml1", "libcuda1")
    }
    kept = {"nvidia-container-toolkit": InstalledPackage(name="nvidia-container-toolkit", version="1.20.0-1")}
    steps = {step.id: step.value for step in plan(facts(packages={**held, **kept}), RUNFILE, monkeypatch).steps}
    assert set(steps["driver.packages"]["remove"]) == set(held)


def test_to_go_over_to_packages_the_runfiles_driver_is_taken_off_first(monkeypatch: pytest.MonkeyPatch) -> None:
    there = facts(driver={"runfile": "570.211.01", "userspace": "570.211.01"})
    refused = plan(there, {}, monkeypatch)
    assert [p.what for p in refused.problems] == [
        "driver 570.211.01 was installed by NVIDIA's runfile: packages on top of it break both"
    ]
    steps = {step.id: step.value for step in plan(there, {"driver": {"method": "packages"}}, monkeypatch).steps}
    order = ["driver.sources", "driver.uninstall", "driver.packages"]
    assert [name for name in steps if name in order] == order
    assert steps["driver.uninstall"] == [{"kind": "driver", "version": "570.211.01"}]


def test_a_given_file_is_compared_when_the_plan_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "driver.run"
    spec = {"driver": {"method": "runfile", "runfile": {"path": str(file), "sha256": SHA}}}
    assert f"there is no file {file}" in plan(facts(), spec, monkeypatch).problems[0].what
    file.write_text("<!DOCTYPE html><title>sign in</title>")
    assert "is a web page, not an installer" in plan(facts(), spec, monkeypatch).problems[0].what
    file.write_text("#!/bin/sh\n")
    wrong = plan(facts(), spec, monkeypatch)
    assert (wrong.steps, len(wrong.problems)) == ((), 1)
    assert "has the SHA-256" in wrong.problems[0].what
    spec["driver"]["runfile"]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()  # type: ignore[index]
    assert plan(facts(), spec, monkeypatch).problems == ()


def test_the_value_of_a_choice_is_a_request_that_the_script_takes() -> None:
    solution = solve(SolveRequest(gpus=(H100,), distro="debian:12", driver=DriverSpec(method="runfile")), KNOWLEDGE)
    assert solution.driver and solution.driver.runfile
    found = runfile_value("driver", solution.driver.runfile, proxy="http://p:3128", modules="open")
    request = runfile_request("fetch", found)
    assert request["mode"] == b"fetch\n"
    assert b"--silent\n--dkms\n" in request["options"]
    assert (request["modules"], request["proxy"]) == (b"open\n", b"http://p:3128\n")
