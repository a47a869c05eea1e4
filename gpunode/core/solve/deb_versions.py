"""Versions of Debian packages and what depends on them, as dpkg compares them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpunode.core.late import dataclass, regex

_RELATION = regex(r"([a-z0-9][a-z0-9+.-]*)(?::[a-z0-9-]+)?(?:\s*\((<<|<=|=|>=|>>)\s*([^)\s]+)\s*\))?", re.I)
_PIECES = regex(r"([^0-9]*)([0-9]*)")


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One alternative of a dependency: NAME, or NAME (OP VERSION)."""

    name: str
    op: str = ""
    version: str = ""


def parse_relations(text: str) -> Iterator[tuple[Relation, ...]]:
    """`a (>= 1) | b, c:any` → the alternatives of each.

    >>> [len(group) for group in parse_relations("a (>= 1) | b, c:any")]
    [2, 1]
    """
    for group in text.split(","):
        found = tuple(
            Relation(name=m[1], op=m[2] or "", version=m[3] or "")
            for m in (_RELATION.match(one.strip()) for one in group.split("|"))
            if m
        )
        if found:
            yield found


def version_key(version: str) -> tuple[object, ...]:
    """A key that sorts as dpkg does (deb-version(7)): `~`, the end, letters, the rest.

    >>> version_key("1.0~rc1") < version_key("1.0") < version_key("1.0+b1") < version_key("1:0")
    True
    """
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return (int(epoch) if epoch.isdigit() else 0, _part(upstream), _part(revision))


def _part(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Pairs of what stands before a number, as numbers that sort, and the number."""
    found = [
        ((*(-1 if c == "~" else ord(c) + (0 if c.isalpha() else 256) for c in words), 0), int(digits or 0))
        for words, digits in _PIECES.findall(text)
    ]
    return (*found, ((0,), 0))


def fits(version: str, relation: Relation) -> bool:
    """Whether a version is what the relation asks for."""
    if not relation.op:
        return True
    have, want = version_key(version), version_key(relation.version)
    order = (have > want) - (have < want)
    return order in {"<<": (-1,), "<=": (-1, 0), "=": (0,), ">=": (0, 1), ">>": (1,)}[relation.op]
