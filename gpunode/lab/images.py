"""Node images: Debian trees by mmdebstrap, made into lab nodes by node/finish.sh in a container, kept by podman.

An image is named by its variant and tagged by a hash of all that goes into it: a change anywhere makes a new one.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from types import MappingProxyType

from gpunode.core.engines import ROWS
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.late import dataclass, replace
from gpunode.core.meant import meant
from gpunode.lab import families, machine
from gpunode.lab.machine import Log, podman

ENGINES = ("containerd", "docker")
PREFIX = "localhost/gpunode-lab"
OVERLAY = "/usr/local/lib/gpunode-lab/overlay"
NOTHING: Mapping[str, bytes] = MappingProxyType({})
KEYRINGS = {v: f"/usr/share/keyrings/{v}-archive-keyring.gpg" for v in ("debian", "ubuntu")}
COMMON = (
    "busybox-static",
    "ca-certificates",
    "containerd",
    "dbus",
    "docker.io",
    "iproute2",
    "iptables",
    "iputils-ping",
    "kmod",
    "openssh-server",
    "pciutils",
    "procps",
    "python3",
    "sudo",
    "systemd",
    "systemd-sysv",
)
KUBERNETES = ("conntrack", "containernetworking-plugins", "ethtool", "socat")  # what a kubelet and pods need besides
BOOT_ANY = "grub-efi-amd64-signed initramfs-tools mokutil shim-signed systemd-resolved udev zstd".split()
BOOT = {  # what a machine that boots needs besides
    "debian": (*BOOT_ANY, "linux-image-amd64"),
    "ubuntu": BOOT_ANY,  # and a kernel: see vm/kernels.py
}
IN_SYSTEMD = {"ubuntu:22.04": ("systemd-resolved",)}  # no package of its own there
CLIENT = tuple(name for _, name in ROWS["docker"].recommends)  # from trixie on
PURGE = {
    "docker": (*ROWS["docker"].installs, *CLIENT),
    "containerd": (*ROWS["containerd"].installs, "runc"),
    "python": ("python3*", "libpython3*"),
}


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release of Debian or Ubuntu: the name of its suite, and the packages only it has.

    `newer` is a later suite that some packages, `borrowed`, come from.
    """

    codename: str
    packages: tuple[str, ...] = ()
    newer: str = ""
    borrowed: tuple[str, ...] = ()
    vendor: str = "debian"  # whose archive it comes from
    family: str = ""  # how packages are made and named: families/NAME.toml, families/finish.sh
    arch: str = "amd64"  # arm64: its programs run by gpunode.lab.emulation, but for NATIVE
    non_free: bool = False  # stand-ins of Debian's own driver, among the node's sources from the start


# Programs of an emulated node that this machine's own architecture runs: the emulator knows neither the system calls
# that make a container's namespaces nor netfilter's.
NATIVE = (
    "/usr/bin/containerd-shim-runc-v2",
    "/usr/sbin/runc",
    "/usr/sbin/xtables-legacy-multi",
    "/usr/sbin/xtables-nft-multi",
)
BUILD = ("fakeroot", "gcc", "gnupg", "make", "zstd")
RPM = ("createrepo-c", "rpm", *BUILD)
ROCKY = Release(codename="bookworm", family="rhel", packages=("dnf", "dnf-plugins-core", "dkms", *RPM))
# dnf 5, rpm 6, and what they need newer than Debian 13 has it
DNF5 = tuple(
    "dnf5 libdnf5* librepo* libsolv* rpm* librpm* createrepo-c libcreaterepo* libsdbus-c++2 libcurl* libgnutls* "
    "libnghttp3-9 libngtcp2* libstdc++6 libgcc-s1 gcc-16-base libc6 libc-bin libc6-dev libc-dev-bin".split()
)
UBUNTU = ("apt", "linux-base", "unattended-upgrades")
TRIXIE = Release(codename="trixie", packages=CLIENT)
RELEASES = {
    "debian:12": Release(codename="bookworm"),
    "debian:13": TRIXIE,
    "debian:12+non-free": Release(codename="bookworm", non_free=True),
    "debian:12+arm64": Release(codename="bookworm", arch="arm64"),
    "debian:13+non-free": replace(TRIXIE, non_free=True),
    "debian:13+forky": replace(TRIXIE, newer="forky", borrowed=(*PURGE["containerd"], *PURGE["docker"])),
    "ubuntu:22.04": Release(codename="jammy", vendor="ubuntu", packages=UBUNTU),
    "ubuntu:24.04": Release(codename="noble", vendor="ubuntu", packages=UBUNTU),
    "ubuntu:26.04": Release(codename="resolute", vendor="ubuntu", packages=(*UBUNTU, "sudo-rs")),
    "rocky:8": ROCKY,
    "rocky:9": ROCKY,
    "rocky:10": ROCKY,
    "fedora:43": replace(TRIXIE, family="rhel", packages=(*CLIENT, "dnf5", "dkms", *RPM), newer="forky", borrowed=DNF5),
    "sles:15": Release(codename="bookworm", family="sles", packages=("zypper", *RPM)),
    "arch": Release(
        codename="bookworm",
        family="arch",
        packages=("pacman-package-manager", "makepkg", "libarchive-tools", "dkms", *BUILD),
    ),
}


def plain(distro: str) -> str:
    """The distribution itself: `debian:13` of `debian:13+forky`."""
    return distro.partition("+")[0]


def served(distro: str) -> str:
    """Whose packages such a node takes: those of its distribution, `debian:12`, or of another architecture of it."""
    return distro if RELEASES[distro].arch != "amd64" else plain(distro)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What kind of node: distro (one of RELEASES), the engines it has, whether it has a python3.

    `real_driver`: Debian's non-free repositories and a real kernel package instead of the stand-ins.
    `kubernetes`: with what a kubelet needs of the distribution, and with containerd.
    `machine`: `vm` boots by firmware, with the distribution's own kernel and packages.
    """

    distro: str = "debian:12"
    engines: tuple[str, ...] = ENGINES
    python: bool = True
    real_driver: bool = False
    kubernetes: bool = False
    machine: str = "container"

    def __post_init__(self) -> None:
        if self.distro not in RELEASES:
            near = meant(self.distro, RELEASES)
            raise InputError(f"distro {self.distro!r}", expected=f"one of {', '.join(RELEASES)}", fix=near)
        release = RELEASES[self.distro]
        if self.real_driver and (release.family or release.vendor != "debian" or release.arch != "amd64"):
            raise InputError(f"the real driver on {self.distro}", expected="a Debian of amd64: these are its packages")
        if self.kubernetes and (release.family or release.arch != "amd64"):
            raise InputError(f"a cluster of {self.distro} nodes", expected="a Debian or an Ubuntu of amd64")
        if self.kubernetes and "containerd" not in self.engines:
            raise InputError("a cluster of nodes without containerd", expected="--engines with containerd")
        if self.machine not in ("container", "vm"):
            raise InputError(f"machine {self.machine!r}", expected="container or vm")
        bootable = not (release.family or release.newer or release.non_free) and release.arch == "amd64"
        if self.machine == "vm" and (not bootable or self.real_driver or self.kubernetes or not self.python):
            raise InputError(
                f"a machine that boots of {self.name}", expected="a plain Debian or Ubuntu of amd64, without a cluster"
            )
        unknown = [name for name in self.engines if name not in ENGINES]
        if unknown:
            raise InputError(f"engine {unknown[0]!r}", expected=f"none, or some of {', '.join(ENGINES)}")

    @property
    def purge(self) -> tuple[str, ...]:
        """What to take out of the full image.  Debian's docker.io needs containerd: with docker, both stay."""
        python = self.python or RELEASES[self.distro].family  # which hides it by itself: dnf is written in it
        docker = () if "docker" in self.engines else PURGE["docker"]
        containerd = () if self.engines else PURGE["containerd"]
        return (*docker, *containerd, *(() if python else PURGE["python"]))

    @property
    def name(self) -> str:
        """Part of the image's name: debian-12, debian-13-no-docker-no-python …"""
        parts = [words(self.distro)]
        parts += ["no-docker"] if self.engines == ("containerd",) else ["no-engines"] if not self.engines else []
        parts += [] if self.python else ["no-python"]
        parts += ["real-driver"] if self.real_driver else []
        parts += ["kubernetes"] if self.kubernetes else []
        parts += ["vm"] if self.machine == "vm" else []
        return "-".join(parts)


def ensure_tree(variant: Variant, *, log: Log) -> str:
    """The name, with tag, of the image that is that variant's plain Debian tree."""
    archive = machine.archive()
    base = _base_tag(variant, archive)
    _ensure_base(base, variant, archive, log)
    return base


def ensure_image(variant: Variant, debs: Sequence[Path], *, overlays: Mapping[str, bytes] = NOTHING, log: Log) -> str:
    """The name, with tag, of the node image of that variant; built when podman does not have it.

    `overlays` are more files, by path: libraries that take the place of real ones.  X `latest` leads to it, too.
    """
    with machine.lock(f"image-{variant.name}", log=log), as_file(files("gpunode.lab")) as source:
        archive = machine.archive()
        base = _base_tag(variant, archive)
        inputs = [*tree_files(source / "node"), *tree_files(source / "standins/node"), *debs]
        inputs += [source / "families/finish.sh"] if RELEASES[variant.distro].family else []
        tag = f"{PREFIX}/{variant.name}:{digest(base, variant.purge, contents(inputs), *_hashes(overlays))}"
        if podman("image", "exists", tag, check=False).returncode:
            _ensure_base(base, variant, archive, log)
            log(f"making the node image {variant.name}")
            native = native_tree(variant, archive, log) if RELEASES[variant.distro].arch != "amd64" else ""
            parts = _Parts(source=source, debs=debs, native=native, overlays=overlays)
            _finish(base, tag, variant, archive, parts)
            drop_older(tag)
        return tag


def serving_image(variant: Variant, image: str, *, log: Log) -> str:
    """The image that the package repository is served by: one that runs also when nothing is emulated any more."""
    if RELEASES[variant.distro].arch == "amd64":
        return image
    return native_tree(variant, machine.archive(), log)


def native_tree(variant: Variant, archive: machine.Archive, log: Log) -> str:
    """The plain tree of the same release for this machine's own architecture."""
    same = replace(variant, distro=plain(variant.distro))
    base = _base_tag(same, archive)
    _ensure_base(base, same, archive, log)
    return base


# ---------------------------------------------------------------- the plain Debian tree


def suites(variant: Variant, archive: machine.Archive) -> list[tuple[str, str, str]]:
    """(URL, suites, components) of each source a node reads."""
    real = variant.real_driver or variant.machine == "vm"
    components = "main contrib non-free non-free-firmware" if real else "main"
    name = RELEASES[variant.distro].codename
    if RELEASES[variant.distro].vendor == "ubuntu":  # restricted and multiverse are the lab's own: see packages.py
        components = "main restricted universe multiverse" if real else "main universe"
        return [(archive.ubuntu, f"{name} {name}-updates {name}-security", components)]
    return [(archive.main, f"{name} {name}-updates", components), (archive.security, f"{name}-security", components)]


def packages(variant: Variant) -> list[str]:
    """What is put into the tree, besides what is essential."""
    kernel = ["linux-image-amd64", "linux-headers-amd64"] if variant.real_driver else []
    kubernetes = KUBERNETES if variant.kubernetes else ()
    boot = BOOT[RELEASES[variant.distro].vendor] if variant.machine == "vm" else ()
    left_out = (*variant.purge, *IN_SYSTEMD.get(variant.distro, ())) if boot else ()  # containers share their trees
    every = (*COMMON, *RELEASES[variant.distro].packages, *kernel, *kubernetes, *boot)
    return [name for name in every if name not in left_out]


def _base_tag(variant: Variant, archive: machine.Archive) -> str:
    name = f"{words(_tree_of(variant.distro))}-base" + ("-real-driver" if variant.real_driver else "")
    name += "-kubernetes" if variant.kubernetes else ""
    borrowed = RELEASES[variant.distro].borrowed
    arch = RELEASES[variant.distro].arch
    other = () if arch == "amd64" else (arch,)
    inputs = (suites(variant, archive), packages(variant), *borrowed, archive.settings, *other)
    return f"{PREFIX}/{name}:{digest(*inputs)}"


def _tree_of(distro: str) -> str:
    """The first distro with the same plain tree: they share it."""

    def inputs(release: Release) -> tuple[object, ...]:
        return release.codename, release.packages, release.newer, release.borrowed, release.arch

    return next(name for name, release in RELEASES.items() if inputs(release) == inputs(RELEASES[distro]))


def _ensure_base(tag: str, variant: Variant, archive: machine.Archive, log: Log) -> None:
    """Each tree has a lock of its own: those of two distributions are fetched side by side."""
    name = tag.rpartition("/")[2]
    with machine.lock(f"image-{name.partition(':')[0]}", log=log):
        if not podman("image", "exists", tag, check=False).returncode:
            return
        tar = machine.places().cache / f"{name.replace(':', '-')}.tar"
        if not tar.exists():
            log(f"fetching {variant.distro} from its archive (about a minute, once)")
            bootstrap(tar, variant, archive)
        log(f"importing {variant.distro} into podman")
        podman("import", "--quiet", str(tar), tag)
        drop_older(tag)


def bootstrap(tar: Path, variant: Variant, archive: machine.Archive, *more: str) -> None:
    """Fetch the variant's tree; `more` are options of mmdebstrap."""
    release = RELEASES[variant.distro]
    lines = [
        f"deb {url} {suite} {components}"
        for url, listed, components in suites(variant, archive)
        for suite in listed.split()
    ]
    options = list(more)
    # The kernel's own modules can never be loaded in a node: leave out their hundreds of megabytes.
    options += ["--dpkgopt=path-exclude=/lib/modules/*/kernel/*"] if variant.real_driver else []
    # mmdebstrap would ask for the package arch-test, whose question the registration has answered
    options += [f"--architectures={release.arch}", "--skip=check/qemu"] if release.arch != "amd64" else []
    if release.newer:
        require_suite(release.newer, archive)
        lines.append(f"deb {archive.main} {release.newer} main")
        options += _borrowing(release)
    fetch_tree(tar, release.codename, packages(variant), lines, archive, vendor=release.vendor, options=options)


def fetch_tree(
    tar: Path,
    suite: str,
    names: Sequence[str],
    lines: Sequence[str],
    archive: machine.Archive,
    *,
    vendor: str = "debian",
    options: Sequence[str] = (),
) -> None:
    """A tree of these packages by mmdebstrap, as a tar; earlier ones of the same name go."""
    tar.parent.mkdir(parents=True, exist_ok=True)
    for old in tar.parent.glob(f"{tar.name.rpartition('-')[0]}-*.tar*"):
        old.unlink()
    new = tar.with_suffix(".new.tar")
    command = ["mmdebstrap", "--variant=minbase", '--aptopt=Apt::Install-Recommends "false"']
    command += ['--aptopt=APT::Sandbox::User "root"']  # apt's own user could not read a key below a home folder
    command += [f"--aptopt={line}" for line in archive.settings.splitlines() if line.strip()]
    command += [f"--include={','.join(names)}", *options]
    try:
        with as_file(files("gpunode.lab") / "ubuntu/archive-key.asc") as key:
            command += [f"--keyring={key if vendor == 'ubuntu' else KEYRINGS['debian']}", suite, str(new), *lines]
            machine.run(*command)
        new.replace(tar)
    finally:
        new.unlink(missing_ok=True)


def _borrowing(release: Release) -> list[str]:
    """Options of mmdebstrap: of the newer suite come these packages, and what exists nowhere else that they need."""
    pins = ((" ".join(release.borrowed), 990), ("*", 100))
    text = "".join(
        f"Package: {names}\\nPin: release n={release.newer}\\nPin-Priority: {priority}\\n\\n"
        for names, priority in pins
    )
    pin = '"$1/etc/apt/preferences.d/gpunode-lab"'
    return [
        f"--setup-hook=mkdir -p {pin.replace('/gpunode-lab', '')} && printf '{text}' >{pin}",
        f"--customize-hook=rm {pin}",
    ]


def require_suite(suite: str, archive: machine.Archive) -> None:
    """Raise RefusedError where the archive has no such suite: mmdebstrap would not say what was wrong."""
    url = f"{archive.main}/dists/{suite}/InRelease"
    with tempfile.TemporaryDirectory(prefix="gpunode-lab-") as folder:
        settings = Path(folder) / "apt.conf"
        settings.write_text(archive.settings)
        helper = ("/usr/lib/apt/apt-helper", "-c", str(settings), "download-file", url, f"{folder}/InRelease")
        stated = machine.run(*helper, check=False)
    if stated.returncode:
        why = next((line for line in stated.stderr.splitlines() if line.startswith("E: ")), "E: it said nothing")
        raise RefusedError(
            f"Debian's archive does not give the suite {suite}: {why[3:]}",
            expected=f"an archive with {suite}",
            fix=f"name another archive in {machine.ARCHIVE_VARIABLE}, or take a distro without +{suite}",
        )


# ---------------------------------------------------------------- from tree to node


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What is put into a tree: the lab's own files, packages, and what else stands for programs that are not there."""

    source: Path
    debs: Sequence[Path]
    native: str  # the image of the same tree for this machine's own architecture
    overlays: Mapping[str, bytes]


def _finish(base: str, tag: str, variant: Variant, archive: machine.Archive, parts: _Parts) -> None:
    source = parts.source
    with tempfile.TemporaryDirectory(prefix="gpunode-lab-") as folder:
        build = Path(folder)
        shutil.copytree(source / "node", build / "node")
        _copy_standins(source / "standins/node", build / "standins", only_uname=variant.real_driver)
        for path, data in parts.overlays.items():
            (build / "standins" / path).parent.mkdir(parents=True, exist_ok=True)
            (build / "standins" / path).write_bytes(data)
        if parts.overlays:
            machine.write(build / "standins/etc/dpkg/dpkg.cfg.d/gpunode-lab", f"post-invoke={OVERLAY}\n", mode=0o644)
        (build / "debs").mkdir()
        family = RELEASES[variant.distro].family
        scripts = ["/build/node/finish.sh", *(["/build/family/finish.sh"] if family else [])]
        if family:
            families.build_folder(build, variant.distro, family, parts.debs, source)
        for deb in () if family else parts.debs:
            shutil.copy(deb, build / "debs")
        (build / "purge").write_text("".join(f"{name}\n" for name in variant.purge))
        vendor = RELEASES[variant.distro].vendor
        (build / "sources").mkdir()
        (build / f"sources/{vendor}.sources").write_text(sources_file(suites(variant, archive), KEYRINGS[vendor]))
        (build / "apt.conf").write_text(archive.settings)
        mounts = ["-v", f"{build}:/build:ro"]
        if parts.native:
            (build / "native").write_text("".join(f"{path}\n" for path in NATIVE))
            mounts += ["--mount", f"type=image,source={parts.native},destination=/native"]
        container = f"gpunode-lab-image-{variant.name}"
        podman("rm", "--force", "--ignore", container)
        try:
            command = " && ".join(f"sh {script}" for script in scripts)
            podman("run", "--name", container, "--network=none", *mounts, base, "sh", "-c", command)
            podman("commit", "--quiet", "--change", 'CMD ["/usr/local/lib/gpunode-lab/boot"]', container, tag)
            podman("tag", tag, f"{tag.rpartition(':')[0]}:latest")
        finally:
            podman("rm", "--force", "--ignore", container)


def _copy_standins(source: Path, target: Path, *, only_uname: bool) -> None:
    if not only_uname:
        shutil.copytree(source, target, symlinks=True)
        return
    (target / "usr/bin").mkdir(parents=True)
    shutil.copy(source / "usr/bin/uname", target / "usr/bin/uname")


def sources_file(sources: Iterable[tuple[str, str, str]], keyring: str) -> str:
    return "\n".join(
        f"Types: deb\nURIs: {url}\nSuites: {suites}\nComponents: {components}\nSigned-By: {keyring}\n"
        for url, suites, components in sources
    )


def drop_older(tag: str) -> None:
    """Remove earlier images of the same name; one that a node still uses stays."""
    name = tag.rpartition(":")[0]
    listed = podman("images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference={name}").stdout.split()
    for old in set(listed) - {tag, f"{name}:latest"}:
        podman("rmi", old, check=False)


# ---------------------------------------------------------------- hashes


def tree_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def contents(paths: Iterable[Path]) -> list[tuple[str, int, str]]:
    return [("/".join(p.parts[-3:]), p.stat().st_mode, hashlib.sha256(p.read_bytes()).hexdigest()) for p in paths]


def _hashes(some: Mapping[str, bytes]) -> list[str]:
    return [f"{path} {hashlib.sha256(data).hexdigest()}" for path, data in sorted(some.items())]


def words(distro: str) -> str:
    """As part of an image's name, where neither a colon nor a plus may stand."""
    return re.sub(r"[^a-z0-9.]", "-", distro)


def digest(*inputs: object) -> str:
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:12]
