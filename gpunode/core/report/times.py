"""Times as runs have them, 2026-11-22T10:15:00Z, and how long something took."""

from __future__ import annotations

import re
from calendar import timegm


def between(start: str, end: str) -> int | None:
    """Seconds from one time to another, not below 0; None where one is not known."""
    if not start or not end:
        return None
    return max(0, _seconds(end) - _seconds(start))


def duration(seconds: int | None) -> str:
    """ "1 h 05 min", "3 min 20 s", "12 s"; "" for None."""
    if seconds is None:
        return ""
    minutes, rest = divmod(seconds, 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _seconds(time: str) -> int:
    year, month, day, hour, minute, second = map(int, re.findall(r"\d+", time)[:6])
    return timegm((year, month, day, hour, minute, second))
