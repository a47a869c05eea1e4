"""gpunode knowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit, InputError

if TYPE_CHECKING:
    from gpunode.core.knowledge.rows import KnowledgeRow


@click.group(
    epilog="Examples:\n\n\b\n"
    "  gpunode knowledge show 10de:2330\n"
    "  gpunode knowledge show debian:13\n"
    "  gpunode knowledge check"
)
def knowledge() -> None:
    """What gpunode knows of GPUs, driver branches, CUDA, distributions and repositories: where from, how old."""


@knowledge.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode knowledge show\n"
    "  gpunode knowledge show 580\n"
    "  gpunode knowledge show 'H100 PCIe' --format json\n\n"
    "Exit codes: 0 found, 2 no such row."
)
@click.argument("key", required=False)
@format_option("text", "json")
def show(key: str | None, output_format: str) -> int:
    """Print the rows that KEY names (a PCI id, product, branch, CUDA release, distribution, key), or what there is."""
    from gpunode.core.knowledge.rows import find

    every = _rows()
    if not key:
        _show_tables(every, output_format)
        return Exit.OK
    found = find(key, iter(every))
    if not found:
        raise InputError(f"nothing known is called {key!r}", fix="gpunode knowledge show lists what there is")
    if output_format == "json":
        print_json({"rows": [_data(row) for row in found]})
        return Exit.OK
    for row in found[:50]:
        echo(f"{row.table} {', '.join(row.keys)}")
        for name, value in row.data.items():
            echo(f"  {name:<20} {value}")
        dated = f"{row.source_date} ({_age(row)} days ago)" if row.source_date else "unverified: no source was read"
        echo(f"  {'source':<20} {row.source}\n  {'source of':<20} {dated}\n  {'checked':<20} {row.checked}")
    if len(found) > 50:
        echo(f"… and {len(found) - 50} more")
    return Exit.OK


@knowledge.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode knowledge check\n"
    "  gpunode knowledge check --max-age 90 --format json\n\n"
    "Exit codes: 0 fresh and proven, 3 something is old or not proven."
)
@click.option("--max-age", type=click.IntRange(0), default=180, show_default=True, metavar="DAYS", help="What is old.")
@format_option("text", "json")
def check(max_age: int, output_format: str) -> int:
    """Say which rows have old sources, and which are not proven.

    The age is that of a row's source, not of the day on which it was checked; what cannot change has none: hardware,
    keys, CUDA releases of an older major version, branches and distributions whose support ended.  Not proven: a branch
    of unknown kind or without an end, a source that does not speak of its row, a row of which no source was read.
    """
    from dataclasses import asdict

    from gpunode.core.knowledge.rows import faults
    from gpunode.edge.load import knowledge_tables, load_knowledge

    every = [row for row in _rows() if not row.settled]
    old = [row for row in every if row.source_date and _age(row) > max_age]
    unproven = list(faults(knowledge_tables(), load_knowledge()))
    if output_format == "json":
        print_json({"old": [_data(row) for row in old], "unverified": [asdict(one) for one in unproven]})
    else:
        echo(
            f"{len(old)} rows have sources older than {max_age} days"
            if old
            else f"no source is older than {max_age} days"
        )
        for table, number in sorted(_count(old).items()):
            echo(f"  {table}: {number}")
        for one in unproven:
            echo(f"unverified: {one.table} {', '.join(one.keys)}: {one.what}")
    return Exit.PENDING if old or unproven else Exit.OK


# ---------------------------------------------------------------- helpers


def _rows() -> list[KnowledgeRow]:
    from gpunode.core.knowledge.rows import rows
    from gpunode.edge.load import knowledge_tables, load_knowledge

    return list(rows(knowledge_tables(), load_knowledge()))


def _age(row: KnowledgeRow) -> int:
    """Days since its source was written."""
    from datetime import UTC, date, datetime

    return (datetime.now(UTC).date() - date.fromisoformat(row.source_date)).days


def _data(row: KnowledgeRow) -> dict[str, Any]:
    return {
        "table": row.table,
        "keys": list(row.keys),
        "data": dict(row.data),
        "source": row.source,
        "source_date": row.source_date or None,
        "checked": row.checked,
        "age_days": _age(row) if row.source_date else None,
    }


def _count(every: list[KnowledgeRow]) -> dict[str, int]:
    from collections import Counter

    return dict(Counter(row.table for row in every))


def _show_tables(every: list[KnowledgeRow], output_format: str) -> None:
    tables = _count(every)
    dates = {table: [row.source_date for row in every if row.table == table and row.source_date] for table in tables}
    oldest = {table: min(found, default="") for table, found in dates.items()}
    if output_format == "json":
        print_json({"tables": {table: {"rows": n, "oldest": oldest[table]} for table, n in tables.items()}})
        return
    for table, number in tables.items():
        echo(f"{table:<16} {number:>4} rows, the oldest source of {oldest[table] or 'no day'}")
