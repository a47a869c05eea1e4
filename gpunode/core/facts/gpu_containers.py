"""Section gpu_containers: NVIDIA's device files, and the running containers that have some of them → values."""

from __future__ import annotations

from typing import cast, get_args

from gpunode.core.facts.text import Probe
from gpunode.core.model import DeviceNode, GpuContainer, GpuState


def read_device_nodes(probe: Probe) -> tuple[DeviceNode, ...]:
    """`linked MAJOR:MINOR PATH` and `unlinked …` lines → device files, in their order."""
    found = []
    for key, rest in probe.pairs("gpu_containers"):
        number, _, path = rest.partition(" ")
        if key in ("linked", "unlinked") and path:
            found.append(DeviceNode(path=path, number=number, linked=key == "linked"))
    return tuple(found)


def read_gpu_containers(probe: Probe) -> tuple[GpuContainer, ...]:
    """`container ID NAME UNIT MODE STATE DEVICE,DEVICE…` lines → containers, by name; any other line becomes a note."""
    found = []
    for key, rest in probe.pairs("gpu_containers"):
        words = rest.split()
        if key == "container" and len(words) == 6 and words[4] in get_args(GpuState):
            found.append(_container(words))
        elif key not in ("linked", "unlinked"):
            probe.unreadable("gpu_containers", f"{key} {rest}")
    return tuple(sorted(found, key=lambda container: (container.name, container.id)))


def _container(words: list[str]) -> GpuContainer:
    identity, name, unit, mode, state, devices = words
    return GpuContainer(
        name=name,
        id=identity,
        unit=unit.removeprefix("-"),
        hook=mode == "hook",
        state=cast(GpuState, state),
        devices=tuple(devices.split(",")),
    )
