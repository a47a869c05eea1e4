"""NVIDIA's installers on the machine that runs gpunode: given ones, and downloads for nodes that have no downloader."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.late import regex
from gpunode.core.mask import mask
from gpunode.core.model import Problem
from gpunode.edge.bundle.store import PIECE, sha256_of
from gpunode.edge.state import cache_path

_PAGE = regex(rb"\s*<(!doctype|html|\?xml)", re.IGNORECASE)
_FIX = "correct its URL, path or sha256 in gpunode.yml; nothing was changed"


def check_given(path: str, sha256: str) -> Problem | None:
    """What is wrong with the installer that the spec names on this machine; None when it is the one."""
    try:
        _compare(_given(path), sha256, path)
    except GpunodeError as error:
        return Problem(what=str(error), fix=error.fix)
    return None


def runfile_here(value: Mapping[str, Any]) -> Path:
    """The installer of a step's value (core.items.runfile.runfile_value), its checksum compared.

    What has URLs is downloaded, and kept below ~/.cache/gpunode.  Raises GpunodeError.
    """
    if value.get("path"):
        file = _given(value["path"])
        _compare(file, value["sha256"], value["path"])
        return file
    cache = cache_path("runfile")
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    proxy, stated = value.get("proxy", ""), []
    for url in value.get("urls", ()):
        try:
            return _kept(cache / value["name"], url, value.get("sha256") or _published(url, proxy), proxy)
        except (OSError, ValueError) as error:
            stated.append(mask(f"{url}: {error}"))
    raise GpunodeError(
        f"{value['name']} cannot be fetched: {'; '.join(stated) or 'it has no URL'}",
        fix="check its URL, the network and the proxy; nothing was changed",
    )


def _given(path: str) -> Path:
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(f"there is no file {path}", expected="NVIDIA's installer", fix="look at runfile.path")
    return file


def _kept(file: Path, url: str, sha256: str, proxy: str) -> Path:
    if file.is_file() and sha256_of(file) == sha256:
        return file
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with _open(url, proxy) as answer, part.open("wb") as out:
            while piece := answer.read(PIECE):
                out.write(piece)
        _compare(part, sha256, url)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return file


def _published(url: str, proxy: str) -> str:
    """The checksum beside the file on the vendor's server, «HASH  NAME»; its certificate is all that proves it."""
    if not url.startswith("https:"):
        raise ValueError("no checksum over http: set sha256 of the runfile in gpunode.yml")
    with _open(f"{url}.sha256sum", proxy) as answer:
        match = re.match(rb"[0-9a-f]{64}\b", answer.read(4096))
    if not match:
        raise ValueError(f"{url}.sha256sum holds no checksum")
    return match[0].decode()


def _open(url: str, proxy: str) -> Any:
    handler = urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
    try:
        return urllib.request.build_opener(handler, _StaysEncrypted()).open(url, timeout=60)
    except urllib.error.HTTPError as error:
        raise OSError(f"HTTP {error.code} {error.reason}") from error


class _StaysEncrypted(urllib.request.HTTPRedirectHandler):
    """Follows no redirect from https to another scheme."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise OSError("its server redirects from https to an unencrypted address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _compare(file: Path, sha256: str, origin: str) -> None:
    """Raise RefusedError where the file is not the one."""
    with file.open("rb") as opened:
        page = _PAGE.match(opened.read(200))
    if page:
        raise RefusedError(f"{origin} is a web page, not an installer", fix=_FIX)
    found = sha256_of(file)
    if found != sha256:
        raise RefusedError(f"{origin} has the SHA-256 {found}", expected=sha256, fix=_FIX)
