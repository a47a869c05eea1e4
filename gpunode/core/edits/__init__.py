"""Rewriting the configuration of container engines: files → files, nothing else.

`configure_runtime` edits files it is given; `edit_runtime` takes them from a node's facts; `activation` says how the
engine takes the change up.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpunode.core.edits import containerd, docker
from gpunode.core.edits.request import Refusal, RuntimeRequest, check_request
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.model import Edit, NodeFacts, Problem, Runtime, RuntimeName, RuntimeWish

__all__ = ["Activation", "RuntimeRequest", "activation", "configure_runtime", "edit_runtime"]

_EDITS: dict[RuntimeName, Callable[[Mapping[str, bytes], RuntimeRequest], Edit]] = {
    "containerd": containerd.edit,
    "docker": docker.edit,
}
_DROP_INS = {"containerd": (containerd.DROP_IN,)}  # ours, whether or not it is imported yet
_CONFIG = {"containerd": containerd.CONFIG, "docker": docker.CONFIG}


def configure_runtime(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """What changes in the engine's files (absolute path → bytes) so that it knows the nvidia runtime.

    An Edit without changes and problems: it is configured already.  What cannot be done comes back as the Edit's
    Problem, with no change.  Raises InputError for files that are broken (path:line:column) and requests that are.
    """
    check_request(request)
    if request.runtime not in _EDITS:
        raise RefusedError(
            f"gpunode does not rewrite the configuration of {request.runtime} yet",
            expected=" or ".join(_EDITS),
            fix=f"configure {request.runtime} with nvidia-ctk",
        )
    try:
        return _EDITS[request.runtime](files, request)
    except Refusal as refusal:
        return Edit(problems=(refusal.problem,))


def edit_runtime(facts: NodeFacts, wish: RuntimeWish) -> Edit:
    """The same for an engine as the probe found it; whatever stands against it is a Problem of the Edit."""
    runtime = facts.runtime(wish.runtime)
    if runtime is None:
        return _problem(f"{wish.runtime} is not installed", f"set runtimes.{wish.runtime}.manage to install, or ignore")
    config = _flag_config(runtime) or runtime.config or _CONFIG.get(wish.runtime, "")
    files: dict[str, bytes] = {}
    for path in dict.fromkeys((config, *runtime.files, *_DROP_INS.get(wish.runtime, ()))):
        found = facts.files.get(path)
        if found is None:
            if path in runtime.files and path != config:
                return _problem(f"{path} is in force, and the probe did not read it", "probe again as root")
            continue
        if found.data is None:
            large = found.size > 1 << 20
            return _problem(
                f"{path} has {found.size} bytes" if large else f"{path} could not be read",
                "no engine's configuration is that large: look into it" if large else "probe again as root",
            )
        files[path] = found.data
    try:
        return configure_runtime(files, _request(runtime, wish, config))
    except GpunodeError as error:
        return _problem(f"{error.what}{f' (expected: {error.expected})' if error.expected else ''}", error.fix)


def _problem(what: str, fix: str) -> Edit:
    return Edit(problems=(Problem(what=what, fix=fix),))


def _request(runtime: Runtime, wish: RuntimeWish, config: str) -> RuntimeRequest:
    return RuntimeRequest(
        runtime=wish.runtime,
        config=config,
        version=runtime.version,
        default_runtime=wish.default_runtime,
        path=wish.nvidia_runtime_path,
        cdi=wish.cdi,
        cgroup_driver=wish.cgroup_driver,
        flags=runtime.flags,
    )


def _flag_config(runtime: Runtime) -> str:
    """The config file that the daemon's own arguments name, "" when they name none."""
    names = {"docker": ("--config-file",), "containerd": ("--config", "-c")}.get(runtime.name, ())
    for at, word in enumerate(runtime.flags):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else "".join(runtime.flags[at + 1 : at + 2])
    return ""


# ---------------------------------------------------------------- how the engine takes it up


@dataclass(frozen=True, kw_only=True)
class Activation:
    """What follows an edit: the unit and how it is told, what checks the files before, what proves health after.

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


def activation(facts: NodeFacts, wish: RuntimeWish, edit: Edit) -> Activation:
    """How the engine takes an edit up.  An Edit without changes disturbs nothing."""
    runtime = facts.runtime(wish.runtime) or Runtime(name=wish.runtime)
    config = _flag_config(runtime) or runtime.config or _CONFIG.get(wish.runtime, "")
    unit = runtime.unit or f"{wish.runtime}.service"
    if wish.runtime == "docker":
        return _docker_activation(facts, runtime, unit, config, edit)
    files = [facts.files[path].data or b"" for path in runtime.files if path in facts.files]
    socket = runtime.socket or "/run/containerd/containerd.sock"
    disabled = any(reason.what.endswith("disables the CRI plugin") for reason in edit.reasons) or _no_cri(files)
    return Activation(
        unit=unit,
        verb="restart",  # containerd reads its configuration only when it starts
        config=config,
        validate=(runtime.binary or "containerd", "-c", "@FILE@", "config", "dump"),
        socket=socket,
        plugin="" if disabled else "cri",
        health=(("ctr", "--address", socket, "version"),),
        disrupts=f"restarts {unit}: running containers keep running" if edit.changes else "",
    )


def _no_cri(files: list[bytes]) -> bool:
    """Whether one of containerd's files names the CRI plugin as disabled; broken files say nothing."""
    for data in files:
        try:
            disabled = tomllib.loads(data.decode("utf-8-sig")).get("disabled_plugins", [])
        except (UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
        if isinstance(disabled, list) and {"cri", "io.containerd.grpc.v1.cri"} & {str(item) for item in disabled}:
            return True
    return False


def _docker_activation(facts: NodeFacts, runtime: Runtime, unit: str, config: str, edit: Edit) -> Activation:
    data = facts.files[config].data if config in facts.files else b""
    live = re.search(rb'"live-restore"\s*:\s*true', data or b"") is not None or "--live-restore" in runtime.flags
    stops = "running containers keep running (live-restore)" if live else "running containers stop"
    socket = runtime.socket or "/run/docker.sock"
    return Activation(
        unit=unit,
        verb="restart",
        config=config,
        validate=(runtime.binary or "dockerd", "--validate", "--config-file", "@FILE@"),
        socket=socket,
        health=(
            ("docker", "-H", f"unix://{socket}", "version"),
            ("curl", "-fsS", "-m", "10", "--unix-socket", socket, "http://docker/_ping"),
        ),
        disrupts=f"restarts {unit}: {stops}" if edit.changes else "",
    )
