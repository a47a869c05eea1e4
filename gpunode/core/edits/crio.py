"""CRI-O's configuration: the nvidia runtime as a drop-in in crio.conf.d, or in place.

CRI-O reads its root file, then every file below crio.conf.d, whatever its suffix, folder by folder in the order of
names.  A later file overrules single settings, but a runtime's table replaces the earlier table of that runtime as a
whole: a drop-in that touches a runtime has to say all of it.  The built-in runtime stays beside those of the files.
Sources: cri-o pkg/config/config.go (UpdateFromPath, ValidateDefaultRuntime, TranslateMonitorFields), its decoder
BurntSushi/toml decode.go (unifyMap); tried with `crio config` of 1.36.3.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpunode.core.edits import dropin, toml
from gpunode.core.edits.engine import Activation, RuntimeState
from gpunode.core.edits.request import Refusal, RuntimeRequest, changed, release
from gpunode.core.model import Edit, NodeFacts, Reason, Runtime

CONFIG = "/etc/crio/crio.conf"
FOLDER = "/etc/crio/crio.conf.d"
NAME = "99-nvidia.toml"
UNREAD = (
    f"/etc/crio/conf.d/{NAME}"  # where nvidia-container-toolkit 1.18.0 to 1.19.0 wrote it: CRI-O does not look there
)
SOURCE = "https://github.com/cri-o/cri-o/blob/main/docs/crio.conf.5.md"
_SECTION = ("crio", "runtime")
_DEFAULT, _CGROUP, _CONMON_CGROUP, _CDI = "default_runtime", "cgroup_manager", "conmon_cgroup", "cdi_spec_dirs"
_KEYS = (_DEFAULT, _CGROUP, _CONMON_CGROUP, _CDI, "runtimes")
# settings as arguments of the daemon, which overrule its files
_FLAGS = {
    _DEFAULT: "--default-runtime",
    _CGROUP: "--cgroup-manager",
    _CONMON_CGROUP: "--conmon-cgroup",
    _CDI: "--cdi-spec-dirs",
}
_CDI_DIRS = ["/etc/cdi", "/var/run/cdi"]
# what the default runtime is given and the nvidia runtime, which wraps it, needs as well: conmon above all, which the
# upstream packages keep outside of PATH; CRI-O does not start when it finds no conmon for one of its runtimes
_INHERITED = (
    "runtime_root",
    "monitor_path",
    "monitor_cgroup",
    "monitor_env",
    "monitor_exec_cgroup",
    "allowed_annotations",
    "default_annotations",
    "privileged_without_host_devices",
    "no_sync_log",
    "exec_cpu_affinity",
    "seccomp_profile",
    "container_create_timeout",
)
# annotations that the built-in runtime allows (defaultRuntimeHandler in pkg/config/config.go), by the first release
_ANNOTATIONS = (
    ((1, 35), ["io.containers.trace-syscall", "devices.crio.io"]),
    ((1, 29), ["io.containers.trace-syscall", "io.kubernetes.cri-o.Devices"]),
    ((1, 22), ["io.containers.trace-syscall"]),
)
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True)
class Document:
    """One file as it is read; `section` is its [crio.runtime], with its tables of runtimes apart."""

    path: str
    text: str
    section: dict[str, Any]
    runtimes: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class InForce:
    """What all files, and the daemon's arguments, come to."""

    section: Mapping[str, Any]
    runtimes: Mapping[str, Mapping[str, Any]]  # with the built-in one, as far as the version tells
    default: str  # "" when the version does not tell


def folder(request: RuntimeRequest) -> str:
    """Where CRI-O looks for drop-ins; Refusal where the one asked for would never be read."""
    named = _flags(request, "--config-dir", "-d")
    found = named[-1] if named else FOLDER
    if not request.drop_in or request.drop_in.startswith(f"{found}/"):
        return found
    if request.flags or request.config in ("", CONFIG):
        raise Refusal(f"CRI-O does not read {request.drop_in}", f"put the drop-in into {found}")
    return posixpath.dirname(request.drop_in)  # of a CRI-O with --config and --config-dir of its own


def patterns(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """The root, all that lies in the folder of drop-ins, and the file that others write in vain."""
    found = folder(request)
    return (request.config or CONFIG, f"{found}/*", f"{found}/*/*", f"{found}/*/*/*", UNREAD)


def configure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Files → files.  A missing root counts as empty, as CRI-O takes it."""
    documents = _documents(files, request)
    sets, unset = _wanted(documents, request)
    if not sets and not unset:
        return Edit(reasons=tuple(_remarks(files, documents, request)))
    texts = {document.path: document.text for document in documents}
    for path in unset:
        texts[path] = toml.edit(texts[path], removes=[(*_SECTION, _DEFAULT)])
    for key, value in sets.items():
        path = _home(documents, key, request)
        texts[path] = toml.edit(texts.get(path, ""), {(*_SECTION, *key): value})
    data = {path: dropin.encode(text, files.get(path, b"")) for path, text in texts.items() if text or path in files}
    _prove({**files, **data}, request)
    changes = changed(files, data)
    keys = [*sets, *[(_DEFAULT,)] * bool(unset)]
    return Edit(
        changes=changes,
        reasons=(_reason(sets, unset, changes), *_remarks(files, documents, request)),
        meant=tuple(dict.fromkeys(".".join((*_SECTION, *key)) for key in keys)),
    )


# ---------------------------------------------------------------- reading


def _documents(files: Mapping[str, bytes], request: RuntimeRequest) -> list[Document]:
    """The root and the drop-ins in the order in which CRI-O reads them: filepath.Walk goes by the parts of paths."""
    root, below = request.config or CONFIG, folder(request) + "/"
    drop_ins = sorted((path for path in files if path.startswith(below) and path != root), key=lambda p: p.split("/"))
    return [_read(path, files[path]) for path in (root, *drop_ins) if path in files]


def _read(path: str, data: bytes) -> Document:
    text, doc = dropin.load(path, data)
    section = _table(_table(doc, path, ("crio",)).get("crio"), f"{path}: crio", ("runtime",)).get("runtime")
    section = _table(section, f"{path}: crio.runtime", _KEYS)
    runtimes = _table(section.get("runtimes"), f"{path}: crio.runtime.runtimes")
    for name, runtime in runtimes.items():
        _table(runtime, f"{path}: runtimes.{name}", ("runtime_path", "runtime_type", *_INHERITED))
    for key in (_DEFAULT, _CGROUP, _CONMON_CGROUP):
        if not isinstance(section.get(key, ""), str):
            raise Refusal(f"{path}: {key} is {section[key]!r}, not a string", "mend the file: CRI-O refuses it too")
    if not isinstance(section.get(_CDI, []), list):
        raise Refusal(f"{path}: {_CDI} is no list of paths", "mend the file: CRI-O refuses it too")
    return Document(path, text, {key: value for key, value in section.items() if key != "runtimes"}, runtimes)


def _table(value: Any, name: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """A table; its `keys` have to be in CRI-O's own spelling: the decoder would take Default_Runtime as well."""
    found = dropin.table(value, name, "CRI-O")
    for key in found:
        if key not in keys and key.lower() in keys:
            raise Refusal(f"{name} has the key {key}", f"write it as {key.lower()}")
    return found


def _in_force(documents: Sequence[Document], request: RuntimeRequest) -> InForce:
    version = release(request.version)
    own = "" if version == (0, 0) else "crun" if version >= (1, 31) else "runc"
    section: dict[str, Any] = {}
    runtimes: dict[str, dict[str, Any]] = {own: _built_in(version)} if own else {}
    for document in documents:
        section |= document.section
        runtimes |= document.runtimes
    for word in _flags(request, "--runtimes"):
        for item in word.split(","):
            name, _, rest = item.partition(":")
            runtimes[name] = {"runtime_path": rest.partition(":")[0]}
    for key, flag in _FLAGS.items():
        if given := _flags(request, flag):
            section[key] = given[-1]
    return InForce(section, runtimes, section.get(_DEFAULT) or own)


def _built_in(version: tuple[int, int]) -> dict[str, Any]:
    return next(({"allowed_annotations": found} for first, found in _ANNOTATIONS if version >= first), {})


def _flags(request: RuntimeRequest, *names: str) -> list[str]:
    """Values of --name=VALUE and --name VALUE among the daemon's arguments."""
    words = [word.partition("=") for word in request.flags]
    return [
        value if equals else "".join(request.flags[at + 1 : at + 2])
        for at, (name, equals, value) in enumerate(words)
        if name in names
    ]


# ---------------------------------------------------------------- deciding


def _wanted(documents: Sequence[Document], request: RuntimeRequest) -> tuple[dict[toml.Path, Any], list[str]]:
    """What to set below [crio.runtime], only what differs from what is in force; and files to unset the default in."""
    now = _in_force(documents, request)
    sets: dict[toml.Path, Any] = {}
    unset: list[str] = []
    if request.default_runtime == "nvidia" and now.default != request.name:
        sets[(_DEFAULT,)] = request.name
    if request.default_runtime == "runc" and now.default == request.name:
        unset, back = _former_default(documents, request)
        sets |= {(_DEFAULT,): back} if back else {}
    runtime = _runtime(now, request)
    if now.runtimes.get(request.name) != runtime:
        sets["runtimes", request.name] = runtime
    sets |= _cgroup(now, request) | _cdi(now, request)
    _not_by_flags(sets, unset, request)
    return sets, unset


def _runtime(now: InForce, request: RuntimeRequest) -> dict[str, Any]:
    """The runtime's table as it should be: one that is there keeps its keys, a new one inherits from the default."""
    have = now.runtimes.get(request.name)
    if have is None:
        parent = _parent(now, request)
        inherited = {key: parent[key] for key in _INHERITED if parent.get(key)}
        return {"runtime_path": request.path, "runtime_type": "oci", **inherited}
    if have.get("runtime_type", "") not in ("", "oci"):
        raise Refusal(
            f"runtimes.{request.name} is there with runtime_type = {toml.literal(have['runtime_type'])}",
            "remove that runtime, or choose another name for ours",
        )
    own = (
        {"inherit_default_runtime": False} if have.get("inherit_default_runtime") else {}
    )  # it would overrule the path
    return {**have, "runtime_path": request.path, **own}


def _parent(now: InForce, request: RuntimeRequest) -> Mapping[str, Any]:
    """The runtime to inherit from: the default one, or the first usual one, of those that conmon runs."""
    for name in (now.default, "crun", "runc"):
        found = None if name == request.name else now.runtimes.get(name)
        if found is not None and found.get("runtime_type", "") in ("", "oci"):
            return found
    return {}


def _former_default(documents: Sequence[Document], request: RuntimeRequest) -> tuple[list[str], str]:
    """Where to unset the default so that what stood below it counts again, and what to set where that does not do."""
    drop_in = request.drop_in or f"{folder(request)}/{NAME}"
    mine = [d.path for d in documents if d.path == drop_in and d.section.get(_DEFAULT) == request.name]
    rest = [Document(d.path, d.text, {}, d.runtimes) if d.path in mine else d for d in documents]
    left = _in_force(rest, request)
    if left.default != request.name:
        return mine, ""
    return [], next((name for name in ("crun", "runc") if name in left.runtimes), "")


def _cgroup(now: InForce, request: RuntimeRequest) -> dict[toml.Path, Any]:
    """cgroup_manager; conmon itself then has to be in the pod's cgroup: a slice is refused with cgroupfs."""
    wish = request.cgroup_driver
    if not wish or (now.section.get(_CGROUP) or "systemd") == wish:
        return {}
    pod = wish == "cgroupfs" and now.section.get(_CONMON_CGROUP) != "pod"
    return {(_CGROUP,): wish} | ({(_CONMON_CGROUP,): "pod"} if pod else {})


def _cdi(now: InForce, request: RuntimeRequest) -> dict[toml.Path, Any]:
    """cdi_spec_dirs, of 1.24 and later: CDI is on where there are any; there is no other switch."""
    if request.cdi is None:
        return {}
    if (0, 0) < release(request.version) < (1, 24):
        if request.cdi:
            raise Refusal(f"CRI-O {request.version} has no CDI", "install CRI-O 1.24 or later, or leave cdi out")
        return {}
    if bool(now.section.get(_CDI, _CDI_DIRS)) is request.cdi:
        return {}
    return {(_CDI,): _CDI_DIRS if request.cdi else []}


def _not_by_flags(sets: Mapping[toml.Path, Any], unset: Sequence[str], request: RuntimeRequest) -> None:
    """Refuse what an argument of the daemon overrules."""
    keys = {key[0] for key in sets} | ({_DEFAULT} if unset else set())
    for key, flag in _FLAGS.items():
        if key in keys and _flags(request, flag):
            raise _overruled(flag, key)
    if "runtimes" in keys and any(f"{request.name}:" in word for word in _flags(request, "--runtimes")):
        raise _overruled("--runtimes", f"runtimes.{request.name}")


def _overruled(flag: str, key: str) -> Refusal:
    return Refusal(
        f"CRI-O is started with {flag}, which overrules {key} of its files",
        f"remove {flag} from the unit (systemctl cat crio) and its files in /etc/sysconfig or /etc/default",
    )


# ---------------------------------------------------------------- writing


def _home(documents: Sequence[Document], key: toml.Path, request: RuntimeRequest) -> str:
    """The file for a setting: the drop-in, or a later one that has the last word; in place the last, or the root."""
    drop_in = request.drop_in or f"{folder(request)}/{NAME}"
    for document in reversed(documents):
        has = key[-1] in (document.runtimes if key[0] == "runtimes" else document.section)
        if has and (request.in_place or _later(document.path, drop_in, request)):
            return document.path
    return (request.config or CONFIG) if request.in_place else drop_in


def _later(path: str, drop_in: str, request: RuntimeRequest) -> bool:
    return path != (request.config or CONFIG) and path.split("/") > drop_in.split("/")


def _prove(files: Mapping[str, bytes], request: RuntimeRequest) -> None:
    """Read the outcome as CRI-O does: it must say what was asked."""
    left, _ = _wanted(_documents(files, request), request)
    if left:
        names = ", ".join(".".join(key) for key in left)
        raise Refusal(f"{names} would not be in force", "look into the files of CRI-O, and report this")


# ---------------------------------------------------------------- saying


def _reason(sets: Mapping[toml.Path, Any], unset: Sequence[str], changes: Mapping[str, bytes]) -> Reason:
    said = [f"sets {'.'.join(key)} = {toml.literal(value)}" for key, value in sets.items()]
    said += [f"unsets {_DEFAULT} in {path}" for path in unset]
    return Reason(what=" and ".join(sorted(changes)), why="; ".join(said), source=SOURCE)


def _remarks(files: Mapping[str, bytes], documents: Sequence[Document], request: RuntimeRequest) -> Iterator[Reason]:
    """What an edit of these files cannot mend."""
    if UNREAD in files:
        yield Reason(
            what=f"{UNREAD} has no effect",
            why=f"CRI-O reads {folder(request)}; nvidia-container-toolkit 1.18.0 to 1.19.0 wrote it there: remove it",
            source=SOURCE,
        )
    binary = str(_parent(_in_force(documents, request), request).get("runtime_path", ""))
    if binary and posixpath.dirname(binary) not in _PATH:
        yield Reason(
            what=f"{binary} is not on the PATH",
            why="nvidia-container-runtime looks for the runtime that it wraps there: nvidia-ctk config --in-place "
            f"--set nvidia-container-runtime.runtimes={binary} names it",
            source="nvidia-container-toolkit internal/oci/runtime_low_level.go",
        )


def unconfigure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Takes the runtime out of every file that has it, and the default where it names it; an empty drop-in goes."""
    documents = _documents(files, request)
    drop_in = request.drop_in or f"{folder(request)}/{NAME}"
    changes: dict[str, bytes | None] = {}
    reasons = []
    for document in documents:
        removes: list[toml.Path] = [("runtimes", request.name)] if request.name in document.runtimes else []
        removes += [(_DEFAULT,)] if document.section.get(_DEFAULT) == request.name else []
        if not removes:
            continue
        text = toml.edit(document.text, removes=[(*_SECTION, *key) for key in removes])
        left = _read(document.path, text.encode())
        gone = document.path == drop_in and dropin.empty(document.path, text)
        changes[document.path] = None if gone else dropin.encode(text, files[document.path])
        why = "removes it" if gone else f"removes {' and '.join('.'.join(key) for key in removes)}"
        reasons.append(Reason(what=document.path, why=why, source=SOURCE))
        if document.path == drop_in and left.section:
            stays = Reason(what=f"{', '.join(left.section)} in {drop_in}", why="stays: it is not the runtime's")
            reasons.append(stays)
    after = _documents({p: d for p, d in {**files, **changes}.items() if d is not None}, request)
    default = _in_force(after, request).default
    if changes and default == request.name:
        raise _overruled("--default-runtime", _DEFAULT)
    return Edit(changes=changes, reasons=tuple(reasons), meant=_meant(request) if changes else ())


def _meant(request: RuntimeRequest) -> tuple[str, ...]:
    return (".".join((*_SECTION, _DEFAULT)), ".".join((*_SECTION, "runtimes", request.name)))


def state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What is in force."""
    documents = _documents(files, request)
    now = _in_force(documents, request)
    dirs = now.section.get(_CDI, _CDI_DIRS)
    return RuntimeState(
        runtimes=tuple(now.runtimes),
        default=now.default,
        path=str(now.runtimes.get(request.name, {}).get("runtime_path", "")),
        cdi=None if (0, 0) < release(request.version) < (1, 24) else bool(dirs),
        cgroup_driver=now.section.get(_CGROUP) or "systemd",
        files=tuple(document.path for document in documents),
        notes=tuple(_remarks(files, documents, request)),
    )


def activation(facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
    """CRI-O is restarted: on SIGHUP (1.26 and later) it reads the runtimes anew, but leaves them without their conmon.

    ReloadRuntimes in pkg/config/reload.go does not call TranslateMonitorFields: containers of runtimes without a
    monitor_path cannot start afterwards.  conmon keeps containers running while CRI-O restarts.
    """
    unit = runtime.unit or "crio.service"
    socket = runtime.socket or "/run/crio/crio.sock"
    request = RuntimeRequest(runtime="crio", config=runtime.config, flags=runtime.flags)
    root = ("--config", "@FILE@") if runtime.config in facts.files or runtime.config in edit.changes else ()
    return Activation(
        unit=unit,
        verb="restart",
        config=runtime.config,
        validate=(runtime.binary or "crio", *root, "--config-dir", folder(request), "config"),
        socket=socket,
        health=(
            ("crictl", "--runtime-endpoint", f"unix://{socket}", "version"),
            ("curl", "-fsS", "-m", "10", "--unix-socket", socket, "http://localhost/info"),
        ),
        disrupts=f"restarts {unit}: running containers keep running" if edit.changes else "",
    )
