"""node/smoke.sh with a stand-in of nvidia-container-cli; containers are tested on lab nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpunode.core.remote import program
from gpunode.core.requests_smoke import parse_checks, smoke_files
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
    (tmp_path / "bin").mkdir()
    for name, code in {"nvidia-container-cli": 0 if works else 1, "nvidia-smi": 0}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho NVRM version: 595.91.07\nexit {code}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    if loaded:
        (tmp_path / "module").mkdir()
    text = script("smoke.sh").replace("/sys/module/nvidia", str(tmp_path / "module"))
    done = subprocess.run(
        ["sh"],
        input=program(text, smoke_files({"gpus": gpus, "toolkit": True})),
        env={"PATH": f"{tmp_path}/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {check.id: check.status for check in parse_checks(done.stdout, done.returncode)}
    assert found["toolkit.cli"] == status
