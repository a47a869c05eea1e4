"""Package names where packages are not deb: dnf and yum (rhel), zypper (suse), pacman (arch)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpunode.core.knowledge import Branch, DistroRow, GpuModel, Knowledge, Table
from gpunode.core.model import Flavour, Kernel, PackageWant
from gpunode.core.solve.notes import Notes

if TYPE_CHECKING:
    from gpunode.core.solve import SolveRequest


def version_wish(request: SolveRequest, branch: Branch) -> str:
    """What package versions must match: packagers add -1, -1.el9, -0ubuntu1 … to the driver's version."""
    return f"{request.driver.version}-*" if request.driver.version else f"{branch.branch}.*"


def rpm_repository(
    request: SolveRequest,
    row: DistroRow,
    branch: Branch,
    flavour: Flavour,
    _gpus: Sequence[GpuModel],
    knowledge: Knowledge,
) -> list[PackageWant]:
    """NVIDIA's repository for dnf, yum and zypper: metapackages, and before those were there what they name."""
    names, version = knowledge.packages[row.family], version_wish(request, branch)
    before = names["before_meta"]
    meta = before.get(flavour, names[flavour]) if branch.branch < before["branch"] else names[flavour]
    needs = [n for n in row.needs if "versionlock" not in n or request.driver.hold]
    return [*(PackageWant(name=n) for n in needs), *(PackageWant(name=n, version=version) for n in meta)]


def stream(row: DistroRow, branch: Branch, flavour: Flavour, knowledge: Knowledge) -> str:
    """The stream of the dnf module that holds the branch (nvidia-driver:580-open), "" where there are no modules."""
    return str(knowledge.packages["rhel"]["stream"][flavour].format(branch=branch.branch)) if row.modular else ""


def suse_leftovers(installed: Sequence[str], branch: Branch, flavour: Flavour, names: Table) -> list[str]:
    """What SUSE's metapackages of another branch or flavour brought and those that are wanted replace."""
    generation = _suse_generation(branch, names)
    found = []
    for name in installed:
        match = re.fullmatch(names["of_generation"], name)
        other = match and match["kmp"] and name.startswith("nvidia-open-") != (flavour == "open")
        if match and (match["generation"] != generation or other):
            found.append(name)
    return found


def _suse_generation(branch: Branch, names: Table) -> str:
    """The part of SUSE's package names that stands for some branches: G06, G07."""
    return str([g for first, g in names["generations"].items() if int(first) <= branch.branch][-1])


def suse_own(
    request: SolveRequest,
    row: DistroRow,
    branch: Branch,
    _flavour: Flavour,
    _gpus: Sequence[GpuModel],
    knowledge: Knowledge,
) -> list[PackageWant]:
    """SUSE's signed kernel modules, and the user space of the same version from NVIDIA's repository."""
    # a kernel module package is called 580.95.05_k6.4.0_150600.21-lp156.1.1
    names, version = knowledge.packages["suse-own"], f"{request.driver.version or f'{branch.branch}.'}*"
    generation = _suse_generation(branch, knowledge.packages["suse"])
    found = [re.search(row.kernels[0][0], kernel.release) for kernel in request.kernels]
    flavours = [match["flavour"] for match in found if match] or ["default"]
    modules = (names["modules"].format(generation=generation, flavour=f) for f in dict.fromkeys(flavours))
    space = (n.format(generation=generation) for n in names["userspace"])
    return [PackageWant(name=n, version=version) for n in (*modules, *space)]


def arch_own(
    request: SolveRequest,
    row: DistroRow,
    _branch: Branch,
    _flavour: Flavour,
    _gpus: Sequence[GpuModel],
    knowledge: Knowledge,
) -> list[PackageWant]:
    """Arch's: a package of modules for each of its main kernels, DKMS as soon as there is another kernel."""
    names = knowledge.packages["arch-own"]
    modules = [names["dkms"]]
    if not arch_dkms(request, row, knowledge):
        modules = [names["modules"][k] for k in _arch_kernels(request, row) or ["linux"]]
    return [PackageWant(name=n) for n in (*modules, *names["userspace"])]


def arch_dkms(request: SolveRequest, row: DistroRow, knowledge: Knowledge) -> bool:
    """Whether a kernel is there for which Arch has no package of built modules."""
    return not set(_arch_kernels(request, row)) <= set(knowledge.packages["arch-own"]["modules"])


def _arch_kernels(request: SolveRequest, row: DistroRow) -> list[str]:
    """The packages of the kernels: linux, linux-lts …; a kernel of nobody knows where is called other."""
    found = [header_packages(row, kernel) for kernel in request.kernels]
    return list(dict.fromkeys(names[0].name.removesuffix("-headers") if names else "other" for names in found))


def header_packages(row: DistroRow, kernel: Kernel) -> list[PackageWant]:
    """The header packages of one kernel by the row's patterns, [] for a kernel that is not the distribution's."""
    for pattern, *packages in row.kernels:
        match = re.search(pattern, kernel.release)
        if match:
            words = {"release": kernel.release, **match.groupdict()}
            words["version"] = kernel.release.rpartition("-")[0]
            return [PackageWant(name=package.format(**words)) for package in packages]
    return []


def refused_on_arch(request: SolveRequest, gpus: Sequence[GpuModel], knowledge: Knowledge, notes: Notes) -> bool:
    """What Arch cannot serve: a chosen version, and GPUs that its one branch does not drive any more."""
    if request.driver.version or request.driver.branch.isdigit():
        notes.refuse(
            f"driver {request.driver.version or request.driver.branch}: Arch has one branch at a time, the newest",
            "set driver.branch to auto and driver.version to nothing",
        )
        return True
    legacy = {int(branch): name for branch, name in knowledge.packages["arch-own"]["legacy"].items()}
    for model in gpus:
        last = knowledge.architectures[model.arch].last_branch
        if last in legacy:
            notes.refuse(
                f"{model.name} ({model.arch}) needs branch {last}, and Arch's own packages are newer",
                f"install {legacy[last]} from the AUR, then set driver.method to preinstalled",
            )
            return True
    return False
