"""Repositories beside the distribution's main ones that the driver's packages come from: EPEL, which has dkms.

A transaction cannot use a repository that it installs itself, so the packages that set repositories up are apart from
those that come from there.
"""

from __future__ import annotations

from gpunode.core.knowledge import Precompiled
from gpunode.core.late import regex
from gpunode.core.model import PackageWant
from gpunode.core.solve.case import SolveCase
from gpunode.core.spec.source import DISTRIBUTION

_EPEL_PACKAGE = regex(r"epel-release|oracle-epel-release-el\d+")
_EPEL_REPOSITORY = regex(r"(?i)(?!.*(testing|source|debug|cisco|next|modular|nvidia)).*epel")
_PACKAGE_HUB = regex(r"(?i).*package[-_]?hub")
_EPEL_URL = "https://dl.fedoraproject.org/pub/epel/epel-release-latest-{release}.noarch.rpm"


def repository_packages(case: SolveCase, built: Precompiled | None = None) -> tuple[PackageWant, ...] | None:
    """What is installed before the driver's packages, in a transaction of its own; None with a problem noted."""
    if DISTRIBUTION in case.request.sources:  # the node's own repositories are not asked
        return ()
    if built:  # nothing comes from EPEL
        if built.setup:
            why = f"{', '.join(built.setup)}, before the driver's packages: it sets up the repository of built modules"
            case.because("repositories", why, built.source)
        return tuple(PackageWant(name=name) for name in built.setup)
    _explain_product(case)
    if case.distro.epel and not case.distro.repositories:
        return () if _by_a_person(case) else None
    if case.distro.epel and _set_up_otherwise(case):
        case.because("repositories", "EPEL, which has dkms, is set up on the node already", case.distro.source)
        return ()
    if case.distro.repositories:
        what = (
            f"EPEL {case.distro.epel}, which has dkms"
            if case.distro.epel
            else "a repository that the driver's packages need"
        )
        why = f"{', '.join(case.distro.repositories)}, before the driver's packages: it sets up {what}"
        case.because("repositories", why, case.distro.source)
    return tuple(PackageWant(name=name) for name in case.distro.repositories)


def builder(case: SolveCase, built: Precompiled | None = None) -> str:
    """The id of the repository that is to be enabled beside EPEL, "" for none."""
    return "" if built or DISTRIBUTION in case.request.sources else case.distro.builder


def _explain_product(case: SolveCase) -> None:
    """SUSE's Package Hub has what NVIDIA's packages depend on; it belongs to a subscription, so its owner adds it."""
    if not case.distro.product or any(map(_PACKAGE_HUB.match, case.request.repositories)):
        return
    version = case.request.distro.partition(":")[2]
    product = case.distro.product.format(version=version, machine=case.request.arch)
    say = case.warn if case.request.kernels else case.because
    say(
        "repositories",
        f"NVIDIA's packages for SLES may need packages of SUSE's Package Hub, which is not set up as far as can be "
        f"seen: SUSEConnect --product {product}, or name a mirror of all that the node needs in sources.{DISTRIBUTION}",
        case.distro.source,
    )


def _set_up_otherwise(case: SolveCase) -> bool:
    """Whether a mirror of somebody's own gives EPEL, without the package that would set it up."""
    by_package = any(name in case.request.installed for name in case.distro.repositories)
    return not by_package and any(map(_EPEL_REPOSITORY.match, case.request.repositories))


def _by_a_person(case: SolveCase) -> bool:
    """Red Hat's own distribution has no package for EPEL: it comes by URL, which is for the owner to trust."""
    there = any(map(_EPEL_PACKAGE.fullmatch, case.request.installed)) or any(
        map(_EPEL_REPOSITORY.match, case.request.repositories)
    )
    if there or "dkms" in case.request.installed:
        return True
    url = _EPEL_URL.format(release=case.distro.epel)
    if not case.request.kernels:  # no node was asked
        case.because("repositories", f"dkms comes from EPEL, which has to be set up before: {url}", case.distro.source)
        return True
    ready = f"codeready-builder-for-rhel-{case.distro.epel}-{case.request.arch}-rpms"
    registered = case.request.distro.startswith("rhel:") and case.distro.epel != "7"
    enable = f"subscription-manager repos --enable {ready}; " if registered else ""
    case.refuse(
        f"dkms comes from EPEL, which is not set up, and {case.request.distro} has no package for that",
        f"{enable}{'yum' if case.distro.epel == '7' else 'dnf'} install {url}; or name a mirror of all that the node "
        f"needs in sources.{DISTRIBUTION}",
    )
    return False
