"""What the requests of node scripts have in common: keys that are known, words that are harmless, files of lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpunode.core.errors import InputError


def check_keys(where: str, value: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises InputError for a key that is none of the known ones."""
    for key in value:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}", expected=f"one of {', '.join(known)}")


def checked(where: str, pattern: re.Pattern[str], text: Any, what: str) -> str:
    """The text, which fits.  Raises InputError for what a shell or a tool could read as something else."""
    if not isinstance(text, str) or not pattern.match(text):
        raise InputError(f"{where}: {what} {text!r}", expected=f"text like {pattern.pattern}")
    return text


def as_lines(found: Iterable[str]) -> bytes:
    """A request file, one of them a line."""
    return "".join(f"{line}\n" for line in found).encode()
