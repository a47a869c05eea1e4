"""What a repository's own index says that it holds, and what of a plan is not among it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpunode.core.bundle.deb import Deb
from gpunode.core.bundle.manifest import matches_version
from gpunode.core.bundle.rpm import Modules, Rpm, left_out, parse_modules
from gpunode.core.grouped import grouped
from gpunode.core.late import dataclass, field
from gpunode.core.model import PackageWant, Problem
from gpunode.core.numbers import upstream
from gpunode.core.solve.deb_versions import version_key

NEAR = 3  # names or versions that a problem tells


@dataclass(frozen=True, kw_only=True)
class Index:
    """The packages of one repository for one architecture: name → versions, the newest first."""

    repository: str  # nvidia-cuda …
    url: str
    packages: Mapping[str, tuple[str, ...]]
    date: str = ""  # YYYY-MM-DD on which it was made
    streams: tuple[str, ...] = ()  # of dnf modules, NAME:STREAM
    of_streams: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)  # stream → packages with it

    @property
    def every(self) -> Mapping[str, tuple[str, ...]]:
        """All packages, those of every stream among them."""
        sets = [self.packages, *self.of_streams.values()]
        return _versions((name, v) for packages in sets for name, versions in packages.items() for v in versions)

    def with_stream(self, stream: str) -> Mapping[str, tuple[str, ...]]:
        """The packages that dnf sees when the stream is enabled."""
        return self.of_streams.get(stream, self.packages)


def deb_index(debs: Iterable[Deb], *, repository: str, url: str, arch: str, date: str = "") -> Index:
    """The index of an apt repository for one of Debian's architectures."""
    found = ((deb.name, deb.version) for deb in debs if re.search(rf"^Architecture: (all|{arch})$", deb.stanza, re.M))
    return Index(repository=repository, url=url, packages=_versions(found), date=date)


def rpm_index(rpms: Sequence[Rpm], modules: str, *, repository: str, url: str, arch: str, date: str = "") -> Index:
    """The index of an rpm repository for one architecture, with and without the streams of its modules."""
    mine = [rpm for rpm in rpms if rpm.arch in ("noarch", arch)]
    known = parse_modules(modules, f"{url}: modules.yaml")
    streams = known.streams
    return Index(
        repository=repository,
        url=url,
        packages=_seen(mine, known, ()),
        date=date,
        streams=streams,
        of_streams={stream: _seen(mine, known, (stream,)) for stream in streams},
    )


def _seen(rpms: Sequence[Rpm], modules: Modules, streams: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    hidden = left_out(modules, streams, rpms)
    return _versions((rpm.name, rpm.version) for rpm in rpms if rpm.full_name not in hidden)


def _versions(found: Iterable[tuple[str, str]]) -> Mapping[str, tuple[str, ...]]:
    names = grouped(found)
    return {name: tuple(sorted(set(versions), key=version_key, reverse=True)) for name, versions in names.items()}


# ---------------------------------------------------------------- a plan's packages


def lacking(wants: Sequence[PackageWant], index: Index, stream: str = "") -> Iterator[Problem]:
    """A problem for each package that the repository does not hold as it is asked for, with the nearest it holds."""
    if stream and index.streams and stream not in index.streams:
        near = _near(stream, index.streams)
        yield Problem(
            what=f"{index.repository} ({index.url}) has no module stream {stream}",
            fix=f"nearest there: {', '.join(near)}; {_otherwise(index)}" if near else _otherwise(index),
        )
        return
    packages = index.with_stream(stream)
    for want in wants:
        versions = packages.get(want.name, ())
        if any(matches_version(version, want.version or "*") for version in versions):
            continue
        asked = f"{want.name} {want.version}".strip()
        near = [f"{want.name} {v}" for v in nearest_versions(want.version, versions)] or _near(want.name, packages)
        yield Problem(
            what=f"{index.repository} ({index.url}) has no {asked}",
            fix=f"nearest there: {', '.join(near)}; {_otherwise(index)}" if near else _otherwise(index),
        )


def newest_as_asked(wants: Sequence[PackageWant], index: Index, stream: str = "") -> str:
    """The newest version, without the packager's part, that those of the packages with a version asked for have."""
    packages = index.with_stream(stream)
    held = (
        v for want in wants if want.version for v in packages.get(want.name, ()) if matches_version(v, want.version)
    )
    return max(map(upstream, held), key=version_key, default="")


def newest_of_all(names: Sequence[str], index: Index) -> str:
    """The newest version, without the packager's part, that the repository has of every one of these packages."""
    held = [{upstream(v) for v in index.packages.get(name, ())} for name in names]
    common = set.intersection(*held) if held else set()
    return max(common, key=version_key, default="")


def _otherwise(index: Index) -> str:
    return f"choose what is there in gpunode.yml, or name a mirror that has it in sources.{index.repository}"


def _near(name: str, names: Iterable[str]) -> list[str]:
    """Names alike, those that differ in numbers alone before others."""
    plain = re.sub(r"\d+", "0", name)
    relatives = [other for other in names if re.sub(r"\d+", "0", other) == plain]
    if relatives:
        numbers = [int(n) for n in re.findall(r"\d+", name)]
        return sorted(relatives, key=lambda k: _distance(numbers, [int(n) for n in re.findall(r"\d+", k)]))[:NEAR]
    return difflib.get_close_matches(name, names, n=NEAR, cutoff=0.7)


def _distance(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(abs(a - b) for a, b in zip(one, other, strict=True))


def nearest_versions(pattern: str, versions: Sequence[str]) -> list[str]:
    """Of versions, the newest first, those on both sides of one that is not among them.

    >>> nearest_versions("580.*", ["595.58.03-1", "590.48.01-1", "575.64.05-1", "570.211.01-1"])
    ['590.48.01-1', '575.64.05-1']
    """
    wanted = version_key(pattern.rstrip("*").rstrip(".-"))
    above = [version for version in versions if version_key(version) > wanted]
    below = [version for version in versions if version_key(version) <= wanted]
    return [*above[-1:], *below[:1]]
