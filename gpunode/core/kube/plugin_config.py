"""The configuration file of NVIDIA's device plugin and GPU Feature Discovery (api/config/v1 of k8s-device-plugin).

The plugin ignores unknown keys, and mps beside timeSlicing, without a word; so the file is checked here, strictly.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpunode.core.kube.cluster import Pool
from gpunode.core.model import Problem
from gpunode.core.spec_kube import DevicePluginSpec, SharingSpec

MPS_ROOT = "/run/nvidia/mps"
MAX_CLIENTS = 48  # of one GPU under MPS, Volta and newer: https://docs.nvidia.com/deploy/mps/
MAX_NAME = 63

Check = Callable[[Any], str]  # what is wrong with a value, "" for nothing


def plugin_config(sharing: SharingSpec, plugin: DevicePluginSpec) -> dict[str, Any]:
    """The file for nodes that share so."""
    config: dict[str, Any] = {
        "version": "v1",
        "flags": {
            "migStrategy": mig_strategy(sharing),
            "failOnInitError": plugin.fail_on_init_error,
            "plugin": {
                "passDeviceSpecs": plugin.pass_device_specs,
                "deviceListStrategy": list(plugin.device_list_strategy),
                "deviceIDStrategy": plugin.device_id_strategy,
            },
        },
    }
    if sharing.strategy in ("time-slicing", "mps"):
        shared = {
            "renameByDefault": sharing.rename_by_default,
            "failRequestsGreaterThanOne": sharing.fail_requests_greater_than_one,
            "resources": [{"name": name, "replicas": sharing.replicas} for name in shared_resources(sharing)],
        }
        config["sharing"] = {"timeSlicing" if sharing.strategy == "time-slicing" else "mps": shared}
    return config


def mig_strategy(sharing: SharingSpec) -> str:
    """none where no GPU is cut."""
    cut = sharing.strategy == "mig" or (sharing.strategy == "time-slicing" and mig_profiles(sharing))
    return sharing.mig.strategy if cut else "none"


def mig_profiles(sharing: SharingSpec) -> tuple[str, ...]:
    """All profiles that the spec names, each once."""
    layouts = (sharing.mig.profiles, *sharing.mig.gpus.values())
    return tuple(dict.fromkeys(profile for layout in layouts for profile in layout))


def shared_resources(sharing: SharingSpec) -> tuple[str, ...]:
    """What the shares are shares of; the plugin spells + of a profile as a dot (internal/rm/rm.go)."""
    if mig_strategy(sharing) != "mixed":
        return ("nvidia.com/gpu",)
    return tuple(f"nvidia.com/mig-{profile.replace('+', '.')}" for profile in mig_profiles(sharing))


def check_sharing(pool: Pool) -> Iterator[Problem]:
    """What of a pool's `sharing` cannot work, whatever its GPUs are."""
    sharing, where = pool.sharing, f"pool {pool.name}: sharing"
    profiles = mig_profiles(sharing)
    shared = sharing.strategy in ("time-slicing", "mps")
    if shared and sharing.replicas < 2:
        yield Problem(
            what=f"{where}.replicas is {sharing.replicas} with {sharing.strategy}",
            fix="set it to 2 or more; strategy: none is for whole GPUs",
        )
    if sharing.strategy == "mps" and sharing.replicas > MAX_CLIENTS:
        yield Problem(
            what=f"{where}.replicas is {sharing.replicas}; a GPU has at most {MAX_CLIENTS} MPS clients",
            fix=f"set it to {MAX_CLIENTS} or less",
        )
    if not shared and sharing.replicas:
        yield Problem(
            what=f"{where}.replicas is {sharing.replicas}, and strategy {sharing.strategy} has no replicas",
            fix="remove it, or choose strategy: time-slicing or mps",
        )
    if not shared and sharing.rename_by_default:
        yield Problem(
            what=f"{where}.rename_by_default is true, and strategy {sharing.strategy} renames nothing",
            fix="remove it, or choose strategy: time-slicing or mps",
        )
    if profiles and sharing.strategy not in ("mig", "time-slicing"):
        why = "MPS does not work on MIG instances" if sharing.strategy == "mps" else "it cuts no GPU"
        yield Problem(
            what=f"{where} has MIG profiles with strategy {sharing.strategy}: {why}",
            fix="choose strategy: mig, or time-slicing to share the instances; else remove sharing.mig",
        )
    if sharing.mig.strategy == "single" and len(profiles) > 1 and sharing.strategy in ("mig", "time-slicing"):
        yield Problem(
            what=f"{where}.mig has {len(profiles)} profiles ({', '.join(profiles)}) with mig.strategy single",
            fix="set sharing.mig.strategy: mixed; with single all instances of a node must be alike",
        )
    for profile in profiles:
        if not re.fullmatch(r"(\dc\.)?\dg\.\d+gb([+-][a-z.]+)?", profile):
            yield Problem(what=f"{where}.mig names the profile {profile!r}", fix="write it as 1g.10gb or 1g.10gb+me")


# ---------------------------------------------------------------- strict validation


def check_plugin_config(data: Any) -> list[Problem]:
    """All that is wrong in a plugin configuration (plain data): unknown keys, types, values, what excludes what."""
    if not isinstance(data, Mapping):
        return [Problem(what=f"the plugin's configuration is {data!r}", fix="write a mapping that begins version: v1")]
    problems = list(_check(data, _SCHEMA, ""))
    if "version" not in data:
        problems.insert(0, Problem(what="version is missing", fix="write version: v1"))
    sharing, flags = data.get("sharing"), data.get("flags")
    if not isinstance(sharing, Mapping):
        return problems
    if sharing.get("mps") and sharing.get("timeSlicing"):
        problems.append(
            Problem(
                what="sharing has timeSlicing and mps: the plugin takes mps and says nothing", fix="remove one of them"
            )
        )
    if sharing.get("mps") and isinstance(flags, Mapping) and flags.get("migStrategy") == "mixed":
        problems.append(
            Problem(
                what="sharing.mps with flags.migStrategy mixed: the plugin refuses it", fix="use timeSlicing with MIG"
            )
        )
    return problems


def _check(value: Any, schema: Any, path: str) -> Iterator[Problem]:
    spot = path or "the configuration"
    if isinstance(schema, Mapping):
        if not isinstance(value, Mapping):
            yield Problem(what=f"{spot} is {value!r}", fix="write a mapping")
            return
        for key, inner in value.items():
            if key in schema:
                yield from _check(inner, schema[key], f"{path}.{key}" if path else str(key))
                continue
            near = difflib.get_close_matches(str(key), schema, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(schema)}"
            yield Problem(what=f"{spot} has the unknown key {key!r}, which the plugin ignores", fix=hint)
        for key in _REQUIRED.get(path.rpartition(".")[2].partition("[")[0], ()):
            if key not in value:
                yield Problem(what=f"{spot} has no {key}", fix=f"add {key}")
    elif isinstance(schema, list):
        if not isinstance(value, list):
            yield Problem(what=f"{spot} is {value!r}", fix="write a list")
            return
        if not value and path.endswith("resources"):
            yield Problem(what=f"{spot} is empty", fix="name a resource, such as nvidia.com/gpu")
        for number, inner in enumerate(value):
            yield from _check(inner, schema[0], f"{path}[{number}]")
    elif wrong := schema(value):
        yield Problem(what=f"{spot} is {value!r}", fix=wrong)


def _is(kind: type, word: str) -> Check:
    def check(value: Any) -> str:
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        return "" if right else f"write {word}"

    return check


def _one_of(*words: str) -> Check:
    return lambda value: "" if value in words else f"write one of {', '.join(words)}"


def _list_strategy(value: Any) -> str:
    known = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
    right = value in known if isinstance(value, str) else isinstance(value, list) and value and set(value) <= set(known)
    return "" if right else f"write one or several of {', '.join(known)}"


def _replicas(value: Any) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) and value >= 2 else "write 2 or more"


def resource_name(value: Any) -> str:
    """What is wrong with the name of a resource: api/config/v1/resources.go."""
    if not isinstance(value, str):
        return "write a text"
    full = value if value.startswith("nvidia.com/") else f"nvidia.com/{value}"
    if len(full) > MAX_NAME:
        return f"shorten it to {MAX_NAME} characters, nvidia.com/ included"
    name = full.removeprefix("nvidia.com/")
    right = re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name)
    return "" if right else "write small letters, digits, - and ."


def _mps_name(value: Any) -> str:
    return resource_name(value) or ("" if value in ("nvidia.com/gpu", "gpu") else "MPS shares nvidia.com/gpu only")


def _devices(value: Any) -> str:
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return ""
    reference = re.compile(r"\d+(:\d+)?|(GPU|MIG)-[0-9a-fA-F-]{36}|MIG-GPU-[0-9a-fA-F-]{36}/\d+/\d+")
    listed = isinstance(value, list) and value and all(reference.fullmatch(str(item)) for item in value)
    return "" if listed else "write all, a count, or a list of indices and UUIDs"


def _duration(value: Any) -> str:
    right = isinstance(value, str) and re.fullmatch(r"(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+", value)
    return "" if right else "write a duration such as 60s"


def _channels(value: Any) -> str:
    return "" if value in ([], [0]) else "write [] or [0]"


_BOOL, _TEXT = _is(bool, "true or false"), _is(str, "a text")


def _shared(name: Check) -> Mapping[str, Any]:
    resource = {"name": name, "rename": resource_name, "devices": _devices, "replicas": _replicas}
    return {"renameByDefault": _BOOL, "failRequestsGreaterThanOne": _BOOL, "resources": [resource]}


_PATTERNS = [{"pattern": _TEXT, "name": resource_name}]
_REQUIRED = {
    "timeSlicing": ("resources",),
    "mps": ("resources",),
    "resources": ("name", "replicas"),
    "gpus": ("pattern", "name"),
    "mig": ("pattern", "name"),
}
_SCHEMA: Mapping[str, Any] = {
    "version": _one_of("v1"),
    "flags": {
        "migStrategy": _one_of("none", "single", "mixed"),
        "failOnInitError": _BOOL,
        "mpsRoot": _TEXT,
        "nvidiaDriverRoot": _TEXT,
        "nvidiaDevRoot": _TEXT,
        "gdrcopyEnabled": _BOOL,
        "gdsEnabled": _BOOL,
        "mofedEnabled": _BOOL,
        "useNodeFeatureAPI": _BOOL,
        "deviceDiscoveryStrategy": _one_of("auto", "nvml", "tegra"),
        "plugin": {
            "passDeviceSpecs": _BOOL,
            "deviceListStrategy": _list_strategy,
            "deviceIDStrategy": _one_of("uuid", "index"),
            "cdiAnnotationPrefix": _TEXT,
            "nvidiaCTKPath": _TEXT,
            "containerDriverRoot": _TEXT,
            "sharedDevicesAllocationPolicy": _one_of("distributed", "packed"),
        },
        "gfd": {
            "oneshot": _BOOL,
            "noTimestamp": _BOOL,
            "sleepInterval": _duration,
            "outputFile": _TEXT,
            "machineTypeFile": _TEXT,
        },
    },
    "resources": {"gpus": _PATTERNS, "mig": _PATTERNS},
    "sharing": {"timeSlicing": _shared(resource_name), "mps": _shared(_mps_name)},
    "imex": {"channelIDs": _channels, "required": _BOOL},
}
