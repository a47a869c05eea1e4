"""containerd's config.toml: the nvidia runtime in the CRI plugin's table, in place or as a drop-in.

containerd 1.x and engines of unknown version are edited in place, in the file whose CRI section is in force: there
the CRI tables of an imported file replace those of the root.  From 2.0 on tables are merged key by key, and the
drop-in holds only what is ours; it carries the root's version, because 2.3.0-2.3.4 do not start with a newer one.
Sources: containerd/containerd cmd/containerd/server/config/config.go; tried on 1.6.20, 1.7.24 and 2.1.9.
"""

from __future__ import annotations

import fnmatch
import posixpath
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpunode.core.edits import toml
from gpunode.core.edits.engine import Activation, RuntimeState
from gpunode.core.edits.request import Refusal, RuntimeRequest, changed, release
from gpunode.core.model import Edit, NodeFacts, Reason, Runtime

CONFIG = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
SOURCE = "containerd docs/cri/config.md"
RUNC = "io.containerd.runc.v2"
_BOM = b"\xef\xbb\xbf"
# the plugin that holds the runtimes, by the version of the file
_CRI = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime", 4: "io.containerd.cri.v1.runtime"}
# keys of a runtime that containerd 2 no longer knows, or that belong to one runtime alone
_OWN = {"runtime_type", "runtime_root", "runtime_engine", "runtime_path", "options", "sandboxer", "sandbox_mode"}


@dataclass(frozen=True)
class Document:
    """One config file as it is read."""

    path: str
    text: str
    doc: dict[str, Any]
    version: int

    @property
    def plugin(self) -> tuple[str, str]:
        return ("plugins", _CRI[self.version])

    @property
    def cri(self) -> dict[str, Any]:
        """The CRI plugin's table, {} when there is none."""
        found = toml.lookup(self.doc, self.plugin)
        return _table(found, ".".join(self.plugin))


def _table(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refusal(f"{name} is no table", "make it a table: containerd expects one there")
    return value


def patterns(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """The root, what it imports as far as it was read, and the drop-in."""
    root = request.config or CONFIG
    found = [root]
    for path in (root, *sorted(files)):
        imports = toml.parse(path, files[path])[1].get("imports", []) if path in files else []
        found += [posixpath.join(posixpath.dirname(path), item) for item in imports if isinstance(item, str)]
    return tuple(dict.fromkeys((*found, request.drop_in or DROP_IN)))


def configure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Files → files.  `files` has every file in force by its absolute path; a missing root counts as not there."""
    root_path = request.config or CONFIG
    root = _read(root_path, files.get(root_path, b""), request)
    if root_path not in files or not root.doc:
        root = _fresh(root, request)
    documents = _in_force(files, root, request)
    two = release(request.version) >= (2, 0)
    if two and root.version == 1:
        raise Refusal(
            f"{root_path} is a version 1 config: containerd {request.version} does not carry its CRI settings over",
            f"run containerd config migrate, look at what it prints, and put that into {root_path}",
        )
    sets = _wanted(_merged(documents, two), request, two)
    enable = _enable_cri(documents, request)
    if not sets and not enable:
        return Edit(reasons=_remarks(documents, request))
    after = _as_drop_in(files, documents, sets, request) if two else _in_place(documents, sets)
    for path, value in enable.items():
        after[path] = toml.set_key(after.get(path) or next(d.text for d in documents if d.path == path), *value)
    data = {path: _encode(text, files.get(path, b"")) for path, text in after.items()}
    _prove({**files, **data}, request, two)
    changes = changed(files, data)
    return Edit(
        changes=changes,
        reasons=(*_reasons(sets, changes), *_remarks(documents, request)),
    )


# ---------------------------------------------------------------- reading


def _read(path: str, data: bytes, request: RuntimeRequest) -> Document:
    if data.startswith(_BOM) and release(request.version) < (2, 0):
        data = data[len(_BOM) :]  # containerd 1.x skips it, 2.x refuses it
    text, doc = toml.parse(path, data)
    version = doc.get("version", 1)
    if type(version) is not int:
        raise Refusal(f"{path}: version is {version!r}, not a number", "write version = 2")
    highest = _highest(request.version)
    if not 0 <= version <= highest:
        raise Refusal(
            f"{path} is config version {version}; containerd {request.version} reads at most {highest}".replace(
                "  ", " "
            ),
            "write the file in a version that this containerd reads, or install a newer containerd",
        )
    return Document(path, text, doc, max(version, 1))


def _highest(version: str) -> int:
    number = release(version)
    if number == (0, 0) or number >= (2, 3):
        return 4
    return 3 if number >= (2, 0) else 2


def _encode(text: str, before: bytes) -> bytes:
    return (_BOM if before.startswith(_BOM) else b"") + text.encode()


def _fresh(root: Document, request: RuntimeRequest) -> Document:
    """A root that says nothing: it gets a version, the newest that every release of this major version reads."""
    version = 3 if release(request.version) >= (2, 0) else 2
    text = toml.set_key(root.text, ("version",), version)
    return Document(root.path, text, {"version": version}, version)


def _in_force(files: Mapping[str, bytes], root: Document, request: RuntimeRequest) -> list[Document]:
    """The root and what it imports, in the order in which containerd reads them: a later one overrides."""
    found = [root]
    for document in found:
        imports = document.doc.get("imports", [])
        if not isinstance(imports, list) or not all(isinstance(item, str) for item in imports):
            raise Refusal(f"{document.path}: imports is no list of paths", 'write imports = ["/path/*.toml"]')
        for pattern in imports:
            full = posixpath.join(posixpath.dirname(document.path), pattern)
            for path in sorted(files):
                if path not in [d.path for d in found] and fnmatch.fnmatchcase(path, full):
                    found.append(_read(path, files[path], request))
    return found


def _merged(documents: list[Document], deep: bool) -> dict[str, Any]:
    """The CRI settings in force."""
    result: dict[str, Any] = {}
    for document in documents:
        if not document.cri:
            continue
        result = _merge(result, document.cri) if deep else document.cri
    return result


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


# ---------------------------------------------------------------- deciding


def _wanted(cri: Mapping[str, Any], request: RuntimeRequest, two: bool) -> dict[toml.Path, Any]:
    """What to set below the CRI plugin's table: path → value, only what differs from what is in force."""
    section = _table(cri.get("containerd"), "containerd")
    runtimes = _table(section.get("runtimes"), "containerd.runtimes")
    for name, runtime in runtimes.items():
        _table(_table(runtime, f"runtimes.{name}").get("options"), f"runtimes.{name}.options")
    old_default = section.get("default_runtime")
    if isinstance(old_default, dict) and old_default.get("runtime_type"):
        raise Refusal(
            "containerd.default_runtime is a table with a runtime_type: it overrules default_runtime_name",
            "name that runtime in containerd.runtimes and containerd.default_runtime_name, and remove the table",
        )
    default = section.get("default_runtime_name") or "runc"
    wish = {"nvidia": request.name, "runc": "runc", "keep": default}[request.default_runtime]
    base = ("containerd", "runtimes")
    sets: dict[toml.Path, Any] = {("containerd", "default_runtime_name"): wish} if default != wish else {}
    runc = dict(runtimes.get("runc", {}))
    if not two and "runc" not in runtimes and (not runtimes or "runc" in (default, wish)):
        # 1.x: a runtimes table of one's own replaces the built-in one, and runc would be gone
        sets[(*base, "runc", "runtime_type")] = RUNC
        runc = {"runtime_type": RUNC}
    if request.cgroup_driver:
        systemd = request.cgroup_driver == "systemd"
        if bool(_option(runc, "SystemdCgroup")) is not systemd:
            sets[(*base, "runc", "options", "SystemdCgroup")] = systemd
        runc = {**runc, "options": {**runc.get("options", {}), "SystemdCgroup": systemd}}
    parent = runtimes.get(default, {}) if default not in ("runc", request.name) else runc
    if not str(parent.get("runtime_type", RUNC)).startswith("io.containerd.runc."):
        parent = runc if str(runc.get("runtime_type", RUNC)).startswith("io.containerd.runc.") else {}
    sets |= _nvidia(runtimes.get(request.name), parent, runc, (*base, request.name), request)
    return sets | _cdi(cri, request)


def _option(runtime: Mapping[str, Any], key: str) -> Any:
    return runtime.get("options", {}).get(key)


def _nvidia(
    have: Mapping[str, Any] | None,
    parent: Mapping[str, Any],
    runc: Mapping[str, Any],
    at: toml.Path,
    request: RuntimeRequest,
) -> dict[toml.Path, Any]:
    """The runtime's own table: new ones inherit what runc was given, of present ones only ours is set right."""
    wanted: dict[toml.Path, Any] = {("runtime_type",): RUNC}
    if have is None:
        wanted[("privileged_without_host_devices",)] = False
        wanted |= {(k,): v for k, v in parent.items() if k not in _OWN and v not in ("", 0, [], {})}
        wanted |= {
            ("options", k): v
            for k, v in parent.get("options", {}).items()
            if v not in ("", 0, []) and k != "BinaryName"
        }
    wanted[("options", "BinaryName")] = request.path
    systemd = _option(runc, "SystemdCgroup")
    if systemd is not None and (have is None or bool(_option(have, "SystemdCgroup")) is not bool(systemd)):
        wanted[("options", "SystemdCgroup")] = systemd
    return {(*at, *path): v for path, v in wanted.items() if toml.lookup(have or {}, path) != v}


def _cdi(cri: Mapping[str, Any], request: RuntimeRequest) -> dict[toml.Path, Any]:
    """enable_cdi: unknown to 1.6, false by default in 1.7, true from 2.0."""
    if request.cdi is None:
        return {}
    number = release(request.version)
    if (0, 0) < number < (1, 7):
        if not request.cdi:
            return {}
        raise Refusal(f"containerd {request.version} has no CDI", "install containerd 1.7 or later, or leave cdi out")
    if bool(cri.get("enable_cdi", number >= (2, 0))) is request.cdi:
        return {}
    return {("enable_cdi",): request.cdi}


def _enable_cri(documents: list[Document], request: RuntimeRequest) -> dict[str, tuple[toml.Path, list[str]]]:
    if not request.enable_cri:
        return {}
    return {
        d.path: (("disabled_plugins",), [p for p in d.doc["disabled_plugins"] if p not in _CRI.values()])
        for d in documents
        if _disables_cri(d)
    }


def _disables_cri(document: Document) -> bool:
    disabled = document.doc.get("disabled_plugins", [])
    return isinstance(disabled, list) and any(isinstance(p, str) and p in _CRI.values() for p in disabled)


# ---------------------------------------------------------------- writing


def _in_place(documents: list[Document], sets: Mapping[toml.Path, Any]) -> dict[str, str]:
    target = next((d for d in reversed(documents) if d.cri), documents[0])
    text = target.text
    for path, value in sets.items():
        text = toml.set_key(text, (*target.plugin, *path), value)
    return {target.path: text}


def _as_drop_in(
    files: Mapping[str, bytes], documents: list[Document], sets: Mapping[toml.Path, Any], request: RuntimeRequest
) -> dict[str, str]:
    root = documents[0]
    path = request.drop_in or DROP_IN
    if path in files:
        drop_in = _read(path, files[path], request)
    else:
        drop_in = Document(path, f"version = {root.version}\n", {}, root.version)
    text = drop_in.text
    if not drop_in.doc:  # new, or empty
        text = toml.set_key(text, ("version",), root.version)
        drop_in = Document(path, text, {}, root.version)
    for key, value in sets.items():
        if key[:2] == ("containerd", "runtimes"):  # a runtime without its type fails when a container starts
            text = toml.set_key(text, (*drop_in.plugin, *key[:3], "runtime_type"), RUNC)
        text = toml.set_key(text, (*drop_in.plugin, *key), value)
    after = {path: text}
    if path not in [d.path for d in documents]:
        imports = root.doc.get("imports", [])
        full = [posixpath.join(posixpath.dirname(root.path), item) for item in imports]
        if not any(fnmatch.fnmatchcase(path, item) for item in full):
            imports = [*imports, f"{posixpath.dirname(path)}/*.toml"]
            after[root.path] = toml.set_key(root.text, ("imports",), imports)
        elif root.path not in files:
            after[root.path] = root.text
    return after


def _prove(files: Mapping[str, bytes], request: RuntimeRequest, two: bool) -> None:
    """Read the outcome as containerd does: it must say what was asked, or a later file overrules ours."""
    root_path = request.config or CONFIG
    documents = _in_force(files, _read(root_path, files[root_path], request), request)
    left = _wanted(_merged(documents, two), request, two)
    if left:
        names = ", ".join(".".join(path) for path in left)
        raise Refusal(
            f"another file that {root_path} imports overrules {names}",
            f"remove it there: {', '.join(d.path for d in documents[1:])}",
        )


# ---------------------------------------------------------------- saying


def _reasons(sets: Mapping[toml.Path, Any], changes: Mapping[str, bytes]) -> list[Reason]:
    where = " and ".join(sorted(changes))
    settings = ", ".join(
        f"{'.'.join(path[1:] if path[0] == 'containerd' else path)} = {toml.literal(v)}" for path, v in sets.items()
    )
    return [Reason(what=where, why=f"sets {settings}" if settings else "enables the CRI plugin", source=SOURCE)]


def _remarks(documents: list[Document], request: RuntimeRequest) -> tuple[Reason, ...]:
    if request.enable_cri:
        return ()
    return tuple(
        Reason(
            what=f"{d.path} disables the CRI plugin",
            why="disabled_plugins names it: Kubernetes cannot use this containerd, nor the nvidia runtime in it",
            source=SOURCE,
        )
        for d in documents
        if _disables_cri(d)
    )


def unconfigure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Takes the nvidia runtime out."""
    raise Refusal("containerd cannot be unconfigured yet", "restore the file from a backup")


def state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What is in force."""
    documents = _in_force(
        files, _read(request.config or CONFIG, files.get(request.config or CONFIG, b""), request), request
    )
    section = _merged(documents, release(request.version) >= (2, 0)).get("containerd", {})
    runtimes = section.get("runtimes", {})
    return RuntimeState(
        runtimes=tuple(runtimes),
        default=section.get("default_runtime_name", ""),
        path=toml.lookup(runtimes, (request.name, "options", "BinaryName")) or "",
        files=tuple(d.path for d in documents if d.path in files),
        notes=_remarks(documents, request),
    )


def activation(facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
    """containerd reads its configuration only when it starts."""
    unit = runtime.unit or "containerd.service"
    files = [facts.files[path].data or b"" for path in runtime.files if path in facts.files]
    socket = runtime.socket or "/run/containerd/containerd.sock"
    disabled = any(reason.what.endswith("disables the CRI plugin") for reason in edit.reasons) or _no_cri(files)
    return Activation(
        unit=unit,
        verb="restart",
        config=runtime.config,
        validate=(runtime.binary or "containerd", "-c", "@FILE@", "config", "dump"),
        socket=socket,
        plugin="" if disabled else "cri",
        health=(("ctr", "--address", socket, "version"),),
        disrupts=f"restarts {unit}: running containers keep running" if edit.changes else "",
    )


def _no_cri(files: list[bytes]) -> bool:
    """Whether one of containerd's files names the CRI plugin as disabled; broken files say nothing."""
    for data in files:
        try:
            disabled = tomllib.loads(data.decode("utf-8-sig")).get("disabled_plugins", [])
        except (UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
        if isinstance(disabled, list) and {"cri", "io.containerd.grpc.v1.cri"} & {str(item) for item in disabled}:
            return True
    return False
