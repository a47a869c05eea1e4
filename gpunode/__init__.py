"""gpunode: machines with NVIDIA GPUs become nodes that containers and Kubernetes can use.

    from gpunode import Planner, Where, detect, plan, provision, verify

    where = Where(hosts=("gpu1", "root@gpu2"))
    hosts = plan(where, Planner({"driver": {"branch": "580"}}))
    results = provision(hosts, where, Planner({"driver": {"branch": "580"}}))

Every name is imported when it is first used, so that `import gpunode` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpunode.core.edits import RuntimeRequest, configure_runtime, unconfigure_runtime
    from gpunode.core.errors import Exit, GpunodeError
    from gpunode.core.facts import parse_probe
    from gpunode.core.model import Check, Edit, HostResult, NodeFacts, Plan, Problem, Reason, Solution, Step
    from gpunode.core.solve import SolveRequest, solve
    from gpunode.core.spec import Spec, parse_spec
    from gpunode.edge.detect import Detected, Where, detect
    from gpunode.edge.fleet.host_plan import HostPlan
    from gpunode.edge.fleet.provision import provision
    from gpunode.edge.fleet.workflow import plan, verify
    from gpunode.edge.planner import Planner

__version__ = "0.1.0"

_HOMES = {
    "gpunode.core.edits": ("RuntimeRequest", "configure_runtime", "unconfigure_runtime"),
    "gpunode.core.errors": ("Exit", "GpunodeError"),
    "gpunode.core.facts": ("parse_probe",),
    "gpunode.core.model": ("Check", "Edit", "HostResult", "NodeFacts", "Plan", "Problem", "Reason", "Solution", "Step"),
    "gpunode.core.solve": ("SolveRequest", "solve"),
    "gpunode.core.spec": ("Spec", "parse_spec"),
    "gpunode.edge.detect": ("Detected", "Where", "detect"),
    "gpunode.edge.fleet.provision": ("provision",),
    "gpunode.edge.planner": ("Planner",),
    "gpunode.edge.fleet.host_plan": ("HostPlan",),
    "gpunode.edge.fleet.workflow": ("plan", "verify"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Check",
    "Detected",
    "Edit",
    "Exit",
    "GpunodeError",
    "HostPlan",
    "HostResult",
    "NodeFacts",
    "Plan",
    "Planner",
    "Problem",
    "Reason",
    "RuntimeRequest",
    "Solution",
    "SolveRequest",
    "Spec",
    "Step",
    "Where",
    "configure_runtime",
    "detect",
    "parse_probe",
    "parse_spec",
    "plan",
    "provision",
    "solve",
    "unconfigure_runtime",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gpunode' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
