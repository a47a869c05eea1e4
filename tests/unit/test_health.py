"""What the probe alone says of a node's health."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.checks.health import health_checks
from gpunode.core.facts import parse_probe

CASES = Path(__file__).parents[1] / "cases/probes"


@pytest.mark.parametrize(("wanted", "status"), [(True, "failed"), (False, "not-proven")])
def test_a_driver_that_nobody_wants_is_not_missed(wanted: bool, status: str) -> None:
    text = (CASES / "debian12-h100-fresh/probe.txt").read_text()
    found = {check.id: check.status for check in health_checks(parse_probe(text), driver=wanted)}
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
    [check] = [check for check in health_checks(facts) if check.id == "gpu.ecc"]
    assert (check.status, check.message) == ("passed", message)
