"""What each fact may look like: the grammar of every text in NodeFacts.

A node is not trusted: its facts become values of a playbook, names in requests, URLs and sentences.  `vetted` is the
one place between a probe and everything that reads facts.  A text that does not fit its grammar is left out, and is
reported as malformed (a plan refuses that node) or, where no decision rests on the fact, as a note.  Prose, such as the
name of a distribution, is kept with its control characters made visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from gpunode.core.grammar import (
    ARCH,
    ARGUMENT_WORD,
    CDI_DEVICE,
    CDI_KIND,
    CODENAME,
    CONTAINER,
    CUDA,
    DEVICE,
    DISTRO,
    GPU,
    HOST,
    KERNEL,
    MIG,
    MODULE,
    NUMBER,
    OWNER,
    PACKAGE,
    PACKAGE_ARCH,
    PATH,
    PCI_CLASS,
    PCI_ID,
    RECORD,
    RELEASE,
    SETTING,
    SHA256,
    SLOT,
    SOCKET,
    STATE,
    SYSCTL,
    TIME,
    UNIT,
    USER,
    UUID,
    VERSION,
    WORD,
    Grammar,
)
from gpunode.core.model import (
    Cdi,
    CdiGpu,
    CdiSpec,
    ConfigFile,
    DeviceNode,
    Distro,
    DriverState,
    FirstBoot,
    GpuContainer,
    InstalledPackage,
    Kernel,
    Kubernetes,
    MigInstance,
    NodeFacts,
    NvmlGpu,
    PciDevice,
    PciLink,
    RdmaPort,
    Running,
    Runtime,
    Service,
    Sharing,
    Topology,
    Tuning,
    Xid,
)
from gpunode.core.model.node import volatile_fields
from gpunode.core.printable import printable, shortened


@dataclass(frozen=True)
class Prose:
    """Any text, of at most so many characters, that is only shown or searched."""

    limit: int


@dataclass(frozen=True)
class TextMapping:
    """A mapping with texts as values."""

    key: Grammar
    value: Grammar | Prose


Rule = Grammar | Prose | TextMapping

LINE, ARGUMENT = Prose(1_000), Prose(4_096)

RULES: Mapping[type, Mapping[str, Rule]] = {
    NodeFacts: {
        "hostname": HOST,
        "arch": ARCH,
        "boot_id": UUID,
        "init": WORD,
        "virtualization": WORD,
        "tegra": LINE,
        "user": USER,
        "cuda": CUDA,
        "cuda_default": CUDA,
        "toolkit": VERSION,
        "containers": TextMapping(WORD, LINE),
        "package_manager": WORD,
        "packages": TextMapping(PACKAGE, LINE),
        "broken_packages": PACKAGE,
        "package_lock": LINE,
        "lease": LINE,
        "services": TextMapping(UNIT, LINE),
        "modules": MODULE,
        "sysctl": TextMapping(SYSCTL, SETTING),
        "files": TextMapping(PATH, LINE),
        "nvlink_inactive": LINE,
        "hidden": PATH,
        "unread": WORD,
        "unfinished": RECORD,
        "notes": LINE,
        "malformed": LINE,
    },
    Distro: {"id": DISTRO, "version_id": RELEASE, "codename": CODENAME, "like": DISTRO, "name": LINE},
    Kernel: {"release": KERNEL, "module": VERSION, "flavour": WORD, "dkms": WORD},
    PciDevice: {
        "slot": SLOT,
        "id": PCI_ID,
        "class_code": PCI_CLASS,
        "subsystem": PCI_ID,
        "driver": MODULE,
        "label": LINE,
    },
    NvmlGpu: {
        "uuid": GPU,
        "name": LINE,
        "slot": SLOT,
        "mig_current": STATE,
        "mig_pending": STATE,
        "persistence": STATE,
        "ecc_current": STATE,
        "ecc_pending": STATE,
        "clock": STATE,
        "clock_max": STATE,
        "retired_pending": STATE,
        "remap_pending": STATE,
        "remap_failure": STATE,
        "fabric_state": STATE,
        "fabric_status": STATE,
        "recovery": STATE,
        "event_reasons": STATE,
        "compute_mode": STATE,
        "power_limit": STATE,
        "power_min": STATE,
        "power_max": STATE,
        "power_default": STATE,
        "pstate": STATE,
        "vbios": STATE,
        "pcie_generation": STATE,
        "pcie_generation_max": STATE,
        "pcie_width": STATE,
        "pcie_width_max": STATE,
        "sram_uncorrected": STATE,
        "sram_exceeded": STATE,
        "nvlink_speed": NUMBER,
        "fault": STATE,
    },
    PciLink: {"slot": SLOT, "parent": SLOT, "speed": NUMBER, "max_speed": NUMBER, "acs": WORD, "iommu": WORD},
    RdmaPort: {
        "device": WORD,
        "slot": SLOT,
        "state": WORD,
        "physical": WORD,
        "rate": NUMBER,
        "layer": WORD,
    },
    Tuning: {
        "governors": WORD,
        "arguments": ARGUMENT_WORD,
        "next_arguments": ARGUMENT_WORD,
        "loader": WORD,
        "ofed": LINE,
        "peer_memory": WORD,
        "peermem": WORD,
        "kernel_options": TextMapping(MODULE, WORD),
    },
    Topology: {"names": LINE, "links": LINE, "cpus": LINE, "numa": LINE},
    DriverState: {
        "loaded": VERSION,
        "loaded_flavour": WORD,
        "userspace": VERSION,
        "firmware": VERSION,
        "runfile": VERSION,
        "parameters": TextMapping(MODULE, ARGUMENT),
        "smi": LINE,
    },
    ConfigFile: {"path": PATH, "sha256": SHA256, "owner": OWNER, "target": PATH},
    Runtime: {
        "name": WORD,
        "distribution": WORD,
        "version": VERSION,
        "binary": PATH,
        "unit": UNIT,
        "flags": ARGUMENT,
        "socket": SOCKET,
        "config": PATH,
        "files": PATH,
        "effective_error": ARGUMENT,
        "cgroup_driver": WORD,
    },
    Running: {"names": LINE},
    Kubernetes: {
        "kind": WORD,
        "role": WORD,
        "kubelet": VERSION,
        "cri_socket": SOCKET,
        "cgroup_driver": WORD,
        "cgroup_source": LINE,
    },
    InstalledPackage: {"name": PACKAGE, "version": VERSION, "arch": PACKAGE_ARCH},
    Service: {"name": UNIT, "active": WORD, "enabled": WORD, "memlock": WORD, "locked": WORD},
    DeviceNode: {"path": PATH, "number": DEVICE},
    GpuContainer: {"name": LINE, "id": CONTAINER, "unit": UNIT, "state": WORD, "devices": PATH},
    Cdi: {"missing": PATH},
    CdiSpec: {
        "path": PATH,
        "kind": CDI_KIND,
        "devices": CDI_DEVICE,
        "driver": VERSION,
        "version": VERSION,
        "needs": PATH,
        "error": LINE,
    },
    CdiGpu: {"uuid": GPU},
    MigInstance: {"profile": MIG},
    Sharing: {
        "mig_program": WORD,
        "mig_status": WORD,
        "mig_message": LINE,
        "mps_daemons": NUMBER,
        "mps_threads": NUMBER,
    },
    FirstBoot: {"program": WORD, "status": WORD, "at": TIME, "message": LINE, "failed": LINE},
    Xid: {"slot": LINE, "line": LINE},
}
# field of NodeFacts → the section of the probe that it is read from (docs/probe.md); others are called as their section
_SECTIONS: Mapping[str, str] = {
    **dict.fromkeys(("hostname", "arch", "boot_id", "init", "virtualization", "tegra", "user"), "system"),
    **dict.fromkeys(("gpus", "nvswitches"), "pci"),
    **dict.fromkeys(("package_manager", "broken_packages"), "packages"),
    "distro": "os_release",
    "nvml": "nvidia_smi",
    "cuda_default": "cuda",
    "package_lock": "locks",
    "lease": "locks",
    "services": "units",
    "modules": "driver",
    "device_nodes": "gpu_containers",
    "nvlink_inactive": "nvlink",
    **dict.fromkeys(("pcie", "rdma", "hidden"), "links"),
    "unfinished": "journal",
}

_VOLATILE = volatile_fields(NodeFacts)


def vetted(facts: NodeFacts) -> NodeFacts:
    """The facts without what does not fit its grammar, reported in `malformed`; of volatile ones in `notes`."""
    doubts: dict[tuple[str, str, bool], list[str]] = {}
    changed = {}
    for name, rule in _FIELDS[NodeFacts]:
        section = _SECTIONS.get(name, name)

        def doubt(text: str, grammar: Grammar, section: str = section, noted: bool = name in _VOLATILE) -> None:
            doubts.setdefault((section, grammar.what, noted), []).append(text)

        before = getattr(facts, name)
        after = _vet(rule, before, doubt)
        if after is not before:
            changed[name] = _DEFAULTS[NodeFacts][name] if after is _GONE else after
    if not changed:
        return facts
    reported: dict[bool, list[str]] = {False: [], True: []}
    for (section, what, noted), texts in doubts.items():
        more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
        reported[noted].append(f"{section}: {shortened(texts[0])} is not a valid {what}{more}")
    kept = replace(facts, **changed)
    return replace(kept, malformed=(*kept.malformed, *reported[False]), notes=(*kept.notes, *reported[True]))


# ---------------------------------------------------------------- vetting values

_GONE = object()
_Doubt = Callable[[str, Grammar], None]


def _vet(rule: Rule | None, value: Any, doubt: _Doubt) -> Any:
    """The same object where nothing is wrong with it, _GONE where nothing of it can stay."""
    if isinstance(value, str):
        return _text(rule, value, doubt)
    if isinstance(value, tuple):
        kept = tuple(new for one in value if (new := _vet(rule, one, doubt)) is not _GONE)
        return value if len(kept) == len(value) and all(map(_same, kept, value)) else kept
    if isinstance(value, Mapping):
        return _mapping(rule, value, doubt)
    return _object(value, doubt) if type(value) in _FIELDS else value


def _text(rule: Rule | None, text: str, doubt: _Doubt) -> Any:
    if isinstance(rule, Grammar):
        if rule.fits(text):
            return text
        doubt(text, rule)
        return _GONE
    assert isinstance(rule, Prose)
    shown = printable(text)
    return shown if len(shown) <= rule.limit else f"{shown[: rule.limit - 1]}…"


def _mapping(rule: Rule | None, value: Mapping[str, Any], doubt: _Doubt) -> Mapping[str, Any]:
    assert isinstance(rule, TextMapping)
    kept = {}
    for key, one in value.items():
        if not rule.key.fits(key):
            doubt(key, rule.key)
        elif (new := _vet(rule.value, one, doubt)) is not _GONE:
            kept[key] = new
    return value if len(kept) == len(value) and all(_same(kept[key], value[key]) for key in kept) else kept


def _object(value: Any, doubt: _Doubt) -> Any:
    """A field that does not fit gets its default; where it has none, the whole object goes."""
    changed = {}
    for name, rule in _FIELDS[type(value)]:
        before = getattr(value, name)
        after = _vet(rule, before, doubt)
        if after is _GONE:
            if name not in _DEFAULTS[type(value)]:
                return _GONE
            after = _DEFAULTS[type(value)][name]
        if after is not before:
            changed[name] = after
    return replace(value, **changed) if changed else value


def _same(one: Any, other: Any) -> bool:
    return one is other


_TEXTLESS = frozenset(("bool", "int", "bool | None", "int | None", "bytes | None"))
_FIELDS: Mapping[type, tuple[tuple[str, Rule | None], ...]] = {
    kind: tuple((one.name, rules.get(one.name)) for one in fields(kind) if one.type not in _TEXTLESS)
    for kind, rules in RULES.items()
}
_DEFAULTS: Mapping[type, Mapping[str, Any]] = {
    kind: {one.name: one.default for one in fields(kind) if one.default is not MISSING} for kind in RULES
}
