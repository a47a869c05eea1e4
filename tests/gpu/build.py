"""The payload of `make test-gpu`: all that a trial needs on a machine with a GPU, in parts that small transfers take.

    python tests/gpu/build.py DIRECTORY

DIRECTORY gets part.000 and so on, SHA256SUMS, and run.sh, which puts them together there and starts trial.py.  Inside:
Ubuntu's own tree with systemd and containerd, gpunode with its Python packages, and, where GPUNODE_VENDOR and
GPUNODE_KUBERNETES name a folder of them, NVIDIA's container toolkit and the programs of a cluster.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from gpunode.lab import images, machine, packages, packages_vendor
from gpunode.lab.kubernetes import binaries, pki, seeds
from gpunode.lab.kubernetes import images as pod_images

HERE = Path(__file__).parent
PART = 40 << 20  # bytes, at most
TREE = images.Variant(distro="ubuntu:24.04", kubernetes=True)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
TOOLKIT = ("nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime", "nvidia-container-runtime-hook")
URL = "http://127.0.0.1:8000"  # a server in the node
SPEC = """\
driver: {method: preinstalled}
runtimes:
  containerd: {manage: configure, cdi: true}
  docker: {manage: ignore}
"""
STANDINS = "standins/node/usr/local"  # of the lab: they bring the image of pod sandboxes, and a CRI client
NODE, ADDRESS = "gpu-node", "10.99.0.1"
SHARED = "srv/kubernetes"  # on the node, in place of seeds.SHARED


def tree(folder: Path) -> Path:
    """Ubuntu's tree, as the lab's nodes have it, as a tar."""
    machine.install_missing_packages(print)
    tag = images.ensure_tree(TREE, log=print)
    tar = folder / "tree.tar"
    container = f"gpunode-test-gpu-{os.getpid()}"
    machine.podman("create", "--name", container, "--network=none", tag, "true")
    try:
        machine.podman("export", "--output", str(tar), container)
        machine.podman("cp", f"{container}:/bin/busybox", str(folder.parent))
    finally:
        machine.podman("rm", "--force", container)
    return tar


def site(folder: Path) -> None:
    """gpunode and its packages for the Python of that Ubuntu."""
    wheels = folder.parents[1] / "wheels"
    root = HERE.parents[1]
    subprocess.run((sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, root), check=True)
    [wheel] = wheels.glob("gpunode-*.whl")
    platforms = [f"--platform={name}" for name in PLATFORMS]
    options = ("--only-binary=:all:", "--python-version=3.12", "--implementation=cp", *platforms)
    subprocess.run(
        (sys.executable, "-m", "pip", "install", "-q", "--target", folder, *options, f"{wheel}[kubernetes]"), check=True
    )
    for path in (folder / "bin").iterdir():  # they name the Python of this machine
        _, _, rest = path.read_bytes().partition(b"\n")
        path.write_bytes(b"#!/usr/bin/python3\n" + rest)


def toolkit(folder: Path) -> str:
    """NVIDIA's programs, the lab's packages of them in a signed repository, and what gpunode.yml says of that."""
    vendor = Path(os.environ.get("GPUNODE_VENDOR", "/nonexistent"))
    (folder / "vendor").mkdir(parents=True)
    for name in TOOLKIT:
        if (vendor / name).is_file():
            shutil.copy(vendor / name, folder / "vendor")
    there = folder.parents[1] / "repository"
    info = packages.build_repository(there, programs=packages_vendor.programs(log=print), log=print)
    [source] = (one for one in info.sources if one.name == "nvidia-container-toolkit" and not one.distro)
    shutil.copytree(there / source.path, folder / "repository")
    shutil.copy(there / source.key, folder / "repository/key.asc")
    return (
        f"sources:\n  {source.name}:\n    url: {URL}\n    key: {URL}/key.asc\n    fingerprint: {source.fingerprint}\n"
    )


def programs(folder: Path) -> None:
    """What the tree lacks: a CRI client, the image of sandboxes, a program that computes."""
    folder.mkdir()
    with as_file(files("gpunode.lab") / STANDINS) as standins:
        for name in ("bin/crictl", "lib/gpunode-lab/pause", "lib/gpunode-lab/containerd-first"):
            shutil.copy(standins / name, folder)
    for name in ("image.sh", "pod.sh", "cluster.sh", "pods.sh"):
        shutil.copy(HERE / name, folder)
    for path in folder.iterdir():
        path.chmod(0o755)
    subprocess.run(("cc", "-O1", "-Wall", "-Werror", HERE / "add.c", "-ldl", "-o", folder / "gpu-add"), check=True)


def kubernetes(folder: Path, busybox: Path) -> None:
    """The programs of a cluster, what the node gets for it, and the images of its pods; nothing without a folder."""
    if not (name := os.environ.get("GPUNODE_KUBERNETES")):
        return
    there, seed = binaries.folder_of(name), folder / "cluster"
    seeds.seed_control_plane(seed)
    for unit in (seed / "etc/systemd/system").iterdir():
        if unit.is_symlink():  # the machine of the control plane is the node
            unit.unlink()
    authority = pki.make(seed / SHARED / "pki", ADDRESS)
    seeds.seed_node(seed, 1, NODE, authority, there)
    for path in (*seed.rglob("*.service"), *seed.rglob("routes")):
        path.write_text(path.read_text().replace(seeds.SHARED.lstrip("/"), SHARED))
    for path, text in (
        (f"{SHARED}/controller-manager.conf", authority.kubeconfig("system:kube-controller-manager")),
        (f"{SHARED}/ready", ""),
        ("root/.kube/config", authority.kubeconfig("kubernetes-admin", ["system:masters"])),
        ("etc/default/kubelet", f"KUBELET_EXTRA_ARGS=--node-ip={ADDRESS}\n"),
    ):
        machine.write(seed / path, text)
    pod_images.make_images(there, busybox, seed / SHARED / "images")
    for program in binaries.NEEDED:
        if program != "kube-scheduler":  # it is in an image
            shutil.copy(there.folder / program, folder)
    (folder / "version").write_text(there.version)


def split(source: Path, target: Path) -> None:
    """The parts, and their sums."""
    sums = []
    with source.open("rb") as stream:
        while data := stream.read(PART):
            name = f"part.{len(sums):03}"
            (target / name).write_bytes(data)
            sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
    (target / "SHA256SUMS").write_text("".join(sums))


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("part.*"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=target) as place:
        work = Path(place)
        payload = work / "payload"
        payload.mkdir()
        tree(payload)
        site(payload / "site")
        programs(payload / "programs")
        kubernetes(payload / "kubernetes", work / "busybox")
        (payload / "node.yml").write_text(SPEC + toolkit(payload / "toolkit"))
        shutil.copy(HERE / "trial.py", payload)
        shutil.copy(HERE / "node.sh", payload)
        packed = work / "payload.tgz"
        with tarfile.open(packed, "w:gz", compresslevel=6) as archive:
            archive.add(payload, arcname=".")
        split(packed, target)
    shutil.copy(HERE / "run.sh", target)
    parts = sorted(target.glob("part.*"))
    print(
        f"{target}: {len(parts)} parts, {sum(path.stat().st_size for path in parts) >> 20} MiB; start there: sh run.sh"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
