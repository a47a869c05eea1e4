"""Podman: the nvidia runtime in containers.conf, and only when it is asked for.

Podman gets GPUs by CDI (`podman run --device nvidia.com/gpu=all`) and needs no runtime for that: node/activate/cdi.sh
makes the specification.  A runtime entry is written where it is to be the default or has a name of its own.  Podman
reads containers.conf, then the files *.conf in containers.conf.d by name; a later file overrules single settings, and
runtimes are merged by name.
Sources: containers/common pkg/config/new.go and docs/containers.conf.5.md.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from gpunode.core.edits.engines import dropin
from gpunode.core.edits.engines.dropin import Layer
from gpunode.core.edits.target import Activation, Engine, Refusal, RuntimeRequest, RuntimeState, changed
from gpunode.core.edits.text import toml
from gpunode.core.engines import ROWS
from gpunode.core.model import Edit, NodeFacts, Reason, Runtime

ROW = ROWS["podman"]
CONFIG = ROW.config
VENDOR = ROW.files[0]  # the distribution's, read first and never written
NAME = "99-nvidia.conf"
SOURCE = "https://github.com/containers/common/blob/main/docs/containers.conf.5.md"


def drop_in_of(request: RuntimeRequest) -> str:
    """The file for what is ours: beside the root config, which may be a user's own."""
    return request.drop_in or f"{request.config or CONFIG}.d/{NAME}"


def patterns(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """The distribution's file, the root, and its drop-ins."""
    root = request.config or CONFIG
    return (VENDOR, root, ROW.below(root))


def configure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Files → files.  Without a runtime asked for nothing changes: CDI needs no entry."""
    documents = _documents(files, request)
    wanted = _wanted(documents, request)
    own = [document for document in documents if document.path != VENDOR]
    root, drop_in = request.config or CONFIG, drop_in_of(request)
    data = wanted.written(files, own, root, drop_in, in_place=request.in_place)
    _prove({**files, **data}, request)
    changes = changed(files, data)
    reason = Reason(what=" and ".join(sorted(changes)), why="; ".join(wanted.words), source=SOURCE)
    return Edit(changes=changes, reasons=(reason,) if changes else (), meant=wanted.meant)


def _documents(files: Mapping[str, bytes], request: RuntimeRequest) -> list[Layer]:
    root = request.config or CONFIG
    below = sorted(path for path in files if fnmatch.fnmatchcase(path, ROW.below(root)))
    here = [path for path in below if posixpath.dirname(path) == f"{root}.d"]
    return [_read(path, files[path]) for path in dict.fromkeys((VENDOR, root, *here)) if path in files]


def _read(path: str, data: bytes) -> Layer:
    text, doc = dropin.load(path, data)
    engine = dropin.table(doc.get("engine"), f"{path}: engine", "podman")
    runtimes = dropin.table(engine.get("runtimes"), f"{path}: engine.runtimes", "podman")
    for name, paths in runtimes.items():
        if not isinstance(paths, list):
            raise Refusal(f"{path}: engine.runtimes.{name} is no list of paths", "fix the file: podman refuses it too")
    for key in ("runtime", "cgroup_manager"):
        if not isinstance(engine.get(key, ""), str):
            raise Refusal(f"{path}: engine.{key} is no string", "fix the file: podman refuses it too")
    return Layer(path, text, engine, runtimes)


def _in_force(documents: Sequence[Layer]) -> dict[str, Any]:
    engine: dict[str, Any] = {}
    runtimes: dict[str, Any] = {}
    for document in documents:
        engine |= document.section
        runtimes |= document.runtimes
    return {**engine, "runtimes": runtimes}


def _wanted(documents: Sequence[Layer], request: RuntimeRequest) -> dropin.LayerChange:
    """What to set below [engine], only what differs from what is in force; and files to unset the default in."""
    now = _in_force(documents)
    sets: dict[toml.Path, Any] = {}
    unset: list[str] = []
    if request.default_runtime == "nvidia" and now.get("runtime") != request.name:
        sets[("runtime",)] = request.name
    if request.default_runtime == "runc" and now.get("runtime") == request.name:
        unset = [d.path for d in documents if d.path != VENDOR and d.section.get("runtime") == request.name]
    asked = request.default_runtime == "nvidia" or request.name != "nvidia" or request.name in now["runtimes"]
    if asked and now["runtimes"].get(request.name) != [request.path]:
        sets["runtimes", request.name] = [request.path]
    if request.cgroup_driver and (now.get("cgroup_manager") or "systemd") != request.cgroup_driver:
        sets[("cgroup_manager",)] = request.cgroup_driver
    return dropin.LayerChange(("engine",), "runtime", sets, unset)


def _prove(files: Mapping[str, bytes], request: RuntimeRequest) -> None:
    """Read the outcome as podman does: it must say what was asked."""
    if _wanted(_documents(files, request), request).sets:
        raise Refusal(
            f"podman does not read {drop_in_of(request)}", f"give it a name in {ROW.below(request.config or CONFIG)}"
        )


def unconfigure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Takes the runtime, and the default where it names it, out of every file; an empty drop-in goes."""
    changes: dict[str, bytes | None] = {}
    reasons = []
    for document in _documents(files, request):
        removes: list[toml.Path] = [("engine", "runtimes", request.name)] if request.name in document.runtimes else []
        removes += [("engine", "runtime")] if document.section.get("runtime") == request.name else []
        if not removes or document.path == VENDOR:
            continue
        text = toml.edit(document.text, removes=removes)
        gone = document.path == drop_in_of(request) and dropin.empty(document.path, text)
        changes[document.path] = None if gone else dropin.encode(text, files[document.path])
        why = "removes it" if gone else f"removes {' and '.join('.'.join(key) for key in removes)}"
        reasons.append(Reason(what=document.path, why=why, source=SOURCE))
    meant = ("engine.runtime", f"engine.runtimes.{request.name}") if changes else ()
    why = "stays, and is renewed; systemctl disable --now nvidia-cdi-refresh.path ends that"
    reasons.append(Reason(what="the CDI specification", why=why))
    return Edit(changes=changes, reasons=tuple(reasons), meant=meant)


def state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What is in force; podman has no switch for CDI."""
    documents = _documents(files, request)
    now = _in_force(documents)
    runtimes = {name: str((paths or [""])[0]) for name, paths in now["runtimes"].items()}
    return RuntimeState(
        runtimes=runtimes,
        default=now.get("runtime", ""),
        path=runtimes.get(request.name, ""),
        cgroup_driver=now.get("cgroup_manager", ""),
        files=tuple(document.path for document in documents),
    )


def activation(facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
    """Every podman command reads its files again: nothing is restarted."""
    return Activation(unit="", verb="", config=runtime.config)


ENGINE = Engine(patterns, configure, unconfigure, state, activation)
