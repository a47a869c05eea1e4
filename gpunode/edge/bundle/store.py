"""Downloads, kept by their content: each once, resumed where they broke off, compared before they are used."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from http.client import HTTPException
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError
from gpunode.core.late import dataclass

PIECE = 1 << 20
TRIES = 5
AT_ONCE = 6
TIMEOUT = 60  # seconds without a byte
MOST_METADATA = 1 << 29  # bytes of one list of packages


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One file to fetch."""

    url: str
    sha256: str
    size: int


class Challenge(GpunodeError):
    """A server wants to know who asks (401); `header` says how."""

    def __init__(self, url: str, header: str) -> None:
        super().__init__(f"{url}: the server asks for a name and a password", fix="use a mirror that is open to all")
        self.header = header


class Web:
    """HTTP(S), FTP and file addresses, through a proxy where there is one."""

    def __init__(self, proxy: str = "", *, tries: int = TRIES, timeout: float = TIMEOUT) -> None:
        self._tries, self._timeout = tries, timeout
        proxies = {"http": proxy, "https": proxy} if proxy else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def open(self, url: str, *, start: int = 0, method: str = "GET", headers: Mapping[str, str] = {}) -> Any:
        """The answer, from byte `start` on where the server does that (its status is 206 then).

        `headers` go to this server, not to one that it sends us to.
        """
        request = urllib.request.Request(url, method=method)  # noqa: S310 - the user's own addresses
        if start:
            request.add_header("Range", f"bytes={start}-")
        for name, value in headers.items():
            request.add_unredirected_header(name, value)
        return self._opener.open(request, timeout=self._timeout)

    def read(self, url: str, *, headers: Mapping[str, str] = {}) -> bytes | None:
        """A whole file of metadata; None where the server has none.  Raises GpunodeError, Challenge where it asks."""
        for wait in (*range(self._tries - 1), None):
            try:
                with self.open(url, headers=headers) as answer:
                    data: bytes = answer.read(MOST_METADATA)
                    return data
            except urllib.error.HTTPError as error:
                if error.code in (403, 404, 410):
                    return None
                if error.code == 401:
                    raise Challenge(url, error.headers.get("WWW-Authenticate", "")) from error
                why: Exception = error
            except (OSError, HTTPException, ValueError) as error:
                if isinstance(getattr(error, "reason", None), FileNotFoundError):
                    return None
                why = error
            if wait is not None:
                time.sleep(wait)
        raise GpunodeError(f"cannot fetch {url}: {why}", fix="look at the network and the proxy; what is there is kept")


class Store:
    """A folder of files by their SHA-256; half ones have `.part` behind."""

    def __init__(self, folder: Path, web: Web) -> None:
        self.folder, self.web = folder, web
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def fetch_all(self, wanted: Sequence[Wanted], on_progress: Callable[[int, int, int, int], None]) -> None:
        """Fetch what is not there yet, some side by side.  `on_progress(files, of, bytes, of)` hears of progress.

        Raises GpunodeError for the first file that cannot be had; what was fetched stays for the next time.
        """
        once = {one.sha256: one for one in wanted}
        total = sum(one.size for one in once.values())
        there: dict[str, int] = {}  # SHA-256 → bytes
        lock = threading.Lock()

        def came(one: Wanted, size: int) -> None:
            with lock:
                there[one.sha256] = size
                whole = sum(size == once[sha256].size for sha256, size in there.items())
                on_progress(whole, len(once), sum(there.values()), total)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                for future in as_completed([pool.submit(self.fetch, one, came) for one in once.values()]):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def fetch(self, one: Wanted, came: Callable[[Wanted, int], None]) -> Path:
        """The file in the store, whole and compared; `came` hears how many bytes of it are there."""
        path = self.path(one.sha256)
        if path.is_file() and path.stat().st_size == one.size and sha256_of(path) == one.sha256:
            came(one, one.size)
            return path
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        for wait in (*range(TRIES - 1), None):
            try:
                self._more(one, part, came)
                break
            except (OSError, HTTPException, ValueError) as error:
                gone = isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404, 410)
                if wait is None or gone:
                    raise GpunodeError(
                        f"cannot fetch {one.url}: {error}", fix="run it again: it continues where it stopped"
                    ) from error
                time.sleep(wait)
        if (found := sha256_of(part)) != one.sha256:
            part.unlink()
            raise GpunodeError(
                f"{one.url} has the SHA-256 {found}",
                expected=f"{one.sha256}, as the signed metadata says",
                fix="the server holds another file than its lists: use another mirror, or wait until it is in step",
            )
        part.replace(path)
        return path

    def _more(self, one: Wanted, part: Path, came: Callable[[Wanted, int], None]) -> None:
        """The rest of a file that is half there; the whole one where the server does not do that."""
        start = part.stat().st_size if part.exists() else 0
        if start >= one.size:
            if start == one.size:
                return
            part.unlink()
            start = 0
        with self.web.open(one.url, start=start) as answer:
            mode = "ab" if start and getattr(answer, "status", 200) == 206 else "wb"
            with part.open(mode) as out:
                while piece := answer.read(PIECE):
                    out.write(piece)
                    came(one, out.tell())
        if part.stat().st_size < one.size:
            raise OSError(f"it ended after {part.stat().st_size} of {one.size} bytes")


def progress(verb: str, files: int, of: int, done: int, total: int) -> str:
    """fetched 3 of 120 files, 40 of 8000 MiB"""
    return f"{verb} {files} of {of} files, {done >> 20} of {total >> 20} MiB"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def place(source: Path, target: Path) -> None:
    """The file at another place: the same bytes on the disk where both are on one file system, else a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    target.chmod(0o644)
