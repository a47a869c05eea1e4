"""How a key of gpunode.yml is declared."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, doc: str) -> Any:
    """A spec key with its default and its one line of documentation (docs/spec.md is generated from these)."""
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"doc": doc})
    return field(default=default, metadata={"doc": doc})
