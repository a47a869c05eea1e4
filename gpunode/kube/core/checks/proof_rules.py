"""What counts as proof: when waiting for a proof's pods is over, and what they proved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from gpunode.core.late import dataclass, field, regex
from gpunode.core.model import Check
from gpunode.kube.core.checks.ready import gates, has_ended, pod_trouble, unschedulable
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.render.gpushare import MEMORY
from gpunode.kube.core.usage import INDEX, consumed_memory

NAMESPACE = "gpunode-verify"
_SMI = regex(r"^[ \t]*(GPU|MIG)\b.*\(UUID: ([^)]+)\)", re.MULTILINE)
Until = Literal["ended", "running", "unschedulable"]
Rule = Literal["passed", "one-gpu", "shared", "pending", "cards", "packed", "claimed"]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Objects, the names of the pods to watch, when they are done, and the rule that judges them."""

    id: str
    title: str
    until: Until
    rule: Rule
    # packed: pods by card, the most first; cards: memory of a card; claimed: GiB of each pod's claim
    expected: tuple[int, ...] = ()
    objects: tuple[Object, ...] = ()
    pods: tuple[str, ...] = ()

    @property
    def lists_gpus(self) -> bool:
        """Whether it goes by the GPUs that its pods list in their logs."""
        return self.rule in ("one-gpu", "shared")


@dataclass(frozen=True, kw_only=True)
class ProofOutcome:
    """What became of a proof's pods: live objects (None: never there) and logs, in the order of `Proof.pods`.

    `claims`: those that the proof made, in the order of its pods.  `warnings`: the latest event that warns of a pod, by
    its name.
    """

    pods: tuple[Object | None, ...]
    logs: tuple[str, ...]
    claims: tuple[Object | None, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)


def is_done(until: Until, live: Object | None) -> bool:
    """Whether waiting longer for this pod would change nothing."""
    if live is None:
        return False
    if has_ended(live):
        return True
    if until == "unschedulable":
        return bool(live["spec"].get("nodeName") or (unschedulable(live) and not gates(live)))
    statuses = (live.get("status") or {}).get("containerStatuses") or []
    runs = bool(statuses) and all("running" in (status.get("state") or {}) for status in statuses)
    return until == "running" and _phase(live) == "Running" and runs


def judge(proof: Proof, outcome: ProofOutcome) -> Check:
    """What the pods proved; nothing, where something else keeps them from the scheduler."""
    held = {name: gates(live) for name, live in zip(proof.pods, outcome.pods, strict=True) if live and gates(live)}
    if held:
        name, names = next(iter(held.items()))
        return Check(
            id=proof.id,
            status="not-proven",
            message=f"{proof.title}: pod {name} is held back by the scheduling gate {', '.join(names)}",
            fix=f"have what sets that gate skip the namespace {NAMESPACE} (Kueue: managedJobsNamespaceSelector)",
        )
    undone = [
        f"{name}: {_why(live, outcome.warnings.get(name, ''))}"
        for name, live in zip(proof.pods, outcome.pods, strict=True)
        if not is_done(proof.until, live) or (proof.until == "running" and _phase(live) != "Running")
    ]
    if undone:
        return _failed(proof, "; ".join(undone[:3]))
    if proof.rule == "pending" and (other := _other_reason(proof, outcome)):
        text = f"{proof.title}: it waits for another reason: {other}"
        return Check(id=proof.id, status="not-proven", message=text, fix="kubectl describe nodes")
    problem, says = _RULES[proof.rule](proof, outcome)
    return _failed(proof, problem) if problem else Check(id=proof.id, status="passed", message=f"{proof.title}: {says}")


def _passed(proof: Proof, outcome: ProofOutcome) -> tuple[str, str]:
    (live,), (log,) = outcome.pods, outcome.logs
    last = " | ".join(log.strip().splitlines()[-3:])
    if _phase(live) == "Succeeded" and "Test PASSED" in log:
        return "", "Test PASSED"
    return f"{_why(live) if _phase(live) != 'Succeeded' else 'it did not say «Test PASSED»'}: {last or 'no log'}", ""


def _one_gpu(proof: Proof, outcome: ProofOutcome) -> tuple[str, str]:
    uuids = devices(outcome.logs[0])
    if len(uuids) == 1:
        return "", f"{uuids[0]} on {_node(outcome.pods[0])}"
    listed = ", ".join(uuids) or outcome.logs[0].strip().partition("\n")[0] or "nothing"
    return f"the container sees {len(uuids)} GPUs: {listed}", ""


def _shared_gpu(proof: Proof, outcome: ProofOutcome) -> tuple[str, str]:
    holders = Counter(uuid for log in outcome.logs for uuid in devices(log))
    blind = [name for name, log in zip(proof.pods, outcome.logs, strict=True) if len(devices(log)) != 1]
    if blind:
        return f"{', '.join(blind)} do not see exactly one GPU", ""
    uuid, count = holders.most_common(1)[0]
    return ("", f"{count} of them on {uuid}") if count > 1 else ("each pod has a GPU of its own", "")


def _pending(proof: Proof, outcome: ProofOutcome) -> tuple[str, str]:
    (live,) = outcome.pods
    node = _node(live)
    if node or not live:
        return f"it was put on {node}", ""
    return "", unschedulable(live)


def _other_reason(proof: Proof, outcome: ProofOutcome) -> str:
    """What keeps the pod from every node, where that is not the amount that it asks for."""
    (live,) = outcome.pods
    message = unschedulable(live) if live and not _node(live) else ""
    containers = [one for item in proof.objects for one in (item.get("spec") or {}).get("containers") or []]
    asks = [name for one in containers for name in (one.get("resources") or {}).get("limits") or {}]
    short = any(f"Insufficient {name}" in message for name in asks) or "Insufficient GPU Memory" in message
    by_claim = any("resourceClaims" in (item.get("spec") or {}) for item in proof.objects) and "claim" in message
    return message if message and not (short or by_claim) else ""


def _cards(proof: Proof, outcome: ProofOutcome) -> tuple[str, str]:
    """Every pod knows its card, and no card carries more than it has."""
    cards = [_card(live) for live in outcome.pods]
    if "" in cards:
        return f"{proof.pods[cards.index('')]} runs without {INDEX}: the extender did not bind it", ""
    on: Counter[str] = Counter()
    for live, card in zip(outcome.pods, cards, strict=True):
        on[card] += sum(int(c["resources"]["limits"][MEMORY]) for c in live["spec"]["containers"]) if live else 0
    if any(memory > proof.expected[0] for memory in on.values()):
        return f"a GPU with {proof.expected[0]} carries {max(on.values())}", ""
    return "", ", ".join(f"{memory} on GPU {card}" for card, memory in sorted(on.items()))


def _packed(proof: Proof, outcome: ProofOutcome) -> tuple[str, str]:
    cards = Counter(_card(live) for live in outcome.pods)
    counts = tuple(sorted(cards.values(), reverse=True))
    where = ", ".join(f"{count} on GPU {card or '?'}" for card, count in sorted(cards.items()))
    if counts == proof.expected and "" not in cards:
        return "", where
    return f"they are spread: {where}; packed would be {' + '.join(map(str, proof.expected))}", ""


def _claimed(proof: Proof, outcome: ProofOutcome) -> tuple[str, str]:
    """Every claim takes what it asked for, of one device, and not the whole of it."""
    on: Counter[str] = Counter()
    for name, size, live in zip(proof.pods, proof.expected, outcome.claims, strict=True):
        allocation = ((live or {}).get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or []
        if len(results) != 1:
            return f"{name} runs, and its claim has {len(results)} devices", ""
        taken = consumed_memory(results[0])
        if taken != size * 1024:
            has = "a whole device" if taken is None else f"{taken} MiB"
            return f"the claim of {name} takes {has} of {results[0]['device']}, not {size} GiB", ""
        on[results[0]["device"]] += size
    return "", ", ".join(f"{memory} GiB on {device}" for device, memory in sorted(on.items()))


_RULES = {
    "passed": _passed, "one-gpu": _one_gpu, "shared": _shared_gpu, "pending": _pending, "cards": _cards,
    "packed": _packed, "claimed": _claimed,
}  # fmt: skip


def devices(log: str) -> list[str]:
    """UUIDs that `nvidia-smi -L` lists: MIG instances where there are any, else GPUs.

    >>> devices("GPU 0: NVIDIA A100 (UUID: GPU-1)\\n  MIG 1g.5gb     Device  0: (UUID: MIG-2)\\n")
    ['MIG-2']
    """
    found = _SMI.findall(log)
    mig = [uuid for kind, uuid in found if kind == "MIG"]
    return mig or [uuid for _, uuid in found]


def _failed(proof: Proof, why: str) -> Check:
    return Check(
        id=proof.id,
        status="failed",
        message=f"{proof.title}: {why}",
        fix="gpunode kube verify --keep leaves the pods for kubectl -n gpunode-verify describe; gpunode verify NODE",
    )


def _phase(live: Object | None) -> str:
    return str(((live or {}).get("status") or {}).get("phase", ""))


def _node(live: Object | None) -> str:
    return str(((live or {}).get("spec") or {}).get("nodeName") or "")


def _card(live: Object | None) -> str:
    return str((((live or {}).get("metadata") or {}).get("annotations") or {}).get(INDEX, ""))


def _why(live: Object | None, warning: str = "") -> str:
    if live is None:
        return "it was not made"
    where = f"is {_phase(live) or 'not started'} on {_node(live) or 'no node'}"
    return pod_trouble(live) or (f"{where}: {warning}" if warning else where)
