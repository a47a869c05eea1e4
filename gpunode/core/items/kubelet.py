"""The kubelet and its engine: what `auto` gives the engine for its sake, what plan and verify say, what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from gpunode.core.edits import RuntimeRequest, probed_state
from gpunode.core.engines import DAEMONS, DISTRIBUTIONS, KUBELET_CONFIGS, KUBELET_FLAGS
from gpunode.core.errors import GpunodeError
from gpunode.core.facts.kubelet import follows_engine, kubelet_engine
from gpunode.core.late import dataclass
from gpunode.core.model import Check, NodeFacts, Problem, Runtime

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


# ---------------------------------------------------------------- cgroup drivers


@dataclass(frozen=True)
class Driver:
    """A cgroup driver, systemd or cgroupfs, and what says so; ("", why not) where it is not known."""

    value: str
    source: str


def driver_in_force(facts: NodeFacts, runtime: Runtime) -> str | None:
    """What an engine's files have in force, or else is built in; "" where that is not known, None where unread."""
    try:
        stated = probed_state(facts, runtime, RuntimeRequest(runtime=runtime.name)).cgroup_driver
    except GpunodeError:
        return None
    if stated or runtime.distribution:
        return stated
    if runtime.effective_error or "files" in facts.unread:
        return None
    # dockerd's own default is systemd where that runs and control groups are of version 2
    return "systemd" if runtime.name == "docker" and facts.init == "systemd" and facts.cgroups2 else "cgroupfs"


def engine_driver(facts: NodeFacts, runtime: Runtime) -> Driver:
    """The driver of an engine's default runtime."""
    value = driver_in_force(facts, runtime)
    if value is None:
        return Driver("", f"{runtime.name}'s configuration could not be read")
    if not value:
        return Driver("cgroupfs", f"{runtime.name}'s default")
    root = runtime.config
    return Driver(value, f"its configuration, {root}" if root in facts.files else "its default")


def kubelet_driver(facts: NodeFacts) -> Driver:
    """The driver that the kubelet uses: asked of the engine, given by a flag or a file, or its default."""
    kubernetes, engine = facts.kubernetes, kubelet_engine(facts)
    if engine and follows_engine(engine, kubernetes):
        found = engine_driver(facts, engine)
        return Driver(found.value, f"{engine.name}, which this kubelet asks (KubeletCgroupDriverFromCRI)")
    if kubernetes.cgroup_driver:
        return Driver(kubernetes.cgroup_driver, kubernetes.cgroup_source or "its configuration")
    if engine and engine.distribution in ("k3s", "rke2"):
        return Driver(engine_driver(facts, engine).value, f"{engine.distribution}, which sets both alike")
    own = (path for row in DISTRIBUTIONS.values() for path in row.kubelet)
    places = (*KUBELET_CONFIGS, *own, KUBELET_FLAGS[-1])
    known = any(path in facts.files and facts.files[path].data is not None for path in places)
    return Driver("cgroupfs", "its default") if known else Driver("", "no kubelet configuration was read")


def wanted_driver(facts: NodeFacts, runtime: Runtime | None) -> str:
    """The driver that an engine has to be given so that it fits the kubelet; "" where none has to be."""
    engine = kubelet_engine(facts)
    if engine is None or runtime is None or runtime != engine:
        return ""
    if follows_engine(engine, facts.kubernetes) or engine_driver(facts, engine).value == "":
        return ""
    return kubelet_driver(facts).value if facts.kubernetes.cgroup_driver or driver_in_force(facts, engine) else ""


def driver_problem(facts: NodeFacts, name: str, setting: str) -> Problem | None:
    """The refusal of a driver in the spec that is not the kubelet's; None where nothing stands against it."""
    engine, kubelet = kubelet_engine(facts), kubelet_driver(facts)
    fits = setting == "auto" or not kubelet.value or setting == kubelet.value
    if fits or engine is None or engine.name != name or follows_engine(engine, facts.kubernetes):
        return None
    return Problem(
        what=f"runtimes.{name}.cgroup_driver is {setting}, and the kubelet has {kubelet.value} ({kubelet.source})",
        fix=f"set runtimes.{name}.cgroup_driver to auto, or give the kubelet cgroupDriver: {setting} first",
    )


def driver_mismatch(facts: NodeFacts) -> str:
    """One sentence that says what each has and where it comes from; "" where they match, or one is not known."""
    engine = kubelet_engine(facts)
    if engine is None:
        return ""
    kubelet, own = kubelet_driver(facts), engine_driver(facts, engine)
    if not kubelet.value or not own.value or kubelet.value == own.value:
        return ""
    return (
        f"cgroup drivers differ: the kubelet has {kubelet.value} ({kubelet.source}), "
        f"{engine.name} has {own.value} ({own.source})"
    )


def kubelet_warnings(facts: NodeFacts, managed: Mapping[str, str]) -> Iterator[str]:
    """What a reader of the plan should know of the kubelet and its engine.

    `managed` says for each engine of the spec what its `manage` is: auto, install, configure or ignore.
    """
    kubernetes, engine = facts.kubernetes, kubelet_engine(facts)
    if not kubernetes.present:
        return
    if engine is None:
        socket = kubernetes.cri_socket or "(unknown)"
        yield f"the kubelet's socket {socket} belongs to no engine that was found: pods get no nvidia runtime"
        return
    for other in facts.runtimes:
        if other.name == engine.name and other is not engine:
            yield (
                f"the node has two {other.name}: {engine.unit or engine.socket} is the kubelet's and is configured, "
                f"{other.unit or other.socket or other.binary} is left as it is"
            )
    if kubernetes.gpu_operator and managed.get(engine.name, "ignore") != "ignore":
        yield (
            f"the GPU Operator is or was on this node, and its toolkit configures {engine.name} too: "
            f"set toolkit.enabled=false in its values, or runtimes.{engine.name}.manage: ignore here"
        )
    there = {runtime.name for runtime in facts.runtimes}
    for name, manage in managed.items():
        if name == engine.name or name not in DAEMONS:
            continue
        if manage == "auto" and name in there:
            yield (
                f"{name} is left as it is, the kubelet runs pods on {engine.name}: "
                f"runtimes.{name}.manage: configure has {name} get the nvidia runtime too"
            )
        elif manage in ("install", "configure"):
            yield f"runtimes.{name} is configured, but the kubelet runs pods on {engine.name}: they get nothing of it"
    if managed.get(engine.name, "ignore") == "ignore":
        yield f"the kubelet runs pods on {engine.name}, which is not managed: pods get no nvidia runtime from gpunode"
        if sentence := driver_mismatch(facts):
            yield sentence


def kubelet_checks(facts: NodeFacts) -> Iterator[Check]:
    """The checks of verify that concern the kubelet: its engine, and the cgroup drivers."""
    kubernetes, engine = facts.kubernetes, kubelet_engine(facts)
    if not kubernetes.present:
        return
    if engine is None:
        yield Check(
            id="kubelet.engine",
            status="warning",
            message=f"the kubelet's socket {kubernetes.cri_socket or '(unknown)'} belongs to no engine that was found",
            fix="systemctl status kubelet; is that engine installed?",
        )
        return
    kubelet, own = kubelet_driver(facts), engine_driver(facts, engine)
    if sentence := driver_mismatch(facts):
        fix = f"gpunode provision gives {engine.name} the kubelet's (cgroup_driver: auto)"
        yield Check(
            id="cgroup.driver-match", status="failed", message=f"{sentence}: pods do not start, or are killed", fix=fix
        )
    elif not kubelet.value or not own.value:
        why = "; ".join(driver.source for driver in (kubelet, own) if not driver.value)
        yield Check(id="cgroup.driver-match", status="not-proven", message=why, fix="probe as root")
    else:
        yield Check(
            id="cgroup.driver-match",
            status="passed",
            message=f"kubelet ({kubelet.source}) and {engine.name} ({own.source}) both have {own.value}",
        )
