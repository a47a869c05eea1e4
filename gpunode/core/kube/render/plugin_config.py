"""The configuration file of NVIDIA's device plugin and GPU Feature Discovery (api/config/v1 of k8s-device-plugin).

The plugin ignores unknown keys, and mps beside timeSlicing, without a word; so the file is checked here, strictly.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpunode.core.kube.cluster import Pool
from gpunode.core.kube.plain import mapping, mappings
from gpunode.core.model import Problem
from gpunode.core.sharing.rules import mig_profiles, sharing_problems
from gpunode.core.spec.kubernetes import DevicePluginSpec, SharingSpec

MPS_ROOT = "/run/nvidia/mps"
MAX_NAME = 63
_IGNORED = "the plugin passes over it (DisableResourceNamingInConfig in api/config/v1/config.go)"

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


def shared_resources(sharing: SharingSpec) -> tuple[str, ...]:
    """What the shares are shares of; the plugin spells + of a profile as a dot (internal/rm/rm.go)."""
    if mig_strategy(sharing) != "mixed":
        return ("nvidia.com/gpu",)
    return tuple(f"nvidia.com/mig-{profile.replace('+', '.')}" for profile in mig_profiles(sharing))


def check_sharing(pool: Pool) -> Iterator[Problem]:
    """What of a pool's `sharing` cannot work, whatever its GPUs are."""
    yield from sharing_problems(pool.sharing, f"pool {pool.name}: sharing")


# ---------------------------------------------------------------- strict validation


def check_plugin_config(data: Any) -> list[Problem]:
    """All that is wrong in a plugin configuration (plain data): unknown keys, types, values, what excludes what."""
    if not isinstance(data, Mapping):
        return [Problem(what=f"the plugin's configuration is {data!r}", fix="write a mapping that begins version: v1")]
    problems = list(_check(data, _SCHEMA, ""))
    if "version" not in data:
        problems.insert(0, Problem(what="version is missing", fix="write version: v1"))
    return [*problems, *_together(data)]


def _together(data: Mapping[str, Any]) -> Iterator[Problem]:
    """What each key may say, and both may not."""
    sharing, strategy = mapping(data, "sharing"), mapping(data, "flags").get("migStrategy")
    if sharing.get("mps") and sharing.get("timeSlicing"):
        yield Problem(
            what="sharing has timeSlicing and mps: the plugin takes mps and says nothing", fix="remove one of them"
        )
    if sharing.get("mps") and strategy == "mixed":
        yield Problem(
            what="sharing.mps with flags.migStrategy mixed: the plugin refuses it", fix="use timeSlicing with MIG"
        )
    for kind in ("timeSlicing", "mps"):
        shared = mapping(sharing, kind)
        for number, one in enumerate(mappings(shared, "resources")):
            wanted = f"{one.get('name')}.shared" if shared.get("renameByDefault") is True else None
            if one.get("rename", wanted) != wanted:
                yield Problem(
                    what=f"sharing.{kind}.resources[{number}].rename is {one['rename']!r}",
                    fix=f"use renameByDefault, and no rename: {_IGNORED}",
                )


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
    return "" if value == "all" else f"write all, or remove it: {_IGNORED}"


def _nothing(value: Any) -> str:
    return "" if not value else f"remove it: {_IGNORED}"


def _duration(value: Any) -> str:
    right = isinstance(value, str) and re.fullmatch(r"(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+", value)
    return "" if right else "write a duration such as 60s"


def _channels(value: Any) -> str:
    return "" if value in ([], [0]) else "write [] or [0]"


_BOOL, _TEXT = _is(bool, "true or false"), _is(str, "a text")


def _shared(name: Check) -> Mapping[str, Any]:
    resource = {"name": name, "rename": resource_name, "devices": _devices, "replicas": _replicas}
    return {"renameByDefault": _BOOL, "failRequestsGreaterThanOne": _BOOL, "resources": [resource]}


_REQUIRED = {
    "timeSlicing": ("resources",),
    "mps": ("resources",),
    "resources": ("name", "replicas"),
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
    "resources": _nothing,
    "sharing": {"timeSlicing": _shared(resource_name), "mps": _shared(_mps_name)},
    "imex": {"channelIDs": _channels, "required": _BOOL},
}
