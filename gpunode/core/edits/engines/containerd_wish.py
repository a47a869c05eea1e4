"""What the CRI plugin's settings lack, so that containerd knows the nvidia runtime: paths below the plugin's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpunode.core.edits.engines.containerd_files import Config
from gpunode.core.edits.request import Refusal, RuntimeRequest
from gpunode.core.edits.text import toml
from gpunode.core.numbers import release

SOURCE = "containerd docs/cri/config.md"
RUNC = "io.containerd.runc.v2"
RUNTIMES: toml.Path = ("containerd", "runtimes")
DEFAULT: toml.Path = ("containerd", "default_runtime_name")
_LINUX = "io.containerd.runtime.v1.linux"
# what belongs to one runtime alone, or what containerd 2 no longer knows
_OWN = {"runtime_type", "runtime_root", "runtime_engine", "runtime_path", "options", "sandboxer", "sandbox_mode"}
_OF_LINUX = ("runtime_engine", "runtime_root")  # 1.x does not load the CRI plugin when another type has them
_BUILT_IN_OPTIONS: dict[str, Any] = {
    "BinaryName": "",
    "CriuImagePath": "",
    "CriuPath": "",
    "CriuWorkPath": "",
    "IoGid": 0,
    "IoUid": 0,
    "NoNewKeyring": False,
    "NoPivotRoot": False,
    "Root": "",
    "ShimCgroup": "",
    "SystemdCgroup": False,
}


@dataclass(frozen=True)
class Wish:
    """What to set and to remove below the CRI plugin's table; empty when all is as it should be."""

    sets: Mapping[toml.Path, Any] = field(default_factory=dict)
    removes: tuple[toml.Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sets or self.removes)

    @property
    def paths(self) -> tuple[toml.Path, ...]:
        return (*self.sets, *self.removes)


def built_in_runc(config: Config) -> dict[str, Any]:
    """The runc table that 1.x has as long as no file has a table of runtimes, as its `config default` prints it."""
    mode = {"sandbox_mode": "podsandbox"} if config.daemon == (1, 7) else {}
    return {"runtime_type": RUNC, **mode, "options": dict(_BUILT_IN_OPTIONS)}


def runtimes_in_force(config: Config) -> dict[str, Any]:
    """All runtimes, with the built-in runc: 1.x has it while there is no table of runtimes, 2.x always."""
    said = toml.lookup(config.cri, RUNTIMES)
    if config.merges or said is None:
        return {"runc": {}, **(said or {})}
    return dict(said)


def default_in_force(config: Config) -> str:
    return toml.lookup(config.cri, DEFAULT) or "runc"


def wish(config: Config, request: RuntimeRequest) -> Wish:
    """What differs between what is in force and what is asked for."""
    said = toml.lookup(config.cri, RUNTIMES) or {}
    default = default_in_force(config)
    wanted = {"nvidia": request.name, "runc": "runc", "keep": default}[request.default_runtime]
    _check_old_keys(config, default, wanted)
    sets: dict[toml.Path, Any] = {DEFAULT: wanted} if default != wanted else {}
    runc = dict(said.get("runc", {}))
    if not config.merges and "runc" not in said and (not said or "runc" in (default, wanted)):
        runc = built_in_runc(config)
        sets[(*RUNTIMES, "runc")] = runc
    if request.cgroup_driver and (runc or config.merges) and _is_runc(runc):
        systemd = request.cgroup_driver == "systemd"
        if bool(_systemd(runc)) is not systemd:
            sets |= _runc_option(sets, runc, systemd)
        runc = {**runc, "options": {**runc.get("options", {}), "SystemdCgroup": systemd}}
    inherits = said.get(default, {}) if default not in ("runc", request.name) else runc
    if not _is_runc(inherits):
        inherits = runc if _is_runc(runc) else {}
    have = said.get(request.name)
    sets |= _nvidia(have, inherits, request)
    stale = [] if config.merges else [(*RUNTIMES, request.name, key) for key in _OF_LINUX if (have or {}).get(key)]
    return Wish(sets | _cdi(config.cri, request), tuple(stale))


def _runc_option(sets: Mapping[toml.Path, Any], runc: Mapping[str, Any], systemd: bool) -> dict[toml.Path, Any]:
    at = (*RUNTIMES, "runc")
    if at in sets:  # one table, not a table and a key in it
        return {at: {**runc, "options": {**runc["options"], "SystemdCgroup": systemd}}}
    return {(*at, "options", "SystemdCgroup"): systemd}


def _check_old_keys(config: Config, default: str, wanted: str) -> None:
    """Raise Refusal where keys of containerd 1.x overrule the default, or forbid another one."""
    if config.merges or default == wanted:
        return
    section = config.cri.get("containerd", {})
    if section.get("default_runtime", {}).get("runtime_type"):
        raise Refusal(
            "containerd.default_runtime is a table with a runtime_type: it overrules default_runtime_name",
            "name that runtime in containerd.runtimes and containerd.default_runtime_name, and remove the table",
        )
    old = [key for key, table in (("systemd_cgroup", config.cri), ("no_pivot", section)) if table.get(key)]
    if old and runtimes_in_force(config).get(default, {}).get("runtime_type") == _LINUX:
        raise Refusal(
            f"{old[0]} = true works with a default runtime of the type {_LINUX} alone",
            f"remove {old[0]}; SystemdCgroup and NoPivotRoot in the options of a runtime take its place",
        )


def _systemd(runtime: Mapping[str, Any]) -> bool | None:
    """What a runtime says of its cgroup driver, None when it says nothing."""
    said: bool | None = runtime.get("options", {}).get("SystemdCgroup")
    return said


def _is_runc(runtime: Mapping[str, Any]) -> bool:
    return str(runtime.get("runtime_type") or RUNC).startswith("io.containerd.runc.")


def _nvidia(
    have: Mapping[str, Any] | None, inherits: Mapping[str, Any], request: RuntimeRequest
) -> dict[toml.Path, Any]:
    """The runtime's own table: new ones inherit what runc was given, of present ones only ours is set right."""
    wanted: dict[toml.Path, Any] = {("runtime_type",): RUNC}
    options = inherits.get("options", {})
    if have is None:
        wanted[("privileged_without_host_devices",)] = False
        wanted |= {(k,): v for k, v in inherits.items() if k not in _OWN and v not in ("", 0, [], {})}
        wanted |= {("options", k): v for k, v in options.items() if v not in ("", 0, []) and k != "BinaryName"}
    wanted[("options", "BinaryName")] = request.path
    systemd = request.cgroup_driver == "systemd" if request.cgroup_driver else options.get("SystemdCgroup")
    # unasked, a present runtime is not taken from systemd: it may be the one in use, and runc's table the stock one
    wrong = systemd is not bool(_systemd(have or {})) and bool(systemd or request.cgroup_driver)
    if systemd is not None and (have is None or wrong):
        wanted[("options", "SystemdCgroup")] = systemd
    at = (*RUNTIMES, request.name)
    return {(*at, *path): value for path, value in wanted.items() if toml.lookup(have or {}, path) != value}


def _cdi(cri: Mapping[str, Any], request: RuntimeRequest) -> dict[toml.Path, Any]:
    """enable_cdi: unknown to 1.6, false by default in 1.7, true from 2.0."""
    if request.cdi is None:
        return {}
    number = release(request.version)
    if (0, 0) < number < (1, 7):
        if not request.cdi:
            return {}
        raise Refusal(f"containerd {request.version} has no CDI", "install containerd 1.7 or later, or leave cdi out")
    if bool(cri.get("enable_cdi", number >= (2, 0))) is request.cdi:
        return {}
    return {("enable_cdi",): request.cdi}
