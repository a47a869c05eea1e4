"""The line for Slurm: one, short, and nothing in it that a shell reads."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.model import Cdi, CdiGpu, Check, HostResult, NodeFacts, NvmlGpu
from gpunode.core.report.slurm import LIMIT, gres_text, slurm_line


def result(*checks: Check, outcome: str = "failed") -> HostResult:
    return HostResult(host="gpu1", outcome=outcome, message="a message", checks=checks)  # type: ignore[arg-type]


GONE = Check(id="gpu.gone", status="failed", message="GPU 0000:17:00.0 is gone")
STEP = Check(id="plan.driver.packages", status="pending", message="Install the driver")


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


def facts(*gpus: tuple[str, int], mig: int = 0) -> NodeFacts:
    return NodeFacts(
        nvml=tuple(NvmlGpu(index=n, uuid=f"GPU-{n}", name=name) for n, (name, _) in enumerate(gpus)),
        cdi=Cdi(gpus=tuple(CdiGpu(minor=m, uuid=f"GPU-{n}", mig_devices=mig) for n, (_, m) in enumerate(gpus))),
    )


def test_gres_lines_have_the_device_files_that_the_driver_names() -> None:
    h100, l4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4"
    eight = facts(*((h100, n) for n in range(8)))
    assert gres_text("gpu1", eight) == "NodeName=gpu1 Name=gpu Type=nvidia_h100_80gb_hbm3 File=/dev/nvidia[0-7]"
    assert gres_text("gpu1", facts((h100, 2), (l4, 0), (h100, 5))).splitlines() == [
        "NodeName=gpu1 Name=gpu Type=nvidia_h100_80gb_hbm3 File=/dev/nvidia[2,5]",
        "NodeName=gpu1 Name=gpu Type=nvidia_l4 File=/dev/nvidia0",
    ]


def test_what_the_probe_does_not_say_is_a_comment() -> None:
    assert gres_text("gpu1", NodeFacts()).startswith("# gpu1: the driver does not name")
    assert gres_text("gpu1", facts(("NVIDIA L4", 0), mig=2)).startswith("# gpu1: MIG is on")
