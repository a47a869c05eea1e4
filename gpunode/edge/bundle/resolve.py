"""The exact closure of a dependency_problem, by libsolv, the solver of zypper and dnf."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gpunode.core.bundle.closure import DependencyProblem
from gpunode.core.bundle.deb import Deb
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.edge.extras import install_command


def libsolv() -> Any:
    """The module solv; raises GpunodeError that says how to get it."""
    try:
        import solv
    except ImportError as error:
        raise GpunodeError(
            "making a bundle needs libsolv, which is not there", fix=install_command("bundle")
        ) from error
    return solv


def chosen(problem: DependencyProblem) -> tuple[Deb, ...]:
    """The packages that together are what was asked.  Raises RefusedError that says what stands against it."""
    solv = libsolv()
    pool = solv.Pool()
    pool.setarch("noarch")
    repository = pool.add_repo("all")
    solvables = []
    for deb, rank in zip(problem.packages, problem.ranks, strict=True):
        one = repository.add_solvable()
        one.name, one.evr, one.arch = deb.name, str(rank), "noarch"
        solvables.append(one)
    tokens: dict[tuple[int, ...], Any] = {}

    def token(group: tuple[int, ...]) -> Any:
        """A name that exactly the packages of the group provide."""
        if group not in tokens:
            tokens[group] = pool.Dep(f"any-of-{len(tokens)}")
            for number in group:
                if number < len(solvables):
                    solvables[number].add_provides(tokens[group])
        return tokens[group]

    for one, needs, excludes in zip(solvables, problem.needs, problem.excludes, strict=True):
        for group in needs:
            one.add_requires(token(group))
        if excludes:
            one.add_conflicts(token(excludes))
    jobs = [
        pool.Job(solv.Job.SOLVER_INSTALL | solv.Job.SOLVER_SOLVABLE_PROVIDES, token(group).id)
        for group in problem.asked
    ]
    pool.createwhatprovides()
    solver = pool.Solver()
    problems = solver.solve(jobs)
    if problems:
        raise RefusedError(_words(problems, problem, tokens))
    by_id = {one.id: deb for one, deb in zip(solvables, problem.packages, strict=True)}
    return tuple(by_id[one.id] for one in solver.transaction().newsolvables())


def _words(problems: Any, problem: DependencyProblem, groups: Iterable[tuple[int, ...]]) -> str:
    """The first rules that contradict each other, with the names of packages in place of tokens."""
    listed = list(groups)

    def names(found: re.Match[str]) -> str:
        known = {problem.packages[n].name for n in listed[int(found[1])] if n < len(problem.packages)}
        return " or ".join(sorted(known)[:4]) or "something that no repository has"

    stated = re.sub(r"any-of-(\d+)", names, "; ".join(str(one) for one in problems[:3]))
    return f"these packages cannot be installed together: {stated}"
