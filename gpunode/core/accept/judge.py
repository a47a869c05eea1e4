"""Measures → checks: by floors where one's conditions are met, by the like of a machine everywhere.

An outlier shows where no floor is known.  By the median and the MAD (median of the distances from it): both hold when
almost half of the fleet is bad, which mean and standard deviation do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from gpunode.core.accept import Level, Measure
from gpunode.core.accept.floors import Floor, Machine, floor_of
from gpunode.core.grouped import grouped
from gpunode.core.late import dataclass
from gpunode.core.model import Check

_FIX = {
    "h2d": "nvidia-smi -q -d PCIE under load: generation and width; reseat the GPU, or look at riser and slot",
    "p2p": "nvidia-smi nvlink -s, nvidia-smi topo -p2p r; ACS and IOMMU on PCIe",
    "allreduce": "systemctl status nvidia-fabricmanager; nvidia-smi nvlink -s; NCCL_DEBUG=INFO all_reduce_perf",
    "gemm": "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE while it runs",
    "loopback": "ibstat; ACS and IOMMU between GPU and network card; dma_buf or nvidia_peermem",
    "pair": "ibstat on both machines: rate and width of the port, then cable and switch",
}
_FIX["d2h"] = _FIX["h2d"]
LEAST = 4  # values, below which nobody is an outlier
WARN, FAIL = 0.95, 0.90  # of the median: SuperBench's rule for nodes, gpu-fryer's for GPUs of a node
ROBUST = 3.5  # Iglewicz and Hoaglin: 0.6745 × distance / MAD


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The values of one metric over machines of one kind."""

    metric: str
    kind: str
    unit: str
    count: int
    least: float
    median: float
    most: float
    mad: float


@dataclass(frozen=True, kw_only=True)
class ExpectedSpeed:
    """The floor of a metric on a machine, for the record; None: none is known."""

    metric: str
    alive: float
    full: float
    unit: str
    source: str
    source_date: str


def floor_checks(
    measures: Sequence[Measure], machine: Machine, floors: Sequence[Floor], level: Level
) -> Iterator[Check]:
    """A check for each metric.  At `quick` a machine that works and is slow is a warning; above it fails."""
    for metric, mine in grouped((one.metric, one) for one in measures).items():
        judged = [(measure, floor_of(measure, machine, floors)) for measure in mine]
        known = [(measure, floor) for measure, floor in judged if floor]
        if len(known) < len(judged):
            one = next(measure for measure, floor in judged if floor is None)
            yield Check(
                id=f"accept.{metric}", status="not-proven", message=f"{_range(mine)}; {_no_floor(one, machine)}"
            )
            continue
        dead = [(m, f) for m, f in known if m.value < f.alive]
        slow = [(m, f) for m, f in known if f.alive <= m.value < f.full]
        fix = _FIX.get(metric, "")
        if dead:
            text = f"{_listed(dead)} below {dead[0][1].alive:g}: something is broken, or another way was taken"
            yield Check(id=f"accept.{metric}", status="failed", message=text, fix=fix)
        elif slow:
            text = f"{_listed(slow)} below {slow[0][1].full:g}: works, not at full speed"
            status = "warning" if level == "quick" else "failed"
            yield Check(id=f"accept.{metric}", status=status, message=text, fix=fix)  # type: ignore[arg-type]
        else:
            full = known[0][1].full
            yield Check(id=f"accept.{metric}", status="passed", message=f"{_range(mine)}, {full:g} asked for")


def count_checks(measures: Sequence[Measure], machine: Machine) -> Iterator[Check]:
    """A tool that speaks of fewer GPUs than the machine has did not see them all; of more, it was another machine."""
    for metric, mine in grouped((one.metric, one) for one in measures).items():
        seen = len(mine) if metric in _EACH else mine[0].gpus if metric == "allreduce" else machine.gpus
        if seen != machine.gpus:
            text = f"{mine[0].tool} speaks of {seen} GPUs, and the machine has {machine.gpus}"
            fix = "nvidia-smi -L; CUDA_VISIBLE_DEVICES, and MIG, which hides GPUs from it"
            yield Check(id=f"accept.{metric}.count", status="failed", message=text, fix=fix)


_EACH = ("h2d", "d2h", "gemm")  # one value of each GPU


def expected_of(measures: Sequence[Measure], machine: Machine, floors: Sequence[Floor]) -> tuple[ExpectedSpeed, ...]:
    """The floors that were taken."""
    found = {}
    for measure in measures:
        if floor := floor_of(measure, machine, floors):
            found[measure.metric] = ExpectedSpeed(
                metric=measure.metric, alive=floor.alive, full=floor.full, unit=measure.unit, source=floor.source,
                source_date=floor.source_date,
            )  # fmt: skip
    return tuple(found.values())


def spread_of(metric: str, kind: str, unit: str, values: Sequence[float]) -> Spread:
    """Of at least one value."""
    middle, least, most = median(values), min(values), max(values)
    mad = median(abs(value - middle) for value in values)
    return Spread(
        metric=metric, kind=kind, unit=unit, count=len(values), least=least, median=middle, most=most, mad=mad
    )


def judged(value: float, spread: Spread) -> str:
    """passed, warning or failed by its like; "" where these are too few."""
    if spread.count < LEAST:
        return ""
    far = 0.6745 * (spread.median - value) > ROBUST * spread.mad
    if value < FAIL * spread.median and far:
        return "failed"
    return "warning" if value < WARN * spread.median and far else "passed"


def spreads(hosts: Mapping[str, tuple[Machine, Sequence[Measure]]]) -> dict[tuple[str, str], Spread]:
    """(kind of machine, metric) → the values of all machines of that kind."""
    values = grouped(((machine.kind, one.metric), one) for machine, measures in hosts.values() for one in measures)
    return {
        (kind, metric): spread_of(metric, kind, found[0].unit, [measure.value for measure in found])
        for (kind, metric), found in values.items()
    }


def fleet_checks(
    measures: Sequence[Measure], machine: Machine, known: Mapping[tuple[str, str], Spread]
) -> Iterator[Check]:
    """What of a machine is far below its like; nothing where these are too few, or it is among them."""
    for metric, mine in grouped((one.metric, one) for one in measures).items():
        spread = known[machine.kind, metric]
        found = [(one, how) for one in mine if (how := judged(one.value, spread)) in ("warning", "failed")]
        if not found:
            continue
        far = "; ".join(f"{one.where or 'the machine'}: {one.value:g}" for one, _ in found[:8])
        text = (
            f"{far} {spread.unit}, where {spread.count} machines of its kind have a median of {spread.median:g} "
            f"(MAD {spread.mad:.3g})"
        )
        status = "failed" if any(how == "failed" for _, how in found) else "warning"
        yield Check(id=f"accept.{metric}.fleet", status=status, message=text, fix=_FIX.get(metric, ""))  # type: ignore[arg-type]


def _range(measures: Sequence[Measure]) -> str:
    values, unit = [measure.value for measure in measures], measures[0].unit
    if len(values) == 1:
        return f"{values[0]:g} {unit}"
    return f"{min(values):g} to {max(values):g} {unit} ({len(values)} values)"


def _listed(found: Sequence[tuple[Measure, Floor]]) -> str:
    return "; ".join(f"{m.where + ': ' if m.where else ''}{m.value:g} {m.unit}" for m, _ in found[:8])


def _no_floor(measure: Measure, machine: Machine) -> str:
    size = f", {measure.size >> 20} MiB" if measure.size else ""
    algorithm = f", {measure.algorithm}" if measure.algorithm else ""
    return f"no floor is known for {machine.kind} by {measure.tool}{size}{algorithm}"
