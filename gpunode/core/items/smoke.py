"""What the smoke checks have to prove on a node."""

from __future__ import annotations

from typing import Any

from gpunode.core.items.runtime import manages
from gpunode.core.model import NodeFacts, Runtime, Solution
from gpunode.core.solve.cuda import NEWEST
from gpunode.core.spec import Spec

_RENDERED = "/agent/etc/containerd/config.toml"  # below the data directory of k3s and rke2


def smoke_now(facts: NodeFacts, spec: Spec, solution: Solution) -> dict[str, Any]:
    """What the smoke checks have to prove on this node: of one that is prepared without a GPU only the compiler."""
    everything = smoke_request(facts, spec, solution)
    if spec.image.load or facts.driver.loaded:
        return everything
    return {**everything, "runtimes": [], "default_runtime": {}, "gpus": 0, "toolkit": False}


def smoke_request(facts: NodeFacts, spec: Spec, solution: Solution) -> dict[str, Any]:
    """What they have to prove of a node that has its GPUs: plain data for node/smoke/smoke.sh."""
    engines = {
        name: getattr(spec.runtimes, name).default_runtime
        for name in ("containerd", "docker")
        if solution.toolkit and manages(facts, name, getattr(spec.runtimes, name))
    }
    containerd = facts.runtime("containerd")
    logs = {name: log for name in engines if (found := facts.runtime(name)) and (log := engine_log(found))}
    return {
        **({"socket": containerd.socket} if containerd and containerd.distribution and containerd.socket else {}),
        "runtimes": list(engines),
        "default_runtime": {name: default for name, default in engines.items() if default != "keep"},
        **({"logs": logs} if logs else {}),
        "image": spec.verify.image,
        "gpus": len(facts.gpus) if solution.driver else 0,
        "cuda": list(solution.cuda.versions or (NEWEST,)) if solution.cuda else [],
        "toolkit": bool(solution.toolkit),
    }


def engine_log(runtime: Runtime) -> str:
    """What shows an engine's log, as a person types it; "" where that is the unit of the engine's own name.

    k3s and rke2 have containerd write to a file below their data directory (https://docs.rke2.io/reference/logging).
    """
    shown = f"journalctl -u {runtime.unit.removesuffix('.service')}" if runtime.unit else ""
    if runtime.distribution in ("k3s", "rke2"):
        rendered = next((path for path in runtime.files if path.endswith(_RENDERED)), "")
        data = rendered.removesuffix(_RENDERED) or f"/var/lib/rancher/{runtime.distribution}"
        return " and ".join(filter(None, (f"{data}/agent/containerd/containerd.log", shown)))
    if runtime.distribution:
        return shown or f"the log of {runtime.distribution}"
    return shown if shown != f"journalctl -u {runtime.name}" else ""
