"""What a sound machine reaches (knowledge/floors.toml): a floor is taken only where all of its conditions are met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpunode.core.accept import Kind, Measure
from gpunode.core.late import dataclass, replace
from gpunode.core.model import NodeFacts


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Below `alive` something is broken; from there to `full` it works and is slow."""

    metric: str
    gpus: tuple[str, ...]  # PCI device ids without the vendor: 2330; (): any
    count: int  # GPUs that took part; 0: each by itself
    fabric: str  # "": any
    tool: str
    size: int  # bytes of the message; 0: not a matter of messages
    kind: Kind
    algorithm: str  # "": any
    alive: float
    full: float
    source: str
    source_date: str
    share: bool = False  # alive and full are parts of the port's rate


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What floors are chosen by: one model of GPU ("" where there are several), and what joins them."""

    model: str  # 10de:2330
    gpus: int
    fabric: str

    @property
    def kind(self) -> str:
        """By which machines are compared with each other."""
        return f"{self.gpus} × {self.model or 'mixed'} ({self.fabric})"


def parse_floors(table: Mapping[str, Any]) -> tuple[Floor, ...]:
    """The parsed file → rows; keys of sources become the text and the date they stand for."""
    return tuple(
        Floor(
            **{
                **row,
                "gpus": tuple(row["gpus"]),
                "source": table["sources"][row["source"]],
                "source_date": table["dates"][row["source"]],
            }
        )
        for row in table["floors"]
    )


def floor_of(measure: Measure, machine: Machine, floors: Sequence[Floor]) -> Floor | None:
    """The first floor whose conditions this measure meets; one that is a share, of the rate of its port."""
    floor = next((floor for floor in floors if _fits(floor, measure, machine)), None)
    if floor is None or not floor.share:
        return floor
    return replace(floor, alive=floor.alive * measure.rate, full=floor.full * measure.rate)


def _fits(floor: Floor, measure: Measure, machine: Machine) -> bool:
    return (
        floor.metric == measure.metric
        and floor.tool == measure.tool
        and (not floor.gpus or machine.model.removeprefix("10de:") in floor.gpus)
        and (measure.rate > 0 or not floor.share)
        and floor.fabric in ("", machine.fabric)
        and floor.count in (0, measure.gpus)
        and (not floor.size or (floor.size, floor.kind) == (measure.size, measure.kind))
        and floor.algorithm in ("", measure.algorithm)
    )


def machine_of(facts: NodeFacts) -> Machine:
    """`fabric`: nvswitch, nvlink (each GPU to each), nvlink-some (bridged pairs, two quads), pcie, none (one GPU)."""
    models = Counter(gpu.id for gpu in facts.gpus)
    model = next(iter(models)) if len(models) == 1 else ""
    return Machine(model=model, gpus=len(facts.gpus), fabric=_fabric(facts))


def _fabric(facts: NodeFacts) -> str:
    if len(facts.gpus) < 2:
        return "none"
    if facts.nvswitches or facts.nvlink5_fabric or any(g.fabric_state == "Completed" for g in facts.nvml):
        return "nvswitch"
    names = facts.topology.names
    gpus = [number for number, name in enumerate(names) if name.startswith("GPU")]
    joined = [facts.topology.links[a][b].startswith("NV") for a in gpus for b in gpus if a != b]
    if not joined:
        return "unknown"
    return "nvlink" if all(joined) else "nvlink-some" if any(joined) else "pcie"
