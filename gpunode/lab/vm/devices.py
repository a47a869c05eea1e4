"""The PCI devices of a machine that boots: their ids, the true sizes of their memory, what chip they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpunode.core.late import regex
from gpunode.edge.load import load_knowledge
from gpunode.lab.hardware import BRIDGE, GpuSpec, parse_gpu, parse_gpus
from gpunode.lab.vm.pci import WIDE

MIB = 1 << 20
# the number of a chip in its first register (nouveau: nvkm/engine/device/base.c)
_CHIPS = "GK104:e4 GK110:f0 GM107:117 GM200:120 GP100:130 GP102:132 GP104:134 GV100:140 TU102:162"
_CHIPS += " TU104:164 GA100:170 GA102:172 AD102:192 AD104:194 GH100:180 GB100:1a0"
CHIPS = {word[:5]: int(word[6:], 16) for word in _CHIPS.split()}
OTHER = regex(r"([0-9a-f]{4}):([0-9a-f]{4}):([0-9a-f]{4})")


def describe(words: Sequence[str]) -> list[dict[str, Any]]:
    """A device for each word, as pci.Device takes it: `h100`, `10de:1b80`, or ID:ID:CLASS of any (a NIC, an NVSwitch).

    Raises InputError.
    """
    return [_describe(f"pci{number}", spec) for number, spec in enumerate(parse_gpus(words, _device))]


def _device(word: str) -> GpuSpec:
    if (match := OTHER.fullmatch(word)) and match[3] not in ("0300", "0302"):
        return GpuSpec(id=word[:9], name=word, class_code=int(match[3], 16), subsystem=word[:9])
    return parse_gpu(word)


def _describe(name: str, spec: GpuSpec) -> dict[str, Any]:
    known = load_knowledge().gpus.get(spec.id)
    chip, wide = (CHIPS.get(known.chip, 0), known.arch in ("Hopper", "Blackwell")) if known else (0, False)
    numbers = (int(part, 16) for part in f"{spec.id}:{spec.subsystem}".split(":"))
    ids = dict(zip(("vendor", "device", "subsystem_vendor", "subsystem_device"), numbers, strict=True))
    ids |= {"class": spec.class_code << 8, "chip": chip}
    return {"name": name, "ids": ids, "bars": _bars(spec, wide=wide)}


def _bars(spec: GpuSpec, *, wide: bool) -> dict[int, tuple[int, int]]:
    """Size and kind of each memory region, as lspci shows them on such devices.

    A data centre's GPU has all of its memory there (T4: a window); from Hopper on, also the registers are 64 bits wide.
    """
    if spec.class_code == BRIDGE or not spec.memory_mib:
        return {0: (32 * MIB, WIDE)}
    window = 1 << (spec.memory_mib - 1).bit_length() if spec.ecc and spec.compute_cap != "7.5" else 256
    numbers = (0, 2, 4) if wide else (0, 1, 3)
    sizes = ((16, WIDE if wide else 0), (window, WIDE), (32, WIDE))
    return {number: (size * MIB, flags) for number, (size, flags) in zip(numbers, sizes, strict=True)}
