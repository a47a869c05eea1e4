"""What nvidia-smi says every few seconds while a tool runs: heat, link and clocks under load.

Each line is index, temperature, memory's temperature, PCIe generation and width with their maxima, reasons for lower
clocks.  An idle link sleeps at a lower generation, so that only here its speed can be judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpunode.core.accept import MAX_GPUS
from gpunode.core.accept.text import number
from gpunode.core.checks.gpus import SLOWDOWNS
from gpunode.core.late import dataclass
from gpunode.core.model import Check

FIELDS = (
    "index", "temperature.gpu", "temperature.memory", "pcie.link.gen.current", "pcie.link.gen.gpumax",
    "pcie.link.width.current", "pcie.link.width.max", "clocks_throttle_reasons.active",
)  # fmt: skip
MAX_SAMPLES = 20_000
HOT, HOT_MEMORY = 85, 95  # °C; warnings only, as air-cooled cards run hot by design


@dataclass(frozen=True, kw_only=True)
class Worst:
    """Of one GPU over all samples: the highest heat and link, all reasons."""

    heat: float = 0
    memory_heat: float = 0
    gen: float = 0
    gen_max: float = 0
    width: float = 0
    width_max: float = 0
    reasons: int = 0


def worst_of(samples: Iterable[str]) -> dict[int, Worst]:
    """Sample lines → by GPU; what nvidia-smi does not know ([N/A]) is left out."""
    found: dict[int, Worst] = {}
    for line, _ in zip(samples, range(MAX_SAMPLES), strict=False):
        values = [text.strip() for text in line.split(",")]
        index = number(values[0])
        if len(values) != len(FIELDS) or index is None or index >= MAX_GPUS:
            continue
        one = found.get(int(index), Worst())
        heat, memory, gen, gen_max, width, width_max = (number(text) or 0 for text in values[1:7])
        found[int(index)] = Worst(
            heat=max(one.heat, heat), memory_heat=max(one.memory_heat, memory), gen=max(one.gen, gen),
            gen_max=max(one.gen_max, gen_max), width=max(one.width, width), width_max=max(one.width_max, width_max),
            reasons=one.reasons | _reasons(values[7]),
        )  # fmt: skip
    return found


def _reasons(text: str) -> int:
    try:
        return int(text, 16) if text.startswith("0x") and len(text) <= 18 else 0
    except ValueError:
        return 0


def sample_checks(stage: str, samples: Iterable[str]) -> Iterator[Check]:
    """Failed for a slowdown by the hardware, a warning for heat and for a link below what the GPU can do."""
    worst = sorted(worst_of(samples).items())
    slowed = [f"GPU {gpu}: {words}" for gpu, one in worst for bit, words in SLOWDOWNS.items() if one.reasons & bit]
    if slowed:
        fix = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; airflow, power cables, power supplies"
        yield Check(id=f"accept.{stage}.slowdown", status="failed", message="; ".join(slowed[:16]), fix=fix)
    hot = [f"GPU {gpu}: {one.heat:g} °C" for gpu, one in worst if one.heat > HOT]
    hot += [f"memory of GPU {gpu}: {one.memory_heat:g} °C" for gpu, one in worst if one.memory_heat > HOT_MEMORY]
    if hot:
        yield Check(id=f"accept.{stage}.heat", status="warning", message="; ".join(hot[:16]), fix="airflow, fans")
    narrow = [
        f"GPU {gpu}: Gen{one.gen:g} x{one.width:g} of Gen{one.gen_max:g} x{one.width_max:g}"
        for gpu, one in worst
        if one.gen and one.width and (one.gen < one.gen_max or one.width < one.width_max)
    ]
    if narrow:
        fix = "reseat the GPU; riser, slot, and the generation in the firmware's settings"
        yield Check(id=f"accept.{stage}.link", status="warning", message="; ".join(narrow[:16]), fix=fix)
