"""Work on every GPU that nobody uses, by a known tool where there is one, else by cuda_work.py; what NVML says."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError
from gpunode.core.selftest.record import Capture
from gpunode.edge.host.nvml import nvml_samples
from gpunode.edge.selftest.capture import Clock, capture, find

INTERVAL = 2.0  # seconds between samples
STARTUP = 30.0  # seconds that a tool may take beyond its work: contexts, compilation


@dataclass(frozen=True)
class Tool:
    """A program that loads all GPUs at once: its words, and what in its output is a failure."""

    program: str
    words: Callable[[int], Sequence[str]]
    failure: re.Pattern[str]


TOOLS = (
    Tool("gpu_burn", lambda seconds: [str(seconds)], re.compile(r"FAULTY|errors: [1-9]")),
    Tool(
        "dcgmi",
        lambda seconds: [
            "diag", "-r", "targeted_stress", "-p", f"targeted_stress.test_duration={seconds}"
        ],
        re.compile(r"(?:\||Result:)\s*Fail\b"),
    ),
    Tool("nvbandwidth", lambda seconds: ["-t", "device_memory_copy_ce,host_to_device_memcpy_ce"], re.compile("ERROR")),
)  # fmt: skip


def run_load(gpus: Mapping[str, str], seconds: int, clock: Clock) -> dict[str, Any]:
    """{"tool", "seconds", "gpus": [{uuid, error}], "samples": […], "why"}; `gpus`: UUID → why it is left out, or ""."""
    free = [uuid for uuid, why in gpus.items() if not why]
    left_out = "; ".join(f"{why}" for why in dict.fromkeys(gpus.values()) if why)
    if not free:
        return {"tool": "", "seconds": seconds, "gpus": [], "samples": [], "why": left_out or "nvidia-smi lists no GPU"}
    samples: list[dict[str, Any]] = []
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(samples, over), daemon=True)
    watch.start()
    try:
        tool, errors = _worked(free, seconds, clock, others=len(free) < len(gpus))
    finally:
        over.set()
        watch.join(INTERVAL + 1)
    if not tool:
        return {"tool": "", "seconds": seconds, "gpus": [], "samples": [], "why": errors[free[0]]}
    faults = _faults(samples)
    done = [{"uuid": uuid, "error": errors.get(uuid) or faults.get(uuid, "")} for uuid in free]
    kept = [sample for sample in samples if sample["uuid"] in free]
    return {"tool": tool, "seconds": seconds, "gpus": done, "samples": kept, "why": left_out}


def _faults(samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """UUID → the driver's word for a GPU that it could not speak for meanwhile; one that is lost tells no UUID more."""
    uuids = {sample["index"]: sample["uuid"] for sample in samples if sample["uuid"]}
    return {uuids.get(s["index"], ""): f"NVML: {s['fault']}" for s in samples if s.get("fault")}


def _worked(free: Sequence[str], seconds: int, clock: Clock, *, others: bool) -> tuple[str, dict[str, str]]:
    """(the tool that was used, "" where there is none, what went wrong by UUID)."""
    for tool in TOOLS if not others else ():  # they take all GPUs, also those that somebody uses
        if not find(tool.program):
            continue
        done = capture([tool.program, *tool.words(seconds)], clock, seconds + 4 * STARTUP)
        unusable = done.exit != 0 and not tool.failure.search(done.text)
        if unusable and not done.stopped:  # no daemon, another version of its options: our own work does as well
            continue
        trouble = tool.failure.search(done.text)
        error = done.error or (f"{tool.program}: {trouble[0]}" if trouble else "")
        return tool.program, dict.fromkeys(free, error) if error else {}
    with ThreadPoolExecutor(len(free)) as pool:
        ran = dict(zip(free, pool.map(lambda uuid: _own(uuid, seconds, clock), free), strict=True))
    answers = {uuid: _answer(one) for uuid, one in ran.items()}
    if missing := next((one["missing"] for one in answers.values() if "missing" in one), ""):
        return "", dict.fromkeys(free, f"no tool for a load, and no CUDA driver library: {missing}")
    return "CUDA driver library", {uuid: str(one["error"]) for uuid, one in answers.items() if one["error"]}


def _own(uuid: str, seconds: int, clock: Clock) -> Capture:
    program = str(Path(__file__).with_name("cuda_work.py"))
    return capture([sys.executable, "-I", program, uuid, str(seconds)], clock, seconds + STARTUP)


def _answer(one: Capture) -> dict[str, Any]:
    try:
        answer = json.loads(one.text.strip().splitlines()[-1])
        return {"error": "", **answer}
    except (IndexError, ValueError, TypeError):
        return {"error": one.error or "it printed nothing"}


def _watch(samples: list[dict[str, Any]], over: threading.Event) -> None:
    started = time.monotonic()
    while not over.wait(INTERVAL):
        try:
            samples += [{"at": round(time.monotonic() - started, 1), **sample} for sample in nvml_samples()]
        except GpunodeError:
            return
