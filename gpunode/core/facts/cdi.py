"""CDI specifications of NVIDIA GPUs: reading them, and whether they still fit the driver and the devices.

nvidia-ctk makes them (`nvidia-ctk cdi generate`, run by gpunode/node/activate/cdi.sh); nothing here writes one.
Sources: the CDI specification, https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md, its cache
(pkg/cdi/cache.go: the folder named last wins, and of one folder nobody) and nvidia-container-toolkit pkg/nvcdi.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpunode.core.content import decode
from gpunode.core.engines import BY_CDI, ROWS, RuntimeName
from gpunode.core.errors import InputError
from gpunode.core.late import regex
from gpunode.core.mask import masked_errors, shown
from gpunode.core.model import CdiSpec, NodeFacts
from gpunode.core.numbers import version_tuple
from gpunode.core.printable import few
from gpunode.core.untrusted import load_json, load_yaml

KIND = "nvidia.com/gpu"
FOLDERS = ("/etc/cdi", "/run/cdi")  # the second one wins; engines call it /var/run/cdi
PATH = "/var/run/cdi/nvidia.yaml"  # where nvidia-cdi-refresh.service puts it, nvidia-container-toolkit 1.18 and later
_LIBRARY = regex(r"/lib(?:cuda|nvidia-ml)\.so\.(\d{3}\.[\d.]*\d)\Z")
_DEVICE = regex(r"/dev/nvidia(\d{1,5})\Z")
_MIG = regex(r"\d+:\d+\Z")


@masked_errors()
def read_spec(path: str, data: bytes) -> CdiSpec:
    """A specification's kind, devices, driver version and host paths; InputError (path:line:column) for broken ones."""
    load = load_json if path.endswith(".json") else load_yaml
    doc = _mapping(load(decode(path, data), path), path, "the file")
    devices = _list(doc.get("devices"), path, "devices")
    names = [_text(_mapping(device, path, "a device").get("name"), path, "a device's name") for device in devices]
    edits = [_mapping(d.get("containerEdits") or {}, path, "containerEdits") for d in (doc, *devices)]
    nodes = [path_of for edit in edits for path_of in _host_paths(edit, "deviceNodes", path)]
    needs = [path_of for edit in edits for key in ("mounts", "hooks") for path_of in _host_paths(edit, key, path)]
    return CdiSpec(
        path=path,
        kind=_text(doc.get("kind"), path, "kind"),
        devices=tuple(names),
        minors=tuple(sorted({int(m[1]) for node in nodes if (m := _DEVICE.search(node))})),
        driver=next((m[1] for need in needs if (m := _LIBRARY.search(need))), ""),
        needs=tuple(dict.fromkeys(needs)),
        version=_text(doc.get("cdiVersion") or "", path, "cdiVersion"),
    )


def _host_paths(edits: dict[str, Any], key: str, path: str) -> Iterator[str]:
    for item in _list(edits.get(key), path, key):
        entry = _mapping(item, path, f"an entry of {key}")
        yield _text(entry.get("hostPath") or entry.get("path"), path, f"the path of an entry of {key}")


def _mapping(value: Any, path: str, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{path}: {what} is no mapping", expected="a CDI specification")
    return value


def _list(value: Any, path: str, what: str) -> list[Any]:
    if not isinstance(value, list | None):
        raise InputError(f"{path}: {what} is no list", expected="a CDI specification")
    return value or []


def _text(value: Any, path: str, what: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{path}: {what} is {shown(value)}, no text", expected="a text (in quotes if it is a number)")
    return value


# ---------------------------------------------------------------- do they fit?


def stale(facts: NodeFacts, engines: Sequence[RuntimeName] = BY_CDI) -> tuple[str, ...]:
    """Why the node's specification does not fit its driver, GPUs and the engines that read it; () when it does."""
    specs = [spec for spec in facts.cdi.specs if spec.error or spec.kind == KIND]
    if not specs:
        return (f"there is no CDI specification of {KIND} in {' or '.join(FOLDERS)}",)
    broken = tuple(f"it cannot be read: {spec.error}" for spec in specs if spec.error)
    if broken:
        return broken
    unread = (
        f"{spec.path} follows CDI {spec.version}, which {engine} cannot read"
        for spec in specs
        if version_tuple(spec.version) >= (0, 7)
        for engine in too_old(facts, engines)
    )
    misfits = (reason for spec in specs for reason in _misfits(spec, facts))
    return (*misfits, *_conflicts(specs), *unread)


def unproven(facts: NodeFacts) -> tuple[str, ...]:
    """What is not known of a node whose specification `stale` finds nothing against; () when all was compared."""
    specs = [spec for spec in facts.cdi.specs if spec.kind == KIND]
    engines = [found for name in BY_CDI if (found := facts.runtime(name)) and not found.version]
    reasons = (
        (not (facts.driver.userspace or facts.driver.loaded), "the driver's version"),
        (not facts.cdi.gpus or not facts.nvml, "the GPUs of the driver"),
        (not all([gpu.uuid for gpu in facts.cdi.gpus] + [gpu.uuid for gpu in facts.nvml]), "which GPU is which"),
        ("cdi" in facts.unread, "whether its files are there"),
        (any(not (spec.devices and spec.minors) for spec in specs), "the devices that it names"),
        (bool(engines), f"the version of {' and '.join(one.name for one in engines)}"),
    )
    return tuple(words for unknown, words in reasons if unknown)


def too_old(facts: NodeFacts, engines: Sequence[RuntimeName]) -> tuple[str, ...]:
    """Those of the engines, with their versions, that cannot read CDI 0.7.0: one such file, and they find no device."""
    found = ((facts.runtime(name), ROWS[name].cdi_0_7) for name in engines)
    return tuple(
        f"{one.name} {one.version}"
        for one, least in found
        if one and one.version and least and version_tuple(one.version.partition("+")[0]) < version_tuple(least)
    )


def twice(facts: NodeFacts) -> tuple[str, ...]:
    """nvidia-ctk's specifications in both folders: only that in the second one is renewed by itself."""
    specs = made_by_ctk(facts).cdi.specs
    folders = {posixpath.dirname(spec.path): spec.path for spec in specs}
    return tuple(folders.values()) if set(FOLDERS) <= set(folders) else ()


def made_by_ctk(facts: NodeFacts) -> NodeFacts:
    """The facts with only those specifications that nvidia-ctk made, by their usual names: those can be renewed."""
    specs = [spec for spec in facts.cdi.specs if spec.kind == KIND or spec.error]
    ours = tuple(spec for spec in specs if posixpath.basename(spec.path) in ("nvidia.yaml", "nvidia.json"))
    return replace(facts, cdi=replace(facts.cdi, specs=ours))


def of_others(facts: NodeFacts) -> tuple[str, ...]:
    """What does not fit of specifications that nvidia-ctk did not make: nobody renews them but who did."""
    ours = stale(made_by_ctk(facts))
    return tuple(reason for reason in stale(facts) if reason not in ours) if facts.cdi.specs else ()


def _misfits(spec: CdiSpec, facts: NodeFacts) -> Iterator[str]:
    driver = facts.driver.userspace or facts.driver.loaded
    if spec.driver and driver and spec.driver != driver:
        yield f"{spec.path} is made for driver {spec.driver}; installed is {driver}"
    gone = [need for need in spec.needs if need in facts.cdi.missing]
    if gone:
        yield f"{spec.path} brings files that are gone: {few(gone, 3)}"
    yield from _devices(spec, facts)


def _devices(spec: CdiSpec, facts: NodeFacts) -> Iterator[str]:
    """GPUs and MIG devices against those of the loaded driver; without one nothing is known of them.

    One that fell off the bus keeps its place in /proc, and NVML, which nvidia-ctk asks, leaves it out.
    """
    seen = {gpu.uuid for gpu in facts.nvml}
    gpus = {gpu.minor: gpu for gpu in facts.cdi.gpus if gpu.uuid in seen or not seen}
    if not gpus:
        return
    sliced = {gpu.uuid for gpu in facts.nvml if gpu.mig_current == "Enabled"}
    bare = {minor for minor, gpu in gpus.items() if gpu.uuid in sliced and not gpu.mig_devices}  # nothing to give away
    extra, lacking = set(spec.minors) - gpus.keys(), gpus.keys() - bare - set(spec.minors)
    if extra:
        yield f"{spec.path} names GPUs that are gone: {_nodes(extra)}"
    if lacking:
        yield f"{spec.path} lacks {_nodes(lacking)}"
    uuids = {name for name in spec.devices if name.startswith("GPU-")}
    known = {gpu.uuid for gpu in gpus.values()}
    if not extra and uuids - known:
        yield f"{spec.path} names GPUs that are gone: {few(sorted(uuids - known), 3)}"
    named = sum(1 for name in spec.devices if _MIG.match(name)) or sum(n.startswith("MIG-") for n in spec.devices)
    there = sum(gpu.mig_devices for gpu in gpus.values())
    if named != there:
        yield f"{spec.path} names {named} MIG devices; there are {there}"


def _conflicts(specs: list[CdiSpec]) -> Iterator[str]:
    for number, spec in enumerate(specs):
        for other in specs[:number]:
            alike = posixpath.dirname(spec.path) == posixpath.dirname(other.path)
            if alike and set(spec.devices) & set(other.devices):
                yield f"{other.path} and {spec.path} name the same devices: engines take neither"


def _nodes(minors: Iterable[int]) -> str:
    return few([f"/dev/nvidia{minor}" for minor in sorted(minors)], 3)
