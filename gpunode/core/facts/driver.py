"""Sections about the NVIDIA driver, the GPUs as it sees them, their health and how they are shared → values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

from gpunode.core.facts.machine import VERSION
from gpunode.core.facts.text import Probe, digits, stated
from gpunode.core.late import regex
from gpunode.core.model import (
    DriverState,
    KernelFault,
    MigInstance,
    NotStarted,
    NvmlGpu,
    PciDevice,
    Service,
    Sharing,
    Topology,
    Xid,
)
from gpunode.core.numbers import version_tuple
from gpunode.core.printable import uncoloured

_LIBRARY = regex(r"/libnvidia-ml\.so\.(\d{1,4}(?:\.\d{1,4}){1,3})\Z")
_PACKAGED = regex(r"/(?:usr/)?lib(?:32|64|x32)?/|\Z")  # where packages and NVIDIA's installer put it
# with MIG the instance follows the GPU, drivers before 340 leave out the word PCI
_XID = regex(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})(?: GPU-[A-Z]{1,4}:[0-9a-fA-F]{1,4}){0,2}\): (\d{1,5})\b")
_COUNTED = regex(r"(xid|start|gsp|reset|hung) (\d{1,9}) (.*)")
_NOT_STARTED = regex(r"NVRM: (?:GPU ([0-9a-fA-F:.]{12,16}): )?(RmInitAdapter failed\b.*)")
_LINK = regex(r"\s*Link (\d{1,3}): (.*)")
_SPEED = regex(r"(\d{1,6}(?:\.\d{1,6})?) GB/s")
_ALL_DOWN = regex(r"\s*(?:NVML: ?)?Unable to retrieve NVLink information as all links are inactive", re.IGNORECASE)
_JOINED = regex(r"[A-Za-z][\w.-]{1,31}")  # GPU0, NIC0, mlx5_0, mlx4_0, hfi1_0 …
_GPU = regex(r"GPU (\d{1,3}): (.*?)(?: \(UUID: .*)?\Z")
# nvidia-smi's words for «this GPU has none», and (in brackets) those about the question, not about the GPU; any other
# word in brackets is NVML's error: the driver cannot speak for the GPU (knowledge/questions.toml has them all)
_NONE = regex(r"\[?(N/A|Not Supported)\]?\Z", re.IGNORECASE)
_UNREAD = regex(
    r"\[(Not Found|Insufficient Permissions|Function Not Found|Insufficient Size|Invalid Argument|No data"
    r"|Argument version mismatch|In use by another client|Requested functionality has been deprecated)\]\Z",
    re.IGNORECASE,
)
_FAULT = regex(r"\[([A-Za-z][^\[\]]{1,60})\]\Z|(ERR!|GPU is lost|GPU requires reset|Unknown Error)\Z", re.IGNORECASE)
_GRAVEST = ("gpu is lost", "gpu requires reset")
NONE = "N/A"  # a field that the driver says this GPU does not have; "" is one that was not read
_SWITCHED = {"0": "No", "1": "Yes"}  # --query-remapped-rows before 580
_TEXT_FIELDS = {
    "mig.mode.current": "mig_current",
    "mig.mode.pending": "mig_pending",
    "persistence_mode": "persistence",
    "ecc.mode.current": "ecc_current",
    "ecc.mode.pending": "ecc_pending",
    "clocks.current.graphics": "clock",
    "clocks.max.graphics": "clock_max",
    "retired_pages.pending": "retired_pending",
    "remapped_rows.pending": "remap_pending",
    "remapped_rows.failure": "remap_failure",
    "fabric.state": "fabric_state",
    "fabric.status": "fabric_status",
    "gpu_recovery_action": "recovery",
    "clocks_throttle_reasons.active": "event_reasons",
    "compute_mode": "compute_mode",
    "power.limit": "power_limit",
    "power.min_limit": "power_min",
    "power.max_limit": "power_max",
    "power.default_limit": "power_default",
    "pstate": "pstate",
    "vbios_version": "vbios",
    "pcie.link.gen.current": "pcie_generation",
    "pcie.link.gen.max": "pcie_generation_max",
    "pcie.link.width.current": "pcie_width",
    "pcie.link.width.max": "pcie_width_max",
    "ecc.errors.uncorrected.aggregate.sram": "sram_uncorrected",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "sram_exceeded",
}
_AMPERE = 450  # the first driver branch that runs its GPUs
_ROWS = ("pci.bus_id", "remapped_rows.pending", "remapped_rows.failure")  # what the probe asks --query-remapped-rows


# what follows the model in the name of a virtual GPU type: A40-8Q, A100-4-20C, RTXA6000-12CME
# (https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/, virtual GPU types)
_VGPU_TYPE = regex(r"[A-Za-z0-9]-(?:\d-)?\d{1,3}(?:[ABCQ]|CME)\Z")


def with_virtual(gpus: Sequence[PciDevice], nvml: Sequence[NvmlGpu]) -> tuple[PciDevice, ...]:
    """The GPUs; in a guest a vGPU has no link to its physical function, and the driver's name for it says so."""
    virtual = {gpu.slot for gpu in nvml if _VGPU_TYPE.search(gpu.name)}
    return tuple(replace(gpu, virtual_function=True) if gpu.slot in virtual else gpu for gpu in gpus)


def read_driver(probe: Probe, smi: str, nvml: Sequence[NvmlGpu] = ()) -> DriverState:
    """What is loaded and what lies in user space; `smi` is nvidia-smi's trouble, `nvml` what it listed.

    The library that the linker finds counts, then the newest in folders of packages.  Where neither is seen, one that
    lists GPUs is of the module's version: NVML refuses any other.
    """
    proc = next((v for v in probe.values("driver", "proc") if "NVRM version" in v), "")
    modules = {name: version for name, _, version in (v.partition(" ") for v in probe.values("driver", "module"))}
    version = VERSION.search(proc) or VERSION.search(modules.get("nvidia", ""))
    linked = probe.value("driver", "linked")
    libraries = [m[1] for path in probe.values("driver", "library") if (m := _LIBRARY.search(path))]
    newest = max(libraries, key=version_tuple, default="")
    in_force = _LIBRARY.search(linked)
    flavour = ("open" if "Open Kernel Module" in proc else "proprietary") if proc else ""
    return DriverState(
        loaded=version[0] if version else "",
        loaded_flavour=flavour,
        userspace=in_force[1] if in_force else newest or (version[0] if version and nvml else ""),
        elsewhere="" if _PACKAGED.match(linked) else linked.rpartition("/")[0],
        firmware=tuple(probe.values("driver", "firmware")),
        nouveau="nouveau" in modules,
        nova="nova_core" in modules,
        runfile=probe.value("driver", "runfile"),
        parameters={name: value for name, _, value in (v.partition(": ") for v in probe.values("driver", "parameter"))},
        smi=smi,
    )


def read_nvml(probe: Probe) -> tuple[tuple[NvmlGpu, ...], str]:
    """(GPUs that nvidia-smi lists, first line of its trouble or "")."""
    lines, failed = probe.answer("nvidia_smi")
    fields = probe.value("nvidia_smi", "fields").split(",")
    remapped = dict(_remapped(probe))
    rows = [line for line in lines if not line.startswith(("fields ", "rows "))]
    gpus = []
    trouble = ""
    for line in rows:
        cells = [cell.strip() for cell in line.split(",")]
        row = dict(zip(fields, cells, strict=True)) if len(cells) == len(fields) else {}
        gpu = _gpu({**row, **remapped.get(row.get("pci.bus_id", ""), {})})
        if gpu:
            gpus.append(gpu)
        else:
            trouble = trouble or line.strip()
    if failed and not failed.isdigit():
        return tuple(gpus), f"nvidia-smi: {failed}"
    return tuple(gpus), trouble or (f"nvidia-smi: exit {failed}" if failed else "")


def _remapped(probe: Probe) -> Iterator[tuple[str, dict[str, str]]]:
    """(bus id, its remapped rows), which the probe asks by itself where --query-gpu has no such field."""
    for line in filter(None, probe.values("nvidia_smi", "rows")):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_ROWS):
            yield cells[0], {name: _SWITCHED.get(cell, cell) for name, cell in zip(_ROWS[1:], cells[1:], strict=True)}
        else:
            probe.notes.append(f"nvidia_smi: nvidia-smi --query-remapped-rows: {line[:120]}")


def _gpu(row: dict[str, str]) -> NvmlGpu | None:
    index = digits(row.get("index", ""))
    if index is None:
        return None
    stated = {**dict(_implied(row)), **{key: _stated(key, value) for key, value in row.items()}}
    texts: dict[str, Any] = {name: stated[key] for key, name in _TEXT_FIELDS.items() if key in stated}
    faults = [(match[1] or match[2]) for key, value in row.items() if (match := _fault(key, value))]
    return NvmlGpu(
        index=index,
        slot=slot_of(_value(stated.get("pci.bus_id", ""))),
        uuid=_value(stated.get("uuid", "")),
        name=_value(stated.get("name", "")),
        memory_mib=digits(stated.get("memory.total", "")),
        ecc_uncorrected=digits(stated.get("ecc.errors.uncorrected.volatile.total", "")),
        fault=min(faults, key=_gravity, default=""),
        **texts,
    )


def _implied(row: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What need not be asked: MIG and row remapping came with Ampere, whose memory retires no pages any more."""
    branch = digits(row.get("driver_version", "").partition(".")[0])
    before = branch is not None and branch < _AMPERE
    if before:
        yield from (("mig.mode.current", NONE), ("mig.mode.pending", NONE))
    if before or row.get("retired_pages.pending") in ("Yes", "No"):
        yield from (("remapped_rows.pending", NONE), ("remapped_rows.failure", NONE))


def _stated(field: str, answer: str) -> str:
    """An answer in one notation; N/A where the GPU has no such thing, "" where the driver did not say."""
    if _NONE.match(answer):
        return NONE
    if _UNREAD.match(answer) or _fault(field, answer) or not stated(answer):
        return ""
    if field in ("fabric.state", "fabric.status"):  # up to 550 at least the answer begins with the field's last word
        answer = answer.removeprefix(field.partition(".")[2] + " ").strip()
        return NONE if _NONE.match(answer) else answer
    return answer


def _fault(field: str, answer: str) -> re.Match[str] | None:
    """The driver's error; the fabric's status is such a word itself, without brackets."""
    if _NONE.match(answer) or _UNREAD.match(answer) or (field == "fabric.status" and not answer.startswith("[")):
        return None
    return _FAULT.match(answer)


def _gravity(word: str) -> int:
    return _GRAVEST.index(word.lower()) if word.lower() in _GRAVEST else len(_GRAVEST)


def _value(text: str) -> str:
    return "" if text == NONE else text


def slot_of(bus_id: str) -> str:
    """00000000:17:00.0 as NVML writes it → 0000:17:00.0 as sysfs does, where a domain has four digits or more."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}" if rest else ""


def read_xids(probe: Probe) -> tuple[Xid, ...]:
    """NVRM's Xids since boot by code and GPU, in the order in which they came first."""
    found: dict[tuple[int, str], Xid] = {}
    for _, count, line in _kernel_lines(probe):
        if match := _XID.search(line):
            code, slot = int(match[2]), match[1].lower() if "." in match[1] else f"{match[1].lower()}.0"
            old = found.get((code, slot))
            found[code, slot] = replace(
                old or Xid(code=code, slot=slot, line=line), count=(old.count if old else 0) + count
            )
    return tuple(found.values())


def read_kernel_faults(probe: Probe) -> tuple[KernelFault, ...]:
    """What the kernel log says against the driver since its module was loaded, without Xids and failed starts."""
    of_others = ((kind, count, line) for kind, count, line in _kernel_lines(probe) if kind not in ("", "xid", "start"))
    return tuple(KernelFault(kind=kind, count=count, line=line) for kind, count, line in of_others)


def _kernel_lines(probe: Probe) -> Iterator[tuple[str, int, str]]:
    """(kind, how many, the first line) of the kernel log; of probes up to 1.0 each line by itself."""
    for line in map(str.strip, probe.lines("xids")):
        match = _COUNTED.match(line)
        yield (match[1], int(match[2]), match[3]) if match else ("", 1, line)


def read_not_started(probe: Probe) -> tuple[NotStarted, ...]:
    """What the driver says since boot of GPUs that it could not start, in the order of their slots, the newest last."""
    lines = [(m[1] or "", m[2].strip()) for line in probe.lines("xids") if (m := _NOT_STARTED.search(line))]
    found = sorted(dict.fromkeys(lines), key=lambda one: one[0])
    return tuple(NotStarted(slot=slot.lower(), words=words) for slot, words in found)


class _Links(NamedTuple):
    """What `nvidia-smi nvlink` says of the links of one GPU."""

    model: str
    down: list[str]  # their numbers
    up: list[str]  # what is said of each


def _nvlinks(lines: Sequence[str]) -> dict[str, _Links]:
    """The links by the GPU's number; a GPU of which no link is said is left out."""
    found: dict[str, _Links] = {}
    gpu = model = ""
    for line in lines:
        if match := _GPU.match(line):
            gpu, model = match[1], match[2]
        elif match := _LINK.match(line):
            links = found.setdefault(gpu, _Links(model, [], []))
            if "inactive" in match[2].lower():
                links.down.append(match[1])
            else:
                links.up.append(match[2])
        elif _ALL_DOWN.match(line):
            found.setdefault(gpu, _Links(model, [], []))
    return found


def read_nvlink(probe: Probe) -> tuple[str, ...]:
    """Links that are down of GPUs with others up; GPUs with all of them down, where one of their model has not.

    A PCIe card without bridge has all of them inactive, and so have all cards of a machine without any.
    """
    lines, failed = probe.answer("nvlink")
    if failed:
        probe.notes.append(f"nvlink: nvidia-smi nvlink: {failed}")
    gpus = _nvlinks(lines)
    joined = {links.model for links in gpus.values() if links.up}
    found: list[str] = []
    for gpu, links in gpus.items():
        if links.up:
            found += (f"GPU {gpu} link {link}" for link in links.down)
        elif links.model in joined:
            found.append(f"GPU {gpu}: all links")
    return tuple(found)


def with_nvlinks(gpus: Sequence[NvmlGpu], probe: Probe) -> tuple[NvmlGpu, ...]:
    """The GPUs with the number of their NVLinks that are up, and the speed of the slowest."""
    lines, failed = probe.answer("nvlink")
    if failed:
        return tuple(gpus)
    speeds = {
        gpu: [speed[1] for text in links.up if (speed := _SPEED.match(text))] for gpu, links in _nvlinks(lines).items()
    }
    return tuple(
        replace(one, nvlinks_up=len(found), nvlink_speed=min(found, key=float, default=""))
        if (found := speeds.get(str(one.index))) is not None
        else one
        for one in gpus
    )


def read_topology(probe: Probe) -> Topology:
    """The matrix of `nvidia-smi topo -m`; its cells are parted by tabs, behind the links stand CPUs and NUMA node."""
    lines, failed = probe.answer("topology")
    if failed:
        probe.notes.append(f"topology: nvidia-smi topo: {failed}")
    rows = [[cell.strip() for cell in uncoloured(line).split("\t")] for line in lines]  # newer ones underline the head
    head = next((row for row in rows if "GPU0" in row[1:]), [])
    # up to the first head that is no device: «CPU Affinity»
    names = [*takewhile(_JOINED.fullmatch, head[1:])]
    found = {row[0]: row[1:] for row in rows if row[0] in names and len(row) > len(names)}
    if not names or [*found] != names:
        return Topology()
    more = [[*found[name][len(names) :], "", ""] for name in names]
    return Topology(
        names=tuple(names),
        links=tuple(tuple(found[name][: len(names)]) for name in names),
        cpus=tuple(_NONE.sub("", cells[0]) for cells in more),
        numa=tuple(_NONE.sub("", cells[1]) for cells in more),
    )


# ---------------------------------------------------------------- how the GPUs are shared

# Rows of `nvidia-smi mig -lgi` (drivers 450 to 580 print them alike) and -lci (450 without the placement):
# |   0  MIG 1g.10gb         19        9          2:1     |
# |   0      9       MIG 1g.10gb          0         0          0:1     |
_GPU_INSTANCE = regex(r"\|\s*(\d{1,4})\s+MIG\s+(\S+)\s+\d{1,4}\s+(\d{1,4})\s+(\d{1,4}):(\d{1,4})\s*\|")
_COMPUTE_INSTANCE = regex(r"\|\s*(\d{1,4})\s+(\d{1,4})\s+MIG\s+\S+\s+\d{1,4}\s+\d{1,4}\s")


def read_sharing_units(probe: Probe) -> Iterator[tuple[str, Service]]:
    """gpunode's own units, as they are on the disk."""
    for words in map(str.split, probe.values("sharing", "unit")):
        if len(words) == 3:
            name = words[0].removesuffix(".service")
            yield name, Service(name=name, active=words[1], enabled=words[2])


def read_sharing(probe: Probe) -> Sharing:
    """MIG instances in nvidia-smi's order, each with the number of its compute instances, and the rest."""
    name = "sharing"
    lines = probe.lines(name)
    computes = Counter((int(m[1]), int(m[2])) for line in lines if (m := _COMPUTE_INSTANCE.match(line.strip())))
    found = [m for line in lines if (m := _GPU_INSTANCE.match(line.strip()))]
    return Sharing(
        instances=tuple(
            MigInstance(
                gpu=int(m[1]),
                profile=m[2],
                id=int(m[3]),
                start=int(m[4]),
                size=int(m[5]),
                computes=computes[int(m[1]), int(m[3])],
            )
            for m in found
        ),
        mig_program=probe.value(name, "program"),
        mig_status=probe.value(name, "status"),
        mig_message=probe.value(name, "message"),
        mps_daemons=tuple(probe.values(name, "mps")),
        mps_threads=probe.value(name, "threads").removesuffix(".0"),
    )
