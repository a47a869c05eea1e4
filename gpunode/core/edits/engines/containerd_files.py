"""Which of containerd's files are in force, and what they say together, as each of its generations loads them.

1.x        the plugin tables of a later file replace those of an earlier one; all are read in the last version named.
2.0-2.2    tables are merged key by key, and what stands there is migrated as a whole, from the last version named.
           A file of version 1 gets its plugins renamed and counts as version 3 at once: its CRI settings are lost.
2.3 on     each file is migrated by itself, then merged; no file may have a version above the root's.
Sources: containerd services/server/config/config.go (1.6.39, 1.7.34), cmd/containerd/server/config/config.go (2.0.11 to
2.4.0-beta.0) and plugins/cri/runtime/plugin.go; compared with `config dump` in tests/unit/test_containerd_daemons.py.
"""

from __future__ import annotations

import posixpath
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

from gpunode.core.content import place
from gpunode.core.edits.engines.dropin import spelled_as_known
from gpunode.core.edits.target import Refusal, RuntimeRequest, switches_cdi
from gpunode.core.edits.text import toml
from gpunode.core.engines import ROWS
from gpunode.core.late import dataclass, field, regex, replace
from gpunode.core.numbers import whole

# ---------------------------------------------------------------- one file

CONFIG = ROWS["containerd"].config
V1, GRPC, RUNTIME = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
NAMES = (V1, GRPC, RUNTIME)  # of the plugin that holds the runtimes: version 1, 2, 3 and later
IMAGES = "io.containerd.cri.v1.images"
_LITERAL = regex(r"'[^'\n]*'")
_TABLE, _TEXT, _LIST, _BOOL = "a table", "a string", "an array of strings", "true or false"


@dataclass(frozen=True)
class ContainerdFile:
    """One config file as it is read; `version` is 0 where it names none."""

    path: str
    content: toml.TomlDocument
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


# keys of structures that are read or written here, by their small letters; what is in `runtimes` are names
_FIELDS = {
    key.lower(): key
    for key in (
        *("enable_cdi", "systemd_cgroup", "no_pivot", "containerd", "default_runtime", "default_runtime_name"),
        *("runtimes", "runtime_type", "runtime_engine", "runtime_root", "privileged_without_host_devices"),
        *("options", "BinaryName", "SystemdCgroup"),
    )
}
_TOP = {"version", "imports", "plugins", "disabled_plugins", "required_plugins"}


def _field(key: str, any_case: bool) -> str:
    """The field that a key sets, the key itself where that is none that is read here.

    containerd 2 (go-toml v2) finds fields in any case, 1.x (v1) in small letters, capitals, or with a small first one.
    """
    field = _FIELDS.get(key.lower(), key)
    return field if any_case or key in (field.lower(), field.upper(), field[:1].lower() + field[1:]) else key


def decoded(table: Mapping[str, Any], any_case: bool, *, names: bool = False) -> dict[str, Any]:
    """The CRI plugin's table with each field once, in its own spelling.

    Of several spellings containerd 1.x takes the field's own; 2.x sorts them, tables are merged, of values the last
    counts.  Tried with `config dump` of 1.6.20, 1.7.24, 2.1.9 and 2.2.1, for options by GenerateRuntimeOptions.
    """
    fields = {key: key if names else _field(key, any_case) for key in table}
    found: dict[str, Any] = dict.fromkeys(fields.values())
    for key in sorted(table, key=lambda key: (not any_case and key == fields[key], key)):
        value, below = table[key], found[fields[key]]
        if isinstance(value, dict):
            value = decoded(value, any_case, names=fields[key] == "runtimes" and not names)
            value = merged(below, value) if isinstance(below, dict) else value
        found[fields[key]] = value
    return found


def respelled(config: ContainerdConfig, path: toml.Path, any_case: bool) -> Iterator[toml.Path]:
    """The other ways in which the files spell the last key of a path that is to be set."""
    for table in (file.plugins[name] for file in config.files for name in NAMES if name in file.plugins):
        for key in toml.lookup(table, path[:-1]) or ():
            if key != path[-1] and _field(key, any_case) == path[-1] and path[:-1] != RUNTIMES:
                yield (*path[:-1], key)


# ---------------------------------------------------------------- reading


def parse(path: str, data: bytes, request: RuntimeRequest) -> toml.TomlDocument:
    """The file as TOML; InputError says where it is none."""
    if request.release < (2, 0):
        data = data.removeprefix(BOM_UTF8)  # containerd 1.x skips it, 2.x refuses it
    return toml.load(path, data)


def read(path: str, data: bytes, request: RuntimeRequest) -> ContainerdFile:
    """One file, its shape checked as far as this package looks into it."""
    content = parse(path, data, request)
    version = content.doc.get("version", 0)
    if type(version) is not int or version < 0:
        where = f"{path}:{_place(content, ('version',))}"
        raise Refusal(f"{where}: version is {version!r}, not the number of a config version", "write version = 2")
    file = ContainerdFile(path, content, version)
    spelled_as_known(content.doc, path, _TOP)
    _check_escapes(file, request)
    _check_shape(file)
    _check_globs(file, request)
    return file


def _check_escapes(file: ContainerdFile, request: RuntimeRequest) -> None:
    """Refuse keys with an escape on the way to the runtimes below 2.0: its TOML library takes them as they are spelled.

    Source: go-toml v1 keysparsing.go, which containerd 1.x reads with; tried with containerd 1.6.20.
    """
    text = file.content.text
    if "\\" not in text or request.release >= (2, 0):
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


def _check_globs(file: ContainerdFile, request: RuntimeRequest) -> None:
    """Refuse what depends on the folder containerd was started in: relative globs before 1.6.29 and 1.7.16."""
    found = re.match(r"v?1\.([67])\.(\d+)", request.version)
    relative = [item for item in file.content.doc.get("imports", []) if "*" in item and not item.startswith("/")]
    if relative and found and whole(found[2]) < {"6": 29, "7": 16}[found[1]]:
        raise Refusal(
            f"{file.path} imports {relative[0]}, which containerd {request.version} looks for where it was started",
            f"write {posixpath.join(posixpath.dirname(file.path), relative[0])}",
        )


def _check_shape(file: ContainerdFile) -> None:
    doc = file.content.doc
    for key in ("imports", "disabled_plugins", "required_plugins"):
        _must_be(file, (key,), doc.get(key), _LIST)
    _must_be(file, ("plugins",), doc.get("plugins"), _TABLE)
    for name, table in file.plugins.items():
        _must_be(file, ("plugins", name), table, _TABLE)
    for name in NAMES:
        if name in file.plugins:
            _check_cri(file, ("plugins", name), file.plugins[name])


def _check_cri(file: ContainerdFile, at: toml.Path, cri: dict[str, Any]) -> None:
    _must_be(file, (*at, "enable_cdi"), cri.get("enable_cdi"), _BOOL)
    _must_be(file, (*at, "containerd"), cri.get("containerd"), _TABLE)
    at, section = (*at, "containerd"), cri.get("containerd", {})
    _must_be(file, (*at, "default_runtime_name"), section.get("default_runtime_name"), _TEXT)
    _must_be(file, (*at, "runtimes"), section.get("runtimes"), _TABLE)
    runtimes = {("runtimes", name): table for name, table in section.get("runtimes", {}).items()}
    for path, runtime in (runtimes | {("default_runtime",): section.get("default_runtime")}).items():
        _must_be(file, (*at, *path), runtime, _TABLE)
        stated = runtime or {}
        _must_be(file, (*at, *path, "runtime_type"), stated.get("runtime_type"), _TEXT)
        _must_be(file, (*at, *path, "options"), stated.get("options"), _TABLE)
        _must_be(file, (*at, *path, "options", "SystemdCgroup"), stated.get("options", {}).get("SystemdCgroup"), _BOOL)


def _must_be(file: ContainerdFile, path: toml.Path, value: Any, wanted: str) -> None:
    """Raise Refusal with the place in the file, where a value that is there has another shape."""
    if value is None or _is(value, wanted):
        return
    name = ".".join(path[2:] if path[0] == "plugins" and len(path) > 2 else path)
    raise Refusal(
        f"{file.path}:{_place(file.content, path)}: {name} is not {wanted}",
        f"make it {wanted}: containerd expects one there",
    )


def _place(content: toml.TomlDocument, path: toml.Path) -> str:
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


# ---------------------------------------------------------------- all files together

_PARTS = {GRPC, RUNTIME, IMAGES}  # plugins without which containerd 2 has no CRI


@dataclass(frozen=True)
class ContainerdConfig:
    """All files in force, in the order in which containerd reads them, and what they say together.

    `daemon` is containerd's major and minor, the oldest one that reads the files where it is unknown.  `version` is
    the one in which the plugins' tables are read at last.  `cri` are the runtime settings of the CRI plugin in force,
    without the built-in ones.
    """

    files: tuple[ContainerdFile, ...]
    daemon: tuple[int, int]
    version: int
    plugins: Mapping[str, Any]
    cri: dict[str, Any]

    @property
    def root(self) -> ContainerdFile:
        return self.files[0]

    @property
    def merges(self) -> bool:
        """Whether tables of several files are merged key by key."""
        return self.daemon >= (2, 0)

    @property
    def migrates_each(self) -> bool:
        return self.daemon >= (2, 3)

    def file(self, path: str) -> ContainerdFile | None:
        return next((file for file in self.files if file.path == path), None)

    @property
    def without_cri(self) -> ContainerdFile | None:
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
    def unseen(self) -> list[ContainerdFile]:
        """Files of an older version, with settings for the CRI plugin, that 2.0 to 2.2 read as version 3."""
        if not self.merges or self.migrates_each or self.version < 3:
            return []
        return [file for file in self.files if file.version < 3 and GRPC in file.renamed]

    def plugin(self, file: ContainerdFile, key: str) -> str:
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
            stated = {key: value for key, value in file.content.doc.items() if key not in _NOT_COMPARED}
            top = merged(top, stated)
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


def in_force(files: Mapping[str, bytes], request: RuntimeRequest, *, repair: bool = False) -> ContainerdConfig:
    """What is in force, of a root that is missing or says nothing too: such a one gets a version.

    Raises Refusal where containerd does not start.  To `fix` it, a drop-in of ours that keeps it from starting counts
    as not there, and may be missing.
    """
    path, drop_in = request.config or CONFIG, drop_in_path(request)
    root = read(path, files.get(path, b""), request)
    if not root.content.doc:
        version = 3 if request.release >= (2, 0) else 2
        root = ContainerdFile(path, root.content.edit({("version",): version}), version)
    try:
        return load(files, request, {path: root}, absent=drop_in if repair else "")
    except Refusal:
        without = {path: data for path, data in files.items() if path != drop_in}
        if not repair or request.release < (2, 0) or drop_in not in files:
            raise
        return load(without, request, {path: root}, absent=drop_in)


def load(
    files: Mapping[str, bytes], request: RuntimeRequest, known: Mapping[str, ContainerdFile], *, absent: str = ""
) -> ContainerdConfig:
    """The root and what it imports.  Refusal where containerd would not start.

    `known` are files that were read already, or that are to be written; the file `absent` may be missing.
    """
    found: dict[str, ContainerdFile] = {}
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


def together(files: tuple[ContainerdFile, ...], request: RuntimeRequest) -> ContainerdConfig:
    """What the files say, as the daemon of the request reads them."""
    named = [file.version for file in files if file.version]
    daemon = request.release
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
    return replace(config, cri=decoded(config.cri, any_case(config, request)))


def any_case(config: ContainerdConfig, request: RuntimeRequest) -> bool:
    """Whether fields are found in any case; an unknown containerd may be one that does so."""
    return config.merges or request.release == (0, 0)


def _check_versions(files: tuple[ContainerdFile, ...], daemon: tuple[int, int], request: RuntimeRequest) -> None:
    """Raise Refusal for a version above the daemon's: the last one named counts, from 2.3 on the root's."""
    named = [file for file in files if file.version]
    number = request.release
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


def _replaced(files: tuple[ContainerdFile, ...], daemon: tuple[int, int], version: int) -> ContainerdConfig:
    plugins: dict[str, Any] = {}
    for file in files:
        plugins |= file.plugins
    return ContainerdConfig(files, daemon, version, plugins, plugins.get(V1 if version == 1 else GRPC, {}))


def _migrated_once(files: tuple[ContainerdFile, ...], daemon: tuple[int, int]) -> ContainerdConfig:
    plugins: dict[str, Any] = {}
    version = 3
    for file in files:
        plugins = merged(plugins, file.renamed)
        version = file.version if file.version > 1 else version
    return ContainerdConfig(
        files, daemon, version, plugins, _migrated(plugins) if version < 3 else plugins.get(RUNTIME, {})
    )


def _migrated_each(files: tuple[ContainerdFile, ...], daemon: tuple[int, int]) -> ContainerdConfig:
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
    return ContainerdConfig(files, daemon, highest or 1, plugins, cri)


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


def _check_names(config: ContainerdConfig) -> None:
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


def unmeant(before: ContainerdConfig, after: ContainerdConfig, paths: Collection[toml.Path]) -> toml.Path | None:
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


# ---------------------------------------------------------------- what they lack

SOURCE = "containerd docs/cri/config.md"
RUNC = "io.containerd.runc.v2"
RUNTIMES: toml.Path = ("containerd", "runtimes")
DEFAULT: toml.Path = ("containerd", "default_runtime_name")
_LINUX = "io.containerd.runtime.v1.linux"
# what belongs to one runtime alone, or what containerd 2 no longer knows
_OWN = {"runtime_type", "runtime_root", "runtime_engine", "runtime_path", "options", "sandboxer", "sandbox_mode"}
_OF_LINUX = ("runtime_engine", "runtime_root")  # 1.x does not load the CRI plugin when another type has them
_BUILT_IN_OPTIONS: dict[str, Any] = {
    "BinaryName": "",
    "CriuImagePath": "",
    "CriuPath": "",
    "CriuWorkPath": "",
    "IoGid": 0,
    "IoUid": 0,
    "NoNewKeyring": False,
    "NoPivotRoot": False,
    "Root": "",
    "ShimCgroup": "",
    "SystemdCgroup": False,
}


@dataclass(frozen=True)
class Difference:
    """What to set and to remove below the CRI plugin's table; empty when all is as it should be."""

    sets: Mapping[toml.Path, Any] = field(default_factory=dict)
    removes: tuple[toml.Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sets or self.removes)

    @property
    def paths(self) -> tuple[toml.Path, ...]:
        return (*self.sets, *self.removes)


def built_in_runc(config: ContainerdConfig) -> dict[str, Any]:
    """The runc table that 1.x has as long as no file has a table of runtimes, as its `config default` prints it."""
    mode = {"sandbox_mode": "podsandbox"} if config.daemon == (1, 7) else {}
    return {"runtime_type": RUNC, **mode, "options": dict(_BUILT_IN_OPTIONS)}


def runtimes_in_force(config: ContainerdConfig) -> dict[str, Any]:
    """All runtimes, with the built-in runc: 1.x has it while there is no table of runtimes, 2.x always."""
    runtimes = toml.lookup(config.cri, RUNTIMES)
    if config.merges or runtimes is None:
        return {"runc": {}, **(runtimes or {})}
    return dict(runtimes)


def default_in_force(config: ContainerdConfig) -> str:
    return toml.lookup(config.cri, DEFAULT) or "runc"


def difference(config: ContainerdConfig, request: RuntimeRequest) -> Difference:
    """What differs between what is in force and what is asked for."""
    runtimes = toml.lookup(config.cri, RUNTIMES) or {}
    default = default_in_force(config)
    wanted = {"nvidia": request.name, "runc": "runc", "keep": default}[request.default_runtime]
    _check_old_keys(config, default, wanted)
    sets: dict[toml.Path, Any] = {DEFAULT: wanted} if default != wanted else {}
    runc = dict(runtimes.get("runc", {}))
    if not config.merges and "runc" not in runtimes and (not runtimes or "runc" in (default, wanted)):
        runc = built_in_runc(config)
        sets[(*RUNTIMES, "runc")] = runc
    if request.cgroup_driver and (runc or config.merges) and _is_runc(runc):
        systemd, at = request.cgroup_driver == "systemd", (*RUNTIMES, "runc")
        differs = bool(_systemd(runc)) is not systemd
        runc = {**runc, "options": {**runc.get("options", {}), "SystemdCgroup": systemd}}
        if differs:  # one table, not a table and a key in it
            sets |= {at: runc} if at in sets else {(*at, "options", "SystemdCgroup"): systemd}
    inherits = runtimes.get(default, {}) if default not in ("runc", request.name) else runc
    if not _is_runc(inherits):
        inherits = runc if _is_runc(runc) else {}
    have = runtimes.get(request.name)
    sets |= _nvidia(have, inherits, request)
    stale = [] if config.merges else [(*RUNTIMES, request.name, key) for key in _OF_LINUX if (have or {}).get(key)]
    sets |= _cdi(config.cri, request)
    other = (way for path in sets for way in respelled(config, path, any_case(config, request)))
    return Difference(sets, tuple(dict.fromkeys((*stale, *other))))


def _check_old_keys(config: ContainerdConfig, default: str, wanted: str) -> None:
    """Raise Refusal where keys of containerd 1.x overrule the default, or forbid another one."""
    if config.merges or default == wanted:
        return
    section = config.cri.get("containerd", {})
    if section.get("default_runtime", {}).get("runtime_type"):
        raise Refusal(
            "containerd.default_runtime is a table with a runtime_type: it overrules default_runtime_name",
            "name that runtime in containerd.runtimes and containerd.default_runtime_name, and remove the table",
        )
    old = [key for key, table in (("systemd_cgroup", config.cri), ("no_pivot", section)) if table.get(key)]
    if old and runtimes_in_force(config).get(default, {}).get("runtime_type") == _LINUX:
        raise Refusal(
            f"{old[0]} = true works with a default runtime of the type {_LINUX} alone",
            f"remove {old[0]}; SystemdCgroup and NoPivotRoot in the options of a runtime take its place",
        )


def _systemd(runtime: Mapping[str, Any]) -> bool | None:
    """What a runtime says of its cgroup driver, None when it says nothing."""
    stated: bool | None = runtime.get("options", {}).get("SystemdCgroup")
    return stated


def _is_runc(runtime: Mapping[str, Any]) -> bool:
    return str(runtime.get("runtime_type") or RUNC).startswith("io.containerd.runc.")


def _nvidia(
    have: Mapping[str, Any] | None, inherits: Mapping[str, Any], request: RuntimeRequest
) -> dict[toml.Path, Any]:
    """The runtime's own table: new ones inherit what runc was given, of present ones only ours is set right."""
    wanted: dict[toml.Path, Any] = {("runtime_type",): RUNC}
    options = inherits.get("options", {})
    if have is None:
        wanted[("privileged_without_host_devices",)] = False
        wanted |= {(k,): v for k, v in inherits.items() if k not in _OWN and v not in ("", 0, [], {})}
        wanted |= {("options", k): v for k, v in options.items() if v not in ("", 0, []) and k != "BinaryName"}
    wanted[("options", "BinaryName")] = request.path
    systemd = request.cgroup_driver == "systemd" if request.cgroup_driver else options.get("SystemdCgroup")
    # unasked, a present runtime is not taken from systemd: it may be the one in use, and runc's table the stock one
    wrong = systemd is not bool(_systemd(have or {})) and bool(systemd or request.cgroup_driver)
    if systemd is not None and (have is None or wrong):
        wanted[("options", "SystemdCgroup")] = systemd
    at = (*RUNTIMES, request.name)
    return {(*at, *path): value for path, value in wanted.items() if toml.lookup(have or {}, path) != value}


def _cdi(cri: Mapping[str, Any], request: RuntimeRequest) -> dict[toml.Path, Any]:
    """enable_cdi: unknown to 1.6, false by default in 1.7, true from 2.0."""
    if not switches_cdi(request, "containerd", (1, 7)):
        return {}
    now = bool(cri.get("enable_cdi", request.release >= (2, 0)))
    return {} if now is request.cdi else {("enable_cdi",): request.cdi}
