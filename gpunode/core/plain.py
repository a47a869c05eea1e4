"""Reading plain data of any shape: what is not there, or is something else, is empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mapping(holder: Any, *path: str) -> Any:
    """The mapping at a path of keys, {} for none."""
    for key in path:
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder if isinstance(holder, Mapping) else {}


def mappings(holder: Any, key: str) -> list[Any]:
    """The mappings in the list at a key, [] for none."""
    found = holder.get(key) if isinstance(holder, Mapping) else None
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
