"""Set and remove keys in TOML text and leave every other byte as it is.

tomlkit needs seconds for 10,000 lines and changes bytes here and there.  So: find the spans of what is to change
(tomlscan.py, tomldoc.py), put text in or take it out (tomlput.py, tomldrop.py; tomllist.py within brackets), and let a
TOML reader prove that the outcome says exactly what was there, less what was to go and with what was to come.

The reader is tomli: tomllib's own code, compiled.  Below 2.4, as 2.4 reads TOML 1.1 and no container engine does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tomli

from gpunode.core.content import check_size, decode
from gpunode.core.edits.request import Refusal
from gpunode.core.edits.text.tomldoc import Source, lookup
from gpunode.core.edits.text.tomldrop import without
from gpunode.core.edits.text.tomlput import literal, with_values
from gpunode.core.edits.text.tomlscan import Path
from gpunode.core.errors import InputError

__all__ = ["Document", "Path", "edit", "literal", "load", "lookup", "parse"]

_LONG = re.compile(r"[0-9_]{19}|0[xob][0-9A-Fa-f_]{16}")  # in a text without it all integers have 64 bits
_NAN = math.nan  # one for all, so that documents with it can be compared


@dataclass(frozen=True)
class Document(Source):
    """A TOML file that was read: its text, and what it says as plain values (shared: never change them)."""

    def edit(self, sets: Mapping[Path, Any] | None = None, removes: Collection[Path] = ()) -> Document:
        """What `edit` makes of it, proven; the document itself when nothing is to change."""
        wanted = with_values(without(self, removes), dict(_leaves(sets or {})))
        if wanted is self:
            return self
        try:
            says = _read(wanted.text)
        except tomli.TOMLDecodeError:
            says = None
        if says != wanted.doc:
            raise Refusal(
                f"{', '.join('.'.join(path) for path in [*(sets or ()), *removes])}: this part of the file is written"
                " in a way that gpunode cannot edit",
                "write that part of the file as [tables], then run again",
            )
        return Document(wanted.text, wanted.doc)


def load(path: str, data: bytes) -> Document:
    """A TOML file; InputError carries path:line:column."""
    return Document(*parse(path, data))


def parse(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Text and plain values of a TOML file; InputError carries path:line:column."""
    check_size(path, data)
    text = decode(path, data)
    try:
        plain = _read(text)
        if _LONG.search(text) and not _fits(plain):
            raise ValueError("a number of more than 64 bits")
        return text, plain
    except tomli.TOMLDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}:{error.colno}: {error.msg}",
            expected="valid TOML",
            fix="mend the file: the daemon does not start with it either",
        ) from None
    except (RecursionError, ValueError) as error:  # ValueError: a date such as 2020-02-31, a number of 5,000 digits
        raise InputError(f"{path}: {str(error)[:200]}", expected="valid TOML", fix="mend the file") from None


def _fits(value: Any) -> bool:
    """Whether all integers have 64 bits, as TOML has them: no daemon reads longer ones, and Python cannot print all."""
    if isinstance(value, dict):
        return all(map(_fits, value.values()))
    if isinstance(value, list):
        return all(map(_fits, value))
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _read(text: str) -> dict[str, Any]:
    return tomli.loads(text, parse_float=lambda number: _NAN if "nan" in number else float(number))


def edit(text: str, sets: Mapping[Path, Any] | None = None, removes: Collection[Path] = ()) -> str:
    """The text without the keys and tables at `removes`, then with those of `sets`, all else as it was, to the byte.

    Values are strings, booleans, integers, floats, lists of those, and mappings: of a mapping each key is set below
    the path, {} makes an empty table.  A list that is there loses and gains only the elements that differ.  Paths of
    `removes` that are not there are passed over; a parent that only its now removed children implied goes with them.
    A table that is not there yet is written after its nearest relatives.  Raises Refusal where a value stands in the
    way of a table or the other way round, TOMLDecodeError for text that is no TOML.
    """
    return Document(text, _read(text)).edit(sets, removes).text


def _leaves(sets: Mapping[Path, Any]) -> Iterator[tuple[Path, Any]]:
    for path, value in sets.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves({(*path, key): item for key, item in value.items()})
        else:
            yield path, value
