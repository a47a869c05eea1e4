"""How Docker takes a change of daemon.json up: reloaded where that serves, else restarted, and who notices.

A reload (SIGHUP) takes up `runtimes` and `default-runtime` as far as the file names them, and nothing of what dockerd
looks up once when it starts: exec-opts, CDI, nvidia-container-runtime-hook, without which `--gpus` does not work.
Source: moby daemon/reload_unix.go, daemon/reload.go, daemon/nvidia_linux.go (29: devices_nvidia_linux.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpunode.core.edits.engine import Activation
from gpunode.core.edits.engines.docker_file import DaemonFile, read
from gpunode.core.edits.engines.docker_settings import arguments
from gpunode.core.edits.request import Refusal, RuntimeRequest
from gpunode.core.errors import InputError
from gpunode.core.model import Edit, NodeFacts, Running, Runtime

_ROOTLESS = re.compile(r"/.+/\.config/docker/[^/]+\Z")
_NAMES = 5  # of containers, in a sentence


def activation(facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
    """How the engine takes the edit up; an edit without changes disturbs nothing, one to the same bytes restarts it."""
    config, socket = runtime.config, runtime.socket or "/run/docker.sock"
    before, after = _files(facts, runtime, edit)
    validate = (runtime.binary or "dockerd", "--validate", *_given(runtime), "--config-file", "@FILE@")
    if is_rootless(config):
        words = f"nothing: the rootless Docker of {config} takes it up when its user restarts it"
        fix = f"{words} (systemctl --user restart docker)"
        return Activation(unit="", verb="", config=config, validate=validate, disrupts=fix if edit.changes else "")
    unit = "snap.docker.dockerd.service" if is_snap(config) else runtime.unit or "docker.service"
    running = facts.containers.get("docker", Running())
    verb = "reload" if _reload_serves(runtime, running, before, after) else "restart"
    live = after.live_restore if running.live_restore is None else running.live_restore
    live = live or arguments(runtime.flags).get("live-restore", ["false"])[-1] == "true"
    if verb == "reload":
        disrupts = f"reloads {unit}: running containers keep running"
    else:
        disrupts = f"restarts {unit}: {_stops(running, live)}"
    return Activation(
        unit=unit,
        verb=verb,
        config=config,
        validate=validate,
        socket=socket,
        health=tuple(_health(socket, before, after)),
        disrupts=disrupts if edit.changes else "",
    )


def is_rootless(config: str) -> bool:
    """Whether the file is that of a dockerd which a user runs, which root's systemctl does not know."""
    return _ROOTLESS.match(config) is not None


def is_snap(config: str) -> bool:
    """Whether the file is that of the docker snap."""
    return config.startswith("/var/snap/docker/")


def _files(facts: NodeFacts, runtime: Runtime, edit: Edit) -> tuple[DaemonFile, DaemonFile]:
    """daemon.json before and after the edit; one that cannot be read says nothing."""
    path = runtime.config
    request = RuntimeRequest(runtime="docker", version=runtime.version)
    found = facts.files.get(path)
    data = (found.data if found else None) or b""
    new = edit.changes.get(path, data) or b""
    return _read(path, data, request), _read(path, new, request)


def _read(path: str, data: bytes, request: RuntimeRequest) -> DaemonFile:
    try:
        return read({path: data}, path, request)
    except (InputError, Refusal):
        return DaemonFile(path=path)


def _given(runtime: Runtime) -> Iterator[str]:
    """The running daemon's arguments, without the one that names the file: they too may clash with it."""
    words = iter(runtime.flags if runtime.active else ())
    for word in words:
        if word == "--config-file":
            next(words, "")
        elif not word.startswith("--config-file="):
            yield word


def _reload_serves(runtime: Runtime, running: Running, before: DaemonFile, after: DaemonFile) -> bool:
    """Whether SIGHUP brings all that the file says into force, and dockerd knew NVIDIA's hook when it started.

    A key that goes leaves the daemon with what it had; with --add-runtime a reload forgets what the arguments added.
    """
    same = (before.exec_opts, before.features, before.cdi_dirs) == (after.exec_opts, after.features, after.cdi_dirs)
    gone = (before.default and not after.default) or ("runtimes" in before.plain and "runtimes" not in after.plain)
    added = "runtimes" in arguments(runtime.flags)
    changes = before.text != after.text
    return changes and running.knows_hook and running.reloads and same and not gone and not added


def _stops(running: Running, live: bool) -> str:
    """What a restart does to running containers, by their names where they are known."""
    if running.count == 0:
        return "no container runs"
    number = "running containers" if running.count is None else "1 running container" if running.count == 1 else ""
    number = number or f"{running.count} running containers"
    if live:
        keep = "keeps" if running.count == 1 else "keep"
        return f"{number} {keep} running (live-restore)"
    stop = "stops" if running.count == 1 else "stop"
    named = ", ".join(running.names[:_NAMES])
    more = (running.count or 0) - len(running.names[:_NAMES])
    return f"{number} {stop}" + (f": {named}" if named else "") + (f" and {more} more" if named and more > 0 else "")


def _health(socket: str, before: DaemonFile, after: DaemonFile) -> Iterator[tuple[str, ...]]:
    """Commands that prove that dockerd answers and has in force what is new: a bad reload is logged, and ignored."""
    new = {name: one.path for name, one in after.runtimes.items() if one.path and one != before.runtimes.get(name)}
    default = after.default if after.default != before.default else ""
    docker = ("docker", "-H", f"unix://{socket}")
    if new or default:
        wrong = "{{index 1 1}}"  # what no template can show: docker ends with an error
        known = "".join(f'{{{{if not (index .Runtimes "{name}").Path}}}}{wrong}{{{{end}}}}' for name in new)
        chosen = f'{{{{if ne .DefaultRuntime "{default}"}}}}{wrong}{{{{end}}}}' if default else ""
        yield *docker, "info", "--format", f"{known}{chosen}"
    yield *docker, "version"
    said = [f'"{name}":{{' for name in new] + ([f'"DefaultRuntime":"{default}"'] if default else [])
    tests = "".join(f" && case $info in *'{text}'*) ;; *) exit 1 ;; esac" for text in said)
    asked = f"info=$(curl -fsS -m 10 --unix-socket {socket} http://docker/info)"
    yield "sh", "-c", f"command -v curl >/dev/null || exit 0; {asked}{tests}"
