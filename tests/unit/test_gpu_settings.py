"""`gpu` of gpunode.yml: what is refused, and the unit's program on NVIDIA's real nvidia-smi."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from real_smi import RealSmi, branches

from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.items.gpu_settings import PROGRAM, UNIT, VALUES
from gpunode.core.model import NodeFacts, NvmlGpu, Service
from gpunode.core.spec import parse_spec
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.lab import nvml

TEMPLATES = Path(__file__).parents[2] / "gpunode/templates"
H100 = Path(__file__).parents[1] / "cases/probes/debian12-h100-provisioned/probe.txt"
KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"
CARD = "GPU 0 (NVIDIA H100 80GB HBM3)"
SAID = {"persistence": "Disabled", "power_limit": "700.00", "power_min": "200.00", "power_max": "700.00"}
REST = {"driver": {"method": "preinstalled"}}
ASKED = {"persistence": True, "power_limit": 500}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda *_: KEY)


def node(**said: str) -> NodeFacts:
    facts = parse_probe(H100.read_text())
    return replace(facts, nvml=tuple(replace(gpu, **{**SAID, "compute_mode": "Default", **said}) for gpu in facts.nvml))


def planned(facts: NodeFacts, gpu: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(the values of the role's steps, problems)."""
    plan = DesiredState({**REST, "gpu": dict(gpu)}).plan("node1", facts).plan
    return {step.option: step.value for step in plan.steps if step.role == "fabric"}, [p.what for p in plan.problems]


def test_settings_are_a_unit_and_without_any_there_is_none() -> None:
    steps, problems = planned(node(), ASKED)
    assert problems == []
    files = {file["path"]: file["content"] for file in steps["files"]}
    assert files[VALUES] == "# written by gpunode\npersistence Enabled\npower_limit 500.00\n"
    assert [*files] == [PROGRAM, VALUES, f"/etc/systemd/system/{UNIT}"]
    assert steps["activate"] == {"services": [UNIT]}
    assert planned(node(), {}) == ({}, [])


@pytest.mark.parametrize(
    ("gpu", "said", "words"),
    [
        (
            {**ASKED, "power_limit": 800},
            {},
            f"gpu.power_limit is 800, and {CARD} takes 200 to 700",
        ),
        (
            ASKED,
            {"power_min": "N/A"},
            f"gpu.power_limit: {CARD} has no power limit that can be set",
        ),
    ],
)
def test_what_a_gpu_cannot_is_refused(gpu: Mapping[str, Any], said: Mapping[str, str], words: str) -> None:
    assert planned(node(**said), gpu) == ({}, [words]) or words in planned(node(**said), gpu)[1]


def test_a_limit_that_the_driver_would_forget_is_refused() -> None:
    with pytest.raises(InputError, match=r"gpu\.persistence is not true"):
        parse_spec({"gpu": {"power_limit": 500}})


def test_drift_runs_the_unit_again_and_what_is_as_asked_is_left() -> None:
    steps, _ = planned(node(), ASKED)
    done = node(persistence="Enabled", power_limit="500.00")
    files = parse_probe("#: gpunode-probe 1\n" + "".join(map(_file, steps["files"])) + "#: end\n").files
    unit = {UNIT.removesuffix(".service"): Service(name="gpunode-gpu", active="active", enabled="enabled")}
    done = replace(done, files={**done.files, **files}, services={**done.services, **unit})
    assert planned(done, ASKED) == ({}, [])
    drifted = replace(done, nvml=tuple(replace(gpu, power_limit="700.00") for gpu in done.nvml))
    assert planned(drifted, ASKED)[0]["activate"] == {"services": [], "restart": [UNIT]}
    off, _ = planned(done, {})
    assert [file["path"] for file in off["files"]] == [VALUES]
    assert off["activate"]["restart"] == [UNIT], "the unit puts back what it found"


def _file(file: Mapping[str, str]) -> str:
    data = file["content"].encode()
    head = f"{file['mode'].lstrip('0')} root:root {len(data)}"
    return f"#: file {file['path']}\n| {head}\n| {base64.b64encode(data).decode()}\n"


@pytest.mark.parametrize("shell", [["dash"], ["bash"], ["busybox", "sh"]], ids=" ".join)
@pytest.mark.parametrize("branch", branches("535", "580", "615"))
def test_the_unit_makes_them_reads_them_back_and_puts_back_what_it_found(
    branch: str, shell: list[str], real_smi: RealSmi, tmp_path: Path
) -> None:
    smi = real_smi(branch)
    given = nvml.environment(smi.library, smi.root, smi.program.version)
    words = " ".join(f"{name}={given[name]}" for name in given if name.startswith(("GPUNODE_LAB_", "LD_")))
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\nexec env {words} {smi.program.path} "$@"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    values, before = tmp_path / "values", tmp_path / "before"
    text = (TEMPLATES / "gpu-settings.sh.j2").read_text()
    text = text.replace(VALUES, str(values)).replace("/run/gpunode-gpu-settings", str(before))
    text = text.replace("PATH=/usr/local/sbin", f"PATH={tmp_path}:/usr/local/sbin")

    def run(word: str) -> int:
        return subprocess.run([*shell, "-s", word], input=text, capture_output=True, text=True, check=False).returncode

    def said() -> set[str]:
        _, text = smi("--query-gpu=persistence_mode,power.limit,compute_mode", "--format=csv,noheader,nounits")
        return {*text.splitlines()}

    assert run("restore") == 0
    found = said()
    values.write_text("# written by gpunode\npersistence Enabled\npower_limit 500.00\ncompute_mode Exclusive_Process\n")
    assert run("apply") == run("apply") == 0
    assert said() == {"Enabled, 500.00, Exclusive_Process"}
    assert run("restore") == 0
    assert said() == found == {"Disabled, 700.00, Default"} and not before.exists()
    values.write_text("power_limit 9000.00\n")
    assert run("apply") == 1, "the driver refuses it, and the unit fails"
    assert before.exists()


def test_a_gpu_that_was_not_read_is_not_as_asked() -> None:
    facts = replace(node(), nvml=(NvmlGpu(index=0),))
    assert "activate" in planned(facts, ASKED)[0]


def test_a_plan_is_made_again_where_only_the_drivers_word_has_changed() -> None:
    desired = DesiredState({**REST, "gpu": {**ASKED}})
    assert desired.plan("node1", node()).plan.problems == ()
    assert desired.plan("node1", node(power_min="N/A")).plan.problems != ()
