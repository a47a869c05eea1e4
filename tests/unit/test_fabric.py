"""What belongs to many GPUs: the IMEX domain and DCGM, from the spec to the steps of the role fabric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.items.activation import Module
from gpunode.core.items.driver import FABRIC_CONF
from gpunode.core.model import ConfigFile, InstalledPackage, NodeFacts, PciDevice, Plan, Service
from gpunode.core.solve import SolveRequest, parse_driver, solution_data, solve
from gpunode.core.solve.fabric import IMEX_NODES
from gpunode.core.spec import parse_spec
from gpunode.core.spec.toolkit import FabricSpec
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.edge.load import load_knowledge

KNOWLEDGE = load_knowledge()
PROBES = Path(__file__).parents[1] / "cases" / "probes"
GB200, H100, RTX4090, K80 = "10de:2941", "10de:2330", "10de:2684", "10de:102d"


def dcgm(cuda: int) -> list[str]:
    stem = "datacenter-gpu-manager-4"
    return [f"{stem}-core", f"{stem}-cuda{cuda}", f"{stem}-proprietary", f"{stem}-proprietary-cuda{cuda}"]


@pytest.mark.parametrize(
    ("gpu", "distro", "fabric", "driver", "cuda", "version"),
    [
        (H100, "debian:12", FabricSpec(dcgm="auto"), "auto", 13, ""),
        (H100, "debian:12", FabricSpec(dcgm="4.6.0"), "auto", 13, "1:4.6.0-*"),
        (H100, "rocky:9.4", FabricSpec(dcgm="4.6.0"), "auto", 13, "4.6.0-*"),
        (H100, "sles:15.6", FabricSpec(dcgm="auto"), "570", 12, ""),
        (H100, "ubuntu:24.04", FabricSpec(dcgm="auto"), "distro", 13, ""),
        (RTX4090, "ubuntu:22.04", FabricSpec(dcgm="auto"), "535", 12, ""),
        (K80, "ubuntu:22.04", FabricSpec(dcgm="auto"), "auto", 11, ""),
    ],
)
def test_dcgm_is_the_packages_for_the_drivers_cuda(
    gpu: str, distro: str, fabric: FabricSpec, driver: str, cuda: int, version: str
) -> None:
    asked = SolveRequest(gpus=(gpu,), distro=distro, fabric=fabric, driver=parse_driver(driver))
    solution = solve(asked, KNOWLEDGE)
    assert solution.problems == ()
    assert solution.fabric
    assert [p.name for p in solution.fabric.packages] == dcgm(cuda)
    assert {(p.version, p.hold) for p in solution.fabric.packages} == {(version, bool(version))}
    assert "nvidia-cuda" in [r.name for r in solution.repositories]


def test_without_a_word_there_is_no_dcgm() -> None:
    assert solve(SolveRequest(gpus=(H100,), distro="debian:12"), KNOWLEDGE).fabric is None


@pytest.mark.parametrize(
    ("gpu", "distro", "fabric", "what"),
    [
        (H100, "arch", FabricSpec(dcgm="auto"), "NVIDIA has no repository for arch"),
        (H100, "debian:12", FabricSpec(imex_nodes=("10.0.0.1",)), "no GPU here belongs to an NVLink domain"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(gpu: str, distro: str, fabric: FabricSpec, what: str) -> None:
    problems = solve(SolveRequest(gpus=(gpu,), distro=distro, fabric=fabric), KNOWLEDGE).problems
    assert [what in p.what and bool(p.fix) for p in problems] == [True]


@pytest.mark.parametrize("value", ["newest", "3.3.9", "4.6", ""])
def test_a_version_of_dcgm_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(InputError, match=r"fabric\.dcgm"):
        parse_spec({"fabric": {"dcgm": value}})


def gb200(**more: Any) -> NodeFacts:
    facts = parse_probe((PROBES / "debian12-h100-fresh" / "probe.txt").read_text())
    return replace(facts, gpus=(PciDevice(slot="0000:17:00.0", id=GB200, class_code="0302"),), **more)


def planned(facts: NodeFacts, fabric: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"(a key)\n")
    plan = DesiredState({"fabric": fabric, "toolkit": {"version": "none"}}).plan("node1", facts).plan
    assert plan.problems == ()
    return plan


def steps(plan: Plan) -> dict[str, Any]:
    return {step.id: step.value for step in plan.steps if step.role == "fabric"}


def test_the_nodes_of_the_domain_are_written_and_imex_started(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(gb200(), {"imex_nodes": ["10.0.0.1", "10.0.0.2"]}, monkeypatch)
    assert steps(plan) == {
        "fabric.files": [{"path": IMEX_NODES, "content": "10.0.0.1\n10.0.0.2\n", "mode": "0644"}],
        "fabric.activate": {"services": ["nvidia-imex.service"]},
    }
    driver = next(step.value for step in plan.steps if step.id == "driver.packages")
    assert "nvidia-imex" in [package["name"] for package in driver["install"]]


def test_imex_that_runs_is_started_again_when_its_domain_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    running = {"nvidia-imex": Service(name="nvidia-imex", active="active", enabled="enabled")}
    file = ConfigFile(path=IMEX_NODES, data=b"10.0.0.1\n", sha256="0" * 64, mode=0o644)
    facts = gb200(services=running, files={IMEX_NODES: file})
    found = steps(planned(facts, {"imex_nodes": ["10.0.0.1", "10.0.0.3"]}, monkeypatch))
    assert found["fabric.activate"] == {"services": ["nvidia-imex.service"], "restart": ["nvidia-imex.service"]}


def test_old_dcgm_goes_when_the_new_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    old = InstalledPackage(name="datacenter-gpu-manager", version="1:3.3.9")
    found = steps(planned(gb200(packages={old.name: old}), {"dcgm": "auto"}, monkeypatch))
    assert found["fabric.packages"]["remove"] == [old.name]
    assert [package["name"] for package in found["fabric.packages"]["install"]] == dcgm(13)
    assert found["fabric.activate"] == {"services": ["nvidia-dcgm.service"]}


def test_before_the_gpus_are_there_services_are_enabled_and_started_at_the_first_boot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"(a key)\n")
    spec = {"fabric": {"dcgm": "auto"}, "toolkit": {"version": "none"}, "image": {"load": False, "gpus": [GB200]}}
    found = {step.id: step.value for step in DesiredState(spec).plan("node1", replace(gb200(), gpus=())).plan.steps}
    assert found["fabric.activate"] == {"enable": ["nvidia-dcgm.service"]}
    assert "nvidia-dcgm.service" not in found["driver.activate"]["enable"]
    assert "nvidia-dcgm.service" in found["driver.first_boot"]["activate"]["services"]


def test_the_solver_reports_dcgm_where_it_is_asked_for() -> None:
    asked = SolveRequest(gpus=(H100,), distro="debian:12", fabric=FabricSpec(dcgm="auto"))
    assert solution_data(solve(asked, KNOWLEDGE))["fabric"] == {
        "packages": dcgm(13),
        "services": ["nvidia-dcgm.service"],
        "repository": "nvidia-cuda",
    }


def b200(**more: Any) -> NodeFacts:
    facts = parse_probe((PROBES / "debian12-h100-fresh" / "probe.txt").read_text())
    gpu = PciDevice(slot="0000:17:00.0", id="10de:2901", class_code="0302")
    return replace(facts, gpus=(gpu,), nvlink5_fabric=True, **more)


def test_modules_of_an_nvlink5_fabric_are_loaded_before_its_manager_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(b200(), {}, monkeypatch)
    found = {step.id: step.value for step in plan.steps}
    activate = found["driver.activate"]
    assert activate["load"] == ["ib_umad", "nvidia", "nvidia_uvm", "nvidia_modeset"]
    assert "nvidia-fabricmanager.service" in activate["services"]
    assert {"nvlsm", "infiniband-diags", "libnvsdm"} <= {one["name"] for one in found["driver.packages"]["install"]}
    (conf,) = [file for file in found["driver.files"] if file["path"] == FABRIC_CONF]  # and at the next boot
    assert conf["content"].splitlines()[1:] == ["ib_umad"]
    ids = [step.id for step in plan.steps]
    assert ids.index("driver.packages") < ids.index("driver.files") < ids.index("driver.activate")


def test_a_module_of_the_fabric_that_is_gone_is_missing_work() -> None:
    wanted = Module(role="driver", module="ib_umad")
    assert wanted.actual(b200(modules=("ib_umad", "nvidia"))) == wanted.wanted
    assert wanted.actual(b200(modules=("nvidia",))) != wanted.wanted


def test_a_node_without_that_fabric_has_no_word_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {step.id: step.value for step in planned(gb200(), {}, monkeypatch).steps}
    assert found["driver.activate"]["load"] == ["nvidia", "nvidia_uvm", "nvidia_modeset"]
    assert FABRIC_CONF not in str(found)


def test_before_the_gpus_are_there_the_first_boot_loads_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"(a key)\n")
    image = {"load": False, "gpus": ["10de:2901"], "nvlink5_fabric": True}
    spec = {"toolkit": {"version": "none"}, "image": image}
    facts = replace(b200(), gpus=(), nvlink5_fabric=False)
    found = {step.id: step.value for step in DesiredState(spec).plan("node1", facts).plan.steps}
    assert found["driver.first_boot"]["activate"]["load"][0] == "ib_umad"
