"""Evidence of a fault: lines of logs, and things in the state of a node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A line of a log, or a thing in a node's state; `line` counts from 1, 0 where there is none."""

    source: str
    line: int
    text: str
