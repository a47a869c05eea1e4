"""Docker's daemon.json: one file, no drop-ins; merged key by key, all else of its bytes kept.

What dockerd takes is in docker_file.py.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gpunode.core.edits.engines.docker_file import CGROUP_KEY, DaemonFile, DaemonRuntime, arguments, read
from gpunode.core.edits.target import Activation, Engine, Refusal, RuntimeRequest, RuntimeState, changed, switches_cdi
from gpunode.core.edits.text import jsontext
from gpunode.core.engines import PATH, ROWS, TOOLKIT_CONFIG
from gpunode.core.errors import InputError
from gpunode.core.late import regex
from gpunode.core.model import Edit, NodeFacts, Reason, Running, Runtime

_ROOTLESS = regex(r"/.+/\.config/docker/[^/]+\Z")
_NAMES = 5  # of containers, in a sentence


def activation(facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
    """How the engine takes the edit up; an edit without changes disturbs nothing, one to the same bytes restarts it."""
    config, socket = runtime.config, runtime.socket
    before, after = _files(facts, runtime, edit)
    validate = (runtime.binary or "dockerd", *_given(runtime), *ROW.judge)
    if is_rootless(config):
        words = f"nothing: the rootless Docker of {config} takes it up when its user restarts it"
        fix = f"{words} (systemctl --user restart docker)"
        return Activation(unit="", verb="", config=config, validate=validate, disrupts=fix if edit.changes else "")
    unit = f"{ROW.snap}.service" if is_snap(config) else runtime.unit
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
    """Whether dockerd knew NVIDIA's hook when it started, and SIGHUP brings all that the file says into force.

    With --add-runtime a reload forgets what the arguments added.
    """
    able = running.knows_hook and running.reloads and "runtimes" not in arguments(runtime.flags)
    return able and before.text != after.text and _reloaded(before, after)


def _reloaded(before: DaemonFile, after: DaemonFile) -> bool:
    """Whether SIGHUP takes a change of the file up: a key that goes leaves the daemon with what it had."""
    same = (before.exec_opts, before.features, before.cdi_dirs) == (after.exec_opts, after.features, after.cdi_dirs)
    gone = (before.default and not after.default) or ("runtimes" in before.plain and "runtimes" not in after.plain)
    return same and not gone


def is_reloaded(before: bytes, after: bytes) -> bool:
    """Whether a dockerd that has been reloaded for a change of daemon.json can be for this one, too."""
    return _reloaded(*(_read(CONFIG, data, RuntimeRequest(runtime="docker")) for data in (before, after)))


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
    stated = [f'"{name}":{{' for name in new] + ([f'"DefaultRuntime":"{default}"'] if default else [])
    tests = "".join(f" && case $info in *'{text}'*) ;; *) exit 1 ;; esac" for text in stated)
    asked = f"info=$(curl -fsS -m 10 --unix-socket {socket} http://docker/info)"
    yield "sh", "-c", f"command -v curl >/dev/null || exit 0; {asked}{tests}"


ROW = ROWS["docker"]
CONFIG = ROW.config
SOURCE = "https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file"
_SNAP = "/snap/docker/"
RUNC_SHIM = "io.containerd.runc.v2"
# dockerd's own names: an entry of that name would stand for every container's runtime
_STOCK = ("runc", RUNC_SHIM, "io.containerd.runtime.v1.linux")
Sets = dict[jsontext.Path, Any]
Flags = Mapping[str, list[str]]


def patterns(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """daemon.json alone."""
    return (request.config or CONFIG,)


def configure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Files → files.  A missing daemon.json counts as empty, as dockerd takes it."""
    if request.name in _STOCK:
        raise InputError(f"runtime name {request.name!r}", expected="another name: it is one of dockerd's own")
    if request.drop_in:
        raise InputError(f"drop-in {request.drop_in}", expected="none: Docker reads one file", fix="leave it out")
    file = read(files, request.config or CONFIG, request)
    if request.refused:
        raise Refusal(f"dockerd does not start with {file.path}: {request.refused}", f"fix {file.path} first")
    sets = _wanted(file, request)
    _check_default(file, sets, request)
    if not sets:
        return Edit()
    settings = ", ".join(f"{'.'.join(key)} = {value!r}" for key, value in sets.items())
    reasons = (Reason(what=file.path, why=f"sets {settings}", source=SOURCE), *_elsewhere(file.path, request))
    return _edited(files, file, sets, (), request, (*reasons, *_not_validated(file.path, request)))


def _not_validated(path: str, request: RuntimeRequest) -> tuple[Reason, ...]:
    """What to know where no dockerd can judge the file before it is in place: the health check decides afterwards."""
    number = request.release
    if number >= (23, 0) and request.judged:
        return ()
    if number == (0, 0):
        why = "its version is not known"
    else:
        old = f"Docker {request.version} cannot, 23.0 and later can"
        why = old if number < (23, 0) else "it is not part of this machine"
    return (Reason(what=path, why=f"not validated by dockerd: {why}", level="warning"),)


def _wanted(file: DaemonFile, request: RuntimeRequest) -> Sets:
    """What has to be set: nothing where all of it is in force."""
    flags = arguments(request.flags)
    sets = _runtime(file, flags, request) | _default(file, flags, request)
    return sets | _cgroup(file, flags, request) | _cdi(file, flags, request)


def _edited(
    files: Mapping[str, bytes],
    file: DaemonFile,
    sets: Sets,
    removes: Collection[jsontext.Path],
    request: RuntimeRequest,
    reasons: tuple[Reason, ...],
) -> Edit:
    """The edit of the file's text, which jsontext has proven to say what it said but for `sets` and `removes`.

    Nothing is left to do then, and the other runtimes are in force as they were: dockerd merges keys that stand twice.
    """
    text = jsontext.edit("{}\n" if file.blank else file.text, sets, removes)
    data = file.bytes_of(text)
    after = read({file.path: data}, file.path, request)
    left = _wanted(after, request) if sets else _unwanted(after, request)
    others = [{name: one for name, one in each.runtimes.items() if name != request.name} for each in (file, after)]
    if left or others[0] != others[1]:
        raise Refusal(
            f"{file.path} is written in a way that gpunode cannot edit", "write each key once, or edit the file by hand"
        )
    return Edit(
        changes=changed(files, {file.path: data}),
        reasons=reasons,
        meant=tuple(dict.fromkeys(".".join(key[:2]) for key in (*sets, *removes))),
    )


def _elsewhere(path: str, request: RuntimeRequest) -> tuple[Reason, ...]:
    """What is special about the file of a user's own dockerd, and of the one in a snap."""
    if is_rootless(path):
        why = (
            "rootless Docker: its user restarts it (systemctl --user restart docker), and NVIDIA's runtime needs "
            f"no-cgroups = true in {TOOLKIT_CONFIG} there"
        )
        return (Reason(what=path, why=why, source="https://docs.docker.com/engine/security/rootless/"),)
    if is_snap(path) and not request.path.startswith(_SNAP):
        why = f"the docker snap sees no {request.path} of the host: its own toolkit is in {_SNAP}current/usr/bin"
        return (Reason(what=path, why=why, source="https://github.com/canonical/docker-snap"),)
    return ()


# ---------------------------------------------------------------- what has to be set


def _runtime(file: DaemonFile, flags: Flags, request: RuntimeRequest) -> Sets:
    """runtimes.NAME: its path, or BinaryName of an entry that names containerd's shim for runc.

    Those of --add-runtime are added to the file's, whose entry counts where both have one.
    """
    added = f"{request.name}={request.path}" in flags.get("runtimes", ())
    now = file.runtimes.get(request.name, DaemonRuntime())
    if now.kind == RUNC_SHIM and not (0, 0) < request.release < (24, 0):
        if now.options.get("BinaryName") == request.path:
            return {}
        return {("runtimes", request.name, now.keys.get("options", "options"), "BinaryName"): request.path}
    if now.kind:
        raise Refusal(
            f"runtimes.{request.name} has a runtimeType, which excludes a path",
            f"remove runtimes.{request.name} from {file.path}",
        )
    if is_snap(file.path) and now.path.startswith(_SNAP) and not request.path.startswith(_SNAP):
        return {}  # the toolkit that the snap brings, which it has entered itself
    # before 25.0 the file's default has to be one of the file's runtimes: it is checked by itself
    needed = request.default_runtime == "nvidia" and "default-runtime" not in flags and request.release < (25, 0)
    if _same(now.path, request.path) or (added and not now.keys and not needed):
        return {}
    sets: Sets = {("runtimes", request.name, now.keys.get("path", "path")): request.path}
    return sets if "args" in now.keys else sets | {("runtimes", request.name, "runtimeArgs"): []}


def _same(path: str, wanted: str) -> bool:
    """Whether an entry means that binary: by its path, or by its name, which dockerd looks for on its PATH."""
    return path == wanted or (path == posixpath.basename(wanted) and posixpath.dirname(wanted) in PATH)


def _default(file: DaemonFile, flags: Flags, request: RuntimeRequest) -> Sets:
    now = _default_now(file, flags)
    choice = {"nvidia": request.name, "runc": "runc", "keep": now}[request.default_runtime]
    if "default-runtime" in flags:
        _flag(now == choice, "--default-runtime", choice)
        return {}
    return {} if now == choice else {("default-runtime",): choice}


def _default_now(file: DaemonFile, flags: Flags) -> str:
    return (flags.get("default-runtime") or [""])[-1] or file.default or "runc"


def _flag(right: bool, flag: str, choice: str) -> None:
    if not right:
        raise Refusal(
            f"docker's unit gives {flag} as an argument, so daemon.json cannot set it to {choice}",
            f"remove {flag} from the unit (systemctl cat docker; systemctl edit docker), or set it to {choice} there",
        )


def finds(default: str, runtimes: Collection[str], release: tuple[int, int]) -> bool:
    """Whether dockerd starts with that default: one of its runtimes, or from 25.0 on the name of a shim."""
    shim = not (0, 0) < release < (25, 0) and "/" not in default and default.find(".") > 0
    return shim or default in _STOCK or default in runtimes


def _check_default(file: DaemonFile, sets: Sets, request: RuntimeRequest) -> None:
    """A default that no runtime has keeps dockerd from starting."""
    flags = arguments(request.flags)
    default = sets.get(("default-runtime",)) or _default_now(file, flags)
    added = [word.partition("=")[0] for word in flags.get("runtimes", ())]
    if not finds(default, {*file.runtimes, *added, request.name}, request.release):
        raise Refusal(
            f"the default runtime {default} is none of the runtimes: dockerd does not start so",
            "name the default runtime (--set-as-default, or runtimes.docker.default_runtime), or add that runtime",
        )


def _cgroup_drivers(options: Collection[str]) -> list[str]:
    """The values of native.cgroupdriver among options as dockerd reads them: any case, spaces around the sign."""
    pairs = [[part.strip() for part in option.split("=", 1)] for option in options]
    return [pair[1] for pair in pairs if len(pair) == 2 and pair[0].lower() == CGROUP_KEY]


def _cgroup(file: DaemonFile, flags: Flags, request: RuntimeRequest) -> Sets:
    now = _cgroup_drivers(file.exec_opts)
    if not request.cgroup_driver:
        if any(driver not in ("", "systemd", "cgroupfs") for driver in now):
            raise Refusal(
                f"{file.path}: exec-opts has {CGROUP_KEY}={now[0]}: dockerd does not start so",
                f"set {CGROUP_KEY} to systemd or cgroupfs",
            )
        return {}
    choice = f"{CGROUP_KEY}={request.cgroup_driver}"
    if "exec-opts" in flags:
        _flag(_cgroup_drivers(flags["exec-opts"]) == [request.cgroup_driver], "--exec-opt", choice)
        return {}
    if now and set(now) == {request.cgroup_driver}:
        return {}
    kept: list[str] = []
    for option in file.exec_opts:  # in the place of the first, the others go
        kept += [option] if not _cgroup_drivers([option]) else [choice] if choice not in kept else []
    return {("exec-opts",): kept if choice in kept else [*kept, choice]}


def _cdi(file: DaemonFile, flags: Flags, request: RuntimeRequest) -> Sets:
    """features.cdi: from 25.0 on asked for, from 28.2 on there unless forbidden."""
    if not switches_cdi(request, "Docker", (25, 0)):
        return {}
    dirs = tuple(flags.get("cdi-spec-dirs", ())) or file.cdi_dirs
    if request.cdi and dirs == ("",):
        raise Refusal('cdi-spec-dirs is [""], which turns CDI off', "remove cdi-spec-dirs, or name the folders there")
    if "features" in flags:
        choice = f"cdi={'true' if request.cdi else 'false'}"
        _flag(_features(file, flags).get("cdi") is request.cdi, "--feature", choice)
        return {}
    builtin = request.release >= (28, 2) if request.release > (0, 0) else None
    if file.features.get("cdi", builtin) is request.cdi:
        return {}
    return {("features", "cdi"): request.cdi}


def _features(file: DaemonFile, flags: Flags) -> dict[str, bool]:
    """Those in force; `--feature cdi` means true."""
    given = [word.partition("=") for word in flags.get("features", ())]
    return {**file.features, **{name: value.lower() in ("", "1", "t", "true") for name, _, value in given}}


# ---------------------------------------------------------------- the way back


def unconfigure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Without a record: runtimes.NAME goes, `runtimes` when nothing else is in it, and a default that names it.

    What configure may have set besides (features.cdi, exec-opts) stays and is said: it may be somebody else's.
    """
    path = request.config or CONFIG
    file = read(files, path, request)
    flags = arguments(request.flags)
    if request.name in flags.get("default-runtime", ()):
        raise Refusal(
            f"docker's unit gives --default-runtime {request.name}: without that runtime dockerd does not start",
            "remove --default-runtime from the unit (systemctl edit docker)",
        )
    removes = _unwanted(file, request)
    reasons = _left(file, flags, request)
    if not removes:
        return Edit(reasons=reasons)
    gone = ", ".join(".".join(key) for key in removes)
    reasons = (Reason(what=path, why=f"removes {gone}", source=SOURCE), *reasons, *_elsewhere(path, request)[:1])
    return _edited(files, file, {}, removes, request, reasons)


def _unwanted(file: DaemonFile, request: RuntimeRequest) -> list[jsontext.Path]:
    """What has to go: nothing where no key names the runtime."""
    removes: list[jsontext.Path] = []
    if file.default == request.name:
        removes.append(("default-runtime",))
    if request.name in file.runtimes:
        alone = set(file.runtimes) == {request.name}
        removes.append(("runtimes",) if alone else ("runtimes", request.name))
    return removes


def _left(file: DaemonFile, flags: Flags, request: RuntimeRequest) -> tuple[Reason, ...]:
    stated = []
    if "cdi" in file.features:
        stated.append(f"features.cdi stays {'true' if file.features['cdi'] else 'false'}")
    if _cgroup_drivers(file.exec_opts):
        stated.append(f"exec-opts stays {list(file.exec_opts)}")
    if any(word.partition("=")[0] == request.name for word in flags.get("runtimes", ())):
        stated.append(f"--add-runtime {request.name} stays in docker's unit")
    return tuple(Reason(what=file.path, why=why) for why in stated)


# ---------------------------------------------------------------- what is in force


def state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What is in force, arguments of dockerd counted in."""
    path = request.config or CONFIG
    file = read(files, path, request)
    flags = arguments(request.flags)
    given = dict(word.partition("=")[::2] for word in flags.get("runtimes", ()))
    runtimes = given | {
        name: one.path or (str(one.options.get("BinaryName", "")) if one.kind == RUNC_SHIM else "")
        for name, one in file.runtimes.items()
    }
    drivers = _cgroup_drivers([*flags.get("exec-opts", ()), *file.exec_opts])
    number = request.release
    cdi = _features(file, flags).get("cdi", number >= (28, 2) if number >= (25, 0) else None)
    return RuntimeState(
        runtimes=runtimes,
        default=_default_now(file, flags),
        path=runtimes.get(request.name, ""),
        cdi=cdi,
        cgroup_driver=drivers[-1] if drivers else "",
        files=(path,) if path in files else (),
    )


ENGINE = Engine(patterns, configure, unconfigure, state, activation)
