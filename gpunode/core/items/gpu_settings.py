"""Settings of the GPUs: a unit that makes them at every boot, and each of them as the driver says that it is.

The unit remembers what it found, and puts that back when it stops: so undo, which stops it first, is exact within a
boot, and after the next boot the driver has its own values again.  ECC alone is kept by the GPU itself: activate.sh
sets it, with the former mode in the node's journal, and it is in force after the next reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.items.activation import ACTIVE, ServiceItem, restarted
from gpunode.core.items.file import File
from gpunode.core.items.item import ABSENT, Found, HostCase, Item, Question, StateKind
from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts, NvmlGpu, Problem
from gpunode.core.numbers import whole
from gpunode.core.spec.gpu import OTHERS, GpuSettings

UNIT = "gpunode-gpu.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
PROGRAM = "/usr/lib/gpunode/gpu-settings"
VALUES = "/etc/gpunode/gpu-settings"
_MODES = {"default": "Default", "exclusive-process": "Exclusive_Process", "prohibited": "Prohibited"}


@dataclass(frozen=True, kw_only=True)
class Setting(Item):
    """One setting of the GPUs of a model; `field` of NvmlGpu has what the driver says of each."""

    NAME = "GPU {title}"
    BACK = (ACTIVE,)  # its unit undoes it when it stops
    ASKED_BY = "gpu"
    WANTED = "{value}"
    role: str = "fabric"
    option: str = "activate"
    title: str
    field: str
    value: str
    model: str = OTHERS
    named: frozenset[str] = frozenset()  # models that have settings of their own

    @property
    def name(self) -> str:
        return f"GPU {self.title}" + (f" ({self.model})" if self.model != OTHERS else "")

    def actual(self, facts: NodeFacts) -> str:
        said = {self.said(gpu) or "not read" for gpu in self.gpus(facts)}
        nobody = self.value if facts.nvml else ABSENT  # a model that this node has not, or no driver yet
        return ", ".join(sorted(said)) or nobody

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return restarted(case, self.role, UNIT) if case.pending(self) else {}

    def gpus(self, facts: NodeFacts) -> list[NvmlGpu]:
        """The GPUs that it is a setting of."""
        return [gpu for gpu, model in _models(facts) if (model if model in self.named else OTHERS) == self.model]

    def said(self, gpu: NvmlGpu) -> str:
        """What the driver says of one."""
        return str(getattr(gpu, self.field))


@dataclass(frozen=True, kw_only=True)
class Clocks(Setting):
    """Locked clocks, which no driver lists: a clock above them says that they are not locked."""

    most: int | None  # MHz; None: free, which no driver lists either

    def said(self, gpu: NvmlGpu) -> str:
        if self.most is None:
            return self.value
        return self.value if 0 < whole(gpu.clock) <= self.most else gpu.clock and f"{gpu.clock} MHz"


@dataclass(frozen=True, kw_only=True)
class PowerDefault(Setting):
    """The limit that the driver has by itself, which differs by model."""

    def said(self, gpu: NvmlGpu) -> str:
        return self.value if gpu.power_limit and gpu.power_limit == gpu.power_default else gpu.power_limit


@dataclass(frozen=True, kw_only=True)
class Ecc(Setting):
    """ECC, which waits for a reset."""

    BACK = (StateKind(name="ecc", field="early", by_people=True, theirs=True, called="ECC of "),)
    ENDS = "boot"
    role: str = "driver"

    def said(self, gpu: NvmlGpu) -> str:
        waits = gpu.ecc_pending not in ("", gpu.ecc_current)
        return f"{gpu.ecc_current}, and {gpu.ecc_pending} after a reset" if waits else gpu.ecc_current

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"ecc": {self.model: self.value}}


def wanted(question: Question) -> Found:
    """The unit and the settings; without any in the spec a unit that is there is left with nothing to set."""
    spec, facts = question.spec.gpu, question.facts
    if not spec.given and VALUES not in facts.files:
        return
    if not question.spec.image.load:
        yield Problem(
            what="gpu is set, and image.load is false: nothing loads a driver that could be asked",
            fix="leave gpu out of the image; provision sets it on the machine with its GPU",
        )
        return
    problems = [problem for gpu, model in _models(facts) for problem in _impossible(spec.of(model), gpu)]
    if problems:
        yield problems[0]
        return
    named = frozenset(spec.models)
    settings = [one for model, mine in spec.by_model().items() for one in _settings(mine, model, named)]
    lines = "".join(f"{one.model} {one.field} {one.value}\n" for one in settings if one.role == "fabric")
    if lines or VALUES in facts.files:
        yield from _unit(question, lines)
    yield from settings


def _unit(question: Question, lines: str) -> Found:
    yield File(role="fabric", path=PROGRAM, text=question.templates["gpu-settings.sh.j2"], mode="0755")
    yield File(role="fabric", path=VALUES, text=f"# written by gpunode\n{lines}")
    yield File(role="fabric", path=UNIT_FILE, text=question.templates["gpu.service.j2"])
    yield ServiceItem(role="fabric", unit=UNIT, reads=(PROGRAM, VALUES))


def _models(facts: NodeFacts) -> list[tuple[NvmlGpu, str]]:
    """(GPU, its PCI id)."""
    ids = {gpu.slot: gpu.id for gpu in facts.gpus}
    return [(gpu, ids.get(gpu.slot, "")) for gpu in facts.nvml]


def _settings(spec: GpuSettings, model: str, named: frozenset[str]) -> Iterator[Setting]:
    def setting(title: str, field: str, value: str, kind: type[Setting] = Setting) -> Setting:
        return kind(title=title, field=field, value=value, model=model, named=named)

    if spec.persistence is not None:
        yield setting("persistence mode", "persistence", "Enabled" if spec.persistence else "Disabled")
    if spec.power_limit == 0:
        yield setting("power limit", "power_limit", "default", PowerDefault)
    elif spec.power_limit:
        yield setting("power limit", "power_limit", f"{spec.power_limit}.00")
    if spec.compute_mode != "keep":
        yield setting("compute mode", "compute_mode", _MODES[spec.compute_mode])
    if spec.clocks:
        value = ",".join(map(str, spec.clock_range or ("free",)))
        most = spec.clock_range[1] if spec.clock_range else None
        yield Clocks(title="locked clocks", field="clocks", value=value, most=most, model=model, named=named)
    if spec.ecc is not None:
        value = "Enabled" if spec.ecc else "Disabled"
        yield Ecc(title="ECC", field="ecc_current", value=value, model=model, named=named)


def _impossible(spec: GpuSettings, gpu: NvmlGpu) -> Iterator[Problem]:
    """What the driver says that a GPU cannot; before there is one, the unit finds out."""
    name = f"GPU {gpu.index} ({gpu.name})"
    if spec.power_limit:
        limits = (gpu.power_limit, gpu.power_min, gpu.power_max)
        yield from _range("power_limit", name, (spec.power_limit, spec.power_limit), limits, "power limit")
    if spec.clock_range:
        yield from _range("clocks", name, spec.clock_range, ("", "0", gpu.clock_max), "clocks")
    if spec.ecc is not None and gpu.ecc_current == "N/A":
        yield _refused("ecc", f"{name} has no ECC that can be switched")


def _range(key: str, name: str, values: tuple[int, int], limits: tuple[str, str, str], words: str) -> Iterator[Problem]:
    if "N/A" in limits:
        yield _refused(key, f"{name} has no {words} that can be set")
        return
    try:
        least, most = float(limits[1]), float(limits[2])
    except ValueError:
        return
    if not least <= values[0] <= values[1] <= most:
        takes = f"{name} takes {least:g} to {most:g}"
        yield Problem(
            what=f"gpu.{key} is {','.join(map(str, dict.fromkeys(values)))}, and {takes}",
            fix=f"set it to {least:g} to {most:g} for this node (inventory group) or model (gpu.models)",
        )


def _refused(key: str, what: str) -> Problem:
    return Problem(
        what=f"gpu.{key}: {what}", fix=f"leave gpu.{key} out for this node (inventory group) or model (gpu.models)"
    )
