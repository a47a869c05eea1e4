"""Package names where packages are not deb: dnf and yum (rhel), zypper (suse), pacman (arch)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpunode.core.knowledge import Branch, DistroRow, Precompiled, Table
from gpunode.core.model import Flavour, Kernel, PackageWant
from gpunode.core.solve.case import SolveCase


def version_pattern(case: SolveCase, branch: Branch) -> str:
    """What package versions must match: packagers add -1, -1.el9, -0ubuntu1 … to the driver's version."""
    return f"{case.request.driver.version}-*" if case.request.driver.version else f"{branch.branch}.*"


def rpm_repository(case: SolveCase, branch: Branch, flavour: Flavour) -> list[PackageWant]:
    """NVIDIA's repository for dnf, yum and zypper: metapackages, and before those were there what they name."""
    names, version = case.knowledge.packages[case.distro.family], version_pattern(case, branch)
    before = names["before_meta"]
    meta = before.get(flavour, names[flavour]) if branch.branch < before["branch"] else names[flavour]
    needs = [n for n in case.distro.needs if "versionlock" not in n or case.request.driver.hold]
    return [*(PackageWant(name=n) for n in needs), *(PackageWant(name=n, version=version) for n in meta)]


def precompiled_rpm(case: SolveCase, branch: Branch, built: Precompiled) -> list[PackageWant]:
    """The driver with modules that are built already; where the version is exact, those of each kernel by name."""
    version, exact = version_pattern(case, branch), case.request.driver.version
    needs = [n for n in case.distro.needs if "versionlock" not in n or case.request.driver.hold]
    kernels = [re.split(r"\.el\d", kernel.release)[0] for kernel in case.request.kernels] if exact else []
    modules = [name.format(version=exact, kernel=kernel) for kernel in kernels for name in built.by_kernel]
    plain = [PackageWant(name=name) for name in (*needs, *built.tools, *modules)]
    return [*plain, *(PackageWant(name=name, version=version) for name in built.packages)]


def stream(case: SolveCase, branch: Branch, flavour: Flavour, built: Precompiled | None) -> str:
    """The stream of the dnf module that holds the branch (nvidia-driver:580-open), "" where there are no modules."""
    of_dkms = case.knowledge.packages["rhel"]["stream"][flavour] if case.distro.modular else ""
    return str((built and built.stream) or of_dkms).format(branch=branch.branch)


def suse_leftovers(installed: Sequence[str], branch: Branch, flavour: Flavour, names: Table) -> list[str]:
    """What SUSE's metapackages of another branch or flavour brought and those that are wanted replace."""
    generation = _suse_generation(branch, names)
    leftovers = []
    for name in installed:
        match = re.fullmatch(names["of_generation"], name)
        other = match and match["kmp"] and name.startswith("nvidia-open-") != (flavour == "open")
        if match and (match["generation"] != generation or other):
            leftovers.append(name)
    return leftovers


def _suse_generation(branch: Branch, names: Table) -> str:
    """The part of SUSE's package names that stands for some branches: G06, G07."""
    return str([g for first, g in names["generations"].items() if int(first) <= branch.branch][-1])


def suse_own(case: SolveCase, branch: Branch, _flavour: Flavour) -> list[PackageWant]:
    """SUSE's signed kernel modules, and the user space of the same version from NVIDIA's repository."""
    # a kernel module package is called 580.95.05_k6.4.0_150600.21-lp156.1.1
    names, version = case.knowledge.packages["suse-own"], f"{case.request.driver.version or f'{branch.branch}.'}*"
    generation = _suse_generation(branch, case.knowledge.packages["suse"])
    found = [re.search(case.distro.kernels[0][0], kernel.release) for kernel in case.request.kernels]
    flavours = [match["flavour"] for match in found if match] or ["default"]
    modules = (names["modules"].format(generation=generation, flavour=f) for f in dict.fromkeys(flavours))
    space = (n.format(generation=generation) for n in names["userspace"])
    return [PackageWant(name=n, version=version) for n in (*modules, *space)]


def arch_own(case: SolveCase, _branch: Branch, _flavour: Flavour) -> list[PackageWant]:
    """Arch's: a package of modules for each of its main kernels, DKMS as soon as there is another kernel."""
    names = case.knowledge.packages["arch-own"]
    modules = [names["dkms"]]
    if not arch_dkms(case):
        modules = [names["modules"][k] for k in _arch_kernels(case) or ["linux"]]
    return [PackageWant(name=n) for n in (*modules, *names["userspace"])]


def arch_dkms(case: SolveCase) -> bool:
    """Whether DKMS builds all: as asked, or a kernel is there for which Arch has no package of built modules."""
    built = set(case.knowledge.packages["arch-own"]["modules"])
    return case.request.driver.modules == "dkms" or not set(_arch_kernels(case)) <= built


def _arch_kernels(case: SolveCase) -> list[str]:
    """The packages of the kernels: linux, linux-lts …; a kernel of nobody knows where is called other."""
    found = [header_packages(case.distro, kernel) for kernel in case.request.kernels]
    return list(dict.fromkeys(names[0].name.removesuffix("-headers") if names else "other" for names in found))


def header_packages(row: DistroRow, kernel: Kernel) -> list[PackageWant]:
    """The header packages of one kernel, [] for a kernel that is not the distribution's.

    The package that owns the kernel names them, where it is known; else the row's patterns of whole releases.
    """
    # 5.14.0-570.22.1.el9_6.aarch64+64k: what follows the version says which package it is of
    words = {"release": kernel.release, "version": kernel.release.rpartition("-")[0]}
    words["plain"] = kernel.release.partition("+")[0]
    by_release = ((re.fullmatch(pattern, kernel.release), packages) for pattern, *packages in row.kernels)
    match, packages = next((found for found in by_release if found[0]), (None, []))
    names = [name.format(**words, **match.groupdict()) for name in packages] if match else []
    if kernel.package and row.owner_headers:
        base = kernel.package.removesuffix("-core")
        devel = row.owner_headers.format(base=base, **words)
        if devel not in names:  # beside it those that every kernel shares
            names = [devel, *(name for name in row.headers_meta if name == "kernel-headers")]
    return [PackageWant(name=name) for name in names]


def refused_on_arch(case: SolveCase) -> bool:
    """What Arch cannot serve: a chosen version, and GPUs that its one branch does not drive any more."""
    spec = case.request.driver
    if spec.version or spec.branch.isdigit():
        case.refuse(
            f"driver {spec.version or spec.branch}: Arch has one branch at a time, the newest",
            "set driver.branch to auto and driver.version to nothing",
        )
        return True
    legacy = {int(branch): name for branch, name in case.knowledge.packages["arch-own"]["legacy"].items()}
    for model in case.gpus:
        last = case.knowledge.architectures[model.arch].last_branch
        if last in legacy:
            case.refuse(
                f"{model.name} ({model.arch}) needs branch {last}, and Arch's own packages are newer",
                f"install {legacy[last]} from the AUR, then set driver.method to preinstalled",
            )
            return True
    return False
