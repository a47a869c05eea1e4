"""One of containerd's config files: what it says, its shape, and what its imports mean."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpunode.core.content import place
from gpunode.core.edits.engines.dropin import BOM
from gpunode.core.edits.request import Refusal, RuntimeRequest
from gpunode.core.edits.text import toml
from gpunode.core.numbers import release, whole

CONFIG = "/etc/containerd/config.toml"
V1, GRPC, RUNTIME = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
NAMES = (V1, GRPC, RUNTIME)  # of the plugin that holds the runtimes: version 1, 2, 3 and later
IMAGES = "io.containerd.cri.v1.images"
_LITERAL = re.compile(r"'[^'\n]*'")
_TABLE, _TEXT, _LIST, _BOOL = "a table", "a string", "an array of strings", "true or false"


@dataclass(frozen=True)
class File:
    """One config file as it is read; `version` is 0 where it names none."""

    path: str
    content: toml.Document
    version: int

    @property
    def plugins(self) -> dict[str, Any]:
        found: dict[str, Any] = self.content.doc.get("plugins", {})
        return found

    @cached_property
    def renamed(self) -> dict[str, Any]:
        """The plugins' tables as containerd 2 calls them."""
        if self.version > 1:
            return self.plugins
        return {renamed(name): table for name, table in self.plugins.items()}

    def names(self, key: str) -> list[str]:
        """The plugins that a list such as disabled_plugins names."""
        return list(self.content.doc.get(key, []))

    @property
    def imports(self) -> list[str]:
        """Absolute paths and globs, as containerd resolves them."""
        items = self.content.doc.get("imports", [])
        return [posixpath.normpath(posixpath.join(posixpath.dirname(self.path), item)) for item in items]


def renamed(name: str) -> str:
    """What containerd 2 calls a plugin of a version 1 file, as far as it concerns us."""
    return GRPC if name == V1 else name


def drop_in_path(request: RuntimeRequest) -> str:
    """Our own file: conf.d/99-nvidia.toml beside the root."""
    return request.drop_in or posixpath.join(posixpath.dirname(request.config or CONFIG), "conf.d/99-nvidia.toml")


def settings(doc: Mapping[str, Any], at: toml.Path = ()) -> Iterator[toml.Path]:
    """The paths of all values that are no tables."""
    for key, value in doc.items():
        if isinstance(value, dict):
            yield from settings(value, (*at, key))
        else:
            yield (*at, key)


# ---------------------------------------------------------------- reading


def parse(path: str, data: bytes, request: RuntimeRequest) -> toml.Document:
    """The file as TOML; InputError says where it is none."""
    if release(request.version) < (2, 0):
        data = data.removeprefix(BOM)  # containerd 1.x skips it, 2.x refuses it
    return toml.load(path, data)


def read(path: str, data: bytes, request: RuntimeRequest) -> File:
    """One file, its shape checked as far as this package looks into it."""
    content = parse(path, data, request)
    version = content.doc.get("version", 0)
    if type(version) is not int or version < 0:
        where = f"{path}:{_place(content, ('version',))}"
        raise Refusal(f"{where}: version is {version!r}, not the number of a config version", "write version = 2")
    file = File(path, content, version)
    _check_escapes(file, request)
    _check_shape(file)
    _check_globs(file, request)
    return file


def _check_escapes(file: File, request: RuntimeRequest) -> None:
    """Refuse keys with an escape on the way to the runtimes below 2.0: its TOML library takes them as they are spelled.

    Source: go-toml v1 keysparsing.go, which containerd 1.x reads with; tried with containerd 1.6.20.
    """
    text = file.content.text
    if "\\" not in text or release(request.version) >= (2, 0):
        return
    for at, key, path in file.content.places():
        if "\\" in _LITERAL.sub("", key) and (len(path) == 1 or _leads_to_runtimes(path)):
            raise Refusal(
                f"{file.path}:{place(text, at)}: the key {key} has an escape, "
                "which containerd 1.x takes as it is spelled",
                "spell it without escapes",
            )


def _leads_to_runtimes(path: toml.Path) -> bool:
    ways = ((("plugins", name, "containerd"), path) for name in NAMES)
    return any(all(a == b for a, b in zip(*way, strict=False)) for way in ways)


def _check_globs(file: File, request: RuntimeRequest) -> None:
    """Refuse what depends on the folder containerd was started in: relative globs before 1.6.29 and 1.7.16."""
    found = re.match(r"v?1\.([67])\.(\d+)", request.version)
    relative = [item for item in file.content.doc.get("imports", []) if "*" in item and not item.startswith("/")]
    if relative and found and whole(found[2]) < {"6": 29, "7": 16}[found[1]]:
        raise Refusal(
            f"{file.path} imports {relative[0]}, which containerd {request.version} looks for where it was started",
            f"write {posixpath.join(posixpath.dirname(file.path), relative[0])}",
        )


def _check_shape(file: File) -> None:
    doc = file.content.doc
    for key in ("imports", "disabled_plugins", "required_plugins"):
        _must_be(file, (key,), doc.get(key), _LIST)
    _must_be(file, ("plugins",), doc.get("plugins"), _TABLE)
    for name, table in file.plugins.items():
        _must_be(file, ("plugins", name), table, _TABLE)
    for name in NAMES:
        if name in file.plugins:
            _check_cri(file, ("plugins", name), file.plugins[name])


def _check_cri(file: File, at: toml.Path, cri: dict[str, Any]) -> None:
    _must_be(file, (*at, "enable_cdi"), cri.get("enable_cdi"), _BOOL)
    _must_be(file, (*at, "containerd"), cri.get("containerd"), _TABLE)
    at, section = (*at, "containerd"), cri.get("containerd", {})
    _must_be(file, (*at, "default_runtime_name"), section.get("default_runtime_name"), _TEXT)
    _must_be(file, (*at, "runtimes"), section.get("runtimes"), _TABLE)
    runtimes = {("runtimes", name): table for name, table in section.get("runtimes", {}).items()}
    for path, runtime in (runtimes | {("default_runtime",): section.get("default_runtime")}).items():
        _must_be(file, (*at, *path), runtime, _TABLE)
        said = runtime or {}
        _must_be(file, (*at, *path, "runtime_type"), said.get("runtime_type"), _TEXT)
        _must_be(file, (*at, *path, "options"), said.get("options"), _TABLE)
        _must_be(file, (*at, *path, "options", "SystemdCgroup"), said.get("options", {}).get("SystemdCgroup"), _BOOL)


def _must_be(file: File, path: toml.Path, value: Any, wanted: str) -> None:
    """Raise Refusal with the place in the file, where a value that is there has another shape."""
    if value is None or _is(value, wanted):
        return
    name = ".".join(path[2:] if path[0] == "plugins" and len(path) > 2 else path)
    raise Refusal(
        f"{file.path}:{_place(file.content, path)}: {name} is not {wanted}",
        f"make it {wanted}: containerd expects one there",
    )


def _place(content: toml.Document, path: toml.Path) -> str:
    """Where a setting stands, or the innermost thing around it that has a place of its own."""
    for depth in range(len(path), 0, -1):
        way = path[:depth]
        at = next((at for at, _, found in content.places() if found == way), None)
        if at is not None:
            return place(content.text, at)
    return place(content.text, 0)


def _is(value: Any, wanted: str) -> bool:
    if wanted == _LIST:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, {_TABLE: dict, _TEXT: str, _BOOL: bool}[wanted])


def resolve(item: str, files: Collection[str]) -> list[str]:
    """The files that one import means, in containerd's order."""
    if "*" not in item:
        return [item] if item in files else []
    matches = _glob(item)
    return sorted((path for path in files if matches.fullmatch(path)), key=lambda path: path.split("/"))


def _glob(pattern: str) -> re.Pattern[str]:
    """Go's filepath.Match: * and ? stop at a slash, [^…] negates, a backslash quotes."""
    tokens = re.findall(r"\\.|\[\^?(?:\\.|[^\]\\])+\]|.", pattern, re.DOTALL)
    if "[" in tokens:
        raise Refusal(f"imports has {pattern!r}, which is no pattern", "close the bracket")
    special = {"*": "[^/]*", "?": "[^/]"}
    return re.compile(
        "".join(
            special.get(t) or (t if t[0] == "[" and t[-1] == "]" else re.escape(t.removeprefix("\\"))) for t in tokens
        )
    )
