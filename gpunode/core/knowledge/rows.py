"""The rows of the knowledge, for a person who asks where one comes from and how old it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.knowledge import Knowledge, Table, source_date_of, source_names, source_of
from gpunode.core.late import dataclass
from gpunode.core.numbers import version_tuple


@dataclass(frozen=True, kw_only=True)
class KnowledgeRow:
    """One thing that is known: `keys` name it, `data` is plain.

    `checked` is the day it was compared with `source`, `source_date` the day of that source, "" for one that is not
    verified.  `settled`: nothing of it changes any more, so that it has no age: its support
    ended, or it is of hardware.
    """

    table: str  # GPU, driver branch, CUDA release, distribution, repository key, repository, packages
    keys: tuple[str, ...]
    data: Mapping[str, Any]
    source: str
    checked: str
    source_date: str
    settled: bool = False


def rows(tables: Mapping[str, Any], knowledge: Knowledge) -> Iterator[KnowledgeRow]:
    """Every row, in the order of the files."""
    gpus, drivers, cuda, repos = (tables[name] for name in ("gpus", "drivers", "cuda", "repos"))
    for model in knowledge.gpus.values():
        data = {k: getattr(model, k) for k in _GPU}
        source = "; ".join(gpus["sources"][letter] for letter in model.source)
        dated = source_date_of({"source": "; ".join(model.source)}, gpus)
        keys = (model.id, model.name)
        yield KnowledgeRow(
            table="GPU", keys=keys, data=data, source=source, checked=gpus["checked"], source_date=dated, settled=True
        )
    for branch in drivers["branches"]:
        ended = knowledge.branches[branch["branch"]].ended(knowledge.as_of)
        yield _row("driver branch", (str(branch["branch"]),), branch, drivers, settled=ended)
    majors = [version_tuple(release["version"])[0] for release in cuda["toolkits"]]
    for release, major in zip(cuda["toolkits"], majors, strict=True):
        yield _row("CUDA release", (release["version"],), release, cuda, settled=major < max(majors))
    for distro in repos["distros"]:
        rows_of = [knowledge.distros[key] for key in distro["keys"]]
        ended = all(row.eol and row.eol < knowledge.as_of[:7] for row in rows_of)
        yield _row("distribution", tuple(distro["keys"]), distro, repos, settled=ended)
    for key in repos["keys"]:
        yield _row("repository key", (key["id"], key["fingerprint"]), key, repos, settled=bool(key["fingerprint"]))
    for name, row in repos["repositories"].items():
        yield _row("repository", (name,), row, repos)
    for row in repos.get("precompiled", ()):
        yield _row("built modules", (f"modules of {row['signer']}", *row["keys"]), row, repos)
    for name, row in repos["packages"].items():
        yield _row("packages", (name,), row, repos)


_GPU = (
    "id", "name", "chip", "arch", "compute_capability", "kind", "mig", "fabric", "open", "confidence",
)  # fmt: skip


def _row(table: str, keys: tuple[str, ...], row: Table, file: Table, *, settled: bool = False) -> KnowledgeRow:
    return KnowledgeRow(
        table=table,
        keys=keys,
        data={k: v for k, v in row.items() if k not in ("source", "source_date", "checked")},
        source=source_of(row, file),
        checked=row.get("checked") or file["checked"],
        source_date=source_date_of(row, file),
        settled=settled,
    )


@dataclass(frozen=True, kw_only=True)
class RowFault:
    """What stands against a row, or against many alike."""

    table: str
    keys: tuple[str, ...]
    what: str


def faults(tables: Mapping[str, Any], knowledge: Knowledge) -> Iterator[RowFault]:
    """What the knowledge says and cannot prove: the reason why nothing should rest on it before it is looked up."""
    gpus, drivers, cuda, repos = (tables[name] for name in ("gpus", "drivers", "cuda", "repos"))
    for row in drivers["branches"]:
        number, kind, end = row["branch"], row["kind"], row["eol"]
        keys = (str(number),)
        if kind == "unknown" and (not end or drivers["as_of"][:7] <= end != "past"):
            yield RowFault(table="driver branch", keys=keys, what="its kind is not known")
        elif not end and kind != "NFB":  # a new-feature branch has no day of its end
            yield RowFault(table="driver branch", keys=keys, what="the end of its support is not known")
        yield from _not_covered("driver branch", keys, (number,), row, drivers)
    for row in repos["distros"]:
        yield from _not_covered("distribution", tuple(row["keys"]), tuple(row["keys"]), row, repos)
    for row in rows(tables, knowledge):
        if not row.source_date:
            yield RowFault(table=row.table, keys=row.keys, what=f"no source of it was read ({row.source})")
    for table, file, found in (
        ("compute capability", cuda, cuda["capabilities"]),
        ("rule", drivers, drivers["rules"]),
        ("generation", gpus, gpus["architectures"]),
    ):
        for key, one in found.items():
            if all(name in file["sources"] and name not in file["dates"] for name in source_names(one["source"])):
                yield RowFault(table=table, keys=(key,), what=f"no source of it was read ({source_of(one, file)})")
    if "cc" not in gpus["dates"]:
        chips = len({model.chip for model in knowledge.gpus.values()})
        what = f"compute capability of {chips} rests on «{gpus['sources']['cc']}» alone"
        yield RowFault(table="GPU", keys=("compute capability",), what=what)


def _not_covered(
    table: str, keys: tuple[str, ...], names: tuple[Any, ...], row: Table, file: Table
) -> Iterator[RowFault]:
    """The sources of a row that speak of other rows alone."""
    for part in str(row["source"]).split(";"):
        source = part.strip().partition(" ")[0]
        covered = file.get("covers", {}).get(source)
        if covered is not None and not set(covered) & set(names):
            yield RowFault(table=table, keys=keys, what=f"its source «{source}» does not speak of it")


def find(wanted: str, found: Iterator[KnowledgeRow]) -> list[KnowledgeRow]:
    """The rows that a word names: an id, a branch, a release; rocky:9.4 names rocky:9; else a part of a name."""
    word = wanted.strip().lower()
    every = list(found)
    exact = [row for row in every if any(word in (key.lower(), f"10de:{key}".lower()) for key in row.keys)]
    exact = exact or [row for row in every if any(f"10de:{word}" == key for key in row.keys)]
    minor = [row for row in every if row.table == "distribution" and word.partition(".")[0] in row.keys]
    return exact or minor or [row for row in every if any(word in key.lower() for key in row.keys)]
