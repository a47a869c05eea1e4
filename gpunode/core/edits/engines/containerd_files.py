"""Which of containerd's files are in force, and what they say together, as each of its generations loads them.

1.x        the plugin tables of a later file replace those of an earlier one; all are read in the last version named.
2.0-2.2    tables are merged key by key, and what stands there is migrated as a whole, from the last version named.
           A file of version 1 gets its plugins renamed and counts as version 3 at once: its CRI settings are lost.
2.3 on     each file is migrated by itself, then merged; no file may have a version above the root's.
Sources: containerd services/server/config/config.go (1.6.39, 1.7.34), cmd/containerd/server/config/config.go (2.0.11 to
2.4.0-beta.0) and plugins/cri/runtime/plugin.go; compared with `config dump` in tests/unit/test_containerd_daemons.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpunode.core.edits.engines.containerd_file import (
    CONFIG,
    GRPC,
    IMAGES,
    NAMES,
    RUNTIME,
    V1,
    File,
    drop_in_path,
    read,
    renamed,
    resolve,
)
from gpunode.core.edits.request import Refusal, RuntimeRequest
from gpunode.core.edits.text import toml
from gpunode.core.numbers import release

_PARTS = {GRPC, RUNTIME, IMAGES}  # plugins without which containerd 2 has no CRI


@dataclass(frozen=True)
class Config:
    """All files in force, in the order in which containerd reads them, and what they say together.

    `daemon` is containerd's major and minor, the oldest one that reads the files where it is unknown.  `version` is
    the one in which the plugins' tables are read at last.  `cri` are the runtime settings of the CRI plugin in force,
    without the built-in ones.
    """

    files: tuple[File, ...]
    daemon: tuple[int, int]
    version: int
    plugins: Mapping[str, Any]
    cri: dict[str, Any]

    @property
    def root(self) -> File:
        return self.files[0]

    @property
    def merges(self) -> bool:
        """Whether tables of several files are merged key by key."""
        return self.daemon >= (2, 0)

    @property
    def migrates_each(self) -> bool:
        return self.daemon >= (2, 3)

    def file(self, path: str) -> File | None:
        return next((file for file in self.files if file.path == path), None)

    @property
    def without_cri(self) -> File | None:
        """A file that disables the CRI plugin, None when it is on."""
        names = _PARTS if self.merges else {V1 if self.version == 1 else GRPC}
        for file in self.files:
            disabled = file.names("disabled_plugins")
            if self.merges and file.version < 2:
                disabled = [renamed(name) for name in disabled]
            if names & set(disabled):
                return file
        return None

    @property
    def unseen(self) -> list[File]:
        """Files of an older version, with settings for the CRI plugin, that 2.0 to 2.2 read as version 3."""
        if not self.merges or self.migrates_each or self.version < 3:
            return []
        return [file for file in self.files if file.version < 3 and GRPC in file.renamed]

    def plugin(self, file: File, key: str) -> str:
        """The name under which `file` has to say `key` (containerd.runtimes, enable_cdi …) so that it counts."""
        if not self.merges:
            return V1 if self.version == 1 else GRPC
        tables = file.plugins if self.migrates_each else self.plugins
        if (self.version > 2 and not self.migrates_each) or file.version > 3 or _has(tables, RUNTIME, key):
            return RUNTIME
        if not self.migrates_each and key.startswith("containerd.") and _sleeping(tables.get(GRPC, {})):
            return RUNTIME
        old = V1 if file.version < 2 and V1 in file.plugins else GRPC
        if self.migrates_each and file.version != 2 and not _has(tables, old, key):
            return V1 if old == V1 and file.version < 2 else RUNTIME
        return old

    def view(self) -> dict[str, Any]:
        """What has to stay as it is, but for what is meant."""
        top: dict[str, Any] = {}
        for file in self.files:
            said = {key: value for key, value in file.content.doc.items() if key not in _NOT_COMPARED}
            top = merged(top, said)
        version = 0 if self.migrates_each else self.version
        disabled = sorted({name for file in self.files for name in file.names("disabled_plugins")})
        return {"version": version, "disabled": disabled, "cri": self.cri, "plugins": self.plugins, "top": top}


_OF_IMAGES = {"snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers"}
_NOT_COMPARED = {"version", "imports", "plugins", "disabled_plugins"}


def _sleeping(cri: Mapping[str, Any]) -> bool:
    """Whether the old plugin's table has settings of images that 2.0 to 2.2 pass over until it has runtimes too.

    Source: migrateConfig of plugins/cri/images/plugin.go.  So a runtime written there would change them.
    """
    containerd = cri.get("containerd", {})
    return "runtimes" not in containerd and bool(_OF_IMAGES & {*containerd})


def _has(plugins: Mapping[str, Any], name: str, key: str) -> bool:
    table: Any = plugins.get(name, {})
    for part in key.split("."):
        if part not in table:
            return False
        table = table[part]
    return True


# ---------------------------------------------------------------- which files


def in_force(files: Mapping[str, bytes], request: RuntimeRequest, *, mend: bool = False) -> Config:
    """What is in force, of a root that is missing or says nothing too: such a one gets a version.

    Raises Refusal where containerd does not start.  To `fix` it, a drop-in of ours that keeps it from starting counts
    as not there, and may be missing.
    """
    path, drop_in = request.config or CONFIG, drop_in_path(request)
    root = read(path, files.get(path, b""), request)
    if not root.content.doc:
        version = 3 if release(request.version) >= (2, 0) else 2
        root = File(path, root.content.edit({("version",): version}), version)
    try:
        return load(files, request, {path: root}, absent=drop_in if mend else "")
    except Refusal:
        without = {path: data for path, data in files.items() if path != drop_in}
        if not mend or release(request.version) < (2, 0) or drop_in not in files:
            raise
        return load(without, request, {path: root}, absent=drop_in)


def load(files: Mapping[str, bytes], request: RuntimeRequest, known: Mapping[str, File], *, absent: str = "") -> Config:
    """The root and what it imports.  Refusal where containerd would not start.

    `known` are files that were read already, or that are to be written; the file `absent` may be missing.
    """
    found: dict[str, File] = {}
    pending = [request.config or CONFIG]
    there = {**files, **known}
    while pending:
        path = pending.pop(0)
        if path in found:
            continue
        found[path] = known[path] if path in known else read(path, files[path], request)
        for item in found[path].imports:
            named = resolve(item, there)
            if not named and "*" not in item and item != absent:
                raise Refusal(
                    f"{path} imports {item}, which is not there: containerd does not start",
                    f"create {item}, or take it out of imports",
                )
            pending += named
    return together(tuple(found.values()), request)


# ---------------------------------------------------------------- what they say together


def together(files: tuple[File, ...], request: RuntimeRequest) -> Config:
    """What the files say, as the daemon of the request reads them."""
    named = [file.version for file in files if file.version]
    daemon = release(request.version)
    if daemon == (0, 0):
        daemon = (2, 0) if named and max(named) == 3 else (2, 3) if named and max(named) == 4 else (1, 0)
    _check_versions(files, daemon, request)
    if daemon < (2, 0):
        config = _replaced(files, daemon, named[-1] if named else 1)
    elif daemon < (2, 3):
        config = _migrated_once(files, daemon)
    else:
        config = _migrated_each(files, daemon)
    _check_names(config)
    return config


def _check_versions(files: tuple[File, ...], daemon: tuple[int, int], request: RuntimeRequest) -> None:
    """Raise Refusal for a version above the daemon's: the last one named counts, from 2.3 on the root's."""
    named = [file for file in files if file.version]
    number = release(request.version)
    highest = 4 if number == (0, 0) or number >= (2, 3) else 3 if number >= (2, 0) else 2
    counts = named[:1] if daemon >= (2, 3) else named[-1:]
    if (2, 0) <= daemon < (2, 3):  # a file without a version is migrated to that of the one before
        counts += [one for one, after in pairwise(files) if after.version < 2]
    for file in counts:
        if file.version > highest:
            daemon_name = f"containerd {request.version}".strip()
            raise Refusal(
                f"{file.path} is config version {file.version}; {daemon_name} knows versions up to {highest}",
                "write the file in a version that this containerd reads, or install a newer containerd",
            )


def _replaced(files: tuple[File, ...], daemon: tuple[int, int], version: int) -> Config:
    plugins: dict[str, Any] = {}
    for file in files:
        plugins |= file.plugins
    return Config(files, daemon, version, plugins, plugins.get(V1 if version == 1 else GRPC, {}))


def _migrated_once(files: tuple[File, ...], daemon: tuple[int, int]) -> Config:
    plugins: dict[str, Any] = {}
    version = 3
    for file in files:
        plugins = merged(plugins, file.renamed)
        version = file.version if file.version > 1 else version
    return Config(files, daemon, version, plugins, _migrated(plugins) if version < 3 else plugins.get(RUNTIME, {}))


def _migrated_each(files: tuple[File, ...], daemon: tuple[int, int]) -> Config:
    plugins: dict[str, Any] = {}
    cri: dict[str, Any] = {}
    highest, first = 0, files[0]
    for file in files:
        if not highest:
            highest, first = file.version, file
        if file.version > highest:
            raise Refusal(
                f"{file.path} is config version {file.version}, {first.path} is {highest}: containerd does not start "
                "when an imported file has the higher one",
                f"write {file.path} in version {highest}",
            )
        plugins = merged(plugins, file.renamed)
        cri = merged(cri, _migrated(file.renamed) if file.version < 4 else file.plugins.get(RUNTIME, {}))
    return Config(files, daemon, highest or 1, plugins, cri)


def _migrated(plugins: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime settings out of the old plugin's table and the new one's: the new one has the say, key by key."""
    old, new = plugins.get(GRPC, {}), plugins.get(RUNTIME, {})
    both = {**old, **new}
    if "containerd" in both:
        both["containerd"] = {**old.get("containerd", {}), **new.get("containerd", {})}
    return both


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables key by key; everything else, false and empty lists too, from above."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _check_names(config: Config) -> None:
    """Raise Refusal for plugin names that keep containerd from starting."""
    for file in config.files:
        listed = [(key, name) for key in ("disabled_plugins", "required_plugins") for name in file.names(key)]
        if not config.merges and config.version == 2:
            listed += [("plugins", name) for name in file.plugins]
            wrong = [(key, name) for key, name in listed if name.count(".") < 3]
        elif config.merges and file.version > 1:
            wrong = [(key, name) for key, name in listed if "." not in name]
        else:
            continue
        if wrong:
            key, name = wrong[0]
            raise Refusal(
                f"{file.path}: {key} names {name!r} in a config of version {config.version}: containerd does not start",
                f"write the full name, such as {GRPC}",
            )


def differences(before: Any, after: Any, at: toml.Path = ()) -> Iterator[toml.Path]:
    """The paths of the settings that differ; None stands for what is not there."""
    if before == after:
        return
    sides = [{} if side is None else side for side in (before, after)]
    if sides[0] == sides[1] or not all(isinstance(side, dict) for side in sides):  # an empty table is not nothing
        yield at
        return
    for key in {**sides[0], **sides[1]}:
        yield from differences(sides[0].get(key), sides[1].get(key), (*at, key))


def unmeant(before: Config, after: Config, paths: Collection[toml.Path]) -> toml.Path | None:
    """A setting that differs though no path below the CRI plugin's table leads to it, None when there is none."""
    tables = [("cri",), *(("plugins", name) for name in NAMES)]
    meant = [(*table, *path) for path in paths for table in tables]
    found = differences(before.view(), after.view())
    return next((at for at in found if not any(at[: len(one)] == one for one in meant)), None)


def dumped(paths: Collection[toml.Path], *, off: bool) -> tuple[str, ...]:
    """The settings of `config dump` that may differ, under each name that a containerd gives the CRI plugin.

    Of a runtime that is its whole table, but for runc: a daemon fills in what it does not say.  Of a plugin that is
    `off`, or was, daemons dump nothing, or the tables as they stand in the files.
    """
    meant = ["imports"]
    for path in paths:
        short = path[:3] if path[:2] == ("containerd", "runtimes") and path[2] != "runc" else path
        meant += [".".join(("plugins", name, *short)) for name in NAMES]
    if off:
        meant += ["disabled_plugins", *(f"plugins.{name}" for name in (*NAMES, IMAGES))]
    return tuple(dict.fromkeys(meant))
