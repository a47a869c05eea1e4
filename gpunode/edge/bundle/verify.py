"""A bundle is checked: whole, undamaged, and the one that was meant; in a folder, a .tar, or at an address."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tarfile
import urllib.error
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import unquote, urlsplit

from gpunode.core.bundle.manifest import KEY, MANIFEST, SIGNATURE, Manifest, Stored, parse_manifest
from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.late import dataclass
from gpunode.core.openpgp import fingerprints
from gpunode.edge.bundle.store import PIECE, Web
from gpunode.edge.openpgp import check_signature
from gpunode.edge.state import state_dir, write_private

AT_ONCE = 4
MOST = 64 << 20  # bytes of a manifest, its signature or its key; one of all packages of a distribution has about 20 MB


class Place(Protocol):
    """Where a bundle is."""

    name: str

    def open(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """The bytes of a file; raises OSError."""

    def stamp(self, path: str) -> str:
        """What changes when the file does, "" where nothing tells that; raises OSError when it is not there."""

    def files(self) -> Iterable[str]:
        """The paths of all files, where they can be listed."""


class Folder:
    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, str(folder)

    def open(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        return (self.folder / path).open("rb")

    def stamp(self, path: str) -> str:
        found = (self.folder / path).stat()
        return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"

    def files(self) -> Iterable[str]:
        return (str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file())


class Tar:
    """A bundle that is one file.  Its members are read one after the other."""

    def __init__(self, file: Path) -> None:
        self.name = str(file)
        try:
            self._tar = tarfile.open(file, "r:")  # noqa: SIM115 - as long as the place; a packed one could be endless
            members = self._tar.getmembers()
        except (OSError, tarfile.TarError) as error:
            raise RefusedError(f"{file} cannot be read to its end: {error}", fix="copy or make it again") from error
        self._members = {member.name.partition("/")[2]: member for member in members if not member.isdir()}

    def open(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        member = self._members.get(path)
        if member is None:
            raise FileNotFoundError(path)
        try:
            file = self._tar.extractfile(member)
        except (tarfile.TarError, KeyError) as error:
            raise OSError(str(error)) from error
        if file is None:
            raise FileNotFoundError(path)
        return file

    def stamp(self, path: str) -> str:
        if path not in self._members:
            raise FileNotFoundError(path)
        return ""

    def files(self) -> Iterable[str]:
        return self._members


class Address:
    """A bundle that a web server serves."""

    def __init__(self, url: str, web: Web) -> None:
        self.name, self._web = url.rstrip("/"), web

    def open(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        answer: contextlib.AbstractContextManager[IO[bytes]] = self._web.open(f"{self.name}/{path}")
        return answer

    def stamp(self, path: str) -> str:
        with self._web.open(f"{self.name}/{path}", method="HEAD") as answer:
            stated = [answer.headers.get(key, "") for key in ("ETag", "Last-Modified", "Content-Length")]
        return "|".join(stated) if stated[0] or stated[1] else ""

    def files(self) -> Iterable[str]:
        return ()


def place_of(text: str, proxy: str = "") -> Place:
    """A folder, a file or an address.  Raises InputError when there is none."""
    if text.startswith(("http://", "https://")):
        return Address(text, Web(proxy))
    path = Path(unquote(urlsplit(text).path) if text.startswith("file://") else text).expanduser()
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        return Tar(path)
    raise InputError(
        f"there is no bundle at {text}", expected="a folder, a .tar file, or a URL", fix="look at the path"
    )


def read_manifest(place: Place, sha256: str = "") -> tuple[Manifest, str]:
    """The manifest and its SHA-256, which has to be `sha256` where that is given.  Raises RefusedError, InputError."""
    try:
        with place.open(MANIFEST) as file:
            data = _whole(file, f"{place.name}/{MANIFEST}")
    except (OSError, HTTPException) as error:
        raise InputError(
            f"{place.name} has no {MANIFEST}: {error}", expected="a bundle", fix="gpunode bundle create makes one"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if sha256 and found != sha256:
        raise RefusedError(
            f"{place.name}/{MANIFEST} has the SHA-256 {found}",
            expected=f"{sha256}, as bundle.sha256 in gpunode.yml says",
            fix="if the bundle was made again, take its own lines: gpunode bundle sources; else it was tampered with",
        )
    return parse_manifest(data, f"{place.name}/{MANIFEST}"), found


def check_manifest_signature(place: Place, manifest: Manifest) -> None:
    """The signature of the manifest, by the key that lies in the bundle and whose fingerprint the manifest has."""
    try:
        with place.open(MANIFEST) as data, place.open(SIGNATURE) as signature, place.open(KEY) as key:
            where = f"{place.name}/{MANIFEST}"
            public = _whole(key, f"{place.name}/{KEY}")
            signed, by = _whole(data, where), _whole(signature, f"{place.name}/{SIGNATURE}")
            check_signature(signed, by, [public], [manifest.fingerprint], where)
    except (OSError, HTTPException) as error:
        raise RefusedError(f"{place.name}: {error}", expected=f"{SIGNATURE} and {KEY}", fix="copy it again") from error
    if fingerprints(public) != (manifest.fingerprint,):
        raise RefusedError(f"{KEY} is not the key that the manifest names", expected=manifest.fingerprint)


def _whole(file: IO[bytes], where: str) -> bytes:
    """Raises RefusedError for a file that has no end: a sparse one in a tar, a link to a device."""
    data = file.read(MOST + 1)
    if len(data) > MOST:
        raise RefusedError(f"{where} is longer than {MOST} bytes", expected="a bundle", fix="copy or make it again")
    return data


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A file that is not as the manifest says."""

    path: str
    what: str


def damages(
    place: Place,
    files: Mapping[str, Stored],
    *,
    remembered: bool = False,
    notify: Callable[[int, int], None] = lambda done, of: None,
) -> list[Damage]:
    """Every one of the files that is missing, cut off or changed.

    `remembered`: a file that was whole before and has not been touched since is not read again.
    """
    memory = _Memory(place) if remembered else None
    found, done = [], 0
    at_once = 1 if isinstance(place, Tar) else AT_ONCE
    with ThreadPoolExecutor(at_once) as pool:
        for path, what in zip(files, pool.map(lambda p: _damage(place, p, files[p], memory), files), strict=True):
            done += 1
            notify(done, len(files))
            if what:
                found.append(Damage(path=path, what=what))
    if memory:
        memory.save()
    return found


def _damage(place: Place, path: str, want: Stored, memory: _Memory | None) -> str:
    try:
        stamp = place.stamp(path)
        if memory and memory.knows(path, want, stamp):
            return ""
        digest, size = hashlib.sha256(), 0
        with place.open(path) as file:
            while size <= want.size and (piece := file.read(min(PIECE, want.size + 1 - size))):
                digest.update(piece)
                size += len(piece)
    except FileNotFoundError:
        return "it is not there"
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, HTTPException, tarfile.TarError) as error:
        return str(error) or type(error).__name__
    if size != want.size:
        return f"it has {'more' if size > want.size else size} bytes in place of {want.size}"
    if digest.hexdigest() != want.sha256:
        return f"its SHA-256 is {digest.hexdigest()}"
    if memory:
        memory.learn(path, want, stamp)
    return ""


class _Memory:
    """Which files of a place were whole, each with what would change if it did."""

    def __init__(self, place: Place) -> None:
        name = hashlib.sha256(place.name.encode()).hexdigest()[:16]
        self._file = state_dir() / f"bundle-{name}.json"
        self._known: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            plain: Any = json.loads(self._file.read_text())
            self._known = {str(k): str(v) for k, v in plain.items()}

    def knows(self, path: str, want: Stored, stamp: str) -> bool:
        return bool(stamp) and self._known.get(path) == f"{want.sha256} {stamp}"

    def learn(self, path: str, want: Stored, stamp: str) -> None:
        if stamp:
            self._known[path] = f"{want.sha256} {stamp}"

    def save(self) -> None:
        write_private(self._file, json.dumps(self._known))


def target_files(manifest: Manifest, folder: str) -> dict[str, Stored]:
    """The files of one target's repositories."""
    return {path: stored for path, stored in manifest.files.items() if path.startswith(f"repos/{folder}/")}


def unknown_files(place: Place, manifest: Manifest) -> list[str]:
    """Files that the manifest does not name, where they can be listed."""
    known = {*manifest.files, MANIFEST, SIGNATURE, "sources.yml"}
    return sorted(path for path in place.files() if path not in known)


def inconsistencies(manifest: Manifest) -> Iterator[str]:
    """What the manifest says of packages that its files do not have."""
    for target, part in manifest.targets.items():
        for name, packages in part.repositories.items():
            for package in packages:
                if manifest.files.get(package.file) != Stored(sha256=package.sha256, size=package.size):
                    yield f"{target}: {name} has {package.name} {package.version} in no file of the bundle"


def refuse_damaged(place: Place, found: list[Damage]) -> None:
    """Raises GpunodeError that names the first files."""
    if found:
        some = "; ".join(f"{one.path}: {one.what}" for one in found[:3]) + (" …" if len(found) > 3 else "")
        raise GpunodeError(
            f"the bundle at {place.name} is not whole; files damaged or missing: {len(found)}: {some}",
            expected="every file as its manifest says",
            fix="copy the bundle again, or make it again (what was fetched is kept): gpunode bundle create",
        )
