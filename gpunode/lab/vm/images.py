"""What machines that boot are made from: a tree with QEMU and the firmware, and for each distribution a disk."""

from __future__ import annotations

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError
from gpunode.lab import machine
from gpunode.lab.images import (
    KEYRINGS,
    PREFIX,
    RELEASES,
    Variant,
    bootstrap,
    contents,
    digest,
    drop_older,
    fetch_tree,
    packages,
    require_suite,
    sources_file,
    suites,
    tree_files,
)
from gpunode.lab.machine import Log, podman
from gpunode.lab.packages_ubuntu import read_index
from gpunode.lab.vm import kernels

SUITE = "forky"  # the first of Debian's with vfio-user in its QEMU (10.1)
TOOLS = tuple(
    "busybox-static dosfstools e2fsprogs fdisk iproute2 libarchive13t64 mtools openssl ovmf python3 "
    "python3-virt-firmware qemu-system-x86 qemu-utils".split()
)
MIB = 12 * 1024  # of a disk; it takes what is used of it
MEMORY_MIB, CPUS = 3072, 2
BOOT_SECONDS = 900  # a first boot, emulated, on a busy machine
KVM_SECONDS = 90
SEALED = "gpunode-lab: sealed"  # by root/usr/local/lib/gpunode-lab/seal
CODE = ("boot.py", "pci.py")
COMMAND = ("env", "PYTHONPATH=/vm/code", "python3", "-m", "gpunode.lab.vm.boot")
VARIABLES = "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"  # with Microsoft's keys
OWNER = "6f0c4d2a-3b0b-4f0e-9d6e-7a6f6e6f6465"  # whose key the test key is, for the firmware


def tools(log: Log) -> str:
    """The podman image that has QEMU; made when it is missing."""
    archive = machine.archive()
    tag = f"{PREFIX}/vm-tools:{digest(SUITE, TOOLS, archive.main, archive.settings)}"
    with machine.lock("image-vm-tools", log=log):
        if podman("image", "exists", tag, check=False).returncode:
            require_suite(SUITE, archive)
            log(f"fetching QEMU of Debian {SUITE} (about a minute, once)")
            tar = machine.places().cache / f"{tag.rpartition('/')[2].replace(':', '-')}.tar"
            fetch_tree(tar, SUITE, TOOLS, [f"deb {archive.main} {SUITE} main"], archive)
            podman("import", "--quiet", str(tar), tag)
            tar.unlink()
            drop_older(tag)
    return tag


def disk(variant: Variant, image: str, log: Log) -> Path:
    """The disk of that variant, on which machines have overlays.

    Next to it are the firmware's variables (NAME.fd) and how QEMU runs it here (NAME.accel).
    """
    archive = machine.archive()
    folder = machine.places().cache / "vm"
    with machine.lock(f"image-{variant.name}", log=log), as_file(files("gpunode.lab") / "vm") as source:
        inputs = [*tree_files(source / "root"), source / "tree.sh"]
        tree = digest(suites(variant, archive), packages(variant), archive.settings, contents(inputs))
        made_of = digest(tree, MIB, contents([source / "disk.sh"]))
        done = folder / f"{variant.name}-{made_of}.raw"
        if not done.exists():
            work = folder / f".{variant.name}"
            work.mkdir(parents=True, exist_ok=True)
            tar = work / f"tree-{tree}.tar"
            if not tar.exists():
                log(f"fetching {variant.distro} with its kernel from its archive (some minutes, once)")
                _fetch(tar, variant, archive, source)
            log(f"making the disk of {variant.name}")
            _make(work, tar, source, image)
            log(f"booting {variant.name} for the first time, so that it configures its boot loader")
            (work / "disk.accel").write_text(_seal(work, image))
            for old in folder.glob(f"{variant.name}-*"):  # nodes have links of their own
                old.unlink()
            for suffix in (".fd", ".key", ".crt", ".accel", ".raw"):
                (work / f"disk{suffix}").replace(done.with_suffix(suffix))
            shutil.rmtree(work)
    return done


def _fetch(tar: Path, variant: Variant, archive: machine.Archive, source: Path) -> None:
    vendor = RELEASES[variant.distro].vendor
    root = tar.parent / "root"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(source / "root", root)
    text = sources_file(suites(variant, archive), KEYRINGS[vendor])
    machine.write(root / f"etc/apt/sources.list.d/{vendor}.sources", text, mode=0o644)
    machine.write(root / "etc/apt/apt.conf.d/90gpunode-lab", archive.settings, mode=0o644)
    options = [f"--customize-hook=sync-in {root} /", f'--customize-hook=chroot "$1" sh <{source}/tree.sh']
    if vendor == "ubuntu":
        index = read_index(archive.ubuntu, RELEASES[variant.distro].codename)
        kernel, lacking = kernels.choose(index, lambda name: kernels.is_there(f"{archive.ubuntu}/{name}"))
        parts = (f"linux-{part}-{kernel}" for part in ("image", "modules-extra"))  # 26.04 has no second one
        options.append(f"--include={','.join(name for name in parts if name in index)}")
        machine.write(root / "etc/apt/preferences.d/gpunode-lab", kernels.preferences(lacking), mode=0o644)
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    bootstrap(tar, variant, archive, *options)


def copy_code(folder: Path) -> None:
    """What runs in the container, into the folder that is its /vm."""
    package = folder / "code/gpunode/lab/vm"
    package.mkdir(parents=True, exist_ok=True)
    with as_file(files("gpunode.lab") / "vm") as source:
        for name in CODE:
            shutil.copy(source / name, package)


def write_machine(folder: Path, name: str, disk: str, accel: str, **more: Any) -> None:
    """machine.json, as boot.py reads it; without a hardware address the machine has no network."""
    data = {"name": name, "disk": disk, "mac": "", "devices": [], "accel": accel, "cpus": CPUS, "seconds": 0}
    machine.write(folder / "machine.json", json.dumps(data | {"memory": MEMORY_MIB} | more, indent=2) + "\n")


def _make(work: Path, tar: Path, source: Path, image: str) -> None:
    copy_code(work)
    shutil.copy(source / "disk.sh", work)
    key = "openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=gpunode-lab -keyout disk.key -out disk.crt"
    firmware = f"virt-fw-vars -i {VARIABLES} -o disk.fd --add-db {OWNER} disk.crt"
    script = f"cd /vm && sh disk.sh {tar.name} disk.raw {MIB} && {key} && {firmware} && cp disk.fd variables.fd"
    podman("run", "--rm", "--network=none", f"--volume={work}:/vm", image, "sh", "-c", script)


def _seal(work: Path, image: str) -> str:
    """Boot the disk once, which ends with the machine off; gives back how QEMU runs it here.

    Some machines that are virtual themselves have a /dev/kvm in which kernels stop at once.
    """
    tries = [("tcg,thread=multi", BOOT_SECONDS)]
    if Path("/dev/kvm").exists():
        tries.insert(0, ("kvm", KVM_SECONDS))
    container = f"gpunode-lab-vm-seal{machine.places().suffix}-{work.name[1:]}"
    mounts = (f"--volume={work}:/vm", "--network=none", "--privileged")
    console = work / "console.log"
    for accel, seconds in tries:
        for name in ("disk.qcow2", "console.log"):
            (work / name).unlink(missing_ok=True)
        write_machine(work, "seal", "/vm/disk.raw", accel, seconds=seconds)
        podman("rm", "--force", "--ignore", "--time=0", container)
        try:
            done = podman("run", "--name", container, *mounts, image, *COMMAND, check=False)
        finally:
            podman("rm", "--force", "--ignore", "--time=0", container)
        text = console.read_text(errors="replace") if console.exists() else ""
        if not done.returncode and SEALED in text:
            podman("run", "--rm", *mounts, image, "qemu-img", "commit", "-q", "/vm/disk.qcow2")
            (work / "variables.fd").replace(work / "disk.fd")
            return accel
    last = "; ".join([*done.stderr.strip().splitlines()[-3:], *text.strip().splitlines()[-5:]])
    raise GpunodeError(f"the first boot did not end well (status {done.returncode}): {last}")
