"""The driver: branch, flavour, and where it comes from.  Package names are in solve_packages.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpunode.core.knowledge import Branch, DistroRow, GpuModel, Knowledge, version_tuple
from gpunode.core.model import DriverChoice, Flavour
from gpunode.core.solve.families import refused_on_arch
from gpunode.core.solve.gpus import range_text, serves
from gpunode.core.solve.notes import Notes
from gpunode.core.solve.packages import driver_choice
from gpunode.core.solve.rules import Rule, best_branch, in_repository, needs
from gpunode.core.solve.runfile import runfile_driver

if TYPE_CHECKING:
    from gpunode.core.solve import SolveRequest

MOK = (
    "on the node: mokutil --import /var/lib/dkms/mok.pub, choose a password, reboot, and "
    "«Enroll MOK» in the blue screen; mokutil --test-key says whether it is enrolled"
)

_SIGNED = {
    "ubuntu": "Ubuntu's own kernel modules are built and signed by Canonical",
    "suse": "SUSE's own kernel modules are built and signed by SUSE",
}


def solve_driver(
    request: SolveRequest, row: DistroRow, gpus: Sequence[GpuModel], knowledge: Knowledge, notes: Notes
) -> DriverChoice | None:
    """The driver for these GPUs, or None: not wanted, or refused (then a problem stands in `notes`)."""
    spec = request.driver
    if spec.branch == "none":
        notes.because("driver", "driver.branch is none: no driver is managed", "")
        return None
    if request.virtualization == "wsl" or request.tegra:
        return None
    if spec.method == "preinstalled":
        return _preinstalled(request, notes)
    if request.runfile and spec.method == "auto":
        notes.refuse(
            f"driver {request.runfile} was installed by NVIDIA's runfile: packages on top of it break both",
            "set driver.method to packages (gpunode runs nvidia-uninstall first), runfile, or preinstalled to keep it",
        )
        return None
    if spec.version and spec.branch.isdigit() and not spec.version.startswith(f"{spec.branch}."):
        notes.refuse(
            f"driver.version {spec.version} is not of driver.branch {spec.branch}", "set driver.branch to auto"
        )
        return None
    by_runfile = spec.method == "runfile"
    if by_runfile and spec.branch == "distro":
        notes.refuse(
            "driver.method is runfile and driver.branch is distro: a distribution has no runfile",
            "set driver.branch to auto or a number, or driver.method to packages",
        )
        return None
    if row.family == "arch" and not by_runfile and refused_on_arch(request, gpus, knowledge, notes):
        return None
    flavour = _flavour_asked(request, gpus, knowledge, notes)
    if flavour is None:
        return None
    own = not by_runfile and (
        _own_packages(request, row, gpus, flavour, knowledge, notes)
        or _only_own(request, row, gpus, flavour, knowledge, notes)
    )
    branch = _branch(request, row, gpus, flavour, own, knowledge, notes)
    if branch is None:
        return None
    chosen = _flavour(branch, flavour, gpus, knowledge, notes)
    if chosen is None:
        return None
    if request.secure_boot and not (own and row.family in _SIGNED):
        notes.because(
            "warning: Secure Boot",
            f"it is on, and modules that DKMS builds load only once the node's own key is enrolled: {MOK}",
            "https://wiki.debian.org/SecureBoot#DKMS_and_secure_boot",
        )
    if by_runfile:
        return runfile_driver(request, row, gpus, branch, chosen, knowledge, notes)
    return driver_choice(request, row, gpus, branch, chosen, own=own, knowledge=knowledge, notes=notes)


def _preinstalled(request: SolveRequest, notes: Notes) -> DriverChoice | None:
    if not request.loaded_driver:
        notes.refuse(
            "driver.method is preinstalled, but there is no driver on the node",
            "install one, or set driver.method to auto",
        )
        return None
    notes.because("driver", f"{request.loaded_driver} is there and driver.method is preinstalled: left alone", "")
    return DriverChoice(
        branch=version_tuple(request.loaded_driver)[0],
        flavour="open" if request.driver.flavour == "open" else "proprietary",
        version=request.loaded_driver,
        method="preinstalled",
        packages=(),
        repository="",
    )


# ---------------------------------------------------------------- flavour


def _flavour_asked(request: SolveRequest, gpus: Sequence[GpuModel], knowledge: Knowledge, notes: Notes) -> str | None:
    """The flavour where GPUs or the user leave no choice, "" where the branch decides, None on a conflict."""
    only = [g for g in gpus if g.open == "only"]
    never = [g for g in gpus if g.open == "no"]
    if only and never:
        notes.refuse(
            f"{never[0].name} ({never[0].arch}) needs the proprietary kernel modules and {only[0].name} "
            f"({only[0].arch}) the open ones: one node loads only one kind",
            "put these GPUs into different nodes, or take one kind out",
        )
        return None
    asked = request.driver.flavour
    if asked == "open" and never:
        notes.refuse(
            f"the open kernel modules cannot drive {never[0].name} ({never[0].arch}): it has no GSP",
            "set driver.flavour to auto or proprietary",
        )
        return None
    if asked == "proprietary" and only:
        notes.refuse(
            f"the proprietary kernel modules cannot drive {only[0].name} ({only[0].arch}): it needs the open ones",
            "set driver.flavour to auto or open",
        )
        return None
    if never:
        why = f"{never[0].name} ({never[0].arch}) has no GSP, which the open modules need: proprietary"
        notes.because("flavour", why, knowledge.rules["open_needs_gsp"]["source"])
        return "proprietary"
    if only:
        why = f"{only[0].name} ({only[0].arch}) works with the open modules only"
        notes.because("flavour", why, knowledge.rules["coherent_open"]["source"])
        return "open"
    if asked != "auto":
        notes.because("flavour", f"{asked}, as asked", "driver.flavour")
    return "" if asked == "auto" else asked


def _flavour(
    branch: Branch, asked: str, gpus: Sequence[GpuModel], knowledge: Knowledge, notes: Notes
) -> Flavour | None:
    default, last = knowledge.rules["open_default_from"], knowledge.rules["open_only_from"]
    if asked:
        return "open" if asked == "open" else "proprietary"
    if branch.open == "only":
        notes.because("flavour", f"open: {last['branch']} and later have no proprietary modules", last["source"])
        return "open"
    if branch.branch >= default["branch"]:
        names = " and ".join(dict.fromkeys(g.arch for g in gpus)) or "this GPU"
        notes.because(
            "flavour", f"open: the default from {default['branch']} on, and it drives {names}", default["source"]
        )
        return "open"
    notes.because("flavour", f"proprietary: the default before {default['branch']}", default["source"])
    return "proprietary"


# ---------------------------------------------------------------- where from


def _own_packages(
    request: SolveRequest,
    row: DistroRow,
    gpus: Sequence[GpuModel],
    flavour: str,
    knowledge: Knowledge,
    notes: Notes,
) -> bool:
    """Whether the distribution's own packages are taken: when asked for, or for their signature under Secure Boot."""
    spec = request.driver
    if spec.branch == "distro":
        notes.because("repository", f"driver.branch is distro: the packages of {row.key} itself", row.source)
        return True
    if not row.dir:
        notes.because("repository", f"NVIDIA has no repository for {row.key}: its own packages", row.source)
        return True
    signed = row.family == "ubuntu" or (row.family == "suse" and flavour != "proprietary")
    if not request.secure_boot or not signed or spec.version:
        return False
    fits = [
        b
        for b in (knowledge.branches[n] for n in row.own)
        if all(r.holds(b) for r in needs(request, gpus, flavour, knowledge))
        and (not spec.branch.isdigit() or b.branch == int(spec.branch))
    ]
    if not any(spec.branch.isdigit() or not b.ended(knowledge.as_of) for b in fits):
        return False
    notes.because(
        "repository",
        f"Secure Boot is on: {_SIGNED[row.family]}, they load without a MOK",
        knowledge.packages[f"{row.family}-own"]["source"],
    )
    return True


def _only_own(
    request: SolveRequest,
    row: DistroRow,
    gpus: Sequence[GpuModel],
    flavour: str,
    knowledge: Knowledge,
    notes: Notes,
) -> bool:
    """Whether only the distribution itself has a branch that fits: an old GPU on a new release."""
    if request.driver.branch != "auto" or request.driver.version or not row.own:
        return False
    asked = needs(request, gpus, flavour, knowledge)
    if best_branch(knowledge, [*asked, in_repository(row, False)]) or not best_branch(
        knowledge, [*asked, in_repository(row, True)]
    ):
        return False
    notes.because(
        "repository",
        f"NVIDIA's repository for {row.key} has no branch for this, the distribution itself has",
        row.source,
    )
    return True


# ---------------------------------------------------------------- branch


def _branch(
    request: SolveRequest,
    row: DistroRow,
    gpus: Sequence[GpuModel],
    flavour: str,
    own: bool,
    knowledge: Knowledge,
    notes: Notes,
) -> Branch | None:
    where = [] if request.driver.method == "runfile" else [in_repository(row, own)]
    rules = [*needs(request, gpus, flavour, knowledge), *where]
    version = request.driver.version
    number = int(version[:3]) if version else int(request.driver.branch) if request.driver.branch.isdigit() else 0
    best = best_branch(knowledge, rules)
    if number:
        return _checked(request, number, rules, best, knowledge, notes)
    if best is None:
        _refuse_all(gpus, rules, _ways_out(request, row, gpus, rules, own, knowledge), knowledge, notes)
        return None
    present = _present(request, rules, knowledge)
    if present and present != best:
        why = f"{present.branch}: installed already, and it satisfies all of it; {best.branch} is newer"
        notes.because("branch", f"{why} (set driver.branch to change)", present.source)
        return present
    ended = best.ended(knowledge.as_of)
    word = {"LTSB": "long-term", "PB": "production"}[best.kind]
    for rule in rules:
        if rule.source:
            notes.because("branch", rule.why, rule.source)
    until = f"supported until {best.eol}" if best.eol and not ended else "no end announced"
    notes.because(
        "branch",
        f"{best.branch}: the newest {word} branch that satisfies all of it, "
        + (f"though its support ended ({best.eol})" if ended else until),
        best.source,
    )
    if ended:
        notes.because("warning: branch", f"{best.branch} gets no security updates any more", best.source)
    return best


def _ways_out(
    request: SolveRequest,
    row: DistroRow,
    gpus: Sequence[GpuModel],
    rules: Sequence[Rule],
    own: bool,
    knowledge: Knowledge,
) -> str:
    """The other places that have a branch, for the end of a sentence: the other repository, NVIDIA's runfile."""
    if request.driver.method == "runfile":
        return ""
    others = rules[:-1]  # without the repository's
    ways = []
    if (row.dir if own else row.own) and best_branch(knowledge, [*others, in_repository(row, not own)]):
        ways.append(f"try driver.branch {'auto' if own else 'distro'}")
    runfile = best_branch(knowledge, others)
    fabric = request.nvswitches or request.nvlink5_fabric or any(g.fabric == "imex" for g in gpus)
    if runfile and not fabric:
        ways.append(f"set driver.method to runfile, which has {runfile.branch}")
    return "".join(f", or {way}" for way in ways)


def _present(request: SolveRequest, rules: Sequence[Rule], knowledge: Knowledge) -> Branch | None:
    """The branch that is installed, if it still is a good choice: `auto` is no wish to disturb a node that works."""
    number = request.loaded_driver.partition(".")[0]
    branch = knowledge.branches.get(int(number)) if number.isdigit() else None
    if branch is None or branch.kind not in ("LTSB", "PB") or branch.ended(knowledge.as_of):
        return None
    return branch if all(rule.holds(branch) for rule in rules) else None


def _checked(
    request: SolveRequest,
    number: int,
    rules: Sequence[Rule],
    best: Branch | None,
    knowledge: Knowledge,
    notes: Notes,
) -> Branch | None:
    """The branch the user chose, if it can work."""
    instead = (
        f"set driver.branch to {best.branch} or auto" if best else "no other branch fits either: change what is asked"
    )
    branch = knowledge.branches.get(number)
    if branch is None:
        near = sorted(knowledge.branches, key=lambda n: abs(n - number))[:3]
        notes.refuse(
            f"driver branch {number} is not known (nearest: {', '.join(map(str, sorted(near)))})",
            f"{instead}; a newer gpunode may know it",
        )
        return None
    broken = [r for r in rules if not r.holds(branch)]
    for rule in broken:
        notes.refuse(f"driver branch {number} {rule.what}: {rule.why}", instead)
    if broken:
        return None
    notes.because("branch", f"{number}, as asked", "driver.version" if request.driver.version else "driver.branch")
    if branch.ended(knowledge.as_of):
        notes.because("warning: branch", f"support of {number} ended ({branch.eol})", branch.source)
    if branch.kind not in ("LTSB", "PB"):
        kind = "a new-feature branch" if branch.kind == "NFB" else "no long-term or production branch as far as known"
        notes.because("warning: branch", f"{number} is {kind}", branch.source)
    version = request.driver.version
    if version and branch.latest and version_tuple(version) > version_tuple(branch.latest):
        notes.because("warning: version", f"{version} is newer than {branch.latest}, the newest known", branch.source)
    return branch


def _refuse_all(
    gpus: Sequence[GpuModel], rules: Sequence[Rule], other: str, knowledge: Knowledge, notes: Notes
) -> None:
    """Say which two demands no branch satisfies together; with several GPUs name the odd one."""
    for model in gpus:
        if not any(serves(b, model, knowledge) for b in knowledge.branches.values()):
            notes.refuse(range_text(model, knowledge), "update gpunode, or set driver.branch by hand")
            return
    mixed = rules[: len(gpus)]
    if len(gpus) > 1 and best_branch(knowledge, mixed) is None:
        odd = _odd_one(gpus, knowledge)
        notes.refuse(
            f"no driver branch drives all of these GPUs: {'; '.join(range_text(g, knowledge) for g in gpus)}",
            f"the odd one is {odd.name} ({odd.id}): put it into another node",
        )
        return
    for last in range(1, len(rules) + 1):
        if best_branch(knowledge, rules[:last]) is None:
            others = [r.why for r in rules[: last - 1] if best_branch(knowledge, [r, rules[last - 1]]) is None]
            notes.refuse(
                "no long-term or production driver branch fits: " + "; ".join([*others, rules[last - 1].why]),
                f"change one of these (GPU, distribution release, CUDA version){other}",
            )
            return


def _odd_one(gpus: Sequence[GpuModel], knowledge: Knowledge) -> GpuModel:
    """The model without which the most branches remain; of equals the oldest generation."""

    def left(model: GpuModel) -> int:
        rest = [g for g in gpus if g is not model]
        return sum(all(serves(b, g, knowledge) for g in rest) for b in knowledge.branches.values())

    return min(gpus, key=lambda g: (-left(g), knowledge.architectures[g.arch].order))
