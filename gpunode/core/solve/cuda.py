"""CUDA on the host: which toolkits, how, and whether the driver runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpunode.core.knowledge import CudaRelease
from gpunode.core.model import CudaChoice, DriverChoice, PackageWant
from gpunode.core.numbers import version_tuple
from gpunode.core.solve.case import SolveCase
from gpunode.core.solve.rules import as_of, forward_compatible
from gpunode.core.solve.runfile import cuda_runfiles

NEWEST = "newest"


def solve_cuda(case: SolveCase, driver: DriverChoice | None) -> CudaChoice | None:
    """The toolkits asked for; None when none is, or when one cannot work (then a problem is noted)."""
    if not case.request.cuda.versions:
        return None
    by_runfile = case.request.cuda.method == "runfile"
    if case.distro.family == "arch" and not by_runfile:
        return _arch_cuda(case, case.request.cuda.versions)
    versions = _versions(case, driver)
    if versions is None:
        return None
    # each tells its own problems
    works = [_works(case, v, in_repository=not by_runfile) for v in versions]
    if not all(works):
        return None
    runs = [_runs(case, case.knowledge.cuda[v], driver) for v in versions]
    if not all(runs):
        return None
    compat = tuple(v for v, how in zip(versions, runs, strict=True) if how == "forward")
    runfiles = cuda_runfiles(case, versions) if by_runfile else ()
    if runfiles is None:
        return None
    if compat and by_runfile:
        case.refuse(
            f"CUDA {', '.join(compat)} needs its forward-compatibility package, which is in no runfile",
            "set cuda.method to packages, or take a newer driver.branch",
        )
        return None
    names = [case.knowledge.cuda_package("toolkit", version) for version in (() if by_runfile else versions)]
    names += [case.knowledge.cuda_package("compat", version) for version in compat]
    if not by_runfile:
        why = f"{', '.join(names)}: the toolkit without a driver"
        case.because("cuda packages", why, case.knowledge.cuda_packages["source"])
    return CudaChoice(
        version=versions[case.request.cuda.versions.index(case.request.cuda.default)]
        if case.request.cuda.default
        else versions[-1],
        versions=versions,
        method=case.request.cuda.method,
        packages=tuple(PackageWant(name=name) for name in names),
        repository="" if by_runfile else "nvidia-cuda",
        runfiles=runfiles,
        compat=compat,
    )


def _arch_cuda(case: SolveCase, versions: Sequence[str]) -> CudaChoice | None:
    """Arch's own package, in /opt/cuda with a profile.d of its own."""
    names = case.knowledge.packages["arch-own"]
    if tuple(versions) != (NEWEST,):
        case.refuse(
            f"CUDA {', '.join(versions)}: Arch has one CUDA at a time, the newest",
            f"set cuda.versions to [{NEWEST}], or cuda.method to runfile, or use CUDA in a container",
        )
        return None
    case.because("cuda packages", "the newest that Arch has, in /opt/cuda", names["source"])
    packages = tuple(PackageWant(name=name) for name in names["cuda"])
    return CudaChoice(version="", versions=(), method="packages", packages=packages, repository="")


def _versions(case: SolveCase, driver: DriverChoice | None) -> tuple[str, ...] | None:
    """The versions asked for, each once; `newest` becomes the newest that the GPUs, the driver and the source have."""
    versions = case.request.cuda.versions
    if NEWEST not in versions:
        return versions
    in_repository = case.request.cuda.method == "packages"
    known = (
        set(case.knowledge.cuda)
        if in_repository
        else set(case.knowledge.cuda) & set(case.knowledge.cuda_runfile["updates"])
    )
    silent = replace(case, reasons={}, problems={})  # why the others do not fit is of no interest
    fitting = [
        version
        for version in sorted(known - set(versions), key=version_tuple, reverse=True)
        if case.knowledge.cuda[version].native and _works(silent, version, in_repository=in_repository)
    ]
    for how in ("native", "minor"):
        for version in fitting:
            if _runs(silent, case.knowledge.cuda[version], driver) == how:
                why = f"{version} is the newest for these GPUs and this driver"
                case.because("cuda", why, case.knowledge.cuda[version].source)
                return tuple(version if one == NEWEST else one for one in versions)
    case.refuse(
        f"no CUDA release fits these GPUs, this driver and {case.distro.key}",
        "name one in cuda.versions to see why not, or use CUDA in a container, which brings its own toolkit",
    )
    return None


def _works(case: SolveCase, version: str, *, in_repository: bool) -> bool:
    if version not in case.knowledge.cuda:
        near = sorted(case.knowledge.cuda, key=lambda v: _distance(v, version))[:3]
        case.refuse(f"CUDA {version} is not known", f"nearest known: {', '.join(sorted(near, key=version_tuple))}")
        return False
    good = True
    for model in case.gpus:
        capability = case.knowledge.capabilities.get(model.compute_capability)
        if capability and capability.last and version_tuple(version) > version_tuple(capability.last):
            case.refuse(
                f"CUDA {version} dropped {model.arch}: {model.name} has compute capability {model.compute_capability}",
                f"CUDA {capability.last} is the last for it",
            )
            good = False
        if capability and version_tuple(version) < version_tuple(capability.first):
            case.refuse(
                f"CUDA {version} is too old for {model.name} ({model.arch}, compute capability "
                f"{model.compute_capability})",
                f"take CUDA {capability.first} or later",
            )
            good = False
    low, high = case.distro.cuda
    before = low and version_tuple(version) < version_tuple(low)
    after = high and version_tuple(version) > version_tuple(high)
    by_name = version in case.request.cuda.versions  # not the newest
    offered = by_name and case.offered(case.knowledge.cuda_package("toolkit", version))
    if in_repository and (before or after) and not offered:
        newest = max(case.knowledge.cuda, key=version_tuple)
        span = f"{low or 'its first'} to {high or newest}{as_of(case.distro.read)}"
        case.refuse(
            f"NVIDIA's repository for {case.distro.key} has no CUDA {version} (it has {span})",
            "take one of these, set cuda.method to runfile, or use CUDA in a container, which brings its own toolkit",
        )
        good = False
    return good


def _runs(case: SolveCase, release: CudaRelease, driver: DriverChoice | None) -> str:
    """How the driver runs the toolkit: native, minor, forward; "" with a problem noted, where it does not."""
    if driver is None or not release.native:
        return "native"  # as far as can be said
    known = version_tuple(driver.version or driver.newest) or (driver.branch,)
    if known >= version_tuple(release.native):
        why = f"driver {driver.branch} runs CUDA {release.version} natively (it came with {release.native})"
        case.because("cuda", why, release.source)
        return "native"
    compat = case.knowledge.cuda_package("compat", release.version)
    if release.compat and known >= version_tuple(release.compat):
        case.because(
            "cuda",
            f"driver {driver.branch} runs CUDA {release.version} by minor-version compatibility (from "
            f"{release.compat}); what is compiled from PTX at run time needs {release.native}, or {compat} on data "
            "centre GPUs",
            release.source,
        )
        return "minor"
    branch = case.knowledge.branches.get(driver.branch)
    if branch and forward_compatible(case, release, branch):
        case.because(
            "cuda",
            f"driver {driver.branch} is older than CUDA {release.version} needs ({release.compat or release.native}): "
            f"{compat} brings the newer driver's libraries, which data centre GPUs take",
            case.knowledge.cuda_forward["source"],
        )
        return "forward"
    case.refuse(
        f"driver {driver.version or driver.branch} is too old for CUDA {release.version}, which needs "
        f"{release.compat or release.native}",
        "take an older CUDA, or a newer driver",
    )
    return ""


def _distance(one: str, other: str) -> float:
    a, b = version_tuple(one), version_tuple(other)
    return abs(a[0] - b[0]) * 100.0 + abs(a[1] - b[1])
