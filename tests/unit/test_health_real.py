"""What verify and the doctor say of GPUs, by what NVIDIA's real nvidia-smi of each branch prints of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from test_questions_real import FIRST, SECOND, Smi
from test_questions_real import smi as smi  # the fixture

from gpunode.core.checks.health import health_checks
from gpunode.core.doctor.state import state_faults
from gpunode.core.model import NodeFacts, PciDevice
from gpunode.edge.doctor import load_faults
from gpunode.edge.load import load_knowledge

# what ails GPUs → the first branch that says so, the check that fails with a word of its message, the doctor's name
ILLS: Mapping[str, tuple[tuple[tuple[str, str, str], ...], int, str, str, str]] = {
    "pending remap": (
        ((SECOND, "remapped_rows.pending", "Yes"),),
        450,
        "gpu.remap-pending",
        "GPU 1",
        "reset-required",
    ),
    "failed remap": (
        ((SECOND, "remapped_rows.failure", "Yes"),),
        450,
        "gpu.remap-failure",
        "GPU 1",
        "row-remap-failed",
    ),
    "fabric in progress": (
        ((FIRST, "fabric.state", "In Progress"), (FIRST, "fabric.status", "N/A")),
        525,
        "fabric.state",
        "GPU 0: In Progress",
        "fm-state-in-progress",
    ),
    "fabric without success": (
        ((FIRST, "fabric.status", "Unknown Error"),),
        525,
        "fabric.state",
        "Unknown Error",
        "fm-state-in-progress",
    ),
    "requires reset": (((SECOND, "reset", "1"),), 0, "gpu.fault", "GPU 1: the driver says «GPU requires reset»", ""),
    "lost": (((SECOND, "lost", "1"),), 0, "gpu.fault", "GPU is lost", "gpu-lost"),
    "recovery": (
        ((SECOND, "gpu_recovery_action", "Reboot"),),
        570,
        "gpu.recovery",
        "GPU 1: the driver recommends «Reboot»",
        "reset-required",
    ),
    "ECC": (((SECOND, "ecc.errors.uncorrected.volatile.total", "3"),), 0, "gpu.ecc", "GPU 1: 3 uncorrected", ""),
    "hot": (((SECOND, "clocks.reasons", "0x48"),), 0, "gpu.slowdown", "GPU 1: HW thermal slowdown", "gpu-throttled"),
    "power brake": (
        ((FIRST, "clocks.reasons", "0x88"),),
        0,
        "gpu.slowdown",
        "GPU 0: HW power brake slowdown",
        "gpu-throttled",
    ),
    "links down": (((SECOND, "nvlink", "down"),), 0, "nvlink.down", "GPU 1", "nvlink-inactive"),
    "link down": (((SECOND, "nvlink.3", "down"),), 0, "nvlink.down", "(down: 3)", "nvlink-inactive"),
    "trained down": (
        ((SECOND, "pcie.link.gen.current", "1"),),
        0,
        "pcie.generation",
        "GPU 1 runs at Gen 1, and its slot and it can Gen 5",
        "",
    ),
    "narrow": (
        ((SECOND, "pcie.link.width.current", "4"),),
        0,
        "pcie.width",
        "GPU 1 has x4, and others of its model x16",
        "",
    ),
    "SRAM": (((SECOND, "ecc.sram.threshold", "1"),), 580, "gpu.sram", "GPU 1: more uncorrected SRAM errors", ""),
}


JOINED = tuple(
    (slot, f"fabric.{name}", said)
    for slot in (FIRST, SECOND)
    for name, said in (("state", "Completed"), ("status", "Success"))
) + tuple((slot, "persistence_mode", "Enabled") for slot in (FIRST, SECOND))


def node(smi: Smi, folder: Path, *ills: tuple[str, str, str]) -> NodeFacts:
    """Two H100 that have joined their fabric, but for what ails them."""
    stated = {(slot, field) for slot, field, _ in ills}
    smi.health(*(row for row in JOINED if row[:2] not in stated), *ills)
    facts, _ = smi.probe(folder)
    model = "10de:2330" if smi.branch >= 525 else "10de:1db6"  # drivers before know fewer than 18 links
    return replace(facts, gpus=tuple(PciDevice(slot=slot, id=model, class_code="0302") for slot in (FIRST, SECOND)))


def test_healthy_gpus_raise_no_alarm(smi: Smi, tmp_path: Path) -> None:
    facts = node(smi, tmp_path)
    checks = {check.id: check for check in health_checks(facts, load_knowledge())}
    assert [check for check in checks.values() if check.status in ("failed", "warning")] == []
    assert state_faults(facts, {}, None, load_faults().checks) == {}
    asked = {"gpu.count", "gpu.slowdown", "gpu.remap-pending", "gpu.remap-failure", "gpu.retirement-pending", "gpu.ecc"}
    asked |= {"fabric.state"} if smi.branch >= 525 else set()
    asked |= {"gpu.recovery"} if smi.branch >= 570 else set()
    assert {name for name in asked if checks[name].status != "passed"} == set()


@pytest.mark.parametrize("mask", ["0x1", "0x4", "0x2", "0x10", "0x100", "0x20"])
def test_clocks_that_idle_or_that_somebody_has_set_are_no_fault(mask: str, smi: Smi, tmp_path: Path) -> None:
    facts = node(smi, tmp_path, (FIRST, "clocks.reasons", mask))
    assert [check for check in health_checks(facts, load_knowledge()) if check.status in ("failed", "warning")] == []


@pytest.mark.parametrize("ill", ILLS)
def test_what_ails_a_gpu_is_seen_by_verify_and_named_by_the_doctor(ill: str, smi: Smi, tmp_path: Path) -> None:
    rows, since, check_id, word, fault = ILLS[ill]
    if smi.branch < 525 and "links down" in ill:
        word = "GPU 1"
    if smi.branch < 525 and ill == "link down":
        word = "GPU 1 link 3"
    facts = node(smi, tmp_path, *rows)
    found = {check.id: check for check in health_checks(facts, load_knowledge()) if check.status == "failed"}
    if smi.branch < since:
        assert found == {} and state_faults(facts, {}, None, load_faults().checks) == {}, "this driver does not say it"
        return
    if ill in ("lost", "requires reset") and check_id not in found:
        check_id, word = "gpu.count", word.rpartition("«")[2].removesuffix("»")  # nvidia-smi ends with that GPU
    assert word in found[check_id].message and found[check_id].fix
    assert not fault or fault in state_faults(facts, {}, None, load_faults().checks)
