"""What a set of Debian packages needs, as groups of alternatives for a solver that knows only names and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.core.bundle.deb import Deb, DebUniverse
from gpunode.core.late import dataclass
from gpunode.core.model import PackageWant
from gpunode.core.solve.deb_versions import Relation, version_key


@dataclass(frozen=True, kw_only=True)
class DependencyProblem:
    """Packages by number; for each its name, its rank among the versions of that name, what it needs and excludes.

    `needs[n]` are groups, one of each must be there; `excludes[n]` may not be beside n; `asked` are groups as well.
    `missing` says in words what no package can give.
    """

    packages: tuple[Deb, ...]
    ranks: tuple[int, ...]
    needs: tuple[tuple[tuple[int, ...], ...], ...]
    excludes: tuple[tuple[int, ...], ...]
    asked: tuple[tuple[int, ...], ...]
    missing: tuple[str, ...]


def dependency_problem(
    universe: DebUniverse, wants: Sequence[PackageWant], *, base: frozenset[str], first: bool = True
) -> DependencyProblem:
    """All that can be reached from the wants.

    `first`: of alternatives only what apt would take first; else all of them.
    What is in `base`, names of packages that every node has, or provided by it, is never needed.
    """
    there = base | {one.name for name in base for deb in universe.names.get(name, ()) for one in deb.provides}
    groups: dict[Deb, list[list[Deb]]] = {}
    asked: list[list[Deb]] = []
    missing = []
    for want in wants:
        options = universe.wanted(want)
        if not options and want.name not in there:
            missing.append(f"{want.name} {want.version}".strip())
        elif want.name not in there:
            asked.append(options)
    queue = [deb for options in asked for deb in options]
    while queue:
        deb = queue.pop()
        if deb not in groups:
            groups[deb] = [_options(universe, group, there, first=first) for group in deb.requires]
            queue += [option for options in groups[deb] for option in options]
    return _numbered(universe, groups, asked, missing, there)


def _options(universe: DebUniverse, group: Sequence[Relation], there: frozenset[str], *, first: bool) -> list[Deb]:
    """The packages that meet one dependency; none where the base does."""
    if any(one.name in there for one in group):
        return []
    taken = [universe.candidates(one) for one in group]
    taken = [options for options in taken if options]
    return [deb for options in (taken[:1] if first else taken) for deb in options]


def _numbered(
    universe: DebUniverse,
    groups: dict[Deb, list[list[Deb]]],
    asked: list[list[Deb]],
    missing: list[str],
    there: frozenset[str],
) -> DependencyProblem:
    debs = tuple(sorted(groups, key=lambda deb: (deb.name, version_key(deb.version), deb.repository)))
    number = {deb: at for at, deb in enumerate(debs)}
    impossible = (len(debs),)  # a number that no package has: what cannot be met excludes its package
    needs = []
    for deb in debs:
        mine = []
        for group, options in zip(deb.requires, groups[deb], strict=True):
            if options:
                mine.append(tuple(dict.fromkeys(number[option] for option in options)))
            elif not any(one.name in there for one in group):
                mine.append(impossible)
        needs.append(tuple(mine))
    excludes = tuple(
        tuple(
            dict.fromkeys(
                number[other]
                for one in deb.conflicts
                for other in universe.candidates(one)
                if other in number and other.name != deb.name
            )
        )
        for deb in debs
    )
    ranks, last = [], ("", "", -1)
    for deb in debs:
        rank = 0 if deb.name != last[0] else last[2] + (deb.version != last[1])
        ranks.append(rank)
        last = (deb.name, deb.version, rank)
    return DependencyProblem(
        packages=debs,
        ranks=tuple(ranks),
        needs=tuple(needs),
        excludes=excludes,
        asked=tuple(tuple(number[deb] for deb in options) for options in asked),
        missing=tuple(missing),
    )
