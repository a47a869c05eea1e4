"""Repositories of apt: the lists of an upstream, their signature checked, and a signed repository of some packages."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

from gpunode.core.bundle.deb import Deb, packages_text, parse_packages, release_hashes
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.model.node import DEB_ARCHS
from gpunode.edge.bundle.store import Web
from gpunode.edge.bundle.unpack import ENDINGS, list_text
from gpunode.edge.openpgp import Signer, check_signature, signed_text


def read_apt(upstream: Upstream, arch: str, keys: Sequence[bytes], web: Web, *, expired: bool = False) -> Iterator[Deb]:
    """The packages of an upstream.  `expired`: one whose lists are out of date is taken too.

    Raises RefusedError where its signature is not by one of the upstream's fingerprints.
    """
    release = signed_release(upstream, keys, web)
    if not expired:
        check_time(release, upstream)
    yield from read_lists(upstream, arch, release, web)


def unsigned_release(upstream: Upstream, web: Web) -> str:
    """The Release without a look at its signature: to know what there is, not to install it."""
    for name in ("InRelease", "Release"):
        if (data := web.read(f"{upstream.release_folder}/{name}")) is not None:
            return data.decode("utf-8", "replace")
    raise GpunodeError(
        f"{upstream.release_folder} has neither InRelease nor Release", fix="is it a repository of apt? see sources"
    )


def release_day(release: str) -> str:
    """YYYY-MM-DD of a Release file's Date, "" where it has none."""
    found = re.search(r"^Date:\s*(.+)$", release, re.M)
    try:
        return parsedate_to_datetime(found[1].replace("UTC", "+0000")).date().isoformat() if found else ""
    except ValueError:
        return ""


def read_lists(upstream: Upstream, arch: str, release: str, web: Web) -> Iterator[Deb]:
    """The packages of the lists that a Release file names."""
    hashes = release_hashes(release)
    by_hash = re.search(r"^Acquire-By-Hash:\s*yes\s*$", release, re.M) is not None
    folder = upstream.release_folder
    names = [""] if upstream.flat else [f"{c}/binary-{DEB_ARCHS[arch]}/" for c in upstream.components]
    for place in names:
        yield from parse_packages(
            _index(folder, place, hashes, web, by_hash=by_hash),
            repository=upstream.name,
            base=folder if upstream.flat else upstream.url,
            origin=upstream.address,
        )


def signed_release(upstream: Upstream, keys: Sequence[bytes], web: Web) -> str:
    """The Release whose signature is by one of the upstream's fingerprints, else RefusedError."""
    where = f"{upstream.release_folder}/InRelease"
    if (data := web.read(where)) is not None:
        return signed_text(data, keys, upstream.fingerprints, where).decode("utf-8", "replace")
    where = f"{upstream.release_folder}/Release"
    data, signature = web.read(where), web.read(f"{where}.gpg")
    if data is None or signature is None:
        raise GpunodeError(
            f"{upstream.release_folder} has neither InRelease nor a signed Release",
            fix="is it a repository of apt? see sources in gpunode.yml and --repositories",
        )
    check_signature(data, signature, keys, upstream.fingerprints, where)
    return data.decode("utf-8", "replace")


def check_time(release: str, upstream: Upstream) -> None:
    """Raises RefusedError for lists whose time is over: a mirror that stands still, or one that is made to."""
    found = re.search(r"^Valid-Until:\s*(.+)$", release, re.M)
    if found and not _is_later(found[1]):
        raise RefusedError(
            f"{upstream.release_folder}: its lists were valid until {found[1][:40]}",
            expected="lists that are in time: old ones lack the corrections since",
            fix="use a mirror that is in step, or take them as they are with --allow-expired (a snapshot, say)",
        )


def _is_later(text: str) -> bool:
    try:
        return parsedate_to_datetime(text.replace("UTC", "+0000")).astimezone(UTC) > datetime.now(UTC)
    except (ValueError, TypeError, OverflowError):
        return False


def _index(folder: str, place: str, hashes: dict[str, tuple[str, int]], web: Web, *, by_hash: bool) -> str:
    """The list of packages in the best form that there is, as Release has it; by its hash where the server does that.

    A list by its hash stays while the server is being updated, so it is the one that this Release names.
    """
    for ending in ENDINGS:
        known = hashes.get(f"{place}Packages{ending}")
        if known is None:
            continue
        data = web.read(f"{folder}/{place}by-hash/SHA256/{known[0]}") if by_hash else None
        data = data if data is not None else web.read(f"{folder}/{place}Packages{ending}")
        if data is None:
            continue
        _, size = hashes.get(f"{place}Packages", ("", None))
        return list_text(data, f"{folder}/{place}Packages{ending}", known[0], size, "the signed Release")
    raise GpunodeError(f"{folder}/{place} has no list of packages that can be read", fix="use another mirror")


def apt_repository(debs: Sequence[Deb], *, arch: str, label: str, signer: Signer) -> dict[str, bytes]:
    """The index files of a flat repository of these packages, signed; its packages lie beside them."""
    packages = packages_text(debs).encode()
    indexes = {"Packages": packages, "Packages.gz": gzip.compress(packages, mtime=0)}
    return release_files(indexes, {"Origin": "gpunode", "Label": label, "Architectures": DEB_ARCHS[arch]}, signer)


def release_files(indexes: Mapping[str, bytes], fields: Mapping[str, str], signer: Signer) -> dict[str, bytes]:
    """The indexes, and a Release of these fields that names them, signed."""
    date = format_datetime(datetime.now(UTC), usegmt=True).replace("GMT", "UTC")
    head = "".join(f"{name}: {value}\n" for name, value in {**fields, "Date": date}.items())
    sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n" for name, data in indexes.items())
    release = f"{head}SHA256:\n{sums}".encode()
    return {
        **indexes,
        "Release": release,
        "Release.gpg": signer.signature(release),
        "InRelease": signer.clearsigned(release),
    }
