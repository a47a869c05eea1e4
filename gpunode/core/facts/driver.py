"""Sections about the NVIDIA driver, the GPUs as it sees them, their health and how they are shared → values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpunode.core.facts.machine import VERSION
from gpunode.core.facts.text import Probe
from gpunode.core.model import DriverState, MigInstance, NvmlGpu, PciDevice, Service, Sharing, Topology, Xid

_LIBRARY = re.compile(r"/libnvidia-ml\.so\.(\d{1,4}(?:\.\d{1,4}){1,3})\Z")
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,5})\b")
_LINK = re.compile(r"\s*Link (\d{1,3}): (.*)")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")  # newer releases underline the head
_JOINED = re.compile(r"GPU\d{1,3}|NIC\d{1,3}|mlx5_\w{1,20}")
_GPU = re.compile(r"GPU (\d{1,3}): ")
# nvidia-smi's words for «the driver does not say»
_NOTHING = re.compile(r"\[?(N/A|Not Supported|Unknown Error|Not Found|Insufficient Permissions)\]?\Z", re.IGNORECASE)
_TEXT_FIELDS = {
    "uuid": "uuid",
    "name": "name",
    "mig.mode.current": "mig_current",
    "mig.mode.pending": "mig_pending",
    "persistence_mode": "persistence",
    "ecc.mode.current": "ecc_current",
    "retired_pages.pending": "retired_pending",
    "remapped_rows.pending": "remap_pending",
    "remapped_rows.failure": "remap_failure",
    "fabric.state": "fabric_state",
}


# what follows the model in the name of a virtual GPU type: A40-8Q, A100-4-20C, RTXA6000-12CME
# (https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/, virtual GPU types)
_VGPU_TYPE = re.compile(r"[A-Za-z0-9]-(?:\d-)?\d{1,3}(?:[ABCQ]|CME)\Z")


def with_virtual(gpus: Sequence[PciDevice], nvml: Sequence[NvmlGpu]) -> tuple[PciDevice, ...]:
    """The GPUs; in a guest a vGPU has no link to its physical function, and the driver's name for it says so."""
    virtual = {gpu.slot for gpu in nvml if _VGPU_TYPE.search(gpu.name)}
    return tuple(replace(gpu, virtual_function=True) if gpu.slot in virtual else gpu for gpu in gpus)


def read_driver(probe: Probe, smi: str) -> DriverState:
    """What is loaded and what lies in user space; `smi` is nvidia-smi's trouble."""
    proc = next((v for v in probe.values("driver", "proc") if "NVRM version" in v), "")
    modules = {name: version for name, _, version in (v.partition(" ") for v in probe.values("driver", "module"))}
    version = VERSION.search(proc) or VERSION.search(modules.get("nvidia", ""))
    libraries = [m[1] for path in probe.values("driver", "library") if (m := _LIBRARY.search(path))]
    flavour = ("open" if "Open Kernel Module" in proc else "proprietary") if proc else ""
    return DriverState(
        loaded=version[0] if version else "",
        loaded_flavour=flavour,
        userspace=max(libraries, key=lambda v: [int(part) for part in v.split(".")], default=""),
        firmware=tuple(probe.values("driver", "firmware")),
        nouveau="nouveau" in modules,
        nova="nova_core" in modules,
        runfile=probe.value("driver", "runfile"),
        parameters={name: value for name, _, value in (v.partition(": ") for v in probe.values("driver", "parameter"))},
        smi=smi,
    )


def read_loaded_modules(probe: Probe) -> tuple[str, ...]:
    """Names of the loaded kernel modules that concern us."""
    return tuple(dict.fromkeys(v.partition(" ")[0] for v in probe.values("driver", "module")))


def read_nvml(probe: Probe) -> tuple[tuple[NvmlGpu, ...], str]:
    """(GPUs that nvidia-smi lists, first line of its trouble or "")."""
    lines, failed = probe.answer("nvidia_smi")
    fields = probe.value("nvidia_smi", "fields").split(",")
    rows = [line for line in lines if not line.startswith("fields ")]
    gpus = []
    trouble = ""
    for line in rows:
        cells = [cell.strip() for cell in line.split(",")]
        gpu = _gpu(dict(zip(fields, cells, strict=True))) if len(cells) == len(fields) else None
        if gpu:
            gpus.append(gpu)
        else:
            trouble = trouble or line.strip()
    if failed and not failed.isdigit():
        return tuple(gpus), f"nvidia-smi: {failed}"
    return tuple(gpus), trouble or (f"nvidia-smi: exit {failed}" if failed else "")


def _gpu(row: dict[str, str]) -> NvmlGpu | None:
    index = _integer(row.get("index", ""))
    if index is None:
        return None
    stated = {key: "" if _NOTHING.match(value) else value for key, value in row.items()}
    return NvmlGpu(
        index=index,
        slot=_slot(stated.get("pci.bus_id", "")),
        memory_mib=_integer(stated.get("memory.total", "")),
        ecc_uncorrected=_integer(stated.get("ecc.errors.uncorrected.volatile.total", "")),
        **{name: stated[key] for key, name in _TEXT_FIELDS.items() if key in stated},
    )


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _slot(bus_id: str) -> str:
    """00000000:17:00.0 as NVML writes it → 0000:17:00.0 as sysfs does."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""


def read_xids(probe: Probe) -> tuple[Xid, ...]:
    """NVRM's Xid lines since boot, oldest first (the last 50)."""
    found = []
    for line in probe.lines("xids"):
        if match := _XID.search(line):
            slot = match[1].lower() if "." in match[1] else f"{match[1].lower()}.0"
            found.append(Xid(code=int(match[2]), slot=slot, line=line.strip()))
    return tuple(found)


def read_nvlink(probe: Probe) -> tuple[str, ...]:
    """Links that are down, of GPUs that have others up: a PCIe card without bridge has all of them inactive."""
    lines, failed = probe.answer("nvlink")
    if failed:
        probe.notes.append(f"nvlink: nvidia-smi nvlink: {failed}")
    down: dict[str, list[str]] = {}
    up: set[str] = set()
    gpu = ""
    for line in lines:
        if match := _GPU.match(line):
            gpu = match[1]
        elif match := _LINK.match(line):
            if "inactive" in match[2]:
                down.setdefault(gpu, []).append(match[1])
            else:
                up.add(gpu)
    return tuple(f"GPU {gpu} link {link}" for gpu, links in down.items() if gpu in up for link in links)


def read_topology(probe: Probe) -> Topology:
    """The matrix of `nvidia-smi topo -m`; its cells are parted by tabs, behind the links stand CPUs and NUMA node."""
    lines, failed = probe.answer("topology")
    if failed:
        probe.notes.append(f"topology: nvidia-smi topo: {failed}")
    rows = [[cell.strip() for cell in _COLOUR.sub("", line).split("\t")] for line in lines]
    head = next((row for row in rows if "GPU0" in row[1:]), [])
    names = [name for name in head if _JOINED.fullmatch(name)]
    found = {row[0]: row[1:] for row in rows if row[0] in names and len(row) > len(names)}
    if not names or [*found] != names:
        return Topology()
    more = [[*found[name][len(names) :], "", ""] for name in names]
    return Topology(
        names=tuple(names),
        links=tuple(tuple(found[name][: len(names)]) for name in names),
        cpus=tuple(_NOTHING.sub("", cells[0]) for cells in more),
        numa=tuple(_NOTHING.sub("", cells[1]) for cells in more),
    )


# ---------------------------------------------------------------- how the GPUs are shared

# Rows of `nvidia-smi mig -lgi` (drivers 450 to 580 print them alike) and -lci (450 without the placement):
# |   0  MIG 1g.10gb         19        9          2:1     |
# |   0      9       MIG 1g.10gb          0         0          0:1     |
_GPU_INSTANCE = re.compile(r"\|\s*(\d{1,4})\s+MIG\s+(\S+)\s+\d{1,4}\s+(\d{1,4})\s+(\d{1,4}):(\d{1,4})\s*\|")
_COMPUTE_INSTANCE = re.compile(r"\|\s*(\d{1,4})\s+(\d{1,4})\s+MIG\s+\S+\s+\d{1,4}\s+\d{1,4}\s")


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
