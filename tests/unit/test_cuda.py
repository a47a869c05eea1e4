"""CUDA on the host: the PATH that login shells get, the steps, and what a distribution brings itself."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.facts import parse_probe
from gpunode.core.items.file import render
from gpunode.core.model import NodeFacts, Plan
from gpunode.edge import load
from gpunode.edge.desired import DesiredState

PROBES = Path(__file__).parents[1] / "cases" / "probes"
TEMPLATE = (files("gpunode") / "templates" / "cuda.sh.j2").read_text(encoding="utf-8")
SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]
NSIGHT = ("/usr/local/cuda/nsight-compute-2025.1.0", "/opt/nvidia/nsight-systems/2024.6.2/bin")


def login(shell: list[str], tmp_path: Path, *, compat: str = "", more: str = "") -> dict[str, str]:
    """What the file leaves in the environment of a shell that reads it twice; /usr and /opt are in tmp_path."""
    text = render(TEMPLATE, compat=compat)
    for folder in ("/usr/local", "/opt/nvidia"):
        text = text.replace(folder, f"{tmp_path}{folder}")
    (tmp_path / "cuda.sh").write_text(text)
    names = ("CUDA_PATH", "PATH", "LD_LIBRARY_PATH", "cuda_folder")
    shown = ". ./cuda.sh; . ./cuda.sh; " + "; ".join(f"echo ${{{name}-unset}}" for name in names)
    done = subprocess.run(
        [*shell, "-c", f"set -eu; PATH=/bin; {more}{shown}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.stderr == ""
    return dict(zip(names, done.stdout.replace(str(tmp_path), "").splitlines(), strict=True))


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_a_login_shell_finds_nvcc_first_and_nsights_tools_last_each_once(shell: list[str], tmp_path: Path) -> None:
    for folder in NSIGHT:
        (tmp_path / folder[1:]).mkdir(parents=True)
    assert login(shell, tmp_path) == {
        "CUDA_PATH": "/usr/local/cuda",
        "PATH": ":".join(("/usr/local/cuda/bin", "/bin", *NSIGHT)),
        "LD_LIBRARY_PATH": "unset",
        "cuda_folder": "unset",
    }


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@pytest.mark.parametrize(
    ("more", "path"),
    [("", "/usr/local/cuda-13.0/compat"), ("LD_LIBRARY_PATH=/mine; ", "/usr/local/cuda-13.0/compat:/mine")],
)
def test_forward_compatibility_stands_before_the_drivers_libraries(
    shell: list[str], tmp_path: Path, more: str, path: str
) -> None:
    found = login(shell, tmp_path, compat="13.0", more=more)
    assert (found["PATH"], found["LD_LIBRARY_PATH"]) == ("/usr/local/cuda/bin:/bin", path)


def plan(facts: NodeFacts, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"(a key)\n")
    found = DesiredState({"toolkit": {"version": "none"}, **spec}).plan("node1", facts).plan
    assert found.problems == ()
    return found


def facts(name: str = "debian12-h100-fresh", **more: Any) -> NodeFacts:
    return replace(parse_probe((PROBES / name / "probe.txt").read_text()), **more)


def test_several_toolkits_and_their_default(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"cuda": {"versions": ["12.8", "13.0"], "default": "12.8"}}
    steps = {step.id: step.value for step in plan(facts(), spec, monkeypatch).steps}
    names = [package["name"] for package in steps["cuda.packages"]["install"]]
    assert names == ["cuda-toolkit-12-8", "cuda-toolkit-13-0"]
    assert steps["cuda.activate"] == {"alternatives": {"cuda": "/usr/local/cuda-12.8"}}
    assert steps["verify.smoke"]["cuda"] == ["12.8", "13.0"]


def test_an_older_driver_gets_the_compatibility_package_and_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"driver": {"branch": "570"}, "cuda": {"versions": ["12.8", "13.0"]}}
    steps = {step.id: step.value for step in plan(facts(), spec, monkeypatch).steps}
    assert "cuda-compat-13-0" in [package["name"] for package in steps["cuda.packages"]["install"]]
    [profile] = steps["cuda.files"]
    assert "/usr/local/cuda-13.0/compat" in profile["content"]


def test_archs_own_toolkit_brings_its_path_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {
        step.id: step.value
        for step in plan(facts("arch-h100-fresh"), {"cuda": {"versions": ["newest"]}}, monkeypatch).steps
    }
    assert [package["name"] for package in steps["cuda.packages"]["install"]] == ["cuda"]
    assert [name for name in steps if name.startswith("cuda.")] == ["cuda.packages"]
    assert steps["verify.smoke"]["cuda"] == ["newest"]


def test_newest_is_one_version_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"cuda": {"versions": ["12.8", "newest"], "default": "newest"}}
    steps = {step.id: step.value for step in plan(facts(), spec, monkeypatch).steps}
    assert steps["cuda.activate"] == {"alternatives": {"cuda": "/usr/local/cuda-13.5"}}
    assert steps["verify.smoke"]["cuda"] == ["12.8", "13.5"]
