"""Taking the nvidia runtime out of containerd's files without a record of what was written: only its own entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from gpunode.core.edits.engines.containerd_file import NAMES, File, drop_in_path, read, resolve, settings
from gpunode.core.edits.engines.containerd_files import Config, dumped, in_force, load, unmeant
from gpunode.core.edits.engines.containerd_wish import (
    DEFAULT,
    RUNTIMES,
    SOURCE,
    built_in_runc,
    default_in_force,
    runtimes_in_force,
)
from gpunode.core.edits.engines.dropin import encode
from gpunode.core.edits.request import Refusal, RuntimeRequest
from gpunode.core.edits.text import toml
from gpunode.core.model import Edit, Reason

Files = dict[str, File]


def unconfigure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """The runtime's table goes, default_runtime_name where it names it, our drop-in when nothing else is in it.

    A runtimes table that would hold no more than what 1.x has built in goes too; where the default is left without a
    runtime, runc is written.
    """
    config = in_force(files, request, mend=True)
    there = {file.path: file for file in config.files if file.path in files}
    drop_in = drop_in_path(request)
    if drop_in in files and drop_in not in there:
        there[drop_in] = read(drop_in, files[drop_in], request)
    meant: list[toml.Path] = [(*RUNTIMES, request.name), DEFAULT]
    meant += [] if config.merges else [(*RUNTIMES, "runc")]  # built in, or written where the default needs it
    for default, keep in product(("", "runc"), (False, True)):
        edited = _edited(there, config, request, default)
        empty = drop_in in edited and not keep and not _says(edited[drop_in])
        gone = drop_in if empty or drop_in not in files else ""
        edited |= _not_importing(there | edited, gone) if gone else {}
        if not edited:
            return Edit()
        after = _loaded(files, config, edited, request, gone)
        works = default_in_force(config) != request.name or default_in_force(after) in runtimes_in_force(after)
        if not unmeant(config, after, meant) and (default or works):
            break
    else:
        what = f"without the runtime {request.name}, other settings of containerd would change"
        raise Refusal(what, "take it out of the files by hand")
    if default_in_force(after) == "runc" and "runc" not in runtimes_in_force(after):
        edited |= _with_runc(after)
    changes: dict[str, bytes | None] = {
        path: encode(file.content.text, files[path]) for path, file in edited.items() if path != gone
    }
    changes |= {gone: None} if gone in files else {}
    reasons = (*_removed(changes, after, request), *_stays(after, request, gone))
    return Edit(changes=changes, reasons=reasons, meant=dumped(meant, off=config.without_cri is not None))


def _edited(there: Files, config: Config, request: RuntimeRequest, default: str) -> Files:
    edited = {path: _without(file, config, request, default) for path, file in there.items()}
    return {path: file for path, file in edited.items() if file is not there[path]}


def _without(file: File, config: Config, request: RuntimeRequest, default: str) -> File:
    """The file without the runtime; where that was the default, with `default`, or without a say in it."""
    removes: list[toml.Path] = []
    sets: dict[toml.Path, Any] = {}
    for name in NAMES:
        at = ("plugins", name)
        section = dict(toml.lookup(file.content.doc, (*at, "containerd")) or {})
        runtimes = dict(section.get("runtimes", {}))
        if section.get("default_runtime_name") == request.name:
            sets |= {(*at, *DEFAULT): default} if default else {}
            removes += [] if default else [(*at, *DEFAULT)]
            del section["default_runtime_name"]
        if runtimes.pop(request.name, None) is not None:
            implicit = not config.merges and runtimes in ({}, {"runc": built_in_runc(config)})
            removes.append((*at, *RUNTIMES) if implicit else (*at, *RUNTIMES, request.name))
            section["runtimes"] = {} if implicit else runtimes
        if removes and not default and section in ({}, {"runtimes": {}}):
            removes.append((*at, "containerd"))  # with nothing in it, it says nothing
    return replace(file, content=file.content.edit(sets, removes)) if sets or removes else file


def _says(file: File) -> bool:
    """Whether a file says anything besides its version."""
    return any(path != ("version",) for path in settings(file.content.doc))


def _not_importing(files: Files, gone: str) -> Files:
    """The files that import exactly that path, without it: containerd does not start when it is not there."""
    after = {}
    for path, file in files.items():
        items = file.content.doc.get("imports", [])
        kept = [item for item, full in zip(items, file.imports, strict=True) if full != gone]
        if kept != items:
            sets: dict[toml.Path, Any] = {("imports",): kept} if kept else {}
            after[path] = replace(file, content=file.content.edit(sets, [] if kept else [("imports",)]))
    return after


def _loaded(files: Mapping[str, bytes], config: Config, edited: Files, request: RuntimeRequest, without: str) -> Config:
    kept = {path: data for path, data in files.items() if path != without}
    known = {path: file for path, file in ({f.path: f for f in config.files} | edited).items() if path != without}
    return load(kept, request, known)


def _with_runc(after: Config) -> Files:
    """1.x: the runtimes that are left do not have the default one among them."""
    name = after.plugin(after.root, "containerd.runtimes")
    file = next((file for file in reversed(after.files) if name in file.plugins), after.root)
    sets = {("plugins", name, *RUNTIMES, "runc"): built_in_runc(after)}
    return {file.path: replace(file, content=file.content.edit(sets))}


# ---------------------------------------------------------------- saying


def _removed(changes: Mapping[str, bytes | None], after: Config, request: RuntimeRequest) -> list[Reason]:
    why = f"removes the runtime {request.name}; the default runtime is {default_in_force(after)}"
    return [Reason(what=" and ".join(sorted(changes)), why=why, source=SOURCE)]


def _stays(after: Config, request: RuntimeRequest, without: str) -> list[Reason]:
    stays = []
    if after.cri.get("enable_cdi"):
        stays.append(("enable_cdi", "other runtimes may use CDI devices"))
    if toml.lookup(after.cri, (*RUNTIMES, "runc", "options", "SystemdCgroup")):
        stays.append(("SystemdCgroup of runc", "it is the kubelet's"))
    drop_in = drop_in_path(request)
    if after.file(drop_in) and drop_in != without:
        stays.append((drop_in, "it says more than the runtime"))
    globs = [item for file in after.files for item in file.imports if "*" in item and resolve(item, [drop_in])]
    stays += [(f"the import of {item}", "other files may be there") for item in globs]
    return [Reason(what=what, why=f"stays: {why}", source=SOURCE) for what, why in stays]
