"""Every case of tests/edits on the engines: the daemon loads it, nvidia is in force, nothing else changed."""

from __future__ import annotations

import hashlib
import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from daemon_node import DaemonNode
from edit_cases import cases

from gpunode.core.edits import RuntimeRequest, configure_runtime, unconfigure_runtime
from gpunode.core.errors import InputError
from gpunode.core.model import Edit
from gpunode.core.numbers import release

pytestmark = pytest.mark.lab

CONFIG = {"containerd": "/etc/containerd/config.toml", "docker": "/etc/docker/daemon.json"}
# Each tree is laid over folders that are empty in a mount namespace of its own; two at a time.
BATCH = """
export PLACES='/etc/containerd /etc/docker /home /opt /var/snap'
cd /tmp/cases
mkdir -p $PLACES
cat >one <<'ONE'
for place in $PLACES; do mount -t tmpfs tmpfs "$place" || exit; done
if [ -d "$1/tree" ]; then cp -a "$1/tree/." /; fi
sh "$1/ask" >"$1/stdout" 2>"$1/stderr"
echo $? >"$1/status"
ONE
printf '%s\\n' */ask | sed 's,/ask,,' | xargs -P 2 -n 1 unshare -m sh one
rm -rf one */tree */ask
"""
Files = Mapping[str, bytes]
IMPLIED = (("sandbox_mode", "podsandbox"),)  # containerd 1.7 puts it in place of "" (pkg/cri/config/config.go)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A case as this engine's version is asked to edit it: the files before, after, and with nvidia taken out again.

    `without` comes of no undo record: nobody knows what was there before.  It is `after` where that is refused.
    """

    request: RuntimeRequest
    before: Files
    after: Files
    without: Files
    edit: Edit

    @property
    def config(self) -> str:
        return self.request.config or CONFIG[self.request.runtime]

    def asked(self, files: Files) -> dict[str, bytes]:
        """What the node needs to judge one tree: the tree, and the engine's own check as a command."""
        words = {
            "containerd": ["containerd", "-c", self.config, "config", "dump"],
            "docker": ["dockerd", "--validate", "--config-file", self.config, *self.request.flags],
        }
        ask = shlex.join(words[self.request.runtime])
        return {"ask": f"{ask}\n".encode()} | {f"tree{path}": data for path, data in files.items()}


def trials(engine: str, version: str) -> dict[str, Trial]:
    """The cases whose files an edit changes, edited for this version in place of the case's own."""
    found = {}
    for case in cases(engine, having="after"):
        request = RuntimeRequest(runtime=engine, **case.asked | {"flags": tuple(case.asked.get("flags", ()))})  # type: ignore[arg-type]
        if request.distribution:
            continue
        request, before = replace(request, version=version), case.before
        try:
            edit = configure_runtime(before, request)
        except InputError:
            continue  # a shape that only other versions take
        if not edit.problems:
            after = applied(before, edit)
            without = applied(after, unconfigure_runtime(after, request))
            found[case.name] = Trial(request=request, before=before, after=after, without=without, edit=edit)
    return found


def applied(files: Files, edit: Edit) -> Files:
    return {path: data for path, data in {**files, **edit.changes}.items() if data is not None}


def ask(node: DaemonNode, wanted: Mapping[str, Trial]) -> dict[str, tuple[tuple[int, str, str], ...]]:
    """What the engine says of each trial's files before, after and without: exit status, output, error output."""
    asked = {
        name: [trial.asked(files) for files in (trial.before, trial.after, trial.without)]
        for name, trial in wanted.items()
    }
    folders = {digest(files): files for trees in asked.values() for files in trees}
    node.sh("rm -rf /tmp/cases")
    node.put("/tmp/cases", {f"{name}/{path}": data for name, files in folders.items() for path, data in files.items()})
    node.sh(BATCH)
    printed = {name: data.decode() for name, data in node.get("/tmp/cases").items()}
    answers = {
        name: (int(printed[f"{name}/status"]), printed[f"{name}/stdout"], printed[f"{name}/stderr"].strip()[-400:])
        for name in folders
    }
    return {name: tuple(answers[digest(files)] for files in trees) for name, trees in asked.items()}


def digest(files: Files) -> str:
    """Equal trees are judged once."""
    parts = (f"{path} {hashlib.sha256(data).hexdigest()}" for path, data in sorted(files.items()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every setting that says something, with its dotted path: nothing, false, 0 and "" are what Go starts from."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, (*path, key))
    elif value and (path[-1], value) not in IMPLIED:
        yield ".".join(path), value


def default_of(request: RuntimeRequest, before: Any) -> Any:
    """The default runtime that is to be in force."""
    return {"nvidia": request.name, "runc": "runc", "keep": before}[request.default_runtime]


def differences(before: Mapping[str, Any], after: Mapping[str, Any], allowed: Sequence[str]) -> list[str]:
    """Settings that differ although neither they nor a table above them is among the allowed dotted paths."""
    old, new = dict(leaves(before)), dict(leaves(after))
    differ = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    ours = tuple(f"{above}.".lower() for above in allowed)  # in any case: containerd reads keys so
    free = [path for path in differ if not f"{path}.".lower().startswith(ours)]
    return [f"{path}: {old.get(path)!r} became {new.get(path)!r}" for path in free]


# ---------------------------------------------------------------- containerd


RUNTIMES = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")  # the CRI plugin that has them: 2.x, 1.x
PLUGINS = (*RUNTIMES, "io.containerd.cri.v1.images")


def cri_of(dump: Mapping[str, Any]) -> dict[str, Any]:
    """The CRI plugin's runtime settings in a `config dump`; where it is off there are none that count."""
    plugins = dump.get("plugins", {})
    off = set(dump.get("disabled_plugins", ())) & {"cri", *RUNTIMES}
    return {} if off else next((plugins[name] for name in RUNTIMES if name in plugins), {})


def judge_containerd(trial: Trial, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    old, new = cri_of(before), cri_of(after)
    wrongs = not_in_force(trial.request, old, new) if new else []
    for allowed in (may_differ(trial.request, before), trial.edit.meant):
        wrongs += differences(before, after, allowed)
    return wrongs


def judge_removal(trial: Trial, after: Mapping[str, Any], without: Mapping[str, Any]) -> list[str]:
    """nvidia is gone, what names it as default too, and nothing else has changed."""
    name, cri = trial.request.name, cri_of(without).get("containerd", {})
    gone = {
        "default": (cri.get("default_runtime_name") == name, False),
        "listed": (name in cri.get("runtimes", {}), False),
    }
    return wrong(gone) + differences(after, without, may_differ(replace(trial.request, enable_cri=False), after))


def not_in_force(request: RuntimeRequest, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    runtimes, default = new["containerd"]["runtimes"], new["containerd"]["default_runtime_name"]
    nvidia = runtimes.get(request.name, {})
    had = old.get("containerd", {}).get("default_runtime_name", "runc")
    in_force = {
        "type": (nvidia.get("runtime_type"), "io.containerd.runc.v2"),
        "binary": (nvidia.get("options", {}).get("BinaryName"), request.path),
        "default": (default, default_of(request, had)),
    }
    if default != had:
        in_force["a runtime of the default's name"] = (default in runtimes, True)
    if request.cgroup_driver:
        for name in {request.name, "runc"} & set(runtimes):
            printed = runtimes[name].get("options", {}).get("SystemdCgroup", False)
            in_force[f"SystemdCgroup of {name}"] = (printed, request.cgroup_driver == "systemd")
    if request.cdi is not None:
        in_force["enable_cdi"] = (new.get("enable_cdi", False), request.cdi)
    return wrong(in_force)


def may_differ(request: RuntimeRequest, before: Mapping[str, Any]) -> list[str]:
    """What the contract lets an edit change in what containerd has in force."""
    paths = ["imports"]
    for plugin in RUNTIMES:
        cri = f"plugins.{plugin}"
        paths += [f"{cri}.containerd.runtimes.{request.name}", f"{cri}.containerd.default_runtime_name"]
        if request.cdi is not None:
            paths.append(f"{cri}.enable_cdi")
        if request.cgroup_driver:
            paths.append(f"{cri}.containerd.runtimes.runc.options.SystemdCgroup")
        if "runc" not in cri_of(before).get("containerd", {}).get("runtimes", {}):
            paths.append(f"{cri}.containerd.runtimes.runc")
    if request.enable_cri:  # then all that belongs to a plugin that was off
        missing = set(PLUGINS) - set(before.get("plugins", {}))
        paths += ["disabled_plugins", *(f"plugins.{plugin}" for plugin in missing)]
    return paths


def wrong(in_force: Mapping[str, tuple[Any, Any]]) -> list[str]:
    return [f"{what} is {have!r}, not {want!r}" for what, (have, want) in in_force.items() if have != want]


def test_containerd_loads_every_edited_file_with_nvidia_in_force_and_nothing_else_changed(daemons: DaemonNode) -> None:
    version = daemons.sh("containerd --version").split()[2]
    wanted = trials("containerd", version)
    wrongs, judged = {}, 0
    for name, (before, *edited) in ask(daemons, wanted).items():
        if before[0]:
            continue  # a file that this version does not load in the first place
        judged += 1
        failed = [printed for status, _, printed in edited if status]
        dumps = [tomllib.loads(dump) for _, dump, _ in (before, *edited)] if not failed else []
        if found := failed or judge_containerd(wanted[name], *dumps[:2]) + judge_removal(wanted[name], *dumps[1:]):
            wrongs[name] = found
    assert wrongs == {}
    assert judged >= 30, "most cases say something about every version"


# ---------------------------------------------------------------- docker


def daemon_json(data: bytes) -> dict[str, Any]:
    """A daemon.json as dockerd takes it: with a byte order mark or without, nothing and null count as empty.

    Go's reader merges an object that is there twice, lets null change nothing, and ignores the case of such keys.
    """

    def merged(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if isinstance(value, dict) and isinstance(found.get(key), dict):
                found[key] = {**found[key], **value}
            elif value is not None or key not in found:
                found[key] = value
        return found

    text = data.decode("utf-8-sig").strip()
    return dict(json.loads(text or "null", object_pairs_hook=merged) or {})


def runtime_of(printed: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key.lower(): value for key, value in ((printed.get("runtimes") or {}).get(name) or {}).items()}


def judge_docker(trial: Trial, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    request = trial.request
    if request.flags:  # they count as much as the file, and dockerd alone knows both
        return differences(before, after, ["runtimes", "default-runtime"])
    had, has = (runtime_of(printed, request.name) for printed in (before, after))
    kept = "snap" in str(had.get("path")) or had.get("path") == Path(request.path).name
    path = had["path"] if kept else request.path  # a snap's engine sees only its own files, nvidia-ctk writes the name
    default = default_of(request, before.get("default-runtime") or "runc")
    in_force = {
        "path": (has.get("path") or has.get("options", {}).get("BinaryName"), path),
        "arguments": (has.get("runtimeargs") or [], had.get("runtimeargs") or []),
        "default": (after.get("default-runtime") or "runc", default),
    }
    paths = [f"runtimes.{request.name}", "default-runtime"]
    if request.cdi is not None:
        paths.append("features.cdi")
    if request.cgroup_driver:
        paths.append("exec-opts")
        options = [[word.strip() for word in option.split("=")] for option in after.get("exec-opts") or []]
        drivers = [words[1] for words in options if words[0].lower() == "native.cgroupdriver"]
        in_force["cgroup driver"] = (drivers, [request.cgroup_driver])
    return wrong(in_force) + differences(before, after, paths) + differences(before, after, trial.edit.meant)


def test_docker_takes_every_edited_file_with_nvidia_in_force_and_nothing_else_changed(daemons: DaemonNode) -> None:
    version = daemons.sh("dockerd --version").split()[2]
    wanted = trials("docker", version)
    wrongs = {
        name: found
        for name, trial in wanted.items()
        if (
            found := judge_docker(
                trial, *(daemon_json(files.get(trial.config, b"")) for files in (trial.before, trial.after))
            )
        )
    }
    assert wrongs == {}
    if release(version) < (23, 0):
        return  # dockerd --validate came with 23.0
    for name, (before, *edited) in ask(daemons, wanted).items():
        if before[0] == 0 and (failed := [printed for status, _, printed in edited if status]):
            wrongs[name] = failed
    assert wrongs == {}
    assert len(wanted) >= 20, "most cases say something about every version"
