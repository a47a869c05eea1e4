"""What a driver branch must satisfy: GPUs, flavour, CUDA, kernels, and where it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from gpunode.core.knowledge import Branch, CudaRelease, DistroRow, GpuModel, Knowledge
from gpunode.core.late import dataclass
from gpunode.core.numbers import version_tuple
from gpunode.core.solve.case import SolveCase
from gpunode.core.solve.gpus import range_text, serves


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing a branch must satisfy."""

    what: str  # "cannot drive all GPUs"
    holds: Callable[[Branch], bool]
    why: str  # the sentence for a person
    source: str = ""


def needs(case: SolveCase, flavour: str) -> list[Rule]:
    """What GPUs, flavour, CUDA and kernels ask of a branch."""
    return [
        *(_gpu_rule(model, case) for model in case.gpus),
        *_flavour_rules(case, flavour),
        *(_cuda_rule(case, case.knowledge.cuda[v]) for v in case.request.cuda.versions if v in case.knowledge.cuda),
        *_kernel_rules(case),
    ]


def _gpu_rule(model: GpuModel, case: SolveCase) -> Rule:
    version = case.request.driver.version
    return Rule(
        what=f"does not drive {model.name}",
        holds=lambda b: serves(b, model, case.knowledge, version=version if version.startswith(f"{b.branch}.") else ""),
        why=range_text(model, case.knowledge),
        source=case.knowledge.architectures[model.arch].source,
    )


def _flavour_rules(case: SolveCase, flavour: str) -> list[Rule]:
    only = case.knowledge.rules["open_only_from"]
    if flavour == "proprietary":
        row = case.distro
        refused = Rule(
            what=f"is not supported with proprietary modules on {row.key}",
            holds=lambda _: False,
            why=f"NVIDIA supports only the open kernel modules on {row.key}",
            source=row.source,
        )
        return [
            *([refused] if row.open_only else []),
            Rule(
                what="has no proprietary modules",
                holds=lambda b: b.open != "only",
                why=f"proprietary kernel modules are not shipped from {only['branch']} on",
                source=only["source"],
            ),
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


def _cuda_rule(case: SolveCase, release: CudaRelease) -> Rule:
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


def forward_compatible(case: SolveCase, release: CudaRelease, branch: Branch) -> bool:
    """Whether cuda-compat lets this older branch run the release: data centre GPUs and long-lived branches only."""
    rule = case.knowledge.cuda_forward
    base = rule["bases"].get(release.version.partition(".")[0])
    datacenter = bool(case.gpus) and all(model.kind == "datacenter" for model in case.gpus)
    older = (branch.branch,) < version_tuple(release.compat or release.native)[:1]  # it spans branches, not patches
    return base is not None and datacenter and older and branch.branch >= base and branch.kind in rule["kinds"]


def _kernel_rules(case: SolveCase) -> list[Rule]:
    rule = case.knowledge.rules["kernel_4_15_from"]
    return [
        Rule(
            what=f"does not build for kernel {release}",
            holds=lambda b: b.branch < rule["branch"],
            why=f"{rule['branch']} and later need Linux 4.15, and {release} is older",
            source=rule["source"],
        )
        for release in _kernels(case)
        if () < version_tuple(release)[:2] < (4, 15)
    ]


def builds(case: SolveCase) -> list[Rule]:
    """What kernels ask of modules that NVIDIA's own sources are built into; a distribution patches those it ships."""
    newest = max(_kernels(case), key=lambda release: version_tuple(release)[:2], default="")
    release = version_tuple(newest)[:2]
    late = [b for b in case.knowledge.branches.values() if b.max_kernel and release > version_tuple(b.max_kernel)]
    if not late:
        return []
    last = max(late, key=lambda b: b.branch)
    return [
        Rule(
            what=f"does not build for kernel {newest}",
            holds=lambda b: b.branch > last.branch,
            why=f"{last.branch} and older compile for no Linux after {last.max_kernel}, and {newest} is newer",
            source=last.source,
        )
    ]


def warn_of_kernels(case: SolveCase, branch: Branch, flavour: str, *, own: bool, instead: str = "") -> None:
    """Note the kernels that the version may not compile for: known to fail, or newer than all that it was made for.

    `own`: the distribution's own packages, which may have patches for later kernels; `instead`: what else there is.
    """
    version, rules = case.request.driver.version or branch.latest, case.knowledge.rules
    if own:
        limit = case.distro.own_kernels.get(branch.branch, branch.max_kernel)
        for release in (k.release for k in case.request.kernels if limit):
            if version_tuple(release)[:2] > version_tuple(limit):
                what = f"{case.distro.key}'s own {branch.branch} is known to compile for no Linux after {limit}"
                case.warn("kernel", f"{what}, and {release} is newer{instead}", case.distro.source)
                return
        return
    changes = (row for name, row in rules.items() if name.startswith("builds_"))
    for rule in (row for row in changes if row.get("only", flavour) == flavour):
        first = rule["first"].get(str(branch.branch), "")
        too_old = branch.branch in rule["never"] or (first and version_tuple(version) < version_tuple(first))
        for release in (k.release for k in case.request.kernels if too_old and any(_reached(k.release, rule["from"]))):
            which = f"{first} and later do" if first else f"no version of {branch.branch} does"
            case.warn("kernel", f"{version} does not compile for {release}: {which}", rule["source"])
            return
    lines = rules["kernel_lines"]
    for release in (kernel.release for kernel in case.request.kernels):
        enterprise = re.search(r"\.(el\d+_\d+)", release)
        number = version_tuple(enterprise[1] if enterprise else release)[:2]
        known = {version_tuple(one): one for one in lines["since"] if one.startswith("el") == bool(enterprise)}
        newest = max((one for one in known if not enterprise or one[0] == number[0]), default=number)
        line = known.get(min(number, newest), "")
        came = lines["since"].get(line, "")
        last = lines["last"].get(str(branch.branch), "" if branch.eol == "past" else branch.eol)
        if came and branch.ended(case.knowledge.as_of) and last < came:
            ended = f"its updates ended ({last or 'years ago'}) before {line} came ({came})"
            case.warn("kernel", f"{version or branch.branch} may not compile for {release}: {ended}", lines["source"])
            return
        if number > newest:
            end = enterprise[1] if enterprise else f"Linux {'.'.join(map(str, number))}"
            why = f"no driver is known to compile for {release}: what is known ends before {end}"
            case.warn("kernel", why, lines["source"])
            return


def _reached(release: str, changed: Sequence[str]) -> Iterator[bool]:
    """Whether a kernel has a change, by the first version of mainline, and of each older line, that has it."""
    kernel = version_tuple(release)
    for text in changed:
        since = version_tuple(text)
        yield kernel[: len(since)] >= since and (len(since) == 2 or kernel[: len(since) - 1] == since[:-1])


def _kernels(case: SolveCase) -> list[str]:
    """The kernels that can boot next; where none is known, that which the release began with."""
    return [kernel.release for kernel in case.request.kernels] or [case.distro.ga_kernel]


def in_repository(case: SolveCase, own: bool, *, built: bool = False, flavour: str = "") -> Rule:
    """That the branch is where it would come from.  `built`: of the distribution's own, those with built modules."""
    row = case.distro
    if own:
        there = own_branches(row, built=built)
        fit = tuple(b for b in there if not flavour or row.own_flavours.get(b, flavour) == flavour)
        what = "built modules of branches" if built and row.own_dkms else "branches"
        return Rule(
            what=f"is not among the packages of {row.key}",
            holds=lambda b: b.branch in fit,
            why=f"{row.key} itself has {what} {case.knowledge.ranges(fit or there)}"
            + f"{'' if fit else ', none of them'} with {flavour} modules{'' if fit else ' that fit'}" * (fit != there)
            + as_of(row.own_read),
            source=row.source,
        )
    number = "branch" if len(row.branches) == 1 else "branches"
    alone = " alone" if len(row.branches) == 1 else ""
    asked, exact = case.request.driver.number, case.request.driver.version
    theirs = bool(exact) or asked not in own_branches(row, built=False)  # else the distribution's own is there
    after_all = theirs and case.offered(*of_branch(case.knowledge, asked))
    return Rule(
        what=f"is not in NVIDIA's repository for {row.key}",
        holds=lambda b: b.branch in row.branches or (after_all and b.branch == asked),
        why=f"NVIDIA's repository for {row.key} has {number} {case.knowledge.ranges(row.branches)}{alone}"
        + as_of(row.read),
        source=row.source,
    )


def of_branch(knowledge: Knowledge, branch: int) -> tuple[str, str]:
    """Packages that NVIDIA's repository for Debian and Ubuntu has of each branch, one or the other."""
    names = knowledge.packages["cuda-repository"]
    return names["pin"].format(pin=branch), f"{names['proprietary']}-{branch}"


def own_branches(row: DistroRow, *, built: bool) -> tuple[int, ...]:
    """The branches that the distribution itself has: with built modules, or with what DKMS builds."""
    return row.own if built or not row.own_dkms else row.own_dkms


def as_of(day: str) -> str:
    return f", as of {day}" if day else ""


SUPPORTED = ("LTSB", "PB")
EVERY = (*SUPPORTED, "NFB", "legacy", "unknown")


def best_branch(case: SolveCase, rules: Sequence[Rule], kinds: Sequence[str] = SUPPORTED) -> Branch | None:
    """The newest branch of these kinds that holds; one whose support ended only when there is no other."""
    fits = [b for b in case.knowledge.branches.values() if b.kind in kinds and all(r.holds(b) for r in rules)]
    return max(fits, key=lambda b: (not b.ended(case.knowledge.as_of), b.branch), default=None)
