"""GPUs of a pool against each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.checks.pool import pool_checks
from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts
from gpunode.core.spec.rollout import RolloutSpec
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet.workflow import verify_found

H100 = Path(__file__).parents[1] / "cases/probes/debian12-h100-provisioned/probe.txt"


def node(vbios: str = "96.00.89.00.01", *, driver: str = "580.178.04", model: str = "10de:2330") -> NodeFacts:
    facts = parse_probe(H100.read_text())
    [gpu], [pci] = facts.nvml, facts.gpus
    return replace(
        facts,
        nvml=(replace(gpu, vbios=vbios),),
        gpus=(replace(pci, id=model),),
        driver=replace(facts.driver, loaded=driver),
    )


LATE = "96.00.99.00.01"
CASES: dict[str, tuple[str, dict[str, NodeFacts], dict[str, Any]]] = {
    "one VBIOS of three": (
        "",
        {"a": node(), "b": node(), "c": node(LATE)},
        {
            "a": "passed",
            "b": "passed",
            "c": f"GPU 0 has VBIOS {LATE}, and 2 have 96.00.89.00.01 of its model in the pool",
        },
    ),
    "nobody knows which of two is right": (
        "",
        {"a": node(), "b": node(LATE)},
        {
            "a": f"GPU 0 has VBIOS 96.00.89.00.01, and 1 has {LATE} of its model in the pool",
            "b": f"GPU 0 has VBIOS {LATE}, and 1 has 96.00.89.00.01 of its model in the pool",
        },
    ),
    "a driver that was left": (
        "",
        {"a": node(), "b": node(), "c": node(driver="570.211.01")},
        {
            "a": "passed",
            "b": "passed",
            "c": "GPU 0 has driver 570.211.01, and 2 have 580.178.04 of its model in the pool",
        },
    ),
    "not read": ("", {"a": node(), "b": node("")}, {"a": "passed", "b": "not-proven"}),
    "another model has its own": ("", {"a": node(), "b": node(LATE, model="10de:2335")}, {}),
    "other models in a pool with a name": (
        "training",
        {"a": node(), "b": node(), "c": node(model="10de:2335")},
        {"a": "passed", "b": "passed", "c": "its GPUs are 1 × 10de:2335, and 2 have 1 × 10de:2330 in the pool"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_that_is_other_than_its_pool_is_a_warning(name: str) -> None:
    pool, nodes, wanted = CASES[name]
    found = pool_checks({host: (RolloutSpec(pool=pool), facts) for host, facts in nodes.items()})
    said = {h: check.message if check.status == "warning" else check.status for h, [check] in found.items()}
    assert said == wanted


def test_pools_are_compared_each_by_itself() -> None:
    nodes = {"a": (RolloutSpec(pool="one"), node()), "b": (RolloutSpec(pool="two"), node(LATE))}
    assert pool_checks(nodes) == {}


def test_verify_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda *_: b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    found = [Detected(host=host, facts=facts) for host, facts in (("a", node()), ("b", node()), ("c", node(LATE)))]
    desired = DesiredState({"driver": {"method": "preinstalled"}}, to_run=False)
    results = verify_found(found, Targets(), desired, smoke=False)
    said = {one.host: [c.status for c in one.checks if c.id == "gpu.alike"] for one in results}
    assert said == {"a": ["passed"], "b": ["passed"], "c": ["warning"]}
