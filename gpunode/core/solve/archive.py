"""What a node's own archive says about a choice: which kernels it has modules or headers for, and of which driver.

Where the node was not asked, nothing is known to be missing.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from gpunode.core.knowledge import Branch, DistroRow, Knowledge, Table
from gpunode.core.late import dataclass, replace
from gpunode.core.model import Archive, Offer
from gpunode.core.numbers import upstream, version_tuple
from gpunode.core.solve.case import SolveCase, SolveRequest
from gpunode.core.solve.deb_versions import fits, parse_relations, version_key
from gpunode.core.solve.families import version_pattern
from gpunode.core.solve.rules import SUPPORTED, Rule, of_branch

_COMMON = "nvidia-kernel-common-{branch}-server"  # has the version of the whole driver; modules name it with bounds
_ARCH_DRIVER = "nvidia-utils"  # of the one version of the driver that Arch has


def names_to_ask(request: SolveRequest, knowledge: Knowledge) -> tuple[str, ...]:
    """The packages that decide what a node can have: Debian's and Ubuntu's modules and headers of its kernels."""
    row = knowledge.distro(request.distro, request.made_from)
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
        lines = kernel_lines(row, request, family, kernel.release)
        packages += (name for line in lines for name in of_line(line))
        if row.family == "ubuntu":
            words = [{"branch": branch, "open": kind} for branch in _own(row, knowledge) for kind in ("", "-open")]
            packages += (own["modules"].format(release=kernel.release, **one) for one in words)
            packages += (own["modules_meta"].format(flavour=line, **one) for one in words for line in lines)
            packages.append(family["modules_extra"].format(release=kernel.release))
    if row.family == "ubuntu":
        packages += (_COMMON.format(branch=branch) for branch in _own(row, knowledge))
    if request.driver.number:
        packages += of_branch(knowledge, request.driver.number)
    packages += (knowledge.cuda_package("toolkit", one) for one in request.cuda.versions if one in knowledge.cuda)
    return tuple(dict.fromkeys(packages))


def as_asked(row: DistroRow, archive: Archive, knowledge: Knowledge) -> DistroRow:
    """The distribution with the branches of its own that the node's lists have, where that is known."""
    offers = [offer for branch in _own(row, knowledge) for offer in archive.of(_COMMON.format(branch=branch))]
    versions = [offer.version[:3] for offer in (*archive.of(_ARCH_DRIVER), *offers)]
    own = tuple(branch for branch in knowledge.branches if str(branch) in versions)
    return replace(row, own=own, own_read="") if own else row


def _own(row: DistroRow, knowledge: Knowledge) -> tuple[int, ...]:
    """The branches of which Ubuntu's archive had modules when it was read, and later ones that it may have by now."""
    last = max(row.own, default=0) if row.family == "ubuntu" else max(knowledge.branches)
    later = (branch.branch for branch in knowledge.branches.values() if branch.kind in SUPPORTED)
    return (*row.own, *(number for number in later if number > last))


def kernel_lines(row: DistroRow, request: SolveRequest, family: Table, release: str) -> list[str]:
    """The lines of kernels that Ubuntu's metapackages of that kernel may follow, the likeliest first.

    That of a metapackage which the node has is followed alone: of one flavour there are several, and each brings
    another kernel (azure, azure-lts-24.04, azure-6.17), with which its modules have to come.
    """
    match = re.match(family["kernel"], release)
    flavour, number = match["flavour"] if match else "generic", ".".join(release.split(".")[:2])
    own = re.compile(rf"linux-image-({re.escape(flavour)}-(?:lts-|hwe-)?\d[\d.]*)")
    followed = [found[1] for name in sorted(request.installed) if (found := own.fullmatch(name))]
    if followed and f"linux-image-{flavour}" not in request.installed:
        return followed[-1:]
    if number == row.ga_kernel or not match or "first_line" not in family:
        return [flavour]
    if flavour.startswith("generic"):
        likeliest = f"{flavour}-hwe-{row.key.partition(':')[2]}"
    else:  # arm64 has the same flavours with pages of 64k
        likeliest = f"{flavour}-{number}" if flavour.removesuffix("-64k") in family["first_line"] else flavour
    return list(dict.fromkeys((likeliest, f"{flavour}-{number}", flavour)))


def of_line(line: str) -> tuple[str, str]:
    """The metapackages of a line of kernels: the newest kernel, and its headers."""
    return f"linux-image-{line}", f"linux-headers-{line}"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The kernels that a branch has no built modules for, and why."""

    without: tuple[str, ...] = ()
    why: str = ""


def built_fit(case: SolveCase, branch: Branch, flavour: str) -> Fit:
    """Ubuntu's built modules for the kernels that can boot, by the newest version of the driver.

    Of an older one, which a release began with, apt takes no dependencies along.
    """
    archive, common = case.request.archive, _COMMON.format(branch=branch.branch)
    if case.distro.family != "ubuntu":
        return Fit()
    kernels = [kernel.release for kernel in case.request.kernels]
    if common not in archive.asked:
        without = _not_read(case, kernels)
        of_them = f"the archive had no modules of this driver for {', '.join(without)}"
        return Fit(without=without, why=f"as of {case.distro.own_read} {of_them}")
    if not (newest := _newest(case, branch)):
        return Fit(without=tuple(kernels), why=f"the archive has no {branch.branch}")
    modules = {one: archive.of(_name(case, "modules", branch, flavour, release=one)) for one in kernels}
    without = tuple(kernel for kernel in kernels if not any(_takes(offer, common, newest) for offer in modules[kernel]))
    return Fit(without=without, why="; ".join(_why_not(kernel, modules[kernel], newest) for kernel in without))


def _not_read(case: SolveCase, kernels: Sequence[str], *, later: bool = False) -> tuple[str, ...]:
    """Kernels that the archive had no modules for when it was read, which counts where the node's cannot be asked.

    `later`: nor for a later line of theirs, which their metapackage brings.
    """
    built, family = case.distro.built_for, case.knowledge.packages["ubuntu"]
    if not built or case.request.arch != "x86_64":  # it was read for amd64 alone
        return ()
    without = []
    for release in kernels:
        match, line = re.match(family["kernel"], release), ".".join(release.split(".")[:2])
        flavour = match["flavour"] if match else ""
        follows = kernel_lines(case.distro, case.request, family, release)[0]
        stays = flavour in family["first_line"] or follows == "generic" or re.match(rf"{flavour}-(lts-)?\d", follows)
        others = later and not stays
        lines = [one for one in built if one == line or (others and version_tuple(one) > version_tuple(line))]
        if not any(flavour in built[one] for one in lines):
            without.append(release)
    return tuple(without)


def metapackages(case: SolveCase, branch: Branch, flavour: str) -> list[str]:
    """The packages that bring modules along with each new kernel: by what the archive has, else the likeliest."""
    family, archive, found = case.knowledge.packages["ubuntu"], case.request.archive, []
    without = built_fit(case, branch, flavour).without
    for release in [kernel.release for kernel in case.request.kernels] or [""]:
        lines = kernel_lines(case.distro, case.request, family, release)
        names = [_name(case, "modules_meta", branch, flavour, flavour=line) for line in lines]
        same = f"{'.'.join(release.split('.')[:2])}."  # where its own line has no modules that fit, another has to come
        there = [n for n in names if release not in without and any(o.version.startswith(same) for o in archive.of(n))]
        found += [*there, *(name for name in names if not archive.lacks(name))][:1]
    return list(dict.fromkeys(found))


def needed_without(case: SolveCase, branch: Branch, flavour: str, *, come: bool = False) -> tuple[str, ...]:
    """The kernels of `Fit.without` that a node cannot do without.

    `come`: another one may come along in their place, where the archive has one with modules of the driver.
    """
    without = built_fit(case, branch, flavour).without
    needed = tuple(release for release in needed_kernels(case) if release in without)
    common, newest = _COMMON.format(branch=branch.branch), _newest(case, branch)
    if come and common not in case.request.archive.asked:
        return _not_read(case, needed, later=True)
    offers = (offer for name in metapackages(case, branch, flavour) for offer in case.request.archive.of(name))
    return () if come and any(_takes(offer, common, newest) for offer in offers) else needed


def needed_kernels(case: SolveCase) -> list[str]:
    """The kernels that a node cannot do without: the one that runs, and the newest."""
    newest = max((kernel.release for kernel in case.request.kernels), key=version_key, default="")
    return [kernel.release for kernel in case.request.kernels if kernel.running or kernel.release == newest]


def serves_kernels(case: SolveCase, flavour: str, *, come: bool = False) -> Rule:
    """That the kernels which a node cannot do without have modules of the branch."""
    return Rule(
        what="has no modules for a kernel that is needed",
        holds=lambda b: not needed_without(case, b, flavour, come=come),
        why="the kernel that runs and the newest one need its modules",
    )


def _kind(case: SolveCase, branch: Branch, flavour: str) -> str:
    default = case.knowledge.rules["open_default_from"]["branch"]
    return flavour or ("open" if branch.branch >= default else "proprietary")


def _name(case: SolveCase, which: str, branch: Branch, kind: str, **words: str) -> str:
    words |= {"branch": str(branch.branch), "open": "-open" if _kind(case, branch, kind) == "open" else ""}
    return str(case.knowledge.packages["ubuntu-own"][which]).format(**words)


def _newest(case: SolveCase, branch: Branch) -> str:
    """The newest version of the driver that the archive has, "" for none."""
    pattern = version_pattern(case, branch)
    versions = (offer.version for offer in case.request.archive.of(_COMMON.format(branch=branch.branch)))
    return max((one for one in versions if fnmatch.fnmatchcase(one, pattern)), key=version_key, default="")


def _takes(module: Offer, common: str, version: str) -> bool:
    """Whether the driver of that version loads the module, which is of the oldest version that it depends on.

    Closed modules have no upper bound: apt installs them beside newer libraries, which then refuse them.
    """
    groups = (group for text in module.needs for group in parse_relations(text))
    bounds = [one for group in groups for one in group if one.name == common]
    return all(fits(version, one) and (one.op != ">=" or upstream(one.version) == upstream(version)) for one in bounds)


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
            f"{', '.join(others)} {verb} no {what}{f' ({why})' * (not running)}: booted, it has no GPU; "
            "remove it, or make another one boot",
            "",
        )
