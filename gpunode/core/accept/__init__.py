"""Whether a machine is as fast and sound as it should be: tools' outputs → measures → checks, by floors and fleet.

`stages.py` has the order; each tool that a stage runs has a file of its own, with how it is called and how it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gpunode.core.late import dataclass
from gpunode.core.model import Check

Level = Literal["quick", "standard", "long"]
LEVELS: tuple[Level, ...] = ("quick", "standard", "long")
Kind = Literal["peak", "average"]
MAX_OUTPUT = 1 << 20  # characters of one tool's output that are read; what a node sends more is cut off
MAX_GPUS = 64  # of one machine


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number of one tool, with the conditions that it holds under; floors have the same ones."""

    metric: str  # h2d, d2h, p2p, allreduce, gemm …
    value: float
    unit: str  # GB/s, Gb/s, TFLOPS
    where: str = ""  # GPU 3, GPU 0 to 1, mlx5_0; "" for the machine
    tool: str
    version: str = ""  # of the tool, "" where it does not say
    size: int = 0  # bytes of the message; 0: not a matter of messages
    kind: Kind = "peak"  # peak: at that size; average: over all sizes
    algorithm: str = ""  # NVLS, RING, TREE, by NCCL's own log; bf16, fp32 of a GEMM
    gpus: int = 1  # that took part
    rate: float = 0  # of the port that it went through, in the same unit; 0: through none


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one run of a tool says: its own verdicts, and what it measured."""

    checks: tuple[Check, ...] = ()
    measures: tuple[Measure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ToolRequest:
    """What the node and the level mean for a tool's call."""

    level: Level
    gpus: int
    smallest_mib: int | None = None  # memory of the smallest GPU


@dataclass(frozen=True, kw_only=True)
class Call:
    """How a tool is started on a node."""

    arguments: tuple[str, ...]
    seconds: int  # after which it is ended
    environment: tuple[str, ...] = ()  # NAME=value


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program of the vendor's (or of many users): where it lies, how it is called, how it is read."""

    name: str  # by which gpunode.yml's accept.tools names its path
    programs: tuple[str, ...]  # names on PATH, or paths where * stands for a folder; the first that is there
    install: str  # what to install where it is missing
    call: Callable[[ToolRequest], Call]
    read: Callable[[str, int, ToolRequest], Reading]  # output, exit status
    own_folder: bool = False  # it reads files beside its program: started in that folder


def gave_nothing(reading: Reading, status: int) -> bool:
    """Whether a tool ended with an error of its own before it measured or judged anything."""
    said = any(check.status != "not-proven" or check.id.count(".") > 1 for check in reading.checks)
    return status != 0 and not reading.measures and not said


def unread(tool: str, why: str, fix: str = "") -> Reading:
    """Of an output that is none of the tool's: nothing is proven by it."""
    return Reading(checks=(Check(id=f"accept.{tool}", status="not-proven", message=why, fix=fix),))
