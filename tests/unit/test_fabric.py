"""What belongs to many GPUs: the IMEX domain and DCGM, from the spec to the steps of the role fabric."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.items.activation import Module, activate_request
from gpunode.core.items.driver import FABRIC_CONF
from gpunode.core.model import ConfigFile, InstalledPackage, NodeFacts, Outcome, PciDevice, Plan, Service
from gpunode.core.remote import parse_outcome, program
from gpunode.core.solve import SolveRequest, parse_driver, solution_data, solve
from gpunode.core.solve.fabric import IMEX_NODES
from gpunode.core.spec import parse_spec
from gpunode.core.spec.toolkit import FabricSpec
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.edge.load import load_knowledge
from gpunode.node import script

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


@pytest.mark.parametrize(
    ("gpu", "fabric", "words"),
    [
        (H100, FabricSpec(imex="dra"), "fabric.imex is set, and no GPU here belongs to an NVLink domain"),
        (H100, FabricSpec(imex="off"), ""),
    ],
)
def test_imex_is_for_domains(gpu: str, fabric: FabricSpec, words: str) -> None:
    solution = solve(SolveRequest(gpus=(gpu,), distro="debian:12", fabric=fabric), KNOWLEDGE)
    assert (words in solution.problems[0].what) if words else (solution.problems, solution.fabric) == ((), None)


def test_whose_imex_it_is_has_to_fit_the_nodes() -> None:
    for fabric in ({"imex": "static"}, {"imex": "dra", "imex_nodes": ["10.0.0.1"]}):
        with pytest.raises(InputError, match="imex_nodes with static"):
            parse_spec({"fabric": fabric})


@pytest.mark.parametrize("imex", ["dra", "off"])
def test_the_hosts_imex_is_masked_where_somebody_else_or_nobody_runs_it(
    imex: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Service(name="nvidia-imex", active="active", enabled="enabled")
    facts = gb200(services={"nvidia-imex": there})
    assert steps(planned(facts, {"imex": imex}, monkeypatch)) == {
        "fabric.activate": {"services": [], "mask": ["nvidia-imex.service"]}
    }
    for active in ("inactive", "failed"):
        masked = replace(there, active=active, enabled="masked")
        assert steps(planned(gb200(services={"nvidia-imex": masked}), {"imex": imex}, monkeypatch)) == {}


SYSTEMCTL = """#!/bin/sh
case $1:$2 in
--no-reload:*) shift; exec $REAL --root="$NODE" --no-reload "$@" ;;
is-enabled:*) exec $REAL --root="$NODE" "$@" ;;
is-active:*) cat "$NODE/active" && grep -qx active "$NODE/active" ;;
start:* | stop:*) case $1 in start) echo active ;; *) echo inactive ;; esac >"$NODE/active" ;;
daemon-reload:*) ;;
*) exit 1 ;;
esac
"""


@pytest.mark.slow
def test_a_unit_is_masked_by_systemd_and_runs_again_when_it_is_undone(tmp_path: Path) -> None:
    """The real systemctl, on a tree of files; whether the unit runs is a file."""
    real = shutil.which("systemctl")
    if not real:
        pytest.skip("needs systemd")
    folder, unit = tmp_path / "usr/lib/systemd/system", "nvidia-imex.service"
    folder.mkdir(parents=True)
    (folder / unit).write_text("[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n")
    for name in ("bin", "state", "etc/systemd/system"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin/systemctl").write_text(SYSTEMCTL.replace("$REAL", real))
    (tmp_path / "bin/systemctl").chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "NODE": str(tmp_path)}

    def run(name: str, **request: bytes) -> Outcome:
        files = {"state": f"{tmp_path}/state\n".encode(), **request}
        done = subprocess.run(["sh"], input=program(script(name), files), capture_output=True, text=True, env=env)
        return parse_outcome(done.stdout, done.returncode)

    def state() -> tuple[str, str]:
        said = subprocess.run(
            [f"{tmp_path}/bin/systemctl", "is-enabled", unit], capture_output=True, text=True, env=env
        )
        return (tmp_path / "active").read_text().strip(), said.stdout.strip()

    subprocess.run([real, f"--root={tmp_path}", "enable", unit], capture_output=True, check=True)
    (tmp_path / "active").write_text("active\n")
    request = activate_request({"mask": [unit]})
    assert run("activate.sh", **request).texts == (f"stopped and masked {unit}",)
    assert state() == ("inactive", "masked")
    assert run("activate.sh", **request).status == "unchanged"
    journal = (tmp_path / "state/journal.jsonl").read_text()
    assert [kind for kind in ("active", "enabled", "mask") if f'"kind":"{kind}"' in journal] == [
        "active",
        "enabled",
        "mask",
    ]
    name = f"{unit}\n".encode()
    run("restore.sh", mask=f"{unit} absent\n".encode(), enable=name, start=name)
    assert state() == ("active", "enabled")


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
