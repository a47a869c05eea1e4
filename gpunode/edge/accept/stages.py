"""All stages of hosts but that of pairs, hosts side by side, and one after the other on each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpunode.core.accept import Reading, gave_nothing
from gpunode.core.accept.judge import count_checks, floor_checks
from gpunode.core.accept.result import StageRow
from gpunode.core.accept.samples import sample_checks
from gpunode.core.accept.stages import stage_of, stages_of
from gpunode.core.errors import GpunodeError
from gpunode.core.model import Check, HostResult
from gpunode.edge.accept.model import AcceptRun, Host
from gpunode.edge.accept.tool import read, run_tool, with_retry
from gpunode.edge.isolate import isolated
from gpunode.edge.load import load_floors
from gpunode.edge.side_by_side import Deadline, side_by_side
from gpunode.edge.state import now


def measure_all(hosts: Sequence[Host], run: AcceptRun, verified: Mapping[str, HostResult]) -> None:
    """Ctrl-C ends this process at once, and with its connections what runs on the nodes."""

    def one(host: Host, deadline: Deadline) -> None:
        if isinstance(came := isolated(host.name, lambda: _stages(host, run, verified[host.name])), GpunodeError):
            raise came

    side_by_side(one, hosts, at_once=run.targets.forks, stop=run.targets.stop)


def _stages(host: Host, run: AcceptRun, verified: HostResult) -> None:
    """All stages of one host in their order; a node in use, or one that is gone, is left alone at once."""
    for name in stages_of(run.level):
        if (host.name, name) in run.done or name == "pair":
            continue
        if name == "inventory":
            checks = tuple(check for check in verified.checks if not check.id.startswith("plan."))
            run.keep(make_row(host, name, time.monotonic(), Reading(checks=checks)))
        elif len(host.facts.gpus) >= stage_of(name).least_gpus:
            row = run.keep(measure_stage(host, name, run))
            if row.ended == "refused":
                return


def measure_stage(host: Host, name: str, run: AcceptRun) -> StageRow:
    """The first tool of the stage that is there, and what it says."""
    stage, ask, began = stage_of(name), host.ask(run.level), time.monotonic()
    if cut := [f"GPU {gpu.index}" for gpu in host.facts.nvml if gpu.mig_current == "Enabled"]:
        text = f"MIG is on ({', '.join(cut)}): a program sees one instance of it, and not the GPU"
        check = Check(
            id=f"accept.{stage.name}", status="not-proven", message=text, fix="measure before MIG is turned on"
        )
        return make_row(host, name, began, Reading(checks=(check,)), ended="missing")
    for tool in stage.tools:
        start = partial(run_tool, host, tool, ask, run.targets)
        answer, retried = with_retry(stage.name, start, partial(read, tool, ask))
        if answer is None:
            continue
        if isinstance(answer, GpunodeError):
            refused = answer.outcome == "refused"
            status = "not-proven" if refused else "failed"
            check = Check(id=f"accept.{stage.name}", status=status, message=answer.what, fix=answer.fix)  # type: ignore[arg-type]
            return make_row(host, name, began, Reading(checks=(check,)), ended="refused" if refused else "done")
        reading = read(tool, ask, answer)
        floors = [
            *count_checks(reading.measures, host.machine),
            *floor_checks(reading.measures, host.machine, load_floors(), run.level),
        ]
        samples = sample_checks(stage.name, answer.samples)
        late = Check(id=f"accept.{stage.name}.time", status="failed", message="it did not come to its end in its time")
        checks = (*reading.checks, *retried, *floors, *samples, *((late,) if answer.timed_out else ()))
        ended = "nothing" if gave_nothing(reading, answer.status) else "done"
        return make_row(host, name, began, replace(reading, checks=checks), program=answer.program, ended=ended)
    missing = " or ".join(tool.name for tool in stage.tools)
    fix = "; or ".join(tool.install for tool in stage.tools)
    check = Check(id=f"accept.{stage.name}", status="not-proven", message=f"{missing} is not on the node", fix=fix)
    return make_row(host, name, began, Reading(checks=(check,)), ended="missing")


def make_row(host: Host, stage: str, began: float, reading: Reading, **more: Any) -> StageRow:
    return StageRow(
        host=host.name, stage=stage, key=host.key, at=now(), seconds=round(time.monotonic() - began, 1),
        checks=reading.checks, measures=reading.measures, **more,
    )  # fmt: skip
