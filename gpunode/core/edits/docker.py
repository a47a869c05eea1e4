"""Docker's daemon.json: one file, no drop-ins; merged key by key, all else of its bytes kept.

Sources: moby daemon/config/config.go, daemon/runtime_unix.go; tried with `dockerd --validate` of 26.1 and 28.5.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Any

from gpunode.core.edits import jsontext
from gpunode.core.edits.engine import Activation, RuntimeState
from gpunode.core.edits.request import Refusal, RuntimeRequest, changed, check_size, decode, release
from gpunode.core.errors import InputError
from gpunode.core.model import Edit, NodeFacts, Reason, Runtime

CONFIG = "/etc/docker/daemon.json"
SOURCE = "https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file"
_CGROUP = "native.cgroupdriver="
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# a setting as an argument of dockerd → the key of the file; given twice, dockerd does not start
FLAGS = {
    "--add-runtime": "runtimes",
    "--default-runtime": "default-runtime",
    "--exec-opt": "exec-opts",
    "--feature": "features",
}


def patterns(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """daemon.json alone."""
    return (request.config or CONFIG,)


def configure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Files → files.  A missing daemon.json counts as empty, as dockerd takes it."""
    path = request.config or CONFIG
    before = files.get(path, b"")
    text, mark, encoding = _read(path, before, request)
    blank = not text.strip() or text.strip() == "null"
    have = {} if blank else jsontext.parse(path, text)
    if not isinstance(have, dict):
        raise InputError(
            f"{path} holds {type(have).__name__}", expected="a JSON object", fix="write {} or remove the file"
        )
    _check_shapes(path, have)
    sets = _wanted(have, request)
    if not sets:
        return Edit()
    after = "{}\n" if blank else text
    for key, value in sets.items():
        after = jsontext.set_key(after, key, value)
    _prove(path, after, have, sets)
    data = mark + after.encode(encoding)
    changes = changed(files, {path: data})
    settings = ", ".join(f"{'.'.join(key)} = {value!r}" for key, value in sets.items())
    return Edit(
        changes=changes,
        reasons=(Reason(what=path, why=f"sets {settings}", source=SOURCE),),
    )


def _read(path: str, data: bytes, request: RuntimeRequest) -> tuple[str, bytes, str]:
    """Text, byte order mark and encoding: dockerd takes UTF-8 and UTF-16 with a mark from 23.0 on."""
    check_size(path, data)
    for mark, encoding in _MARKS:
        if not data.startswith(mark):
            continue
        if (0, 0) < release(request.version) < (23, 0):
            raise Refusal(
                f"{path} begins with a byte order mark: Docker {request.version} refuses it", "save it as plain UTF-8"
            )
        try:
            return data[len(mark) :].decode(encoding), mark, encoding
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {error.start + len(mark)} is not {encoding}", expected="text") from None
    return decode(path, data), b"", "utf-8"


_SHAPES: dict[str, tuple[type, str]] = {
    "runtimes": (dict, "an object"),
    "features": (dict, "an object"),
    "exec-opts": (list, "a list of strings"),
    "default-runtime": (str, "a string"),
}


def _check_shapes(path: str, have: Mapping[str, Any]) -> None:
    for key, (kind, words) in _SHAPES.items():
        if have.get(key) is not None and not isinstance(have[key], kind):
            raise InputError(
                f"{path}: {key} is {have[key]!r}", expected=words, fix="mend the file: dockerd refuses it too"
            )
    if not all(isinstance(item, str) for item in have.get("exec-opts") or ()):
        raise InputError(f"{path}: exec-opts holds something other than strings", expected="a list of strings")
    for name, runtime in (have.get("runtimes") or {}).items():
        if name == "runc":
            raise Refusal(f"{path}: a runtime is named runc, a name that dockerd reserves", "name it otherwise")
        if runtime is not None and not isinstance(runtime, dict):
            raise InputError(f"{path}: runtimes.{name} is {runtime!r}", expected="an object with path")
    for name, value in (have.get("features") or {}).items():
        if not isinstance(value, bool):
            raise InputError(f"{path}: features.{name} is {value!r}", expected="true or false")


def _wanted(have: Mapping[str, Any], request: RuntimeRequest) -> dict[jsontext.Path, Any]:
    """Key path → value, only what differs from what is in force, flags counted in."""
    flags = flag_values(request.flags)
    for key in flags:
        if key in have:
            raise Refusal(
                f"{key} is set in daemon.json and as an argument of dockerd: dockerd does not start so",
                "remove the argument from docker's unit (systemctl cat docker), or the key from daemon.json",
            )
    sets: dict[jsontext.Path, Any] = {}
    runtimes = have.get("runtimes") or {}
    runtime = runtimes.get(request.name) or {}
    if "runtimes" in flags:
        _flag(f"{request.name}={request.path}" in flags["runtimes"], "--add-runtime", f"{request.name}={request.path}")
    elif runtime.get("path") != request.path:
        if "runtimeType" in runtime:
            raise Refusal(
                f"runtimes.{request.name} has a runtimeType, which excludes a path",
                f"remove runtimes.{request.name} from daemon.json",
            )
        sets["runtimes", request.name, "path"] = request.path
        if "runtimeArgs" not in runtime:
            sets["runtimes", request.name, "runtimeArgs"] = []
    elif "runtimeType" in runtime:
        raise Refusal(
            f"runtimes.{request.name} has both path and runtimeType: dockerd does not start so",
            "remove the runtimeType",
        )
    now = (flags.get("default-runtime") or [""])[-1] or have.get("default-runtime") or "runc"
    wish = {"nvidia": request.name, "runc": "runc", "keep": now}[request.default_runtime]
    if "default-runtime" in flags:
        _flag(flags["default-runtime"][-1:] == [wish], "--default-runtime", wish)
    elif (have.get("default-runtime") or "runc") != wish:
        sets["default-runtime",] = wish
    return sets | _cgroup(have, flags, request) | _cdi(have, flags, request)


def _flag(right: bool, flag: str, wish: str) -> None:
    if not right:
        raise Refusal(
            f"docker's unit gives {flag} as an argument, so daemon.json cannot set it to {wish}",
            f"remove {flag} from the unit (systemctl cat docker; systemctl edit docker), or set it to {wish} there",
        )


def _cgroup(
    have: Mapping[str, Any], flags: Mapping[str, list[str]], request: RuntimeRequest
) -> dict[jsontext.Path, Any]:
    if not request.cgroup_driver:
        return {}
    wish = _CGROUP + request.cgroup_driver
    if "exec-opts" in flags:
        _flag(wish in flags["exec-opts"], "--exec-opt", wish)
        return {}
    options = have.get("exec-opts") or []
    now = [item for item in options if item.startswith(_CGROUP)]
    if now == [wish]:
        return {}
    kept = [item for item in options if not item.startswith(_CGROUP)]
    at = options.index(now[0]) if now else len(kept)
    return {("exec-opts",): [*kept[:at], wish, *kept[at:]]}


def _cdi(have: Mapping[str, Any], flags: Mapping[str, list[str]], request: RuntimeRequest) -> dict[jsontext.Path, Any]:
    """features.cdi: from 25.0 on asked for, from 28.2 on there unless forbidden."""
    if request.cdi is None:
        return {}
    number = release(request.version)
    if (0, 0) < number < (25, 0):
        if not request.cdi:
            return {}
        raise Refusal(f"Docker {request.version} has no CDI", "install Docker 25.0 or later, or leave cdi out")
    if "features" in flags:
        wish = f"cdi={'true' if request.cdi else 'false'}"
        _flag(wish in flags["features"], "--feature", wish)
        return {}
    if (have.get("features") or {}).get("cdi", number >= (28, 2)) is request.cdi:
        return {}
    return {("features", "cdi"): request.cdi}


def flag_values(flags: tuple[str, ...]) -> dict[str, list[str]]:
    """Key of daemon.json → values, of those arguments of dockerd that matter here (--flag=value or --flag value)."""
    found: dict[str, list[str]] = {}
    for at, word in enumerate(flags):
        name, equals, value = word.partition("=")
        if name in FLAGS:
            found.setdefault(FLAGS[name], []).append(value if equals else "".join(flags[at + 1 : at + 2]))
    return found


def _prove(path: str, text: str, have: Mapping[str, Any], sets: Mapping[jsontext.Path, Any]) -> None:
    wanted: dict[str, Any] = jsontext.plain(have)
    for key, value in sets.items():
        table = wanted
        for name in key[:-1]:
            table[name] = table.get(name) or {}
            table = table[name]
        table[key[-1]] = value
    if jsontext.parse(path, text) != wanted:
        raise Refusal(f"{path} is written in a way that gpunode cannot edit", "simplify the file, or edit it by hand")


def unconfigure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Takes the nvidia runtime out."""
    raise Refusal("docker cannot be unconfigured yet", "restore the file from a backup")


def state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What is in force."""
    path = request.config or CONFIG
    text, _, _ = _read(path, files.get(path, b""), request)
    have = jsontext.parse(path, text) if text.strip() else {}
    runtimes = have.get("runtimes") or {}
    return RuntimeState(
        runtimes=tuple(runtimes),
        default=have.get("default-runtime") or "runc",
        path=(runtimes.get(request.name) or {}).get("path", ""),
        files=(path,) if path in files else (),
    )


def activation(facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
    """docker is restarted."""
    unit, config = runtime.unit or "docker.service", runtime.config
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
