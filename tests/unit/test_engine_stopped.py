"""An engine that is enabled and does not run: a step starts it, verify and doctor name it."""

from __future__ import annotations

import pytest

from gpunode.core.checks.engines import engine_checks, stopped
from gpunode.core.doctor.state import state_faults
from gpunode.core.model import NodeFacts, Runtime, Service


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
    [evidence] = state_faults(facts, {}, None)["engine-stopped"]
    assert evidence.text == check.message
