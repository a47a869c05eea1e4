"""What a set of packages needs, as groups of alternatives for a solver: any kind of package, only names and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.core.bundle.deb import Deb, Relation, Universe, version_key
from gpunode.core.model import PackageWant

Base = frozenset[str]  # names of packages that every node has


@dataclass(frozen=True, kw_only=True)
class Puzzle:
    """Packages by number; for each its name, its rank among the versions of that name, what it needs and excludes.

    `needs[n]` are groups, one of each must be there; `excludes[n]` may not be beside n; `asked` are groups as well.
    `missing` says in words what no package can give.
    """

    debs: tuple[Deb, ...]
    ranks: tuple[int, ...]
    needs: tuple[tuple[tuple[int, ...], ...], ...]
    excludes: tuple[tuple[int, ...], ...]
    asked: tuple[tuple[int, ...], ...]
    missing: tuple[str, ...]


def puzzle(universe: Universe, wants: Sequence[PackageWant], *, base: Base, first: bool = True) -> Puzzle:
    """All that can be reached from the wants.

    `first`: of alternatives only the first that exists, as apt itself chooses; else all of them.
    What is in `base`, or provided by it, is never needed.
    """
    there = base | {one.name for name in base for deb in universe.names.get(name, ()) for one in deb.provides}
    found: dict[int, Deb] = {}
    groups: dict[int, list[list[Deb]]] = {}
    asked, missing = [], []
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


def _options(universe: Universe, group: Sequence[Relation], there: frozenset[str], *, first: bool) -> list[Deb]:
    """The packages that meet one dependency; none where the base does."""
    if any(one.name in there for one in group):
        return []
    taken = [universe.candidates(one) for one in group]
    taken = [options for options in taken if options]
    if first:
        taken = taken[:1]
    return [deb for options in taken for deb in options]


def _numbered(
    universe: Universe,
    found: dict[int, Deb],
    groups: dict[int, list[list[Deb]]],
    asked: list[list[Deb]],
    missing: list[str],
    there: frozenset[str],
) -> Puzzle:
    debs = tuple(sorted(found.values(), key=lambda deb: (deb.name, version_key(deb.version), deb.repository)))
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
    return Puzzle(
        debs=debs,
        ranks=tuple(ranks),
        needs=tuple(needs),
        excludes=excludes,
        asked=tuple(tuple(number[id(deb)] for deb in options) for options in asked),
        missing=tuple(missing),
    )
