"""Sections about the machine itself → values."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping

from gpunode.core.facts.text import Probe
from gpunode.core.late import regex
from gpunode.core.model import Distro, FirstBoot, InstalledPackage, Kernel, PciDevice
from gpunode.core.model.node import CONTAINERS, DEB_ARCHS

_INDEPENDENT = ("all", "noarch", "any", "")
# dnf4: "nvidia-driver-3:550.54.14-1.el9.*"; dnf5: 'name = "nvidia-driver"'; zypper: "solvable_name: nvidia*"
_LOCK_LINE = regex(
    r"\s*(?:name\s*=\s*\"(?P<dnf5>[^\"]+)\"|solvable_name:\s*(?P<zypp>\S+)|(?P<dnf4>[^\s#!=\[\]\"]+))\s*\Z"
)


def read_packages(probe: Probe, arch: str) -> tuple[str, dict[str, InstalledPackage], tuple[str, ...]]:
    """(package manager, packages by name, broken packages).

    A package of another architecture than the node's stands under NAME:ARCH.  An rpm version is EPOCH:VERSION-RELEASE,
    without the epoch when it is 0; of several installed versions of one name the last one stands.  Kernel headers of
    rpm, several versions of which are there at a time, stand under names with their version as well.
    """
    locks = _locks(probe)
    manager = probe.value("packages", "manager")
    native = (arch, DEB_ARCHS.get(arch), *_INDEPENDENT)
    packages: dict[str, InstalledPackage] = {}
    broken = []
    for line in probe.lines("packages"):
        cells = line.split("\t")
        if len(cells) != 4:
            if not line.startswith(("manager ", "lost ")):
                probe.unreadable("packages", line)
            continue
        state, name, version, package_arch = cells[0].ljust(3), cells[1], cells[2].removeprefix("0:"), cells[3]
        if state[1] not in "inc" or state[2] == "R":
            broken.append(name)
        if state[1] in "nc":
            continue
        known = not arch or package_arch in native
        package = InstalledPackage(
            name=name, version=version, held=state[0] == "h" or _locked(name, locks), arch=package_arch
        )
        packages[name if known else f"{name}:{package_arch}"] = package
        if manager in ("dnf", "zypper") and name.startswith("kernel") and "-devel" in name:
            packages |= dict.fromkeys(_kernel_names(package), package)
    return manager, packages, tuple(broken)


def _kernel_names(package: InstalledPackage) -> tuple[str, str]:
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
        if path == "lease":
            continue
        if len(holder) == 2:
            return f"{holder[1]} (process {holder[0]}) holds {path}"
        probe.unreadable("locks", line)
    return ""


def read_first_boot(probe: Probe) -> FirstBoot:
    """The hash of the program, whether its unit is enabled, and the last record (node/activate/firstboot.sh).

    What an earlier program has proven says nothing of the one that is there now.
    """
    name = "first_boot"
    program, armed = probe.value(name, "program"), probe.value(name, "unit") == "enabled"
    if probe.value(name, "ran") != program:
        return FirstBoot(program=program, armed=armed)
    checks = [text.split("|") for text in probe.values(name, "check")]
    return FirstBoot(
        program=program,
        armed=armed,
        status=probe.value(name, "status"),
        at=probe.value(name, "at"),
        message=probe.value(name, "message"),
        failed=tuple(f"{cells[0]}: {cells[2]}" for cells in checks if len(cells) > 2 and cells[1] == "failed"),
    )


VERSION = regex(r"\d{3,4}\.\d{1,4}(?:\.\d{1,4})?")
_OS_RELEASE = regex(r"([A-Z_0-9]+)=(?:\"(.*)\"|'(.*)'|(.*))\Z")
_KERNEL = regex(r"(\S+) image=(yes|no) headers=(yes|no)\Z")
# `dkms status`: "nvidia/535.104.05, 6.1.0-13-amd64, x86_64: installed", before dkms 3: "nvidia, 535.104.05, 6.1…"
_DKMS = regex(r"(nvidia[\w.-]*)[/,] ?([^,:]+)(?:, ([^,:]+), [^,:]+)?: (\w+)")
_PCI = regex(
    r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([0-9a-f]{4}:[0-9a-f]{4}) ([0-9a-f]{4})"
    r" subsystem=(\S+) driver=(\S+) vf=(yes|no)\Z"
)
_NAME = regex(r"name (10de:[0-9a-f]{4}) (.+)\Z")
_LSPCI = regex(r"(\S+) [^:]*: (.*?)(?: \(rev \w+\))?(?: \(prog-if .*)?\Z")


def read_distro(probe: Probe) -> Distro:
    """os-release(5) → Distro."""
    found: dict[str, str] = {}
    for line in probe.lines("os_release"):
        if line.startswith("#"):
            continue
        if not (match := _OS_RELEASE.match(line.strip())):
            probe.unreadable("os_release", line)
            continue
        found[match[1]] = re.sub(r"\\(.)", r"\1", match[2] or match[3] or match[4] or "")
    like = tuple(found.get("ID_LIKE", "").split())
    base = found.get("UBUNTU_CODENAME") or found.get("DEBIAN_CODENAME")
    if not base and "debian" in like:
        base = found.get("VERSION_CODENAME")
    return Distro(
        id=found.get("ID", ""),
        base=(base or "") if found.get("ID") not in ("ubuntu", "debian") else "",
        version_id=found.get("VERSION_ID", ""),
        codename=found.get("VERSION_CODENAME", ""),
        like=like,
        name=found.get("PRETTY_NAME", ""),
    )


def read_virtualization(probe: Probe, init: str) -> tuple[str, bool]:
    """(systemd-detect-virt's word, is it a container without an init of its own).

    On a machine with namespaces of its own an engine's file is one that its image was left with.
    """
    virt = probe.value("system", "virtualization")
    marks = probe.values("system", "exists")
    namespaces = probe.value("system", "namespaces")
    if "microsoft" in probe.value("system", "osrelease").lower():
        virt = "wsl"
    if virt in ("", "none") and namespaces != "initial":
        other = "container-other" if namespaces == "other" else virt
        virt = "docker" if "/.dockerenv" in marks else "podman" if "/run/.containerenv" in marks else other
    return virt, virt in CONTAINERS and init != "systemd"


def read_board(probe: Probe) -> tuple[str, str]:
    """The model that a device tree names: of a Tegra, of another board; servers describe themselves by ACPI."""
    compatible = probe.value("system", "compatible")
    model = probe.value("system", "model") or compatible
    return (model or "Tegra", "") if "nvidia,tegra" in compatible else ("", model)


def read_secure_boot(probe: Probe) -> bool | None:
    """True or False, None when there are no EFI variables or they could not be read."""
    value = probe.value("secure_boot", "secure_boot")
    if value in ("0", "1"):
        return value == "1"
    state = probe.value("secure_boot", "SecureBoot")
    return state == "enabled" if state in ("enabled", "disabled") else None


def read_kernels(probe: Probe) -> tuple[Kernel, ...]:
    """All installed kernels and the running one, in the probe's order, with the nvidia module that each has."""
    running = probe.value("system", "kernel")
    modules = _modules(probe)
    dkms = _dkms(probe)
    packages = {release: name for release, _, name in (v.partition(" ") for v in probe.values("kernels", "package"))}
    kernels: dict[str, Kernel] = {}
    for rest in probe.values("kernels", "kernel"):
        if not (match := _KERNEL.match(rest)):
            probe.unreadable("kernels", rest)
            continue
        release = match[1]
        version, flavour = modules.get(release, ("", ""))
        kernels[release] = Kernel(
            release=release,
            running=release == running,
            image=match[2] == "yes",
            headers=match[3] == "yes",
            package=packages.get(release, ""),
            module=version,
            flavour=flavour,
            dkms=dkms.get(release, dkms.get("", "")),
        )
    if running and running not in kernels:
        kernels[running] = Kernel(release=running, running=True, dkms=dkms.get(running, ""))
    return tuple(kernels.values())


def _modules(probe: Probe) -> Mapping[str, tuple[str, str]]:
    """Release → (version, flavour) of the nvidia module on disk."""
    found: dict[str, tuple[str, str]] = {}
    release = ""
    for rest in probe.values("kernels", "module"):
        key, _, value = rest.partition(" ")
        if key == "filename":
            release = value.removeprefix("/usr").removeprefix("/lib/modules/").partition("/")[0]
            found.setdefault(release, ("", ""))
        elif key == "version" and release:
            found[release] = (value.strip(), found[release][1])
        elif key == "license" and release:
            found[release] = (found[release][0], "open" if "GPL" in value else "proprietary")
    return found


def _dkms(probe: Probe) -> Mapping[str, str]:
    """Release → state of the nvidia DKMS module; "" stands for one that is added and built for no kernel."""
    found: dict[str, str] = {}
    lines, trouble = probe.answer("dkms")
    if trouble:
        probe.notes.append(f"dkms: dkms status: {trouble}: {' '.join(lines)[:200]}")
    for line in lines:
        if match := _DKMS.match(line):
            found[(match[3] or "").strip()] = match[4]
    return found


def read_devices(probe: Probe) -> tuple[tuple[PciDevice, ...], tuple[PciDevice, ...], bool]:
    """(GPUs, NVSwitches, is there an NVLink 5 fabric)."""
    labels = {m[1]: m[2] for line in probe.lines("lspci") if (m := _NAME.match(line) or _LSPCI.match(line))}
    devices = []
    fabric = False
    for line in probe.lines("pci"):
        if line.endswith(" SW_MNG"):
            fabric = True
            continue
        if not (match := _PCI.match(line)):
            probe.unreadable("pci", line)
            continue
        slot, name, code, subsystem, driver, virtual = match.groups()
        device = PciDevice(
            slot=slot,
            id=name,
            class_code=code,
            subsystem="" if subsystem == "-" else subsystem,
            driver="" if driver == "-" else driver,
            virtual_function=virtual == "yes",
            label=labels.get(slot) or labels.get(name, ""),
        )
        devices.append(device)
    gpus = tuple(d for d in devices if d.class_code.startswith("03"))
    return gpus, tuple(d for d in devices if d.class_code == "0680"), fabric


def unfinished(records: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Ids in the journal, by (phase, id) of each record, with an intent and no outcome; oldest first."""
    open_ids: dict[str, None] = {}
    for phase, ident in records:
        if phase == "intent":
            open_ids[ident] = None
        else:
            open_ids.pop(ident, None)
    return tuple(open_ids)
