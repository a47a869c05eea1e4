"""Repositories of pacman: an upstream's database, its packages' signatures, and a signed repository."""

from __future__ import annotations

import base64
import gzip
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpunode.core.bundle.alpm import Alpm, database_name, entry_text, parse_desc
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.edge.bundle.rpm import check_metadata
from gpunode.edge.bundle.store import Web
from gpunode.edge.bundle.unpack import ending_of, unpacked
from gpunode.edge.openpgp import Signer, check_file_signature


def read_alpm(upstream: Upstream, keys: Sequence[bytes], web: Web) -> list[Alpm]:
    """The packages of an upstream.  Where its key signs the database, that is compared here, else each package later.

    Raises GpunodeError, RefusedError.
    """
    base = upstream.url.rstrip("/")
    where = f"{base}/{database_name(upstream.name, upstream.suite)}.db"
    data = web.read(where)
    if data is None:
        raise GpunodeError(f"{where} is not there", fix="is it a repository of pacman? see --repositories")
    check_metadata(data, where, ".sig", upstream, keys, web)
    return read_database(data, where, repository=upstream.name, base=base, origin=upstream.address)


def read_database(data: bytes, where: str, *, repository: str, base: str, origin: str) -> list[Alpm]:
    """The packages of a database; raises GpunodeError."""
    return [parse_desc(desc, repository=repository, base=base, origin=origin) for desc in _entries(data, where)]


def _entries(data: bytes, where: str) -> Iterator[str]:
    try:
        with tarfile.open(fileobj=io.BytesIO(unpacked(data, ending_of(data), where))) as database:
            for member in database:
                file = database.extractfile(member) if member.name.endswith("/desc") else None
                if file:
                    yield file.read().decode("utf-8", "replace")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise GpunodeError(f"{where} is no database of pacman: {error}", fix="use another mirror") from error


# ---------------------------------------------------------------- files


def check_alpm(package: Alpm, file: Path, keys: Sequence[bytes], fingerprints: Sequence[str], web: Web) -> str:
    """The fingerprint whose signature, in the database or beside the package, fits the file.  Raises RefusedError."""
    signature = base64.b64decode(package.signature) if package.signature else web.read(f"{package.url}.sig")
    if not signature:
        raise RefusedError(f"{package.url} is not signed", fix="use a repository that signs its packages")
    return check_file_signature(file, signature, keys, fingerprints, package.url)


def alpm_repository(packages: Sequence[Alpm], repository: str, signer: Signer) -> dict[str, bytes]:
    """The database of these packages, which lie in its folder, in the form of repo-add, and its signature."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as database:
        for package in sorted(packages, key=lambda p: (p.name, p.version)):
            folder = tarfile.TarInfo(f"{package.name}-{package.version}")
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            database.addfile(folder)
            text = entry_text(package).encode()
            entry = tarfile.TarInfo(f"{folder.name}/desc")
            entry.size, entry.mode = len(text), 0o644
            database.addfile(entry, io.BytesIO(text))
    packed = gzip.compress(plain.getvalue(), mtime=0)
    name = database_name(repository, "/")
    return {f"{name}.db": packed, f"{name}.db.sig": signer.plain_signature(packed)}
