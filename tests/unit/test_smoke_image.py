"""The image of smoke.sh's containers has what the driver's programs need that NVIDIA's runtime mounts into them.

The table is what `objdump -p` shows of the driver 595.91.07 (Ubuntu's nvidia-utils-595-server,
nvidia-compute-utils-595-server, libnvidia-compute-595-server, nvidia-imex-595); the specification has the form that
nvidia-ctk 1.19.1 gives it.  The programs are built here with the same needs, and run in the image's own tree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_smoke_sh import fake_program, inside, smoked

C = "libpthread.so.0 libdl.so.2 librt.so.1"  # no part of libc before glibc 2.34, and still asked for
NEEDED = {
    "bin/nvidia-smi": f"libm.so.6 {C}",
    "bin/nvidia-debugdump": "libnvidia-ml.so.1",
    "bin/nvidia-persistenced": C,
    "bin/nvidia-cuda-mps-control": C,
    "bin/nvidia-cuda-mps-server": C,
    "bin/nvidia-imex": f"{C} libz.so.1 libm.so.6",
    "bin/nvidia-imex-ctl": f"{C} libz.so.1 libm.so.6",
    "lib/libnvidia-ml.so.595.91.07": f"libm.so.6 {C}",
    "lib/libcuda.so.595.91.07": f"libm.so.6 {C}",
}
LINKS = {"libnvidia-ml.so.1": "libnvidia-ml.so.595.91.07", "libcuda.so.1": "libcuda.so.595.91.07"}
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
SMI = """int main(int n, char **a) {
    puts(n > 1 && !strcmp(a[1], "-L") ? "GPU 0: NVIDIA H100 80GB HBM3" : "0, 33, 0 %, 0 MiB");
    return 0;
}"""
PROGRAM = f"#include <stdio.h>\n#include <string.h>\n{SMI}\n"

pytestmark = pytest.mark.skipif(
    os.uname().machine != "x86_64" or not all(map(shutil.which, ("gcc", "objdump", "ldd"))),
    reason="needs gcc and binutils on x86_64",
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver's programs and libraries of the table, built here."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "source.c").write_text(PROGRAM)
    for name, needed in sorted(NEEDED.items(), reverse=True):  # libraries come first
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        soname = f"{name.partition('/')[2].partition('.so.')[0]}.so.1"
        kind = ["-shared", "-fPIC", f"-Wl,-soname,{soname}"] if name.startswith("lib/") else []
        wanted = [f"-l:{library}" for library in needed.split()]
        subprocess.run(
            ["gcc", *kind, "-o", path, folder / "source.c", f"-L{folder}/lib", "-Wl,--no-as-needed", *wanted],
            check=True,
        )
        if kind:
            (folder / "lib" / soname).symlink_to(path.name)
    return folder


def specification(driver: Path) -> dict[str, Any]:
    """As `nvidia-ctk cdi generate` writes it; what lies below `driver` here lies below / on a node."""
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    where = {name: f"/usr/{name}" if name.startswith("bin/") else f"{LIBRARIES}/{name[4:]}" for name in NEEDED}
    links = [word for link, target in LINKS.items() for word in ("--link", f"{target}::{LIBRARIES}/{link}")]
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}
    device = {"path": "/dev/nvidia0", "major": 195, "fileMode": 438, "permissions": "rwm"}
    text = yaml.safe_dump(
        {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": name, "containerEdits": {"deviceNodes": [device]}} for name in ("0", "all")],
            "containerEdits": {
                "env": ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu", "NVIDIA_VISIBLE_DEVICES=void"],
                "deviceNodes": [{"path": "/dev/nvidiactl", "major": 195, "minor": 255, "fileMode": 438}],
                "hooks": [
                    {**hook, "args": ["nvidia-cdi-hook", "create-symlinks", *links]},
                    {**hook, "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", LIBRARIES]},
                ],
                "mounts": [
                    {"hostPath": f"{driver}/{name}", "containerPath": path, "options": options}
                    for name, path in where.items()
                ],
            },
        }
    )
    return dict(yaml.safe_load(text))


@pytest.fixture
def root(driver: Path, tmp_path: Path) -> Path:
    """The tree of a container: the image that smoke.sh made for docker, with what the specification adds."""
    for name in NEEDED:
        if name.startswith("bin/"):
            (tmp_path / "bin").mkdir(exist_ok=True)
            (tmp_path / name).symlink_to(driver / name)
    lines = "; ".join(f"echo '\t{link} (libc6,x86-64) => {driver}/lib/{link}'" for link in LINKS)
    fake_program(tmp_path, "ldconfig", lines)
    fake_program(tmp_path, "docker", f'[ "$1" != load ] || cp "$3" {tmp_path}/image.tar')
    smoked(tmp_path, {"runtimes": ["docker"], "toolkit": False})
    root = tmp_path / "root"
    with tarfile.open(tmp_path / "image.tar") as image:
        layer = image.extractfile("layer.tar")
        assert layer
        with tarfile.open(fileobj=layer) as files:
            files.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # Python 3.11.4 and later
            files.extractall(root)
    return root


def needed(path: Path) -> set[str]:
    shown = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^\s*NEEDED\s+(\S+)", shown, re.MULTILINE))


def edits(driver: Path) -> Mapping[str, Any]:
    return dict(specification(driver)["containerEdits"])


def links(driver: Path) -> dict[str, str]:
    """The links that the hook create-symlinks makes: path → target."""
    args = next(hook["args"] for hook in edits(driver)["hooks"] if "create-symlinks" in hook["args"])
    pairs = [word.partition("::") for word in args if "::" in word]
    return {link: target for target, _, link in pairs}


def test_what_the_driver_s_programs_need_is_in_the_image_or_mounted(driver: Path, root: Path) -> None:
    mounts = {mount["containerPath"]: Path(mount["hostPath"]) for mount in edits(driver)["mounts"]}
    there = {path.name for path in root.rglob("*") if path.is_file()}
    there |= {Path(path).name for path in (*mounts, *links(driver))}
    missing = {name: needed(path) - there for name, path in mounts.items() if needed(path) - there}
    assert len(mounts) == len(NEEDED)
    assert not missing


def test_the_image_has_no_library_of_the_driver_itself(root: Path) -> None:
    """One of its own would stand where NVIDIA's runtime mounts the driver's."""
    assert not [path for path in root.rglob("*") if re.match(r"lib(nvidia|cuda)", path.name)]


def test_nvidia_smi_runs_in_that_image(driver: Path, root: Path) -> None:
    for mount in edits(driver)["mounts"]:
        target = root / mount["containerPath"].lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(mount["hostPath"], target)
    for link, target_name in links(driver).items():
        (root / link.lstrip("/")).symlink_to(target_name)
    done = subprocess.run(
        ["unshare", "-r", "chroot", root, "/bin/sh", "-c", inside()],
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unshare" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.stdout.splitlines() == [
        "GPU 0: NVIDIA H100 80GB HBM3", "gpunode-smoke-list 0", "0, 33, 0 %, 0 MiB", "gpunode-smoke-query 0",
        "gpunode-smoke-ran",
    ]  # fmt: skip
