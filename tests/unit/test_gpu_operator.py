"""NVIDIA's GPU Operator on a node: what it manages is refused, with how it is handed over."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts
from gpunode.edge import load
from gpunode.edge.desired import DesiredState

PROBES = Path(__file__).parents[1] / "cases/probes"
SECTION = "#: gpunode-probe 1\n#: kubernetes\n{}#: end\n"


@cache
def node() -> NodeFacts:
    return parse_probe((PROBES / "debian12-h100-provisioned/probe.txt").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def no_key_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n")


def problems(facts: NodeFacts, spec: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    plan = DesiredState(spec or {}).plan("node1", facts).plan
    assert not (plan.problems and plan.steps)
    return [(p.what, p.fix) for p in plan.problems]


@pytest.mark.parametrize(
    ("lines", "operator", "container"),
    [
        ("", False, False),
        ("| exists /usr/local/nvidia/toolkit\n", True, False),
        ("| exists /run/nvidia/validations\n| host_driver true\n", True, False),
        ("| exists /run/nvidia/validations\n| host_driver false\n", True, True),
        ("| exists /run/nvidia/validations\n| exists /run/nvidia/validations/.driver-ctr-ready\n", True, True),
    ],
)
def test_the_probe_tells_a_driver_container_from_a_driver_on_the_host(
    lines: str, operator: bool, container: bool
) -> None:
    found = parse_probe(SECTION.format(lines)).kubernetes
    assert (found.gpu_operator, found.driver_container) == (operator, container)


def test_a_driver_container_is_not_fought() -> None:
    facts = replace(node(), kubernetes=replace(node().kubernetes, gpu_operator=True, driver_container=True))
    [(what, fix)] = problems(facts)
    assert "driver container" in what
    assert "driver.enabled=false" in fix and "driver.method: preinstalled" in fix
    assert problems(facts, {"driver": {"method": "preinstalled"}}) == []
    assert problems(facts, {"driver": {"branch": "none"}}) == []


def test_an_engine_that_the_operators_toolkit_configures_is_not_fought() -> None:
    engine = node().runtime("containerd")
    assert engine
    path = engine.config
    file = replace(node().files[path], data=b'BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"\n')
    facts = replace(node(), files={**node().files, path: file})
    [(what, fix)] = problems(facts)
    assert "containerd" in what and "toolkit.enabled=false" in fix
    left = {"toolkit": {"version": "none"}, "runtimes": {"containerd": {"manage": "ignore"}}}
    assert problems(facts, left) == []


def test_a_driver_on_the_host_next_to_the_operator_is_as_anywhere() -> None:
    assert problems(replace(node(), kubernetes=replace(node().kubernetes, gpu_operator=True))) == []
