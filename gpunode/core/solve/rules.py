"""What a driver branch must satisfy: GPUs, flavour, CUDA, kernels, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpunode.core.knowledge import Branch, CudaRelease, DistroRow, GpuModel, Knowledge, version_tuple
from gpunode.core.solve.case import Case
from gpunode.core.solve.gpus import range_text, serves


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing a branch must satisfy."""

    what: str  # "cannot drive all GPUs"
    holds: Callable[[Branch], bool]
    why: str  # the sentence for a person
    source: str = ""


def needs(case: Case, flavour: str) -> list[Rule]:
    """What GPUs, flavour, CUDA and kernels ask of a branch."""
    return [
        *(_gpu_rule(model, case.knowledge) for model in case.gpus),
        *_flavour_rules(case, flavour),
        *(_cuda_rule(case, case.knowledge.cuda[v]) for v in case.request.cuda.versions if v in case.knowledge.cuda),
        *_kernel_rules(case),
    ]


def _gpu_rule(model: GpuModel, knowledge: Knowledge) -> Rule:
    return Rule(
        what=f"does not drive {model.name}",
        holds=lambda b: serves(b, model, knowledge),
        why=range_text(model, knowledge),
        source=knowledge.architectures[model.arch].source,
    )


def _flavour_rules(case: Case, flavour: str) -> list[Rule]:
    only = case.knowledge.rules["open_only_from"]
    if flavour == "proprietary":
        return [
            Rule(
                what="has no proprietary modules",
                holds=lambda b: b.open != "only",
                why=f"proprietary kernel modules are not shipped from {only['branch']} on",
                source=only["source"],
            )
        ]
    if flavour == "open":
        datacenter = all(g.kind == "datacenter" for g in case.gpus)
        first = "515, and for others than data centre GPUs from 560" if not datacenter else "515"
        return [
            Rule(
                what="has no open modules for these GPUs",
                holds=lambda b: b.open in ("yes", "only") or (b.open == "datacenter" and datacenter),
                why=f"open kernel modules exist from {first}",
                source=case.knowledge.rules["open_default_from"]["source"],
            )
        ]
    return []


def _cuda_rule(case: Case, release: CudaRelease) -> Rule:
    by_hand = case.request.driver.version or case.request.driver.branch.isdigit()
    oldest = release.compat or release.native
    exact = version_tuple(case.request.driver.version)

    def holds(branch: Branch) -> bool:
        if not oldest:
            return False
        if by_hand and case.request.cuda.method == "packages" and forward_compatible(case, release, branch):
            return True
        lowest = version_tuple(oldest)
        if exact and branch.branch == exact[0]:
            return exact >= lowest
        newest = version_tuple(branch.latest) or (branch.branch,)
        return newest >= lowest or branch.branch > lowest[0]

    return Rule(
        what=f"is too old for CUDA {release.version}",
        holds=holds,
        why=f"CUDA {release.version} needs driver {oldest or '(not known)'} or later",
        source=release.source,
    )


def forward_compatible(case: Case, release: CudaRelease, branch: Branch) -> bool:
    """Whether cuda-compat lets this older branch run the release: data centre GPUs and long-lived branches only."""
    rule = case.knowledge.cuda_forward
    base = rule["bases"].get(release.version.partition(".")[0])
    datacenter = bool(case.gpus) and all(model.kind == "datacenter" for model in case.gpus)
    older = (branch.branch,) < version_tuple(release.compat or release.native)[:1]  # it spans branches, not patches
    return base is not None and datacenter and older and branch.branch >= base and branch.kind in rule["kinds"]


def _kernel_rules(case: Case) -> list[Rule]:
    rule, row = case.knowledge.rules["kernel_4_15_from"], case.knowledge.distro(case.request.distro)
    releases = [kernel.release for kernel in case.request.kernels] or [row.ga_kernel if row else ""]
    return [
        Rule(
            what=f"does not build for kernel {release}",
            holds=lambda b: b.branch < rule["branch"],
            why=f"{rule['branch']} and later need Linux 4.15, and {release} is older",
            source=rule["source"],
        )
        for release in releases
        if () < version_tuple(release)[:2] < (4, 15)
    ]


def in_repository(row: DistroRow, own: bool) -> Rule:
    low, high = row.branches
    if own:
        listed = ", ".join(map(str, row.own)) or "none"
        return Rule(
            what=f"is not among the packages of {row.key}",
            holds=lambda b: b.branch in row.own,
            why=f"{row.key} itself has branches {listed}",
            source=row.source,
        )
    return Rule(
        what=f"is not in NVIDIA's repository for {row.key}",
        holds=lambda b: low <= b.branch <= (high or 9999),
        why=f"NVIDIA's repository for {row.key} has branches {low or 'from the oldest'} "
        + (f"to {high}" if high else "and later"),
        source=row.source,
    )


def best_branch(knowledge: Knowledge, rules: Sequence[Rule]) -> Branch | None:
    """The newest long-term or production branch that holds; one whose support ended only when there is no other."""
    fits = [b for b in knowledge.branches.values() if b.kind in ("LTSB", "PB") and all(r.holds(b) for r in rules)]
    return max(fits, key=lambda b: (not b.ended(knowledge.as_of), b.branch), default=None)
