"""What the probe alone says of a node's health."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.checks.health import Expected, health_checks
from gpunode.core.facts import parse_probe
from gpunode.core.spec import VerifySpec
from gpunode.edge.load import load_knowledge

CASES = Path(__file__).parents[1] / "cases/probes"


@pytest.mark.parametrize(("wanted", "status"), [(True, "failed"), (False, "not-proven")])
def test_a_driver_that_nobody_wants_is_not_missed(wanted: bool, status: str) -> None:
    text = (CASES / "debian12-h100-fresh/probe.txt").read_text()
    found = {check.id: check.status for check in health_checks(parse_probe(text), load_knowledge(), driver=wanted)}
    assert found["driver.loaded"] == status


@pytest.mark.parametrize(
    ("ecc", "message"),
    [
        ("Enabled", "no uncorrected ECC error since boot"),
        ("", "no uncorrected ECC error since boot"),
        ("Disabled", "ECC is off: GPU 0 counts no memory errors"),
    ],
)
def test_a_gpu_whose_ecc_is_off_is_not_called_free_of_errors(ecc: str, message: str) -> None:
    facts = parse_probe((CASES / "debian12-h100-provisioned/probe.txt").read_text())
    facts = replace(facts, nvml=tuple(replace(gpu, ecc_current=ecc, ecc_uncorrected=None) for gpu in facts.nvml))
    [check] = [check for check in health_checks(facts, load_knowledge()) if check.id == "gpu.ecc"]
    assert (check.status, check.message) == ("passed", message)


H100, NONE = "debian12-h100-provisioned", "debian12-no-gpu"  # one GPU, in slot 0000:17:00.0; none
BEFORE = {"0000:17:00.0": "10de:2330", "0000:65:00.0": "10de:2330"}
PRESENCE = {  # node, expected → id: status
    "none at all": (NONE, Expected(spec=VerifySpec()), {"gpu.present": "failed"}),
    "none, and allowed": (NONE, Expected(spec=VerifySpec(allow_no_gpu=True)), {"gpu.present": "warning"}),
    "none, as expected": (NONE, Expected(spec=VerifySpec(expect_gpus=0)), {"gpu.present": "warning"}),
    "fewer than expected": (H100, Expected(spec=VerifySpec(expect_gpus=8)), {"gpu.expected": "failed"}),
    "more than expected": (H100, Expected(spec=VerifySpec(expect_gpus=0)), {"gpu.expected": "failed"}),
    "as many as expected": (H100, Expected(spec=VerifySpec(expect_gpus=1)), {}),
    "one is gone": (H100, Expected(spec=VerifySpec(), run="r1", before=BEFORE), {"gpu.gone": "failed"}),
    "one was removed": (H100, Expected(spec=VerifySpec(expect_gpus=1), run="r1", before=BEFORE), {}),
    "the last one is gone": (
        NONE,
        Expected(spec=VerifySpec(allow_no_gpu=True), run="r1", before=BEFORE),
        {"gpu.present": "warning", "gpu.gone": "failed"},
    ),
    "no journal": (H100, Expected(spec=VerifySpec(), unknown="damaged"), {"gpu.gone": "not-proven"}),
}


@pytest.mark.parametrize("case", PRESENCE)
def test_gpus_that_are_not_there_are_missed(case: str) -> None:
    node, expected, want = PRESENCE[case]
    facts = parse_probe((CASES / node / "probe.txt").read_text())
    found = {c.id: c.status for c in health_checks(facts, load_knowledge(), expected=expected)}
    assert {k: v for k, v in found.items() if k in ("gpu.present", "gpu.expected", "gpu.gone")} == want


def test_a_gpu_that_is_gone_is_named_with_its_slot_and_the_way_to_say_so() -> None:
    facts = parse_probe((CASES / H100 / "probe.txt").read_text())
    before = {gpu.slot: gpu.id for gpu in facts.gpus} | {"0000:65:00.0": facts.gpus[0].id}
    [check] = [
        c
        for c in health_checks(facts, load_knowledge(), expected=Expected(spec=VerifySpec(), run="r1", before=before))
        if c.id == "gpu.gone"
    ]
    assert check.message == "1 GPU gone since run r1: 0000:65:00.0"
    assert "--expect-gpus 1" in check.fix
