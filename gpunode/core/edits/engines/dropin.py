"""What the engines share whose settings are TOML files laid over each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gpunode.core.edits.target import Refusal
from gpunode.core.edits.text import toml

BOM = b"\xef\xbb\xbf"  # BurntSushi/toml, which CRI-O and podman read with, skips it


def load(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Text and plain values of a file, a byte order mark left out; InputError carries path:line:column."""
    return toml.parse(path, data.removeprefix(BOM))


def encode(text: str, before: bytes) -> bytes:
    """The bytes of a text, with the byte order mark that the file had."""
    return (BOM if before.startswith(BOM) else b"") + text.encode()


def table(value: Any, name: str, engine: str) -> dict[str, Any]:
    """A table, {} when it is not there; Refusal for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refusal(f"{name} is no table", f"make it a table: {engine} expects one there")
    return value


def spelled_as_known(found: Iterable[str], name: str, keys: Collection[str]) -> None:
    """Refuse another spelling of known keys, such as Default_Runtime, which decoders take for the same."""
    for key in found:
        if key not in keys and key.lower() in keys:
            raise Refusal(f"{name} has the key {key}", f"write it as {key.lower()}")


def home(having: Sequence[str], root: str, drop_in: str, *, in_place: bool) -> str:
    """Of files that have a setting, in the order read, the one to set it in: the drop-in, or a later one that has the
    last word; in place the last, or the root.
    """
    later = (path for path in having[::-1] if in_place or (path != root and path.split("/") > drop_in.split("/")))
    return next(later, root if in_place else drop_in)


def empty(path: str, text: str) -> bool:
    """Whether a file says nothing, not even in a comment; headers of empty tables do not count."""
    return not _filled(toml.parse(path, text.encode())[1]) and "#" not in text


def _filled(doc: Mapping[str, Any]) -> bool:
    return any(_filled(value) if isinstance(value, dict) else True for value in doc.values())
