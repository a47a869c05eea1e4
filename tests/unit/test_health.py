"""What the probe alone says of a node's health."""

from __future__ import annotations

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
