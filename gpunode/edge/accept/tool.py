"""One tool of a stage on one node: accept.sh is asked, and its answer read."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gpunode.core.accept import MAX_OUTPUT, Reading, Tool, ToolRequest, gave_nothing
from gpunode.core.accept.samples import FIELDS
from gpunode.core.accept.text import tail
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.late import dataclass
from gpunode.core.model import Check
from gpunode.core.remote import as_lines, parse_outcome, program, values_of
from gpunode.edge.accept.model import Host
from gpunode.edge.detect import Targets
from gpunode.edge.ssh.many import run_many
from gpunode.edge.state import controller_name
from gpunode.node import script

_AGAIN = 5.0  # seconds before a tool that gave nothing is started once more


@dataclass(frozen=True, kw_only=True)
class Answer:
    output: str
    status: int
    timed_out: bool
    program: str
    samples: tuple[str, ...]
    near: bool  # it ran on the CPUs of its network card


Tried: TypeAlias = "Answer | GpunodeError | None"


def with_retry(
    stage: str, start: Callable[[], Tried], read: Callable[[Answer], Reading]
) -> tuple[Tried, tuple[Check, ...]]:
    """What a tool answers; one that ended by an error of its own, with nothing measured, is started once more.

    The checks say so: a measured failure is never tried again.
    """
    first = start()
    if not isinstance(first, Answer) or first.timed_out or not gave_nothing(read(first), first.status):
        return first, ()
    time.sleep(_AGAIN)
    text = f"started twice; the first time it ended with {first.status} and measured nothing: {tail(first.output)}"
    return start(), (Check(id=f"accept.{stage}.retried", status="warning", message=text),)


def read(tool: Tool, ask: ToolRequest, answer: Answer) -> Reading:
    return tool.read(answer.output, answer.status, ask)


def run_tool(
    host: Host, tool: Tool, ask: ToolRequest, targets: Targets, extra: Sequence[str] = (), near: str = ""
) -> Answer | GpunodeError | None:
    """None where the tool is not on the node."""
    call = tool.call(ask)
    own = host.spec.tools.get(tool.name)
    request = {
        "programs": as_lines([own] if own else tool.programs),
        "arguments": as_lines([*call.arguments, *extra]),
        "environment": as_lines(call.environment),
        "seconds": as_lines([str(call.seconds)]),
        "sample": as_lines([",".join(FIELDS)]),
        "controller": as_lines([controller_name()]),
        **({"image": as_lines([host.spec.image])} if host.spec.image else {}),
        **({"near": as_lines([near])} if near else {}),
        **({"own_folder": as_lines(["yes"])} if tool.own_folder else {}),
    }
    assert host.detected.target
    pair = host.detected.target, program(script("accept.sh"), request)
    [ran] = run_many([pair], reach=targets.reach(call.seconds + 120))
    if ran.error:
        return ran.error
    outcome = parse_outcome(ran.stdout, ran.rc)
    if outcome.status == "refused":
        return RefusedError(outcome.message, fix=outcome.fix)
    if values_of(ran.stdout, "missing"):
        return None
    if outcome.status != "unchanged":
        return GpunodeError(outcome.message, fix=outcome.fix)
    ended = (values_of(ran.stdout, "ended") or [""])[-1]
    return Answer(
        output=_decoded((values_of(ran.stdout, "output") or [""])[-1]),
        status=int(ended) if ended.isdecimal() and len(ended) < 4 else 1,
        timed_out=ended == "timeout",
        program=(values_of(ran.stdout, "program") or [""])[0][:200],
        samples=tuple(values_of(ran.stdout, "sample")),
        near=bool(values_of(ran.stdout, "near")),
    )


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text[: 2 * MAX_OUTPUT], validate=True).decode(errors="replace")
    except ValueError:
        return ""
