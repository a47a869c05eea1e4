"""What the readers of tools' outputs share: bounds, numbers, and JSON between other lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.accept import MAX_OUTPUT
from gpunode.core.printable import printable

_TRIES = 50  # places where a JSON object may begin
_MOST = 1e7  # no unit of ours has larger values; inf and nan are no numbers


def lines(output: str) -> Iterator[str]:
    """The lines within the bounds, each up to 2,000 characters."""
    for line in output[:MAX_OUTPUT].replace("\r", "\n").split("\n"):
        yield line[:2000]


def brief(text: object, limit: int = 200) -> str:
    """Words of a tool's for a message: printable, on one line."""
    return " ".join(printable(str(text)[: 4 * limit]).split())[:limit]


def tail(text: str, count: int = 300) -> str:
    """The last words of an output, on one line, for a message."""
    return brief(text[-4 * count :].replace("\r", "\n"), 4 * count)[-count:]


def number(text: object) -> float | None:
    """A finite number from 0 on; None for anything else, N/A among it."""
    try:
        value = float(text) if isinstance(text, str | int | float) and not isinstance(text, bool) else None
    except (ValueError, OverflowError):
        return None
    return value if value is not None and 0 <= value <= _MOST else None


def json_after(output: str, names: Sequence[str]) -> Mapping[str, Any] | None:
    """The first JSON object that has one of these keys; a tool may print warnings before and after it."""
    text, start = output[:MAX_OUTPUT], -1
    decoder = json.JSONDecoder()
    for _ in range(_TRIES):
        start = text.find("{", start + 1)
        if start < 0:
            return None
        try:
            found, _end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and any(name in found for name in names):
            return found
    return None
