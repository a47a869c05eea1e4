"""What a set of packages needs, as groups of alternatives for a solver: any kind of package, only names and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from gpunode.core.late import dataclass
from gpunode.core.model import PackageWant
from gpunode.core.solve.deb_versions import Relation


class BundlePackage(Protocol):
    """What a package manager's entry has to say."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def repository(self) -> str: ...
    @property
    def requires(self) -> Sequence[Sequence[Relation]]: ...
    @property
    def conflicts(self) -> Sequence[Relation]: ...
    @property
    def provides(self) -> Sequence[Relation]: ...


P = TypeVar("P", bound=BundlePackage)


class PackageUniverse(Protocol[P]):
    """All packages of some repositories, and how their package manager looks for them."""

    @property
    def names(self) -> Mapping[str, Sequence[P]]: ...
    def candidates(self, relation: Relation) -> list[P]: ...
    def likely(self, candidates: list[P]) -> list[P]: ...
    def wanted(self, want: PackageWant) -> list[P]: ...
    def key(self, version: str) -> Any: ...


Base = frozenset[str]  # names of packages that every node has


@dataclass(frozen=True, kw_only=True)
class DependencyProblem(Generic[P]):
    """Packages by number; for each its name, its rank among the versions of that name, what it needs and excludes.

    `needs[n]` are groups, one of each must be there; `excludes[n]` may not be beside n; `asked` are groups as well.
    `missing` says in words what no package can give.
    """

    packages: tuple[P, ...]
    ranks: tuple[int, ...]
    needs: tuple[tuple[tuple[int, ...], ...], ...]
    excludes: tuple[tuple[int, ...], ...]
    asked: tuple[tuple[int, ...], ...]
    missing: tuple[str, ...]


def dependency_problem(
    universe: PackageUniverse[P], wants: Sequence[PackageWant], *, base: Base, first: bool = True
) -> DependencyProblem[P]:
    """All that can be reached from the wants.

    `first`: of alternatives only what the package manager itself would take first; else all of them.
    What is in `base`, or provided by it, is never needed.
    """
    there = base | {one.name for name in base for deb in universe.names.get(name, ()) for one in deb.provides}
    found: dict[int, P] = {}
    groups: dict[int, list[list[P]]] = {}
    asked: list[list[P]] = []
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
        if id(deb) in found:
            continue
        found[id(deb)] = deb
        groups[id(deb)] = [_options(universe, group, there, first=first) for group in deb.requires]
        queue += [option for options in groups[id(deb)] for option in options]
    return _numbered(universe, found, groups, asked, missing, there)


def _options(universe: PackageUniverse[P], group: Sequence[Relation], there: frozenset[str], *, first: bool) -> list[P]:
    """The packages that meet one dependency; none where the base does."""
    if any(one.name in there for one in group):
        return []
    taken = [universe.candidates(one) for one in group]
    taken = [options for options in taken if options]
    if first:
        taken = [universe.likely(options) for options in taken[:1]]
    return [deb for options in taken for deb in options]


def _numbered(
    universe: PackageUniverse[P],
    found: dict[int, P],
    groups: dict[int, list[list[P]]],
    asked: list[list[P]],
    missing: list[str],
    there: frozenset[str],
) -> DependencyProblem[P]:
    debs = tuple(sorted(found.values(), key=lambda deb: (deb.name, universe.key(deb.version), deb.repository)))
    number = {id(deb): at for at, deb in enumerate(debs)}
    impossible = (len(debs),)  # a number that no package has: what cannot be met excludes its package
    needs = []
    for deb in debs:
        mine = []
        for group, options in zip(deb.requires, groups[id(deb)], strict=True):
            if options:
                mine.append(tuple(dict.fromkeys(number[id(option)] for option in options)))
            elif not any(one.name in there for one in group):
                mine.append(impossible)
        needs.append(tuple(mine))
    excludes = tuple(
        tuple(
            dict.fromkeys(
                number[id(other)]
                for one in deb.conflicts
                for other in universe.candidates(one)
                if id(other) in number and other.name != deb.name
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
        asked=tuple(tuple(number[id(deb)] for deb in options) for options in asked),
        missing=tuple(missing),
    )
