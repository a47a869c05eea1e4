"""The rows of the knowledge, for a person who asks where one comes from and how old it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpunode.core.knowledge import Knowledge, source_date_of, source_of

Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that is known: `keys` name it, `data` is plain.

    `checked` is the day it was compared with `source`, `source_date` the day of that source, "" for one that is not
    verified.  `settled`: its support has ended, so that nothing of it changes any more.
    """

    table: str  # GPU, driver branch, CUDA release, distribution, repository key, repository, packages
    keys: tuple[str, ...]
    data: Mapping[str, Any]
    source: str
    checked: str
    source_date: str
    settled: bool = False


def rows(tables: Mapping[str, Any], knowledge: Knowledge) -> Iterator[Row]:
    """Every row, in the order of the files."""
    gpus, drivers, cuda, repos = (tables[name] for name in ("gpus", "drivers", "cuda", "repos"))
    for model in knowledge.gpus.values():
        data = {k: getattr(model, k) for k in _GPU}
        source = "; ".join(gpus["sources"][letter] for letter in model.source)
        dated = source_date_of({"source": "; ".join(model.source)}, gpus)
        keys = (model.id, model.name)
        yield Row(table="GPU", keys=keys, data=data, source=source, checked=gpus["checked"], source_date=dated)
    for branch in drivers["branches"]:
        ended = knowledge.branches[branch["branch"]].ended(knowledge.as_of)
        yield _row("driver branch", (str(branch["branch"]),), branch, drivers, settled=ended)
    for release in cuda["toolkits"]:
        yield _row("CUDA release", (release["version"],), release, cuda)
    for distro in repos["distros"]:
        rows_of = [knowledge.distros[key] for key in distro["keys"]]
        ended = all(row.eol and row.eol < knowledge.as_of[:7] for row in rows_of)
        yield _row("distribution", tuple(distro["keys"]), distro, repos, settled=ended)
    for key in repos["keys"]:
        yield _row("repository key", (key["id"], key["fingerprint"]), key, repos)
    for name, row in repos["repositories"].items():
        yield _row("repository", (name,), row, repos)
    for row in repos.get("precompiled", ()):
        yield _row("built modules", (f"modules of {row['signer']}", *row["keys"]), row, repos)
    for name, row in repos["packages"].items():
        yield _row("packages", (name,), row, repos)


_GPU = (
    "id", "name", "chip", "arch", "compute_capability", "kind", "memory_gb", "mig", "fabric", "open", "confidence",
)  # fmt: skip


def _row(table: str, keys: tuple[str, ...], row: Table, file: Table, *, settled: bool = False) -> Row:
    return Row(
        table=table,
        keys=keys,
        data={k: v for k, v in row.items() if k not in ("source", "source_date", "checked")},
        source=source_of(row, file),
        checked=row.get("checked") or file["checked"],
        source_date=source_date_of(row, file),
        settled=settled,
    )


def find(wanted: str, found: Iterator[Row]) -> list[Row]:
    """The rows that a word names: an id, a branch, a release; rocky:9.4 names rocky:9; else a part of a name."""
    word = wanted.strip().lower()
    every = list(found)
    exact = [row for row in every if any(word in (key.lower(), f"10de:{key}".lower()) for key in row.keys)]
    exact = exact or [row for row in every if any(f"10de:{word}" == key for key in row.keys)]
    minor = [row for row in every if row.table == "distribution" and word.partition(".")[0] in row.keys]
    return exact or minor or [row for row in every if any(word in key.lower() for key in row.keys)]
