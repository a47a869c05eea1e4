"""The faked hardware of a node: its PCI functions as sysfs shows them, and a table that the stand-ins answer from."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, replace
from gpunode.core.meant import meant
from gpunode.edge.load import load_mig

VGA, THREE_D, BRIDGE = 0x0300, 0x0302, 0x0680


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """An NVIDIA PCI function: id `10de:2330`, class 0x0302 (3D), 0x0300 (VGA) or 0x0680 (an NVSwitch).

    `flavours` are the kinds of kernel module that drive it; `mig` and `ecc` say whether it has them.
    """

    id: str
    name: str
    memory_mib: int = 0
    compute_cap: str = ""
    class_code: int = THREE_D
    subsystem: str = "10de:1626"
    flavours: tuple[str, ...] = ("open", "proprietary")
    mig: bool = False
    ecc: bool = True


def _datacenter(id: str, name: str, memory: int, cap: str, subsystem: str, *, mig: bool = True) -> GpuSpec:
    return GpuSpec(id=id, name=name, memory_mib=memory, compute_cap=cap, subsystem=subsystem, mig=mig)


def _graphics(id: str, name: str, memory: int, cap: str, *, open_modules: bool = True) -> GpuSpec:
    flavours = ("open", "proprietary") if open_modules else ("proprietary",)
    return GpuSpec(id=id, name=name, memory_mib=memory, compute_cap=cap, class_code=VGA, flavours=flavours, ecc=False)


# Names and memory as nvidia-smi prints them; ids from the PCI id list.
GPUS = {
    "a100": _datacenter("10de:20b2", "NVIDIA A100-SXM4-80GB", 81920, "8.0", "10de:1463"),
    "a10": _datacenter("10de:2236", "NVIDIA A10", 23028, "8.6", "10de:1482", mig=False),
    "b200": replace(
        _datacenter("10de:2901", "NVIDIA B200", 183359, "10.0", "10de:1999"), flavours=("open",)
    ),  # Blackwell has no proprietary module
    "h100": _datacenter("10de:2330", "NVIDIA H100 80GB HBM3", 81559, "9.0", "10de:16c1"),
    "h200": _datacenter("10de:2335", "NVIDIA H200", 143771, "9.0", "10de:18be"),
    "l4": _datacenter("10de:27b8", "NVIDIA L4", 23034, "8.9", "10de:16ca", mig=False),
    "p40": replace(
        _datacenter("10de:1b38", "Tesla P40", 24576, "6.1", "10de:11d9", mig=False), flavours=("proprietary",)
    ),
    "rtx3090": _graphics("10de:2204", "NVIDIA GeForce RTX 3090", 24576, "8.6"),
    "rtx4090": _graphics("10de:2684", "NVIDIA GeForce RTX 4090", 24564, "8.9"),
    "gtx1080": _graphics("10de:1b80", "NVIDIA GeForce GTX 1080", 8192, "6.1", open_modules=False),
    "t4": _datacenter("10de:1eb8", "Tesla T4", 15360, "7.5", "10de:12a2", mig=False),
    "v100": replace(
        _datacenter("10de:1db6", "Tesla V100-PCIE-32GB", 32768, "7.0", "10de:124a", mig=False),
        flavours=("proprietary",),
    ),
}
NVSWITCH = GpuSpec(id="10de:22a3", name="NVIDIA NVSwitch", class_code=BRIDGE, subsystem="10de:1796")
BUNDLES = {"none": (), "hgx-h100": (GPUS["h100"],) * 8 + (NVSWITCH,) * 4}


def parse_gpu(word: str) -> GpuSpec:
    """The GPU of that name (`h100`) or PCI id (`10de:2204`, with a class if it is another: `10de:2204:0302`).

    An id the lab has no figures for is a 3D controller «NVIDIA Device 2236» of 16 GiB.  Raises InputError.
    """
    if word in GPUS:
        return GPUS[word]
    if not (match := re.fullmatch(r"(10de:[0-9a-f]{4})(?::(0300|0302))?", word)):
        names = [*GPUS, *BUNDLES]
        expected = f"one of {', '.join(names)}, or a PCI id such as 10de:2330"
        raise InputError(f"GPU {word!r}", expected=expected, fix=meant(word, names))
    unknown = GpuSpec(id=match[1], name=f"NVIDIA Device {match[1][5:].upper()}", memory_mib=16384, compute_cap="8.0")
    known = next((gpu for gpu in GPUS.values() if gpu.id == match[1]), unknown)
    return replace(known, class_code=int(match[2], 16)) if match[2] else known


def parse_gpus(words: Iterable[str], parse: Callable[[str], GpuSpec] = parse_gpu) -> list[GpuSpec]:
    """What the words stand for: none, a bundle, or the one device that `parse` takes it for.  Raises InputError."""
    lowered = (word.strip().lower() for word in words)
    return [spec for word in lowered for spec in (BUNDLES[word] if word in BUNDLES else (parse(word),))]


def write_hardware(lab: Path, gpus: Sequence[str], *, nouveau: bool, node: str = "") -> None:
    """Fill `lab` (shown in the node at /lab) with the hardware that `gpus` names.

    Words are those of `parse_gpus`.  Writes `sys/bus/pci`, the stand-ins' tables `standin-gpus` and `standin-mig`, and
    `autoload`, the modules udev would load.  GPUs of nodes with other names have other UUIDs.  Raises InputError.
    """
    specs = parse_gpus(gpus)
    build_pci_tree(lab / "sys", specs)
    rows = [_table_row(slot, spec, node) for slot, spec in _slots(specs) if spec.class_code != BRIDGE]
    (lab / "standin-gpus").write_text("".join(f"{row}\n" for row in rows))
    profiles = [row for slot, spec in _slots(specs) if spec.mig for row in _mig_rows(slot, spec)]
    (lab / "standin-mig").write_text("".join(f"{row}\n" for row in profiles))
    autoload = (["nouveau"] if nouveau else []) + (["nvidia"] if rows else [])
    (lab / "autoload").write_text("".join(f"{name}\n" for name in autoload))


def build_pci_tree(root: Path, gpus: Sequence[GpuSpec]) -> None:
    """Write `root`/bus/pci/{devices,drivers,slots} as sysfs has them.

    Devices are plain folders (in sysfs links to one under /sys/devices); the real lspci reads them.
    """
    for name in ("devices", "drivers", "slots"):
        (root / "bus/pci" / name).mkdir(parents=True, exist_ok=True)
    for slot, spec in _slots(gpus):
        _write_function(root / "bus/pci/devices" / slot, spec)


def _slots(gpus: Iterable[GpuSpec]) -> list[tuple[str, GpuSpec]]:
    """Each function with its address: one bus each, in order, as on a board with a switch."""
    return [(f"0000:{0x17 + 7 * index:02x}:00.0", spec) for index, spec in enumerate(gpus)]


def _write_function(folder: Path, spec: GpuSpec) -> None:
    vendor, device = (int(part, 16) for part in spec.id.split(":"))
    sub_vendor, sub_device = (int(part, 16) for part in spec.subsystem.split(":"))
    base, sub = spec.class_code >> 8, spec.class_code & 0xFF
    resources = ["0x00000000f9000000 0x00000000f9ffffff 0x0000000000040200"]
    resources += ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 12
    files = {
        "vendor": f"0x{vendor:04x}",
        "device": f"0x{device:04x}",
        "class": f"0x{spec.class_code:04x}00",
        "subsystem_vendor": f"0x{sub_vendor:04x}",
        "subsystem_device": f"0x{sub_device:04x}",
        "revision": "0xa1",
        "irq": "11",
        "enable": "1",
        "numa_node": "0",
        "modalias": f"pci:v{vendor:08X}d{device:08X}sv{sub_vendor:08X}sd{sub_device:08X}bc{base:02X}sc{sub:02X}i00",
        "resource": "\n".join(resources),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    (folder / "config").write_bytes(_config_space(vendor, device, sub_vendor, sub_device, base, sub))


def _config_space(vendor: int, device: int, sub_vendor: int, sub_device: int, base: int, sub: int) -> bytes:
    """The 256 bytes of a type 0 header without capabilities (PCI Local Bus Specification 3.0, 6.1)."""
    config = bytearray(256)
    struct.pack_into("<HHHHBBBB", config, 0x00, vendor, device, 0x0406, 0x0010, 0xA1, 0, sub, base)
    struct.pack_into("<HH", config, 0x2C, sub_vendor, sub_device)
    struct.pack_into("<BB", config, 0x3C, 11, 1)
    return bytes(config)


def _table_row(slot: str, spec: GpuSpec, node: str) -> str:
    """slot, id, UUID, memory in MiB, compute capability, MIG, ECC, flavours, name: nine columns, tabs between."""
    gpu_uuid = uuid.uuid5(uuid.NAMESPACE_OID, f"{node} {slot} {spec.id}".strip())
    state = {True: "Disabled", False: "[N/A]"}
    columns = (
        slot,
        spec.id,
        f"GPU-{gpu_uuid}",
        str(spec.memory_mib),
        spec.compute_cap,
        state[spec.mig],
        "Enabled" if spec.ecc else "[N/A]",
        ",".join(spec.flavours),
        spec.name,
    )
    return "\t".join(columns)


def _mig_rows(slot: str, spec: GpuSpec) -> Iterator[str]:
    """A line a MIG profile, twelve columns with tabs between: slot, whether a reboot keeps the mode (kept, lost), name,
    id, compute and memory slices, starts, optical flow, media, how many at most, usable GiB, the GPU's own totals.
    """
    product = next(product for product in load_mig() if spec.id in product.ids)
    totals = f"{product.compute} {product.memory} {product.media} {product.ofa}"
    for p in product.profiles:
        starts = " ".join(map(str, p.starts))
        numbers = (p.id, p.compute, p.memory, starts, p.ofa, p.media, p.most, f"{p.usable_gib:.2f}")
        yield "\t".join((slot, product.mode, p.name, *map(str, numbers), totals))
