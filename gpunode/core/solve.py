"""Which driver branch, flavour, packages, CUDA and toolkit fit a node: one pure function over the knowledge.

Every choice carries its reason and the source of the rule.  What cannot work is a Problem with its fix, and then that
part of the answer is None.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpunode.core.knowledge import Branch, DistroRow, GpuModel, Knowledge
from gpunode.core.model import DriverChoice, Flavour, NodeFacts, Problem, Reason, Repository, Solution
from gpunode.core.solve_packages import (
    cuda_choice,
    cuda_repository,
    distro_packages,
    repository_packages,
    toolkit_choice,
    version_of,
)
from gpunode.core.spec import CudaSpec, DriverSpec, SourceSpec, Spec, ToolkitSpec

# Long-term branches first, then production ones, then the rest (NVIDIA, data centre driver life cycle).
KINDS = ("LTSB", "PB", "NFB", "unknown", "legacy")


@dataclass(frozen=True, kw_only=True)
class SolveRequest:
    """All that the answer depends on.  `gpus` are PCI ids (10de:2330), `kernels` every installed kernel release.

    `place` is what kind of machine it is where that decides: wsl, tegra, vgpu or "".
    """

    gpus: tuple[str, ...]
    distro: str
    arch: str = "x86_64"
    kernels: tuple[str, ...] = ()
    nvswitches: int = 0
    nvlink5: bool = False
    secure_boot: bool = False
    place: str = ""
    installed: Mapping[str, str] = field(default_factory=dict)  # package → version
    driver: DriverSpec = DriverSpec()
    cuda: CudaSpec = CudaSpec()
    toolkit: ToolkitSpec = ToolkitSpec()
    sources: Mapping[str, SourceSpec] = field(default_factory=dict)


class _Stop(Exception):
    """A part of the answer that cannot be had, with the problem that says why."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.problem = Problem(what=what, fix=fix)


def request_of(facts: NodeFacts, spec: Spec) -> SolveRequest:
    """What the probe and gpunode.yml ask of the solver."""
    place = "wsl" if facts.virtualization == "wsl" else "tegra" if facts.tegra else ""
    if facts.gpus and all(g.virtual_function for g in facts.gpus):
        place = "vgpu"
    bootable = tuple(k.release for k in facts.kernels if k.image or k.running)
    return SolveRequest(
        gpus=tuple(g.id for g in facts.gpus),
        distro=facts.distro.key,
        arch=facts.arch,
        kernels=bootable,
        nvswitches=len(facts.nvswitches),
        nvlink5=facts.nvlink5_fabric,
        secure_boot=bool(facts.secure_boot),
        place=place,
        installed={name: p.version for name, p in facts.packages.items()},
        driver=spec.driver,
        cuda=spec.cuda,
        toolkit=spec.toolkit,
        sources=spec.sources,
    )


def solve(request: SolveRequest, knowledge: Knowledge) -> Solution:
    """The driver, CUDA and toolkit for the request, with reasons; or problems."""
    problems: list[Problem] = []
    reasons: list[Reason] = []
    repositories: dict[str, Repository] = {}
    driver = cuda = toolkit = None
    try:
        row = _distro(request, knowledge, reasons)
        _place(request)
        models = _models(request, knowledge, reasons)
    except _Stop as stop:
        return Solution(reasons=tuple(reasons), problems=(stop.problem,))
    try:
        driver = _driver(request, knowledge, row, models, reasons, repositories)
    except _Stop as stop:
        problems.append(stop.problem)
    if request.cuda.versions:
        branch = knowledge.branches.get(driver.branch) if driver else None
        cuda, bad = cuda_choice(request.cuda, knowledge, row, models, branch, reasons)
        problems += bad
        if cuda:
            repository = cuda_repository(request.sources, request.arch, knowledge, row)
            repositories.setdefault(repository.name, repository)
    if request.toolkit.version != "none":
        toolkit, repository = toolkit_choice(
            request.toolkit, request.sources, request.arch, request.installed, knowledge, reasons
        )
        repositories[repository.name] = repository
    problems += _repository_problems(repositories.values(), request)
    return Solution(
        driver=driver,
        cuda=cuda,
        toolkit=toolkit,
        repositories=tuple(repositories.values()),
        reasons=tuple(reasons),
        problems=tuple(problems),
    )


# ---------------------------------------------------------------- the node


def _distro(request: SolveRequest, knowledge: Knowledge, reasons: list[Reason]) -> DistroRow:
    row = knowledge.distro(request.distro)
    solved = knowledge.solved_distros()
    if row is None or row.key not in solved:
        near = difflib.get_close_matches(request.distro, knowledge.distros, n=1)
        hint = f"did you mean {near[0]}? " if near and near[0] != request.distro else ""
        known = "is known, but its packages are not solved yet" if row else "is not known"
        raise _Stop(f"distribution {request.distro!r} {known}", f"{hint}solved today: {', '.join(solved)}")
    if request.arch not in row.archs:
        raise _Stop(
            f"{row.key} on {request.arch}: NVIDIA's repository has {', '.join(row.archs)} only",
            "use one of these architectures, or another release",
        )
    if row.eol and row.eol < knowledge.as_of[:7]:
        reasons.append(
            Reason(what=row.key, why=f"its own support ended in {row.eol}: plan an upgrade", source=row.source)
        )
    return row


def _place(request: SolveRequest) -> None:
    fixes = {
        "wsl": ("the target is WSL", "install the NVIDIA driver for Windows on the host; WSL takes it from there"),
        "tegra": ("the target is a Jetson or another Tegra board", "its driver is part of JetPack (L4T): flash that"),
        "vgpu": ("the GPUs are vGPU slices or virtual functions", "install the GRID guest driver of your vGPU licence"),
    }
    if request.place in fixes and request.driver.method != "preinstalled":
        what, fix = fixes[request.place]
        raise _Stop(what, f"{fix}; then set driver.method: preinstalled")


def _models(request: SolveRequest, knowledge: Knowledge, reasons: list[Reason]) -> tuple[GpuModel, ...]:
    found: dict[str, GpuModel] = {}
    for pci_id in dict.fromkeys(i.lower() for i in request.gpus):
        legacy = knowledge.legacy.get(pci_id)
        if legacy:
            raise _Stop(
                f"{legacy.name} [{pci_id}] ({legacy.arch}): its last driver branch was {legacy.last_branch}",
                "no branch that containers can use drives it: take the card out, or use another node",
            )
        model = knowledge.gpu(pci_id)
        if model is None:
            if request.driver.branch == "auto" and not request.driver.version:
                raise _Stop(f"GPU {pci_id} is not known", _unknown_fix(pci_id, knowledge))
            reasons.append(Reason(what=f"GPU {pci_id}", why="not known; taken on trust: driver.branch is set by hand"))
            continue
        if model.kind != "not-a-gpu":
            found[pci_id] = model
    return tuple(found.values())


def _unknown_fix(pci_id: str, knowledge: Knowledge) -> str:
    number = int(pci_id[5:], 16) if re.fullmatch(r"10de:[0-9a-f]{4}", pci_id) else 0
    near = sorted(knowledge.gpus, key=lambda i: abs(int(i[5:], 16) - number))[:2]
    names = ", ".join(f"{i} {knowledge.gpus[i].name} ({knowledge.gpus[i].arch})" for i in near)
    return f"set driver.branch by hand (nearest known ids: {names}), or update gpunode"


# ---------------------------------------------------------------- the driver


def _driver(
    request: SolveRequest,
    knowledge: Knowledge,
    row: DistroRow,
    models: tuple[GpuModel, ...],
    reasons: list[Reason],
    repositories: dict[str, Repository],
) -> DriverChoice | None:
    spec = request.driver
    if spec.branch == "none" or not request.gpus:
        return None
    if spec.method == "preinstalled":
        reasons.append(Reason(what="driver", why="driver.method is preinstalled: left alone, only verified"))
        return DriverChoice(branch=0, flavour="open", version="", method="preinstalled", packages=(), repository="")
    if spec.method == "runfile":
        raise _Stop(
            "driver.method runfile is not built yet", "use packages, or install it yourself and set preinstalled"
        )
    branch = _branch(request, knowledge, row, models, reasons)
    flavour = _flavour(spec, knowledge, branch, models, reasons)
    if request.secure_boot:
        reasons.append(_secure_boot(row, spec.branch == "distro"))
    if spec.branch == "distro":
        choice, repository = distro_packages(request, knowledge, row, branch, flavour, models)
    else:
        choice = repository_packages(request, knowledge, row, branch, flavour, models, reasons)
        repository = cuda_repository(request.sources, request.arch, knowledge, row)
    if repository:
        repositories[repository.name] = repository
    return choice


def _branch(
    request: SolveRequest,
    knowledge: Knowledge,
    row: DistroRow,
    models: tuple[GpuModel, ...],
    reasons: list[Reason],
) -> Branch:
    spec = request.driver
    asked = int(spec.version.split(".")[0]) if spec.version else int(spec.branch) if spec.branch.isdigit() else 0
    if spec.version and spec.branch.isdigit() and asked != int(spec.branch):
        raise _Stop(f"driver.version {spec.version} is not of branch {spec.branch}", "leave one of the two out")
    offered = row.own if spec.branch == "distro" else tuple(b for b in knowledge.branches if _carried(row, b))
    where = f"{row.key} itself" if spec.branch == "distro" else f"NVIDIA's repository for {row.key}"
    serving = [knowledge.branches[b] for b in offered if b in knowledge.branches and _serves_all(b, models, knowledge)]
    if asked:
        return _asked_branch(asked, knowledge, row, models, offered, where, reasons)
    fitting = [b for b in serving if not _cuda_lack(b, request.cuda, knowledge)]
    alive = [b for b in fitting if not b.ended(knowledge.as_of)] or fitting
    if not alive:
        raise _no_branch(request, knowledge, models, serving, where)
    best = min(alive, key=lambda b: (b.ended(knowledge.as_of), KINDS.index(b.kind), -b.branch))
    life = f"supported until {best.eol}" if best.eol and not best.ended(knowledge.as_of) else "its support has ended"
    serves = ", ".join(dict.fromkeys(m.arch for m in models)) or "the GPUs"
    reasons.append(
        Reason(
            what=f"driver branch {best.branch}",
            why=f"newest {best.kind} branch in {where} that serves {serves}; {life if best.eol else 'no end announced'}",
            source=best.source,
        )
    )
    return best


def _carried(row: DistroRow, branch: int) -> bool:
    oldest, newest = row.branches
    return oldest <= branch and (not newest or branch <= newest)


def _serves(branch: int, model: GpuModel, knowledge: Knowledge) -> bool:
    arch = knowledge.architectures[model.arch]
    first = int(model.first_release.split(".")[0]) if model.first_release else 0
    # a first release before the architecture's own branch says nothing about proprietary modules
    oldest = max(arch.first_branch or 10_000, first if arch.open != "no" else 0)
    return oldest <= branch and (not arch.last_branch or branch <= arch.last_branch)


def _serves_all(branch: int, models: tuple[GpuModel, ...], knowledge: Knowledge) -> bool:
    return all(_serves(branch, model, knowledge) for model in models)


def _asked_branch(
    asked: int,
    knowledge: Knowledge,
    row: DistroRow,
    models: tuple[GpuModel, ...],
    offered: tuple[int, ...],
    where: str,
    reasons: list[Reason],
) -> Branch:
    known = ", ".join(map(str, sorted(offered)))
    if asked not in knowledge.branches:
        raise _Stop(f"driver branch {asked} does not exist", f"choose one of {known}, or auto")
    if asked not in offered:
        raise _Stop(f"driver branch {asked} is not in {where}", f"choose one of {known}, or auto")
    odd = next((m for m in models if not _serves(asked, m, knowledge)), None)
    if odd:
        fits = [b for b in offered if _serves(b, odd, knowledge)]
        span = f"{min(fits)} to {max(fits)}" if fits else "none of this distribution"
        raise _Stop(f"driver branch {asked} does not serve {odd.name} ({odd.arch})", f"branches that do: {span}")
    branch = knowledge.branches[asked]
    ended = f"; its support ended ({branch.eol})" if branch.ended(knowledge.as_of) else ""
    reasons.append(Reason(what=f"driver branch {asked}", why=f"asked for{ended}", source=branch.source))
    return branch


def _cuda_lack(branch: Branch, cuda: CudaSpec, knowledge: Knowledge) -> str:
    """The CUDA version that no driver of this branch runs, "" when it runs all."""
    for version in cuda.versions:
        release = knowledge.cuda.get(version)
        needed = (release.compat or release.native) if release else ""
        if needed and branch.latest and version_of(branch.latest) < version_of(needed):
            return version
    return ""


def _no_branch(
    request: SolveRequest, knowledge: Knowledge, models: tuple[GpuModel, ...], serving: list[Branch], where: str
) -> _Stop:
    if serving:
        cuda = ", ".join(request.cuda.versions)
        best = max(b.branch for b in serving)
        return _Stop(
            f"no driver branch in {where} serves these GPUs and CUDA {cuda}",
            f"the newest is {best}: ask for an older CUDA",
        )
    alone = [m for m in models if not any(_serves(b, m, knowledge) for b in knowledge.branches)]
    if alone or len({m.arch for m in models}) < 2:
        names = ", ".join(m.name for m in alone or models)
        return _Stop(
            f"no driver branch in {where} serves {names}", "use another distribution release, or driver.branch: distro"
        )
    oldest = min(models, key=lambda m: knowledge.architectures[m.arch].order)
    newest = max(models, key=lambda m: knowledge.architectures[m.arch].order)
    return _Stop(
        f"no driver branch serves both {oldest.name} ({oldest.arch}) and {newest.name} ({newest.arch})",
        f"move one of them to another node: {oldest.arch} ends with branch "
        f"{knowledge.architectures[oldest.arch].last_branch}, {newest.arch} begins with "
        f"{knowledge.architectures[newest.arch].first_branch}",
    )


def _flavour(
    spec: DriverSpec, knowledge: Knowledge, branch: Branch, models: tuple[GpuModel, ...], reasons: list[Reason]
) -> Flavour:
    never = [m for m in models if m.open == "no"]
    only = [m for m in models if m.open == "only"]
    gone = branch.branch >= knowledge.rules["open_only_from"]["branch"]
    if never and only:
        raise _Stop(
            f"{never[0].name} ({never[0].arch}) needs proprietary kernel modules, {only[0].name} ({only[0].arch}) open ones",
            "move one of them to another node: a kernel loads one flavour",
        )
    if spec.flavour == "open" and never:
        raise _Stop(
            f"open kernel modules cannot drive {never[0].name} ({never[0].arch}: no GSP)", "flavour: proprietary"
        )
    if spec.flavour == "open" and branch.open == "no":
        raise _Stop(
            f"branch {branch.branch} has no open kernel modules", "a branch from 515 on, or flavour: proprietary"
        )
    if spec.flavour == "proprietary" and only:
        raise _Stop(f"proprietary kernel modules cannot drive {only[0].name} ({only[0].arch})", "flavour: open")
    if spec.flavour == "proprietary" and gone:
        raise _Stop(
            f"branch {branch.branch} has no proprietary kernel modules any more", "flavour: open, or an older branch"
        )
    if spec.flavour in ("open", "proprietary"):
        reasons.append(Reason(what=f"{spec.flavour} kernel modules", why="asked for"))
        return "open" if spec.flavour == "open" else "proprietary"
    if never:
        why = f"{never[0].name} ({never[0].arch}) has no GSP, which the open modules need"
        reasons.append(_because("proprietary kernel modules", why, knowledge, "open_needs_gsp"))
        return "proprietary"
    if only or gone:
        why = f"{only[0].name} ({only[0].arch}) needs them" if only else "the branch has no others"
        reasons.append(_because("open kernel modules", why, knowledge, "coherent_open" if only else "open_only_from"))
        return "open"
    default = knowledge.rules["open_default_from"]["branch"]
    if branch.branch >= default:
        reasons.append(
            _because("open kernel modules", f"the default from {default} on", knowledge, "open_default_from")
        )
        return "open"
    why = f"the default before branch {default}"
    reasons.append(_because("proprietary kernel modules", why, knowledge, "open_default_from"))
    return "proprietary"


def _because(what: str, why: str, knowledge: Knowledge, rule: str) -> Reason:
    return Reason(what=what, why=why, source=str(knowledge.rules[rule]["source"]))


def _secure_boot(row: DistroRow, own: bool) -> Reason:
    if own and row.family == "ubuntu":
        return Reason(what="Secure Boot", why="is on; Canonical signs linux-modules-nvidia-*: nothing to enrol")
    return Reason(
        what="Secure Boot",
        why="is on, and DKMS signs with a key of its own: enrol it once (mokutil --import /var/lib/dkms/mok.pub, "
        "reboot, confirm at the console)"
        + ("; driver.branch: distro takes modules that Canonical has signed" if row.family == "ubuntu" else ""),
        source="https://wiki.debian.org/SecureBoot#DKMS_and_secure_boot",
    )


def _repository_problems(repositories: Iterable[Repository], request: SolveRequest) -> list[Problem]:
    problems = []
    for repository in repositories:
        mirror = request.sources.get(repository.name)
        if mirror and mirror.key and not mirror.fingerprint:
            problems.append(
                Problem(
                    what=f"sources.{repository.name} has a key of its own and no fingerprint",
                    fix="add fingerprint: the 40 hex digits that the key's owner gives",
                )
            )
    return problems
