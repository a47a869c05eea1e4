"""Matrix multiplication on all GPUs at once: gpu-fryer's report, or gpu_burn's progress and verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpunode.core.accept import MAX_GPUS, Call, Measure, Reading, Tool, ToolRequest, unread
from gpunode.core.accept.text import lines, number, tail
from gpunode.core.late import regex
from gpunode.core.model import Check

SECONDS = 60
_FRYER = regex(r"GPU #(\d{1,3}): +(?:avg +)?([\d.]+) *(Gflops/s|[MGTP]FLOP/s)")
_FACTORS = {"Gflops/s": 1e-3, "MFLOP/s": 1e-6, "GFLOP/s": 1e-3, "TFLOP/s": 1.0, "PFLOP/s": 1e3}
_THROTTLED = regex(r"Throttling HW: (true|false), Thermal SW: (true|false), Thermal HW: (true|false)")


def _call(ask: ToolRequest) -> Call:
    return Call(arguments=(str(SECONDS),), seconds=SECONDS + 120)


def read_fryer(output: str, status: int, ask: ToolRequest) -> Reading:
    """TFLOPS of each GPU; what gpu-fryer itself says against one is a failure."""
    speeds: dict[int, float] = {}
    slowed: list[str] = []
    gpu, reasons, healthy = 0, [], False
    against = False
    for line in lines(output):
        if found := _FRYER.search(line):
            gpu, value = int(found[1]), number(found[2])
            if value is not None and len(speeds) < MAX_GPUS:
                speeds[gpu] = value * _FACTORS[found[3]]
        elif (found := _THROTTLED.search(line)) and "true" in found.groups():
            slowed.append(f"GPU {gpu}: {line.strip()[:200]}")
        healthy = healthy or "All GPUs seem healthy" in line
        if against and re.match(r" +- ", line):
            reasons.append(line.strip(" -")[:200])
        against = against or "Some GPUs are not healthy" in line
    if not speeds:
        return unread("gemm", f"gpu-fryer gave no result (exit status {status}): {tail(output)}")
    checks = []
    if reasons or slowed or not healthy:
        text = "; ".join([*reasons[:10], *slowed[:10]]) or f"gpu-fryer did not come to its end: {tail(output)}"
        checks.append(Check(id="accept.gemm.sound", status="failed", message=text, fix="nvidia-smi -q -d PERFORMANCE"))
    else:
        checks.append(Check(id="accept.gemm.sound", status="passed", message="gpu-fryer has nothing against a GPU"))
    return Reading(checks=tuple(checks), measures=tuple(_measures(speeds, "gpu-fryer")))


def read_burn(output: str, status: int, ask: ToolRequest) -> Reading:
    """Speeds of the last report, and each GPU's verdict: OK or FAULTY."""
    speeds: dict[int, float] = {}
    verdicts: dict[int, str] = {}
    for line in lines(output):
        if "proc'd" in line:
            found = [number(text) for text in re.findall(r"\(([\d.]+) Gflop/s\)", line)][:MAX_GPUS]
            # a GPU that has not reported since says 0, which is no speed
            speeds |= {gpu: value / 1000 for gpu, value in enumerate(found) if value}
        elif (verdict := re.match(r"\s*GPU (\d{1,3}): (OK|FAULTY)\s*$", line)) and len(verdicts) < MAX_GPUS:
            verdicts[int(verdict[1])] = verdict[2]
    if not speeds and not verdicts:
        return unread("gemm", f"gpu_burn gave no result (exit status {status}): {tail(output)}")
    faulty = [str(gpu) for gpu, word in verdicts.items() if word == "FAULTY"]
    if faulty:
        text = f"gpu_burn found wrong results on GPU {', '.join(faulty)}"
        check = Check(id="accept.gemm.sound", status="failed", message=text, fix="replace the GPU, or ask for an RMA")
    elif len(verdicts) < ask.gpus:
        text = f"gpu_burn speaks of {len(verdicts)} of {ask.gpus} GPUs: {tail(output)}"
        check = Check(id="accept.gemm.sound", status="failed", message=text, fix="gpu_burn 60 on the node")
    else:
        check = Check(id="accept.gemm.sound", status="passed", message="gpu_burn found no wrong result")
    return Reading(checks=(check,), measures=tuple(_measures(speeds, "gpu_burn")))


def _measures(speeds: dict[int, float], tool: str) -> Iterator[Measure]:
    for gpu, value in sorted(speeds.items()):
        yield Measure(metric="gemm", value=round(value, 2), unit="TFLOPS", where=f"GPU {gpu}", tool=tool)


FRYER = Tool(
    name="gpu-fryer",
    programs=("gpu-fryer", "/opt/gpu-fryer/bin/gpu-fryer"),
    install="an image that has it, such as ghcr.io/huggingface/gpu-fryer (accept.image)",
    call=_call,
    read=read_fryer,
)
BURN = Tool(
    name="gpu_burn",
    programs=("gpu_burn", "gpu-burn", "/opt/gpu-burn/gpu_burn"),
    install="github.com/wilicc/gpu-burn, built on the node or in an image (accept.image)",
    call=_call,
    read=read_burn,
    own_folder=True,  # compare.fatbin (of older ones compare.ptx), which it looks for in the current folder
)
