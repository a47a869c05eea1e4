"""Repositories with indexes in the forms that vendors' servers have, written to a folder that a web server serves."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PACK: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".xz": lzma.compress,
    ".zst": lambda data: subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout,
}
# module streams hold the branches of a driver: https://developer.download.nvidia.com/compute/cuda/repos/rhel9/
MODULE = """---
document: modulemd
version: 2
data:
  name: nvidia-driver
  stream: "{stream}"
  version: {number}
  context: {context}
  arch: x86_64
  license: {{module: [MIT]}}
  artifacts:
    rpms:
{rpms}
...
"""


def apt_index(
    folder: Path, packages: Sequence[tuple[str, str]], *, form: str = ".gz", by_hash: bool = False, arch: str = "amd64"
) -> Path:
    """A flat repository of apt without the packages themselves: Release, and its list in one form."""
    stanzas = [
        f"Package: {name}\nVersion: {version}\nArchitecture: {arch}\nMaintainer: cudatools <cudatools@nvidia.com>\n"
        f"Filename: ./{name}_{version}_{arch}.deb\nSize: 1024\nSHA256: {'0' * 64}\nDescription: {name}\n"
        for name, version in packages
    ]
    data = PACK[form]("\n".join(stanzas).encode())
    digest = hashlib.sha256(data).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"Packages{form}").write_bytes(data)
    if by_hash:
        (folder / "by-hash/SHA256").mkdir(parents=True)
        (folder / "by-hash/SHA256" / digest).write_bytes(data)
    printed = "Acquire-By-Hash: yes\n" if by_hash else ""
    release = f"Origin: NVIDIA\nArchitectures: {arch}\n{printed}SHA256:\n {digest} {len(data)} Packages{form}\n"
    (folder / "Release").write_text(release)
    return folder


def rpm_index(
    folder: Path,
    packages: Sequence[tuple[str, str]],
    *,
    form: str = ".gz",
    streams: Mapping[str, Sequence[tuple[str, str]]] = {},
    arch: str = "x86_64",
) -> Path:
    """A repository of rpm without the packages themselves; those of `streams` belong to the module nvidia-driver."""
    every = [*packages, *(one for some in streams.values() for one in some)]
    primary = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<metadata xmlns="http://linux.duke.edu/metadata/common" '
        f'xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="{len(every)}">\n'
        + "".join(_entry(name, version, arch) for name, version in every)
        + "</metadata>\n"
    )
    texts = {"primary": (primary, "xml")}
    if streams:
        modules = "".join(
            MODULE.format(
                stream=stream,
                number=number,
                context=f"{number:08x}",
                rpms="".join(f"    - {name}-{_evr(version)}.{arch}\n" for name, version in some).rstrip("\n"),
            )
            for number, (stream, some) in enumerate(streams.items(), 1)
        )
        texts["modules"] = (modules, "yaml")
    (folder / "repodata").mkdir(parents=True)
    entries = []
    for kind, (text, ending) in texts.items():
        data = PACK[form](text.encode())
        digest = hashlib.sha256(data).hexdigest()
        path = f"repodata/{digest}-{kind}.{ending}{form}"
        (folder / path).write_bytes(data)
        entries.append(
            f'  <data type="{kind}">\n    <checksum type="sha256">{digest}</checksum>\n'
            f'    <location href="{path}"/>\n  </data>\n'
        )
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<repomd xmlns="http://linux.duke.edu/metadata/repo">\n'
    (folder / "repodata/repomd.xml").write_text(f"{head}{''.join(entries)}</repomd>\n")
    return folder


def _evr(version: str) -> str:
    """EPOCH:VERSION-RELEASE, as modules name their artifacts."""
    return version if ":" in version else f"0:{version}"


def _entry(name: str, version: str, arch: str) -> str:
    epoch, _, rest = _evr(version).partition(":")
    ver, _, rel = rest.rpartition("-")
    return (
        f'<package type="rpm"><name>{name}</name><arch>{arch}</arch><version epoch="{epoch}" ver="{ver}" rel="{rel}"/>'
        f'<checksum type="sha256" pkgid="YES">{hashlib.sha256(f"{name}{version}".encode()).hexdigest()}</checksum>'
        f'<size package="1024" installed="4096" archive="4096"/><location href="{name}-{rest}.{arch}.rpm"/>'
        "<format></format></package>\n"
    )
