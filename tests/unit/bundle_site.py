"""Two small signed repositories behind a server, and the bundle that is made of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from apt_server import Server
from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.core.errors import GpunodeError
from gpunode.edge.openpgp import Signer

NEEDS_GPG = pytest.mark.skipif(not (shutil.which("gpg") and shutil.which("gpgv")), reason="needs gpg and gpgv")
TARGET = "debian:12/x86_64"
PARTS = ("nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")


@dataclass(frozen=True, kw_only=True)
class Site:
    """Two repositories behind a server, and the files that name them."""

    server: Server
    folder: Path
    spec: Path
    repositories: Path
    key: Signer

    def create(self, *more: object, exit: int = 0) -> Any:
        words = ["bundle", "create", "-c", self.spec, "--for", TARGET, "--gpu", "10de:2330"]
        words += ["--repositories", f"{TARGET}={self.repositories}", "-o", self.folder / "bundle", *more]
        return gpunode(*words, exit=exit)

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def part(self) -> Path:
        """The repository of the toolkit in the bundle."""
        return self.bundle / "repos/debian-12/x86_64/nvidia-container-toolkit"

    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.bundle / "manifest.json").read_text()))


def gpunode(*words: object, exit: int = 0) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)
    code = done.exception.exit if isinstance(done.exception, GpunodeError) else done.return_value
    assert code == exit, f"{done.output}{done.exception!r}"
    return done.output + (str(done.exception) if done.exception else "")


def names(site: Site) -> dict[str, set[str]]:
    found = site.manifest()["targets"][TARGET]["repositories"]
    return {name: {p["name"] for p in packages} for name, packages in found.items()}


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()  # its bytes are the store's as well
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])
