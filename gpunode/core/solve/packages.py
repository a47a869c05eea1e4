"""Branch and flavour → package names, headers for every kernel, services, and what must go."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpunode.core.knowledge import Branch, DistroRow, Precompiled, Table
from gpunode.core.late import regex
from gpunode.core.model import DriverChoice, Flavour, Kernel, PackageWant
from gpunode.core.numbers import version_tuple
from gpunode.core.solve.archive import (
    Fit,
    built_fit,
    explain_without,
    kernel_lines,
    metapackages,
    needed_kernels,
    of_line,
)
from gpunode.core.solve.case import SolveCase
from gpunode.core.solve.extra import builder, repository_packages
from gpunode.core.solve.fabric import extra_modules, fabric_modules, joined
from gpunode.core.solve.families import (
    arch_own,
    header_packages,
    precompiled_rpm,
    rpm_repository,
    stream,
    suse_leftovers,
    suse_own,
    version_pattern,
)
from gpunode.core.solve.rules import in_repository

# Installed packages that belong to one driver branch: when another branch (or flavour) is installed, they go.
_OF_BRANCH = regex(
    r"(nvidia-(open|driver|driver-pinning|headless|headless-no-dkms|dkms|kernel-source|kernel-common|utils|compute-utils|"
    r"firmware|fabricmanager|imex)|cuda-drivers(-fabricmanager)?|libnvidia-[a-z0-9]+|xserver-xorg-video-nvidia|"
    r"linux-modules-nvidia|kmod-nvidia)"  # of NVIDIA's own built modules: kmod-nvidia-580.95.05-5.14.0-570.22.1
    r"-(?P<branch>\d{3})(?P<rest>[.-].*)?\Z"
)
# Packages that hold a part of a driver, whoever made them.
DRIVER_PACKAGE = regex(
    r"nvidia-(?!container|docker|cuda-|nsight|visual|fs|gds|mig-|vaapi|driver-assistant|texture)|"
    r"nvidia$|lib(32-)?nvidia-(?!container|egl)|lib(cuda1|cudadebugger1|nvcuvid1|nvoptix1)\b|cuda-drivers|"
    r"(dkms|kmod|lib32|opencl|xserver-xorg-video|xorg-x11-drv|firmware|glx-alternative)-nvidia|"
    r"linux-(modules|objects|signatures)-nvidia"
)
_LEGACY = regex(r"nvidia-(tesla|legacy)-.*(driver|kernel-dkms)\Z")


def driver_choice(
    case: SolveCase, branch: Branch, flavour: Flavour, *, own: bool, built: Precompiled | None = None
) -> DriverChoice | None:
    """The packages of the driver, held against unattended upgrades where the spec says so.

    `built`: the kernel modules are taken as somebody built them.
    """
    if own and case.distro.family == "debian" and not _has_components(case):
        return None
    deb = case.distro.family in ("ubuntu", "debian")
    source = case.knowledge.packages[
        f"{case.distro.family}-own" if own else "cuda-repository" if deb else case.distro.family
    ]
    way = precompiled_rpm(case, branch, built) if built and not built.own else None
    by_dkms = own and built is None and case.distro.family == "ubuntu"
    wants = way or (_ubuntu_dkms if by_dkms else _WAYS[own, case.distro.family])(case, branch, flavour)
    fabric_choice = joined(case, branch, source, own=own)
    if fabric_choice is None:
        return None
    fabric, services = fabric_choice
    unheld = (*case.distro.needs, *(built.tools if built else ()), *_of_one_kernel(case, wants))
    packages = tuple(
        PackageWant(name=p.name, version=p.version, hold=case.request.driver.hold and p.name not in unheld)
        for p in (*wants, *fabric)
    )
    case.because("packages", _names(packages), built.source if way and built else source["source"])
    _explain_version(case, branch, own=own)
    headers = headers_of(case) if built is None else ()
    fit = built_fit(case, branch, flavour) if own and built else Fit()
    explain_without(case, fit.without, fit.why, "modules of this driver")
    before = repository_packages(case, built)
    if headers is None or before is None:
        return None
    replaced = _replaced(case, branch, own=own)
    if not own and case.distro.family == "rhel":
        _name_other_packagers(case)
    names = {**source, "built": built.modules} if way and built else source
    removed = tuple(dict.fromkeys([*_conflicts(case, branch, flavour, packages, names), *replaced]))
    # from Debian's own driver to NVIDIA's packages, or back: nvidia-driver-cuda, nvidia-driver-libs are NVIDIA's alone
    others = re.compile("|".join(source.get("of_others", [r"(?!)"])))
    changes_hands = bool(replaced) or (own and case.distro.family == "debian" and bool(removed))
    changes_hands = changes_hands or any(map(others.fullmatch, removed))
    return DriverChoice(
        branch=branch.branch,
        flavour=flavour,
        version=case.request.driver.version,
        newest=branch.latest,
        method="packages",
        packages=packages,
        repository="" if (own and case.distro.family != "suse") or (built and built.setup) else "nvidia-cuda",
        kernel_packages=(*headers, *extra_modules(case)),
        modules=fabric_modules(case),
        services=("nvidia-persistenced.service", *services),
        remove=removed,
        may_go=tuple(name for name in case.request.installed if DRIVER_PACKAGE.match(name)) if changes_hands else (),
        pin="" if own or case.distro.modular else version_pattern(case, branch),
        stream="" if own else stream(case, branch, flavour, built),
        repository_packages=before,
        repository_files=built.files if built else (),
        builder=builder(case, built),
        without=fit.without if built else lost_headers(case),
    )


def _of_one_kernel(case: SolveCase, wants: Sequence[PackageWant]) -> tuple[str, ...]:
    """Modules named after a kernel: they follow the driver that is held, and a metapackage brings those of the next."""
    endings = tuple(f"-{kernel.release}" for kernel in case.request.kernels or ())
    return tuple(want.name for want in wants if endings and want.name.endswith(endings))


def _names(packages: Sequence[PackageWant]) -> str:
    return ", ".join(p.name for p in packages)


def _explain_version(case: SolveCase, branch: Branch, *, own: bool) -> None:
    if not own and branch.branch not in case.distro.branches:
        why = f"{in_repository(case, own=False).why}; whether it has {branch.branch}, the package manager says"
        case.warn("branch", why, case.distro.source)
    if case.request.driver.version:
        case.because("version", f"{case.request.driver.version}, as asked", "driver.version")
    elif branch.latest:
        where = "the distribution has" if own else "the repository has"
        known = "" if own else f"; newest known: {branch.latest}"
        case.because("version", f"the newest of {branch.branch} that {where}{known}", branch.source)


# ---------------------------------------------------------------- names by repository


def _cuda_repository(case: SolveCase, branch: Branch, flavour: Flavour) -> list[PackageWant]:
    names, family = case.knowledge.packages["cuda-repository"], case.knowledge.packages[case.distro.family]
    version = version_pattern(case, branch)
    meta = names[flavour]
    pinned = branch.branch >= family["pinned_from"]
    pin = names["pin"].format(pin=case.request.driver.version or branch.branch)
    if branch.branch < family["unversioned_from"]:
        meta += f"-{branch.branch}"
    return [
        *([PackageWant(name=pin)] if pinned else []),
        PackageWant(name=meta, version=version),
        *(PackageWant(name=n, version=version) for n in family["persistenced"]),
    ]


def _ubuntu_own(case: SolveCase, branch: Branch, flavour: Flavour) -> list[PackageWant]:
    names = case.knowledge.packages["ubuntu-own"]
    words = {"branch": branch.branch, "open": "-open" if flavour == "open" else ""}
    without, version = built_fit(case, branch, flavour).without, version_pattern(case, branch)
    kernels = [kernel.release for kernel in case.request.kernels if kernel.release not in without]
    modules = [names["modules"].format(release=release, **words) for release in kernels]
    modules += metapackages(case, branch, flavour)
    return [
        *(PackageWant(name=n) for n in dict.fromkeys(modules)),  # their versions are the kernel's
        *(PackageWant(name=n.format(**words), version=version) for n in names["userspace"]),
    ]


def _ubuntu_dkms(case: SolveCase, branch: Branch, flavour: Flavour) -> list[PackageWant]:
    names, version = case.knowledge.packages["ubuntu-own"], version_pattern(case, branch)
    words = {"branch": branch.branch, "open": "-open" if flavour == "open" else ""}
    wanted = (name.format(**words) for name in (names["dkms"], *names["userspace"]))
    return [PackageWant(name=name, version=version) for name in wanted]


def _debian_own(case: SolveCase, branch: Branch, flavour: Flavour) -> list[PackageWant]:
    names = case.knowledge.packages["debian-own"]
    version = version_pattern(case, branch)
    if branch.branch in names["tesla"].get(case.distro.key, ()):
        separate = [names["tesla_proprietary"], *names["tesla_userspace"]]
        wanted = [PackageWant(name=name.format(branch=branch.branch), version=version) for name in separate]
        return [replace(one, version="") if one.name == "nvidia-persistenced" else one for one in wanted]
    gsp = branch.branch >= 535 and any(g.open != "no" for g in case.gpus)
    return [
        PackageWant(name=names[flavour], version=version),
        *(PackageWant(name=n, version=version if n != "nvidia-persistenced" else "") for n in names["userspace"]),
        *([PackageWant(name=names["gsp"], version=version)] if gsp else []),
    ]


def _has_components(case: SolveCase) -> bool:
    if case.request.components is None:
        case.because(
            "repository",
            f"needs the components {' '.join(case.distro.components)} in the node's sources",
            case.distro.source,
        )
        return True
    missing = [c for c in case.distro.components if c not in case.request.components]
    if missing:
        case.refuse(
            f"Debian's driver is in {' '.join(case.distro.components)}, "
            f"and the node's sources lack {' '.join(missing)}",
            f"add {' '.join(missing)} to the Debian entries in /etc/apt/sources.list.d/ (or sources.list), or set "
            "driver.branch to auto",
        )
    return not missing


_WAYS: dict[tuple[bool, str], Callable[..., list[PackageWant]]] = {  # (the distribution's own, family)
    (False, "ubuntu"): _cuda_repository,
    (False, "debian"): _cuda_repository,
    (False, "rhel"): rpm_repository,
    (False, "suse"): rpm_repository,
    (True, "ubuntu"): _ubuntu_own,
    (True, "debian"): _debian_own,
    (True, "suse"): suse_own,
    (True, "arch"): arch_own,
}


# ---------------------------------------------------------------- kernels and conflicts


def headers_of(case: SolveCase) -> tuple[PackageWant, ...] | None:
    """Headers of every kernel that can boot next: without them the GPU is gone after a reboot into it.

    For kernels whose headers the archive has no more the newest one comes, with its headers.
    """
    family = case.knowledge.packages[case.distro.family]
    if not case.request.kernels:
        names = case.distro.headers_meta or (family["headers_meta"][case.request.arch],)
        case.because("headers", f"kernels are not known: {', '.join(names)} follows the newest", family["source"])
        return tuple(PackageWant(name=n) for n in names)
    packages: list[PackageWant] = []
    lost, needed = lost_headers(case), needed_kernels(case)
    for kernel in (k for k in case.request.kernels if k.release not in lost or k.release in needed):
        wants = header_packages(case.distro, kernel) if case.distro.kernels else _deb_headers(case, family, kernel)
        if kernel.release in lost:
            wants = _newest_kernel(case, family, kernel)
            if not wants:
                return None
        if not wants and not kernel.headers:
            case.refuse(
                f"kernel {kernel.release} is not one of the distribution's, and its headers are not there",
                "install its headers (/lib/modules/RELEASE/build must lead to them), or remove that kernel; "
                "driver.method: preinstalled leaves a driver that runs as it is",
            )
            return None
        if not wants:
            case.because("headers", f"kernel {kernel.release} is not the distribution's; its headers are there", "")
        packages += wants
    wants = list(dict.fromkeys(packages))
    if wants:
        case.because(
            "headers", f"DKMS builds the module for each kernel that can boot: {_names(wants)}", family["source"]
        )
    explain_without(case, lost, "the archive has their headers no more", "module of this driver")
    return tuple(wants)


def lost_headers(case: SolveCase) -> tuple[str, ...]:
    """The kernels whose headers are neither on the node nor in its archive any more."""
    headers = case.knowledge.packages[case.distro.family].get("headers", "")
    archive, kernels = case.request.archive, case.request.kernels
    return tuple(k.release for k in kernels if not k.headers and archive.lacks(headers.format(release=k.release)))


def _newest_kernel(case: SolveCase, family: Table, kernel: Kernel) -> list[PackageWant]:
    """The newest kernel of its line with its headers, in place of one whose headers are gone; refused without."""
    newest, offers = version_tuple(kernel.release), case.request.archive.of
    lines = (of_line(line) for line in kernel_lines(case.distro, case.request, family, kernel.release))
    # an older one would not be booted in its place
    later = (line for line in lines if all(any(version_tuple(o.version) >= newest for o in offers(n)) for n in line))
    names = next(later, ())
    gone = f"{family['headers'].format(release=kernel.release)} is neither on the node nor in its archive any more"
    if not names:
        case.refuse(
            f"{gone}, and the driver's module for kernel {kernel.release} cannot be built without",
            "install another kernel with its headers, boot it and remove this one",
        )
        return []
    case.because("headers", f"{gone}: the newest kernel comes, with its headers", family["source"])
    return [PackageWant(name=name) for name in names]


def _deb_headers(case: SolveCase, family: Table, kernel: Kernel) -> list[PackageWant]:
    match = re.match(family["kernel"], kernel.release)
    if not match:
        return []
    # where the image's metapackage is, that of the headers brings the headers of the next kernel along
    follows = f"linux-image-{match['flavour']}" in case.request.installed
    names = [family["headers"].format(release=kernel.release), *([f"linux-headers-{match['flavour']}"] * follows)]
    return [PackageWant(name=n) for n in names]


def headers_fit(row: DistroRow, family: Table, release: str) -> bool:
    """Whether a kernel is one of that distribution's, by its release."""
    return bool(header_packages(row, Kernel(release=release)) if row.kernels else re.match(family["kernel"], release))


def _conflicts(
    case: SolveCase, branch: Branch, flavour: Flavour, packages: Sequence[PackageWant], names: Table
) -> tuple[str, ...]:
    """Installed packages of another branch or flavour, other modules; the package manager would stumble over them."""
    wanted, built = {p.name for p in packages}, names.get("built", "")
    rivals = (part["rivals"][flavour] for part in (case.knowledge.packages["every"], names) if "rivals" in part)
    more = [*names.get("of_others", ()), *([names["of_dkms"]] if built else [])]
    conflicts = re.compile(rf"(?!({built or ' '})$)({'|'.join([*(one for row in rivals for one in row), *more])})")
    switched = case.request.loaded_driver.partition(".")[0] not in ("", str(branch.branch))
    conflicting = []
    for name in case.request.installed:
        match = _OF_BRANCH.match(name)
        other = match is not None and int(match["branch"]) != branch.branch
        # nvidia-driver-pinning-580.95.05 beside the pin that is wanted now
        pin = name.startswith("nvidia-driver-pinning-") or name.startswith(("nvidia-open-", "cuda-drivers-"))
        # the names without a branch keep the branch they came with, where another one is wanted
        meta = switched and name in ("nvidia-open", "cuda-drivers")
        if name not in wanted and (
            other or meta or (match and pin) or _LEGACY.match(name) or conflicts.fullmatch(name)
        ):
            conflicting.append(name)
    left = suse_leftovers(case.request.installed, branch, flavour, names) if "generations" in names else []
    return tuple(dict.fromkeys([*conflicting, *(name for name in left if name not in wanted)]))


def _name_other_packagers(case: SolveCase) -> None:
    """The repositories on the node that have a driver of their own under names that NVIDIA's packages have, too."""
    for row in case.knowledge.packagers:
        ids = [name for name in case.request.repositories if re.fullmatch(row["repositories"], name)]
        if ids:
            off = " ".join(f"--setopt={name}.excludepkgs='*nvidia*,*cuda*'" for name in ids)
            case.warn(
                "repositories",
                f"{row['name']} ({', '.join(ids)}) has a driver of its own, and is enabled: {row['next']}; "
                f"dnf config-manager --save {off} keeps it out",
                row["source"],
            )


def _replaced(case: SolveCase, branch: Branch, *, own: bool) -> tuple[str, ...]:
    """What is installed under the names that another source or age of drivers has, and has to go as a whole."""
    names = case.knowledge.packages.get(f"{case.distro.family}-own", {})
    like = re.compile(names.get("only_there_like" if own else "only_own_like", r"(?!)"))
    named = () if own or branch.branch < names.get("only_own_from", 0) else names.get("only_own", ())
    installed = case.request.installed
    more = (name for name in installed if name not in named and like.fullmatch(name))
    replaced = (*(name for name in named if name in installed), *more)
    if replaced:
        whose = "NVIDIA's packages give" if own else f"{case.distro.key}'s own driver gives"
        to = f"{case.distro.key}'s own" if own else "NVIDIA's packages"
        why = f"{whose} way to {to}: {', '.join(replaced)}, and what depends on them"
        case.because("packages", why, names["source"])
    later = () if own else _unversioned(case, branch)
    return (*replaced, *later)


def _unversioned(case: SolveCase, branch: Branch) -> tuple[str, ...]:
    """Of a branch whose packages' names no longer say it, before one whose names do: nothing else tells them apart."""
    family = case.knowledge.packages[case.distro.family]
    since = family.get("unversioned_from", 0)
    if branch.branch >= since or "unversioned_like" not in family:
        return ()
    unversioned = tuple(name for name in case.request.installed if re.fullmatch(family["unversioned_like"], name))
    if unversioned:
        why = f"packages of {since} and later give way to those of {branch.branch}, which have other names"
        case.because("packages", f"{why}: {', '.join(unversioned)}, and what depends on them", family["source"])
    return unversioned
