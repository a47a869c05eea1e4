"""A bundle brought to a host by SFTP: what is there already stays, and all of it is compared there afterwards."""

from __future__ import annotations

import contextlib
import posixpath
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpunode.core.bundle.manifest import MANIFEST, SIGNATURE, SUMS, Manifest
from gpunode.core.errors import GpunodeError, InputError
from gpunode.edge.shell import parse_host
from gpunode.edge.ssh import connect


def parse_destination(text: str) -> tuple[str, str]:
    """[user@]host:/folder → host and folder.  Raises InputError."""
    host, colon, folder = text.rpartition(":")
    if not colon or not host or not folder.startswith("/"):
        raise InputError(f"destination {text!r}", expected="[user@]host:/folder", fix="the folder begins with a slash")
    return host, folder.rstrip("/")


def push(
    folder: Path, manifest: Manifest, destination: str, *, accept_new: bool, told: Callable[[int, int], None]
) -> int:
    """Copy the bundle, and have the host compare all of it; gives back how many files were copied.

    A copy that broke off goes on with the files that are missing.  Raises GpunodeError, UnreachableError.
    """
    host, target = parse_destination(destination)
    paths = [*sorted(manifest.files), SIGNATURE, MANIFEST]  # the manifest last: without it, it is no bundle
    with connect(parse_host(host), accept_new=accept_new) as connection:
        sftp = connection.transport.open_sftp_client()
        if sftp is None:
            raise GpunodeError(
                f"{host} offers no SFTP", fix="copy the folder by other means: every file is in SHA256SUMS"
            )
        with contextlib.closing(sftp):
            made: set[str] = set()
            copied = 0
            for at, path in enumerate(paths, 1):
                copied += _copy(sftp, folder / path, f"{target}/{path}", made)
                told(at, len(paths))
        rc, _, said = connection.run(
            f"cd {shlex.quote(target)} && sha256sum --check --quiet {SUMS} >&2\n", timeout=3600
        )
    if rc:
        raise GpunodeError(
            f"{destination}: {said.strip().splitlines()[0] if said.strip() else 'the copy is not whole'}",
            expected=f"every file as {SUMS} says",
            fix="remove that file there, and push again",
        )
    return copied


def _copy(sftp: Any, source: Path, target: str, made: set[str]) -> int:
    with contextlib.suppress(OSError):
        found = sftp.stat(target)
        if stat.S_ISREG(found.st_mode) and found.st_size == source.stat().st_size:
            return 0
    _make(sftp, posixpath.dirname(target), made)
    part = f"{target}.part"
    sftp.put(str(source), part)
    sftp.chmod(part, 0o644)
    sftp.posix_rename(part, target)
    return 1


def _make(sftp: Any, folder: str, made: set[str]) -> None:
    if folder in made or folder == "/":
        return
    _make(sftp, posixpath.dirname(folder), made)
    with contextlib.suppress(OSError):
        sftp.mkdir(folder, 0o755)
    made.add(folder)
