"""Machines that are prepared before their GPU is there: what is asked, what the first boot runs, what verify says."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.checks.health import health_checks
from gpunode.core.errors import InputError
from gpunode.core.facts import facts_hash, parse_probe
from gpunode.core.items.first_boot import (
    PROGRAM,
    SCRIPTS,
    UNIT,
    UNIT_PATH,
    first_boot_checks,
    first_boot_program,
    prepared,
)
from gpunode.core.model import ConfigFile, FirstBoot, NodeFacts, Service
from gpunode.core.spec import parse_spec
from gpunode.edge import load
from gpunode.edge.desired import DesiredState, Planned
from gpunode.edge.load import load_knowledge
from gpunode.node import script

PROBES = Path(__file__).parents[1] / "cases/probes"
IMAGE: dict[str, Any] = {"image": {"gpus": ["10de:2330"], "load": False}}
TEXTS = {name: script(name) for name in SCRIPTS}
NVSWITCH = "10de:22a3"


@cache
def bare() -> NodeFacts:
    """A machine without a GPU."""
    return replace(parse_probe((PROBES / "debian12-h100-fresh/probe.txt").read_text(encoding="utf-8")), gpus=())


@pytest.fixture(autouse=True)
def no_key_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n")


def plan(facts: NodeFacts, spec: dict[str, Any]) -> Planned:
    return DesiredState(spec).plan("node1", facts)


def steps(planned: Planned) -> dict[str, Any]:
    return {step.id: step.value for step in planned.plan.steps}


def test_the_driver_of_a_gpu_to_come_is_installed_and_nothing_of_it_loaded() -> None:
    found = steps(plan(bare(), IMAGE))
    assert "nvidia-open" in [p["name"] for p in found["driver.packages"]["install"]]
    assert found["driver.activate"] == {
        "enable": ["nvidia-persistenced.service", UNIT],
        "initramfs": True,
        "reboot": "never",
    }
    assert UNIT_PATH in [file["path"] for file in found["driver.files"]]
    assert found["driver.first_boot"]["activate"]["load"] == ["nvidia", "nvidia_uvm", "nvidia_modeset"]
    assert found["driver.first_boot"]["smoke"]["gpus"] == "found"
    assert found["verify.smoke"]["gpus"] == 0 and not found["verify.smoke"]["runtimes"]
    assert "runtime.cdi" not in found


@pytest.mark.parametrize("there", [False, True], ids=["no GPU", "a GPU"])
def test_gpus_are_cut_when_the_driver_is_loaded_and_not_before_and_that_is_said(there: bool) -> None:
    node = parse_probe((PROBES / "debian12-h100-fresh/probe.txt").read_text(encoding="utf-8")) if there else bare()
    sharing = {"strategy": "mig", "mig": {"profiles": {"3g.40gb": 2}}}
    found = plan(node, {**IMAGE, "sharing": sharing}).plan
    assert found.steps and "sharing" not in {step.role for step in found.steps}
    assert [text for text in found.warnings if text.startswith("sharing.strategy mig: ")]
    assert not [text for text in plan(node, IMAGE).plan.warnings if text.startswith("sharing")]
    titles = {step.id: step.title for step in found.steps}
    assert titles["driver.activate"] == "Have the first boot with a GPU load the driver, and rebuild the initramfs"


def test_a_machine_with_nvswitches_to_come_gets_the_fabric_manager_enabled_and_not_started() -> None:
    spec = {"image": {**IMAGE["image"], "nvswitches": [NVSWITCH]}}
    found = steps(plan(bare(), spec))
    assert "nvidia-fabricmanager.service" in found["driver.activate"]["enable"]
    assert "services" not in found["driver.activate"]
    assert found["driver.first_boot"]["activate"]["services"][-1] == "nvidia-fabricmanager.service"


def test_every_installed_kernel_gets_its_headers_and_its_module() -> None:
    kernel = next(k for k in bare().kernels if k.image)
    other = replace(kernel, release="6.1.0-77-amd64", running=False, headers=False)
    planned = plan(replace(bare(), kernels=(kernel, other)), IMAGE)
    assert "linux-headers-6.1.0-77-amd64" in [p["name"] for p in steps(planned)["driver.packages"]["install"]]
    why = next(step for step in planned.plan.steps if step.id == "driver.packages").reasons
    assert any("6.1.0-77-amd64" in reason.what and reason.why.startswith("absent") for reason in why)


@pytest.mark.parametrize(
    ("image", "what"),
    [
        ({"load": False}, "it is not said for which GPU"),
        ({"gpus": ["10de:2330"]}, "cannot be loaded"),
        ({"gpus": ["10de:2330"], "load": False, "method": "runfile"}, "a runfile's installer loads the driver"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything(image: dict[str, Any], what: str) -> None:
    method = {"driver": {"method": image["method"]}} if "method" in image else {}
    planned = plan(bare(), {"image": {k: v for k, v in image.items() if k != "method"}, **method})
    assert not planned.plan.steps
    assert [what in p.what for p in planned.plan.problems] == [True]


@pytest.mark.parametrize("ids", [["2330"], ["10DE:2330"], ["1002:7448"], ["10de:23300"]])
def test_only_pci_ids_of_nvidia_name_what_is_to_come(ids: list[str]) -> None:
    with pytest.raises(InputError, match="image has"):
        parse_spec({"image": {"gpus": ids}})


def after(planned: Planned, **first_boot: Any) -> NodeFacts:
    """The machine as it is once what concerns the first boot was done."""
    program = first_boot_program(steps(planned)["driver.first_boot"], TEXTS)
    unit = planned_file(planned, UNIT_PATH)
    services = {UNIT.removesuffix(".service"): Service(name=UNIT, enabled="enabled")}
    record = FirstBoot(program=hashlib.sha256(program).hexdigest(), armed=True, **first_boot)
    file = ConfigFile(path=UNIT_PATH, sha256=hashlib.sha256(unit).hexdigest(), mode=0o644, data=unit)
    return replace(
        planned.facts,
        first_boot=record,
        services={**planned.facts.services, **services},
        files={**planned.facts.files, UNIT_PATH: file},
    )


def planned_file(planned: Planned, path: str) -> bytes:
    return next(f["content"] for f in steps(planned)["driver.files"] if f["path"] == path).encode()


def test_what_is_left_for_the_first_boot_is_not_left_twice() -> None:
    first = plan(bare(), IMAGE)
    second = steps(plan(after(first), IMAGE))
    assert "driver.first_boot" not in second
    assert UNIT_PATH not in [file["path"] for file in second["driver.files"]]
    done = replace(after(first, status="passed"), services={})  # it has disabled itself
    pending = DesiredState(IMAGE).pending(plan(done, IMAGE))
    assert not [key for key in pending if UNIT in key.name]


def test_another_engine_makes_another_program() -> None:
    first = plan(bare(), IMAGE)
    other = {**IMAGE, "cuda": {"versions": ["12.8"]}}
    pending = DesiredState(IMAGE).pending(plan(after(first), other))
    assert [key.name for key in pending if key.option == "first_boot"] == [PROGRAM]
    done = DesiredState(IMAGE).pending(plan(after(first, status="passed"), other))
    assert not [key for key in done if key.option == "first_boot"], "it has done its work"


RECORDED = FirstBoot(program="ab", armed=True, at="2026-11-20T04:05:06Z")


@pytest.mark.parametrize(
    ("record", "status", "words"),
    [
        (FirstBoot(), "", ""),
        (RECORDED, "not-proven", "prepared, not proven: it has not booted with a GPU since"),
        (
            replace(RECORDED, status="waiting", message="no NVIDIA GPU on PCI at this boot"),
            "not-proven",
            "no NVIDIA GPU on PCI at this boot",
        ),
        (
            replace(RECORDED, status="failed", failed=("smoke.gpus: 0 of 1",)),
            "failed",
            "the first boot with a GPU (2026-11-20T04:05:06Z) did not prove the driver: smoke.gpus: 0 of 1",
        ),
        (replace(RECORDED, status="passed", armed=False, message="6 checks"), "passed", "6 checks"),
        (replace(RECORDED, armed=False), "warning", "is not enabled"),
    ],
)
def test_verify_says_what_the_first_boot_has_proven(record: FirstBoot, status: str, words: str) -> None:
    facts = replace(bare(), first_boot=record)
    checks = list(first_boot_checks(facts))
    assert [check.status for check in checks] == ([status] if status else [])
    assert all(words in check.message for check in checks)
    assert prepared(facts) == (status in ("not-proven", "failed"))


def test_a_prepared_machine_is_not_warned_that_it_has_no_gpu() -> None:
    assert [c.id for c in health_checks(replace(bare(), first_boot=RECORDED), load_knowledge())] == ["image.first-boot"]
    assert [c.id for c in health_checks(bare(), load_knowledge())] == ["gpu.present"]


PROBE = """\
#: gpunode-probe 1
#: first_boot
| program abcd
| unit disabled
| status failed
| ran abcd
| at 2026-11-20T04:05:06Z
| message 1 of 3 checks failed
| check driver.loaded|passed|580.95.05|
| check containers.docker|failed|docker run: no GPU|see the log
#: end
"""


def test_the_probe_reads_the_record() -> None:
    assert parse_probe(PROBE).first_boot == FirstBoot(
        program="abcd",
        status="failed",
        at="2026-11-20T04:05:06Z",
        message="1 of 3 checks failed",
        failed=("containers.docker: docker run: no GPU",),
    )


def test_what_another_program_has_proven_does_not_count() -> None:
    assert parse_probe(PROBE.replace("| ran abcd", "| ran 1234")).first_boot == FirstBoot(program="abcd")


def test_the_record_is_among_what_a_plan_rests_on() -> None:
    assert facts_hash(bare()) != facts_hash(replace(bare(), first_boot=RECORDED))


def test_the_program_is_a_shell_script_that_needs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "first-boot"
    path.write_bytes(first_boot_program(steps(plan(bare(), IMAGE))["driver.first_boot"], TEXTS))
    assert path.read_bytes().startswith(b"#!/bin/sh\n")
    assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0


def test_a_part_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match="unknown key 'modprobe'"):
        first_boot_program({"modprobe": {}}, TEXTS)


def test_the_options_of_the_command_line_are_the_keys_of_the_file() -> None:
    from gpunode.cli.image import _with_image

    base = {"driver": {"branch": "580"}, "image": {"nvlink5_fabric": True}}
    assert _with_image(base, ("H100 PCIe", NVSWITCH), no_load=True) == {
        "driver": {"branch": "580"},
        "image": {"nvlink5_fabric": True, "load": False, "gpus": ["10de:2331"], "nvswitches": [NVSWITCH]},
    }
    with pytest.raises(InputError):
        _with_image({}, ("Voodoo 2",), no_load=True)
