"""The driver: branch, flavour, and where it comes from.  Package names are in solve_packages.py."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.core.knowledge import Branch, GpuModel, Precompiled
from gpunode.core.model import DriverChoice, Flavour
from gpunode.core.model.node import own_key
from gpunode.core.numbers import version_tuple, whole
from gpunode.core.solve.archive import built_fit, resolves, taken_by_all
from gpunode.core.solve.case import SolveCase
from gpunode.core.solve.families import refused_on_arch
from gpunode.core.solve.gpus import range_text, serves, virtual_gpus
from gpunode.core.solve.packages import driver_choice
from gpunode.core.solve.precompiled import (
    alternative,
    asked_branch,
    built_modules,
    explain_modules,
    for_kernels,
    refused_modules,
    rules_of,
)
from gpunode.core.solve.rules import EVERY, SUPPORTED, Rule, best_branch, builds, in_repository, needs, warn_of_kernels
from gpunode.core.solve.runfile import runfile_driver

MOK = (
    "on the node: mokutil --import {key}, choose a password, reboot, and "
    "«Enroll MOK» in the blue screen; mokutil --test-key says whether it is enrolled"
)


def solve_driver(case: SolveCase) -> DriverChoice | None:
    """The driver for these GPUs, or None: not wanted, or refused (then a problem is noted)."""
    spec = case.request.driver
    if spec.branch == "none":
        case.because("driver", "driver.branch is none: no driver is managed", "")
        return None
    if case.request.virtualization == "wsl" or case.request.tegra:
        return None
    if spec.method == "preinstalled":
        return _preinstalled(case)
    if _refused(case):
        return None
    by_runfile = spec.method == "runfile"
    flavour = _flavour_asked(case)
    if flavour is None:
        return None
    own = not by_runfile and (_from_distro(case, flavour) or _only_distro(case, flavour))
    built = None if by_runfile else built_modules(case, own=own, flavour=flavour)
    way = _flavour_built(case, built, flavour) if built else (flavour, [])
    if way is None:
        return None
    flavour, kernels = way
    branch = _branch(case, flavour, own, built, kernels)
    if branch is None:
        return None
    chosen = _flavour(case, branch, flavour)
    if chosen is None:
        return None
    other = None if built or by_runfile else alternative(case, flavour)
    explain_modules(case, built, other)
    if case.request.secure_boot and not (built.trusted if built else case.request.own_key):
        whose = f"{built.signer} built" if built else "DKMS builds"
        key = f"{built.signer}'s key" if built else "the node's own key"
        hint = f"; or set driver.modules to precompiled: {other.signer} signs them" if other and other.trusted else ""
        case.warn(
            "Secure Boot",
            f"it is on, and modules that {whose} load only once {key} is enrolled: "
            f"{MOK.format(key=own_key(case.request.distro))}{hint}",
            "https://wiki.debian.org/SecureBoot#DKMS_and_secure_boot",
        )
    if built is None:
        newest = None if by_runfile else _best(case, [*needs(case, chosen), *builds(case)])
        runfile = f"; driver.method: runfile has {newest.latest or newest.branch}" if newest and own else ""
        warn_of_kernels(case, branch, chosen, own=own, instead=runfile)
    if by_runfile:
        return runfile_driver(case, branch, chosen)
    return driver_choice(case, branch, chosen, own=own, built=built)


def _refused(case: SolveCase) -> bool:
    """Whether what is asked for contradicts itself or the node; the problem is noted."""
    spec = case.request.driver
    # a guest's driver stays, whatever it came from
    guest = case.request.licensed or virtual_gpus(case.request, case.knowledge)
    if case.request.runfile and spec.method == "auto" and not guest:
        case.refuse(
            f"driver {case.request.runfile} was installed by NVIDIA's runfile: packages on top of it break both",
            "set driver.method to packages (gpunode runs nvidia-uninstall first), runfile, or preinstalled to keep it",
        )
        return True
    if case.request.elsewhere and spec.method == "auto":
        case.refuse(
            f"driver {case.request.loaded_driver} is in {case.request.elsewhere}, where neither packages nor NVIDIA's "
            "installer put one: a second driver next to it would break both",
            "set driver.method to preinstalled to keep it; or remove it, where nothing brings it back at boot",
        )
        return True
    if spec.version and spec.branch.isdigit() and not spec.version.startswith(f"{spec.branch}."):
        case.refuse(f"driver.version {spec.version} is not of driver.branch {spec.branch}", "set driver.branch to auto")
        return True
    if spec.method == "runfile" and spec.branch == "distro":
        case.refuse(
            "driver.method is runfile and driver.branch is distro: a distribution has no runfile",
            "set driver.branch to auto or a number, or driver.method to packages",
        )
        return True
    if refused_modules(case):
        return True
    return case.distro.family == "arch" and spec.method != "runfile" and refused_on_arch(case)


def _preinstalled(case: SolveCase) -> DriverChoice | None:
    if not case.request.loaded_driver:
        case.refuse(
            "driver.method is preinstalled, but there is no driver on the node",
            "install one, or set driver.method to auto",
        )
        return None
    case.because("driver", f"{case.request.loaded_driver} is there and driver.method is preinstalled: left alone", "")
    return DriverChoice(
        branch=version_tuple(case.request.loaded_driver)[0],
        flavour="open" if case.request.driver.flavour == "open" else "proprietary",
        version=case.request.loaded_driver,
        method="preinstalled",
        packages=(),
        repository="",
    )


# ---------------------------------------------------------------- flavour


def _flavour_asked(case: SolveCase) -> str | None:
    """The flavour where GPUs or the user leave no choice, "" where the branch decides, None on a conflict."""
    only = [g for g in case.gpus if g.open == "only"]
    never = [g for g in case.gpus if g.open == "no"]
    if only and never:
        case.refuse(
            f"{never[0].name} ({never[0].arch}) needs the proprietary kernel modules and {only[0].name} "
            f"({only[0].arch}) the open ones: one node loads only one kind",
            "put these GPUs into different nodes, or take one kind out",
        )
        return None
    flavour = case.request.driver.flavour
    if flavour == "open" and never:
        case.refuse(
            f"the open kernel modules cannot drive {never[0].name} ({never[0].arch}): it has no GSP",
            "set driver.flavour to auto or proprietary",
        )
        return None
    if flavour == "proprietary" and only:
        case.refuse(
            f"the proprietary kernel modules cannot drive {only[0].name} ({only[0].arch}): it needs the open ones",
            "set driver.flavour to auto or open",
        )
        return None
    if never:
        why = f"{never[0].name} ({never[0].arch}) has no GSP, which the open modules need: proprietary"
        case.because("flavour", why, case.knowledge.rules["open_needs_gsp"]["source"])
        return "proprietary"
    if only:
        why = f"{only[0].name} ({only[0].arch}) works with the open modules only"
        case.because("flavour", why, case.knowledge.rules["coherent_open"]["source"])
        return "open"
    if flavour != "auto":
        case.because("flavour", f"{flavour}, as asked", "driver.flavour")
    return "" if flavour == "auto" else flavour


def _flavour_built(case: SolveCase, built: Precompiled, flavour: str) -> tuple[str, list[Rule]] | None:
    """The flavour of modules that are built already, and what their kernels ask of a branch; None with a problem."""
    if built.own:
        spec = case.request.driver
        way = for_kernels(case, built, flavour, EVERY if spec.branch.isdigit() or spec.version else _kinds(case))
        return way and (way[0], [way[1]])
    if not flavour and built.flavour:
        flavour = built.flavour
        case.because("flavour", f"{flavour}: those are the modules that {built.signer} builds", built.source)
    return flavour, []


def _flavour(case: SolveCase, branch: Branch, wish: str) -> Flavour | None:
    default, last = case.knowledge.rules["open_default_from"], case.knowledge.rules["open_only_from"]
    if wish:
        return "open" if wish == "open" else "proprietary"
    if branch.open == "only":
        case.because("flavour", f"open: {last['branch']} and later have no proprietary modules", last["source"])
        return "open"
    if branch.branch >= default["branch"]:
        names = " and ".join(dict.fromkeys(g.arch for g in case.gpus)) or "this GPU"
        case.because(
            "flavour", f"open: the default from {default['branch']} on, and it drives {names}", default["source"]
        )
        return "open"
    case.because("flavour", f"proprietary: the default before {default['branch']}", default["source"])
    return "proprietary"


# ---------------------------------------------------------------- where from


def _from_distro(case: SolveCase, flavour: str) -> bool:
    """Whether the distribution's own packages are taken: when asked for, or for their signature under Secure Boot."""
    spec = case.request.driver
    if spec.branch == "distro":
        case.because(
            "repository", f"driver.branch is distro: the packages of {case.distro.key} itself", case.distro.source
        )
        return True
    if not case.distro.dir:
        case.because(
            "repository", f"NVIDIA has no repository for {case.distro.key}: its own packages", case.distro.source
        )
        return True
    own = case.knowledge.built_modules(case.distro, case.request.arch)
    if spec.modules == "precompiled" and own and own.own:
        why = f"driver.modules is precompiled: {own.signer} builds those of {case.distro.key}'s own driver"
        case.because("repository", why, own.source)
        return True
    if spec.modules == "dkms":
        return False
    if own and own.own and _installed_own(case):
        why = f"{own.signer}'s kernel modules of the driver that is loaded are installed: auto leaves them"
        case.because("repository", f"{why} (driver.modules: dkms changes to NVIDIA's packages)", own.source)
        return True
    if case.request.secure_boot and case.request.nvlink5_fabric:
        nvlink5 = case.knowledge.packages["nvlink5"]
        why = f"NVLink 5 needs {nvlink5['needs']}, which {case.distro.key} itself has not: NVIDIA's repository"
        case.because("repository", why, nvlink5["source"])
        return False
    signed = own is not None and own.own and own.unasked and flavour in ("", own.flavour or flavour)
    if own is None or not case.request.secure_boot or not signed or spec.version:
        return False
    rules = [*needs(case, flavour), *asked_branch(case), in_repository(case, True, built=True, flavour=flavour)]
    best = best_branch(case, rules, EVERY if spec.branch.isdigit() else _kinds(case))
    if best is None or (best.ended(case.knowledge.as_of) and not spec.branch.isdigit()):
        return False
    case.because(
        "repository",
        f"Secure Boot is on: {case.distro.key}'s own kernel modules are built and signed by {own.signer}, they load "
        "without a MOK",
        case.knowledge.packages[f"{case.distro.family}-own"]["source"],
    )
    return True


def _installed_own(case: SolveCase) -> bool:
    """Whether the driver that is loaded has the distribution's built modules, by the names that would be asked for."""
    names, spec = case.knowledge.packages[f"{case.distro.family}-own"], case.request.driver
    loaded = _loaded(case)
    if "modules_meta" not in names or spec.version or case.request.nvlink5_fabric or loaded not in case.distro.own:
        return False
    if spec.branch not in ("auto", "lts", str(loaded)):
        return False
    start = names["modules_meta"].partition("{open}")[0].format(branch=loaded)
    return any(name.startswith(start) for name in case.request.installed)


def _only_distro(case: SolveCase, flavour: str) -> bool:
    """Whether only the distribution itself has a branch that fits: an old GPU on a new release."""
    if case.request.driver.version or not case.distro.own:
        return False
    constraints = [*needs(case, flavour), *asked_branch(case)]
    kinds = EVERY if case.request.driver.branch.isdigit() else _kinds(case)
    ours = [*constraints, *_where(case, own=True, flavour=flavour)]
    theirs = [*constraints, *_where(case, own=False)]
    if best_branch(case, theirs, kinds) or not best_branch(case, ours, kinds):
        return False
    case.because(
        "repository",
        f"NVIDIA's repository for {case.distro.key} has no branch for this, the distribution itself has",
        case.distro.source,
    )
    return True


# ---------------------------------------------------------------- branch


def _where(case: SolveCase, *, own: bool, flavour: str = "", built: bool = False) -> list[Rule]:
    """What the place that the driver comes from asks of a branch."""
    if case.request.driver.method == "runfile":
        return builds(case)
    if not own:
        return [*builds(case), in_repository(case, False)]
    rules = [in_repository(case, True, built=built, flavour=flavour)]
    if case.distro.family == "suse":  # its own modules are open ones, with the user space of NVIDIA's repository
        rules.append(in_repository(case, False))
        if flavour == "proprietary":
            why = f"{case.distro.key}'s own kernel modules are the open ones"
            rules.append(Rule(what="is open there", holds=lambda _: False, why=why, source=case.distro.source))
    return rules


def _best(case: SolveCase, rules: Sequence[Rule]) -> Branch | None:
    return best_branch(case, rules, _kinds(case))


def _kinds(case: SolveCase) -> Sequence[str]:
    """The kinds of branches that may be taken unasked; Arch has one branch, of whatever kind."""
    if case.request.driver.branch == "lts":
        return ("LTSB",)
    return (*SUPPORTED, "NFB", "unknown") if case.distro.family == "arch" else SUPPORTED


def _for_every_kernel(case: SolveCase, rules: Sequence[Rule], best: Branch, flavour: str) -> Branch:
    """The best branch with modules for every kernel, by the archive; where there is none, the best."""
    branch = _best(case, [*rules, taken_by_all(case, flavour)]) or best
    if branch != best:
        why = f"all kernels that can boot have its modules; of {best.branch}: {built_fit(case, best, flavour).why}"
        case.because("branch", f"{branch.branch}: {why}", "the node's package manager")
    return branch


def _branch(
    case: SolveCase, flavour: str, own: bool, built: Precompiled | None, kernels: Sequence[Rule]
) -> Branch | None:
    constraints, where = needs(case, flavour), _where(case, own=own, flavour=flavour, built=built is not None)
    if built and not built.own:
        where = [in_repository(case, False), *rules_of(case, built, flavour)]
    rules = [*constraints, *where, *resolves(case, own=own), *kernels]
    best = _best(case, rules)
    if number := case.request.driver.number:
        return _checked(case, number, rules, best)
    if best is None:
        _refuse_all(case, rules, _ways_out(case, constraints, flavour, own))
        return None
    if own and built:
        best = _for_every_kernel(case, rules, best, flavour)
    present = _present(case, rules)
    if present and present != best:
        why = f"{present.branch}: installed already, and it satisfies all of it; {best.branch} is newer"
        case.because("branch", f"{why} (set driver.branch to change)", present.source)
        return present
    if case.request.driver.branch == "auto" and _loaded(case) > best.branch and not _useless(case):
        return _newer_than(case, constraints if case.distro.family == "arch" else rules, best)
    _say_why(case, best, rules)
    return best


def _say_why(case: SolveCase, best: Branch, rules: Sequence[Rule]) -> None:
    """The reasons of a branch that was chosen as the newest, and what is to be known of its support."""
    ended = best.ended(case.knowledge.as_of)
    word = {"LTSB": "long-term", "PB": "production"}.get(best.kind, "only")
    for rule in rules:
        if rule.source:
            case.because("branch", rule.why, rule.source)
    until = f"supported until {best.eol}" if best.eol and not ended else "no end announced"
    what = (
        f"the one that {case.distro.key} has"
        if word == "only"
        else f"the newest {word} branch that satisfies all of it"
    )
    support = f"though its support ended ({best.eol})" if ended else until
    case.because("branch", f"{best.branch}: {what}, {support}", best.source)
    if word == "only":
        why = f"{best.branch} is a new-feature branch: it gets updates for months"
        case.warn("branch", why, best.source)
    if ended:
        case.warn("branch", f"{best.branch} gets no security updates any more", best.source)


def _loaded(case: SolveCase) -> int:
    """The branch of the driver that is there, 0 where none is."""
    number = case.request.loaded_driver.partition(".")[0]
    return whole(number) if number.isdigit() else 0


def _useless(case: SolveCase) -> bool:
    """Whether the driver that is there does not drive one of the GPUs: then an older one is right."""
    branch = case.knowledge.branches.get(_loaded(case))
    return branch is not None and not all(serves(branch, model, case.knowledge) for model in case.gpus)


def _newer_than(case: SolveCase, rules: Sequence[Rule], best: Branch) -> Branch | None:
    """The branch that is there and newer than what `auto` would take, which never goes back; None with a problem."""
    branch = case.knowledge.branches.get(_loaded(case))
    if branch is not None and all(rule.holds(branch) for rule in rules):
        case.because(
            "branch",
            f"{branch.branch}: installed already and newer than {best.branch}; auto never goes back (set driver.branch "
            "to change)",
            branch.source,
        )
        case.warn("branch", _kind_of(branch), branch.source)
        return branch
    broken = next((rule.what for rule in rules if branch and not rule.holds(branch)), "is not known")
    case.refuse(
        f"driver {case.request.loaded_driver} is installed, and that branch {broken}: auto never goes back to "
        f"{best.branch}",
        f"set driver.branch to {best.branch} to go back, or driver.method to preinstalled to keep what is there",
    )
    return None


def _ways_out(case: SolveCase, rules: Sequence[Rule], flavour: str, own: bool) -> str:
    """The other places that have a branch, for the end of a sentence: the other repository, NVIDIA's runfile."""
    if case.request.driver.method == "runfile":
        return ""
    ways = []
    there = case.distro.dir if own else case.distro.own
    if there and _best(case, [*rules, *_where(case, own=not own, flavour=flavour)]):
        ways.append(f"try driver.branch {'auto' if own else 'distro'}")
    runfile = _best(case, [*rules, *builds(case)])
    if runfile and not case.fabric:
        ways.append(f"set driver.method to runfile, which has {runfile.branch}")
    return "".join(f", or {way}" for way in ways)


def _present(case: SolveCase, rules: Sequence[Rule]) -> Branch | None:
    """The branch that is installed, if it still is a good choice: `auto` does not ask to disturb a node that works."""
    branch = case.knowledge.branches.get(_loaded(case))
    if branch is None or branch.kind not in _kinds(case) or branch.ended(case.knowledge.as_of):
        return None
    return branch if all(rule.holds(branch) for rule in rules) else None


def _checked(case: SolveCase, number: int, rules: Sequence[Rule], best: Branch | None) -> Branch | None:
    """The branch the user chose, if it can work."""
    instead = (
        f"set driver.branch to {best.branch} or auto" if best else "no other branch fits either: change what is asked"
    )
    branch = case.knowledge.branches.get(number)
    if branch is None:
        near = sorted(case.knowledge.branches, key=lambda n: abs(n - number))[:3]
        case.refuse(
            f"driver branch {number} is not known (nearest: {', '.join(map(str, sorted(near)))})",
            f"{instead}; a newer gpunode may know it",
        )
        return None
    broken = [r for r in rules if not r.holds(branch)]
    for rule in broken:
        case.refuse(f"driver branch {number} {rule.what}: {rule.why}", instead)
    if broken:
        return None
    case.because("branch", f"{number}, as asked", "driver.version" if case.request.driver.version else "driver.branch")
    if branch.ended(case.knowledge.as_of):
        case.warn("branch", f"support of {number} ended ({branch.eol})", branch.source)
    if branch.kind not in SUPPORTED:
        case.warn("branch", _kind_of(branch), branch.source)
    version = case.request.driver.version
    if version and branch.latest and version_tuple(version) > version_tuple(branch.latest):
        case.warn("version", f"{version} is newer than {branch.latest}, the newest known", branch.source)
    return branch


def _kind_of(branch: Branch) -> str:
    """What a branch is that is no long-term and no production branch, as a sentence."""
    kind = {"NFB": "a new-feature branch", "legacy": "a legacy branch"}.get(branch.kind)
    where = "the page of its «supported drivers and CUDA toolkit versions» says it"
    return f"{branch.branch} is {kind}" if kind else f"what kind of branch {branch.branch} is, is not known: {where}"


def _refuse_all(case: SolveCase, rules: Sequence[Rule], other: str) -> None:
    """Say which two demands no branch satisfies together; with several GPUs name the odd one."""
    for model in case.gpus:
        if not any(serves(b, model, case.knowledge) for b in case.knowledge.branches.values()):
            case.refuse(range_text(model, case.knowledge), "update gpunode, or set driver.branch by hand")
            return
    if _only_new(case, rules, other):
        return
    mixed = rules[: len(case.gpus)]
    if len(case.gpus) > 1 and best_branch(case, mixed) is None:
        odd = _odd_one(case)
        case.refuse(
            f"no driver branch drives all of these GPUs: {'; '.join(range_text(g, case.knowledge) for g in case.gpus)}",
            f"the odd one is {odd.name} ({odd.id}): put it into another node",
        )
        return
    kinds = "long-term" if case.request.driver.branch == "lts" else "long-term or production"
    for last in range(1, len(rules) + 1):
        if _best(case, rules[:last]) is None:
            alone = _best(case, [rules[last - 1]])  # None: no other demand is at fault
            others = [r.why for r in rules[: last - 1] if alone and _best(case, [r, rules[last - 1]]) is None]
            case.refuse(
                f"no {kinds} driver branch fits: " + "; ".join([*others, rules[last - 1].why]),
                f"change one of these (GPU, distribution release, CUDA version){other}",
            )
            return


def _only_new(case: SolveCase, rules: Sequence[Rule], other: str) -> bool:
    """Whether only new-feature branches fit: none is taken unasked, and the problem names them."""
    kinds = ("NFB", "unknown")
    newest = best_branch(case, rules, kinds)
    if newest is None or case.request.driver.branch == "lts":
        return False
    fits = [b for b in case.knowledge.branches.values() if b.kind in kinds and all(r.holds(b) for r in rules)]
    listed = ", ".join(
        f"{b.branch} (support ended {b.eol})" if b.ended(case.knowledge.as_of) else str(b.branch) for b in fits
    )
    why = next((rules[n].why for n in range(len(rules)) if best_branch(case, rules[: n + 1]) is None), rules[-1].why)
    of_what = "new-feature driver branches" if all(b.kind == "NFB" for b in fits) else "driver branches of unknown kind"
    until = "they get updates for months" if all(b.kind == "NFB" for b in fits) else "how long they get updates is open"
    case.refuse(
        f"only {of_what} fit: {listed} ({why}); {until}, and auto takes none",
        f"set driver.branch to {newest.branch} to take one{other}",
    )
    return True


def _odd_one(case: SolveCase) -> GpuModel:
    """The model without which the most branches remain; of equals the oldest generation."""

    def left(model: GpuModel) -> int:
        rest = [g for g in case.gpus if g is not model]
        return sum(all(serves(b, g, case.knowledge) for g in rest) for b in case.knowledge.branches.values())

    return min(case.gpus, key=lambda g: (-left(g), case.knowledge.architectures[g.arch].order))
