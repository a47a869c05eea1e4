"""Rewriting the configuration of container engines: files → files, nothing else.

`runtime_target` is a request as an `EditTarget`; `configure_runtime` and `unconfigure_runtime` edit the files they get,
`runtime_files` says which those are; `edit_runtime` takes them from a node's facts; `activation` says how the engine
takes the change up.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import cast, get_args

from gpunode.core.edits.target import (
    OPERATOR,
    Activation,
    EditTarget,
    Engine,
    Files,
    RuntimeRequest,
    RuntimeState,
    check_request,
    probed_files,
    problem_of,
    quoting_no_secret,
    refused,
    texts,
)
from gpunode.core.edits.undo import put
from gpunode.core.engines import DISTRIBUTIONS, ENGINES, ROWS, DistributionRow, EngineRow
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.facts.flags import flag_value
from gpunode.core.model import Distribution, Edit, NodeFacts, Problem, Reason, Runtime, Undo

__all__ = [
    "SECTIONS",
    "Activation",
    "RuntimeRequest",
    "RuntimeState",
    "activation",
    "completed",
    "configure_runtime",
    "edit_runtime",
    "probed_runtime_files",
    "probed_state",
    "runtime_files",
    "runtime_state",
    "runtime_target",
    "unconfigure_runtime",
]

# of the probe: what `edit_runtime` goes by
SECTIONS = ("system", "units", "runtimes", "containers", "kubernetes", "files")
_EDITORS = (*ENGINES, *filter(None, get_args(Distribution)))
# a containerd of a distribution's is known by its files as well
_PLACES = {"/rancher/k3s/": "k3s", "/rancher/rke2/": "rke2", "/etc/k0s/": "k0s", "/snap/microk8s/": "microk8s"}


def _name(request: RuntimeRequest) -> str:
    """The distribution that brings the engine, else the engine."""
    place = next((kind for part, kind in _PLACES.items() if part in request.config), "")
    return request.distribution or (place if request.runtime == "containerd" else "") or request.runtime


def _row(request: RuntimeRequest) -> EngineRow | DistributionRow:
    return DISTRIBUTIONS.get(_name(request)) or ROWS[request.runtime]


def _engine(request: RuntimeRequest) -> Engine:
    """The editor of a distribution's engine, or of a runtime: a call is about one engine, and imports that alone."""
    check_request(request)
    name = _name(request)
    if name not in _EDITORS:
        raise RefusedError(
            f"gpunode does not rewrite the configuration of {name} yet",
            expected=" or ".join(_EDITORS),
            fix=f"configure {request.runtime} with nvidia-ctk",
        )
    home = import_module(f"gpunode.core.edits.engines.{'k3s' if name == 'rke2' else name}")
    return cast(Engine, getattr(home, "RKE2" if name == "rke2" else "ENGINE"))


def runtime_target(request: RuntimeRequest, facts: NodeFacts | None = None) -> EditTarget:
    """What is asked of an engine; `facts` say how it takes an edit up."""
    engine = _engine(request)
    name, root = request.distribution or request.runtime, request.config or _row(request).config

    def found(files: Mapping[str, bytes | None]) -> RuntimeState | None:
        try:
            return runtime_state(put({}, files), request)
        except GpunodeError:
            return None

    def configured(files: Files) -> Edit:
        """The engine's edit, with whose entry it replaces where that is another tool's."""
        edit = engine.configure(files, request)
        was, now = found(files), found({**files, **edit.changes})
        if not edit.changes or not was or not was.path.startswith(OPERATOR) or (now and now.path == was.path):
            return edit
        why = f"the GPU Operator's toolkit container writes {was.path} again when it starts"
        reason = Reason(what=f"the runtime {request.name}", why=f"another tool owns this entry: {why}")
        return replace(edit, reasons=(*edit.reasons, reason))

    def faults(files: Files) -> set[str]:
        """What an undo must not leave: `containerd config migrate` moves the runtime to where no record looks."""
        if (state := found(files)) is None:
            return {"unreadable"}
        return ({state.default} & {request.name} - {*state.runtimes}) | ({state.path} & {request.path})

    def usable(left: Files, before: Files) -> bool:
        """No engine works with a default that is not there, whoever has named it."""
        found = faults(left)
        return request.name not in found and found <= faults(before)

    def needy(files: Files) -> dict[str, str]:
        """The runtimes whose program the toolkit brings."""
        entries, state = dict[str, str](), found(files) or RuntimeState()
        for runtime, program in state.runtimes.items():
            if f"{posixpath.join(posixpath.dirname(request.path), program)}.".startswith(f"{request.path}."):
                without = ((p, found({**files, p: b""})) for p in reversed(state.files))
                place = next((p for p, rest in without if rest and rest.runtimes.get(runtime) != program), root)
                which = f"the {'default ' if runtime == state.default else ''}runtime {runtime}"
                entries[f"{which} runs {program}, without which none of its containers starts"] = place
        return entries

    return EditTarget(
        name=name,
        root=root,
        label=f"{name} {root} {request.name}",
        patterns=lambda files: engine.patterns(files, request),
        edit=configured,
        remove=lambda files, _undo: engine.unconfigure(files, request),
        activation=lambda _files, edit: activation(facts or NodeFacts(), request, edit),
        usable=usable,
        needy=needy,
        kept=lambda files, left, theirs: engine.kept(files, left, theirs, request),
    )


def configure_runtime(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """What changes in the engine's files (absolute path → bytes) so that it knows the nvidia runtime.

    An Edit without changes and problems: it is configured already.  What cannot be done comes back as the Edit's
    Problem, with no change.  Raises InputError for files that are broken (path:line:column) and requests that are.
    """
    return runtime_target(request).configure(files)


def unconfigure_runtime(
    files: Mapping[str, bytes], request: RuntimeRequest, undo: Sequence[Mapping[str, Undo]] = ()
) -> Edit:
    """What changes so that the engine no longer knows the nvidia runtime.

    `undo` are the records that configure gave, newest first: with them every byte comes back that configure replaced,
    even if other lines have changed since.  Where a record does not fit any more, and without one, only nvidia's own
    entries go, and the reasons say what stays.
    """
    return runtime_target(request).unconfigure(files, undo)


def runtime_files(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """Paths and globs of the files that an edit has to be given.

    Read them, ask again with what was read, and so on until it names nothing new: files import other files.
    """
    return runtime_target(request).files(files)


def runtime_state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What the engine's files have in force.  Raises InputError for broken files, RefusedError for refused ones."""
    with refused(files):
        state = _engine(request).state(files, request)
    return replace(state, notes=quoting_no_secret(state.notes))


# ---------------------------------------------------------------- from a node's facts


def edit_runtime(facts: NodeFacts, request: RuntimeRequest) -> Edit:
    """The same for an engine as the probe found it; whatever stands against it is a Problem of the Edit."""
    runtime = facts.runtime(request.runtime)
    if runtime is None:
        name = request.runtime
        return Edit(
            problems=(
                Problem(what=f"{name} is not installed", fix=f"set runtimes.{name}.manage to install, or ignore"),
            )
        )
    try:
        target = runtime_target(completed(request, runtime))
        read = texts(probed_files(facts.files, target.files))
        return replace(target.configure(read), files=tuple(read))
    except GpunodeError as error:
        return Edit(problems=(problem_of(error),))


def probed_state(facts: NodeFacts, runtime: Runtime, request: RuntimeRequest) -> RuntimeState:
    """What an engine has in force as the probe found it; raises as `runtime_state` does, and for a missing file."""
    request = completed(request, runtime)
    return runtime_state(texts(probed_files(facts.files, runtime_target(request).files)), request)


def probed_runtime_files(facts: NodeFacts, runtime: Runtime) -> tuple[str, ...]:
    """The paths of an engine's files, in force or not, which the probe found; none where it could not read one."""
    try:
        target = runtime_target(completed(RuntimeRequest(runtime=runtime.name), runtime))
        return tuple(texts(probed_files(facts.files, target.files)))
    except GpunodeError:  # the edit says what is wrong
        return ()


def completed(request: RuntimeRequest, runtime: Runtime) -> RuntimeRequest:
    """The request with what the probe knows of the engine."""
    return replace(
        request,
        distribution=runtime.distribution,
        config=flag_value(runtime.flags, *ROWS[runtime.name].config_flags) or runtime.config,
        version=runtime.version,
        flags=runtime.flags,
        rendered=runtime.rendered,
        refused=runtime.effective_error,
    )


def activation(facts: NodeFacts, request: RuntimeRequest, edit: Edit) -> Activation:
    """How the engine takes an edit up.  An Edit without changes disturbs nothing."""
    runtime = facts.runtime(request.runtime) or Runtime(name=request.runtime, distribution=request.distribution)
    known = completed(request, runtime)
    brought, row = DISTRIBUTIONS.get(_name(known)), ROWS[request.runtime]
    runtime = replace(
        runtime,
        config=known.config or _row(known).config,
        unit=runtime.unit or f"{brought.units[0] if brought else row.unit}.service",
        socket=runtime.socket or (brought.socket if brought else row.sockets[0]),
    )
    return replace(_engine(known).activation(facts, runtime, edit), handlers=(request.name,))
