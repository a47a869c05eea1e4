"""Images that a lab cluster has from the start, made from programs: no registry is asked.

A folder of programs may also hold ready archives (`docker save`) in images/, which every node gets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpunode.edge.load import load_kube_knowledge
from gpunode.lab import machine
from gpunode.lab.kubernetes.archives import libraries, write_archive
from gpunode.lab.kubernetes.binaries import Binaries

PLUGIN = ("nvidia-device-plugin", "gpu-feature-discovery", "mps-control-daemon")
EXTENDER = "gpushare-sche-extender"
# The sample adds two vectors with CUDA, which the lab does not have: this passes where the pod was given a GPU.
SAMPLE = """#!/bin/sh
ls /dev/nvidia[0-9]* >/dev/null 2>&1 || { echo "no GPU was given to this container"; exit 1; }
echo "[gpunode lab stand-in: no vectors were added] Test PASSED"
"""

# what the driver's programs need of the image, in which they are mounts
LIBRARIES = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")


def make_images(binaries: Binaries, busybox: Path, folder: Path) -> None:
    """Write archives of the scheduler, the sample, and of the programs that are there into `folder`."""
    makers: dict[str, Callable[[Path], None]] = {
        f"kube-scheduler-{binaries.version}.tar": lambda path: _scheduler(path, binaries),
        "cuda-sample.tar": lambda path: _sample(path, busybox),
    }
    if all(binaries.optional(name) for name in PLUGIN):
        makers["nvidia-device-plugin.tar"] = lambda path: _plugin(path, binaries, busybox)
    if binaries.optional(EXTENDER):
        makers["gpushare-extender.tar"] = lambda path: _extender(path, binaries)
    for name, make in makers.items():
        make(folder / name)


def _scheduler(path: Path, binaries: Binaries) -> None:
    program = {"/usr/local/bin/kube-scheduler": binaries.folder / "kube-scheduler"}
    write_archive(path, [f"registry.k8s.io/kube-scheduler:{binaries.version}"], program)


def _sample(path: Path, busybox: Path) -> None:
    contents: dict[str, Path | str] = {"/bin/sh": busybox, "/bin/ls": busybox, "/cuda-samples/vectorAdd": SAMPLE}
    write_archive(path, [_image("cuda-sample")], contents | _for_the_driver(), entrypoint=["/cuda-samples/vectorAdd"])


def _for_the_driver() -> dict[str, Path | str]:
    """This machine's C library and its loader."""
    own = libraries(Path("/bin/sh"))
    folder = next(path.parent for path in own if path.name == LIBRARIES[0])
    return {str(path): path for path in (*own, *(folder / name for name in LIBRARIES)) if path.exists()}


def _plugin(path: Path, binaries: Binaries, busybox: Path) -> None:
    """With BusyBox where NVIDIA's image has it: the MPS daemon needs mount and tail."""
    programs: dict[str, Path | str] = {f"/usr/bin/{name}": binaries.folder / name for name in PLUGIN}
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/busybox",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "utility,compute",
    }
    names = [_image("nvidia-device-plugin")]
    applets = machine.run(str(busybox), "--list").stdout.split()
    write_archive(
        path,
        names,
        {**programs, **_for_the_driver(), "/busybox/busybox": busybox},
        links={"/bin/sh": "/busybox/sh", **{f"/busybox/{name}": "busybox" for name in applets if name != "busybox"}},
        entrypoint=["nvidia-device-plugin"],
        environment=environment,
    )


def _extender(path: Path, binaries: Binaries) -> None:
    program = {f"/usr/bin/{EXTENDER}": binaries.folder / EXTENDER}
    write_archive(path, [_image("gpushare-extender")], program, entrypoint=[EXTENDER])


def _image(component: str) -> str:
    return load_kube_knowledge().images[component]
