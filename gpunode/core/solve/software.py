"""The container toolkit, and the repositories that all of it comes from."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpunode.core.knowledge import DistroRow, Knowledge, RepositoryKey, version_tuple
from gpunode.core.model import PackageWant, Repository, ToolkitChoice
from gpunode.core.solve.notes import Notes
from gpunode.core.spec.source import DISTRIBUTION, filled_in

if TYPE_CHECKING:
    from gpunode.core.solve import SolveRequest


def solve_toolkit(request: SolveRequest, row: DistroRow, knowledge: Knowledge, notes: Notes) -> ToolkitChoice | None:
    """NVIDIA Container Toolkit: four packages that must have one version."""
    names = knowledge.packages["container-toolkit"]
    asked = request.toolkit.version
    if asked == "none":
        notes.because("toolkit", "toolkit.version is none", "")
        return None
    if row.family == "arch":
        return _arch_toolkit(request, knowledge, notes)
    version = names["newest"] if asked == "auto" else asked
    if len(version_tuple(version)) != 3 or version.strip("0123456789.") or version.count(".") != 2:
        notes.refuse(
            f"toolkit.version is {asked!r}",
            f"write auto, none, or a version of three numbers such as {names['newest']}",
        )
        return None
    if version_tuple(version) > version_tuple(names["newest"]):
        notes.because(
            "warning: toolkit", f"{version} is newer than {names['newest']}, the newest known", names["source"]
        )
    why = "the newest known" if asked == "auto" else "as asked"
    notes.because(
        "toolkit", f"{version}, {why}; its four packages depend on each other in one version", names["source"]
    )
    remove = tuple(n for n in names["replaced"] if n in request.installed)
    if remove:
        notes.because(
            "toolkit", f"{', '.join(remove)}: obsolete, replaced by nvidia-container-toolkit", names["source"]
        )
    return ToolkitChoice(
        version=version,
        method="packages",
        packages=tuple(PackageWant(name=n, version=names["version"].format(version=version)) for n in names["names"]),
        repository="nvidia-container-toolkit",
        remove=remove,
    )


def _arch_toolkit(request: SolveRequest, knowledge: Knowledge, notes: Notes) -> ToolkitChoice | None:
    names = knowledge.packages["arch-own"]
    if request.toolkit.version != "auto":
        notes.refuse(
            f"toolkit.version {request.toolkit.version}: Arch has one version at a time, the newest",
            "set toolkit.version to auto",
        )
        return None
    notes.because("toolkit", "the newest that Arch has", names["source"])
    packages = tuple(PackageWant(name=n) for n in names["toolkit"])
    return ToolkitChoice(version="", method="packages", packages=packages, repository="")


def solve_repositories(
    request: SolveRequest, row: DistroRow, used: Sequence[str], knowledge: Knowledge, notes: Notes
) -> tuple[Repository, ...]:
    """The repositories named in `used`, at the vendor or at the mirror that the spec's `sources` names."""
    for name in request.sources:
        if name not in knowledge.repositories and name != DISTRIBUTION:
            near = difflib.get_close_matches(name, knowledge.repositories, n=1)
            notes.refuse(
                f"sources.{name}: there is no such repository",
                f"did you mean {near[0]}?" if near else f"known: {', '.join((*knowledge.repositories, DISTRIBUTION))}",
            )
    own = (_distribution(request, row, notes),) if DISTRIBUTION in request.sources else ()
    return (*own, *(_repository(name, request, row, knowledge, notes) for name in used))


def _distribution(request: SolveRequest, row: DistroRow, notes: Notes) -> Repository:
    """The repository that stands for all of the distribution's own."""
    source = request.sources[DISTRIBUTION]
    url = filled_in(source.url, _words(request, row, request.arch))
    notes.because("repository", f"{DISTRIBUTION} is {url}: the node's own repositories are not asked", "sources")
    return Repository(
        name=DISTRIBUTION,
        url=url,
        fingerprint=source.fingerprint.replace(" ", "").upper(),
        source=f"sources.{DISTRIBUTION}",
        signs="packages" if source.signs == "packages" else "metadata",
    )


def _words(request: SolveRequest, row: DistroRow, arch: str) -> dict[str, str]:
    """What stands for the placeholders of a URL."""
    return {"dir": row.dir, "arch": arch, "distro": row.key.replace(":", "-"), "machine": request.arch}


def _repository(name: str, request: SolveRequest, row: DistroRow, knowledge: Knowledge, notes: Notes) -> Repository:
    table = knowledge.repositories[name]
    deb = row.family in ("ubuntu", "debian") or "rpm_url" not in table
    url, archs = (table["url"], table["arch"]) if deb else (table["rpm_url"], table["rpm_arch"])
    vendor = url.format(dir=row.dir, arch=archs[request.arch])
    key: RepositoryKey = knowledge.keys[table.get("key") or row.signed_by]
    mirror = request.sources.get(name)
    url = filled_in(mirror.url, _words(request, row, archs[request.arch])) if mirror and mirror.url else vendor
    own_key = bool(mirror and (mirror.key or mirror.fingerprint))
    fingerprint = (mirror.fingerprint.replace(" ", "").upper() if mirror else "") or key.fingerprint
    if url != vendor:
        notes.because("repository", f"{name} comes from {url}", f"sources.{name}")
    else:
        notes.because("repository", f"{name}: {url}", table["source"])
    whose = f"as sources.{name} says" if own_key else f"NVIDIA's key {key.id}"
    notes.because(
        "repository key",
        f"{name} must be signed by {fingerprint or 'a key not known'}, {whose}",
        f"sources.{name}" if own_key else key.source,
    )
    return Repository(
        name=name,
        url=url,
        key_url=key.url.format(repository=vendor),
        fingerprint=fingerprint,
        source=table["source"],
        signs=mirror.signs if mirror and mirror.signs != "auto" else table.get("rpm_signs", "packages"),
    )
