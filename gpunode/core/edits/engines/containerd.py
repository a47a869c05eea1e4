"""containerd's config.toml: the nvidia runtime in the CRI plugin's table, in place or as a drop-in.

containerd 1.x and engines of unknown version are edited in place, in the file whose CRI section is in force: there
the CRI tables of an imported file replace those of the root.  From 2.0 on a drop-in holds only what is ours; it carries
the root's version, because 2.3 does not start with a newer one.  What the files say together, and what they
lack, is in containerd_files.py; whatever is written is read again as the daemon does before it counts.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain, product
from typing import Any

from gpunode.core.edits.engines.containerd_files import (
    CONFIG,
    DEFAULT,
    IMAGES,
    NAMES,
    RUNC,
    RUNTIMES,
    SOURCE,
    ContainerdConfig,
    ContainerdFile,
    Difference,
    built_in_runc,
    default_in_force,
    difference,
    drop_in_path,
    dumped,
    in_force,
    load,
    parse,
    read,
    resolve,
    runtimes_in_force,
    unmeant,
)
from gpunode.core.edits.engines.dropin import encode
from gpunode.core.edits.target import Activation, Engine, Refusal, RuntimeRequest, RuntimeState, changed, restarted
from gpunode.core.edits.text import jsontext, toml
from gpunode.core.edits.undo import NEEDED, put
from gpunode.core.engines import ROWS
from gpunode.core.errors import InputError
from gpunode.core.model import Edit, NodeFacts, Reason, Runtime

Files = dict[str, ContainerdFile]


def unconfigure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """The runtime's table goes, default_runtime_name where it names it, our drop-in when nothing else is in it.

    A runtimes table that would hold no more than what 1.x has built in goes too; where the default is left without a
    runtime, runc is written.
    """
    config = in_force(files, request, repair=True)
    there = {file.path: file for file in config.files if file.path in files}
    drop_in = drop_in_path(request)
    if drop_in in files and drop_in not in there:
        there[drop_in] = read(drop_in, files[drop_in], request)
    meant: list[toml.Path] = [(*RUNTIMES, request.name), DEFAULT]
    meant += [] if config.merges else [(*RUNTIMES, "runc")]  # built in, or written where the default needs it
    for default, keep in product(("", "runc"), (False, True)):
        every = {path: _without(file, config, request, default) for path, file in there.items()}
        edited = {path: file for path, file in every.items() if file is not there[path]}
        empty = drop_in in edited and not keep and not _states(edited[drop_in])
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


def _without(file: ContainerdFile, config: ContainerdConfig, request: RuntimeRequest, default: str) -> ContainerdFile:
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


def _settings(file: ContainerdFile) -> list[toml.Path]:
    return [path for path, value in jsontext.leaves({(): file.content.doc}) if value != {}]


def _states(file: ContainerdFile) -> bool:
    """Whether a file says anything besides its version, be it in a comment."""
    return "#" in file.content.text or any(path != ("version",) for path in _settings(file))


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


def _loaded(
    files: Mapping[str, bytes], config: ContainerdConfig, edited: Files, request: RuntimeRequest, without: str
) -> ContainerdConfig:
    kept = {path: data for path, data in files.items() if path != without}
    known = {path: file for path, file in ({f.path: f for f in config.files} | edited).items() if path != without}
    return load(kept, request, known)


def _with_runc(after: ContainerdConfig) -> Files:
    """1.x: the runtimes that are left do not have the default one among them."""
    name = after.plugin(after.root, "containerd.runtimes")
    file = next((file for file in reversed(after.files) if name in file.plugins), after.root)
    sets = {("plugins", name, *RUNTIMES, "runc"): built_in_runc(after)}
    return {file.path: replace(file, content=file.content.edit(sets))}


# ---------------------------------------------------------------- saying


def _removed(changes: Mapping[str, bytes | None], after: ContainerdConfig, request: RuntimeRequest) -> list[Reason]:
    why = f"removes the runtime {request.name}; the default runtime is {default_in_force(after)}"
    return [Reason(what=" and ".join(sorted(changes)), why=why, source=SOURCE)]


def _stays(after: ContainerdConfig, request: RuntimeRequest, without: str) -> list[Reason]:
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


def kept(
    files: Mapping[str, bytes], left: Mapping[str, bytes], theirs: Collection[str], request: RuntimeRequest
) -> Edit:
    """The imports of `files` without which files of others would no longer be read of those that are `left`."""
    lost = set(theirs) & {*_imported(files, request)} - {*_imported(left, request)}
    changes: dict[str, bytes | None] = {}
    reasons = []
    for path in _imported(files, request) if lost else ():
        stated = parse(path, left.get(path, b""), request)
        have = stated.doc.get("imports", [])
        items = {item: resolve(full, lost) for item, full in _imports(path, files, request) if item not in have}
        if any(items.values()):
            wrote = parse(path, files[path], request) if not stated.doc else stated
            content = wrote.edit({("imports",): [*have, *(item for item, brings in items.items() if brings)]})
            changes[path] = encode(content.text, files[path])
            names = ", ".join(sorted({one for brings in items.values() for one in brings}))
            reasons.append(Reason(what=path, why=f"{NEEDED}, the import of {names}", level="stays"))
    return Edit(changes=changes, reasons=tuple(reasons))


def _imports(path: str, files: Mapping[str, bytes], request: RuntimeRequest) -> Iterator[tuple[str, str]]:
    """What a file imports, as it says it and in full."""
    items = parse(path, files[path], request).doc.get("imports") if path in files else None
    for item in items if isinstance(items, list) else []:
        if isinstance(item, str):
            yield item, posixpath.normpath(posixpath.join(posixpath.dirname(path), item))


def _imported(files: Mapping[str, bytes], request: RuntimeRequest) -> list[str]:
    """The root and what it imports, as far as it was read."""
    found = [request.config or CONFIG]
    for path in found:
        for _, full in _imports(path, files, request):
            found += [one for one in (full, *resolve(full, files)) if one not in found]
    return found


def patterns(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """What is imported, and the drop-in's folder: a glob import brings in all of it."""
    drop_in = drop_in_path(request)
    return tuple(dict.fromkeys((*_imported(files, request), drop_in, f"{posixpath.dirname(drop_in)}/*.toml")))


def configure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Files → files.  `files` has every file in force by its absolute path; a missing root counts as not there."""
    enabled = _enable_cri(files, request) if request.enable_cri else {}
    config = in_force({**files, **enabled}, request, repair=True)
    ours, root = drop_in_path(request), config.root
    if request.refused and (config.file(ours) or ours not in root.imports):  # else it is the drop-in, which comes back
        raise Refusal(f"containerd does not start with {root.path}: {request.refused}", f"fix {root.path} first")
    wanted = difference(config, request)
    if not wanted:
        config = in_force({**files, **enabled}, request)
        if not enabled:
            return Edit(reasons=_remarks(config))
    written, instead = _written(files, config, wanted, request) if wanted else ({}, "")
    changes = changed(files, {**enabled, **written})
    return Edit(
        changes=changes,
        reasons=(*_reasons(files, wanted, changes, bool(enabled), instead), *_remarks(config)),
        meant=dumped(wanted.paths, off=bool(enabled) or config.without_cri is not None),
    )


def _enable_cri(files: Mapping[str, bytes], request: RuntimeRequest) -> dict[str, bytes]:
    """The files that disable the CRI plugin, with its names taken out of disabled_plugins."""
    names = {*NAMES, IMAGES}
    after = {}
    for path in patterns(files, request):
        file = read(path, files[path], request) if path in files else None
        disabled = file.names("disabled_plugins") if file else []
        if file and names & set(disabled):
            content = file.content.edit({("disabled_plugins",): [name for name in disabled if name not in names]})
            after[path] = encode(content.text, files[path])
    return after


# ---------------------------------------------------------------- writing


def _written(
    files: Mapping[str, bytes], config: ContainerdConfig, wanted: Difference, request: RuntimeRequest
) -> tuple[dict[str, bytes], str]:
    """The first way of writing it after which the daemon has in force what is wanted, and nothing else has changed.

    The second value says why it is no drop-in where that was to be expected.
    """
    drop_in = config.merges and request.release != (0, 0) and not request.in_place
    refused: Refusal | None = None
    for changes in chain(_as_drop_in(files, config, wanted, request) if drop_in else (), _in_place(config, wanted)):
        try:
            _prove(files, config, changes, wanted, request)
        except Refusal as refusal:
            refused = refused or refusal
        else:
            data = {path: encode(file.content.text, files.get(path, b"")) for path, file in changes.items()}
            return data, _no_drop_in(changes, refused, request)
    assert refused is not None
    raise refused


def _edited(file: ContainerdFile, config: ContainerdConfig, wanted: Difference) -> ContainerdFile:
    """The file with what is wanted, below the name of the CRI plugin that counts in it."""

    def full(path: toml.Path) -> toml.Path:
        key = ".".join(path[:2]) if path[0] == "containerd" else path[0]
        return ("plugins", config.plugin(file, key), *path)

    sets = {full(path): value for path, value in wanted.sets.items()}
    return replace(file, content=file.content.edit(sets, [full(path) for path in wanted.removes]))


def _in_place(config: ContainerdConfig, wanted: Difference) -> Iterator[dict[str, ContainerdFile]]:
    """In the file whose CRI section is in force; where tables are merged, in the root or else in a later file."""
    with_cri = [file for file in reversed(config.files) if any(name in file.plugins for name in NAMES)]
    order = [config.root, *with_cri]
    if not config.merges:
        name = config.plugin(config.root, "")
        order = [*(file for file in with_cri if name in file.plugins), config.root][:1]
    for path, file in {file.path: file for file in order}.items():
        yield {path: _edited(file, config, wanted)}


def _as_drop_in(
    files: Mapping[str, bytes], config: ContainerdConfig, wanted: Difference, request: RuntimeRequest
) -> Iterator[dict[str, ContainerdFile]]:
    """In our own file, and `imports` of the root where it does not cover that one yet."""
    path, root = drop_in_path(request), config.root
    if any(key[:3] == (*RUNTIMES, request.name) for key in wanted.sets):
        # a runtime without its type fails when a container starts
        wanted = replace(wanted, sets={**wanted.sets, (*RUNTIMES, request.name, "runtime_type"): RUNC})
    roots = {} if root.path in files else {root.path: root}
    present = config.file(path)
    if present:
        yield {path: _edited(present, config, wanted), **roots}
        return
    if path not in {found for item in root.imports for found in resolve(item, [path])}:
        item = _import(path, config, files)
        imports = [*root.content.doc.get("imports", []), item]
        roots = {root.path: replace(root, content=root.content.edit({("imports",): imports}))}
    if path in files:
        found = read(path, files[path], request)
        yield {path: _edited(found, config, wanted), **roots}
        if not _only_ours(found, request):
            return
    for version in dict.fromkeys((root.version, config.version, 0)):
        empty = ContainerdFile(path, toml.load(path, b""), version)
        content = empty.content.edit({("version",): version} if version else {})
        yield {path: _edited(replace(empty, content=content), config, wanted), **roots}


def _import(path: str, config: ContainerdConfig, files: Mapping[str, bytes]) -> str:
    """The usual glob, or the path alone where the glob would bring in files that nobody reads now."""
    pattern = f"{posixpath.dirname(path)}/*.toml"
    unread = set(resolve(pattern, files)) - {path, *(file.path for file in config.files)}
    return path if unread or path not in resolve(pattern, [path]) else pattern


def _only_ours(file: ContainerdFile, request: RuntimeRequest) -> bool:
    """Whether a file says nothing but its version and the runtime that is being configured."""
    ours = {("plugins", name, *RUNTIMES, request.name) for name in NAMES}
    allowed = {("plugins", name, "containerd", "default_runtime_name") for name in NAMES} | {("version",)}
    return all(path in allowed or path[:5] in ours for path in _settings(file))


def _prove(
    files: Mapping[str, bytes],
    before: ContainerdConfig,
    changes: Mapping[str, ContainerdFile],
    wanted: Difference,
    request: RuntimeRequest,
) -> None:
    """Read the outcome as containerd does: it must say what was asked, and all else what it said before."""
    path = request.config or CONFIG
    after = load(files, request, {**{file.path: file for file in before.files}, **changes})
    left = difference(after, request)
    if left:
        names = ", ".join(".".join(key) for key in left.paths)
        others = [file.path for file in after.files if file.path not in changes and _states_one(file, left.paths)]
        raise Refusal(f"{', '.join(others) or path} overrules {names}", "remove it there")
    at = unmeant(before, after, wanted.paths)
    if at:
        raise Refusal(
            f"{', '.join(changes)}: with it, {'.'.join(at)} would change too",
            "remove that from the files that containerd does not read now, or import them",
        )


def _states_one(file: ContainerdFile, paths: Collection[toml.Path]) -> bool:
    tables = [file.plugins[name] for name in NAMES if name in file.plugins]
    return any(toml.lookup(table, path) is not None for table in tables for path in paths)


# ---------------------------------------------------------------- saying


def _no_drop_in(changes: Mapping[str, ContainerdFile], refused: Refusal | None, request: RuntimeRequest) -> str:
    """Why the drop-in was not written, "" where it was or nobody asks."""
    if drop_in_path(request) in changes or request.in_place:
        return ""
    if refused:
        return refused.problem.what
    return "this containerd is configured in place" if request.drop_in else ""


def _reasons(
    files: Mapping[str, bytes], wanted: Difference, changes: Mapping[str, Any], enabled: bool, instead: str
) -> list[Reason]:
    def name(path: toml.Path) -> str:
        return ".".join(path[1:] if path[0] == "containerd" else path)

    stated = [
        f"{name(path)} as it is built in" if isinstance(value, dict) else f"{name(path)} = {toml.literal(value)}"
        for path, value in wanted.sets.items()
    ]
    why = [f"sets {', '.join(stated)}"] if stated else []
    verb = "removes" if changes.keys() <= files.keys() else "overrules"  # a new drop-in takes nothing out of the root
    why += [f"{verb} {name(path)}" for path in wanted.removes]
    why += ["enables the CRI plugin"] if enabled else []
    reasons = [Reason(what=" and ".join(sorted(changes)), why="; ".join(why), source=SOURCE)]
    return [*reasons, *([Reason(what="no drop-in is written", why=instead, source=SOURCE)] if instead else [])]


def _remarks(config: ContainerdConfig) -> tuple[Reason, ...]:
    remarks = []
    off, default = config.without_cri, default_in_force(config)
    if off:
        why = "disabled_plugins names it: Kubernetes cannot use this containerd, nor the nvidia runtime in it"
        remarks.append(Reason(what=f"{off.path} disables the CRI plugin", why=why, source=SOURCE))
    elif default not in runtimes_in_force(config):
        why = "there is no runtime of that name: containerd does not load its CRI plugin"
        remarks.append(Reason(what=f"default_runtime_name is {default}", why=why, source=SOURCE))
    for file in config.unseen:
        why = "read as version 3, its CRI settings are not seen; config migrate of containerd 2.3 prints them so"
        remarks.append(Reason(what=f"{file.path} is config version {file.version or 1}", why=why, source=SOURCE))
    return tuple(remarks)


def state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What is in force, with the built-in runc."""
    config = in_force(files, request)
    tables = runtimes_in_force(config)
    runtimes = {name: str(toml.lookup(one, ("options", "BinaryName")) or "") for name, one in tables.items()}
    driver = toml.lookup(tables.get("runc", {}), ("options", "SystemdCgroup"))
    cdi = None if (1, 0) < config.daemon < (1, 7) else bool(config.cri.get("enable_cdi", config.merges))
    return RuntimeState(
        runtimes=runtimes,
        default=default_in_force(config),
        path=runtimes.get(request.name, ""),
        cdi=cdi,
        cgroup_driver="" if driver is None else "systemd" if driver else "cgroupfs",
        files=tuple(file.path for file in config.files if file.path in files),
        notes=_remarks(config),
    )


def activation(facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
    """containerd reads its configuration only when it starts."""
    files = put({}, {path: file.data for path, file in facts.files.items()} | dict(edit.changes))
    request = RuntimeRequest(runtime="containerd", version=runtime.version, config=runtime.config)
    return restarted(
        runtime,
        edit,
        validate=judge(runtime),
        plugin="" if _off(files, request) else "cri",
        health=(("ctr", "--address", runtime.socket, "version"),),
    )


def judge(runtime: Runtime) -> tuple[str, ...]:
    """How a containerd prints what it has in force of a file."""
    return (runtime.binary or "containerd", *ROWS["containerd"].judge)


def _off(files: Mapping[str, bytes], request: RuntimeRequest) -> bool:
    """Whether the CRI plugin is off; broken files say nothing."""
    try:
        return in_force(files, request).without_cri is not None
    except (InputError, Refusal):
        return False


ENGINE = Engine(patterns, configure, unconfigure, state, activation, kept)
