"""Small signed packages of pacman, and a database of them as repo-add writes it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpunode.lab.packages_deb import SigningKey


@dataclass(frozen=True, kw_only=True)
class Pkg:
    name: str
    version: str = "1.0-1"
    depends: Sequence[str] = ()
    provides: Sequence[str] = ()
    conflicts: Sequence[str] = ()
    arch: str = "x86_64"

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}-{self.arch}.pkg.tar.gz"

    def data(self) -> bytes:
        """What makepkg would make: .PKGINFO, and one file."""
        lists = {"depend": self.depends, "provides": self.provides, "conflict": self.conflicts}
        info = [f"pkgname = {self.name}", f"pkgver = {self.version}", f"arch = {self.arch}", "size = 1"]
        info += [f"{key} = {value}" for key, values in lists.items() for value in values]
        files = {".PKGINFO": "\n".join(info) + "\n", f"usr/share/doc/{self.name}": self.name}
        return gzip.compress(_tar({name: text.encode() for name, text in files.items()}), mtime=0)

    def desc(self, signature: bytes = b"") -> str:
        data = self.data()
        fields: dict[str, Sequence[str]] = {
            "FILENAME": [self.file_name],
            "NAME": [self.name],
            "VERSION": [self.version],
            "CSIZE": [str(len(data))],
            "ISIZE": ["1"],
            "SHA256SUM": [hashlib.sha256(data).hexdigest()],
            "PGPSIG": [base64.b64encode(signature).decode()] if signature else [],
            "ARCH": [self.arch],
            "DEPENDS": self.depends,
            "CONFLICTS": self.conflicts,
            "PROVIDES": self.provides,
        }
        return "".join("\n".join((f"%{key}%", *values, "\n")) for key, values in fields.items() if values)


def _tar(files: dict[str, bytes]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return plain.getvalue()


def signed(key: SigningKey, file: Path) -> bytes:
    words = ["gpg", "--homedir", key.home, "--batch", "--quiet", "--yes", "--local-user", key.fingerprint]
    done = subprocess.run([*words, "--detach-sign", "-o", "-", file], capture_output=True, check=True)
    return done.stdout


def arch_repository(folder: Path, name: str, key: SigningKey, *packages: Pkg, inside: bool = False) -> Path:
    """The packages and their database NAME.db.  Signatures lie beside the packages, or `inside` the database."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for package in packages:
        file = folder / package.file_name
        file.write_bytes(package.data())
        signature = signed(key, file)
        if not inside:
            file.with_name(f"{file.name}.sig").write_bytes(signature)
        text = package.desc(signature if inside else b"")
        entries[f"{package.name}-{package.version}/desc"] = text.encode()
    (folder / f"{name}.db").write_bytes(gzip.compress(_tar(entries), mtime=0))
    return folder
