"""The stages of an acceptance in their order: what they run, at which level, and whose requirements they answer.

Ids BMAAS… are NVIDIA's (ai-cloud-validation, docs/requirements/offtake-requirements.yaml), «ClusterMAX» those of
clustermax.ai/expectations/health-checks.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.core.accept import LEVELS, Level, Tool
from gpunode.core.accept.dcgm import DIAG, TARGETED_POWER
from gpunode.core.accept.gemm import BURN, FRYER
from gpunode.core.accept.nccl import ALL_REDUCE, LOOPBACK
from gpunode.core.accept.nvbandwidth import NVBANDWIDTH
from gpunode.core.accept.perftest import WRITE_BW
from gpunode.core.late import dataclass

ROUNDS = 72  # of soak and all-reduce at level long: 24 hours and the time of the all-reduces


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step.  The first of `tools` that is on the node is run; without any the probe alone answers."""

    name: str
    title: str
    since: Level  # the first level that has it
    tools: tuple[Tool, ...] = ()
    least_gpus: int = 1
    standards: tuple[str, ...] = ()


STAGES = (
    Stage(
        name="inventory", title="GPUs, driver, health, by the probe", since="quick",
        standards=("BMAAS08-01", "ClusterMAX passive: Xid, ECC"),
    ),
    Stage(
        name="dcgm", title="NVIDIA's diagnosis", since="quick", tools=(DIAG,),
        standards=("BMAAS08-01", "ClusterMAX active: dcgmi diag"),
    ),
    Stage(
        name="nvbandwidth", title="copies to and from the host, and between GPUs", since="quick", tools=(NVBANDWIDTH,),
        standards=("BMAAS06-01", "ClusterMAX active: nvbandwidth"),
    ),
    Stage(
        name="nccl", title="all-reduce in the node", since="quick", tools=(ALL_REDUCE,), least_gpus=2,
        standards=("BMAAS11-01", "ClusterMAX active: local NCCL all-reduce"),
    ),
    Stage(
        name="gemm", title="matrix multiplication", since="standard", tools=(FRYER, BURN),
        standards=("BMAAS09-01", "ClusterMAX active: gpu-burn, gpu-fryer"),
    ),
    Stage(
        name="soak", title="20 minutes at the power limit", since="standard", tools=(TARGETED_POWER,),
        standards=("BMAAS09-01",),
    ),
    Stage(
        name="loopback", title="all-reduce over the network cards of the node", since="standard", tools=(LOOPBACK,),
        least_gpus=2, standards=("BMAAS06-01", "ClusterMAX active: all-reduce with NCCL_P2P_DISABLE=1"),
    ),
    Stage(
        name="pair", title="network cards of two nodes", since="standard", tools=(WRITE_BW,),
        standards=("BMAAS06-01", "ClusterMAX active: pairwise ib_write_bw"),
    ),
)  # fmt: skip
BY_NAME = {stage.name: stage for stage in STAGES}


def stages_of(level: Level) -> Sequence[str]:
    """The names of the stages of a level in their order; rounds of `long` are soak.2, nccl.2 …"""
    names = [stage.name for stage in STAGES if LEVELS.index(stage.since) <= LEVELS.index(level)]
    if level == "long":
        names += [f"{name}.{number}" for number in range(2, ROUNDS + 1) for name in ("soak", "nccl")]
    return names


def stage_of(name: str) -> Stage:
    """The stage of a name such as nccl, or of its round nccl.2."""
    return BY_NAME[name.partition(".")[0]]
