"""What every engine's module in this package offers, and the values it answers with."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gpunode.core.errors import InputError
from gpunode.core.model import Distribution, Edit, NodeFacts, Problem, Reason, Runtime, RuntimeName, Undo

# ---------------------------------------------------------------- what is asked

PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")  # of daemons, by systemd
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True, kw_only=True)
class RuntimeRequest:
    """What the configuration of one engine should say, and what is known of the engine.

    `distribution` is the Kubernetes that brings the engine, "" for one of its own.  `version` is what the daemon says
    of itself ("1.6.20~ds1", "" unknown: then only what every version reads is written).  `config` and `drop_in` are
    absolute paths, "" takes the engine's own; `in_place` asks for no drop-in.  `default_runtime` keep, `cdi` None and
    `cgroup_driver` "" leave what is there.  `flags` are the daemon's arguments: what they set cannot be set in a file
    as well.  `enable_cri` takes containerd's CRI plugin out of `disabled_plugins`.
    """

    runtime: RuntimeName
    distribution: Distribution = ""
    config: str = ""
    drop_in: str = ""
    in_place: bool = False
    version: str = ""
    default_runtime: Literal["nvidia", "runc", "keep"] = "nvidia"
    name: str = "nvidia"
    path: str = "/usr/bin/nvidia-container-runtime"
    cdi: bool | None = None
    cgroup_driver: Literal["systemd", "cgroupfs", ""] = ""
    flags: tuple[str, ...] = ()
    enable_cri: bool = False


class Refusal(Exception):
    """An edit that would not work: becomes the Problem of the Edit, and no file changes."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.problem = Problem(what=what, fix=fix)


def check_request(request: RuntimeRequest) -> None:
    """Raise InputError for names and paths that no engine takes."""
    if not _NAME.match(request.name) or request.name == "runc":
        raise InputError(
            f"runtime name {request.name!r}",
            expected="letters, digits, '.', '_', '-', and not runc, which the engines reserve",
        )
    for what, path in (("runtime path", request.path), ("config", request.config), ("drop-in", request.drop_in)):
        if path and (not path.startswith("/") or posixpath.normpath(path) != path or not path.isprintable()):
            raise InputError(f"{what} {path!r}", expected="an absolute, normalised path")
    if not request.path:
        raise InputError("the runtime path is empty", expected="an absolute path")
    if request.drop_in and request.drop_in == request.config:
        raise InputError(f"the drop-in {request.drop_in} is the config file itself", expected="another path")


def changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> dict[str, bytes]:
    """Those files of `after` that differ from `before`."""
    return {path: data for path, data in after.items() if before.get(path) != data}


# ---------------------------------------------------------------- a program of Kubernetes' on a host

Files = Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Component:
    """What is asked of it, as functions of its files (absolute path → bytes; a path not in there does not exist).

    `root` is the file that names the others: it is written last.  `label` says whose an undo record is.  `files` gives
    paths and globs, to be asked again with what was read until it names nothing new.  `settle` is how many seconds the
    program has to stay up afterwards.
    """

    name: str
    root: str
    label: str
    files: Callable[[Files], tuple[str, ...]]
    configure: Callable[[Files], Edit]
    unconfigure: Callable[[Files, Sequence[Mapping[str, Undo]]], Edit]
    activation: Callable[[Files, Edit], Activation]
    settle: int = 10


def asks(scheme: str, address: str, port: str) -> tuple[tuple[str, ...], ...]:
    """Health commands that ask where a program answers, with the tools that a node may have; () where port is 0.

    Its certificate is its own.  What listens everywhere is asked at 127.0.0.1.
    """
    if port == "0":
        return ()
    address = "127.0.0.1" if address in ("0.0.0.0", "::") else address  # noqa: S104
    url = f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}/healthz"
    return (
        ("curl", "-fsSk", "--noproxy", "*", "--max-time", "5", url),
        ("wget", "-q", "--no-proxy", "--no-check-certificate", "-T", "5", "-O", "-", url),
    )


def units_changed(edit: Edit) -> bool:
    """Whether systemd has to read its units again."""
    return any(path.endswith((".service", ".conf")) and "/systemd/system/" in path for path in edit.changes)


# ---------------------------------------------------------------- container engines


@dataclass(frozen=True, kw_only=True)
class RuntimeState:
    """What an engine has in force: its runtimes, the default one, and what belongs to the nvidia runtime."""

    runtimes: tuple[str, ...] = ()
    default: str = ""
    path: str = ""  # the binary of the nvidia runtime, "" when the engine does not know that runtime
    cdi: bool | None = None  # None: this engine has no such setting
    cgroup_driver: str = ""  # systemd, cgroupfs, "" when the files do not say
    files: tuple[str, ...] = ()  # in force, root first
    notes: tuple[Reason, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Activation:
    """What follows an edit: the unit and how it is told, what checks the files before, what proves health after.

    `verb` is restart, reload, "" where the engine takes the files up by itself, or await: then the unit (the kubelet)
    starts `process` anew by itself, which has to answer and stay up.  `reread`: systemd has to read its units again.
    `validate` is a command's words, in which @FILE@ stands for the root config.  `health` are commands that prove that
    the engine answers on `socket`: the first whose tool is there counts.  `plugin` is what `ctr plugins ls` must call
    ok.  `disrupts` is a sentence, "" when nothing is disturbed.
    """

    unit: str
    verb: str
    config: str
    validate: tuple[str, ...] = ()
    socket: str = ""
    plugin: str = ""
    health: tuple[tuple[str, ...], ...] = ()
    disrupts: str = ""
    process: str = ""
    reread: bool = False


class Engine(Protocol):
    """A module of this package.  `files` holds absolute paths and their bytes; a path not in it does not exist."""

    CONFIG: str  # the root config file's usual path

    def patterns(self, files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
        """Paths and globs of all files the edit has to be given, as far as the files that are there tell.

        Called again with what was read, until it names nothing new: imports name further files.
        """
        ...

    def configure(self, files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
        """What changes so that the engine knows the nvidia runtime; raises Refusal or InputError."""
        ...

    def unconfigure(self, files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
        """What changes so that the engine no longer knows it: only nvidia's entries go, reasons say what stays."""
        ...

    def state(self, files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
        """What is in force."""
        ...

    def activation(self, facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
        """How the engine takes the edit up; `runtime` is the engine as the probe found it."""
        ...
