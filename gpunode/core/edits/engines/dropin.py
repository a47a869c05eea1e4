"""What the engines share whose settings are TOML files laid over each other."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gpunode.core.edits.target import Refusal
from gpunode.core.edits.text import toml
from gpunode.core.late import dataclass


def load(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Text and plain values of a file, without the mark that BurntSushi/toml skips; InputError has path:line:column."""
    return toml.parse(path, data.removeprefix(BOM_UTF8))


def encode(text: str, before: bytes) -> bytes:
    """The bytes of a text, with the byte order mark that the file had."""
    return (BOM_UTF8 if before.startswith(BOM_UTF8) else b"") + text.encode()


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


@dataclass(frozen=True)
class Layer:
    """One file as it is read: the engine's own table, with its runtimes apart."""

    path: str
    text: str
    section: dict[str, Any]
    runtimes: dict[str, Any]

    def says(self, key: toml.Path) -> bool:
        """Whether it has a setting of the engine's table."""
        return key[-1] in (self.runtimes if key[0] == "runtimes" else self.section)


def _home(layers: Sequence[Layer], key: toml.Path, root: str, drop_in: str, in_place: bool) -> str:
    """The file for a setting: the drop-in, or a later one that has the last word; in place the last, or the root."""
    having = [layer.path for layer in reversed(layers) if layer.says(key)]
    later = (path for path in having if in_place or (path != root and path.split("/") > drop_in.split("/")))
    return next(later, root if in_place else drop_in)


@dataclass(frozen=True)
class LayerChange:
    """What to set in the engine's table, which is `at` that path, and in which files to unset the `default` runtime."""

    at: toml.Path
    default: str
    sets: Mapping[toml.Path, Any]
    unset: Sequence[str]

    def written(
        self, files: Mapping[str, bytes], layers: Sequence[Layer], root: str, drop_in: str, *, in_place: bool
    ) -> dict[str, bytes]:
        """The files with it: in the drop-in, or in place."""
        texts = {layer.path: layer.text for layer in layers}
        for path in self.unset:
            texts[path] = toml.edit(texts[path], removes=[(*self.at, self.default)])
        for key, value in self.sets.items():
            path = _home(layers, key, root, drop_in, in_place)
            texts[path] = toml.edit(texts.get(path, ""), {(*self.at, *key): value})
        return {path: encode(text, files.get(path, b"")) for path, text in texts.items() if text or path in files}

    @property
    def words(self) -> list[str]:
        """It, as a reader is to know it."""
        stated = [f"sets {'.'.join(key)} = {toml.literal(value)}" for key, value in self.sets.items()]
        return [*stated, *(f"unsets {self.default} in {path}" for path in self.unset)]

    @property
    def meant(self) -> tuple[str, ...]:
        """The settings, with dots, that may differ."""
        keys = [*self.sets, *[(self.default,)] * bool(self.unset)]
        return tuple(dict.fromkeys(".".join((*self.at, *key)) for key in keys))


def empty(path: str, text: str) -> bool:
    """Whether a file says nothing, not even in a comment; headers of empty tables do not count."""
    return not _filled(toml.parse(path, text.encode())[1]) and "#" not in text


def _filled(doc: Mapping[str, Any]) -> bool:
    return any(_filled(value) if isinstance(value, dict) else True for value in doc.values())
