"""Which packages of a target's repositories are asked for, with all they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpunode.core.bundle.closure import puzzle
from gpunode.core.bundle.deb import Deb, Universe
from gpunode.core.bundle.rpm import Rpm
from gpunode.core.bundle.target import MANAGERS, Target, Wants
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import RefusedError
from gpunode.edge.bundle.apt import ARCHS, read_apt
from gpunode.edge.bundle.resolve import chosen
from gpunode.edge.bundle.rpm import read_rpm, rpm_closure
from gpunode.edge.bundle.store import Web


@dataclass(frozen=True, kw_only=True)
class Source:
    """A repository with the keys that may sign it."""

    upstream: Upstream
    keys: tuple[bytes, ...]


Chosen = tuple[tuple[Deb | Rpm, ...], Mapping[str, str]]


def choose(
    target: Target,
    family: str,
    wants: Sequence[Wants],
    sources: Sequence[Source],
    web: Web,
    *,
    base: frozenset[str],
    expired: bool,
) -> Chosen:
    """The packages of all the wants together, and by repository the texts of dnf's modules.  Raises GpunodeError."""
    some = _debs if MANAGERS[family] == "apt" else _rpms
    try:
        packages, modules = some(target, wants, sources, web, base=base, expired=expired)
    except RefusedError as error:
        raise RefusedError(f"{target}: {error.what}", expected=error.expected, fix=error.fix) from error
    return tuple({package.sha256: package for package in packages}.values()), modules


def _debs(
    target: Target, wants: Sequence[Wants], sources: Sequence[Source], web: Web, *, base: frozenset[str], expired: bool
) -> Chosen:
    lists = [
        deb for source in sources for deb in read_apt(source.upstream, target.arch, source.keys, web, expired=expired)
    ]
    return tuple(deb for want in wants for deb in _deb_closure(target, want, lists, base)), {}


def _deb_closure(target: Target, want: Wants, lists: Sequence[Deb], base: frozenset[str]) -> tuple[Deb, ...]:
    """The packages for one kind of machine; where the first alternatives exclude each other, by the others."""
    universe = Universe(lists, arch=ARCHS[target.arch], patterns=want.patterns)
    first = puzzle(universe, want.packages, base=base)
    if first.missing:
        raise RefusedError(
            f"no repository has {', '.join(first.missing)}",
            fix="compare names and versions in gpunode.yml with the repositories (gpunode solve tells them)",
        )
    try:
        return chosen(first)
    except RefusedError:
        return chosen(puzzle(universe, want.packages, base=base, first=False))


def _rpms(
    target: Target, wants: Sequence[Wants], sources: Sequence[Source], web: Web, *, base: frozenset[str], expired: bool
) -> Chosen:
    lists = [read_rpm(source.upstream, source.keys, web) for source in sources]
    packages = tuple(rpm for want in wants for rpm in rpm_closure(lists, want, target.arch, base))
    modules: dict[str, str] = {}
    for one in lists:
        modules[one.upstream.name] = modules.get(one.upstream.name, "") + one.modules
    return packages, modules
