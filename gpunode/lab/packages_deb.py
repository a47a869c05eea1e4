"""Debian packages and apt repositories from plain values: .deb files, Packages, Release, and its signature."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpunode.core.late import dataclass, field
from gpunode.edge.bundle.apt import release_files
from gpunode.edge.openpgp import Signer

EPOCH = 1_700_000_000  # of every file: two builds of the same input are the same bytes


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a package: its bytes and mode, or where its symbolic link leads."""

    data: bytes = b""
    mode: int = 0o644
    target: str = ""


@dataclass(frozen=True, kw_only=True)
class Deb:
    """A package to be: control fields in order (Package, Version, …), files by path without leading slash, scripts."""

    fields: Mapping[str, str]
    files: Mapping[str, File] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)  # postinst, prerm …

    @property
    def file_name(self) -> str:
        version = self.fields["Version"].partition(":")[2] or self.fields["Version"]
        return f"{self.fields['Package']}_{version}_{self.fields['Architecture']}.deb"

    @property
    def control(self) -> dict[str, str]:
        """All fields.  apt takes a package for another build of a version where the size is not the repository's."""
        size = sum(len(file.data) for file in self.files.values()) // 1024 + 1
        return {**self.fields, "Installed-Size": str(size)}


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A package as an archive has it: the fields of its stanza there, and the file."""

    fields: Mapping[str, str]
    path: Path


def deb_bytes(deb: Deb) -> bytes:
    """The .deb: an ar archive of debian-binary, control.tar.gz and data.tar.gz (deb(5))."""
    conffiles = [
        f"/{path}\n" for path, file in sorted(deb.files.items()) if path.startswith("etc/") and not file.target
    ]
    sums = [
        f"{hashlib.md5(file.data, usedforsecurity=False).hexdigest()}  {path}\n"
        for path, file in sorted(deb.files.items())
        if not file.target
    ]
    control = {"control": File(data=stanza(deb.control).encode())}
    control |= {"md5sums": File(data="".join(sums).encode())} if sums else {}
    control |= {"conffiles": File(data="".join(conffiles).encode())} if conffiles else {}
    control |= {name: File(data=text.encode(), mode=0o755) for name, text in deb.scripts.items()}
    members = {"debian-binary": b"2.0\n", "control.tar.gz": _tar_gz(control), "data.tar.gz": _tar_gz(deb.files)}
    return b"!<arch>\n" + b"".join(_ar_member(name, data) for name, data in members.items())


def _ar_member(name: str, data: bytes) -> bytes:
    header = f"{name:<16}{EPOCH:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
    return header.encode() + data + b"\n" * (len(data) % 2)


def _tar_gz(files: Mapping[str, File]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        folders = {str(parent) for path in files for parent in Path(path).parents}
        for folder in sorted(folders | {"."}):
            member = tarfile.TarInfo("./" if folder == "." else f"./{folder}/")
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, EPOCH
            tar.addfile(member)
        for path, file in sorted(files.items()):
            member = tarfile.TarInfo(f"./{path}")
            member.mtime, member.mode, member.size = EPOCH, file.mode, len(file.data)
            if file.target:
                member.type, member.linkname, member.mode, member.size = tarfile.SYMTYPE, file.target, 0o777, 0
            tar.addfile(member, None if file.target else io.BytesIO(file.data))
    return gzip.compress(raw.getvalue(), compresslevel=1, mtime=EPOCH)


def stanza(fields: Mapping[str, str]) -> str:
    """Control fields as text; empty ones are left out."""
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def write_flat_repository(folder: Path, debs: Sequence[Deb | Fetched], *, origin: str, key: Signer, arch: str) -> None:
    """Write the packages into `folder` with Packages(.gz), Release, Release.gpg and InRelease: a flat repository."""
    fields = {"Origin": origin, "Label": origin, "Architectures": arch}
    _write_release(folder, _indexes("", _write_pool(folder, "./", debs)), fields, key)


def write_suite(
    folder: Path, suite: str, components: Mapping[str, Sequence[Deb | Fetched]], *, origin: str, key: Signer, arch: str
) -> None:
    """Write dists/SUITE with its components, as Debian's archive has it, and their packages into pool/COMPONENT."""
    indexes: dict[str, bytes] = {}
    for name, debs in components.items():
        indexes |= _indexes(f"{name}/binary-{arch}/", _write_pool(folder, f"pool/{name}/", debs))
    fields = {"Origin": origin, "Label": origin, "Suite": suite, "Codename": suite, "Architectures": arch}
    _write_release(folder / "dists" / suite, indexes, {**fields, "Components": " ".join(components)}, key)


def _write_pool(folder: Path, place: str, debs: Sequence[Deb | Fetched]) -> bytes:
    """Write the packages below folder/place; their stanzas."""
    (folder / place).mkdir(parents=True, exist_ok=True)
    stanzas = []
    for deb in debs:
        if isinstance(deb, Fetched):
            shutil.copy(deb.path, folder / place)
            fields = {name: value for name, value in deb.fields.items() if name != "Component"}
            stanzas.append(stanza({**fields, "Filename": f"{place}{deb.path.name}"}))
            continue
        data = deb_bytes(deb)
        (folder / place / deb.file_name).write_bytes(data)
        found = {"Filename": f"{place}{deb.file_name}", "Size": str(len(data))}
        stanzas.append(stanza({**deb.control, **found, "SHA256": hashlib.sha256(data).hexdigest()}))
    return "\n".join(stanzas).encode()


def _indexes(place: str, packages: bytes) -> dict[str, bytes]:
    return {f"{place}Packages": packages, f"{place}Packages.gz": gzip.compress(packages, mtime=EPOCH)}


def _write_release(folder: Path, indexes: Mapping[str, bytes], fields: Mapping[str, str], key: Signer) -> None:
    for name, data in release_files(indexes, fields, key).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def public_keys(folder: Path, keys: Mapping[str, Signer]) -> None:
    """Write the public halves as `folder`/NAME.asc."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, key in keys.items():
        (folder / f"{name}.asc").write_bytes(key.public)
