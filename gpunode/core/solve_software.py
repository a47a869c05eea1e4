"""CUDA on the host, the container toolkit, and the repositories that all of it comes from."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpunode.core.knowledge import CudaRelease, DistroRow, GpuModel, Knowledge, RepositoryKey, version_tuple
from gpunode.core.model import CudaChoice, DriverChoice, PackageWant, Repository, ToolkitChoice
from gpunode.core.solve_notes import Notes

if TYPE_CHECKING:
    from gpunode.core.solve import SolveRequest


def solve_cuda(
    request: SolveRequest,
    row: DistroRow,
    gpus: Sequence[GpuModel],
    driver: DriverChoice | None,
    knowledge: Knowledge,
    notes: Notes,
) -> CudaChoice | None:
    """The toolkits asked for; None when none is, or when one cannot work (then a problem stands in `notes`)."""
    versions = request.cuda.versions
    if not versions:
        return None
    if row.family == "arch":
        notes.refuse(
            f"CUDA {', '.join(versions)}: Arch has one CUDA at a time, the newest",
            "install the package cuda by hand, or use CUDA in a container, which brings its own toolkit",
        )
        return None
    works = [_works(v, row, gpus, driver, knowledge, notes) for v in versions]  # each tells its own problems
    if not all(works):
        return None
    names = knowledge.cuda_packages
    packages = []
    for version in versions:
        major, minor = version.split(".")
        packages.append(PackageWant(name=names["toolkit"].format(major=major, minor=minor)))
    notes.because(
        "cuda packages", f"{', '.join(p.name for p in packages)}: the toolkit without a driver", names["source"]
    )
    return CudaChoice(
        version=request.cuda.default or versions[-1],
        versions=versions,
        method="packages",
        packages=tuple(packages),
        repository="nvidia-cuda",
    )


def _works(
    version: str,
    row: DistroRow,
    gpus: Sequence[GpuModel],
    driver: DriverChoice | None,
    knowledge: Knowledge,
    notes: Notes,
) -> bool:
    release = knowledge.cuda.get(version)
    if release is None:
        near = sorted(knowledge.cuda, key=lambda v: _distance(v, version))[:3]
        notes.refuse(f"CUDA {version} is not known", f"nearest known: {', '.join(sorted(near, key=version_tuple))}")
        return False
    good = True
    for model in gpus:
        capability = knowledge.capabilities.get(model.compute_capability)
        if capability and capability.last and version_tuple(version) > version_tuple(capability.last):
            notes.refuse(
                f"CUDA {version} dropped {model.arch}: {model.name} has compute capability {model.compute_capability}",
                f"CUDA {capability.last} is the last for it",
            )
            good = False
        if capability and version_tuple(version) < version_tuple(capability.first):
            notes.refuse(
                f"CUDA {version} is too old for {model.name} ({model.arch}, compute capability "
                f"{model.compute_capability})",
                f"take CUDA {capability.first} or later",
            )
            good = False
    low, high = row.cuda
    if (low and version_tuple(version) < version_tuple(low)) or (high and version_tuple(version) > version_tuple(high)):
        span = f"{low or 'its first'} to {high}" if high else f"{low} and later"
        notes.refuse(
            f"NVIDIA's repository for {row.key} has no CUDA {version} (it has {span})",
            "take one of these, or use CUDA in a container, which brings its own toolkit",
        )
        good = False
    if good:
        _say_driver(release, driver, knowledge, notes)
    return good


def _say_driver(release: CudaRelease, driver: DriverChoice | None, knowledge: Knowledge, notes: Notes) -> None:
    if driver is None or not release.native:
        return
    known = version_tuple(driver.version or driver.newest) or (driver.branch,)
    if known >= version_tuple(release.native):
        why = f"driver {driver.branch} runs CUDA {release.version} natively (it came with {release.native})"
        notes.because("cuda", why, release.source)
        return
    major, minor = release.version.split(".")
    compat = knowledge.cuda_packages["compat"].format(major=major, minor=minor)
    notes.because(
        "cuda",
        f"driver {driver.branch} runs CUDA {release.version} by minor-version compatibility (from {release.compat}); "
        f"what is compiled from PTX at run time needs {release.native}, or {compat} on data centre GPUs",
        release.source,
    )


def _distance(one: str, other: str) -> float:
    a, b = version_tuple(one), version_tuple(other)
    return abs(a[0] - b[0]) * 100.0 + abs(a[1] - b[1])


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
        if name not in knowledge.repositories:
            near = difflib.get_close_matches(name, knowledge.repositories, n=1)
            notes.refuse(
                f"sources.{name}: there is no such repository",
                f"did you mean {near[0]}?" if near else f"known: {', '.join(knowledge.repositories)}",
            )
    return tuple(_repository(name, request, row, knowledge, notes) for name in used)


def _repository(name: str, request: SolveRequest, row: DistroRow, knowledge: Knowledge, notes: Notes) -> Repository:
    table = knowledge.repositories[name]
    deb = row.family in ("ubuntu", "debian") or "rpm_url" not in table
    url, archs = (table["url"], table["arch"]) if deb else (table["rpm_url"], table["rpm_arch"])
    vendor = url.format(dir=row.dir, arch=archs[request.arch])
    key: RepositoryKey = knowledge.keys[table.get("key") or row.signed_by]
    mirror = request.sources.get(name)
    url = mirror.url if mirror and mirror.url else vendor
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
        signs=table.get("rpm_signs", "packages"),
    )
