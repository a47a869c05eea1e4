"""CRI-O's configuration: the nvidia runtime as a drop-in in crio.conf.d, or in place.

A runtime's table is written whole, since a later file replaces it so.
Sources: cri-o pkg/config/config.go (ValidateDefaultRuntime, TranslateMonitorFields), pkg/config/reload.go; tried with
`crio config` of 1.28.11, 1.31.13 and 1.36.3.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.edits.engines import dropin
from gpunode.core.edits.engines.dropin import Layer
from gpunode.core.edits.refusal import Refusal
from gpunode.core.edits.target import Activation, Engine, RuntimeRequest, RuntimeState, changed, restarted, switches_cdi
from gpunode.core.edits.text import toml
from gpunode.core.engines import FILE, PATH, ROWS
from gpunode.core.engines import TOOLKIT_CONFIG as TOOLKIT
from gpunode.core.facts.flags import flag_values
from gpunode.core.late import dataclass
from gpunode.core.model import Edit, NodeFacts, Reason, Runtime

ROW = ROWS["crio"]
CONFIG = ROW.config
NAME = "99-nvidia.toml"
DEFAULT, CGROUP, CONMON_CGROUP, CDI = "default_runtime", "cgroup_manager", "conmon_cgroup", "cdi_spec_dirs"
# settings as arguments of the daemon, which overrule its files
FLAGS = {
    DEFAULT: "--default-runtime",
    CGROUP: "--cgroup-manager",
    CONMON_CGROUP: "--conmon-cgroup",
    CDI: "--cdi-spec-dirs",
}
# what the default runtime is given and the nvidia runtime, which wraps it, needs as well: conmon above all, which the
# upstream packages keep outside of PATH; CRI-O does not start when it finds no conmon for one of its runtimes
INHERITED = (
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


@dataclass(frozen=True)
class CrioSettings:
    """What all files, and the daemon's arguments, come to."""

    section: Mapping[str, Any]
    runtimes: Mapping[str, Mapping[str, Any]]  # with the built-in one, as far as the version tells
    default: str  # "" when the version does not tell


def folder(request: RuntimeRequest) -> str:
    """Where CRI-O looks for drop-ins.

    A root config of one's own, which no daemon's arguments name, has its own folder beside it: to try an edit there
    must not write into /etc.
    """
    named = flag_values(request.flags, *ROW.folder_flags)
    if named:
        return named[-1]
    if request.config in ("", CONFIG) or request.flags:
        return posixpath.dirname(ROW.drop_ins)
    return posixpath.dirname(request.drop_in) if request.drop_in else f"{request.config}.d"


def drop_in_of(request: RuntimeRequest) -> str:
    """The file for what is ours; Refusal where CRI-O would never read it."""
    found = folder(request)
    if request.drop_in and not request.drop_in.startswith(f"{found}/"):
        raise Refusal(f"CRI-O does not read {request.drop_in}", f"put the drop-in into {found}")
    return request.drop_in or f"{found}/{NAME}"


def documents_of(files: Mapping[str, bytes], request: RuntimeRequest) -> list[Layer]:
    """The root and the drop-ins in the order in which CRI-O reads them: filepath.Walk goes by the parts of paths."""
    root, below = request.config or CONFIG, folder(request) + "/"
    drop_ins = sorted((path for path in files if path.startswith(below) and path != root), key=lambda p: p.split("/"))
    return [read(path, files[path]) for path in (root, *drop_ins) if path in files]


def read(path: str, data: bytes) -> Layer:
    text, doc = dropin.load(path, data)
    section = _table(_table(doc, path, ("crio",)).get("crio"), f"{path}: crio", ("runtime",)).get("runtime")
    section = _table(section, f"{path}: crio.runtime", (*FLAGS, "runtimes"))
    runtimes = _table(section.get("runtimes"), f"{path}: crio.runtime.runtimes")
    for name, runtime in runtimes.items():
        _table(runtime, f"{path}: runtimes.{name}", ("runtime_path", "runtime_type", *INHERITED))
    for key in (DEFAULT, CGROUP, CONMON_CGROUP):
        if not isinstance(section.get(key, ""), str):
            raise Refusal(f"{path}: {key} is {section[key]!r}, not a string", "fix the file: CRI-O refuses it too")
    if not isinstance(section.get(CDI, []), list):
        raise Refusal(f"{path}: {CDI} is no list of paths", "fix the file: CRI-O refuses it too")
    return Layer(path, text, {key: value for key, value in section.items() if key != "runtimes"}, runtimes)


def _table(value: Any, name: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """A table; its `keys` have to be in CRI-O's own spelling: the decoder would take Default_Runtime as well."""
    found = dropin.table(value, name, "CRI-O")
    dropin.spelled_as_known(found, name, keys)
    return found


def in_force(documents: Sequence[Layer], request: RuntimeRequest) -> CrioSettings:
    version = request.release
    own = "" if version == (0, 0) else "crun" if version >= (1, 31) else "runc"
    section: dict[str, Any] = {}
    built_in = next(({"allowed_annotations": found} for first, found in _ANNOTATIONS if version >= first), {})
    runtimes: dict[str, dict[str, Any]] = {own: built_in} if own else {}
    for document in documents:
        section |= document.section
        runtimes |= document.runtimes
    for word in flag_values(request.flags, "--runtimes"):
        for item in word.split(","):
            name, _, rest = item.partition(":")
            runtimes[name] = {"runtime_path": rest.partition(":")[0]}
    for key, flag in FLAGS.items():
        if given := flag_values(request.flags, flag):
            section[key] = given[-1]
    return CrioSettings(section, runtimes, section.get(DEFAULT) or own)


# where nvidia-container-toolkit 1.18.0 to 1.19.0 wrote the drop-in: CRI-O does not look there
UNREAD = f"{posixpath.dirname(ROW.files[0])}/{NAME}"
SOURCE = "https://github.com/cri-o/cri-o/blob/main/docs/crio.conf.5.md"
_SECTION = ("crio", "runtime")
LOW_LEVEL = "nvidia-container-toolkit internal/oci/runtime_low_level.go"
_CDI_DIRS = ["/etc/cdi", "/var/run/cdi"]
_CANDIDATES = ("nvidia-container-runtime", "runtimes")  # what nvidia-container-runtime may wrap: the first found


def patterns(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """The root, all that lies in the folder of drop-ins, the file that others write in vain, and the toolkit's own."""
    found = folder(request)
    return (request.config or CONFIG, f"{found}/*", f"{found}/*/*", f"{found}/*/*/*", UNREAD, TOOLKIT)


def configure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Files → files.  A missing root counts as empty, as CRI-O takes it."""
    documents = documents_of(files, request)
    wanted, candidates = _wanted(documents, request), _candidates(files, documents, request)
    remarks = tuple(_remarks(files, documents, request))
    if not wanted.sets and not wanted.unset and not candidates:
        return Edit(reasons=remarks)
    root, drop_in = request.config or CONFIG, drop_in_of(request)
    data = wanted.written(files, documents, root, drop_in, in_place=request.in_place)
    if candidates:
        text = toml.edit(dropin.load(TOOLKIT, files[TOOLKIT])[0], {_CANDIDATES: candidates})
        data[TOOLKIT] = dropin.encode(text, files[TOOLKIT])
    _prove({**files, **data}, request)
    changes = changed(files, data)
    return Edit(changes=changes, reasons=(*_reasons(wanted, candidates, changes), *remarks), meant=wanted.meant)


# ---------------------------------------------------------------- deciding


def _wanted(documents: Sequence[Layer], request: RuntimeRequest) -> dropin.LayerChange:
    """What to set below [crio.runtime], only what differs from what is in force; and files to unset the default in."""
    now = in_force(documents, request)
    sets: dict[toml.Path, Any] = {}
    unset: list[str] = []
    if request.default_runtime == "nvidia" and now.default != request.name:
        sets[(DEFAULT,)] = request.name
    if request.default_runtime == "runc" and now.default == request.name:
        unset, back = _former_default(documents, request)
        sets |= {} if back is None else {(DEFAULT,): back}
    runtime = _runtime(now, request)
    if now.runtimes.get(request.name) != runtime:
        sets["runtimes", request.name] = runtime
    sets |= _cgroup(now, request) | _cdi(now, request)
    _not_by_flags(sets, unset, request)
    return dropin.LayerChange(_SECTION, DEFAULT, sets, unset)


def _runtime(now: CrioSettings, request: RuntimeRequest) -> dict[str, Any]:
    """The runtime's table as it should be: one that is there keeps its keys, a new one inherits from the default."""
    have = now.runtimes.get(request.name)
    if have is None:
        parent = _parent(now, request)
        inherited = {key: parent[key] for key in INHERITED if parent.get(key)}
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


def _parent(now: CrioSettings, request: RuntimeRequest) -> Mapping[str, Any]:
    """The runtime to inherit from: the default one, or the first usual one, of those that conmon runs."""
    for name in (now.default, "crun", "runc"):
        found = None if name == request.name else now.runtimes.get(name)
        if found is not None and found.get("runtime_type", "") in ("", "oci"):
            return found
    return {}


def _low_level(documents: Sequence[Layer], request: RuntimeRequest) -> str:
    """The binary of the runtime to wrap where nvidia-container-runtime would not find it on the PATH, else ""."""
    binary = str(_parent(in_force(documents, request), request).get("runtime_path", ""))
    return binary if posixpath.dirname(binary) not in ("", *PATH) else ""


def _candidates(files: Mapping[str, bytes], documents: Sequence[Layer], request: RuntimeRequest) -> list[str]:
    """The toolkit's list with that binary behind what is there; [] where the list can stay.

    CRI-O's own packages keep crun and runc in /usr/libexec/crio: no container of the nvidia runtime would start.
    """
    binary = _low_level(documents, request)
    if not binary or TOOLKIT not in files or posixpath.dirname(request.path) not in PATH:
        return []
    have = toml.lookup(dropin.load(TOOLKIT, files[TOOLKIT])[1], _CANDIDATES)
    have = ["runc", "crun"] if have is None else have  # its own default
    if not isinstance(have, list) or not all(isinstance(name, str) for name in have):
        raise Refusal(f"{TOOLKIT}: {'.'.join(_CANDIDATES)} is no list of names", 'write runtimes = ["runc", "crun"]')
    return [] if any(name.startswith("/") for name in have) else [*have, binary]


def _former_default(documents: Sequence[Layer], request: RuntimeRequest) -> tuple[list[str], str | None]:
    """Where to unset the default so that what stood below it counts again, or else what to set.

    A usual runtime that has a table, or "", for which CRI-O takes its built-in one.
    """
    drop_in = drop_in_of(request)
    mine = [d.path for d in documents if d.path == drop_in and d.section.get(DEFAULT) == request.name]
    rest = [Layer(d.path, d.text, {}, d.runtimes) if d.path in mine else d for d in documents]
    if in_force(rest, request).default != request.name:
        return mine, None
    tables = {name for document in documents for name in document.runtimes}
    return [], next((name for name in ("crun", "runc") if name in tables), "")


def _cgroup(now: CrioSettings, request: RuntimeRequest) -> dict[toml.Path, Any]:
    """cgroup_manager; conmon itself then has to be in the pod's cgroup: a slice is refused with cgroupfs."""
    asked = request.cgroup_driver
    if not asked or (now.section.get(CGROUP) or "systemd") == asked:
        return {}
    pod = asked == "cgroupfs" and now.section.get(CONMON_CGROUP) != "pod"
    return {(CGROUP,): asked} | ({(CONMON_CGROUP,): "pod"} if pod else {})


def _cdi(now: CrioSettings, request: RuntimeRequest) -> dict[toml.Path, Any]:
    """cdi_spec_dirs, of 1.24 and later: CDI is on where there are any; there is no other switch."""
    if not switches_cdi(request, "CRI-O", (1, 24)) or bool(now.section.get(CDI, _CDI_DIRS)) is request.cdi:
        return {}
    return {(CDI,): _CDI_DIRS if request.cdi else []}


def _not_by_flags(sets: Mapping[toml.Path, Any], unset: Sequence[str], request: RuntimeRequest) -> None:
    """Refuse what an argument of the daemon overrules."""
    keys = {key[0] for key in sets} | ({DEFAULT} if unset else set())
    for key, flag in FLAGS.items():
        if key in keys and flag_values(request.flags, flag):
            raise _overruled(flag, key)
    if "runtimes" in keys and any(f"{request.name}:" in word for word in flag_values(request.flags, "--runtimes")):
        raise _overruled("--runtimes", f"runtimes.{request.name}")


def _overruled(flag: str, key: str) -> Refusal:
    return Refusal(
        f"CRI-O is started with {flag}, which overrules {key} of its files",
        f"remove {flag} from the unit (systemctl cat crio) and its files in /etc/sysconfig or /etc/default",
    )


# ---------------------------------------------------------------- writing


def _prove(files: Mapping[str, bytes], request: RuntimeRequest) -> None:
    """Read the outcome as CRI-O does: it must say what was asked."""
    if left := _wanted(documents_of(files, request), request).sets:
        names = ", ".join(".".join(key) for key in left)
        raise Refusal(f"{names} would not be in force", "look into the files of CRI-O, and report this")


# ---------------------------------------------------------------- saying


def _reasons(wanted: dropin.LayerChange, candidates: Sequence[str], changes: Mapping[str, Any]) -> Iterator[Reason]:
    if wanted.words:
        yield Reason(what=" and ".join(sorted(set(changes) - {TOOLKIT})), why="; ".join(wanted.words), source=SOURCE)
    if candidates:
        why = f"names {candidates[-1]}, which is not on the PATH, as a runtime that nvidia-container-runtime may wrap"
        yield Reason(what=TOOLKIT, why=why, source=LOW_LEVEL)


def _remarks(files: Mapping[str, bytes], documents: Sequence[Layer], request: RuntimeRequest) -> Iterator[Reason]:
    """What an edit of these files cannot fix."""
    if UNREAD in files:
        yield Reason(
            what=f"{UNREAD} has no effect",
            why=f"CRI-O reads {folder(request)}; nvidia-container-toolkit 1.18.0 to 1.19.0 wrote it there: remove it",
            source=SOURCE,
        )
    binary = _low_level(documents, request)
    if binary and (TOOLKIT not in files or posixpath.dirname(request.path) not in PATH):
        yield Reason(
            what=f"{binary} is not on the PATH",
            why="nvidia-container-runtime looks for the runtime that it wraps there: nvidia-ctk config --in-place "
            f"--set nvidia-container-runtime.runtimes={binary} names it",
            source=LOW_LEVEL,
        )


def unconfigure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Takes the runtime out of every file that has it, and the default where it names it; an empty drop-in goes."""
    documents = documents_of(files, request)
    drop_in, usual = drop_in_of(request), _instead(documents, request)
    changes: dict[str, bytes | None] = {}
    reasons = []
    for document in documents:
        removes: list[toml.Path] = [("runtimes", request.name)] if request.name in document.runtimes else []
        default = document.section.get(DEFAULT) == request.name
        if not removes and not default:
            continue
        instead = usual if default and document.path != drop_in else ""  # what stood below a drop-in counts again
        removes += [(DEFAULT,)] if default and not instead else []
        sets: dict[toml.Path, Any] = {(*_SECTION, DEFAULT): instead} if instead else {}
        text = toml.edit(document.text, sets, [(*_SECTION, *key) for key in removes])
        gone = document.path == drop_in and dropin.empty(document.path, text)
        changes[document.path] = None if gone else dropin.encode(text, files[document.path])
        stated = [f"removes {'.'.join(key)}" for key in removes] + [f"sets {DEFAULT} = {instead}"] * bool(sets)
        reasons.append(Reason(what=document.path, why="removes it" if gone else "; ".join(stated), source=SOURCE))
        left = ", ".join(key for key in read(document.path, text.encode()).section if key != DEFAULT)
        if document.path == drop_in and left:
            reasons.append(Reason(what=f"{left} in {drop_in}", why="stays: it is not the runtime's"))
    if changes and flag_values(request.flags, FLAGS[DEFAULT])[-1:] == [request.name]:
        raise _overruled(FLAGS[DEFAULT], DEFAULT)
    return Edit(changes=changes, reasons=tuple(reasons), meant=_meant(request) if changes else ())


def _instead(documents: Sequence[Layer], request: RuntimeRequest) -> str:
    """The default to set where nothing below ours names one and only another usual runtime has a table, else ""."""
    rest = [
        Layer(
            document.path,
            document.text,
            {key: value for key, value in document.section.items() if (key, value) != (DEFAULT, request.name)},
            {name: table for name, table in document.runtimes.items() if name != request.name},
        )
        for document in documents
    ]
    tables = {name for document in rest for name in document.runtimes}
    usual = next((name for name in ("crun", "runc") if name in tables), "")
    return "" if in_force(rest, request).default in tables else usual


def _meant(request: RuntimeRequest) -> tuple[str, ...]:
    return (".".join((*_SECTION, DEFAULT)), ".".join((*_SECTION, "runtimes", request.name)))


def state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What is in force."""
    documents = documents_of(files, request)
    now = in_force(documents, request)
    runtimes = {name: str(one.get("runtime_path", "")) for name, one in now.runtimes.items()}
    dirs = now.section.get(CDI, _CDI_DIRS)
    return RuntimeState(
        runtimes=runtimes,
        default=now.default,
        path=runtimes.get(request.name, ""),
        cdi=None if (0, 0) < request.release < (1, 24) else bool(dirs),
        cgroup_driver=now.section.get(CGROUP) or "systemd",
        files=tuple(document.path for document in documents),
        notes=tuple(_remarks(files, documents, request)),
    )


def activation(facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
    """CRI-O is restarted, and conmon keeps the containers meanwhile.

    On SIGHUP 1.26 and later read the runtimes again (pkg/config/reload.go) and say so, but go on with those that they
    started with: 1.36.3 then does not find a runtime that is new.
    """
    request = RuntimeRequest(runtime="crio", config=runtime.config, flags=runtime.flags)
    root = ("--config", FILE) if runtime.config in facts.files or runtime.config in edit.changes else ()
    return restarted(
        runtime,
        edit,
        validate=(runtime.binary or "crio", *root, "--config-dir", folder(request), "config"),
        health=(
            ("crictl", "--runtime-endpoint", f"unix://{runtime.socket}", "version"),
            ("curl", "-fsS", "-m", "10", "--unix-socket", runtime.socket, "http://localhost/info"),
        ),
    )


ENGINE = Engine(patterns, configure, unconfigure, state, activation)
