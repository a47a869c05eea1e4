"""What a node's package manager is asked before a plan is shown, and what it answered.

The question is the request of node/packages/packages.sh in check mode, so that a plan and the step that carries it out
are judged by the same lines; `names` are those of core/solve/archive.py.  An answer is a node's word: what does not fit
the grammar of names and versions is left out, and so is all beyond the limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.grammar import PACKAGE, VERSION
from gpunode.core.items.package import packages_request
from gpunode.core.late import dataclass, field, replace
from gpunode.core.model import Archive, Changed, Offer, Plan, Problem, Solution, Unresolved
from gpunode.core.numbers import upstream
from gpunode.core.remote import as_flags, as_lines, parse_outcome, values_of

NOT_RESOLVED = "not resolved by the node's package manager: "
OFFERS, WHY = 1_000, 400  # at most: packages with their versions, characters of a reason
_OPERATORS = ("<<", "<=", "=", ">=", ">>")
Request = dict[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """What is to be resolved on the node, and the repositories that it cannot be asked of yet.

    `coming`: files of repositories that the plan writes first, path → text, None where one goes: the node reads these
    repositories into a folder of the question's own.
    """

    value: Mapping[str, Any]
    unasked: tuple[str, ...] = ()
    coming: Mapping[str, str | None] = field(default_factory=dict)


def transaction(plan: Plan, solution: Solution, *, fetch: bool) -> Transaction | None:
    """All packages of the plan as one transaction; None where it installs none.

    Of a repository that a package of the plan sets up nothing can be asked, only of the headers that come with its
    driver; with `fetch`, one that the plan writes itself is read on the node, without it that is the same.
    """
    steps = [step for step in plan.steps if step.option == "packages"]
    if not steps:
        return None
    written = {file["path"]: file["content"] for step in plan.steps if step.option == "sources" for file in step.value}
    values, unasked, coming = [], [], {}
    for step in steps:
        value = step.value
        new = written.keys() & set(value.get("refresh", ()))
        read = fetch and "" not in written.values()  # a key that could not be had is empty
        if new and read:
            coming = written
        if value.get("after") or (new and not read):
            part = getattr(solution, step.role, None)
            unasked.append((part and part.repository) or f"the repositories of {step.role}")
            kernels = solution.driver.kernel_packages if step.role == "driver" and solution.driver else ()
            value = {"install": [{"name": one.name} for one in kernels]}
        values.append(value)
    return Transaction(value=_together(values), unasked=tuple(dict.fromkeys(unasked)), coming=coming)


def _together(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    install = {one["name"]: one for value in values for one in value.get("install", ())}
    found: dict[str, Any] = {"install": list(install.values())}
    for key in ("remove", "may_go", "refresh", "streams"):
        found[key] = list(dict.fromkeys(one for value in values for one in value.get(key, ()) if one not in install))
    return found | {"alone": any(value.get("alone") for value in values)}


def question(transaction: Transaction, names: Sequence[str]) -> Request:
    """The files of the request; the transaction has its secrets by now."""
    request = packages_request(transaction.value, wait=0, check=True)
    request |= as_flags(ask=True) | ({"names": as_lines(list(names))} if names else {})
    if not transaction.coming:
        return request
    texts = {f"coming.{number}": text for number, text in enumerate(transaction.coming.values()) if text is not None}
    lines = [
        f"{name if name in texts else '-'} {path}"
        for name, path in ((f"coming.{number}", path) for number, path in enumerate(transaction.coming))
    ]
    return request | {"coming": as_lines(lines)} | {name: text.encode() for name, text in texts.items()}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the package manager has, and whether it could do the transaction.

    `why` says why it cannot, or why that is not known; `problem` what it would do and the plan does not want.
    `versions`: package → the version that it would get, with the present one and an arrow before it.
    """

    archive: Archive = Archive()
    versions: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""  # resolves, fails, unknown
    why: str = ""
    problem: Problem | None = None


def read_answer(stdout: str, rc: int, names: Sequence[str]) -> Answer:
    """The answer to `question`."""
    fresh = bool(values_of(stdout, "fresh"))
    offers = tuple(_offers(values_of(stdout, "offer")[:OFFERS], frozenset(names)))
    # what lists have not heard of yet may be there: only those of today say that something is missing
    archive = Archive(asked=frozenset(names), offers=offers) if fresh and offers else Archive()
    outcome = parse_outcome(stdout, rc)
    unresolvable = "".join(values_of(stdout, "unresolvable")[-1:])[:WHY].strip()
    why = unresolvable or outcome.message[:WHY].strip()
    if unasked := values_of(stdout, "unasked"):
        return Answer(archive=archive, verdict="unknown", why=unasked[0][:WHY])
    if outcome.status == "refused":
        return Answer(archive=archive, verdict="fails", problem=Problem(what=why, fix=outcome.fix[:WHY]))
    if outcome.status in ("unchanged", "changed"):
        return Answer(archive=archive, verdict="resolves", versions=dict(_versions(outcome.changed[:OFFERS])))
    if not unresolvable:
        return Answer(archive=archive, verdict="unknown", why=why or "the package manager gave no reason")
    if not fresh:
        return Answer(verdict="unknown", why=f"by the node's lists, older than a day or than its sources: {why}")
    return Answer(archive=archive, verdict="fails", why=why)


def _offers(lines: Sequence[str], names: frozenset[str]) -> Iterator[Offer]:
    for name, version, *words in (line.split() for line in lines if len(line.split()) > 1):
        needs = [words[n : n + 3] for n in range(0, len(words), 3)]
        good = name in names and VERSION.fits(version) and len(words) <= 3 * 20
        if good and all(
            len(n) == 3 and PACKAGE.fits(n[0]) and n[1] in _OPERATORS and VERSION.fits(n[2]) for n in needs
        ):
            yield Offer(name=name, version=version, needs=tuple(f"{n[0]} ({n[1]} {n[2]})" for n in needs))


def _versions(changed: Sequence[Changed]) -> Iterator[tuple[str, str]]:
    """The versions that packages would get, or the one before and after (node/packages/dry_run.sh)."""
    for one in changed:
        versions = [version for version in (one.was, one.now) if version]
        if one.kind == "package" and one.now and PACKAGE.fits(one.name) and all(map(VERSION.fits, versions)):
            yield one.name, " → ".join(versions)


def with_versions(plan: Plan, solution: Solution, versions: Mapping[str, str]) -> tuple[Plan, Solution]:
    """Plan and solution with the versions that the packages would get, of the driver its own."""
    driver = solution.driver
    stated = [versions[one.name] for one in driver.packages if one.version and one.name in versions] if driver else []
    if driver and stated:
        solution = replace(solution, driver=replace(driver, offered=upstream(stated[0].split(" → ")[-1])))
    return replace(plan, resolved=versions), solution


def without_way(archive: Archive, solution: Solution, why: str) -> Archive:
    """The archive with the way to the driver that could not be resolved, so that the next candidate is taken."""
    driver = solution.driver
    if driver is None or driver.method != "packages":
        return archive
    failed = Unresolved(own=not driver.repository, branch=driver.branch, why=why)
    return replace(archive, unresolved=tuple(dict.fromkeys((*archive.unresolved, failed))))


def refused(plan: Plan, *problems: Problem) -> Plan:
    """The plan of a node whose package manager cannot do it: nothing is begun."""
    return replace(plan, steps=(), problems=(*plan.problems, *problems))


def cannot(why: str) -> Problem:
    """That no transaction resolves, in the package manager's own words."""
    return Problem(
        what=f"the node's package manager cannot install it: {why}",
        fix="make the packages available that it names (a repository that is missing or out of date, a hold, a pin; "
        "--check-repositories names the versions that there are), "
        "or choose another driver.branch, driver.modules or version",
    )


def not_resolved(plan: Plan, why: Sequence[str]) -> Plan:
    """The plan with what could not be asked in its first lines."""
    return replace(plan, warnings=(*(NOT_RESOLVED + text for text in why), *plan.warnings))
