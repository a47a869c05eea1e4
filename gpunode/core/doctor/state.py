"""Faults that no line of a log says: they lie in the state of a node, as the probe and node/probe/logs.sh have it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpunode.core.checks.boot import waiting_gpus, why_unloaded
from gpunode.core.checks.gpus import LOST, RESET, gpu_troubles
from gpunode.core.checks.health import drift_checks, lost_checks, mig_faults, sharing_checks
from gpunode.core.doctor.checks import Checks, decided, ruled_out
from gpunode.core.doctor.text import Evidence
from gpunode.core.engines import ENGINES, NVIDIA_RUNTIME, ROWS, TOOLKIT_CONFIG
from gpunode.core.errors import GpunodeError
from gpunode.core.facts.cdi import KIND, of_others, stale
from gpunode.core.facts.kubelet import kubelet_engine
from gpunode.core.grouped import grouped
from gpunode.core.items.activation import engine_checks
from gpunode.core.items.first_boot import prepared
from gpunode.core.items.gpu_containers import container_checks
from gpunode.core.items.kubelet import kubelet_checks
from gpunode.core.knowledge.scheduler import SchedulerRules
from gpunode.core.knowledge.support import too_old
from gpunode.core.late import regex
from gpunode.core.model import NO_GPU, NodeFacts, Running, Runtime
from gpunode.core.numbers import release, version_tuple

if TYPE_CHECKING:
    from gpunode.core.edits import RuntimeState

Sections = Mapping[str, str]  # what node/probe/logs.sh printed, by name
Signs = Iterator[tuple[str, str]]  # id of the fault, what shows it
ABSENT_GPU, BROKEN_FILE = "nvrm-no-pci", "docker-daemon-json"
_NONE = Checks()
_NOT_LOADED = "smi-cannot-communicate"
_OFFERS_NONE = "plugin-no-devices"
_ASKED = "asked="  # what the cluster's own answer ends with
_VERIFY = (engine_checks, container_checks, kubelet_checks, sharing_checks, drift_checks, lost_checks)
_SCHEDULER = regex(r"^[ \t-]*image:[ \t]*\S{0,300}kube-scheduler[\w-]{0,20}:v1\.(\d{1,4})\b", re.MULTILINE)
_CRITICAL_XIDS = (79,)  # the GPU has fallen off the bus
_FAULT_SIGNS = {LOST: "gpu-lost", RESET: "reset-required"}  # the driver's word → the fault
_OURS = regex(r"(nvidia\.com|aliyun\.com)/")
_DRIVER_PACKAGE = regex(
    r"(nvidia-(driver|dkms|kernel|utils|compute|headless|open)|libnvidia-(?!container)|kmod-nvidia)"
)
_VERSION = regex(r"(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)")
_NO_ANSWER = {"1": "connection refused, or no such host", "124": "no answer in time"}  # exit codes, of bash and timeout
_TOOLKIT = {"nvidia-container-toolkit", "nvidia-container-toolkit-base"}  # packages
_UNPRIVILEGED = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_NODE = regex(r"/dev/nvidia[\w/-]{0,80}")
_CDI_NAME = regex(r"nvidia\.com/gpu=([\w:-]{1,80})")
_ENGINE = regex("|".join(ENGINES))
_SHOWN = 160  # characters of a file's words that are shown


def state_faults(
    facts: NodeFacts, sections: Sections, scheduler: SchedulerRules | None, checks: Checks = _NONE
) -> dict[str, list[Evidence]]:
    """Evidence by fault id."""
    says = [stated for rule in _RULES for stated in rule(facts)]
    says += [*_checked(facts, checks), *_gpus(facts, checks), *_not_loaded(facts, checks)]
    says += [*_pods(facts, sections), *_extender(sections)]
    says += [*_scheduler_era(sections, scheduler)] if scheduler else []
    return grouped((name, Evidence(source="state", line=0, text=text)) for name, text in says)


def _driver(facts: NodeFacts) -> Signs:
    driver = facts.driver
    if driver.loaded and driver.userspace and driver.loaded != driver.userspace:
        yield "nvml-version-mismatch", f"loaded module {driver.loaded}, libraries {driver.userspace}"
    if driver.loaded and facts.nvml and len(facts.nvml) < len(facts.gpus):
        yield "gpu-lost", f"{len(facts.gpus)} GPUs on PCI, {len(facts.nvml)} in the driver"
    for gpu in facts.gpus:
        if any(link.slot == gpu.slot and link.silent for link in facts.pcie):
            yield "gpu-lost", f"{gpu.slot} does not answer on PCI: all that is read there is ones"
    for word, name in _FAULT_SIGNS.items():
        if word in driver.smi:  # older ones end with the first GPU that they cannot open
            yield name, f"nvidia-smi: {driver.smi}"
    for xid in facts.xids:
        if xid.code in _CRITICAL_XIDS:
            yield "gpu-lost", xid.line or f"Xid {xid.code} on {xid.slot}"


def _checked(facts: NodeFacts, checks: Checks) -> Signs:
    """What verify finds, and units that have failed."""
    if not checks.signs:
        return
    for check in (one for judge in _VERIFY for one in judge(facts)):
        table = {"failed": checks.signs, "warning": checks.warnings}.get(check.status, {})
        if check.id in table:
            yield table[check.id], check.message
    for unit, name in checks.units.items():
        service = facts.services.get(unit)
        if service and service.active == "failed":
            yield name, f"{unit}.service has failed"


def _not_loaded(facts: NodeFacts, checks: Checks) -> Signs:
    """Why no module is loaded where a GPU waits for one, and why there is none for the GPU that is to come."""
    waiting = waiting_gpus(facts)
    cause = [*decided(checks.symptoms.get(_NOT_LOADED, ()), why_unloaded(facts))] if waiting or _gap(facts) else []
    yield from cause
    if cause and waiting:
        yield _NOT_LOADED, "no NVIDIA kernel module is loaded"


def _gap(facts: NodeFacts) -> bool:
    """Whether a machine without a GPU has a driver, and no module of it for the kernel that runs."""
    installed = facts.driver.userspace and not (facts.has_gpu or facts.driver.loaded or facts.container)
    return bool(installed) and any(kernel.running and not kernel.module for kernel in facts.kernels)


def _absent(facts: NodeFacts) -> Signs:
    """That a node, of which more than nvidia-smi's answer is known, has no GPU at all, and none is still to come."""
    if facts.kernel and not (facts.has_gpu or prepared(facts)):
        yield ABSENT_GPU, NO_GPU


def proofs(facts: NodeFacts, lines: Mapping[str, Sequence[str]] = {}) -> set[str]:
    """What is known of a node (Fault.refuted_by); `lines` are those of its logs, by the fault that they show.

    What an engine's files have says nothing of the engine that runs: it may be older than they are.
    """
    cdi, config, docker = facts.cdi, _toolkit_config(facts), facts.containers.get("docker", Running())
    gone = {name for name in ENGINES if not facts.runtime(name)}
    fits = bool(cdi.specs and cdi.gpus and not stale(facts))
    nodes, devices = {node.path for node in facts.device_nodes}, {name for spec in cdi.specs for name in spec.devices}
    known = {
        "driver-answers": facts.driver.loaded and facts.nvml,
        "has-fabric": facts.nvlink5_fabric or any(gpu.fabric_state not in ("", "N/A") for gpu in facts.nvml),
        "toolkit-there": facts.toolkit,
        "runtime-there": _has_runtime(facts),
        "toolkit-config-reads": config is not None,
        "variables-count": config is not None and config.get(_UNPRIVILEGED, True) is True,
        "docker-gone": "docker" in gone,
        "failed-engines-gone": _all_there(_ENGINE, [text.lower() for text in lines.get("engine-failed", ())], gone),
        "docker-has-nvidia": "nvidia" in docker.runtimes,
        "docker-knows-hook": docker.knows_hook,
        "device-nodes-there": _all_there(_NODE, lines.get("device-node-missing", ()), nodes),
        "cdi-fits": fits,
        "cdi-whole": fits and not cdi.missing,
        "cdi-resolves": fits and _all_there(_CDI_NAME, lines.get("cdi-unresolvable", ()), devices),
    }
    return {name for name, holds in known.items() if holds}


def _all_there(pattern: re.Pattern[str], lines: Sequence[str], there: Collection[str]) -> bool:
    """Whether each of the lines names something, and all that they name is there."""
    named = [set(pattern.findall(line)) for line in lines]
    return bool(named) and all(some and some <= set(there) for some in named)


def _has_runtime(facts: NodeFacts) -> bool:
    """Whether each engine's runtime nvidia is a program that the toolkit's packages have put there."""
    states = [_in_force(facts, engine) for engine in facts.runtimes]
    return (
        bool(facts.toolkit)
        and not facts.packages.keys().isdisjoint(_TOOLKIT)
        and all(state and state.path in ("", NVIDIA_RUNTIME.rpartition("/")[2], NVIDIA_RUNTIME) for state in states)
    )


def _toolkit_config(facts: NodeFacts) -> dict[str, Any] | None:
    import tomli

    file = facts.files.get(TOOLKIT_CONFIG)
    try:
        return tomli.loads(file.data.decode()) if file and file.data is not None else None
    except (ValueError, RecursionError):
        return None


def excluded(facts: NodeFacts, checks: Checks) -> set[str]:
    """Faults of which the node itself shows that they are not there, whatever its logs say."""
    return ruled_out(checks, why_unloaded(facts)) if waiting_gpus(facts) else set()


def _fabric(facts: NodeFacts) -> Signs:
    """The fabric manager where NVSwitches need one; that of a driver container has no unit on the node."""
    if not (facts.driver.loaded and (facts.nvswitches or facts.nvlink5_fabric)):
        return
    manager = facts.services.get("nvidia-fabricmanager")
    if manager and manager.active:
        if manager.active != "active":
            yield "fabric-manager-missing", f"NVSwitches are here, nvidia-fabricmanager is {manager.active}"
    elif not facts.kubernetes.driver_container:
        yield "fabric-manager-missing", "NVSwitches are here, nvidia-fabricmanager is not installed"
    else:
        for trouble in gpu_troubles(facts):
            if trouble.check == "fabric.state":
                text = f"GPU {trouble.gpu} has not joined the NVLink fabric: {trouble.what}"
                yield "fabric-manager-missing", text


def _gpus(facts: NodeFacts, checks: Checks) -> Signs:
    for trouble in gpu_troubles(facts):
        name = checks.signs.get(trouble.check, "")
        if trouble.check == "gpu.fault":
            name = next((name for word, name in _FAULT_SIGNS.items() if word in trouble.what), "smi-unable-handle")
        if name:
            yield name, f"GPU {trouble.gpu}: {trouble.what}"
    if facts.nvlink_inactive:
        yield "nvlink-inactive", f"down, while others are up: {', '.join(facts.nvlink_inactive)}"


def _mig(facts: NodeFacts) -> Signs:
    return (fault for fault in mig_faults(facts) if fault[0])


def _engines(facts: NodeFacts) -> Signs:
    if docker := facts.runtime("docker"):
        yield from _daemon_json(facts, docker)
    if facts.cdi.gpus and any(spec.kind == KIND for spec in facts.cdi.specs):
        others = of_others(facts)
        yield from (("cdi-foreign" if reason in others else "cdi-stale", reason) for reason in stale(facts))
    if "nvidia-docker2" in facts.packages and "nvidia-container-toolkit" in facts.packages:
        old, new = facts.packages["nvidia-docker2"].version, facts.packages["nvidia-container-toolkit"].version
        yield "apt-docker2-conflict", f"nvidia-docker2 {old} next to nvidia-container-toolkit {new}"


def _daemon_json(facts: NodeFacts, docker: Runtime) -> Signs:
    """What dockerd does not start with, by its own word or by its file; one that was not read says nothing."""
    from gpunode.core.edits import RuntimeRequest, probed_state
    from gpunode.core.edits.engines.docker import finds
    from gpunode.core.edits.target import problem_of

    path = docker.config
    if path not in facts.files or not facts.files[path].data:
        return
    try:
        state = probed_state(facts, docker, RuntimeRequest(runtime="docker"))
    except GpunodeError as error:
        yield BROKEN_FILE, _cut(problem_of(error).what)
        return
    if docker.effective_error:
        yield BROKEN_FILE, f"{path}: {_cut(docker.effective_error)}"
    elif not finds(state.default, state.runtimes, release(docker.version)):
        default = _cut(state.default)
        yield "docker-default-runtime-missing", f"{path}: default-runtime is {default}, runtimes has no {default}"


def _cut(text: str) -> str:
    """A text of a file, in letters that every terminal's encoding has, and not too long."""
    shown = text[:_SHOWN].encode("utf-8", "backslashreplace").decode()
    return shown if len(text) <= _SHOWN else f"{shown} …"


def _kubelet_devices(sections: Sections) -> Signs:
    """What the kubelet's checkpoint of device plugins has: resources with the ids of their healthy devices."""
    text = sections.get("kubelet-devices", "").strip()
    if not text:
        return
    try:
        registered = json.loads(text)["Data"]["RegisteredDevices"] or {}
        ours = {name: devices for name, devices in registered.items() if _OURS.match(name)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield "kubelet-checkpoint", "kubelet_internal_checkpoint cannot be read as the kubelet writes it"
        return
    if not ours:
        yield "plugin-not-registered", "kubelet_internal_checkpoint has no device of NVIDIA"
    for name, devices in ours.items():
        if not devices:
            yield _OFFERS_NONE, f"{_cut(name)} is registered with 0 devices"


def _pods(facts: NodeFacts, sections: Sections) -> Signs:
    """What pods get of the GPUs: what the kubelet has to give, and whether its engine can hand that on."""
    devices = [*_kubelet_devices(sections)]
    yield from devices
    engine = kubelet_engine(facts)
    if not engine or not facts.gpus or not facts.driver.loaded:
        return
    if not facts.toolkit:
        if not facts.kubernetes.gpu_operator and "toolkit" not in facts.unread:
            yield "toolkit-not-installed", f"no toolkit for {engine.name}, which the kubelet runs pods on"
        return
    state = _in_force(facts, engine)
    if not state:
        return
    ours = [name for name in state.runtimes if name.startswith("nvidia")]
    classes = sections.get("runtime-classes", "").split()
    rows = [line.partition("=")[::2] for line in classes if _ASKED in classes]
    named = [(name, handler) for name, handler in rows if handler.startswith("nvidia")]
    for name, handler in named:
        if handler not in state.runtimes and ROWS[engine.name].cri:
            yield (
                "k8s-no-runtime",
                f"RuntimeClass {_cut(name)} asks for {_cut(handler)}, {engine.name} has no such runtime",
            )
    if state.cdi:
        return
    if not ours and not named:
        yield "k8s-no-runtime", f"{engine.name}, which the kubelet runs pods on, has no runtime nvidia"
    asked = not ROWS[engine.name].cri or (_ASKED in classes and not named)
    if ours and devices and asked and state.default not in ours:
        yield (
            "dp-nvml-load",
            f"the default runtime of {engine.name} is {state.default}, and no RuntimeClass asks for nvidia",
        )


def _in_force(facts: NodeFacts, engine: Runtime) -> RuntimeState | None:
    """What an engine's configuration says; None where it cannot be read, which others say."""
    from gpunode.core.edits import RuntimeRequest, probed_state

    try:
        return probed_state(facts, engine, RuntimeRequest(runtime=engine.name))
    except GpunodeError:
        return None


def _extender(sections: Sections) -> Signs:
    """The extenders of kube-scheduler's configuration that nothing answers for."""
    for line in sections.get("kube-scheduler-extender", "").splitlines():
        url, _, code = line.rpartition(" ")
        if code in _NO_ANSWER:
            yield "extender-refused", f"nothing answers at {_cut(url)}: {_NO_ANSWER[code]}"


def _scheduler_era(sections: Sections, rules: SchedulerRules) -> Signs:
    """What a kube-scheduler of a supported release does not start with."""
    manifest = sections.get("kube-scheduler-manifest", "")
    image = _SCHEDULER.search(manifest)
    if not image or too_old("kubernetes", f"1.{image[1]}", rules.support):
        return
    minor = int(image[1])
    api = re.search(
        r"^apiVersion:\s*['\"]?(kubescheduler\.config\.k8s\.io/\w+)", sections.get("kube-scheduler-config", ""), re.M
    )
    if api and not rules.reads(api[1], minor):
        yield "sched-kind", f"kube-scheduler 1.{minor} with a configuration of {api[1].rpartition('/')[2]}"
    for flag in rules.gone_flags(minor):
        if re.search(rf"--{re.escape(flag)}\b", manifest):
            yield "sched-policy-flag", f"kube-scheduler 1.{minor} has no --{flag}"


def _packages(facts: NodeFacts) -> Signs:
    broken = [name for name in facts.broken_packages if re.search(r"nvidia|cuda", name)]
    if broken:
        yield "dpkg-nvidia-configure", f"broken: {', '.join(broken[:5])}"
    of_driver = {name: one.version for name, one in facts.packages.items() if _DRIVER_PACKAGE.match(name)}
    versions = {name: found[1] for name, version in of_driver.items() if (found := _VERSION.match(version))}
    held = {name for name in versions if facts.packages[name].held}
    newest = max(versions.values(), key=version_tuple, default="")
    behind = [f"{name} {versions[name]}" for name in sorted(held) if versions[name] != newest]
    if behind:
        yield "apt-held-broken", f"held: {', '.join(behind[:5])}; other packages of the driver are {newest}"


def _device_nodes(facts: NodeFacts) -> Signs:
    there = {node.path for node in facts.device_nodes}
    wanted = [f"/dev/nvidia{gpu.minor}" for gpu in facts.cdi.gpus] or ["/dev/nvidia0"] * bool(facts.nvml)
    if not facts.driver.loaded or not there or "device_nodes" in facts.unread:
        return
    if gone := [path for path in wanted if path not in there]:
        yield "device-node-missing", f"the driver has {len(wanted)} GPUs, and there is no {', '.join(gone)}"


_RULES: tuple[Callable[[NodeFacts], Signs], ...] = (_absent, _driver, _fabric, _mig, _engines, _packages, _device_nodes)


def split_sections(text: str) -> dict[str, str]:
    """What node/probe/logs.sh prints → text by name."""
    parts = re.split(r"^=== gpunode log (\S+)\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
