"""selftest: what a machine says of its GPUs by several ways, compared field by field, and judged check by check.

`judge(seen)` runs the table of `checks`; `record` is what was captured, `readings` bring each source into one shape.
"""

from __future__ import annotations

from gpunode.core.selftest.checks import CHECKS, judge
from gpunode.core.selftest.record import Capture, Record, Result, outcome_of

__all__ = ["CHECKS", "Capture", "Record", "Result", "judge", "outcome_of"]
