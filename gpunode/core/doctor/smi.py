"""What `nvidia-smi -q` prints, as text or as XML (-x), → the GPUs, as the probe would have them.

Line by line: each of its elements stands on its own line, and nothing else is taken for XML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpunode.core.checks.gpus import LOST, RESET, SLOWDOWNS
from gpunode.core.late import regex
from gpunode.core.model import NvmlGpu

MARK = regex(r"=NVSMI LOG=|<nvidia_smi_log>|^GPU [0-9A-F]{8}:[0-9A-F:.]+$", re.M)  # its beginning
_GPU = regex(r'^(?:GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)|\s*<gpu id="([0-9A-Fa-f:.]+)">)\s*$')
_TEXT = regex(r"^( {4,40})(\S[^:]{0,60}?) *(?:: (.{0,80}))?$")
_ELEMENT = regex(r"^\s*<(\w{1,60})>(?:([^<]{0,80})</\1>)?\s*$")
_END = regex(r"^\s*</(\w{1,60})>\s*$")
# field of NvmlGpu → the last two names on the way to its value, of the text and of XML
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "name": ("/product name", "gpu/product_name"),
    "mig_current": ("mig mode/current", "mig_mode/current_mig"),
    "mig_pending": ("mig mode/pending", "mig_mode/pending_mig"),
    "retired_pending": (
        "retired pages/pending page blacklist",
        "retired_pages/pending_blacklist",
        "retired_pages/pending_retirement",
    ),
    "remap_pending": ("remapped rows/pending", "remapped_rows/remapped_row_pending"),
    "remap_failure": ("remapped rows/remapping failure occurred", "remapped_rows/remapped_row_failure"),
    "fabric_state": ("fabric/state", "fabric/state"),
    "fabric_status": ("fabric/status", "fabric/status"),
    "recovery": ("/gpu recovery action", "gpu/gpu_recovery_action"),
}
_REASONS = {words.lower(): bit for bit, words in SLOWDOWNS.items()}


def smi_gpus(lines: Iterable[str]) -> Iterator[tuple[int, NvmlGpu]]:
    """The GPUs with the number of the line that each begins in, from 0."""
    slot, first, index = "", 0, 0
    values: dict[str, str] = {}
    way: list[str] = []
    for number, line in enumerate(lines):
        if head := _GPU.match(line):
            if slot:
                yield first, _gpu(index, slot, values)
                index += 1
            slot, first, values, way = head[1] or head[2], number, {}, ["gpu"] if head[2] else []
        elif not slot:
            continue
        elif element := _ELEMENT.match(line):
            if element[2] is None:
                way.append(element[1])
            else:
                values[f"{way[-1] if way else ''}/{element[1]}"] = element[2].strip()
        elif end := _END.match(line):
            if way and way[-1] == end[1]:
                way.pop()
        elif text := _TEXT.match(line):
            depth = len(text[1]) // 4 - 1
            name = text[2].lower()
            way = [*way[:depth], name]
            if text[3] is not None:
                values[f"{way[-2] if len(way) > 1 else ''}/{name}"] = text[3].strip()
    if slot:
        yield first, _gpu(index, slot, values)


def _gpu(index: int, slot: str, values: Mapping[str, str]) -> NvmlGpu:
    known: dict[str, Any] = {
        field: next((values[name] for name in names if name in values), "") for field, names in _FIELDS.items()
    }
    active = 0
    asked = False
    for name, value in values.items():
        reason = name.rpartition("/")[2].removeprefix("clocks_event_reason_").removeprefix("clocks_throttle_reason_")
        bit = _REASONS.get(reason.replace("_", " "))
        if bit and value in ("Active", "Not Active"):
            asked = True
            active |= bit if value == "Active" else 0
    fault = next((word for value in values.values() if (word := value.strip("[]")) in (LOST, RESET)), "")
    return NvmlGpu(
        index=index, slot=slot.lower(), event_reasons=f"{active:#018x}" if asked else "", fault=fault, **known
    )
