"""Kernel modules that are built already: by the distribution, or by NVIDIA for its kernels.

They are there in seconds where DKMS compiles for minutes and needs headers, a compiler and often EPEL; in exchange a
new kernel has to wait for its modules, and there are fewer branches.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.core.knowledge import Branch, Precompiled
from gpunode.core.numbers import version_tuple
from gpunode.core.solve.archive import built_fit, needed_without, resolves, serves_kernels, taken_by_all
from gpunode.core.solve.case import SolveCase
from gpunode.core.solve.families import arch_dkms
from gpunode.core.solve.rules import EVERY, Rule, best_branch, in_repository, needs

_TRADE = "no compiler, no headers, seconds instead of minutes; a new kernel has to wait for its modules"


def built_modules(case: SolveCase, *, own: bool, flavour: str) -> Precompiled | None:
    """The built modules that the driver is to use; None where DKMS builds them."""
    modules = case.knowledge.built_modules(case.distro, case.request.arch)
    spec = case.request.driver
    if modules is None or spec.modules == "dkms" or modules.own != own:
        return None
    if own:
        by_dkms = case.distro.family == "arch" and arch_dkms(case)
        return None if by_dkms or _own_by_dkms(case, modules, flavour) else modules
    wanted = spec.modules == "precompiled"
    enabled = not modules.repositories or any(name in case.request.repositories for name in modules.repositories)
    if not wanted and not (case.request.secure_boot and modules.unasked and enabled and _fits(case, modules, flavour)):
        return None
    if not enabled:
        case.warn(
            "modules",
            f"{modules.signer}'s built modules are in a repository of its own, which has to be enabled before: "
            f"subscription-manager repos --enable {modules.repositories[0]}"
            + "".join(f" (in a cloud: dnf config-manager --set-enabled {name})" for name in modules.repositories[1:]),
            modules.source,
        )
    return modules


def _own_by_dkms(case: SolveCase, modules: Precompiled, flavour: str) -> bool:
    """Whether DKMS has to build what the distribution itself has: its built modules lack a kernel, or the branch."""
    if not case.distro.own_dkms:
        return False
    rules = [*needs(case, flavour), *asked_branch(case)]
    there = [*rules, in_repository(case, True, built=True, flavour=flavour)]
    as_built = case.request.secure_boot or case.request.driver.modules == "precompiled"
    wanted = there if as_built else [*there, taken_by_all(case, flavour)]
    if best_branch(case, wanted, EVERY):
        return False
    fits = best_branch(case, [*rules, in_repository(case, True, flavour=flavour)], EVERY)
    if fits:
        lacking = best_branch(case, there, EVERY)
        kernels = ", ".join(built_fit(case, lacking, flavour).without) if lacking else ""
        what = f"for {kernels}" if kernels else f"of {fits.branch}"
        why = f"{modules.signer} builds no modules {what}: DKMS builds them from what {case.distro.key} has"
        case.because("modules", why, case.distro.source)
    return fits is not None


def for_kernels(case: SolveCase, built: Precompiled, flavour: str, kinds: Sequence[str]) -> tuple[str, Rule] | None:
    """The flavour of which a node's kernels have built modules, and what that asks of a branch; None with a problem.

    Modules for the kernel that runs and the newest one, in the default flavour or else the other; where neither is
    there, a kernel that comes along with its modules.
    """

    def best(wish: str, *more: Rule) -> Branch | None:
        rules = [*needs(case, wish), *asked_branch(case), *resolves(case, own=True), *more]
        return best_branch(case, [*rules, in_repository(case, True, built=True, flavour=wish)], kinds)

    free = not flavour and not any(model.open == "only" for model in case.gpus)
    default = best(flavour)
    for come in (False, True):
        for wish in (flavour, *(("proprietary",) if free else ())):
            rule = serves_kernels(case, wish, come=come)
            if default is None or best(wish, rule):
                if wish != flavour and default:
                    why = f"those of the open ones do not fit: {built_fit(case, default, flavour).why}"
                    case.because("flavour", f"proprietary: {built.signer} has these modules, and {why}", built.source)
                return wish, rule
    assert default
    kernels = ", ".join(needed_without(case, default, flavour))
    case.refuse(
        f"{built.signer} builds no NVIDIA modules for kernel {kernels}: {built_fit(case, default, flavour).why}",
        f"boot another kernel (linux-image-generic, or the newest of the flavour) and remove this one; or set "
        f"driver.modules to dkms{': modules of its own, with a MOK to enrol' * bool(case.request.secure_boot)}",
    )
    return None


def asked_branch(case: SolveCase) -> list[Rule]:
    """That it is the branch which is asked for by number; nothing where none is."""
    if not (number := case.request.driver.number):
        return []
    return [Rule(what=f"is not {number}", holds=lambda b: b.branch == number, why=f"{number} is asked for")]


def alternative(case: SolveCase, flavour: str) -> Precompiled | None:
    """Built modules that `driver.modules: precompiled` would take here in place of those of DKMS."""
    spec = case.request.driver
    if spec.modules == "dkms" or spec.branch == "distro" or case.request.nvlink5_fabric:
        return None
    modules = case.knowledge.built_modules(case.distro, case.request.arch)
    return modules if modules and _new_enough(case, modules) and _fits(case, modules, flavour) else None


def refused_modules(case: SolveCase) -> bool:
    """Whether built modules are asked for and nobody has any; the problem is noted."""
    spec = case.request.driver
    if spec.modules != "precompiled":
        return False
    modules = case.knowledge.built_modules(case.distro, case.request.arch)
    where = f"{case.request.distro} on {case.request.arch}"
    setting = f"driver.modules is precompiled and driver.branch is distro: the modules for {where} are"
    if spec.method == "runfile":
        what = "driver.modules is precompiled and driver.method is runfile: NVIDIA's installer builds its modules"
    elif modules is None:
        what = f"driver.modules is precompiled, and no repository has kernel modules for {where}"
    elif not _new_enough(case, modules):
        what = f"driver.modules is precompiled, and {modules.signer} builds kernel modules from {modules.since} on only"
    elif spec.branch == "distro" and not modules.own:
        what = f"{setting} {modules.signer}'s"
    elif case.distro.family == "arch" and arch_dkms(case):
        what = "driver.modules is precompiled, and a kernel is there that Arch builds no modules for"
    else:
        return False
    case.refuse(what, "set driver.modules to auto or dkms")
    return True


def rules_of(case: SolveCase, built: Precompiled, flavour: str) -> list[Rule]:
    """What modules that are built ask of a branch."""
    listed = ", ".join(map(str, built.branches))
    rules = [
        Rule(
            what=f"is not among the modules that {built.signer} builds",
            holds=lambda b: not built.branches or b.branch in built.branches,
            why=f"{built.signer} builds kernel modules for {case.distro.key} of branches {listed or 'without a gap'}",
            source=built.source,
        )
    ]
    if flavour and built.flavour not in ("", flavour):
        why = f"the kernel modules that {built.signer} builds for {case.distro.key} are the {built.flavour} ones"
        rules.append(
            Rule(what=f"is not built with {flavour} modules", holds=lambda _: False, why=why, source=built.source)
        )
    return rules


def explain_modules(case: SolveCase, built: Precompiled | None, other: Precompiled | None) -> None:
    """Note which modules are taken and what the choice costs; nothing where there is no choice."""
    if built and case.distro.family != "arch":
        case.because("modules", f"built by {built.signer}: {_TRADE}", built.source)
    elif other:
        which = f"the {other.flavour} modules" if other.flavour else "the modules"
        branches = f" for branches {', '.join(map(str, other.branches))}" if other.branches else ""
        case.because(
            "modules",
            f"DKMS builds them on the node for each kernel; driver.modules: precompiled would take {which} that "
            f"{other.signer} builds{branches}: {_TRADE}",
            other.source,
        )


def _new_enough(case: SolveCase, modules: Precompiled) -> bool:
    release = version_tuple(case.request.distro.partition(":")[2])
    return len(release) < 2 or release >= version_tuple(modules.since)


def _fits(case: SolveCase, modules: Precompiled, flavour: str) -> bool:
    """Whether a branch of the built modules serves what is asked for."""
    flavour, number = flavour or modules.flavour, case.request.driver.number
    where = [in_repository(case, modules.own, built=True, flavour=flavour), *rules_of(case, modules, flavour)]
    if number:
        branch = case.knowledge.branches.get(number)
        return branch is not None and all(rule.holds(branch) for rule in [*needs(case, flavour), *where])
    best = best_branch(case, [*needs(case, flavour), *where])
    return best is not None and not best.ended(case.knowledge.as_of)
