"""From a chosen branch, CUDA and toolkit to package names, versions and repositories (knowledge/repos.toml)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpunode.core.knowledge import Branch, DistroRow, GpuModel, Knowledge, version_tuple
from gpunode.core.model import (
    CudaChoice,
    DriverChoice,
    Flavour,
    PackageWant,
    Problem,
    Reason,
    Repository,
    ToolkitChoice,
)
from gpunode.core.spec import CudaSpec, SourceSpec, ToolkitSpec

if TYPE_CHECKING:
    from gpunode.core.solve import SolveRequest

version_of = version_tuple


# ---------------------------------------------------------------- repositories


def cuda_repository(sources: Mapping[str, SourceSpec], arch: str, knowledge: Knowledge, row: DistroRow) -> Repository:
    """NVIDIA's CUDA repository for the distribution release, or the spec's mirror of it."""
    data = knowledge.repositories["nvidia-cuda"]
    url = data["url"].format(dir=row.dir, arch=data["arch"][arch])
    return _repository("nvidia-cuda", url, row.signed_by, sources, knowledge, data["source"])


def _repository(
    name: str, url: str, key_id: str, sources: Mapping[str, SourceSpec], knowledge: Knowledge, source: str
) -> Repository:
    key, mirror = knowledge.keys[key_id], sources.get(name, SourceSpec())
    fingerprint = mirror.fingerprint.replace(" ", "").upper() or key.fingerprint
    return Repository(
        name=name,
        url=mirror.url or url,
        key_url=mirror.key or key.url.format(repository=url),
        fingerprint=fingerprint,
        source=source,
    )


# ---------------------------------------------------------------- driver


def repository_packages(
    request: SolveRequest,
    knowledge: Knowledge,
    row: DistroRow,
    branch: Branch,
    flavour: Flavour,
    models: tuple[GpuModel, ...],
    reasons: list[Reason],
) -> DriverChoice:
    """The packages of NVIDIA's CUDA repository.

    Below `unversioned_from` the metapackage names the branch (nvidia-open-580), from there on it does not
    (nvidia-open).  Either way the branch is kept by a pin on the versions: Debian's other names never name it.
    """
    names, family = knowledge.packages["cuda-repository"], knowledge.packages[row.family]
    exact = request.driver.version
    pin = f"{exact}-*" if exact else f"{branch.branch}.*"
    suffix = "" if branch.branch >= family["unversioned_from"] else f"-{branch.branch}"
    hold = request.driver.hold
    main = PackageWant(name=f"{names[flavour]}{suffix}", version=pin, hold=hold)
    others = [PackageWant(name=n, version=pin, hold=hold) for n in family["persistenced"]]
    services = ["nvidia-persistenced"]
    if request.nvswitches or request.nvlink5:
        fabric = names["fabric"] if branch.branch >= names["fabric_unversioned_from"] else []
        fabric = fabric or [f"{n}-{branch.branch}" for n in names["fabric"]]
        others += [PackageWant(name=n, version=pin, hold=hold) for n in fabric]
        services.append("nvidia-fabricmanager")
        reasons.append(
            Reason(
                what="fabric manager",
                why="NVSwitches are on the board; its version must equal the driver's",
                source=str(knowledge.rules["fabric_equals_driver"]["source"]),
            )
        )
    if request.nvlink5:
        more = [*names["fabric_nvlink5"], *(names["fabric_nvlink5_x86_64"] if request.arch == "x86_64" else [])]
        others += [PackageWant(name=n) for n in more]
    if any(m.fabric == "imex" for m in models):
        others += [PackageWant(name=n, version=pin, hold=hold) for n in names["imex"]]
    return DriverChoice(
        branch=branch.branch,
        flavour=flavour,
        version=exact or branch.latest,
        method="packages",
        packages=(main, *others),
        repository="nvidia-cuda",
        kernel_packages=_headers(request, family),
        services=tuple(services),
        remove=_conflicts(request, knowledge, row, flavour, main.name),
        pin=pin,
    )


def distro_packages(
    request: SolveRequest,
    knowledge: Knowledge,
    row: DistroRow,
    branch: Branch,
    flavour: Flavour,
    models: tuple[GpuModel, ...],
) -> tuple[DriverChoice, Repository | None]:
    """The packages of the distribution itself: Ubuntu's signed modules, Debian's non-free DKMS."""
    if row.family == "ubuntu":
        return _ubuntu_own(request, knowledge, branch, flavour), None
    names, family = knowledge.packages["debian-own"], knowledge.packages[row.family]
    gsp = [names["gsp"]] if branch.branch >= 535 and any(m.open != "no" for m in models) else []
    hold = request.driver.hold
    packages = tuple(PackageWant(name=n, hold=hold) for n in (names[flavour], *names["userspace"], *gsp))
    choice = DriverChoice(
        branch=branch.branch,
        flavour=flavour,
        version=request.driver.version or branch.latest,
        method="packages",
        packages=packages,
        repository="debian-non-free",
        kernel_packages=_headers(request, family),
        services=("nvidia-persistenced",),
    )
    mirror = request.sources.get("debian-non-free", SourceSpec())
    repository = Repository(
        name="debian-non-free",
        url=mirror.url or "http://deb.debian.org/debian",
        suite=CODENAMES.get(row.key, "stable"),
        components=row.components,
        key_url=mirror.key,
        fingerprint=mirror.fingerprint.replace(" ", "").upper(),
        source=names["source"],
    )
    return choice, repository


# Debian's release names (https://www.debian.org/releases/).
CODENAMES: Mapping[str, str] = {"debian:11": "bullseye", "debian:12": "bookworm", "debian:13": "trixie"}


def _ubuntu_own(request: SolveRequest, knowledge: Knowledge, branch: Branch, flavour: Flavour) -> DriverChoice:
    names, family = knowledge.packages["ubuntu-own"], knowledge.packages["ubuntu"]
    values = {"branch": branch.branch, "open": "-open" if flavour == "open" else ""}
    hold = request.driver.hold
    modules = [names["modules"].format(**values, release=k) for k in request.kernels]
    flavours = {m["flavour"] for k in request.kernels if (m := re.match(family["kernel"], k))}
    modules += [names["modules_meta"].format(**values, flavour=f) for f in sorted(flavours)]
    fabric = [n.format(**values) for n in names["fabric"]] if request.nvswitches else []
    userspace = [n.format(**values) for n in names["userspace"]]
    return DriverChoice(
        branch=branch.branch,
        flavour=flavour,
        version=request.driver.version or branch.latest,
        method="packages",
        packages=tuple(PackageWant(name=n, hold=hold) for n in (*userspace, *fabric)),
        repository="",
        kernel_packages=tuple(PackageWant(name=n) for n in modules),
        services=("nvidia-persistenced", *(["nvidia-fabricmanager"] if fabric else [])),
    )


def _headers(request: SolveRequest, family: Mapping[str, Any]) -> tuple[PackageWant, ...]:
    """The headers of every kernel that can boot: DKMS builds for each."""
    if not request.kernels:
        return (PackageWant(name=family["headers_meta"][request.arch]),)
    name = str(family["headers"])
    return tuple(PackageWant(name=name.format(release=k)) for k in request.kernels)


def _conflicts(
    request: SolveRequest, knowledge: Knowledge, row: DistroRow, flavour: Flavour, main: str
) -> tuple[str, ...]:
    """Installed metapackages of another flavour or branch: beside them apt cannot install `main`."""
    names = knowledge.packages["cuda-repository"]
    pattern = rf"({re.escape(names['open'])}|{re.escape(names['proprietary'])})(-\d+)?"
    rivals = [n for n in request.installed if re.fullmatch(pattern, n) and n != main]
    pins = [n for n in request.installed if n.startswith("nvidia-driver-pinning-")]
    return tuple(sorted(rivals + pins))


# ---------------------------------------------------------------- CUDA


def cuda_choice(
    spec: CudaSpec,
    knowledge: Knowledge,
    row: DistroRow,
    models: tuple[GpuModel, ...],
    branch: Branch | None,
    reasons: list[Reason],
) -> tuple[CudaChoice | None, list[Problem]]:
    """The toolkits asked for, if the repository has them, the driver runs them and they compile for the GPUs."""
    problems = [p for v in spec.versions for p in _cuda_problems(v, knowledge, row, models, branch)]
    if problems:
        return None, problems
    packages = []
    for version in spec.versions:
        major, minor = version.split(".")
        packages.append(PackageWant(name=knowledge.cuda_packages["toolkit"].format(major=major, minor=minor)))
        release = knowledge.cuda[version]
        why = f"needs driver {release.compat or release.native or '?'} or newer"
        reasons.append(Reason(what=f"CUDA {version}", why=why, source=release.source))
    default = spec.default or spec.versions[-1]
    choice = CudaChoice(
        version=default, versions=spec.versions, method="packages", packages=tuple(packages), repository="nvidia-cuda"
    )
    return choice, []


def _cuda_problems(
    version: str, knowledge: Knowledge, row: DistroRow, models: Iterable[GpuModel], branch: Branch | None
) -> list[Problem]:
    release = knowledge.cuda.get(version)
    if release is None:
        known = sorted(knowledge.cuda, key=version_tuple)
        return [Problem(what=f"CUDA {version} does not exist", fix=f"choose one of {known[0]} to {known[-1]}")]
    problems = []
    oldest, newest = row.cuda
    if (oldest and version_tuple(version) < version_tuple(oldest)) or (
        newest and version_tuple(version) > version_tuple(newest)
    ):
        span = f"{oldest or 'the first'} to {newest or 'the newest'}"
        problems.append(
            Problem(what=f"CUDA {version} is not in NVIDIA's repository for {row.key}", fix=f"it has {span}")
        )
    needed = release.compat or release.native
    if branch and needed and branch.latest and version_tuple(branch.latest) < version_tuple(needed):
        problems.append(
            Problem(
                what=f"CUDA {version} needs driver {needed}, and branch {branch.branch} ends with {branch.latest}",
                fix="a newer driver.branch, or an older CUDA",
            )
        )
    return problems + [p for m in models if (p := _capability_problem(version, m, knowledge))]


def _capability_problem(version: str, model: GpuModel, knowledge: Knowledge) -> Problem | None:
    """Whether that CUDA still, or already, compiles for the GPU's compute capability."""
    row = knowledge.capabilities.get(model.compute_capability)
    if row is None:
        return None
    name = f"{model.name} (compute capability {model.compute_capability})"
    if row.first and version_tuple(version) < version_tuple(row.first):
        return Problem(what=f"CUDA {version} does not know {name}", fix=f"CUDA {row.first} or newer")
    if row.last and version_tuple(version) > version_tuple(row.last):
        return Problem(what=f"CUDA {version} no longer compiles for {name}", fix=f"CUDA {row.last} or older")
    return None


# ---------------------------------------------------------------- container toolkit


def toolkit_choice(
    spec: ToolkitSpec,
    sources: Mapping[str, SourceSpec],
    arch: str,
    installed: Mapping[str, str],
    knowledge: Knowledge,
    reasons: list[Reason],
) -> tuple[ToolkitChoice, Repository]:
    """The four packages of the NVIDIA Container Toolkit at one version.

    With `auto` a newer version that is installed already stays: an update is nobody's wish here.
    """
    data = knowledge.packages["container-toolkit"]
    version = data["newest"] if spec.version == "auto" else spec.version
    present = installed.get(data["names"][0], "").rpartition("-")[0]
    if spec.version == "auto" and present and version_tuple(present) > version_tuple(version):
        version = present
    why = "newest known" if version == data["newest"] else "installed already" if version == present else "asked for"
    reasons.append(
        Reason(
            what=f"NVIDIA Container Toolkit {version}",
            why=f"{why}; all four packages at one version",
            source=data["source"],
        )
    )
    packages = tuple(PackageWant(name=n, version=data["version"].format(version=version)) for n in data["names"])
    choice = ToolkitChoice(
        version=version,
        method="packages",
        packages=packages,
        repository="nvidia-container-toolkit",
        remove=tuple(n for n in data["replaced"] if n in installed),
    )
    repo = knowledge.repositories["nvidia-container-toolkit"]
    url = repo["url"].format(arch=repo["arch"][arch])
    return choice, _repository("nvidia-container-toolkit", url, repo["key"], sources, knowledge, repo["source"])
