"""Containers that get one GPU, a MIG device, all GPUs or none, by each engine that is there, else by runc alone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpunode.core.selftest.oci import Node, container, own_specification
from gpunode.core.selftest.record import Capture
from gpunode.edge.selftest.capture import Clock, capture, find

IMAGE = "localhost/gpunode-selftest:1"
NAME = "gpunode-selftest"
INSIDE = (
    "echo gpunode-selftest-ran; nvidia-smi -L 2>&1; "
    'for d in /dev/nvidia[0-9]*; do [ -e "$d" ] && echo "device $d"; done; exit 0'
)
COMMAND = ("/bin/sh", "-c", INSIDE)
DEV = Path("/dev")
SECONDS = 40.0  # for one container
_DRIVER = re.compile(r"lib(?:nvidia|cuda|nvcuvid|nvoptix)[\w.-]*\.so")
_PROGRAMS = ("nvidia-smi",)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What `nvidia-smi -L` lists: GPUs by UUID with the N of /dev/nvidiaN, and MIG devices."""

    gpus: Mapping[str, int]
    mig: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()  # UUIDs of GPUs with MIG devices


def listed(text: str, minors: Mapping[str, int]) -> Devices:
    """`nvidia-smi -L` → devices; `minors` by UUID, as /proc/driver/nvidia has them."""
    gpus: dict[str, int] = {}
    mig: list[str] = []
    cut: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-f-]+)\)", line):
            gpus[match[2]] = minors.get(match[2], int(match[1]))
        elif (match := re.search(r"\(UUID: (MIG-[0-9a-f-]+)\)", line)) and gpus:
            mig.append(match[1])
            cut.append([*gpus][-1])
    return Devices(gpus=gpus, mig=tuple(mig), cut=tuple(dict.fromkeys(cut)))


def run_containers(devices: Devices, clock: Clock) -> dict[str, Any]:
    """{"ran": [{engine, what, expected, output}], "why": {what: why there is none}}."""
    whole = [uuid for uuid in devices.gpus if uuid not in devices.cut]
    asked: dict[str, tuple[str, list[str]]] = {"void": ("", [])}
    why: dict[str, str] = {}
    if whole:
        asked["one"] = (whole[0], [whole[0]])
    else:
        why["one"] = "no whole GPU: none is there, or all are cut by MIG"
    if devices.gpus:
        asked["all"] = ("all", [*devices.gpus])
    else:
        why["all"] = "nvidia-smi lists no GPU"
    if devices.mig:
        asked["mig"] = (devices.mig[0], [devices.mig[0]])
    else:
        why["mig"] = "no MIG device"
    ran: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gpunode-selftest-") as name:
        folder = Path(name)
        with contextlib.closing(_engines(folder, devices, clock)) as engines:
            for engine, start in engines:
                for what, (device, expected) in asked.items():
                    if engine == "runc" and what == "mig":
                        why.setdefault("mig", "our own CDI specification has no MIG devices")
                        continue
                    done = start(device)
                    output = done.text or done.error
                    ran.append({"engine": engine, "what": what, "expected": expected, "output": output[-4000:]})
    if not ran:
        none = "no engine and no runc that this user may use with the GPUs (runc needs root)"
        why = {**dict.fromkeys(("one", "all", "void"), none), "mig": why.get("mig", none)}
    return {"ran": ran, "why": why}


Start = Callable[[str], Capture]


def _engines(folder: Path, devices: Devices, clock: Clock) -> Generator[tuple[str, Start]]:
    """(engine, how it starts a container with a device) of what is there and answers; its image is there meanwhile."""
    (folder / "rootfs").mkdir()
    _fill(folder / "rootfs", clock)
    image = str(_image(folder))
    found = 0
    for engine, start, load, removals in _rows(image, clock):
        if capture(load, clock, SECONDS).exit != 0:
            continue
        found += 1
        try:
            yield engine, start
        finally:
            for removal in removals:
                capture(removal, Clock(SECONDS), SECONDS)
    if not found and os.geteuid() == 0 and find("runc") and devices.gpus:
        yield "runc", partial(_runc, clock, folder, _own(devices, clock))


Row = tuple[str, Start, list[str], tuple[list[str], ...]]


def _rows(image: str, clock: Clock) -> Iterator[Row]:
    """(engine, how it starts a container, how it gets the image, what removes all of it) of what may be there."""
    if find("nvidia-ctk"):
        leave = (["podman", "rm", "-f", "-i", NAME], ["podman", "rmi", "-f", IMAGE])
        yield "podman", partial(_podman, clock), ["podman", "load", "-q", "-i", image], leave
    if '"nvidia"' in capture(["docker", "info", "--format", "{{json .Runtimes}}"], clock, 10).text:
        leave = (["docker", "rm", "-f", NAME], ["docker", "rmi", "-f", IMAGE])
        yield "docker", partial(_docker, clock), ["docker", "load", "-q", "-i", image], leave
    if runtime := find("nvidia-container-runtime"):
        ctr = ["ctr", "-n", NAME]
        leave = ([*ctr, "containers", "rm", NAME], [*ctr, "images", "rm", "--sync", IMAGE])
        load = [*ctr, "images", "import", image]
        yield "containerd", partial(_containerd, clock, runtime), load, (*leave, ["ctr", "namespaces", "rm", NAME])


def _podman(clock: Clock, device: str) -> Capture:
    given = ["--device", f"nvidia.com/gpu={device}"] if device else []
    words = ["podman", "run", "--rm", "--name", NAME, "--network=none", "-e", "NVIDIA_VISIBLE_DEVICES=void"]
    return capture([*words, *given, IMAGE, *COMMAND], clock, SECONDS)


def _docker(clock: Clock, device: str) -> Capture:
    given = ["-e", f"NVIDIA_VISIBLE_DEVICES={device or 'void'}", "-e", "NVIDIA_DRIVER_CAPABILITIES=utility"]
    words = ["docker", "run", "--rm", "--name", NAME, "--network=none", "--runtime=nvidia"]
    return capture([*words, *given, IMAGE, *COMMAND], clock, SECONDS)


def _containerd(clock: Clock, runtime: str, device: str) -> Capture:
    given = ["--env", f"NVIDIA_VISIBLE_DEVICES={device or 'void'}", "--env", "NVIDIA_DRIVER_CAPABILITIES=utility"]
    words = ["ctr", "-n", NAME, "run", "--rm", "--runc-binary", runtime]
    return capture([*words, *given, IMAGE, NAME, *COMMAND], clock, SECONDS)


def _runc(clock: Clock, folder: Path, specification: Mapping[str, Any], device: str) -> Capture:
    (folder / "config.json").write_text(json.dumps(container(specification, device, COMMAND)))
    return capture(["runc", "run", "--bundle", str(folder), f"{NAME}-{os.getpid()}"], clock, SECONDS)


def _own(devices: Devices, clock: Clock) -> dict[str, Any]:
    """A specification of what is in /dev, the driver's libraries that the linker knows, and nvidia-smi."""
    nodes = [node for path in sorted(DEV.glob("nvidia*")) if (node := _device(path))]
    cache = capture(["ldconfig", "-p"], clock, 10).text
    libraries = [path for path in re.findall(r"=> (\S+)", cache) if _DRIVER.search(path)]
    files = {path: path for path in libraries if Path(path).exists()}
    files |= {path: f"/usr/bin/{name}" for name in _PROGRAMS if (path := find(name))}
    return own_specification(devices.gpus, nodes, files)


def _device(path: Path) -> Node | None:
    found = path.stat()
    if not stat.S_ISCHR(found.st_mode):
        return None
    return Node(path=f"/dev/{path.name}", major=os.major(found.st_rdev), minor=os.minor(found.st_rdev))


# ---------------------------------------------------------------- the image


def _fill(root: Path, clock: Clock) -> None:
    """/bin/sh of this machine with the libraries that it and nvidia-smi have from the system: nothing to download."""
    for name in ("bin", "usr/bin", "proc", "dev", "sys", "etc", "tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy2(Path("/bin/sh").resolve(), root / "bin/sh")
    programs = ["/bin/sh", *(path for name in _PROGRAMS if (path := find(name)))]
    for program in programs:
        for library in re.findall(r"(/\S+\.so\S*)", capture(["ldd", program], clock, 10).text):
            if not _DRIVER.search(library) and Path(library).is_file():
                target = root / library.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(Path(library).resolve(), target)


def _image(folder: Path) -> Path:
    """A docker-archive of the folder `rootfs`, which podman, docker and ctr all load."""
    layer, image = folder / "layer.tar", folder / "image.tar"
    with tarfile.open(layer, "w") as tar:
        tar.add(folder / "rootfs", ".")
    digest = sha256(layer.read_bytes()).hexdigest()
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = {
        "architecture": arch,
        "os": "linux",
        "config": {"Cmd": ["/bin/sh"], "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    (folder / "image.json").write_text(json.dumps(config))
    manifest = [{"Config": "image.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(image, "w") as tar:
        for name in ("manifest.json", "image.json", "layer.tar"):
            tar.add(folder / name, name)
    return image
