"""Probe text → NodeFacts, and what can be done with facts as a whole."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from gpunode.core.errors import InputError, RefusedError
from gpunode.core.facts import driver, engines, links, machine
from gpunode.core.facts.kubelet import kubelets_first
from gpunode.core.facts.kubernetes import read_bundled, read_kubernetes
from gpunode.core.facts.text import Probe, split_probe
from gpunode.core.facts.vet import defaults, vetted
from gpunode.core.late import regex
from gpunode.core.mask import mask
from gpunode.core.model import ConfigFile, DriverState, NodeFacts
from gpunode.core.model.node import volatile_fields
from gpunode.core.numbers import version_tuple, whole

if TYPE_CHECKING:
    from cattrs import Converter


def facts_to_data(facts: NodeFacts, *, brief: bool = False) -> dict[str, Any]:
    """Facts as dict, list, str, int, bool and None only; `brief` leaves out what has its default value."""
    return cast(dict[str, Any], _plain(facts, brief))


def _plain(value: Any, brief: bool) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {key: _plain(one, brief) for key, one in value.items()}
    if not hasattr(value, "__dict__"):
        return [_plain(one, brief) for one in value]
    own, every = vars(value), defaults(cast(Any, type(value))).items()
    kept = {name: own[name] for name, usual in every if not (brief and own[name] == usual)}
    return {name: one if isinstance(one, str) else _plain(one, brief) for name, one in kept.items()}


@functools.cache
def _converter() -> Converter:
    from cattrs.preconf.json import make_converter  # slow to import

    converter = make_converter()
    converter.register_structure_hook(bytes, lambda text, _: base64.b64decode(text, validate=True))
    return converter


def read_facts(data: Any) -> NodeFacts:
    """The facts in plain data, not vetted yet.  Raises InputError."""
    try:
        return _converter().structure(data, NodeFacts)
    except Exception as error:
        raise InputError(
            f"these are no facts: {error}", expected="what gpunode detect --format json printed for one host"
        ) from error


VOLATILE = volatile_fields(NodeFacts)
VOLATILE_DRIVER = volatile_fields(DriverState)

# sections without which steps would be planned for things that are there: each probe of a whole node has them
ALWAYS = ("pci", "kernels", "driver", "toolkit", "units", "runtimes", "packages", "holds", "journal", "files")
# those of which a part is as bad: what comes behind it would be taken for absent
WHOLE = ("kernels", "packages", "units")
# sections that may have no line: where they said all, there is none
_MAY_BE_EMPTY = ("cdi", "files", "gpu_containers", "nvlink", "sharing", "xids")

_META = regex(r"([0-7]{1,5}) (\S+) (\d{1,15})\Z")
_CUDA_FOLDER = regex(r"/cuda-(\d{1,4}\.\d{1,4})/?\Z")
_VERSION = regex(r"\b(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)")
_TOOLKIT = regex(r"version:? v?(\d{1,4}\.\d{1,4}\.\d{1,4}(?:[-~][\w.]+)?)", re.IGNORECASE)


def parse_probe(text: str, *, of_node: bool = False) -> NodeFacts:
    """The facts in a probe text (docs/probe.md).

    Content that is not understood becomes a note; a value that its grammar does not allow is no fact, as vet.py says.
    Raises InputError only when the text is no probe, one of another format, or was cut off; with `of_node`, which asks
    for more than some sections, RefusedError where it lacks what every Linux has.
    """
    probe = split_probe(text)
    basics = {"os-release": probe.lines("os_release"), "kernel": probe.value("system", "kernel")}
    lacking = [*(f"section {name}" for name in ALWAYS if name not in probe.sections)]
    lacking += [name for name, found in basics.items() if not found]
    lacking += [f"whole section {name} (it took over {s} s)" for name in WHOLE for s in probe.values(name, "cut")]
    if of_node and lacking:
        raise RefusedError(
            f"the probe does not say all of this machine: no {', no '.join(lacking)}",
            expected="what a Linux has; what was not read may be there all the same",
            fix="probe again: gpunode detect HOST --save DIR keeps what the node sends",
        )
    init = "systemd" if probe.value("system", "init") == "systemd" else "other" if "system" in probe.sections else ""
    arch = probe.value("system", "machine")
    virtualization, container = machine.read_virtualization(probe, init)
    gpus, nvswitches, fabric = machine.read_devices(probe)
    tegra, board = machine.read_board(probe)
    nvml, smi = driver.read_nvml(probe)
    files = {path: _file(probe, path, lines) for path, lines in probe.files.items()}
    units = engines.read_units(probe)
    manager, packages, broken = machine.read_packages(probe, arch)
    cuda, cuda_default = _cuda(probe)
    kubernetes = read_kubernetes(probe, units, files)
    runtimes = (*engines.read_runtimes(probe, units), *read_bundled(probe, units, kubernetes))
    facts = {
        "hostname": probe.value("system", "hostname"),
        "arch": arch,
        "distro": machine.read_distro(probe),
        "boot_id": probe.value("system", "boot_id"),
        "init": init,
        "cgroups2": "/sys/fs/cgroup/cgroup.controllers" in probe.values("system", "exists"),
        "virtualization": virtualization,
        "container": container,
        "tegra": tegra,
        "board": board,
        "secure_boot": machine.read_secure_boot(probe),
        "user": probe.value("system", "user"),
        "root": probe.value("system", "uid") == "0",
        "kernels": machine.read_kernels(probe),
        "gpus": driver.with_virtual(gpus, nvml),
        "nvswitches": nvswitches,
        "nvlink5_fabric": fabric,
        "nvml": driver.with_nvlinks(nvml, probe),
        "driver": driver.read_driver(probe, smi, nvml),
        "cuda": cuda,
        "cuda_default": cuda_default,
        "toolkit": _toolkit(probe),
        "runtimes": kubelets_first(runtimes, kubernetes),
        "containers": engines.read_containers(probe, units),
        "rootless_docker": tuple(engines.rootless_users(probe)),
        "kubernetes": kubernetes,
        "package_manager": manager,
        "packages": packages,
        "broken_packages": broken,
        "lost_programs": dict(found.partition(" ")[::2] for found in probe.values("packages", "lost")),
        "package_lock": machine.read_package_lock(probe),
        "lease": next((line.removeprefix("lease ") for line in probe.lines("locks") if line.startswith("lease ")), ""),
        "services": {**units.services, **dict(driver.read_sharing_units(probe))},
        "modules": tuple(dict.fromkeys(text.partition(" ")[0] for text in probe.values("driver", "module"))),
        "sysctl": {key: " ".join(value.split()) for key, value in probe.pairs("sysctl")},
        "files": files,
        "device_nodes": engines.read_device_nodes(probe),
        "gpu_containers": engines.read_gpu_containers(probe),
        "cdi": engines.read_cdi(probe, files),
        "xids": driver.read_xids(probe),
        "not_started": driver.read_not_started(probe),
        "kernel_faults": driver.read_kernel_faults(probe),
        "nvlink_inactive": driver.read_nvlink(probe),
        "topology": driver.read_topology(probe),
        "pcie": links.read_pcie(probe),
        "rdma": links.read_rdma(probe),
        "hidden": tuple(probe.values("links", "hidden")),
        "tuning": links.read_tuning(probe),
        "first_boot": machine.read_first_boot(probe),
        "sharing": driver.read_sharing(probe),
        "unfinished": machine.unfinished(probe.pairs("journal")),
        "state_blocked": bool(probe.values("journal", "blocked")),
        "unread": tuple(name for name in _MAY_BE_EMPTY if not probe.answered(name)),
    }
    found = NodeFacts(**facts, denied=tuple(dict.fromkeys(probe.denied)), notes=tuple(probe.notes))  # type: ignore[arg-type]  # values of the fields' own types
    return vetted(found)


def facts_from_data(data: Any) -> NodeFacts:
    """The inverse of facts_to_data; missing keys get their defaults.  Raises InputError."""
    return vetted(read_facts(data))


def _file(probe: Probe, path: str, lines: list[str]) -> ConfigFile:
    """`MODE OWNER SIZE`, `-> TARGET` of a link, `sha256 HEX` of bytes that are not sent, `irregular`, then base64."""
    meta = None
    target = sha256 = ""
    regular = True
    body = []
    for line in lines:
        if match := _META.match(line):
            meta = match
        elif line.startswith("-> "):
            target = line[3:]
        elif line.startswith("sha256 "):
            sha256 = line[7:]
        elif line == "irregular":
            regular = False
        else:
            body.append(line)
    name = f"file {path}"
    if not meta:
        if not target:
            probe.notes.append(f"{name}: no mode, owner and size")
        return ConfigFile(path=path, target=target, mode=0, owner="")
    size = whole(meta[3])
    data: bytes | None = None
    if name not in probe.remarks:
        try:
            data = base64.b64decode("".join(body), validate=True)
        except (binascii.Error, ValueError):
            probe.notes.append(f"{name}: not base64")
    if data is not None and len(data) != size:
        probe.notes.append(f"{name}: {len(data)} of {size} bytes: it changed while it was read")
        data = None
    if data is not None:
        sha256 = hashlib.sha256(data).hexdigest()
    return ConfigFile(
        path=path,
        sha256=sha256,
        mode=int(meta[1], 8),
        owner=meta[2],
        size=size,
        data=data,
        target=target,
        regular=regular,
    )


def _cuda(probe: Probe) -> tuple[tuple[str, ...], str]:
    """(versions of the toolkits on disk, the version /usr/local/cuda leads to)."""
    versions: dict[str, str] = {}
    folder = ""
    for key, rest in probe.pairs("cuda"):
        if key == "folder":
            folder = rest
            match = _CUDA_FOLDER.search(folder)
            versions[folder] = match[1] if match else ""
        elif key == "version" and folder and not versions[folder] and (match := _VERSION.match(rest)):
            versions[folder] = ".".join(match[1].split(".")[:2])
    default = probe.value("cuda", "default")
    match = _CUDA_FOLDER.search(default)
    found = sorted({v for v in versions.values() if v}, key=version_tuple)
    return tuple(found), versions.get(default) or (match[1] if match else "")


def _toolkit(probe: Probe) -> str:
    match = next((m for line in probe.lines("toolkit") if (m := _TOOLKIT.search(line))), None)
    return match[1] if match else ""


def masked_hash(file: ConfigFile) -> str:
    """sha256 (hex) of a node's file without its secrets, for all that is kept or shown: "" where it is not known.

    With the hash of the whole file, somebody who has it could try passwords until one fits.  Equal to `sha256` where
    the file has no secret.
    """
    return file.sha256 if not file.sha256 or file.data is None else _masked(file.data)[0]


@functools.lru_cache(maxsize=1024)  # the same files on many hosts
def _masked(data: bytes) -> tuple[str, int]:
    """(sha256, size) of a file without its secrets."""
    text = mask(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest(), len(text)


def _without_secrets(data: dict[str, Any], facts: NodeFacts) -> None:
    """Facts as data, in place: no content of files, their hash and size without secrets, nor those of engines."""
    for path, file in data.get("files", {}).items():
        content = facts.files[path].data
        if file.pop("data", None):
            file["sha256"], file["size"] = _masked(content or b"")
    for runtime in data.get("runtimes", ()):
        if "effective_error" in runtime:
            runtime["effective_error"] = mask(runtime["effective_error"])
        if "flags" in runtime:
            runtime["flags"] = [mask(flag) for flag in runtime["flags"]]


def shown_facts(facts: NodeFacts) -> dict[str, Any]:
    """Facts as data for a person or a log: no content of files, and no secrets."""
    data = facts_to_data(facts)
    _without_secrets(data, facts)
    for file in data["files"].values():
        file["data"] = None
    return data


def stable_facts(facts: NodeFacts) -> dict[str, Any]:
    """What a plan rests on, as data: all facts but VOLATILE ones, files by their hashes, nothing secret.

    Equal for two probes of one node between which nothing of consequence changed, also across a reboot.
    """
    data = facts_to_data(facts, brief=True)
    kept = {key: value for key, value in data.items() if key not in VOLATILE}
    kept["driver"] = {key: value for key, value in data.get("driver", {}).items() if key not in VOLATILE_DRIVER}
    if "sharing" in data:
        kept["sharing"] = {key: value for key, value in data["sharing"].items() if key != "mps_daemons"}  # PIDs
    # the driver makes device files at need
    kept["device_nodes"] = [node for node in data.get("device_nodes", ()) if not node.get("linked")]
    kept.setdefault("files", {})
    _without_secrets(kept, facts)
    return kept


def secret_parts(facts: NodeFacts) -> tuple[object, ...]:
    """What tells nodes of the same `facts_hash` apart: what is masked there.  For memory only: never kept or shown."""
    files = {path: file.sha256 for path, file in facts.files.items() if file.sha256 != masked_hash(file)}
    engines = ((r.effective_error, r.flags) for r in facts.runtimes)
    return (*sorted(files.items()), *engines)


def facts_hash(facts: NodeFacts) -> str:
    """sha256 (hex) over what a plan rests on, secrets left out."""
    return hashlib.sha256(json.dumps(stable_facts(facts), sort_keys=True).encode()).hexdigest()
