"""How a key of gpunode.yml is declared and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field
from typing import Any, Literal

from gpunode.core.errors import InputError
from gpunode.core.grammar import Grammar


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


def check_grammar(key: str, value: str, grammar: Grammar) -> None:
    """Raises InputError where the value does not fit the grammar."""
    if not grammar.fits(value):
        fix = f"http://{value}" if grammar.fits(f"http://{value}") else ""
        raise InputError.of(key, f"is {value!r}", expected=f"{grammar.what} ({grammar.source})", fix=fix)


def check_least(key: str, value: int | None, least: int, expected: str) -> None:
    """Raises InputError for a number below the least one; None is no value."""
    if value is not None and value < least:
        raise InputError.of(key, f"is {value}", expected=expected)


def check_places(key: str, text: str, places: Iterable[str]) -> None:
    """Raises InputError where braces stand around something else than a placeholder."""
    known = [f"{{{place}}}" for place in places]
    if set("{}") & set(re.sub("|".join(map(re.escape, known)), "", text)):
        raise InputError.of(key, f"is {text!r}", expected=f"no braces but {', '.join(known)}")
