"""The knowledge's tables as what is published says today, as a diff to read before it is committed.

    python -m tools.refresh --from vendor --ubuntu http://archive.ubuntu.com/ubuntu | less
    python -m tools.refresh --debian http://deb.debian.org/debian | less
    python -m tools.refresh --from /srv/mirror --distro rocky:9 -o gpunode/knowledge
    python -m tools.refresh --pci-ids /usr/share/misc/pci.ids -o gpunode/knowledge

--from reads releases.json, the redistrib_VERSION.json of drivers and CUDA, and the index of each repository: what it
really holds, by architecture, with its key; the index of each helm chart's repository, and for charts and images that
lie in a registry its list of tags.  --ubuntu reads which branches and kernels Canonical builds modules for, --debian
which branches its own driver has.  Comments stay, and marks that only people know: ends of support, generations,
package names (CONTRIBUTING.md lists the pages that say those).  Nothing becomes older; a row that changes gets the day
of its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from gpunode.core.diff import unified
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.knowledge import Knowledge
from gpunode.edge.load import load_knowledge, load_kube_knowledge
from gpunode.edge.tables import knowledge_text
from gpunode.lab.packages_ubuntu import CODENAMES, read_index
from tools.pciids import PciGpu, add_gpus, compare, parse_pci_ids, parse_supported_gpus, version_of
from tools.published import update_cuda, update_debian, update_drivers, update_kubernetes, update_own, update_repos
from tools.read_published import DEBIANS, Place, read_published, read_versions


@click.command()
@click.option(
    "--from",
    "place",
    metavar="PLACE",
    help="Read what NVIDIA publishes: vendor (its servers), or a copy by host name, as wget --mirror makes it: a URL "
    "or a folder.",
)
@click.option("--distro", "distros", multiple=True, metavar="ID:VERSION", help="Of --from: these repositories alone.")
@click.option("--ubuntu", "archive", metavar="URL", help="Read Ubuntu's archive.")
@click.option("--debian", metavar="URL", help="Read Debian's archive.")
@click.option("--pci-ids", "pci_ids", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A pci.ids.")
@click.option(
    "--supported-gpus",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The supported-gpus.json of a driver; it names no chips: these come from the pci.ids, else from neighbours.",
)
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), help="Also write the tables there.")
def refresh(
    place: str | None,
    distros: tuple[str, ...],
    archive: str | None,
    debian: str | None,
    pci_ids: Path | None,
    supported_gpus: Path | None,
    output: Path | None,
) -> None:
    """Print what differs between the tables and what is published, and write it where -o says."""
    if not (place or archive or debian or pci_ids or supported_gpus):
        raise InputError(
            "nothing to refresh from", expected="--from, --ubuntu, --debian, --pci-ids or --supported-gpus"
        )
    texts: dict[str, str] = {}
    if place:
        texts |= _published(place, distros)
    if archive:
        indexes = {f"ubuntu:{version}": read_index(archive, name) for version, name in CODENAMES.items()}
        texts["repos"] = update_own(texts.get("repos") or knowledge_text("repos"), indexes)
    if debian:
        held = {f"debian:{version}": read_versions(debian, name) for version, name in DEBIANS.items()}
        texts["repos"] = update_debian(texts.get("repos") or knowledge_text("repos"), held)
    if pci_ids or supported_gpus:
        texts["gpus"] = _gpus(pci_ids, supported_gpus, knowledge_text("gpus"), load_knowledge())
    for name, text in texts.items():
        click.echo(unified(knowledge_text(name).encode(), text.encode(), f"{name}.toml"), nl=False)
        if output:
            output.mkdir(parents=True, exist_ok=True)
            (output / f"{name}.toml").write_text(text, encoding="utf-8")


def _published(place: str, distros: tuple[str, ...]) -> Mapping[str, str]:
    """The tables that follow what NVIDIA publishes, by name."""
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
    for one in found.unread:
        click.echo(f"not read: {one}", err=True)
    today = datetime.now(UTC).date().isoformat()
    drivers = update_drivers(knowledge_text("drivers"), found.releases, found.redistributed, every, today=today)
    return {
        "drivers": drivers[0],
        "cuda": update_cuda(knowledge_text("cuda"), found.redistributed, today=today)[0],
        "repos": update_repos(knowledge_text("repos"), found.held, found.toolkits, today=today, keys=found.keys)[0],
        "kubernetes": update_kubernetes(knowledge_text("kubernetes"), found.charts, found.tags, today=today)[0],
    }


def _gpus(pci_ids: Path | None, supported_gpus: Path | None, table: str, known: Knowledge) -> str:
    """gpus.toml with the GPUs of newer lists; what is known already stays as it is."""
    listed = _text(pci_ids) if pci_ids else ""
    day = version_of(listed)
    found: dict[str, PciGpu] = parse_pci_ids(listed) if pci_ids else {}
    for pci_id, gpu in (parse_supported_gpus(_text(supported_gpus)) if supported_gpus else {}).items():
        other = found.get(pci_id)
        found[pci_id] = replace(other, name=gpu.name, source=other.source + gpu.source) if other else gpu
    missing = compare(found, known).missing
    given = "given to tools/refresh.py"
    sources = {"p": f"a pci.ids of {day or 'unknown date'}, {given}", "s": f"a supported-gpus.json, {given}"}
    used = {letter: text for letter, text in sources.items() if any(letter in gpu.source for gpu in missing)}
    text, _, unknown = add_gpus(table, missing, known, sources=used, checked=day)
    for gpu in unknown:
        click.echo(f"left out {gpu.id} {gpu.name}: no list names its chip, and its neighbours have several", err=True)
    return text


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    try:
        refresh()
    except GpunodeError as error:
        raise SystemExit(str(error)) from None
