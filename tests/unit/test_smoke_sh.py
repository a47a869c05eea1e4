"""node/smoke/smoke.sh with stand-ins of the tools that it uses; containers that run are tested on lab nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpunode.core.items.requests.smoke import parse_checks, smoke_files
from gpunode.core.model import Check
from gpunode.core.remote import program
from gpunode.node import script


@pytest.mark.parametrize(
    ("gpus", "loaded", "works", "status"),
    [
        (1, True, True, "passed"),
        (0, False, True, "passed"),
        (1, True, False, "failed"),
        (0, True, False, "failed"),
        (1, False, False, "failed"),
        (0, False, False, "not-proven"),
    ],
)
def test_without_a_driver_that_anybody_asked_for_the_toolkit_is_not_proven(
    gpus: int, loaded: bool, works: bool, status: str, tmp_path: Path
) -> None:
    for name, code in {"nvidia-container-cli": 0 if works else 1, "nvidia-smi": 0}.items():
        stand_in(tmp_path, name, f"echo NVRM version: 595.91.07\nexit {code}")
    if loaded:
        (tmp_path / "module").mkdir()
    assert smoked(tmp_path, {"gpus": gpus, "toolkit": True})["toolkit.cli"].status == status


@pytest.mark.parametrize("log", ["", "/data/rke2/agent/containerd/containerd.log and journalctl -u rke2-agent"])
def test_a_pod_that_does_not_start_names_the_log_of_its_containerd(log: str, tmp_path: Path) -> None:
    stand_in(tmp_path, "ctr", "echo gpunode-smoke-ran")
    stand_in(tmp_path, "crictl", '[ "$5" != runp ] || { echo no handler; exit 1; }')
    found = smoked(
        tmp_path, {"runtimes": ["containerd"], "image": "a/b", **({"logs": {"containerd": log}} if log else {})}
    )
    assert found["containerd.binary"].status == "passed"
    for one in ("containerd.cri-nvidia", "containerd.cri-default"):
        assert found[one].message == "no pod sandbox: no handler"
        assert found[one].fix == f"{log or 'journalctl -u containerd'}, on the node"


@pytest.mark.parametrize("unit", ["docker", "snap.docker.dockerd"])
def test_a_container_that_does_not_start_names_the_unit_of_its_docker(unit: str, tmp_path: Path) -> None:
    stand_in(tmp_path, "docker", '[ "$1" != start ] || echo no such device')
    logs = {} if unit == "docker" else {"logs": {"docker": f"journalctl -u {unit}"}}
    found = smoked(tmp_path, {"runtimes": ["docker"], "image": "a/b", **logs})["docker.gpus-all"]
    assert found.message.endswith("could not start a container: no such device")
    assert found.fix == f"journalctl -u {unit}, on the node"


def stand_in(folder: Path, name: str, text: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bin" / name).chmod(0o755)


def smoked(folder: Path, request: dict[str, object]) -> dict[str, Check]:
    done = subprocess.run(
        ["sh"],
        input=program(script("smoke.sh").replace("/sys/module/nvidia", str(folder / "module")), smoke_files(request)),
        env={"PATH": f"{folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    return {check.id: check for check in parse_checks(done.stdout, done.returncode)}
