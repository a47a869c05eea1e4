"""What every engine's module in this package offers, and the values it answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gpunode.core.edits.request import RuntimeRequest
from gpunode.core.model import Edit, NodeFacts, Reason, Runtime


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
