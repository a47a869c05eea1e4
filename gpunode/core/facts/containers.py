"""Section `containers`: what runs in each engine."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import cast, get_args

from gpunode.core.cdi import FOLDERS, read_spec
from gpunode.core.errors import InputError
from gpunode.core.facts.text import Probe
from gpunode.core.model import Cdi, CdiGpu, CdiSpec, ConfigFile, DeviceNode, GpuContainer, GpuState, Running
from gpunode.core.numbers import whole


def read_cdi(probe: Probe, files: Mapping[str, ConfigFile]) -> Cdi:
    """`gpu MINOR UUID` and `mig MINOR COUNT` lines, `missing PATH` lines, and the files in the folders of CDI."""
    migs = dict(line.split()[:2] for line in probe.values("cdi", "mig") if len(line.split()) == 2)
    gpus = []
    for line in probe.values("cdi", "gpu"):
        minor, _, uuid = line.partition(" ")
        if not minor.isdecimal() or not migs.get(minor, "0").isdecimal():
            probe.unreadable("cdi", line)
            continue
        gpus.append(CdiGpu(minor=whole(minor), uuid=uuid, mig_devices=whole(migs.get(minor, "0"))))
    specs = [_spec(file) for path, file in sorted(files.items()) if _is_spec(path)]
    return Cdi(specs=tuple(specs), gpus=tuple(gpus), missing=tuple(probe.values("cdi", "missing")))


def _is_spec(path: str) -> bool:
    return posixpath.dirname(path) in FOLDERS and path.endswith((".yaml", ".json"))


def _spec(file: ConfigFile) -> CdiSpec:
    if file.data is None:
        return CdiSpec(path=file.path, error=f"{file.path}: not readable, or too large")
    try:
        return read_spec(file.path, file.data)
    except InputError as error:
        return CdiSpec(path=file.path, error=error.what)


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


def read_containers(probe: Probe) -> dict[str, Running]:
    """Engine → what runs in it; the engines of Kubernetes distributions by the distribution's name (k3s is RKE2's too).

    Whether dockerd knows NVIDIA's hook follows from times in whole seconds: it looks for it when it starts.
    """
    stated: dict[str, dict[str, list[str]]] = {}
    for engine, rest in probe.pairs("containers"):
        key, _, value = rest.partition(" ")
        stated.setdefault(engine, {}).setdefault(key, []).append(value)
    found = {}
    for engine, values in stated.items():
        if set(values) == {"rootless"}:
            continue
        started, hook = _number(values, "started"), _number(values, "hook")
        live = values.get("live_restore", [""])[-1]
        found[engine] = Running(
            count=_number(values, "count", "tasks"),
            names=tuple(values.get("name", ())),
            live_restore={"true": True, "false": False}.get(live),
            knows_hook=started is not None and hook is not None and hook + 1 < started,
            reloads=engine == "docker" and _reloads(probe, ("docker.service", "snap.docker.dockerd.service")),
        )
    probe.notes += [
        f"containers: user {user} runs a rootless Docker of their own, which gpunode does not see"
        for user in stated.get("docker", {}).get("rootless", ())
    ]
    return found


def _number(values: dict[str, list[str]], *keys: str) -> int | None:
    """The largest number said, None when there is none."""
    texts = [text for key in keys for text in values.get(key, ())]
    return max((int(text) for text in texts if text.isdecimal() and len(text) < 16), default=None)


def _reloads(probe: Probe, units: tuple[str, ...]) -> bool:
    """Whether the first of these units that runs can be reloaded."""
    block: dict[str, str] = {}
    for line in (*probe.sections.get("units", ()), ""):
        key, _, value = line.partition("=")
        block[key] = value
        if line.strip():
            continue
        if block.get("Id") in units and block.get("MainPID", "0") != "0":
            return block.get("CanReload") == "yes"
        block = {}
    return False
