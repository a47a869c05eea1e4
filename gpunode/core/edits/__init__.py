"""Rewriting the configuration of container engines: files → files, nothing else.

`configure_runtime` and `unconfigure_runtime` edit files they are given, `runtime_files` says which those are;
`edit_runtime` takes them from a node's facts; `activation` says how the engine takes the change up.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpunode.core.edits.engine import Activation, Engine, Refusal, RuntimeRequest, RuntimeState, check_request
from gpunode.core.edits.undo import masked, quoting_no_secret, recorded, reverted
from gpunode.core.engines import ROWS
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.facts.daemon_flags import flag_value
from gpunode.core.model import Edit, NodeFacts, Problem, Runtime, RuntimeWish, Undo

__all__ = [
    "SECTIONS",
    "Activation",
    "RuntimeRequest",
    "RuntimeState",
    "activation",
    "configure_runtime",
    "edit_runtime",
    "request_of",
    "root_config",
    "runtime_files",
    "runtime_state",
    "unconfigure_runtime",
]

# of the probe: what `edit_runtime` goes by
SECTIONS = ("system", "units", "runtimes", "containers", "kubernetes", "files")
# a containerd of a distribution's is known by its files as well
_PLACES = {"/rancher/k3s/": "k3s", "/rancher/rke2/": "rke2", "/etc/k0s/": "k0s", "/snap/microk8s/": "microk8s"}


def _module(name: str) -> Engine | None:
    """The editor of a distribution's engine, or of a runtime: a call is about one engine, and imports that alone."""
    engine: Engine | None = None
    if name == "containerd":
        from gpunode.core.edits.engines import containerd

        engine = containerd
    elif name == "docker":
        from gpunode.core.edits.engines import docker

        engine = docker
    elif name == "crio":
        from gpunode.core.edits.engines import crio

        engine = crio
    elif name == "podman":
        from gpunode.core.edits.engines import podman

        engine = podman
    elif name == "k0s":
        from gpunode.core.edits.engines import k0s

        engine = k0s
    elif name == "microk8s":
        from gpunode.core.edits.engines import microk8s

        engine = microk8s
    elif name == "k3s":
        from gpunode.core.edits.engines.k3s import k3s

        engine = k3s
    elif name == "rke2":
        from gpunode.core.edits.engines.k3s import rke2

        engine = rke2
    return engine


def _engine(request: RuntimeRequest) -> Engine:
    check_request(request)
    place = next((kind for part, kind in _PLACES.items() if part in request.config), "")
    name = request.distribution or (place if request.runtime == "containerd" else "") or request.runtime
    found = _module(name)
    if found is None:
        raise RefusedError(
            f"gpunode does not rewrite the configuration of {request.distribution or request.runtime} yet",
            expected="containerd or docker or crio or podman or k3s or rke2 or k0s or microk8s",
            fix=f"configure {request.runtime} with nvidia-ctk",
        )
    return found


def configure_runtime(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """What changes in the engine's files (absolute path → bytes) so that it knows the nvidia runtime.

    An Edit without changes and problems: it is configured already.  What cannot be done comes back as the Edit's
    Problem, with no change.  Raises InputError for files that are broken (path:line:column) and requests that are.
    """
    return _edited(files, lambda engine: engine.configure(files, request), request)


def unconfigure_runtime(
    files: Mapping[str, bytes], request: RuntimeRequest, undo: Sequence[Mapping[str, Undo]] = ()
) -> Edit:
    """What changes so that the engine no longer knows the nvidia runtime.

    `undo` are the records that configure gave, newest first: with them every byte comes back that configure replaced,
    even if other lines have changed since.  Where a record does not fit any more, and without one, only nvidia's own
    entries go, and the reasons say what stays.
    """

    def make(engine: Engine) -> Edit:
        def take_out(left: Mapping[str, bytes]) -> Edit:
            return engine.unconfigure(left, request)

        return reverted(files, undo, take_out, lambda left: _stands(files, left, request))

    return _edited(files, make, request)


def _stands(files: Mapping[str, bytes], left: Mapping[str, bytes], request: RuntimeRequest) -> bool:
    """Whether what is left can be read, and no runtime but nvidia's goes while others stay.

    Somebody may have come to need what configure wrote: on containerd 1.x a table of their own beside our runc.
    """
    try:
        before, after = runtime_state(files, request).runtimes, runtime_state(left, request).runtimes
    except GpunodeError:
        return False
    return not after or {*before} - {request.name} <= {*after}


def _edited(files: Mapping[str, bytes], make: Callable[[Engine], Edit], request: RuntimeRequest) -> Edit:
    engine = _engine(request)
    return recorded(files, lambda: make(engine))


def root_config(request: RuntimeRequest) -> str:
    """The root config that a request is about: the one that it names, or the engine's usual one."""
    return request.config or _engine(request).CONFIG


def runtime_files(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """Paths and globs of the files that an edit has to be given.

    Read them, ask again with what was read, and so on until it names nothing new: files import other files.
    """
    try:
        with masked():
            return _engine(request).patterns(files, request)
    except Refusal as refusal:
        raise RefusedError(refusal.problem.what, fix=refusal.problem.fix) from None


def runtime_state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What the engine's files have in force.  Raises InputError for broken files, RefusedError for refused ones."""
    try:
        with masked():
            state = _engine(request).state(files, request)
    except Refusal as refusal:
        raise RefusedError(refusal.problem.what, fix=refusal.problem.fix) from None
    return replace(state, notes=quoting_no_secret(state.notes))


# ---------------------------------------------------------------- from a node's facts


def edit_runtime(facts: NodeFacts, wish: RuntimeWish) -> Edit:
    """The same for an engine as the probe found it; whatever stands against it is a Problem of the Edit."""
    runtime = facts.runtime(wish.runtime)
    if runtime is None:
        return _problem(f"{wish.runtime} is not installed", f"set runtimes.{wish.runtime}.manage to install, or ignore")
    request = request_of(runtime, wish)
    try:
        files = _read(facts, runtime, request)
        return configure_runtime(files, request)
    except GpunodeError as error:
        return _problem(f"{error.what}{f' (expected: {error.expected})' if error.expected else ''}", error.fix)


def _read(facts: NodeFacts, runtime: Runtime, request: RuntimeRequest) -> dict[str, bytes]:
    """The files that the edit needs, out of those that the probe read; RefusedError when one of them is not there."""
    files: dict[str, bytes] = {}
    for path in runtime.files:
        if path != request.config and path not in facts.files:
            raise RefusedError(f"{path} is in force, and the probe did not read it", fix="probe again as root")
    while True:
        wanted = (*runtime.files, *runtime_files(files, request))
        named = {path for path in facts.files if any(fnmatch.fnmatchcase(path, pattern) for pattern in wanted)}
        if named <= set(files):
            return files
        files |= {path: _data(facts, path) for path in sorted(named - set(files))}


def _data(facts: NodeFacts, path: str) -> bytes:
    found = facts.files[path]
    if found.data is not None:
        return found.data
    if found.size > 1 << 20:
        raise RefusedError(
            f"{path} has {found.size} bytes", fix="no engine's configuration is that large: look into it"
        )
    raise RefusedError(f"{path} could not be read", fix="probe again as root")


def _problem(what: str, fix: str) -> Edit:
    return Edit(problems=(Problem(what=what, fix=fix),))


def request_of(runtime: Runtime, wish: RuntimeWish) -> RuntimeRequest:
    """What to ask of the edit of an engine that the probe found."""
    return RuntimeRequest(
        runtime=wish.runtime,
        distribution=runtime.distribution,
        config=flag_config(runtime) or runtime.config,
        version=runtime.version,
        default_runtime=wish.default_runtime,
        path=wish.nvidia_runtime_path,
        cdi=wish.cdi,
        cgroup_driver=wish.cgroup_driver,
        flags=runtime.flags,
    )


def flag_config(runtime: Runtime) -> str:
    """The config file that the daemon's own arguments name, "" when they name none."""
    return flag_value(runtime.flags, *ROWS[runtime.name].config_flags)


def activation(facts: NodeFacts, wish: RuntimeWish, edit: Edit) -> Activation:
    """How the engine takes an edit up.  An Edit without changes disturbs nothing."""
    runtime = facts.runtime(wish.runtime) or Runtime(name=wish.runtime)
    engine = _engine(request_of(runtime, wish))
    runtime = replace(runtime, config=flag_config(runtime) or runtime.config or engine.CONFIG)
    return engine.activation(facts, runtime, edit)
