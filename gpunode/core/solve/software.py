"""The container toolkit, and the repositories that all of it comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpunode.core.knowledge import RepositoryKey
from gpunode.core.meant import meant
from gpunode.core.model import PackageWant, Repository, ToolkitChoice
from gpunode.core.numbers import version_tuple
from gpunode.core.solve.case import SolveCase
from gpunode.core.spec.source import DISTRIBUTION, filled_in


def solve_toolkit(case: SolveCase) -> ToolkitChoice | None:
    """NVIDIA Container Toolkit: four packages that must have one version."""
    names = case.knowledge.packages["container-toolkit"]
    setting = case.request.toolkit.version
    if setting == "none":
        case.because("toolkit", "toolkit.version is none", "")
        return None
    if case.distro.family == "arch":
        return _arch_toolkit(case)
    version, why = _auto_toolkit(case, names["newest"]) if setting == "auto" else (setting, "as asked")
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version):
        case.refuse(
            f"toolkit.version is {setting!r}",
            f"write auto, none, or a version of three numbers such as {names['newest']}",
        )
        return None
    if case.request.toolkit.config.mode == "jit-cdi" and version_tuple(version) < (1, 18):
        case.refuse(
            f"toolkit.config.mode is jit-cdi, and toolkit.version is {version}: that mode came with 1.18.0",
            "set toolkit.version to auto, or toolkit.config.mode to auto or cdi",
        )
        return None
    if setting != "auto" and version_tuple(version) > version_tuple(names["newest"]):
        case.warn("toolkit", f"{version} is newer than {names['newest']}, the newest known", names["source"])
    case.because("toolkit", f"{version}, {why}; its four packages depend on each other in one version", names["source"])
    remove = tuple(n for n in names["replaced"] if n in case.request.installed)
    if remove:
        case.because("toolkit", f"{', '.join(remove)}: obsolete, replaced by nvidia-container-toolkit", names["source"])
    return ToolkitChoice(
        version=version,
        method="packages",
        packages=tuple(PackageWant(name=n, version=names["version"].format(version=version)) for n in names["names"]),
        repository="nvidia-container-toolkit",
        remove=remove,
    )


def _auto_toolkit(case: SolveCase, newest: str) -> tuple[str, str]:
    """The newest version, and why; never below what is installed."""
    installed, offered = case.request.installed_toolkit, case.request.offered_toolkit
    if offered and version_tuple(offered) > version_tuple(installed):
        return offered, f"the newest that its repository has; {newest} is the newest known"
    if re.fullmatch(r"\d+\.\d+\.\d+", installed) and version_tuple(installed) > version_tuple(newest):
        return installed, f"which is installed and newer than {newest}, the newest known"
    return newest, "the newest known"


def _arch_toolkit(case: SolveCase) -> ToolkitChoice | None:
    names = case.knowledge.packages["arch-own"]
    if case.request.toolkit.version != "auto":
        case.refuse(
            f"toolkit.version {case.request.toolkit.version}: Arch has one version at a time, the newest",
            "set toolkit.version to auto",
        )
        return None
    case.because("toolkit", "the newest that Arch has", names["source"])
    packages = tuple(PackageWant(name=n) for n in names["toolkit"])
    return ToolkitChoice(version="", method="packages", packages=packages, repository="")


def solve_repositories(case: SolveCase, used: Sequence[str]) -> tuple[Repository, ...]:
    """The repositories named in `used`, at the vendor or at the mirror that the spec's `sources` names."""
    for name in case.request.sources:
        if name not in case.knowledge.repositories and name != DISTRIBUTION:
            known = f"known: {', '.join((*case.knowledge.repositories, DISTRIBUTION))}"
            case.refuse(
                f"sources.{name}: there is no such repository",
                meant(name, case.knowledge.repositories, known),
            )
    if DISTRIBUTION in case.request.sources and case.distro.family == "arch":
        case.refuse(
            f"sources.{DISTRIBUTION}: on Arch the node's own repositories are asked, and no others",
            "leave it out, and name a mirror in the node's /etc/pacman.d/mirrorlist",
        )
    own = (_distribution(case),) if DISTRIBUTION in case.request.sources else ()
    return (*own, *(_repository(case, name) for name in used))


def _distribution(case: SolveCase) -> Repository:
    """The repository that stands for all of the distribution's own."""
    source = case.request.sources[DISTRIBUTION]
    url = filled_in(source.url, _words(case, case.request.arch))
    case.because("repository", f"{DISTRIBUTION} is {url}: the node's own repositories are not asked", "sources")
    return Repository(
        name=DISTRIBUTION,
        url=url,
        fingerprint=source.fingerprint.replace(" ", "").upper(),
        source=f"sources.{DISTRIBUTION}",
        signs="packages" if source.signs == "packages" else "metadata",
    )


def _words(case: SolveCase, arch: str) -> dict[str, str]:
    """What stands for the placeholders of a URL."""
    return {
        "dir": case.distro.dir,
        "arch": arch,
        "distro": case.distro.key.replace(":", "-"),
        "machine": case.request.arch,
    }


def _repository(case: SolveCase, name: str) -> Repository:
    table = case.knowledge.repositories[name]
    deb = case.distro.family in ("ubuntu", "debian") or "rpm_url" not in table
    url, archs = (table["url"], table["arch"]) if deb else (table["rpm_url"], table["rpm_arch"])
    vendor = url.format(dir=case.distro.dir, arch=archs[case.request.arch])
    key: RepositoryKey = case.knowledge.keys[table.get("key") or case.distro.signed_by]
    mirror = case.request.sources.get(name)
    url = filled_in(mirror.url, _words(case, archs[case.request.arch])) if mirror and mirror.url else vendor
    own_key = bool(mirror and (mirror.key or mirror.fingerprint))
    fingerprint = (mirror.fingerprint.replace(" ", "").upper() if mirror else "") or key.fingerprint
    if url != vendor:
        case.because("repository", f"{name} comes from {url}", f"sources.{name}")
    else:
        case.because("repository", f"{name}: {url}", table["source"])
    _explain_key(case, name, key, fingerprint, own_key=own_key)
    return Repository(
        name=name,
        url=url,
        key_url=key.url.format(repository=vendor),
        fingerprint=fingerprint,
        key_sha256="" if own_key or fingerprint else key.file_sha256,
        key_id="" if own_key or fingerprint else key.id,
        source=table["source"],
        signs=mirror.signs if mirror and mirror.signs != "auto" else table.get("rpm_signs", "packages"),
    )


def _explain_key(case: SolveCase, name: str, key: RepositoryKey, fingerprint: str, *, own_key: bool) -> None:
    if fingerprint or own_key:
        whose = f"as sources.{name} says" if own_key else f"NVIDIA's key {key.id}"
        source = f"sources.{name}" if own_key else key.source
        case.because("repository key", f"{name} must be signed by {fingerprint or 'a key not known'}, {whose}", source)
        return
    how = (
        "its file is compared by SHA-256, and the end of its fingerprint with the id"
        if key.file_sha256
        else f"compare that of {key.url.rpartition('}')[2]} with what the vendor publishes and set "
        f"sources.{name}.fingerprint, or nothing is installed"
    )
    say = case.because if key.file_sha256 else case.warn
    say("repository key", f"the fingerprint of NVIDIA's key {key.id} is not known; {how}", key.source)
