"""10,000 recorded nodes of 50 classes: facts → plans.  Parsing the probes is timed apart."""

from __future__ import annotations

import gc
import resource
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import row
from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts, Plan, Repository
from gpunode.core.spec import Spec
from gpunode.edge.desired import DesiredState

PROBES = Path(__file__).parents[1] / "tests/cases/probes"
RECORDED = (
    "debian12-h100-fresh",
    "debian12-h100-provisioned",
    "debian12-stock-engines",
    "ubuntu2204-hgx-h100-kubelet",
    "ubuntu2404-two-models",
)
# V100, T4, A100 PCIe and SXM, RTX 3090, A40, L40S, L4, H100, H200
GPUS = "10de:1db4 10de:1eb8 10de:20f1 10de:20b0 10de:2204 10de:2235 10de:26b9 10de:27b8 10de:2330 10de:2335".split()
NODES = 10_000
UNLIKE = 1_000
KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n-----END PGP PUBLIC KEY BLOCK-----\n"


def fleet(count: int) -> list[NodeFacts]:
    """Facts of `count` nodes, each from a probe text of its own, in len(RECORDED) * len(GPUS) classes by turns."""
    texts = [(PROBES / name / "probe.txt").read_text() for name in RECORDED]
    facts = []
    for number in range(count):
        base, gpu = number % len(texts), number // len(texts) % len(GPUS)
        node = replace(parse_probe(texts[base]), hostname=f"node{number}")
        facts.append(replace(node, gpus=tuple(replace(g, id=GPUS[gpu]) for g in node.gpus)))
    return facts


class Offline(DesiredState):
    """The planner, but for the signing keys, which it would read or fetch once for the whole fleet."""

    def _key(self, repository: Repository, spec: Spec) -> bytes:
        return KEY


def unlike(facts: list[NodeFacts]) -> list[NodeFacts]:
    """The same nodes, no two alike, so that the planner has to work out the plan of each."""
    return [replace(node, gpus=tuple(replace(g, label=node.hostname) for g in node.gpus)) for node in facts]


def plan_all(facts: list[NodeFacts]) -> tuple[list[Plan], float]:
    """Plans of the fleet by a planner that knows nothing yet, and the seconds it took."""
    gc.collect()
    start = time.perf_counter()
    desired = Offline()
    plans = [desired.plan(node.hostname, node).plan for node in facts]
    return plans, time.perf_counter() - start


def main() -> None:
    start = time.perf_counter()
    facts = fleet(NODES)
    parsing = time.perf_counter() - start
    _, half = plan_all(facts[: NODES // 2])
    plans, whole = plan_all(facts)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    _, each = plan_all(unlike(facts[:UNLIKE]))
    kinds = Counter("problem" if p.problems else "converged" if p.converged else "steps" for p in plans)
    shown = ", ".join(f"{n} with {kind}" if kind != "converged" else f"{n} converged" for kind, n in kinds.items())
    row(f"facts → plans, {NODES} nodes of {len(RECORDED) * len(GPUS)} classes ({shown})", f"{whole:.1f} s", "≤ 3 s")
    row("the same, peak memory of the process with all facts and plans", f"{peak:.0f} MiB", "≤ 300 MB")
    row("the same, twice the nodes against the half", f"{whole / half:.2f} ×", "≈ 2 (linear)")
    row("the same, where no two nodes are alike", f"{each / UNLIKE * 1000:.1f} ms a node")
    row("probe texts → facts, apart", f"{parsing / NODES * 1000:.2f} ms a node")


if __name__ == "__main__":
    main()
