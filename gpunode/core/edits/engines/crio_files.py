"""CRI-O's files as it reads them, and what they come to.

CRI-O reads its root file, then every file below crio.conf.d, whatever its suffix, folder by folder in the order of
names.  A later file overrules single settings, but a runtime's table replaces the earlier table of that runtime as a
whole.  The built-in runtime stays beside those of the files.
Sources: cri-o pkg/config/config.go (UpdateFromPath, defaultRuntimeHandler), its decoder BurntSushi/toml decode.go
(unifyMap), internal/criocli/criocli.go (arguments); tried with `crio config` of 1.28.11, 1.31.13 and 1.36.3.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpunode.core.edits.engines import dropin
from gpunode.core.edits.request import Refusal, RuntimeRequest, release
from gpunode.core.facts.daemon_flags import flag_values

CONFIG = "/etc/crio/crio.conf"
FOLDER = "/etc/crio/crio.conf.d"
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
    """Where CRI-O looks for drop-ins.

    A root config of one's own, which no daemon's arguments name, has its own folder beside it: to try an edit there
    must not write into /etc.
    """
    named = flag_values(request.flags, "--config-dir", "-d")
    if named:
        return named[-1]
    if request.config in ("", CONFIG) or request.flags:
        return FOLDER
    return posixpath.dirname(request.drop_in) if request.drop_in else f"{request.config}.d"


def drop_in_of(request: RuntimeRequest) -> str:
    """The file for what is ours; Refusal where CRI-O would never read it."""
    found = folder(request)
    if request.drop_in and not request.drop_in.startswith(f"{found}/"):
        raise Refusal(f"CRI-O does not read {request.drop_in}", f"put the drop-in into {found}")
    return request.drop_in or f"{found}/{NAME}"


def documents_of(files: Mapping[str, bytes], request: RuntimeRequest) -> list[Document]:
    """The root and the drop-ins in the order in which CRI-O reads them: filepath.Walk goes by the parts of paths."""
    root, below = request.config or CONFIG, folder(request) + "/"
    drop_ins = sorted((path for path in files if path.startswith(below) and path != root), key=lambda p: p.split("/"))
    return [read(path, files[path]) for path in (root, *drop_ins) if path in files]


def read(path: str, data: bytes) -> Document:
    text, doc = dropin.load(path, data)
    section = _table(_table(doc, path, ("crio",)).get("crio"), f"{path}: crio", ("runtime",)).get("runtime")
    section = _table(section, f"{path}: crio.runtime", (*FLAGS, "runtimes"))
    runtimes = _table(section.get("runtimes"), f"{path}: crio.runtime.runtimes")
    for name, runtime in runtimes.items():
        _table(runtime, f"{path}: runtimes.{name}", ("runtime_path", "runtime_type", *INHERITED))
    for key in (DEFAULT, CGROUP, CONMON_CGROUP):
        if not isinstance(section.get(key, ""), str):
            raise Refusal(f"{path}: {key} is {section[key]!r}, not a string", "mend the file: CRI-O refuses it too")
    if not isinstance(section.get(CDI, []), list):
        raise Refusal(f"{path}: {CDI} is no list of paths", "mend the file: CRI-O refuses it too")
    return Document(path, text, {key: value for key, value in section.items() if key != "runtimes"}, runtimes)


def _table(value: Any, name: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """A table; its `keys` have to be in CRI-O's own spelling: the decoder would take Default_Runtime as well."""
    found = dropin.table(value, name, "CRI-O")
    for key in found:
        if key not in keys and key.lower() in keys:
            raise Refusal(f"{name} has the key {key}", f"write it as {key.lower()}")
    return found


def in_force(documents: Sequence[Document], request: RuntimeRequest) -> InForce:
    version = release(request.version)
    own = "" if version == (0, 0) else "crun" if version >= (1, 31) else "runc"
    section: dict[str, Any] = {}
    runtimes: dict[str, dict[str, Any]] = {own: _built_in(version)} if own else {}
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
    return InForce(section, runtimes, section.get(DEFAULT) or own)


def _built_in(version: tuple[int, int]) -> dict[str, Any]:
    return next(({"allowed_annotations": found} for first, found in _ANNOTATIONS if version >= first), {})
