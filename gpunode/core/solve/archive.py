"""What a node's own archive says about a choice: which kernels it has modules or headers for, and of which driver.

Where the node was not asked, nothing is known to be missing.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, replace

from gpunode.core.knowledge import Branch, DistroRow, Knowledge
from gpunode.core.model import Archive, Offer
from gpunode.core.solve.case import SolveCase, SolveRequest
from gpunode.core.solve.deb_versions import fits, parse_relations, version_key
from gpunode.core.solve.families import version_pattern
from gpunode.core.solve.rules import Rule

_COMMON = "nvidia-kernel-common-{branch}-server"  # has the version of the whole driver; modules name it with bounds
_ARCH_DRIVER = "nvidia-utils"  # of the one version of the driver that Arch has


def names_to_ask(request: SolveRequest, knowledge: Knowledge) -> tuple[str, ...]:
    """The packages that decide what a node can have: Debian's and Ubuntu's modules and headers of its kernels."""
    row = knowledge.distro(request.distro)
    if row is not None and row.family == "arch":
        return (_ARCH_DRIVER,)
    if row is None or row.family not in ("ubuntu", "debian"):
        return ()
    family, own = knowledge.packages[row.family], knowledge.packages["ubuntu-own"]
    packages: list[str] = []
    for kernel in request.kernels:
        match = re.match(family["kernel"], kernel.release)
        if not match:
            continue
        packages.append(family["headers"].format(release=kernel.release))
        packages += (f"linux-{kind}-{match['flavour']}" for kind in ("image", "headers"))
        if row.family == "ubuntu":
            words = [{"branch": branch, "open": kind} for branch in row.own for kind in ("", "-open")]
            packages += (own["modules"].format(release=kernel.release, **one) for one in words)
            packages.append(family["modules_extra"].format(release=kernel.release))
    if row.family == "ubuntu":
        packages += (_COMMON.format(branch=branch) for branch in row.own)
    return tuple(dict.fromkeys(packages))


def as_asked(row: DistroRow, archive: Archive, knowledge: Knowledge) -> DistroRow:
    """The distribution, on Arch with the branch that the node's own lists have, where that is known."""
    branches = {
        int(offer.version.partition(".")[0]) for offer in archive.of(_ARCH_DRIVER) if offer.version[:3].isdigit()
    }
    own = tuple(branch for branch in knowledge.branches if branch in branches)
    return replace(row, own=own, own_read="") if own else row


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The version of a branch whose built modules the kernels take ("": any), and those that it has none for."""

    version: str = ""
    without: tuple[str, ...] = ()
    why: str = ""


def built_fit(case: SolveCase, branch: Branch, flavour: str) -> Fit:
    """Ubuntu's built modules for the kernels that can boot: a kernel's are of one version of the driver.

    The newest version that all kernels have modules of; else the newest, and the kernels that it leaves without.
    """
    archive, common = case.request.archive, _COMMON.format(branch=branch.branch)
    if case.distro.family != "ubuntu" or common not in archive.asked:
        return Fit()
    pattern = version_pattern(case, branch)
    offers = (offer.version for offer in archive.of(common) if fnmatch.fnmatchcase(offer.version, pattern))
    versions = sorted(offers, key=version_key, reverse=True)
    kernels = [kernel.release for kernel in case.request.kernels]
    if not versions:
        return Fit(without=tuple(kernels), why=f"the archive has no {branch.branch}")
    modules = {kernel: archive.of(_module(case, branch, flavour, kernel)) for kernel in kernels}
    fits = [(v, [k for k in kernels if not any(_takes(o, common, v) for o in modules[k])]) for v in versions]
    whole = next((version for version, without in fits if not without), "")
    if whole:
        return Fit(version="" if whole == versions[0] else whole)
    without = tuple(fits[0][1])
    return Fit(without=without, why="; ".join(_why_not(k, modules[k], versions[0]) for k in without))


def _module(case: SolveCase, branch: Branch, flavour: str, release: str) -> str:
    rules = case.knowledge.rules
    kind = flavour or ("open" if branch.branch >= rules["open_default_from"]["branch"] else "proprietary")
    words = {"branch": branch.branch, "open": "-open" if kind == "open" else ""}
    return str(case.knowledge.packages["ubuntu-own"]["modules"]).format(release=release, **words)


def _takes(module: Offer, common: str, version: str) -> bool:
    groups = (group for text in module.needs for group in parse_relations(text))
    return all(fits(version, one) for group in groups for one in group if one.name == common)


def _why_not(kernel: str, modules: list[Offer], version: str) -> str:
    if not modules:
        return f"the archive has no modules of this driver for {kernel}"
    return f"those for {kernel} need {', '.join(modules[-1].needs)}, and the archive has {version}"


def taken_by_all(case: SolveCase, flavour: str) -> Rule:
    """That every kernel that can boot has modules of the branch."""
    return Rule(
        what="has no modules for every kernel",
        holds=lambda b: not built_fit(case, b, flavour).without,
        why="all kernels that can boot have its modules",
    )


def resolves(case: SolveCase, *, own: bool) -> list[Rule]:
    """That the node's package manager has not said of the branch that it cannot be installed."""
    return [
        Rule(
            what="cannot be installed",
            holds=lambda b, failed=failed: b.branch != failed.branch,  # type: ignore[misc]
            why=f"{failed.branch} cannot be installed: {failed.why}",
            source="the node's package manager",
        )
        for failed in case.request.archive.unresolved
        if failed.own == own
    ]


def explain_without(case: SolveCase, without: tuple[str, ...], why: str, what: str) -> None:
    """The kernels that the plan leaves without the driver, and what that means on the node."""
    running = [kernel.release for kernel in case.request.kernels if kernel.running and kernel.release in without]
    others = [release for release in without if release not in running]
    if running:
        case.warn(
            "kernel",
            f"{running[0]} runs and gets no {what} ({why}): the GPU works once the newest kernel, which comes "
            "along, has been booted",
            "",
        )
    if others:
        verb = "gets" if len(others) == 1 else "get"
        case.warn(
            "kernel",
            f"{', '.join(others)} {verb} no {what}{f' ({why})' * (not running)}: whoever boots it has no GPU; "
            "remove it, or take care that another one boots",
            "",
        )
