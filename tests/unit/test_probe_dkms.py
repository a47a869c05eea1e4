"""The probe's section dkms, on trees as dkms 2.8 and 3.0 leave them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpunode.core.remote import program
from gpunode.node import script

SHELLS = [shell for shell in (["dash"], ["busybox", "sh"], ["bash"]) if shutil.which(shell[0])]


class Tree:
    """/var/lib/dkms below a folder, and a dkms that says that it was asked."""

    def __init__(self, root: Path) -> None:
        self.root, self.tree = root, root / "tree"
        self.tree.mkdir()
        self.framework = root / "framework.conf"
        (root / "bin").mkdir()
        (root / "bin/dkms").write_text("#!/bin/sh\necho asked\n")
        (root / "bin/dkms").chmod(0o755)

    def add(self, module: str, version: str, *, source: bool = True) -> None:
        real = self.root / "src" / f"{module}-{version}"
        if source:
            real.mkdir(parents=True)
            (real / "dkms.conf").touch()
        (self.tree / module / version).mkdir(parents=True)
        (self.tree / module / version / "source").symlink_to(real)
        (self.tree / module / version / "build").mkdir()

    def build(self, module: str, version: str, kernel: str) -> None:
        (self.tree / module / version / kernel / "x86_64/module").mkdir(parents=True)
        (self.tree / module / version / kernel / "x86_64/log").mkdir()

    def install(self, module: str, version: str, kernel: str) -> None:
        (self.tree / module / f"kernel-{kernel}-x86_64").symlink_to(f"{version}/{kernel}/x86_64")

    def printed(self, shell: list[str]) -> list[str]:
        text = script("probe.sh").replace("/var/lib/dkms", str(self.tree))
        text = text.replace("/etc/dkms/framework.conf ", f"{self.framework} ")
        done = subprocess.run(
            shell,
            input=program(text, {"sections": b"dkms"}),
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": f"{self.root}/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        return [line[2:] for line in done.stdout.splitlines() if line.startswith(("| ", "! "))]


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_each_kernel_of_each_version_has_its_state(tree: Tree, shell: list[str]) -> None:
    tree.add("nvidia", "595.91.07")
    tree.build("nvidia", "595.91.07", "6.1.0-50-amd64")
    tree.build("nvidia", "595.91.07", "6.1.0-56-amd64")
    tree.install("nvidia", "595.91.07", "6.1.0-50-amd64")
    tree.add("nvidia-current", "550.163.01")
    tree.add("zfs", "2.1.11")
    tree.build("zfs", "2.1.11", "6.1.0-50-amd64")
    (tree.tree / "nvidia/original_module/6.1.0-50-amd64/x86_64").mkdir(parents=True)
    assert tree.printed(shell) == [
        "nvidia-current/550.163.01: added",
        "nvidia/595.91.07, 6.1.0-50-amd64, x86_64: installed",
        "nvidia/595.91.07, 6.1.0-56-amd64, x86_64: built",
    ]


def test_of_two_versions_one_is_installed(tree: Tree, shell: list[str]) -> None:
    for version in ("580.95.05", "595.91.07"):
        tree.add("nvidia", version)
        tree.build("nvidia", version, "6.1.0-50-amd64")
    tree.install("nvidia", "595.91.07", "6.1.0-50-amd64")
    assert tree.printed(shell) == [
        "nvidia/580.95.05, 6.1.0-50-amd64, x86_64: built",
        "nvidia/595.91.07, 6.1.0-50-amd64, x86_64: installed",
    ]


def test_nothing_of_nvidias_is_nothing(tree: Tree, shell: list[str]) -> None:
    assert tree.printed(shell) == []


def test_a_version_without_its_source_is_dkms_own_to_judge(tree: Tree, shell: list[str]) -> None:
    tree.add("nvidia", "595.91.07", source=False)
    assert tree.printed(shell) == ["asked"]


def test_a_tree_elsewhere_is_dkms_own_to_read(tree: Tree, shell: list[str]) -> None:
    tree.framework.write_text("# dkms_tree=/var/lib/dkms\n")
    assert tree.printed(shell) == []
    tree.framework.write_text('dkms_tree="/srv/dkms"\n')
    assert tree.printed(shell) == ["asked"]
