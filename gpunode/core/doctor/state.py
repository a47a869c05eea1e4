"""Faults that no line of a log says: they lie in the state of a node, as the probe and node/probe/logs.sh have it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpunode.core.cdi import KIND, stale
from gpunode.core.checks.gpus import LOST, RESET, gpu_troubles
from gpunode.core.doctor.text import Evidence
from gpunode.core.facts.kubelet import mismatch
from gpunode.core.items.stopped_engine import how_stopped, stopped
from gpunode.core.knowledge.scheduler import SchedulerRules
from gpunode.core.model import NodeFacts

Sections = Mapping[str, str]  # what node/probe/logs.sh printed, by name
Signs = Iterator[tuple[str, str]]  # id of the fault, what shows it
_CRITICAL_XIDS = (79,)  # the GPU has fallen off the bus
_FAULT_SIGNS = {LOST: "gpu-lost", RESET: "reset-required"}  # the driver's word → the fault
_OURS = re.compile(r"(nvidia\.com|aliyun\.com)/")
_SHOWN = 100  # characters of a file's words that are shown


def state_faults(facts: NodeFacts, sections: Sections, scheduler: SchedulerRules | None) -> dict[str, list[Evidence]]:
    """Evidence by fault id."""
    found: dict[str, list[Evidence]] = {}
    says = [*(stated for rule in _RULES for stated in rule(facts)), *_kubelet_devices(sections)]
    says += [*_scheduler_era(sections, scheduler)] if scheduler else []
    for name, text in says:
        found.setdefault(name, []).append(Evidence(source="state", line=0, text=text))
    return found


def _driver(facts: NodeFacts) -> Signs:
    driver = facts.driver
    if driver.loaded and driver.userspace and driver.loaded != driver.userspace:
        yield "nvml-version-mismatch", f"loaded module {driver.loaded}, libraries {driver.userspace}"
    running = next((k for k in facts.kernels if k.running), None)
    if facts.gpus and driver.userspace and running and not running.module and not driver.loaded:
        yield "modprobe-not-found", f"the running kernel {running.release} has no nvidia module"
    if facts.gpus and driver.loaded:
        for kernel in facts.kernels:
            if kernel.image and not kernel.running and not kernel.module:
                yield "module-next-kernel", f"kernel {kernel.release} is installed and has no nvidia module"
    if driver.loaded and facts.nvml and len(facts.nvml) < len(facts.gpus):
        yield "gpu-lost", f"{len(facts.gpus)} GPUs on PCI, {len(facts.nvml)} in the driver"
    for word, name in _FAULT_SIGNS.items():
        if word in driver.smi:  # older ones end with the first GPU that they cannot open
            yield name, f"nvidia-smi: {driver.smi}"
    for xid in facts.xids:
        if xid.code in _CRITICAL_XIDS:
            yield "gpu-lost", xid.line or f"Xid {xid.code} on {xid.slot}"


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


# what verify finds wrong with a GPU → the fault that it is a sign of
_SIGNS = {
    "gpu.remap-pending": "reset-required",
    "gpu.retirement-pending": "reset-required",
    "gpu.recovery": "reset-required",
    "gpu.remap-failure": "row-remap-failed",
    "gpu.slowdown": "gpu-throttled",
    "fabric.state": "fm-state-in-progress",
}


def _gpus(facts: NodeFacts) -> Signs:
    for trouble in gpu_troubles(facts):
        name = _SIGNS.get(trouble.check, "")
        if trouble.check == "gpu.fault":
            name = next((name for word, name in _FAULT_SIGNS.items() if word in trouble.what), "smi-unable-handle")
        if name:
            yield name, f"GPU {trouble.gpu}: {trouble.what}"
    if facts.nvlink_inactive:
        yield "nvlink-inactive", f"down, while others are up: {', '.join(facts.nvlink_inactive)}"


def _mig(facts: NodeFacts) -> Signs:
    for gpu in facts.nvml:
        if gpu.mig_pending and gpu.mig_current and gpu.mig_current != gpu.mig_pending:
            yield "mig-pending", f"GPU {gpu.index}: MIG is {gpu.mig_current}, {gpu.mig_pending} after a reset"


def _engines(facts: NodeFacts) -> Signs:
    for runtime in facts.runtimes:
        if stopped(runtime):
            yield "engine-stopped", how_stopped(facts, runtime)
        if runtime.name == "docker":
            yield from _daemon_json(facts, runtime.config)
    if facts.cdi.gpus and any(spec.kind == KIND for spec in facts.cdi.specs):
        yield from (("cdi-stale", reason) for reason in stale(facts))
    if "nvidia-docker2" in facts.packages and "nvidia-container-toolkit" in facts.packages:
        old, new = facts.packages["nvidia-docker2"].version, facts.packages["nvidia-container-toolkit"].version
        yield "apt-docker2-conflict", f"nvidia-docker2 {old} next to nvidia-container-toolkit {new}"
    reported = mismatch(facts)
    if reported:
        yield "cgroup-driver-mismatch", reported


def _daemon_json(facts: NodeFacts, path: str) -> Signs:
    file = facts.files.get(path)
    if not file or not file.data:
        return
    try:
        config = _parsed(file.data)
    except ValueError as error:
        yield "docker-daemon-json", f"{path}: {_cut(str(error))}"
        return
    if not isinstance(config, dict):
        yield "docker-daemon-json", f"{path} holds {_word(config)}, dockerd wants an object: {{…}}"
        return
    default, known = config.get("default-runtime"), config.get("runtimes")
    if not isinstance(default, str | None):
        yield "docker-daemon-json", f"{path}: default-runtime is {_word(default)}, dockerd wants a text"
        return
    if not isinstance(known, dict | None):
        yield "docker-daemon-json", f"{path}: runtimes is {_word(known)}, dockerd wants an object"
        return
    if default and default not in (known or {}) and default not in ("runc", "io.containerd.runc.v2"):
        reported = _cut(default)
        yield "docker-default-runtime-missing", f"{path}: default-runtime is {reported}, runtimes has no {reported}"


def _parsed(data: bytes | str) -> Any:
    """JSON of a node.  Raises ValueError for whatever cannot be read, however deep it is nested."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply to be read") from error


def _word(value: object) -> str:
    """A value of JSON for people; of a list or an object just which of the two it is."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return _cut(json.dumps(value))


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
        registered = _parsed(text)["Data"]["RegisteredDevices"] or {}
        ours = {name: devices for name, devices in registered.items() if _OURS.match(name)}
    except (ValueError, KeyError, TypeError, AttributeError):
        yield "kubelet-checkpoint", "kubelet_internal_checkpoint cannot be read as the kubelet writes it"
        return
    if not ours:
        yield "plugin-not-registered", "kubelet_internal_checkpoint has no device of NVIDIA"
    for name, devices in ours.items():
        if not devices:
            yield "plugin-no-devices", f"{_cut(name)} is registered with 0 devices"


def _scheduler_era(sections: Sections, rules: SchedulerRules) -> Signs:
    image = re.search(r"image:.*kube-scheduler\S*:v1\.(\d{1,4})\b", sections.get("kube-scheduler-manifest", ""))
    api = re.search(
        r"^apiVersion:\s*['\"]?kubescheduler\.config\.k8s\.io/(\w+)", sections.get("kube-scheduler-config", ""), re.M
    )
    if image and api and api[1] not in rules.takes(int(image[1])):
        yield "sched-kind", f"kube-scheduler 1.{image[1]} with a configuration of {api[1]}"
    for flag in rules.gone_flags(int(image[1])) if image else ():
        if re.search(rf"--{re.escape(flag)}\b", sections["kube-scheduler-manifest"]):
            yield "sched-policy-flag", f"kube-scheduler 1.{image[1] if image else ''} has no --{flag}"


_RULES: tuple[Callable[[NodeFacts], Signs], ...] = (_driver, _fabric, _gpus, _mig, _engines)


def split_sections(text: str) -> dict[str, str]:
    """What node/probe/logs.sh prints → text by name."""
    parts = re.split(r"^=== gpunode log (\S+)\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
