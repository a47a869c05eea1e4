"""`gpu` of gpunode.yml: what is refused, and the unit's program on NVIDIA's real nvidia-smi."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from real_smi import RealSmi, Smi, branches

from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.items.activation import activate_request
from gpunode.core.items.gpu_settings import PROGRAM, UNIT, VALUES
from gpunode.core.model import NodeFacts, NvmlGpu, Outcome, Service
from gpunode.core.remote import parse_outcome, program
from gpunode.core.spec import parse_spec
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.lab import nvml
from gpunode.node import script

TEMPLATES = Path(__file__).parents[2] / "gpunode/templates"
H100 = Path(__file__).parents[1] / "cases/probes/debian12-h100-provisioned/probe.txt"
KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"
CARD = "GPU 0 (NVIDIA H100 80GB HBM3)"
SAID = {
    "persistence": "Disabled",
    "power_limit": "700.00",
    "power_min": "200.00",
    "power_max": "700.00",
    "clock": "345",
    "clock_max": "1980",
    "ecc_current": "Enabled",
    "ecc_pending": "Enabled",
}
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
    assert files[VALUES] == "# written by gpunode\n* persistence Enabled\n* power_limit 500.00\n"
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
        (
            {"persistence": True, "clocks": "210,2500"},
            {},
            f"gpu.clocks is 210,2500, and {CARD} takes 0 to 1980",
        ),
        (
            {"persistence": True, "clocks": "1410"},
            {"clock_max": "N/A"},
            f"gpu.clocks: {CARD} has no clocks that can be set",
        ),
        ({"ecc": False}, {"ecc_current": "N/A"}, f"gpu.ecc: {CARD} has no ECC that can be switched"),
        (
            {"models": {"10de:2330": {"ecc": False}}},
            {"ecc_current": "N/A"},
            f"gpu.ecc: {CARD} has no ECC that can be switched",
        ),
    ],
)
def test_what_a_gpu_cannot_is_refused(gpu: Mapping[str, Any], said: Mapping[str, str], words: str) -> None:
    assert planned(node(**said), gpu) == ({}, [words]) or words in planned(node(**said), gpu)[1]


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"power_limit": 500}, r"gpu\.persistence is not true"),
        ({"clocks": "1410"}, r"gpu\.persistence is not true"),
        ({"persistence": True, "clocks": "1410,210"}, "gpu.clocks is '1410,210'"),
        ({"persistence": True, "clocks": "max"}, "gpu.clocks is 'max'"),
        ({"models": {"H100": {"ecc": True}}}, "gpu.models has 'H100'"),
        ({"models": {"10de:2330": {"power_limit": 500}}}, r"gpu\.models\.10de:2330\.persistence is not true"),
    ],
)
def test_what_cannot_be_together_is_refused_in_the_file(gpu: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_spec({"gpu": gpu})


def test_a_model_has_its_own_settings_and_the_rest_of_those_of_all() -> None:
    asked = {**ASKED, "models": {"10de:20b2": {"power_limit": 300, "ecc": False}, "10de:2330": {"clocks": "1410"}}}
    steps, problems = planned(node(), asked)
    files = {file["path"]: file["content"] for file in steps["files"]}
    assert problems == [] and files[VALUES].splitlines()[1:] == [
        "10de:20b2 persistence Enabled",
        "10de:20b2 power_limit 300.00",
        "10de:2330 persistence Enabled",
        "10de:2330 power_limit 500.00",
        "10de:2330 clocks 1410,1410",
        "* persistence Enabled",
        "* power_limit 500.00",
    ]
    desired = DesiredState({**REST, "gpu": asked})
    left = desired.pending(desired.plan("node1", node(persistence="Enabled", power_limit="500.00", clock="345")))
    assert not any(name.startswith("GPU") for _, _, name in left), "this node has no A100"


def test_a_model_goes_back_to_what_its_driver_has_by_itself() -> None:
    asked = {**ASKED, "clocks": "1410", "models": {"10de:2330": {"power_limit": 0, "clocks": "free"}}}
    steps, problems = planned(node(power_default="650.00"), asked)
    lines = {file["path"]: file["content"] for file in steps["files"]}[VALUES].splitlines()
    assert problems == [] and [line for line in lines if line.startswith("10de:2330")] == [
        "10de:2330 persistence Enabled",
        "10de:2330 power_limit default",
        "10de:2330 clocks free",
    ]
    desired = DesiredState({**REST, "gpu": asked})
    for limit, drift in (("650.00", []), ("500.00", ["500.00; wanted default"])):
        facts = node(persistence="Enabled", power_limit=limit, power_default="650.00", clock="1980")
        words = desired.pending(desired.plan("node1", facts))
        assert [text for (_, _, name), text in words.items() if name.startswith("GPU")] == drift
    parse_spec({"gpu": {"power_limit": 0, "clocks": "free"}})  # without persistence: there is nothing to forget


def test_ecc_is_for_the_node_to_keep_and_waits_for_a_reset() -> None:
    assert planned(node(), {"ecc": False}) == ({}, []), "no unit for it"
    desired = DesiredState({**REST, "gpu": {"ecc": False}})
    [step] = [one for one in desired.plan("node1", node()).plan.steps if one.id == "driver.activate"]
    assert (step.value["ecc"], step.value["reboot"]) == ({"*": "Disabled"}, "if-needed")
    assert step.disruptive == "GPU ECC: the node reboots"
    words = desired.pending(desired.plan("node1", node(ecc_pending="Disabled")))
    assert "Enabled, and Disabled after a reset; wanted Disabled" in words.values()
    assert planned(node(ecc_current="Disabled", ecc_pending="Disabled"), {"ecc": False}) == ({}, [])


@pytest.mark.parametrize(("clock", "drift"), [("1410", False), ("345", False), ("1980", True)])
def test_a_clock_above_the_locked_ones_is_drift(clock: str, drift: bool) -> None:
    desired = DesiredState({**REST, "gpu": {"persistence": True, "clocks": "210,1410"}})
    words = desired.pending(desired.plan("node1", node(persistence="Enabled", clock=clock)))
    assert any("1980 MHz; wanted 210,1410" in text for text in words.values()) is drift


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


SHELLS = pytest.mark.parametrize(
    "shell", [pytest.param(words.split(), marks=pytest.mark.slow, id=words) for words in ("dash", "bash", "busybox sh")]
)


class Machine:
    """The unit's program, and others, next to NVIDIA's real nvidia-smi."""

    def __init__(self, folder: Path, smi: Smi, shell: list[str]) -> None:
        self.folder, self.smi, self.shell = folder, smi, shell
        given = nvml.environment(smi.library, smi.root, smi.program.version)
        words = " ".join(f"{name}={given[name]}" for name in given if name.startswith(("GPUNODE_LAB_", "LD_")))
        (folder / "nvidia-smi").write_text(f'#!/bin/sh\nexec env {words} {smi.program.path} "$@"\n')
        (folder / "nvidia-smi").chmod(0o755)
        self.values, self.before = folder / "values", folder / "before"

    def unit(self, word: str) -> subprocess.CompletedProcess[str]:
        text = (TEMPLATES / "gpu-settings.sh.j2").read_text()
        text = text.replace(VALUES, str(self.values)).replace("/run/gpunode-gpu-settings", str(self.before))
        return self.run(text.replace("PATH=/usr/local/sbin", f"PATH={self.folder}:/usr/local/sbin"), "-s", word)

    def run(self, text: str, *words: str) -> subprocess.CompletedProcess[str]:
        path = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        return subprocess.run([*self.shell, *words], input=text, capture_output=True, text=True, check=False, env=path)

    def script(self, name: str, **request: bytes) -> Outcome:
        state = {"state": f"{self.folder}/state\n".encode()}
        (self.folder / "state").mkdir(exist_ok=True)
        done = self.run(program(script(name), {**state, **request}))
        return parse_outcome(done.stdout, done.returncode)

    def said(self, fields: str) -> list[str]:
        _, text = self.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits")
        return text.splitlines()


def test_the_unit_finds_the_programs_of_a_driver_that_an_image_brought(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho asked >>{tmp_path}/asked\nexit 9\n")
    smi.chmod(0o755)
    text = (TEMPLATES / "gpu-settings.sh.j2").read_text().replace("/usr/local/nvidia/bin", str(tmp_path))
    done = subprocess.run(["sh", "-s", "apply"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "asked").read_text()) == (1, "asked\n"), done.stderr


@SHELLS
@pytest.mark.parametrize("branch", branches("535", "580", "615"))
def test_the_unit_makes_them_reads_them_back_and_puts_back_what_it_found(
    branch: str, shell: list[str], real_smi: RealSmi, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, real_smi(branch, gpus=("h100", "a100")), shell)
    fields = "persistence_mode,power.limit,compute_mode,clocks.gr"
    assert machine.unit("restore").returncode == 0
    found = machine.said(fields)
    machine.values.write_text(
        "# written by gpunode\n10de:2330 persistence Enabled\n10de:2330 power_limit 500.00\n"
        "10de:2330 compute_mode Exclusive_Process\n* persistence Enabled\n* clocks 800,1200\n"
    )
    assert machine.unit("apply").returncode == machine.unit("apply").returncode == 0
    assert machine.said(fields) == ["Enabled, 500.00, Exclusive_Process, 345", "Enabled, 400.00, Default, 800"]
    assert machine.unit("restore").returncode == 0
    assert machine.said(fields) == found == ["Disabled, 700.00, Default, 345", "Disabled, 400.00, Default, 345"]
    assert not machine.before.exists()
    machine.values.write_text("* power_limit 9000.00\n")
    assert machine.unit("apply").returncode == 1, "the driver refuses it, and the unit fails"
    assert machine.before.exists()


@SHELLS
@pytest.mark.parametrize("branch", branches("535", "580", "615"))
def test_the_unit_sets_what_the_driver_has_by_itself(
    branch: str, shell: list[str], real_smi: RealSmi, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, real_smi(branch, gpus=("h100", "a100")), shell)
    for by_hand in (("-pm", "1"), ("-pl", "300"), ("-lgc", "800,1200")):
        assert machine.smi(*by_hand)[0] == 0
    machine.values.write_text("10de:2330 power_limit default\n10de:2330 clocks free\n* power_limit 350.00\n")
    done = machine.unit("apply")
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.said("power.limit,clocks.gr") == ["700.00, 345", "350.00, 800"]
    assert machine.unit("restore").returncode == 0
    assert machine.said("power.limit") == ["300.00", "300.00"], "as they were found"


@SHELLS
@pytest.mark.parametrize(("late", "status"), [(0, 0), (3, 0), (99, 1)])
def test_a_gpu_at_work_has_some_seconds_to_slow_down(
    late: int, status: int, shell: list[str], real_smi: RealSmi, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, real_smi("580", gpus=("h100",)), shell)
    asked, real = tmp_path / "asked", tmp_path / "nvidia-smi"
    real.rename(tmp_path / "real-smi")
    real.write_text(
        f"#!/bin/sh\ncase $* in *clocks.current.graphics*) echo >>{asked}\n"
        f'[ $(wc -l <{asked}) -gt {late} ] || {{ echo 1980; exit; }} ;;\nesac\nexec {tmp_path}/real-smi "$@"\n'
    )
    real.chmod(0o755)
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    (tmp_path / "sleep").chmod(0o755)
    machine.values.write_text("* clocks 800,1200\n")
    done = machine.unit("apply")
    assert done.returncode == status, done.stderr
    assert asked.read_text().count("\n") == min(late, 5) + 1
    assert ("its clock is 1980 MHz after nvidia-smi -lgc 800,1200" in done.stderr) is bool(status)


@SHELLS
@pytest.mark.parametrize("branch", branches("418", "535", "580"))
def test_a_gpu_whose_clocks_cannot_be_locked_fails_the_unit_unless_they_are_to_be_free(
    branch: str, shell: list[str], real_smi: RealSmi, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, real_smi(branch, gpus=("p40",)), shell)
    machine.values.write_text("* clocks 300,1200\n")
    done = machine.unit("apply")
    assert done.returncode == 1 and "it does not take nvidia-smi -lgc 300,1200" in done.stderr
    undone = machine.unit("restore")
    assert (undone.returncode, undone.stderr) == (0, "") and "not supported" in undone.stdout
    machine.values.write_text("* clocks free\n")
    freed = machine.unit("apply")
    assert (freed.returncode, freed.stderr) == (0, "") and "not supported" in freed.stdout


@SHELLS
def test_a_clock_that_is_not_given_free_fails_the_unit(shell: list[str], real_smi: RealSmi, tmp_path: Path) -> None:
    machine = Machine(tmp_path, real_smi("580", gpus=("h100",)), shell)
    (tmp_path / "nvidia-smi").rename(tmp_path / "real-smi")
    words = "Unable to reset locked gpu clocks for GPU 00000000:17:00.0: Insufficient Permissions"
    (tmp_path / "nvidia-smi").write_text(
        f'#!/bin/sh\ncase $* in *-rgc*) echo "{words}"; exit 4 ;; esac\nexec {tmp_path}/real-smi "$@"\n'
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    machine.values.write_text("* clocks free\n")
    done = machine.unit("apply")
    assert done.returncode == 1 and words in done.stderr


@SHELLS
@pytest.mark.parametrize("branch", branches("535", "580", "615"))
def test_ecc_is_set_for_the_next_reset_and_undone(
    branch: str, shell: list[str], real_smi: RealSmi, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, real_smi(branch, gpus=("h100", "a100")), shell)
    request = activate_request({"ecc": {"10de:2330": "Disabled", "*": "Enabled"}})
    done = machine.script("activate.sh", **request)
    modes = "ecc.mode.current,ecc.mode.pending"
    assert done.status == "changed" and "is Enabled, and Disabled after a reset" in done.message, done
    assert machine.said(modes) == ["Enabled, Disabled", "Enabled, Enabled"], "nothing was reset"
    [uuid, _] = machine.said("uuid")
    again = machine.script("activate.sh", **request)
    assert again.status == "unchanged" and again.message.startswith("reboot needed: ECC of")
    [record] = [
        json.loads(line) for line in (tmp_path / "state/journal.jsonl").read_text().splitlines() if '"ecc"' in line
    ]
    assert (record["name"], record["from"], record["to"]) == (uuid, "Enabled", "Disabled")
    undone = machine.script("restore.sh", ecc=f"{uuid} Enabled\n".encode())
    assert undone.status == "changed" and undone.texts == (f"ECC of {uuid}: Enabled after a reset",)
    assert machine.said(modes) == ["Enabled, Enabled", "Enabled, Enabled"]


def test_a_gpu_that_was_not_read_is_not_as_asked() -> None:
    facts = replace(node(), nvml=(NvmlGpu(index=0),))
    assert "activate" in planned(facts, ASKED)[0]


def test_a_plan_is_made_again_where_only_the_drivers_word_has_changed() -> None:
    desired = DesiredState({**REST, "gpu": {**ASKED}})
    assert desired.plan("node1", node()).plan.problems == ()
    assert desired.plan("node1", node(power_min="N/A")).plan.problems != ()
