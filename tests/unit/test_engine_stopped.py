"""An engine that is enabled and does not run: a step starts it, verify and doctor name it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.doctor import diagnose
from gpunode.core.doctor.state import state_faults
from gpunode.core.facts import parse_probe
from gpunode.core.items.activation import Module, engine_checks, stopped
from gpunode.core.items.activation import ServiceItem as Started
from gpunode.core.items.item import alone_title
from gpunode.core.model import NodeFacts, Runtime, Service
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.edge.doctor import load_faults

STEP = ("runtime", "activate")


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
    probe = Path(__file__).parents[1] / "cases/probes/debian12-h100-provisioned/probe.txt"
    facts = parse_probe(probe.read_text(encoding="utf-8"))
    [docker] = [one for one in facts.runtimes if one.name == "docker"]
    others = tuple(one for one in facts.runtimes if one.name != "docker")
    stands = replace(
        facts,
        runtimes=(*others, replace(docker, active=False)),
        services={**facts.services, "docker": Service(name="docker", active="inactive", enabled="enabled")},
    )
    before, after = (DesiredState({}).plan("n1", one).plan.steps for one in (facts, stands))
    was, now = ([one.value["services"] for one in steps if (one.role, one.option) == STEP] for steps in (before, after))
    assert (was, now) == ([[]], [["docker"]])


def test_a_step_that_only_starts_engines_says_so() -> None:
    facts = NodeFacts(runtimes=(runtime(),))
    docker, other = (Started(role="runtime", unit=unit) for unit in ("docker", "containerd"))
    assert alone_title(facts, [docker]) == "Start docker"
    assert alone_title(facts, [docker, other]) == "", "another one is installed first"
    assert alone_title(facts, [docker, Module(role="runtime", module="overlay")]) == ""
