"""k0s: its containerd gets the nvidia runtime from a drop-in that k0s itself watches.

k0s writes /etc/k0s/containerd.toml at every start, as long as its first line is the magic one or it is not there, and
takes up the files of /etc/k0s/containerd.d within seconds (since 1.27.1).  Up to 1.35 it merges them key by key into
the defaults of containerd 1.7 (version 2); from 1.36 on containerd 2 imports them, and a drop-in of another version
than 3, or one that names the old CRI plugin, keeps k0s from starting.  A containerd.toml of the user's own is edited
in place, as containerd's is.
Sources: k0sproject/k0s docs/runtime.md, pkg/component/worker/containerd (v1.27.1, v1.35.7, v1.36.3).
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpunode.core.edits.engines import containerd
from gpunode.core.edits.target import Activation, Engine, Refusal, RuntimeRequest, RuntimeState
from gpunode.core.edits.text import toml
from gpunode.core.engines import DISTRIBUTIONS
from gpunode.core.model import Edit, NodeFacts, Runtime
from gpunode.core.numbers import release

CONFIG = DISTRIBUTIONS["k0s"].config
DROP_INS = "/etc/k0s/containerd.d/*.toml"
DROP_IN = "/etc/k0s/containerd.d/99-nvidia.toml"
SOURCE = "k0s docs/runtime.md"
MAGIC = b"# k0s_managed=true"
_OLD_CRI = "io.containerd.grpc.v1.cri"
# what k0s starts from: the settings of its own containerd.toml that the drop-in is merged into
ROOTS = {
    2: f'version = 2\nimports = ["{DROP_INS}"]\n[plugins."{_OLD_CRI}"]\nenable_cdi = false\n',
    3: f'version = 3\nimports = ["{DROP_INS}"]\n',
}


def managed(data: bytes | None) -> bool:
    """Whether k0s writes this containerd.toml itself: it is not there, or begins with the magic line."""
    return data is None or data.split(b"\n", 1)[0].removesuffix(b"\r") == MAGIC


def patterns(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """k0s' containerd.toml and drop-ins, and what a file of the user's own imports."""
    return tuple(dict.fromkeys((*containerd.patterns(files, _in_place(request)), DROP_INS)))


def configure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """A drop-in where k0s manages containerd.toml, else an edit of that file; Refusal where k0s would not start."""
    return _edited(files, request, containerd.configure)


def unconfigure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Takes nvidia's entries out of the drop-in, or of the user's own containerd.toml."""
    return _edited(files, request, containerd.unconfigure)


def state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What is in force."""
    if not managed(files.get(_own(request))):
        return containerd.state(files, _in_place(request))
    found = containerd.state(*_as_containerd(files, request, _config_version(files, request)))
    return replace(found, files=tuple(path for path in found.files if path in files))


def activation(facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
    """k0s watches the drop-ins; a containerd.toml of the user's own is read when k0s starts."""
    unit, socket = runtime.unit, runtime.socket
    watched = runtime.config not in edit.changes
    root = facts.files[runtime.config].data if runtime.config in facts.files else None
    imports = posixpath.dirname(DROP_INS).encode() in (root or b"")  # k0s 1.35 merges, and imports nothing
    own = f"restarts {unit}: running containers keep running, this node's Kubernetes is away for seconds"
    reload = "k0s reloads its containerd: running containers keep running"
    return Activation(
        unit=unit,
        verb="" if watched else "restart",
        config=runtime.config,
        validate=containerd.judge(runtime) if imports or not watched else (),
        socket=socket,
        plugin="cri",
        health=(("k0s", "ctr", "--address", socket, "version"), ("ctr", "--address", socket, "version")),
        disrupts="" if not edit.changes else reload if watched else own,
    )


def _own(request: RuntimeRequest) -> str:
    """The path of containerd.toml; a drop-in that the request names as config is a drop-in."""
    return CONFIG if not request.config or _is_drop_in(request.config) else request.config


def _in_place(request: RuntimeRequest) -> RuntimeRequest:
    version = request.containerd_of("k0s")
    return replace(request, distribution="", config=_own(request), drop_in="", in_place=True, version=version)


def _config_version(files: Mapping[str, bytes], request: RuntimeRequest) -> int:
    """2 or 3: by the version of containerd or k0s, else by what k0s has written, else as k0s is today."""
    number = release(request.containerd_of("k0s"))
    if number != (0, 0):
        return 3 if number >= (2, 0) else 2
    path = _own(request)
    written = toml.parse(path, files[path])[1] if path in files else {}
    return 2 if written.get("version") in (1, 2) else 3


def _edited(
    files: Mapping[str, bytes], request: RuntimeRequest, edit: Callable[[Mapping[str, bytes], RuntimeRequest], Edit]
) -> Edit:
    if not managed(files.get(_own(request))):
        return edit(files, _in_place(request))
    version = _config_version(files, request)
    _check_drop_ins(files, version)
    found = edit(*_as_containerd(files, request, version))
    line = _version_line(version)
    changes = {
        path: data.removeprefix(line) if data and path in files and not files[path].startswith(line) else data
        for path, data in found.changes.items()
        if path != CONFIG
    }
    return replace(found, changes=changes, reasons=tuple(replace(r, source=SOURCE) for r in found.reasons))


def _as_containerd(
    files: Mapping[str, bytes], request: RuntimeRequest, version: int
) -> tuple[dict[str, bytes], RuntimeRequest]:
    """The drop-ins below a root as k0s makes it, and the request for them: merged key by key, as containerd 2 does."""
    drop_in = request.drop_in or (request.config if _is_drop_in(request.config) else DROP_IN)
    if not _is_drop_in(drop_in):
        raise Refusal(f"k0s does not read {drop_in}", f"leave the drop-in out, or name a file {DROP_INS}")
    mine = {path: _versioned(path, data, version) for path, data in files.items() if _is_drop_in(path)}
    merged = replace(request, distribution="", config=CONFIG, drop_in=drop_in, in_place=False, version="2.0", flags=())
    return {**mine, CONFIG: ROOTS[version].encode()}, merged


def _check_drop_ins(files: Mapping[str, bytes], version: int) -> None:
    """Raise Refusal for drop-ins with which k0s, or its containerd, does not start."""
    for path in sorted(filter(_is_drop_in, files)):
        doc = toml.parse(path, files[path])[1]
        if doc.get("version", version) != version:
            raise Refusal(
                f"{path} is config version {doc['version']!r}: this k0s takes version {version} there",
                f"rewrite that file as version {version}, then run again",
            )
        plugins = doc.get("plugins")
        if version == 3 and isinstance(plugins, dict) and _OLD_CRI in plugins:
            raise Refusal(
                f"{path} has a section {_OLD_CRI}: k0s 1.36 and later do not start with it",
                "move its settings to io.containerd.cri.v1.runtime and io.containerd.cri.v1.images, then run again",
            )


def _is_drop_in(path: str) -> bool:
    return fnmatch.fnmatchcase(path, DROP_INS) and posixpath.dirname(path) == posixpath.dirname(DROP_INS)


def _version_line(version: int) -> bytes:
    return f"version = {version}\n".encode()


def _versioned(path: str, data: bytes, version: int) -> bytes:
    """A drop-in that names no version, which k0s allows, with one: containerd's editor takes it for version 1 else."""
    doc = toml.parse(path, data)[1]
    return data if not doc or "version" in doc else _version_line(version) + data


ENGINE = Engine(patterns, configure, unconfigure, state, activation)
