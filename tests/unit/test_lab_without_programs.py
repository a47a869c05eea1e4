"""A lab without a network or a compiler: the script in place of NVIDIA's nvidia-smi, and no NVML."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.core.errors import RefusedError
from gpunode.lab import nvml, packages_vendor, vendor
from gpunode.lab.packages_table import CUDA, NVML, SMI, files_of, texts_in

STANDINS = Path(packages_vendor.__file__).parent / "standins/packages"
SMI_PACKAGE = {"name": "nvidia-smi", "files": {"usr/bin/nvidia-smi": "nvidia-smi"}, "libraries": ["libnvidia-ml.so.1"]}
VALUES = {"version": "580.178.04"}


def refuse(*_: object, **__: object) -> Path:
    raise RefusedError("nothing is reached", expected="a network")


@pytest.mark.parametrize(("module", "name"), [(nvml, "header"), (nvml, "_compiler"), (vendor, "nvidia_smi")])
def test_where_one_of_them_is_missing_nodes_get_the_script_and_are_told(
    module: object, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvml, "build", nvml.build if module is nvml else lambda **_: Path(__file__))
    monkeypatch.setattr(module, name, refuse)
    said: list[str] = []
    programs = packages_vendor.programs(log=said.append)
    assert programs.keys() == {CUDA}  # which needs no more than gcc
    assert said[-1].startswith("nodes get a script in place of NVIDIA's nvidia-smi: nothing is reached")
    assert packages_vendor.overlays(programs, log=said.append) == {}
    files = files_of(SMI_PACKAGE, VALUES, {**texts_in(STANDINS), **programs})
    assert files["usr/bin/nvidia-smi"].data.startswith(b"#!/bin/sh")
    assert b"nvmlInit" not in files["usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.178.04"].data
    real = {NVML: b"\x7fELF nvmlInit", **dict.fromkeys(SMI.values(), b"\x7fELF smi")}
    assert files_of(SMI_PACKAGE, VALUES, {**texts_in(STANDINS), **real})["usr/bin/nvidia-smi"].data == b"\x7fELF smi"
