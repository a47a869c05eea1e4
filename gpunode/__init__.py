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
    from gpunode.core.edits import RuntimeRequest as RuntimeRequest
    from gpunode.core.edits import configure_runtime as configure_runtime
    from gpunode.core.edits import runtime_files as runtime_files
    from gpunode.core.edits import unconfigure_runtime as unconfigure_runtime
    from gpunode.core.errors import GpunodeError as GpunodeError
    from gpunode.core.errors import InputError as InputError
    from gpunode.core.errors import InterruptedByUser as InterruptedByUser
    from gpunode.core.errors import RefusedError as RefusedError
    from gpunode.core.errors import StaleError as StaleError
    from gpunode.core.errors import UnreachableError as UnreachableError
    from gpunode.core.facts import parse_probe as parse_probe
    from gpunode.core.knowledge import Knowledge as Knowledge
    from gpunode.core.model import Check as Check
    from gpunode.core.model import CudaChoice as CudaChoice
    from gpunode.core.model import DriverChoice as DriverChoice
    from gpunode.core.model import Edit as Edit
    from gpunode.core.model import FabricChoice as FabricChoice
    from gpunode.core.model import HostOutcome as HostOutcome
    from gpunode.core.model import HostResult as HostResult
    from gpunode.core.model import Hunk as Hunk
    from gpunode.core.model import Kernel as Kernel
    from gpunode.core.model import NodeFacts as NodeFacts
    from gpunode.core.model import PackageWant as PackageWant
    from gpunode.core.model import Plan as Plan
    from gpunode.core.model import Problem as Problem
    from gpunode.core.model import Reason as Reason
    from gpunode.core.model import Repository as Repository
    from gpunode.core.model import Solution as Solution
    from gpunode.core.model import Step as Step
    from gpunode.core.model import ToolkitChoice as ToolkitChoice
    from gpunode.core.model import Undo as Undo
    from gpunode.core.plan.lockfile import Lock as Lock
    from gpunode.core.plan.lockfile import Locked as Locked
    from gpunode.core.solve import SolveRequest as SolveRequest
    from gpunode.core.solve import request_of as request_of
    from gpunode.core.solve import solve as solve
    from gpunode.core.spec import CudaSpec as CudaSpec
    from gpunode.core.spec import DriverSpec as DriverSpec
    from gpunode.core.spec import Spec as Spec
    from gpunode.core.spec import parse_spec as parse_spec
    from gpunode.core.spec.runfile import RunfileSpec as RunfileSpec
    from gpunode.core.spec.source import SourceSpec as SourceSpec
    from gpunode.core.spec.toolkit import FabricSpec as FabricSpec
    from gpunode.core.spec.toolkit import ToolkitConfigSpec as ToolkitConfigSpec
    from gpunode.core.spec.toolkit import ToolkitSpec as ToolkitSpec
    from gpunode.edge.ansible.runner import Event as Event
    from gpunode.edge.desired import DesiredState as DesiredState
    from gpunode.edge.desired import Planned as Planned
    from gpunode.edge.detect import Detected as Detected
    from gpunode.edge.detect import Targets as Targets
    from gpunode.edge.detect import detect as detect
    from gpunode.edge.fleet.driver import RunCallbacks as RunCallbacks
    from gpunode.edge.fleet.driver import RunOptions as RunOptions
    from gpunode.edge.fleet.host_plan import HostPlan as HostPlan
    from gpunode.edge.fleet.prepare import Prepared as Prepared
    from gpunode.edge.fleet.prepare import prepare as prepare
    from gpunode.edge.fleet.provision import provision as provision
    from gpunode.edge.fleet.workflow import plan as plan
    from gpunode.edge.fleet.workflow import verify as verify
    from gpunode.edge.fleet.workflow import write_plan as write_plan
    from gpunode.edge.load import load_knowledge as load_knowledge
    from gpunode.edge.load import load_spec as load_spec
    from gpunode.edge.saved import SavedPlan as SavedPlan
    from gpunode.edge.saved import load_plan as load_plan
    from gpunode.kube.edge.client import Api
    from gpunode.kube.edge.kubeconfig import connect

    ClusterApi, connect_cluster = Api, connect

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
__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - a type checker goes by the imports above


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        module, attribute = _HOME_OF[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'gpunode' has no attribute {name!r}")
