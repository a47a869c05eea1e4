"""NVIDIA's GPU Operator on the node: what it manages there is refused, and how it is handed over.

Sources: NVIDIA/gpu-operator cmd/nvidia-validator/main.go (driver-ready, its IS_HOST_DRIVER), the driver daemon set's
startup probe (.driver-ctr-ready), cmd of NVIDIA/nvidia-container-toolkit's container (/usr/local/nvidia/toolkit).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.core.items.runtime import ENGINES, manages
from gpunode.core.model import NodeFacts, Problem, Solution
from gpunode.core.spec import Spec

TOOLKIT = "/usr/local/nvidia/toolkit"  # where its toolkit container installs
_DRAINED = "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data, then reboot the node"


def operator_problems(facts: NodeFacts, spec: Spec, solution: Solution) -> Iterator[Problem]:
    """What the operator holds of that which the plan would take."""
    driver = solution.driver
    if facts.kubernetes.driver_container and driver and driver.method != "preinstalled":
        yield Problem(
            what=f"the driver of this node ({facts.driver.loaded or 'not loaded now'}) comes from the GPU Operator's "
            "driver container: one on the host would fight it",
            fix="to keep it: driver.method: preinstalled; to hand it over: helm upgrade gpu-operator … --reuse-values "
            f"--set driver.enabled=false, {_DRAINED}, and run again",
        )
    for name in ENGINES:
        if solution.toolkit and manages(facts, name, getattr(spec.runtimes, name)) and _toolkits(facts, name):
            yield Problem(
                what=f"the GPU Operator's toolkit container has configured {name}: it would write its settings again",
                fix=f"to keep it: toolkit.version: none and runtimes.{name}.manage: ignore; to hand it over: helm "
                "upgrade gpu-operator … --reuse-values --set toolkit.enabled=false: it takes its settings out when its "
                "pod ends; then run again",
            )


def _toolkits(facts: NodeFacts, name: str) -> bool:
    """Whether a file that the engine reads names the operator's runtime."""
    runtime = facts.runtime(name)
    files = (facts.files.get(path) for path in (runtime.files if runtime else ()))
    return any(TOOLKIT.encode() in file.data for file in files if file and file.data)
