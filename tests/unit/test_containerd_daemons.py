"""The contract of every containerd edit on real daemons: it loads, the runtime is in force, nothing else has changed.

GPUNODE_CONTAINERDS names containerd binaries (a list like PATH); without it there is nothing to run here.  Each case of
tests/edits/containerd is edited for each of the binaries, whatever version the case itself is about: `config dump`
needs neither root nor a running daemon.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from edit_cases import applied, cases
from edit_cases import case as case_of
from test_edits import request_of

from gpunode.core.edits import RuntimeRequest, configure_runtime, runtime_state, unconfigure_runtime
from gpunode.core.edits.engines.containerd_files import differences
from gpunode.core.errors import GpunodeError
from gpunode.core.model import Edit

BINARIES = [Path(name) for name in os.environ.get("GPUNODE_CONTAINERDS", "").split(os.pathsep) if name]
CONFIG = "/etc/containerd/config.toml"
RUNTIMES = ("containerd", "runtimes")
pytestmark = pytest.mark.skipif(not BINARIES, reason="GPUNODE_CONTAINERDS names no containerd")

Dump = dict[str, Any]


def version_of(binary: Path) -> str:
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bv?(\d+\.\d+\.\d+\S*)", printed)
    assert found, printed
    return found[1]


VERSIONS = {binary: version_of(binary) for binary in BINARIES}


def dump(binary: Path, tree: Mapping[str, bytes], folder: Path, config: str) -> Dump | str:
    """What the daemon has in force, or what it says when it does not load; all paths are taken below `folder`."""
    for old in [path for path in folder.rglob("*") if path.is_file()]:
        old.unlink()
    for name, data in tree.items():
        path = Path(f"{folder}{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(re.sub(rb"""(?<=["'])/""", f"{folder}/".encode(), data))
    done = subprocess.run([binary, "-c", f"{folder}{config}", "config", "dump"], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.replace(str(folder), "")[-400:]
    printed = tomllib.loads(done.stdout.replace(str(folder), ""))
    return {**printed, "imports": sorted(printed.get("imports", []))}


def cri(printed: Dump) -> Dump | None:
    """The settings of the CRI plugin; None when it is disabled."""
    plugins = printed["plugins"]
    for name in ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"):
        if "containerd" in plugins.get(name, {}):
            return dict(plugins[name])
    return None


def options(runtime: Mapping[str, Any]) -> dict[str, Any]:
    """A runtime's options by their small letters: the dump has them as they are spelled, and the shim's fields not."""
    stated = runtime.get("options", {})
    return {key.lower(): stated[key] for key in sorted(stated)}


def differs(before: Dump, after: Dump, meant: tuple[str, ...]) -> list[str]:
    found = [".".join(path) for path in differences(before, after)]
    return [path for path in found if not any(path == one or path.startswith(f"{one}.") for one in meant)]


def unmet(printed: Dump, request: RuntimeRequest, before: Dump | str) -> list[str]:
    """What was asked for and is not in force."""
    settings = cri(printed)
    if settings is None or "io.containerd.grpc.v1.cri" not in printed["plugins"]:
        return []  # CRI is disabled
    section = settings["containerd"]
    runtime = section["runtimes"].get(request.name, {})
    default, was = section["default_runtime_name"], cri(before) if isinstance(before, dict) else None
    wanted = {"nvidia": request.name, "runc": "runc"}.get(request.default_runtime)
    wanted = wanted or (was or settings)["containerd"]["default_runtime_name"]
    checks = {
        "runtime_type": runtime.get("runtime_type") == "io.containerd.runc.v2",
        "BinaryName": options(runtime).get("binaryname") == request.path,
        "default": default == wanted,
        "the default is a runtime": default in section["runtimes"] or request.default_runtime == "keep",
        "no keys of shim v1": not runtime.get("runtime_engine") and not runtime.get("runtime_root"),
        "cdi": request.cdi is None or settings.get("enable_cdi", False) is request.cdi,
    }
    if request.cgroup_driver:
        systemd = request.cgroup_driver == "systemd"
        both = [section["runtimes"][name] for name in ("runc", request.name) if name in section["runtimes"]]
        checks["SystemdCgroup"] = all(bool(options(one).get("systemdcgroup")) is systemd for one in both)
    return [name for name, met in checks.items() if not met]


def misread(printed: Dump, tree: Mapping[str, bytes], request: RuntimeRequest) -> list[str]:
    """What our own reading of the files says differently from the daemon."""
    settings = cri(printed)
    if settings is None:
        return []
    section, ours = settings["containerd"], runtime_state(tree, request)
    theirs = options(section["runtimes"].get(request.name, {})).get("binaryname", "")
    checks = {
        "runtimes": set(ours.runtimes) == set(section["runtimes"]),
        "default": ours.default == section["default_runtime_name"],
        "path": ours.path == theirs,
        "cdi": ours.cdi == settings.get("enable_cdi"),
    }
    return [name for name, same in checks.items() if not same]


def attempt(edit: Any, *arguments: Any) -> Edit | None:
    """The edit, None when it is refused."""
    try:
        made = edit(*arguments)
    except GpunodeError:
        return None
    return None if made.problems else made


CASE_NAMES = [one.name for one in cases("containerd")]


@pytest.mark.parametrize("binary", BINARIES, ids=lambda path: VERSIONS[path])
@pytest.mark.parametrize("name", CASE_NAMES)
def test_what_was_asked_for_is_in_force_and_nothing_else_has_changed(name: str, binary: Path, tmp_path: Path) -> None:
    case = case_of("containerd", name)
    tree, request = case.before, replace(request_of(case), version=VERSIONS[binary])
    config = request.config or CONFIG
    before = dump(binary, tree, tmp_path, config)
    if isinstance(before, dict) and attempt(lambda: Edit(reasons=runtime_state(tree, request).notes)):
        assert misread(before, tree, request) == []
    edit = attempt(configure_runtime, tree, request)
    if edit is None:
        pytest.skip("refused")
    after_tree = applied(tree, edit)
    after = dump(binary, after_tree, tmp_path, config)
    assert isinstance(after, dict), f"does not load: {after}"
    assert unmet(after, request, before) == []
    assert misread(after, after_tree, request) == []
    assert configure_runtime(after_tree, request).changes == {}, "editing twice equals editing once"
    if isinstance(before, dict):
        assert differs(before, after, edit.meant) == []

    removal = unconfigure_runtime(after_tree, request)
    assert removal.problems == ()
    left_tree = applied(after_tree, removal)
    left = dump(binary, left_tree, tmp_path, config)
    assert isinstance(left, dict), f"does not load without the runtime: {left}"
    assert differs(after, left, removal.meant) == []
    assert unconfigure_runtime(left_tree, request).changes == {}
    settings = cri(left)
    if settings:
        section = settings["containerd"]
        assert request.name not in section["runtimes"]
        assert section["default_runtime_name"] in section["runtimes"] or request.default_runtime == "keep"
    was = cri(before) if isinstance(before, dict) and not request.enable_cri else None
    if isinstance(before, dict) and was and request.name not in was["containerd"]["runtimes"]:
        assert differs(before, left, unknown(was, request)) == [], "without a record, too, all is as before"


def unknown(was: Dump, request: RuntimeRequest) -> tuple[str, ...]:
    """The settings that nobody can restore without a record: they had another value, and are not nvidia's own."""
    section = was["containerd"]
    keys = ["containerd.default_runtime_name"] * (section["default_runtime_name"] != "runc")
    keys += ["containerd.runtimes.runc"] * ("runc" not in section["runtimes"])
    spellings = ("SystemdCgroup", "systemdCgroup")
    keys += [f"containerd.runtimes.runc.options.{key}" for key in spellings if request.cgroup_driver]
    keys += ["enable_cdi"] * (request.cdi is not None)
    names = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
    return ("imports", *(f"plugins.{name}.{key}" for name in names for key in keys))
