"""What an engine is to have where the spec says auto, for the kubelet's sake: default runtime and cgroup driver."""

from __future__ import annotations

from typing import Literal

from gpunode.core.facts.kubelet import engine_driver, follows_engine, kubelet_driver, kubelet_engine
from gpunode.core.model import NodeFacts, Runtime

DefaultRuntime = Literal["nvidia", "runc", "keep"]


def default_runtime(
    facts: NodeFacts, engine: str, setting: Literal["auto", "nvidia", "runc", "keep"]
) -> DefaultRuntime:
    """The default runtime that an engine is to have; auto: nvidia for the kubelet's engine, else as it is.

    Pods name no runtime, unless a RuntimeClass does; the default of a machine's other containers is not ours to change.
    """
    if setting != "auto":
        return setting
    kubelets = kubelet_engine(facts)
    return "nvidia" if kubelets and kubelets.name == engine else "keep"


def default_reason(facts: NodeFacts, engine: str) -> str:
    """Why `auto` is what it is for this engine."""
    if default_runtime(facts, engine, "auto") == "nvidia":
        return f"nvidia: the kubelet's pods run on {engine} (runtimes.{engine}.default_runtime: auto)"
    return f"left as it is: no kubelet uses {engine} (runtimes.{engine}.default_runtime: auto)"


def wanted_driver(facts: NodeFacts, runtime: Runtime | None) -> str:
    """The driver that an engine has to be given so that it fits the kubelet; "" where none has to be."""
    engine = kubelet_engine(facts)
    if engine is None or runtime is None or runtime != engine:
        return ""
    if follows_engine(engine, facts.kubernetes) or engine_driver(facts, engine).value == "":
        return ""
    return kubelet_driver(facts).value if facts.kubernetes.cgroup_driver or engine.cgroup_driver else ""
