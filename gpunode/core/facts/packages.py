"""Sections about the package manager → values."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from gpunode.core.facts.text import Probe
from gpunode.core.model import Package

_NATIVE = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}
_INDEPENDENT = ("all", "noarch", "any", "")
# dnf4: "nvidia-driver-3:550.54.14-1.el9.*"; dnf5: 'name = "nvidia-driver"'; zypper: "solvable_name: nvidia*"
_LOCK_LINE = re.compile(
    r"\s*(?:name\s*=\s*\"(?P<dnf5>[^\"]+)\"|solvable_name:\s*(?P<zypp>\S+)|(?P<dnf4>[^\s#!=\[\]\"]+))\s*\Z"
)


def read_packages(probe: Probe, arch: str) -> tuple[str, dict[str, Package], tuple[str, ...]]:
    """(package manager, packages by name, broken packages).

    A package of another architecture than the node's stands under NAME:ARCH.  An rpm version is EPOCH:VERSION-RELEASE,
    without the epoch when it is 0; of several installed versions of one name the last one stands.  Kernel headers of
    rpm, several versions of which are there at a time, stand under names with their version as well.
    """
    locks = _locks(probe)
    manager = probe.value("packages", "manager")
    native = _NATIVE.get(arch, (arch,))
    packages: dict[str, Package] = {}
    broken = []
    for line in probe.lines("packages"):
        cells = line.split("\t")
        if len(cells) != 4:
            if not line.startswith("manager "):
                probe.unreadable("packages", line)
            continue
        state, name, version, package_arch = cells[0].ljust(3), cells[1], cells[2].removeprefix("0:"), cells[3]
        if state[1] not in "inc" or state[2] == "R":
            broken.append(name)
        if state[1] in "nc":
            continue
        known = not arch or package_arch in native or package_arch in _INDEPENDENT
        package = Package(name=name, version=version, held=state[0] == "h" or _locked(name, locks), arch=package_arch)
        packages[name if known else f"{name}:{package_arch}"] = package
        if manager in ("dnf", "zypper") and name.startswith("kernel") and "-devel" in name:
            packages |= dict.fromkeys(_kernel_names(package), package)
    return manager, packages, tuple(broken)


def _kernel_names(package: Package) -> tuple[str, str]:
    """As dnf names one version (NAME-VERSION-RELEASE.ARCH), and without the number of SUSE's last rebuild.

    uname -r says 6.4.0-150600.21-default where the package's release is 150600.21.2.
    """
    full = f"{package.name}-{package.version}"
    return f"{full}.{package.arch}", full.rpartition(".")[0]


def _locks(probe: Probe) -> tuple[str, ...]:
    """Names or name-version patterns that dnf, zypper or pacman hold."""
    found: list[str] = []
    for line in probe.lines("holds"):
        if line.startswith("IgnorePkg "):
            found += line.split()[1:]
        elif match := _LOCK_LINE.match(line):
            found.append(match["dnf5"] or match["zypp"] or match["dnf4"])
    return tuple(found)


def _locked(name: str, locks: Iterable[str]) -> bool:
    """Whether a lock is for that name: as a pattern, or as NAME-VERSION."""
    return any(fnmatch.fnmatchcase(name, lock) or re.match(rf"{re.escape(name)}-\d", lock) for lock in locks)


def read_package_lock(probe: Probe) -> str:
    """Who holds the package manager's lock: "apt-get (process 1234) holds /var/lib/dpkg/lock", "" when free."""
    for line in probe.lines("locks"):
        path, *holder = line.split(" ", 2)
        if len(holder) == 2:
            return f"{holder[1]} (process {holder[0]}) holds {path}"
        probe.unreadable("locks", line)
    return ""
