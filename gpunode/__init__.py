"""Install and maintain NVIDIA drivers, CUDA and container runtimes on GPU nodes, over SSH.

The command line is a skin over these functions.  Those that work on hosts take `Targets` (which hosts, and how to reach
them) and `DesiredState` (what gpunode.yml says); `detect`, `plan` and `verify` change nothing, `provision` does:

    from gpunode import DesiredState, Targets, plan, provision, verify

    targets, desired = Targets(hosts=("gpu1", "root@gpu2")), DesiredState({"driver": {"branch": "580"}})
    hosts = plan(targets, desired)
    results = provision(hosts, targets, desired)

`prepare` does what the command does before it asks: it takes a plan's folder, too, and refuses hosts of a run.
`solve`, `configure_runtime`, `unconfigure_runtime` and `parse_probe` are pure: values in, values out.  Nothing here
prints; a function raises a GpunodeError, or has it in the result of the host that it concerns.  Every name is imported
when it is first used, so that `import gpunode` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpunode.core.edits import RuntimeRequest, configure_runtime, runtime_files, unconfigure_runtime
    from gpunode.core.errors import (
        GpunodeError,
        InputError,
        InterruptedByUser,
        RefusedError,
        StaleError,
        UnreachableError,
    )
    from gpunode.core.facts import parse_probe
    from gpunode.core.knowledge import Knowledge
    from gpunode.core.model import (
        Check,
        CudaChoice,
        DriverChoice,
        Edit,
        FabricChoice,
        HostOutcome,
        HostResult,
        Hunk,
        Kernel,
        NodeFacts,
        PackageWant,
        Plan,
        Problem,
        Reason,
        Repository,
        Solution,
        Step,
        ToolkitChoice,
        Undo,
    )
    from gpunode.core.plan.lockfile import Lock, Locked
    from gpunode.core.solve import SolveRequest, request_of, solve
    from gpunode.core.spec import CudaSpec, DriverSpec, Spec, parse_spec
    from gpunode.core.spec.runfile import RunfileSpec
    from gpunode.core.spec.source import SourceSpec
    from gpunode.core.spec.toolkit import FabricSpec, ToolkitConfigSpec, ToolkitSpec
    from gpunode.edge.ansible.runner import Event
    from gpunode.edge.desired import DesiredState, Planned
    from gpunode.edge.detect import Detected, Targets, detect
    from gpunode.edge.fleet.driver import RunCallbacks, RunOptions
    from gpunode.edge.fleet.host_plan import HostPlan
    from gpunode.edge.fleet.prepare import Prepared, prepare
    from gpunode.edge.fleet.provision import provision
    from gpunode.edge.fleet.workflow import plan, verify, write_plan
    from gpunode.edge.load import load_knowledge, load_spec
    from gpunode.edge.saved import SavedPlan, load_plan
    from gpunode.kube.edge.client import Api as ClusterApi
    from gpunode.kube.edge.kubeconfig import connect as connect_cluster

__version__ = "0.1.0"

# module → the names that are had from it; NAME=OTHER where the module calls it OTHER
_HOMES = {
    "gpunode.core.edits": "RuntimeRequest configure_runtime runtime_files unconfigure_runtime",
    "gpunode.core.errors": "GpunodeError InputError InterruptedByUser RefusedError StaleError UnreachableError",
    "gpunode.core.facts": "parse_probe",
    "gpunode.core.knowledge": "Knowledge",
    "gpunode.core.model": "Check CudaChoice DriverChoice Edit FabricChoice HostOutcome HostResult Hunk Kernel "
    "NodeFacts PackageWant Plan Problem Reason Repository Solution Step ToolkitChoice Undo",
    "gpunode.core.plan.lockfile": "Lock Locked",
    "gpunode.core.solve": "SolveRequest request_of solve",
    "gpunode.core.spec": "CudaSpec DriverSpec Spec parse_spec",
    "gpunode.core.spec.runfile": "RunfileSpec",
    "gpunode.core.spec.source": "SourceSpec",
    "gpunode.core.spec.toolkit": "FabricSpec ToolkitConfigSpec ToolkitSpec",
    "gpunode.edge.ansible.runner": "Event",
    "gpunode.edge.desired": "DesiredState Planned",
    "gpunode.edge.detect": "Detected Targets detect",
    "gpunode.edge.fleet.driver": "RunCallbacks RunOptions",
    "gpunode.edge.fleet.host_plan": "HostPlan",
    "gpunode.edge.fleet.prepare": "Prepared prepare",
    "gpunode.edge.fleet.provision": "provision",
    "gpunode.edge.fleet.workflow": "plan verify write_plan",
    "gpunode.kube.edge.client": "ClusterApi=Api",
    "gpunode.kube.edge.kubeconfig": "connect_cluster=connect",
    "gpunode.edge.load": "load_knowledge load_spec",
    "gpunode.edge.saved": "SavedPlan load_plan",
}
_HOME_OF = {
    word.partition("=")[0]: (module, word.rpartition("=")[2])
    for module, names in _HOMES.items()
    for word in names.split()
}
__all__ = [
    "Check",
    "ClusterApi",
    "CudaChoice",
    "CudaSpec",
    "DesiredState",
    "Detected",
    "DriverChoice",
    "DriverSpec",
    "Edit",
    "Event",
    "FabricChoice",
    "FabricSpec",
    "GpunodeError",
    "HostOutcome",
    "HostPlan",
    "HostResult",
    "Hunk",
    "InputError",
    "InterruptedByUser",
    "Kernel",
    "Knowledge",
    "Lock",
    "Locked",
    "NodeFacts",
    "PackageWant",
    "Plan",
    "Planned",
    "Prepared",
    "Problem",
    "Reason",
    "RefusedError",
    "Repository",
    "RunCallbacks",
    "RunOptions",
    "RunfileSpec",
    "RuntimeRequest",
    "SavedPlan",
    "Solution",
    "SolveRequest",
    "SourceSpec",
    "Spec",
    "StaleError",
    "Step",
    "Targets",
    "ToolkitChoice",
    "ToolkitConfigSpec",
    "ToolkitSpec",
    "Undo",
    "UnreachableError",
    "configure_runtime",
    "connect_cluster",
    "detect",
    "load_knowledge",
    "load_plan",
    "load_spec",
    "parse_probe",
    "parse_spec",
    "plan",
    "prepare",
    "provision",
    "request_of",
    "runtime_files",
    "solve",
    "unconfigure_runtime",
    "verify",
    "write_plan",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        module, attribute = _HOME_OF[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'gpunode' has no attribute {name!r}")
