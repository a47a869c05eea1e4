"""One machine against its like: an outlier shows where no floor is known.

By the median and the MAD (median of the distances from it): both hold when almost half of the fleet is bad, which mean
and standard deviation do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from gpunode.core.late import dataclass

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


def spread_of(metric: str, kind: str, unit: str, values: Sequence[float]) -> Spread:
    """Of at least one value."""
    middle = median(values)
    mad = median(abs(value - middle) for value in values)
    least, most = min(values), max(values)
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


def outliers(values: Sequence[tuple[str, float]], spread: Spread) -> Iterator[tuple[str, float, str]]:
    """(where, value, warning or failed) of those that are far below their like."""
    for where, value in values:
        if (status := judged(value, spread)) in ("warning", "failed"):
            yield where, value, status
