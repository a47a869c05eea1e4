"""An engine that is enabled and does not run, a program that was deleted: the cause is named once, the plan agrees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.checks.health import health_checks
from gpunode.core.doctor import diagnose
from gpunode.core.doctor.state import state_faults
from gpunode.core.facts import parse_probe
from gpunode.core.items.activation import Module, engine_checks, stopped
from gpunode.core.items.activation import ServiceItem as Started
from gpunode.core.items.item import alone_title
from gpunode.core.items.package import lost_programs
from gpunode.core.model import Cdi, CdiSpec, Kubernetes, NodeFacts, Runtime, Service
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.doctor import load_faults
from gpunode.edge.fleet import workflow
from gpunode.edge.fleet.workflow import plan_one, verify_planned

STEP = ("runtime", "activate")
PROBES = Path(__file__).parents[1] / "cases/probes"
PROVISIONED = parse_probe((PROBES / "debian12-h100-provisioned/probe.txt").read_text(encoding="utf-8"))


def runtime(**more: object) -> Runtime:
    return Runtime(**{"name": "docker", "unit": "docker.service", "enabled": True, "active": False, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, True),
        ({"active": True}, False),
        ({"enabled": False}, False),
        ({"unit": ""}, False),
        ({"unit": "docker.socket"}, False),
        ({"distribution": "k3s"}, False),
    ],
    ids=["stopped", "runs", "not enabled", "no systemd", "starts when it is asked", "of a Kubernetes distribution"],
)
def test_an_engine_is_stopped_that_only_the_next_boot_would_start(more: dict[str, object], found: bool) -> None:
    assert stopped(runtime(**more)) is found


def switched_off(unit: str = "disabled", socket: str = "inactive", **more: object) -> NodeFacts:
    """The provisioned node after systemctl disable --now docker.service docker.socket."""
    services = {
        **PROVISIONED.services,
        "docker": Service(name="docker", active="inactive", enabled=unit),
        "docker.socket": Service(name="docker.socket", active=socket, enabled=unit),
    }
    off = [replace(one, active=False, enabled=False) if one.name == "docker" else one for one in PROVISIONED.runtimes]
    return replace(PROVISIONED, runtimes=tuple(off), services=services, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (switched_off(), "docker.service is disabled and does not run"),
        (switched_off("masked"), "docker.service is masked and does not run"),
        (switched_off(socket="active"), ""),
        (switched_off(kubernetes=Kubernetes(kind="kubeadm")), ""),
        (PROVISIONED, ""),
    ],
    ids=["disabled", "masked", "its socket starts it", "beside a kubelet's", "runs"],
)
def test_an_engine_that_was_switched_off_is_named_and_neither_started_nor_proven(
    facts: NodeFacts, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"key")
    assert [one.message for one in engine_checks(facts)] == [said] * bool(said)
    desired = DesiredState({})
    planned = desired.plan("n1", facts)
    warned = [text for text in planned.plan.warnings if "does not run" in text]
    assert [text.startswith(f"{said}, so it is not proven; systemctl enable --now") for text in warned] == [
        True
    ] * bool(said)
    assert not [one for one in planned.plan.steps if (one.role, one.option) == STEP and one.value["services"]]
    if not facts.kubernetes.present:
        assert ("docker" in desired.smoke(planned)["runtimes"]) is not bool(said)


def test_it_is_named_by_verify_and_by_doctor() -> None:
    services = {"docker": Service(name="docker", active="failed", enabled="enabled")}
    facts = NodeFacts(runtimes=(runtime(),), services=services)
    [check] = engine_checks(facts)
    assert (check.id, check.status) == ("engine.stopped", "warning")
    assert check.message == "docker.service is enabled and does not run (failed)"
    [evidence] = state_faults(facts, {}, None, load_faults().checks)["engine-stopped"]
    assert evidence.text == check.message


def test_the_fix_of_doctor_starts_the_units_that_were_seen() -> None:
    both = NodeFacts(runtimes=(runtime(), runtime(name="containerd", unit="containerd.service")))
    faults = load_faults()
    found = diagnose(faults, (), state_faults(both, {}, None, faults.checks))
    [fix] = [one.fix for one in found.findings if one.fault.id == "engine-stopped"]
    assert fix.startswith("systemctl start docker.service containerd.service; ")


def test_a_plan_starts_what_somebody_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"key")
    before, after = (DesiredState({}).plan("n1", one).plan.steps for one in (PROVISIONED, halted("docker")))
    was, now = ([one.value["services"] for one in steps if (one.role, one.option) == STEP] for steps in (before, after))
    assert (was, now) == ([[]], [["docker"]])


def test_a_step_that_only_starts_engines_says_so() -> None:
    facts = NodeFacts(runtimes=(runtime(),))
    docker, other = (Started(role="runtime", unit=unit) for unit in ("docker", "containerd"))
    assert alone_title(facts, [docker]) == "Start docker"
    assert alone_title(facts, [docker, other]) == "", "another one is installed first"
    assert alone_title(facts, [docker, Module(role="runtime", module="overlay")]) == ""


def halted(name: str) -> NodeFacts:
    """The node with that engine stopped by hand."""
    service = Service(name=name, active="inactive", enabled="enabled")
    runtimes = tuple(replace(one, active=one.active and one.name != name) for one in PROVISIONED.runtimes)
    return replace(PROVISIONED, runtimes=runtimes, services={**PROVISIONED.services, name: service})


def beside_k3s() -> NodeFacts:
    """A node whose containerd of k3s runs, and the distribution's own does not."""
    k3s = parse_probe((PROBES / "ubuntu2404-k3s/probe.txt").read_text(encoding="utf-8"))
    return replace(k3s, runtimes=(*k3s.runtimes, runtime(name="containerd", unit="containerd.service")))


SMI, BASE = "/usr/bin/nvidia-smi", "nvidia-container-toolkit-base"
TOOLKIT = dict.fromkeys(("/usr/bin/nvidia-ctk", "/usr/bin/nvidia-container-runtime"), BASE)
CAUSES = {  # what was done to a node by hand: the node then, and the one line that verify has more
    "docker stopped": (halted("docker"), "plan.runtime.activate: service docker: inactive, enabled"),
    "containerd stopped": (halted("containerd"), "plan.runtime.activate: service containerd: inactive, enabled"),
    "nvidia-smi deleted": (
        replace(
            PROVISIONED,
            nvml=(),
            lost_programs={SMI: "nvidia-driver-cuda"},
            cdi=Cdi(specs=(CdiSpec(path="/run/cdi/nvidia.yaml", kind="nvidia.com/gpu", needs=(SMI,)),), missing=(SMI,)),
        ),
        f"plan.problem: the package nvidia-driver-cuda has lost {SMI}: apt-get install --reinstall nvidia-driver-cuda",
    ),
    "the toolkit's deleted": (
        replace(PROVISIONED, toolkit="", lost_programs=TOOLKIT),
        f"plan.problem: the package {BASE} has lost {', '.join(TOOLKIT)}: apt-get install --reinstall {BASE}",
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_verify_names_one_cause_once(cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"key")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    facts, line = CAUSES[cause]
    desired = DesiredState({})

    def lines(facts: NodeFacts) -> list[str]:
        host = plan_one(Detected(host="n1", facts=facts), desired)
        [result] = verify_planned([host], Targets(), desired, smoke=False)
        return [f"{c.id}: {c.message}: {c.fix}" for c in result.checks if c.status not in ("passed", "skipped")]

    before = lines(PROVISIONED)
    [more] = [one for one in lines(facts) if one not in before]
    assert more.startswith(line)


REPAIRS = {  # package manager → the command that installs a package again
    "apt": "apt-get install --reinstall",
    "dnf": "dnf reinstall",
    "zypper": "zypper install --force",
    "pacman": "pacman -S",
}


@pytest.mark.parametrize("manager", REPAIRS)
def test_a_report_has_the_command_that_brings_a_program_back(manager: str) -> None:
    whole = replace(PROVISIONED, package_manager=manager)
    lost = replace(whole, lost_programs={"/usr/bin/nvidia-ctk": BASE})
    for facts, fixes in ((whole, []), (lost, [f"{REPAIRS[manager]} {BASE}, on the node"])):
        found = health_checks(facts, load.load_knowledge())
        assert [check.fix for check in found if check.id == "packages.lost"] == fixes


@pytest.mark.parametrize("more", [{"unfinished": ("r1-packages-2",)}, {"broken_packages": (BASE,)}], ids="".join)
def test_what_broke_off_is_finished_and_not_refused(more: dict[str, tuple[str, ...]]) -> None:
    assert [one.what for one in lost_programs(replace(PROVISIONED, lost_programs=TOOLKIT))] != []
    assert [*lost_programs(replace(PROVISIONED, lost_programs=TOOLKIT, **more))] == []


@pytest.mark.parametrize(
    ("facts", "tried"),
    [
        (PROVISIONED, ["containerd", "docker"]),
        (halted("docker"), ["containerd"]),
        (halted("containerd"), []),  # by which Docker starts containers, too
        (beside_k3s(), ["containerd"]),
    ],
    ids=["both run", "docker is stopped", "containerd is stopped", "that of k3s runs"],
)
def test_an_engine_that_is_stopped_is_not_started_by_a_proof(
    facts: NodeFacts, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"key")
    asked: list[list[str]] = []
    monkeypatch.setattr(workflow, "smoke_files", lambda value: asked.append(value["runtimes"]) or {})
    desired = DesiredState({})
    workflow._smoke_program(plan_one(Detected(host="n1", facts=facts), desired), desired)
    assert asked == [tried]
