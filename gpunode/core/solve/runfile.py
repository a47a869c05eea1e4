"""NVIDIA's self-extracting installers in place of packages: which file, from where, and with which options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpunode.core.knowledge import Branch, Table
from gpunode.core.model import DriverChoice, Flavour, PackageWant, Runfile
from gpunode.core.numbers import version_tuple
from gpunode.core.solve.case import SolveCase
from gpunode.core.solve.extra import builder, repository_packages
from gpunode.core.solve.fabric import OF_FABRIC
from gpunode.core.solve.packages import DRIVER_PACKAGE, headers_of, lost_headers
from gpunode.core.spec.runfile import RunfileSpec
from gpunode.core.spec.source import filled_in


def runfile_driver(case: SolveCase, branch: Branch, flavour: Flavour) -> DriverChoice | None:
    """The driver by its runfile, with what DKMS needs to build it for every kernel; None with a problem noted."""
    table, version = case.knowledge.driver_runfile, case.request.driver.version or _newest(case, branch)
    if not version:
        case.refuse(
            f"no version of driver branch {branch.branch} is known, and a runfile is of one version",
            "set driver.version to the exact one",
        )
        return None
    manager = "" if case.fabric else next(filter(OF_FABRIC.match, case.request.installed), "")
    if case.fabric or manager:
        what = f"{manager} is installed, which" if manager else "this node has an NVLink fabric, whose manager"
        case.refuse(
            f"{what} must be of the driver's exact version, and no runfile has it",
            "set driver.method to packages" + f"; where this node needs none, remove {manager} first" * bool(manager),
        )
        return None
    words = {"version": version, "arch": case.request.arch}
    words["folder"] = table["folders"].get(case.request.arch, case.request.arch)
    vendor = Runfile(
        name=table["name"].format(**words),
        version=version,
        arch=case.request.arch,
        urls=tuple(url.format(**words) for url in table["urls"]),
        options=installer_options(version, flavour, table),
    )
    runfile = _runfile(case, case.request.driver.runfile, "driver.runfile", vendor, table, published=True)
    headers = headers_of(case)
    before = repository_packages(case)
    if runfile is None or headers is None or before is None:
        return None
    case.because("method", f"{runfile.name}, as asked; DKMS builds its modules for each kernel", "driver.method")
    there = version != branch.latest
    why = f"which is installed and newer than {branch.latest}" if there else f"the newest known of {branch.branch}"
    why = "as asked" if case.request.driver.version else why
    case.because("version", f"{version}, {why}", "driver.version" if case.request.driver.version else branch.source)
    needs = [name for name in case.distro.needs if "versionlock" not in name]
    return DriverChoice(
        branch=branch.branch,
        flavour=flavour,
        version=version,
        newest=branch.latest,
        method="runfile",
        packages=tuple(PackageWant(name=name) for name in (*needs, "dkms")),  # which needs the compiler and make
        repository="",
        kernel_packages=headers,
        # the installer refuses to work beside them, or breaks them
        remove=tuple(name for name in case.request.installed if DRIVER_PACKAGE.match(name)),
        runfile=runfile,
        repository_packages=before,
        builder=builder(case),
        without=lost_headers(case),
    )


def _newest(case: SolveCase, branch: Branch) -> str:
    """The newest version that is known of the branch, or a newer one that an installer left: auto never goes back."""
    there = case.request.runfile
    newer = there.startswith(f"{branch.branch}.") and version_tuple(there) > version_tuple(branch.latest)
    return there if newer else branch.latest


def installer_options(version: str, flavour: Flavour, table: Table) -> tuple[str, ...]:
    """The words for nvidia-installer of that version: it refuses those that it does not know yet."""
    exact = version_tuple(version)
    words = [row["word"] for row in table["options"] if version_tuple(row["since"]) <= exact]
    modules = next((row for row in table["modules"] if version_tuple(row["since"]) <= exact), None)
    return (*words, *filter(None, [modules[flavour] if modules else ""]))


def cuda_runfiles(case: SolveCase, versions: Sequence[str]) -> tuple[Runfile, ...] | None:
    """The toolkits' installers, in the order of `versions`; None with a problem noted."""
    found = [_cuda_file(case, version) for version in versions]
    return tuple(runfile for runfile in found if runfile) if all(found) else None


def _cuda_file(case: SolveCase, version: str) -> Runfile | None:
    table, arch = case.knowledge.cuda_runfile, case.request.arch
    spec = case.request.cuda.runfiles.get(version, RunfileSpec())
    key, update = f"cuda.runfiles.{version}", table["updates"].get(version)
    if update is None and not (spec.url or spec.path):
        case.refuse(f"the name of CUDA {version}'s runfile is not known", f"set {key}: {{url: …, sha256: …}}")
        return None
    words = {
        "full": update["version"] if update else version,
        "driver": f"_{update['driver']}" if update and update["driver"] else "",
        "system": table["systems"].get(arch, arch),
    }
    name = table["name"].format(**words)
    vendor = Runfile(
        name=name,
        version=version,
        arch=arch,
        urls=(table["url"].format(name=name, **words),),
        options=(*table["options"], f"--toolkitpath=/usr/local/cuda-{version}"),
    )
    return _runfile(case, spec, key, vendor, table, published=False)


def _runfile(
    case: SolveCase, spec: RunfileSpec, key: str, vendor: Runfile, table: Table, *, published: bool
) -> Runfile | None:
    """The vendor's file, or the one that the spec names; refused where no checksum would tell a wrong one.

    `published`: the vendor's server has the file's SHA-256 beside it.
    """
    own = "path" if spec.path else "url" if spec.url else ""
    if not spec.sha256 and (own or not published):
        which = f"{key}.{own}" if own else vendor.name
        hint = "NVIDIA publishes it as URL.sha256sum" if published else "sha256sum FILE, of a file that you trust"
        case.refuse(f"no checksum of {which} is known", f"set {key}.sha256 ({hint})")
        return None
    words = {"version": vendor.version, "arch": vendor.arch}
    path, url = (filled_in(text, words) for text in (spec.path, spec.url))
    origin = path or url or vendor.urls[0]
    case.because("runfile", f"{vendor.name} from {origin}", key if own else table["source"])
    if not spec.sha256:
        case.because("runfile", "its SHA-256 is the one that NVIDIA's server publishes for it", table["source"])
    urls = () if path else (url,) if url else vendor.urls
    return replace(vendor, urls=urls, path=path, sha256=spec.sha256.lower())
