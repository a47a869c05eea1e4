"""Sections about services, engines and what runs in them → values; kubernetes.py reads what Kubernetes brings."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import cast, get_args

from gpunode.core.engines import ENGINES, ROWS
from gpunode.core.errors import InputError
from gpunode.core.facts.cdi import FOLDERS, read_spec
from gpunode.core.facts.flags import flag_value
from gpunode.core.facts.text import Probe, stated
from gpunode.core.late import dataclass, regex
from gpunode.core.model import (
    Cdi,
    CdiGpu,
    CdiSpec,
    ConfigFile,
    DeviceNode,
    GpuContainer,
    GpuState,
    Running,
    Runtime,
    RuntimeName,
    Service,
)
from gpunode.core.numbers import whole

_UNLIMITED = {"18446744073709551615": "infinity", "unlimited": "infinity"}  # systemd before 231, the kernel
DOTTED = regex(r"\bv?(\d{1,4}(?:\.\d{1,4}){1,2}[\w.+~-]*)")
_ARGV = regex(r"argv\[\]=([^;]*)")


@dataclass(frozen=True, kw_only=True)
class Units:
    """What systemd and /proc say of the daemons."""

    services: Mapping[str, Service]  # by name without .service
    commands: Mapping[str, tuple[str, ...]]  # service name → arguments of its running process, or of its ExecStart
    starts: Mapping[str, tuple[str, ...]]  # service name → arguments of its ExecStart: k3s hides those of its process
    processes: tuple[tuple[str, ...], ...]  # command lines of all daemons found
    reloads: Mapping[str, bool]  # service that runs → whether it can be reloaded


def read_units(probe: Probe) -> Units:
    """`systemctl show` blocks, `process PID<TAB>ARG<TAB>ARG…` and `locked PID BYTES` lines → Units."""
    processes: dict[str, tuple[str, ...]] = {}
    locked: dict[str, str] = {}
    blocks: list[dict[str, str]] = [{}]
    for line in probe.sections.get("units", ()):
        if line.startswith("process "):
            pid, *args = line.removeprefix("process ").rstrip("\t").split("\t")
            processes[pid] = tuple(args)
        elif line.startswith("locked "):
            pid, _, limit = line.removeprefix("locked ").partition(" ")
            locked[pid] = _UNLIMITED.get(limit, limit)
        elif not line.strip():
            blocks.append({})
        elif "=" in line:
            key, _, value = line.partition("=")
            blocks[-1].setdefault(key, value)
        else:
            probe.unreadable("units", line)
    services: dict[str, Service] = {}
    commands: dict[str, tuple[str, ...]] = {}
    starts: dict[str, tuple[str, ...]] = {}
    reloads: dict[str, bool] = {}
    for block in blocks:
        if "Id" not in block or block.get("LoadState") == "not-found":
            continue
        name = block["Id"].removesuffix(".service")
        services[name] = Service(
            name=name,
            active=block.get("ActiveState", ""),
            enabled=block.get("UnitFileState", "") or "masked" * (block.get("LoadState") == "masked"),
            memlock=_UNLIMITED.get(block.get("LimitMEMLOCK", ""), block.get("LimitMEMLOCK", "")),
            locked=locked.get(block.get("MainPID", ""), ""),
        )
        start = _ARGV.search(block.get("ExecStart", ""))
        starts[name] = tuple(start[1].split()) if start else ()
        commands[name] = processes.get(block.get("MainPID", ""), starts[name])
        if block.get("MainPID", "0") != "0":
            reloads[name] = block.get("CanReload") == "yes"
    daemons = tuple(processes.values())
    return Units(services=services, commands=commands, starts=starts, processes=daemons, reloads=reloads)


def read_runtimes(probe: Probe, units: Units) -> tuple[Runtime, ...]:
    """The engines whose daemon binary is on the node."""
    sockets = probe.values("runtimes", "socket")
    found = []
    for called, binary, version in programs(probe, "binary"):
        name = next((one for one in ENGINES if one == called), None)
        if name is None:
            continue
        row = ROWS[name]
        unit = row.snap if row.snap and binary.startswith("/snap/") else row.unit
        service = units.services.get(unit, Service(name=unit))
        processes = (args for args in units.processes if args and posixpath.basename(args[0]) == row.daemon)
        command = units.commands.get(unit) or next(processes, ())
        flags = command[1:]
        stated = probe.value("files", "docker_config") if name == "docker" else ""
        found.append(
            Runtime(
                name=name,
                version=version,
                binary=binary,
                unit="" if not service.active else unit if unit.endswith(".socket") else f"{unit}.service",
                active=service.runs or (not service.active and bool(command)),
                enabled=service.at_boot,
                flags=flags,
                socket=next((s for s in row.sockets if s in sockets), ""),
                config=flag_value(flags, *row.config_flags) or stated or row.config,
                effective_error=_error(probe, name),
            )
        )
    return tuple(found)


def programs(probe: Probe, word: str) -> list[tuple[str, str, str]]:
    """(name, path, version) out of `WORD NAME PATH`, which is binary or bundled, and the --version output after it."""
    found: list[tuple[str, str, str]] = []
    asked = False
    for line in probe.lines("runtimes"):
        first, _, rest = line.partition(" ")
        if first in ("binary", "bundled", "socket", "config", "rendered"):
            name, _, path = rest.partition(" ")
            asked = first == word and bool(path)
            found += [(name, path.strip(), "")] if asked else []
        elif asked and not found[-1][2] and "level=" not in line and (match := DOTTED.search(line)):
            found[-1] = (*found[-1][:2], match[1])
    return found


def text_of(files: Mapping[str, ConfigFile], path: str) -> str:
    data = files[path].data if path in files else None
    return data.decode("utf-8", "replace") if data else ""


def _error(probe: Probe, name: RuntimeName) -> str:
    """What `containerd config dump`, or `dockerd --validate` of 23.0 and later, said when it failed."""
    lines, failed = probe.answer(f"{name}_check")
    silent = ("unknown flag: --validate", "permission denied")  # of 20.10; of who may not read the file
    if not failed.isdecimal() or any(one in line for line in lines for one in silent):
        return ""
    stated = [line.strip() for line in lines if "level=" not in line and line.strip()]
    said = stated[-1] if stated else f"exit code {failed}"
    return said.partition("Docker daemon with file ")[2].partition(": ")[2] or said.removeprefix("containerd: ")


# ---------------------------------------------------------------- what runs in them, and the devices it has


def read_cdi(probe: Probe, files: Mapping[str, ConfigFile]) -> Cdi:
    """`gpu MINOR UUID` and `mig MINOR COUNT` lines, `missing PATH` lines, and the files in the folders of CDI."""
    migs = dict(line.split()[:2] for line in probe.values("cdi", "mig") if len(line.split()) == 2)
    gpus = []
    for line in probe.values("cdi", "gpu"):
        minor, _, uuid = line.partition(" ")
        if not minor.isdecimal() or not migs.get(minor, "0").isdecimal():
            probe.unreadable("cdi", line)
            continue
        gpus.append(CdiGpu(minor=whole(minor), uuid=stated(uuid), mig_devices=whole(migs.get(minor, "0"))))
    paths = sorted(path for path in files if posixpath.dirname(path) in FOLDERS and path.endswith((".yaml", ".json")))
    specs = tuple(_spec(files[path]) for path in paths)
    return Cdi(specs=specs, gpus=tuple(gpus), missing=tuple(probe.values("cdi", "missing")))


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
    """`container ID NAME UNIT MODE STATE DEVICE,DEVICE…[ reloaded]` lines → containers, by name; others: notes."""
    found = []
    for key, rest in probe.pairs("gpu_containers"):
        words = rest.split()
        whole_line = len(words) == 6 or words[6:] == ["reloaded"]
        if key == "container" and whole_line and words[4] in get_args(GpuState):
            identity, name, unit, mode, state, devices = words[:6]
            found.append(
                GpuContainer(
                    name=name,
                    id=identity,
                    unit=unit.removeprefix("-"),
                    hook=mode == "hook",
                    state=cast(GpuState, state),
                    devices=tuple(devices.split(",")),
                    reloaded=len(words) > 6,
                )
            )
        elif key not in ("linked", "unlinked"):
            probe.unreadable("gpu_containers", f"{key} {rest}")
    return tuple(sorted(found, key=lambda container: (container.name, container.id)))


def read_containers(probe: Probe, units: Units) -> dict[str, Running]:
    """Engine → what runs in it; the engines of Kubernetes distributions by the distribution's name (k3s is RKE2's too).

    Whether dockerd knows NVIDIA's hook follows from times in whole seconds: it looks for it when it starts.
    """
    docker = ROWS["docker"]
    reloads = next((can for name, can in units.reloads.items() if name in (docker.unit, docker.snap)), False)
    stated: dict[str, dict[str, list[str]]] = {}
    for engine, key, value in _of_engines(probe):
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
            runtimes=tuple(values.get("runtimes", [""])[-1].split()),
            knows_hook=started is not None and hook is not None and hook + 1 < started,
            reloads=engine == "docker" and reloads,
        )
    probe.notes += [
        f"containers: user {user} runs a rootless Docker, whose containers gpunode does not see"
        for user in rootless_users(probe)
    ]
    return found


def rootless_users(probe: Probe) -> list[str]:
    """The ids of users with a Docker of their own that does not run as root."""
    return [value for engine, key, value in _of_engines(probe) if (engine, key) == ("docker", "rootless")]


def _of_engines(probe: Probe) -> Iterator[tuple[str, str, str]]:
    """`ENGINE KEY VALUE` lines."""
    for engine, rest in probe.pairs("containers"):
        key, _, value = rest.partition(" ")
        yield engine, key, value


def _number(values: dict[str, list[str]], *keys: str) -> int | None:
    """The largest number said, None when there is none."""
    texts = [text for key in keys for text in values.get(key, ())]
    return max((int(text) for text in texts if text.isdecimal() and len(text) < 16), default=None)
