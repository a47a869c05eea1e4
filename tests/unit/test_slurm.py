"""The line for Slurm: one, short, and nothing in it that a shell reads."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.model import Check, HostResult
from gpunode.core.report.slurm import LIMIT, slurm_line


def result(*checks: Check, outcome: str = "failed") -> HostResult:
    return HostResult(host="gpu1", outcome=outcome, message="a message", checks=checks)  # type: ignore[arg-type]


GONE = Check(id="gpu.gone", status="failed", message="GPU 0000:17:00.0 is gone")
STEP = Check(id="plan.driver.packages", status="failed", message="Install the driver")


def test_a_lost_gpu_comes_before_a_step_that_is_left() -> None:
    assert slurm_line(result(STEP, GONE)) == "gpunode: gpu.gone: GPU 0000:17:00.0 is gone (and 1 more)"


def test_a_good_node_and_one_that_nobody_reached() -> None:
    assert slurm_line(HostResult(host="gpu1")) == "gpunode: ok"
    assert slurm_line(result(outcome="unreachable")) == "gpunode: unreachable: a message"


@given(st.text(max_size=500))
def test_no_message_breaks_out_of_the_quotes_of_scontrol(text: str) -> None:
    line = slurm_line(result(Check(id="gpu.fault", status="failed", message=text)))
    assert len(line) <= LIMIT
    assert "\n" not in line
    assert shlex.split(f'reason="{line}"') == [f"reason={line}"]
