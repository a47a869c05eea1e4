"""Settings of the GPUs: a unit that makes them at every boot, and each of them as the driver says that it is.

The unit remembers what it found, and puts that back when it stops: so undo, which stops it first, is exact within a
boot, and after the next boot the driver has its own values again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpunode.core.items.activation import ServiceItem
from gpunode.core.items.file import File
from gpunode.core.items.item import ABSENT, Found, HostCase, Item, Question
from gpunode.core.model import NodeFacts, Problem
from gpunode.core.spec.gpu import GpuSpec

UNIT = "gpunode-gpu.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
PROGRAM = "/usr/lib/gpunode/gpu-settings"
VALUES = "/etc/gpunode/gpu-settings"
_MODES = {"default": "Default", "exclusive-process": "Exclusive_Process", "prohibited": "Prohibited"}


@dataclass(frozen=True, kw_only=True)
class Setting(Item):
    """One setting of all GPUs; `field` of NvmlGpu has what the driver says of each."""

    NAME = "GPU {title}"
    role: str = "fabric"
    option: str = "activate"
    title: str
    field: str
    value: str

    @property
    def wanted(self) -> str:
        return self.value

    def actual(self, facts: NodeFacts) -> str:
        said = {getattr(gpu, self.field) or "not read" for gpu in facts.nvml}
        return ", ".join(sorted(said)) or ABSENT


def wanted(asked: Question) -> Found:
    """The unit and the settings; without any in the spec a unit that is there is left with nothing to set."""
    spec, facts = asked.spec.gpu, asked.facts
    if not spec.given and VALUES not in facts.files:
        return
    if not asked.spec.image.load:
        yield Problem(
            what="gpu is set, and image.load is false: nothing loads a driver that could be asked",
            fix="leave gpu out of the image; provision sets it on the machine with its GPU",
        )
        return
    if problem := _impossible(spec, facts):
        yield problem
        return
    settings = list(_settings(spec))
    lines = "".join(f"{one.field} {one.value}\n" for one in settings)
    yield File(role="fabric", path=PROGRAM, text=asked.templates["gpu-settings.sh.j2"], mode="0755")
    yield File(role="fabric", path=VALUES, text=f"# written by gpunode\n{lines}")
    yield File(role="fabric", path=UNIT_FILE, text=asked.templates["gpu.service.j2"])
    yield ServiceItem(role="fabric", unit=UNIT)
    yield from settings


def _settings(spec: GpuSpec) -> Iterator[Setting]:
    if spec.persistence is not None:
        value = "Enabled" if spec.persistence else "Disabled"
        yield Setting(title="persistence mode", field="persistence", value=value)
    if spec.power_limit is not None:
        yield Setting(title="power limit", field="power_limit", value=f"{spec.power_limit}.00")
    if spec.compute_mode != "keep":
        yield Setting(title="compute mode", field="compute_mode", value=_MODES[spec.compute_mode])


def _impossible(spec: GpuSpec, facts: NodeFacts) -> Problem | None:
    """What the driver says that a GPU cannot; before there is one, the unit finds out."""
    for gpu in facts.nvml if spec.power_limit is not None else ():
        if "N/A" in (gpu.power_limit, gpu.power_min, gpu.power_max):
            return Problem(
                what=f"gpu.power_limit: GPU {gpu.index} ({gpu.name}) has no power limit that can be set",
                fix="leave gpu.power_limit out for this node (inventory group)",
            )
        try:
            least, most = float(gpu.power_min), float(gpu.power_max)
        except ValueError:
            continue
        if not least <= (spec.power_limit or 0) <= most:
            takes = f"GPU {gpu.index} ({gpu.name}) takes {least:g} to {most:g}"
            return Problem(
                what=f"gpu.power_limit is {spec.power_limit}, and {takes}",
                fix=f"set it to {least:g} to {most:g} for this node (inventory group)",
            )
    return None


def stale(case: HostCase) -> bool:
    """Whether the unit has to run again: for a setting that somebody changed, or other ones that are asked for."""
    mine = (PROGRAM, VALUES)
    own = (one for one in case.items.values() if isinstance(one, Setting) or getattr(one, "path", "") in mine)
    return any(map(case.pending, own))
