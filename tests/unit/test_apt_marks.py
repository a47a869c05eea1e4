"""apt.sh: which packages somebody asked for."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from gpunode import node

SHELLS = [shell for shell in (["dash"], ["busybox", "sh"], ["bash"]) if shutil.which(shell[0])]
PROGRAM = "".join(node.part(name).read_text() for name in ("apt.sh", "undo_packages.sh")) + "apt_marks\n"

DPKG_QUERY = """\
curl amd64 7.88-1 ii
libcurl4 amd64 7.88-1 ii
libc6 i386 2.36-9 ii
zlib1g i386 1.2.13 ii
tzdata all 2024a ii
perl-base all 5.36 ii
half amd64 1.0-1 iF
held amd64 1.0-1 hi
gone amd64 1.0-1 rc
"""
STATES = """\
Package: libcurl4
Architecture: amd64
Auto-Installed: 1

Package: zlib1g
Architecture: i386
Auto-Installed: 1

Package: perl-base
Architecture: amd64
Auto-Installed: 1

Package: held
Architecture: amd64
Auto-Installed: 0

Package: curl
Architecture: i386
Auto-Installed: 1
"""


def marks(shell: list[str], program: str, path: str) -> list[str]:
    done = subprocess.run(shell, input=program, capture_output=True, text=True, check=True, env={"PATH": path})
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("states", [True, False], ids=["noted", "nothing noted"])
def test_who_is_not_noted_as_automatic_was_asked_for(shell: list[str], states: bool, tmp_path: Path) -> None:
    for name, text in (("dpkg-query", DPKG_QUERY), ("dpkg", "amd64\n")):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
        (tmp_path / name).chmod(0o755)
    file = tmp_path / "extended_states"
    if states:
        file.write_text(STATES)
    program = PROGRAM.replace("/var/lib/apt/extended_states", str(file))
    automatic = {"libcurl4", "zlib1g:i386", "perl-base"} if states else set()
    installed = ["curl", "libcurl4", "libc6:i386", "zlib1g:i386", "tzdata", "perl-base", "half", "held"]
    assert marks(shell, program, f"{tmp_path}:/usr/bin:/bin") == [
        f"manual {name}" for name in installed if name not in automatic
    ]


@pytest.mark.skipif(not shutil.which("apt-mark"), reason="no apt")
def test_apt_mark_says_the_same_of_this_machine() -> None:
    printed = subprocess.run(["apt-mark", "showmanual"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert {*marks(["sh"], PROGRAM, "/usr/bin:/bin")} == {f"manual {name}" for name in printed}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("text", "packages"), [("595\n", ["b"]), ("580\n", ["a"]), ("580\nmine\n", [])], ids=["new", "old", "a person's"]
)
def test_a_file_that_is_as_a_package_brings_it_is_known(
    shell: list[str], text: str, packages: list[str], tmp_path: Path
) -> None:
    """By the real dpkg-query: the status that it leaves where a package takes the file of a removed one over."""
    path, other = tmp_path / "pin", tmp_path / "other"
    path.write_text(text)
    other.write_text("580\n")
    stanzas = [
        f"Package: {name}\nStatus: {status}\nVersion: 1\nArchitecture: all\nMaintainer: m <m@m>\nDescription: d\n"
        f"Conffiles:\n {path} {hashlib.md5(of, usedforsecurity=False).hexdigest()}{flag}\n {tmp_path}/gone {'0' * 32}\n"
        for name, status, of, flag in (
            ("a", "deinstall ok config-files", b"580\n", " obsolete"),
            ("b", "install ok installed", b"595\n", ""),
        )
    ]
    (tmp_path / "info").mkdir()
    (tmp_path / "status").write_text("\n".join(stanzas))
    (tmp_path / "paths").write_text(f"{path}\n{other}\n{tmp_path}/gone\n")
    program = PROGRAM.replace("apt_marks\n", f"apt_unchanged {tmp_path}/paths\n")
    env = {"PATH": "/usr/bin:/bin", "DPKG_ADMINDIR": str(tmp_path)}
    done = subprocess.run(shell, input=program, capture_output=True, text=True, check=True, env=env)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"{name} {path}" for name in packages]


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="no dpkg")
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_of_packages_those_that_left_configuration_are_named(shell: list[str], tmp_path: Path) -> None:
    """Of the architectures of a name only the one that was asked for."""
    native = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    removed, there = "deinstall ok config-files", "install ok installed"
    packages = (
        ("gone", native, removed),
        ("data", "all", removed),
        ("held", native, "hold ok config-files"),
        ("both", "s390x", removed),
        ("both", native, there),
        ("far", "s390x", removed),
        ("there", native, there),
        ("not-asked", native, removed),
    )
    more = "Version: 1\nMaintainer: x\nDescription: x\n"
    stanzas = (
        f"Package: {name}\nStatus: {status}\nArchitecture: {arch}\n"
        + (more if arch == "all" else f"Multi-Arch: same\n{more}")
        for name, arch, status in packages
    )
    (tmp_path / "info").mkdir()
    (tmp_path / "info" / "format").write_text("1\n")
    (tmp_path / "status").write_text("\n".join(stanzas))
    program = PROGRAM.replace("apt_marks\n", "apt_remnants\napt_remnants gone data held both far:s390x there unknown\n")
    env = {"PATH": "/usr/bin:/bin", "DPKG_ADMINDIR": str(tmp_path)}
    done = subprocess.run(shell, input=program, capture_output=True, text=True, check=True, env=env)
    assert (sorted(done.stdout.split()), done.stderr) == (["data", "far:s390x", "gone", "held"], "")
