"""Which packages of a target's repositories are asked for, with all they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpunode.core.bundle.closure import dependency_problem
from gpunode.core.bundle.deb import Deb, DebUniverse
from gpunode.core.bundle.rpm import Rpm
from gpunode.core.bundle.target import MANAGERS, BundleTarget, Wants
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import RefusedError
from gpunode.core.late import dataclass
from gpunode.core.model.node import DEB_ARCHS
from gpunode.edge.bundle.apt import read_apt
from gpunode.edge.bundle.resolve import chosen
from gpunode.edge.bundle.rpm import read_rpm, rpm_closure
from gpunode.edge.bundle.store import Web


@dataclass(frozen=True, kw_only=True)
class Source:
    """A repository with the keys that may sign it."""

    upstream: Upstream
    keys: tuple[bytes, ...]


Package = Deb | Rpm


def choose(
    target: BundleTarget,
    family: str,
    wants: Sequence[Wants],
    sources: Sequence[Source],
    web: Web,
    *,
    base: frozenset[str],
    expired: bool,
) -> tuple[tuple[Package, ...], Mapping[str, str]]:
    """The packages of all the wants together, and by repository the texts of dnf's modules.  Raises GpunodeError."""
    modules: dict[str, str] = {}
    packages: list[Package]
    try:
        if MANAGERS[family] == "apt":
            debs = [d for s in sources for d in read_apt(s.upstream, target.arch, s.keys, web, expired=expired)]
            known = ((DebUniverse(debs, arch=DEB_ARCHS[target.arch], patterns=want.patterns), want) for want in wants)
            packages = [deb for universe, want in known for deb in _closure(universe, want, base)]
        else:
            lists = [read_rpm(source.upstream, source.keys, web) for source in sources]
            packages = [rpm for want in wants for rpm in rpm_closure(lists, want, target.arch, base)]
            for one in lists:
                modules[one.upstream.name] = modules.get(one.upstream.name, "") + one.modules
    except RefusedError as error:
        raise RefusedError(f"{target}: {error.what}", expected=error.expected, fix=error.fix) from error
    return tuple({package.sha256: package for package in packages}.values()), modules


def _closure(universe: DebUniverse, want: Wants, base: frozenset[str]) -> tuple[Deb, ...]:
    """The packages for one kind of machine; where the first alternatives exclude each other, by the others."""
    first = dependency_problem(universe, want.packages, base=base)
    if first.missing:
        raise RefusedError(
            f"no repository has {', '.join(first.missing)}",
            fix="compare names and versions in gpunode.yml with the repositories (gpunode solve shows them)",
        )
    try:
        return chosen(first)
    except RefusedError:
        return chosen(dependency_problem(universe, want.packages, base=base, first=False))
