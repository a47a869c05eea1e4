"""The data of knowledge/kube_old.toml as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpunode.core.knowledge.kubernetes import Server, server_of

Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Kinds that are served as `to` from `since` on; `gone` is the first server without the old one, None for none."""

    kinds: frozenset[str]
    old: frozenset[str]
    to: str
    since: Server
    gone: Server | None
    rule: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Kinds without a successor; `out`: they are taken out."""

    kinds: frozenset[str]
    apis: frozenset[str]
    gone: Server
    out: bool
    instead: str
    source: str


@dataclass(frozen=True, kw_only=True)
class OldWord:
    """An annotation, a label, a resource or an image's beginning; `new` is a rule's name for annotations."""

    old: str
    new: str
    since: Server
    why: str
    source: str


@dataclass(frozen=True, kw_only=True)
class OldForms:
    moved: tuple[Moved, ...]
    ended: tuple[Ended, ...]
    annotations: tuple[OldWord, ...]
    labels: tuple[OldWord, ...]
    resources: tuple[OldWord, ...]
    images: tuple[OldWord, ...]
    superseded: tuple[OldWord, ...]  # an image's name, and the component that it is today


def parse_old_forms(table: Table) -> OldForms:
    """The parsed knowledge/kube_old.toml → OldForms."""
    return OldForms(
        moved=tuple(
            Moved(
                kinds=frozenset(row["kinds"].split()),
                old=frozenset(row["from"].split()),
                to=row["to"],
                since=server_of(row["since"]),
                gone=server_of(row["gone"]) if row["gone"] else None,
                rule=row.get("rule", ""),
                source=row["source"],
            )
            for row in table["moved"]
        ),
        ended=tuple(
            Ended(
                kinds=frozenset(row["kinds"].split()),
                apis=frozenset(row["apis"].split()),
                gone=server_of(row["gone"]),
                out=row["out"],
                instead=row["instead"],
                source=row["source"],
            )
            for row in table["ended"]
        ),
        annotations=_words(table["annotations"]),
        labels=_words(table["labels"]),
        resources=_words(table["resources"]),
        images=_words(table["images"]),
        superseded=_words(table["superseded"]),
    )


def _words(rows: list[Table]) -> tuple[OldWord, ...]:
    return tuple(
        OldWord(
            old=row.get("old") or row["name"],
            new=row.get("new") or row["rule"],
            since=server_of(row.get("since", "1.0")),
            why=row.get("why", ""),
            source=row["source"],
        )
        for row in rows
    )
