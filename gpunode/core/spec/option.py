"""How a key of gpunode.yml is declared and checked."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any, Literal

from gpunode.core.errors import InputError


def option(default: Any, doc: str) -> Any:
    """A spec key with its default and its one line of documentation (docs/spec.md is generated from these)."""
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"doc": doc})
    return field(default=default, metadata={"doc": doc})


def key_in(path: str, key: object) -> str:
    """The path of a key of gpunode.yml that is in that one."""
    return f"{path}.{key}" if path else str(key)


def check_text(
    key: str, value: str | None, pattern: str, expected: str, *, fix: str = "", verb: Literal["is", "has"] = "is"
) -> None:
    """Raises InputError where what a key is, or has, is something else than the pattern, whole; None is no value."""
    if value is not None and not re.fullmatch(pattern, value):
        see = f"see: gpunode explain {key.partition('[')[0]}"
        raise InputError.of(key, f"{verb} {value!r}", expected=expected, fix=fix or see)
