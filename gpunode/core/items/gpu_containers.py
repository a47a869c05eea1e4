"""Running GPU containers and systemd's daemon-reload: what is wanted, what the plan says, what verify checks.

systemd applies its device rules to every scope again when it reloads, and takes what a container got behind its back
(docs/runtime.md has the conditions, measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpunode.core.edits import RuntimeRequest
from gpunode.core.engines import DAEMONS
from gpunode.core.items.activation import UNITS
from gpunode.core.items.item import HostCase, Item, ItemKey, StateKind
from gpunode.core.items.kubelet import driver_in_force
from gpunode.core.late import dataclass, replace
from gpunode.core.model import Check, GpuContainer, NodeFacts, Plan, Reason, Step

LINKS_RULE = "/etc/udev/rules.d/72-gpunode-nvidia-dev-char.rules"
LINKED = "all in /dev/char"
SOURCE = "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48"
# The scripts of every package that brings a unit reload systemd (deb-systemd-helper and dh_installsystemd's snippets,
# rpm's systemd macros and file triggers), and which packages do is known only when they are unpacked: so all of them.
RELOADS = "package scripts run systemctl daemon-reload"


class _Link(StateKind):
    def made(self, name: str) -> bool:
        return name.startswith(UNITS)  # those in /dev are made by others


LINK = _Link(name="link", by_people=True, theirs=True)


@dataclass(frozen=True, kw_only=True)
class Links(Item):
    """The links of all GPU devices in /dev/char, by which systemd finds them."""

    NAME = "links of GPU devices"
    BACK = (LINK,)
    WANTED = LINKED
    FIRST_BOOT = "activate"
    role: str = "runtime"
    option: str = "activate"

    def actual(self, facts: NodeFacts) -> str:
        return links_found(facts)

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"links": True}

    def follows(self, pending: Mapping[ItemKey, Item]) -> bool:
        """The driver brings the devices, and MIG instances have some of their own."""
        return any(key.role == "driver" or key.option == "mig" for key in pending)


def needs_links(facts: NodeFacts, request: RuntimeRequest) -> bool:
    """Whether an engine may leave its containers' devices to systemd; unknown is as good as yes."""
    found = facts.runtime(request.runtime)
    return (request.cgroup_driver or (found and driver_in_force(facts, found))) != "cgroupfs"


def links_found(facts: NodeFacts) -> str:
    """LINKED, or which links are missing.  A node without device files has none to link."""
    missing = [node for node in facts.device_nodes if not node.linked]
    links = ", ".join(f"/dev/char/{node.number} ({node.path})" for node in missing)
    return f"missing: {links}" if missing else LINKED


def describe_gpu_containers(plan: Plan, facts: NodeFacts) -> Plan:
    """The plan with what its steps do to the GPU containers that run on the node now; its values stay the same."""
    kept, taken = _in_state(facts, "keepable"), _in_state(facts, "exposed")
    if not plan.steps or not (kept or taken):
        return plan
    steps = tuple(_annotated(step, kept, taken) for step in plan.steps)
    if not taken:
        return replace(plan, steps=steps)
    warning = (
        f"running GPU containers {_names(taken)} lose their GPUs when systemd reloads; enabling a service, which "
        "reloads it, is refused while they run: stop them, or start them with CDI (docs/runtime.md)"
    )
    return replace(plan, steps=steps, warnings=(*plan.warnings, warning))


def _annotated(step: Step, kept: list[GpuContainer], taken: list[GpuContainer]) -> Step:
    if step.option == "packages":
        cause = RELOADS
    elif step.option == "activate" and step.value.get("services"):
        cause = "enabling a service may reload systemd"
    else:
        return step
    if kept:
        why = f"{cause}: systemd is notified of their GPUs first, so that they keep them"
        reason = Reason(what=f"running GPU containers {_names(kept)}", why=why, source=SOURCE)
        step = replace(step, reasons=(*step.reasons, reason))
    if taken and step.option == "packages":
        stated = f"{cause}: running GPU containers {_names(taken)} lose their GPUs"
        step = replace(step, disruptive="; ".join(filter(None, (step.disruptive, stated))))
    return step


def container_checks(facts: NodeFacts) -> Iterator[Check]:
    """devices.char-links and containers.gpu-kept."""
    yield from _link_checks(facts)
    if not facts.gpu_containers:
        if facts.device_nodes and facts.toolkit and facts.runtimes and "gpu_containers" in facts.unread:
            text = "running containers were not seen"
            yield Check(id="containers.gpu-kept", status="not-proven", message=text, fix="probe as root")
        return
    lost = _in_state(facts, "lost")
    risked = [c for c in facts.gpu_containers if c.state in ("keepable", "exposed")]
    if lost:
        text = f"{_names(lost)} lost {_devices(lost)} («Failed to initialize NVML: Unknown Error»)"
        yield Check(id="containers.gpu-kept", status="failed", message=text, fix="restart these containers")
    elif risked:
        yield Check(id="containers.gpu-kept", status="warning", message=_risk(risked), fix=_fix(risked))
    else:
        count = len(facts.gpu_containers)
        text = f"{count} running GPU container{'s keep their' if count > 1 else ' keeps its'} GPUs when systemd reloads"
        yield Check(id="containers.gpu-kept", status="passed", message=text)


def _link_checks(facts: NodeFacts) -> Iterator[Check]:
    drivers = {driver_in_force(facts, r) for r in facts.runtimes if r.name in DAEMONS}
    if not facts.device_nodes or not drivers - {"cgroupfs"} or not facts.toolkit:
        return
    found = links_found(facts)
    if found == LINKED:
        text = f"all {len(facts.device_nodes)} NVIDIA device files have their links in /dev/char"
        yield Check(id="devices.char-links", status="passed", message=text)
        return
    yield Check(
        id="devices.char-links",
        status="failed" if "systemd" in drivers else "warning",
        message=f"{found}: containers started now may lose their GPUs when systemd reloads",
        fix="gpunode provision, or nvidia-ctk system create-dev-char-symlinks --create-all",
    )


def _risk(containers: list[GpuContainer]) -> str:
    """What a reload of systemd may have done already, and what the next one would do."""
    again, fresh = ([c for c in containers if c.reloaded is reloaded] for reloaded in (True, False))
    may = f"systemd has reloaded since {_names(again)} started, and may have taken {_devices(again)} from them already"
    would = f"at the next systemctl daemon-reload {_names(fresh)} would lose {_devices(fresh)}"
    return "; ".join([may] * bool(again) + [would] * bool(fresh))


def _fix(containers: list[GpuContainer]) -> str:
    """How to see what they have, and how they keep it until they end, where that can be said."""
    sure = [c for c in containers if c.state == "keepable"]
    if len(sure) < len(containers):
        keep = (
            "restart them with CDI: docker run --device nvidia.com/gpu=…, or deviceListStrategy cdi-cri in Kubernetes"
        )
    else:
        keep = f"until they end: {'; '.join(map(_command, sure))}; for good: start them with CDI"
    look = "; ".join(_look(c) for c in containers if c.reloaded)
    return f"look: {look}; restart what has lost them; {keep}" if look else keep


def _look(container: GpuContainer) -> str:
    """The command that asks for the GPUs in the container."""
    if "libpod" in container.unit:
        return f"podman exec {container.name} nvidia-smi -L"
    if container.unit.startswith("docker"):
        return f"docker exec {container.name} nvidia-smi -L"
    return f"crictl exec {container.id[:12]} nvidia-smi -L"


def _command(container: GpuContainer) -> str:
    words = " ".join(f"'DeviceAllow={device} rw'" for device in container.devices)
    return f"systemctl set-property --runtime {container.unit} {words}"


def _in_state(facts: NodeFacts, state: str) -> list[GpuContainer]:
    return [c for c in facts.gpu_containers if c.state == state]


def _names(containers: Iterable[GpuContainer]) -> str:
    return ", ".join(c.name for c in containers)


def _devices(containers: Iterable[GpuContainer]) -> str:
    return ", ".join(dict.fromkeys(d for c in containers for d in c.devices))
