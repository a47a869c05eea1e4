"""gpunode knowledge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit, InputError

if TYPE_CHECKING:
    from gpunode.core.knowledge import Knowledge
    from gpunode.core.knowledge.pciids import PciGpu
    from gpunode.core.knowledge.rows import Row

PCI_IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")


@click.group(
    epilog="Examples:\n\n\b\n"
    "  gpunode knowledge show 10de:2330\n"
    "  gpunode knowledge show debian:13\n"
    "  gpunode knowledge check --pci-ids /usr/share/misc/pci.ids\n"
    "  gpunode knowledge refresh --pci-ids pci.ids -o ~/.config/gpunode/knowledge"
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
    "Exit codes: 0 fresh and complete, 2 a file that cannot be read, 3 something is old, missing or not proven."
)
@click.option("--max-age", type=click.IntRange(0), default=180, show_default=True, metavar="DAYS", help="What is old.")
@click.option(
    "--pci-ids",
    "pci_ids",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A pci.ids to compare with; this machine's own where it has one.",
)
@format_option("text", "json")
def check(max_age: int, pci_ids: Path | None, output_format: str) -> int:
    """Say which rows have old sources, which are not proven, and which GPUs a newer pci.ids names that are not known.

    The age is that of a row's source, not of the day on which somebody looked; what cannot change has none: hardware,
    keys, CUDA releases of an older major version, branches and distributions whose support ended.  Not proven: a branch
    of unknown kind or without an end, a source that does not speak of its row, a row of which no source was read.
    """
    from dataclasses import asdict

    from gpunode.core.knowledge.pciids import Comparison, compare, parse_pci_ids
    from gpunode.core.knowledge.rows import faults
    from gpunode.edge.load import knowledge_tables, load_knowledge

    every = [row for row in _rows() if not row.settled]
    old = [row for row in every if row.source_date and _age(row) > max_age]
    unproven = list(faults(knowledge_tables(), load_knowledge()))
    path = pci_ids or next((Path(p) for p in PCI_IDS if Path(p).exists()), None)
    compared = compare(parse_pci_ids(_text(path)), load_knowledge()) if path else Comparison()
    if output_format == "json":
        missing = [{"id": gpu.id, "chip": gpu.chip, "name": gpu.name} for gpu in compared.missing]
        listed = {"old": [_data(row) for row in old], "unverified": [asdict(one) for one in unproven]}
        print_json({**listed, "pci_ids": str(path or ""), "missing": missing})
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
        if path is None:
            echo("no pci.ids here to compare with (Debian's package pci.ids)")
        elif not compared.missing:
            echo(f"every GPU that {path} names is known")
        for gpu in compared.missing:
            echo(f"not known: {gpu.id} {gpu.chip} {gpu.name}")
        for gpu, chip in compared.other_chip:
            echo(f"{gpu.id} {gpu.name}: chip {chip} here, {gpu.chip} there")
    return Exit.PENDING if old or unproven or compared.missing or compared.other_chip else Exit.OK


@knowledge.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode knowledge refresh --from vendor -o ~/.config/gpunode/knowledge\n"
    "  gpunode knowledge refresh --from /srv/mirror --distro rocky:9 -o ~/.config/gpunode/knowledge\n"
    "  gpunode knowledge refresh --pci-ids /usr/share/misc/pci.ids -o ~/.config/gpunode/knowledge\n"
    "  export GPUNODE_KNOWLEDGE=~/.config/gpunode/knowledge\n\n"
    "Exit codes: 0 written, or nothing to change; 1 nothing could be read; 2 a file that has another form."
)
@click.option(
    "--from",
    "place",
    metavar="PLACE",
    help="Read what NVIDIA publishes: vendor (its servers), or a copy by host name, as wget --mirror makes it: a URL "
    "or a folder.",
)
@click.option("--distro", "distros", multiple=True, metavar="ID:VERSION", help="Of --from: these repositories alone.")
@click.option("--pci-ids", "pci_ids", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A pci.ids.")
@click.option(
    "--supported-gpus",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The supported-gpus.json of a driver; it names no chips: these come from the pci.ids, else from neighbours.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write the tables to; GPUNODE_KNOWLEDGE names it for all commands.",
)
@format_option("text", "json")
def refresh(
    place: str | None,
    distros: tuple[str, ...],
    pci_ids: Path | None,
    supported_gpus: Path | None,
    output: Path,
    output_format: str,
) -> int:
    """Write tables that are up to date: GPUs of a newer list, and with --from driver branches, CUDA, repositories.

    --from reads releases.json, the redistrib_VERSION.json of drivers and CUDA, and the index of each repository: what
    it really holds, by architecture, with its key; the index of each helm chart's repository, and for charts and images
    that lie in a registry its list of tags.  Comments stay, and marks that only people know: ends of support,
    generations, package names.  Nothing becomes older; a row that changes gets the day of its source.
    """
    from gpunode.edge.load import knowledge_text, load_knowledge

    if not (place or pci_ids or supported_gpus):
        raise InputError("nothing to refresh from", expected="--from PLACE, --pci-ids FILE, --supported-gpus FILE")
    if distros and not place:
        raise click.UsageError("--distro needs --from")
    data: dict[str, Any] = {}
    texts: dict[str, str] = {}
    lines: list[str] = []
    if place:
        texts |= _published(place, distros, data, lines)
    if pci_ids or supported_gpus:
        texts["gpus"] = _gpus(pci_ids, supported_gpus, knowledge_text("gpus"), load_knowledge(), data, lines)
    output.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (output / f"{name}.toml").write_text(text, encoding="utf-8")
    if output_format == "json":
        one = {"file": str(output / "gpus.toml")} if "gpus" in texts else {}
        print_json({**one, "files": [str(output / f"{name}.toml") for name in texts], **data})
        return Exit.OK
    for line in lines:
        echo(line)
    echo(f"written: {', '.join(f'{output}/{name}.toml' for name in texts)}; use them with GPUNODE_KNOWLEDGE={output}")
    return Exit.OK


def _published(place: str, distros: tuple[str, ...], data: dict[str, Any], lines: list[str]) -> dict[str, str]:
    """The tables that follow what NVIDIA publishes, by name."""
    from dataclasses import asdict
    from datetime import UTC, datetime

    from gpunode.core.errors import GpunodeError
    from gpunode.core.knowledge.published import update_cuda, update_drivers, update_kubernetes, update_repos
    from gpunode.edge.bundle.published import Place, read_published
    from gpunode.edge.load import knowledge_text, load_knowledge, load_kube_knowledge

    known = load_knowledge()
    for distro in distros:
        if distro not in known.distros:
            raise InputError(f"--distro {distro}", expected=f"one of {', '.join(known.distros)}")
    found = read_published(Place(base=place), known, distros, kube=None if distros else load_kube_knowledge())
    every = [one for by_arch in found.held.values() for one in by_arch.values()]
    if not (found.releases or found.redistributed or every or found.toolkits or found.charts or found.tags):
        raise GpunodeError(
            f"nothing could be read from {place}: {found.unread[0]}", fix="look at the network, or --from"
        )
    today = datetime.now(UTC).date().isoformat()
    texts, changes = {}, []
    for name, (text, changed) in {
        "drivers": update_drivers(knowledge_text("drivers"), found.releases, found.redistributed, every, today=today),
        "cuda": update_cuda(knowledge_text("cuda"), found.redistributed, today=today),
        "repos": update_repos(knowledge_text("repos"), found.held, found.toolkits, today=today, keys=found.keys),
        "kubernetes": update_kubernetes(knowledge_text("kubernetes"), found.charts, found.tags, today=today),
    }.items():
        texts[name] = text
        changes += changed
    data["changes"] = [asdict(change) for change in changes]
    data["unread"] = list(found.unread)
    lines += [f"{change.row}: {change.key} {change.old or '(none)'} → {change.new}" for change in changes]
    lines += [f"not read: {one}" for one in found.unread]
    return texts


def _gpus(
    pci_ids: Path | None,
    supported_gpus: Path | None,
    table: str,
    known: Knowledge,
    data: dict[str, Any],
    lines: list[str],
) -> str:
    """gpus.toml with the GPUs of newer lists; what is known already stays as it is."""
    from dataclasses import replace

    from gpunode.core.knowledge.pciids import add_gpus, compare, parse_pci_ids, parse_supported_gpus, version_of

    listed = _text(pci_ids) if pci_ids else ""
    day = version_of(listed)
    found: dict[str, PciGpu] = parse_pci_ids(listed) if pci_ids else {}
    for pci_id, gpu in (parse_supported_gpus(_text(supported_gpus)) if supported_gpus else {}).items():
        other = found.get(pci_id)
        found[pci_id] = replace(other, name=gpu.name, source=other.source + gpu.source) if other else gpu
    missing = compare(found, known).missing
    given = "given to gpunode knowledge refresh"
    sources = {"p": f"a pci.ids of {day or 'unknown date'}, {given}", "s": f"a supported-gpus.json, {given}"}
    used = {letter: text for letter, text in sources.items() if any(letter in gpu.source for gpu in missing)}
    text, added, unknown = add_gpus(table, missing, known, sources=used, checked=day)
    data |= {"added": [g.id for g in added], "no_chip": [g.id for g in unknown]}
    for gpu in added:
        lines.append(
            f"added {gpu.id} {gpu.chip} {gpu.name}" + ("" if gpu.source != "s" else " (chip: its neighbours')")
        )
    for gpu in unknown:
        lines.append(f"left out {gpu.id} {gpu.name}: no list names its chip, and its neighbours have several")
    return text


# ---------------------------------------------------------------- helpers


def _rows() -> list[Row]:
    from gpunode.core.knowledge.rows import rows
    from gpunode.edge.load import knowledge_tables, load_knowledge

    return list(rows(knowledge_tables(), load_knowledge()))


def _age(row: Row) -> int:
    """Days since its source was written."""
    from datetime import UTC, date, datetime

    return (datetime.now(UTC).date() - date.fromisoformat(row.source_date)).days


def _data(row: Row) -> dict[str, Any]:
    return {
        "table": row.table,
        "keys": list(row.keys),
        "data": dict(row.data),
        "source": row.source,
        "source_date": row.source_date or None,
        "checked": row.checked,
        "age_days": _age(row) if row.source_date else None,
    }


def _count(every: list[Row]) -> dict[str, int]:
    from collections import Counter

    return dict(Counter(row.table for row in every))


def _show_tables(every: list[Row], output_format: str) -> None:
    tables = _count(every)
    dates = {table: [row.source_date for row in every if row.table == table and row.source_date] for table in tables}
    oldest = {table: min(found, default="") for table, found in dates.items()}
    if output_format == "json":
        print_json({"tables": {table: {"rows": n, "oldest": oldest[table]} for table, n in tables.items()}})
        return
    for table, number in tables.items():
        echo(f"{table:<16} {number:>4} rows, the oldest source of {oldest[table] or 'no day'}")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
