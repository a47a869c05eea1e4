"""Packed lists of repositories, unpacked in pieces up to the size that they may have: 6 MB of gzip can be 6 GB."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BufferedIOBase, BytesIO
from pathlib import PurePosixPath

from gpunode.core.errors import GpunodeError
from gpunode.core.untrusted import SIZE
from gpunode.edge.bundle.store import PIECE

_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ": ".xz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}
_OPEN: Mapping[str, Callable[[BytesIO], BufferedIOBase]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
ENDINGS = (".xz", ".gz", ".zst", ".bz2", "")  # of a list, the best one first


def ending_of(data: bytes) -> str:
    """By which program the data is packed, as the ending of a file's name; "" for none."""
    return next((ending for magic, ending in _MAGIC.items() if data.startswith(magic)), "")


def list_text(packed: bytes | None, where: str, sha256: str, size: int | None, named_by: str) -> str:
    """A list of a repository, unpacked by the ending of its name, which is the one that `named_by` names.

    Raises GpunodeError.
    """
    if packed is None or hashlib.sha256(packed).hexdigest() != sha256:
        raise GpunodeError(
            f"{where} is not the one that {named_by} names",
            fix="the mirror is being updated, or its files were changed: run it again, or use another mirror",
        )
    return unpacked(packed, PurePosixPath(where).suffix, where, size).decode("utf-8", "replace")


def unpacked(data: bytes, ending: str, where: str, size: int | None = None) -> bytes:
    """The data unpacked, by the ending of its file's name; `size` is what a signed list says that it has then.

    Raises GpunodeError where it is longer than that, or than SIZE, or broken.
    """
    limit = SIZE if size is None else min(size, SIZE)
    found = bytearray()
    try:
        for piece in _pieces(data, ending):
            found += piece
            if len(found) > limit:
                raise GpunodeError(
                    f"{where} is longer than {limit} bytes when it is unpacked",
                    expected="the size that its repository declares" if size == limit else f"at most {SIZE} bytes",
                    fix="use another mirror: a list of packages is never that long",
                )
    except (OSError, ValueError, EOFError, zlib.error, lzma.LZMAError, subprocess.SubprocessError) as error:
        raise GpunodeError(f"{where} cannot be unpacked: {error}", fix="try again, or use another mirror") from error
    return bytes(found)


def _pieces(data: bytes, ending: str) -> Iterator[bytes]:
    if ending == ".zst":
        yield from _zstd(data)
    elif ending not in _OPEN:
        yield data
    elif data:
        with _OPEN[ending](BytesIO(data)) as file:
            while piece := file.read(PIECE):
                yield piece


def _zstd(data: bytes) -> Iterator[bytes]:
    with tempfile.TemporaryFile() as packed:
        packed.write(data)
        packed.seek(0)
        try:
            ran = subprocess.Popen(["zstd", "-dcq"], stdin=packed, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except OSError as error:
            raise GpunodeError(f"zstd cannot be run: {error}", fix="install zstd on this machine") from error
        assert ran.stdout is not None and ran.stderr is not None
        try:
            while piece := ran.stdout.read(PIECE):
                yield piece
            if ran.wait():
                raise EOFError(ran.stderr.read(400).decode(errors="replace").strip())
        finally:
            ran.kill()
            ran.stdout.close()
            ran.stderr.close()
            ran.wait()
