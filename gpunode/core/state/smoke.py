"""What the smoke checks have to prove on a node."""

from __future__ import annotations

from typing import Any

from gpunode.core.model import NodeFacts, Solution
from gpunode.core.solve_cuda import NEWEST
from gpunode.core.spec import Spec
from gpunode.core.state.runtime import manages


def smoke_now(facts: NodeFacts, spec: Spec, solution: Solution) -> dict[str, Any]:
    """What the smoke checks have to prove on this node: of one that is prepared without a GPU only the compiler."""
    everything = smoke_request(facts, spec, solution)
    if spec.image.load or facts.driver.loaded:
        return everything
    return {**everything, "runtimes": [], "default_runtime": {}, "gpus": 0, "toolkit": False}


def smoke_request(facts: NodeFacts, spec: Spec, solution: Solution) -> dict[str, Any]:
    """What they have to prove of a node that has its GPUs: plain data for node/smoke.sh."""
    engines = {
        name: getattr(spec.runtimes, name).default_runtime
        for name in ("containerd", "docker")
        if solution.toolkit and manages(facts, name, getattr(spec.runtimes, name))
    }
    containerd = facts.runtime("containerd")
    return {
        **({"socket": containerd.socket} if containerd and containerd.distribution and containerd.socket else {}),
        "runtimes": list(engines),
        "default_runtime": {name: default for name, default in engines.items() if default != "keep"},
        "image": spec.verify.image,
        "gpus": len(facts.gpus) if solution.driver else 0,
        "cuda": list(solution.cuda.versions or (NEWEST,)) if solution.cuda else [],
        "toolkit": bool(solution.toolkit),
    }
