"""What NVIDIA publishes, read from its servers or from a copy of them: lists of releases, indexes of repositories."""

from __future__ import annotations

import lzma
import urllib.request
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.knowledge import Knowledge
from gpunode.core.knowledge.kubernetes import Chart, KubeKnowledge
from gpunode.core.numbers import version_tuple
from gpunode.core.openpgp import fingerprints
from gpunode.edge.bundle import registry
from gpunode.edge.bundle.lookup import TIMEOUT, read_index
from gpunode.edge.bundle.store import Web
from gpunode.lab.packages_ubuntu import stanzas
from tools.published import (
    ChartRelease,
    Held,
    Redistributed,
    Release,
    ServedKey,
    held,
    newest_tag,
    parse_chart,
    parse_keys,
    parse_listing,
    parse_redistrib,
    parse_releases,
)

VENDOR = "vendor"
RELEASES = "https://docs.nvidia.com/datacenter/tesla/drivers/releases.json"
REDIST = "https://developer.download.nvidia.com/compute/{product}/redist/"
PRODUCTS = ("nvidia-driver", "cuda")
TOOLKIT_REPOSITORY = "nvidia-container-toolkit"
CUDA_REPOSITORY = "nvidia-cuda"
DEBIANS = {"12": "bookworm", "13": "trixie"}


@dataclass(frozen=True, kw_only=True)
class Published:
    """All that was read, and what could not be."""

    releases: Mapping[int, Release] = field(default_factory=dict)
    redistributed: tuple[Redistributed, ...] = ()
    held: Mapping[str, Mapping[str, Held]] = field(default_factory=dict)  # directory → architecture
    toolkits: tuple[Held, ...] = ()
    keys: Mapping[str, tuple[ServedKey, ...]] = field(default_factory=dict)  # by directory
    charts: Mapping[str, ChartRelease] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)  # component → newest tag of its image
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """NVIDIA's servers, or a copy of them by host name, as `wget --mirror` makes it: a folder, or its address."""

    base: str = VENDOR

    def address(self, url: str) -> str:
        """Where a vendor's URL is read."""
        if self.base == VENDOR:
            return url
        path = url.removeprefix("https://")
        if self.base.startswith(("http://", "https://")):
            return f"{self.base.rstrip('/')}/{path}"
        return f"{Path(self.base).resolve().as_uri()}/{path}"

    def listing(self, url: str, web: Web) -> str:
        """The page of a folder; of a folder of this machine without one, the names in it."""
        if self.base == VENDOR or self.base.startswith(("http://", "https://")):
            data = web.read(self.address(url))
            return data.decode("utf-8", "replace") if data else ""
        folder = Path(self.base) / url.removeprefix("https://")
        return "\n".join(path.name for path in folder.iterdir()) if folder.is_dir() else ""


def read_published(
    place: Place,
    knowledge: Knowledge,
    distros: Collection[str] = (),
    proxy: str = "",
    kube: KubeKnowledge | None = None,
) -> Published:
    """What the place has; a list that is not there is named in `unread`.  Raises InputError for one of another form.

    `distros` are those whose repositories are read, none: all that are known.  `kube`: charts, images to look for.
    """
    if place.base != VENDOR and "://" not in place.base and not Path(place.base).is_dir():
        raise InputError(f"{place.base} is no folder", expected="vendor, a URL or a folder", fix="look at --from")
    web = Web(proxy, tries=2, timeout=TIMEOUT)
    unread: list[str] = []
    releases = _releases(place, web, unread)
    redistributed = [one for product in PRODUCTS for one in _redistributed(place, web, product, knowledge, unread)]
    by_dir: dict[str, dict[str, Held]] = {}
    for row in knowledge.distros.values():
        if not row.dir or row.dir in by_dir or (distros and row.key not in distros):
            continue
        by_dir[row.dir] = {}
        for arch in row.archs:
            asked = _Index(repository=CUDA_REPOSITORY, arch=arch, family=row.family, dir=row.dir)
            if one := _held(place, knowledge, asked, unread, proxy):
                by_dir[row.dir][arch] = one
    toolkits = [
        one
        for family in ("debian", "rhel")
        for asked in (_Index(repository=TOOLKIT_REPOSITORY, arch="x86_64", family=family),)
        if (one := _held(place, knowledge, asked, unread, proxy))
    ]
    return Published(
        releases=releases,
        redistributed=tuple(redistributed),
        held=by_dir,
        toolkits=tuple(toolkits),
        keys={name: found for name in by_dir if (found := _keys(place, web, name, knowledge, unread))},
        charts=_charts(place, web, kube.charts.values(), unread) if kube else {},
        tags=_tags(place, web, kube, unread) if kube else {},
        unread=tuple(unread),
    )


def _releases(place: Place, web: Web, unread: list[str]) -> dict[int, Release]:
    data = _read(web, place.address(RELEASES), unread)
    return parse_releases(data.decode("utf-8", "replace")) if data else {}


def _redistributed(
    place: Place, web: Web, product: str, knowledge: Knowledge, unread: list[str]
) -> Iterator[Redistributed]:
    """The lists of a product that say something new: of CUDA all newer ones, of a driver's branch the newest."""
    url = REDIST.format(product=product)
    try:
        versions = parse_listing(place.listing(url, web))
    except GpunodeError as error:
        unread.append(error.what)
        return
    if not versions:
        unread.append(f"{place.address(url)} lists no redistrib file")
    if product == "cuda":
        last = max(map(version_tuple, knowledge.cuda), default=())
        wanted = [version for version in versions if version_tuple(version)[:2] >= last]
    else:
        wanted = list({version.partition(".")[0]: version for version in versions}.values())
    for version in wanted:
        if data := _read(web, place.address(f"{url}redistrib_{version}.json"), unread):
            yield parse_redistrib(data.decode("utf-8", "replace"))


def _keys(place: Place, web: Web, folder: str, knowledge: Knowledge, unread: list[str]) -> tuple[ServedKey, ...]:
    """The signing keys in a directory; one that has another fingerprint than the one known is named and left out."""
    url = knowledge.repositories[CUDA_REPOSITORY]["url"].format(dir=folder, arch="x86_64")
    known = {key.id.upper(): key.fingerprint for key in knowledge.keys.values() if not key.state}
    revoked = {key.id.upper() for key in knowledge.keys.values() if key.state}
    found = []
    try:
        ids = [one for one in parse_keys(place.listing(url, web)) if one.upper() not in revoked]
        for one in ids:
            data = web.read(place.address(f"{url}{one}.pub"))
            served = fingerprints(data)[0] if data else ""
            if served and known.get(one.upper(), served) in ("", served):
                found.append(ServedKey(id=one, fingerprint=served))
            elif served:
                unread.append(f"{url}{one}.pub has fingerprint {served}, and {known[one.upper()]} is known: not taken")
    except GpunodeError as error:
        unread.append(error.what)
    return tuple(found)


def _charts(place: Place, web: Web, charts: Iterable[Chart], unread: list[str]) -> dict[str, ChartRelease]:
    """The newest release of each chart: of a repository by its index, of a registry by its tags."""
    found = {}
    for chart in charts:
        if chart.repository.startswith("oci://"):
            url = place.address(f"{registry.address_of(chart.repository)}/{chart.name}")
            if tag := _newest(web, url, r"\d+\.\d+\.\d+", unread):
                found[chart.name] = ChartRelease(version=tag, app="")
            continue
        data = _read(web, place.address(f"{chart.repository}/index.yaml"), unread)
        if data and (release := parse_chart(data.decode("utf-8", "replace"), chart.name)):
            found[chart.name] = release
    return found


def _tags(place: Place, web: Web, kube: KubeKnowledge, unread: list[str]) -> dict[str, str]:
    """The newest tag of each image that follows no chart, as its registry lists them."""
    found = {}
    for component, pattern in kube.tags.items():
        name = kube.images[component].rpartition(":")[0]
        if tag := _newest(web, place.address(registry.address_of(name)), pattern, unread):
            found[component] = tag
    return found


def _newest(web: Web, repository: str, pattern: str, unread: list[str]) -> str:
    url = f"{repository}/tags/list"
    try:
        answer = registry.read_object(web, url)
    except GpunodeError as error:
        unread.append(error.what)
        return ""
    tags = (answer or {}).get("tags")
    if not isinstance(tags, list):
        unread.append(f"{url} lists no tags")
        return ""
    return newest_tag(tags, pattern)


def _read(web: Web, address: str, unread: list[str]) -> bytes | None:
    try:
        data = web.read(address)
    except GpunodeError as error:
        unread.append(error.what)
        return None
    if data is None:
        unread.append(f"{address} is not there")
    return data


@dataclass(frozen=True, kw_only=True)
class _Index:
    """One index of a repository: `dir` is the vendor's name of a distribution, `family` that of its package manager."""

    repository: str
    arch: str
    family: str
    dir: str = ""


def _held(place: Place, knowledge: Knowledge, asked: _Index, unread: list[str], proxy: str) -> Held | None:
    table = knowledge.repositories[asked.repository]
    deb = asked.family in ("ubuntu", "debian")
    rpm = not deb and "rpm_url" in table
    url, archs = (table["rpm_url"], table["rpm_arch"]) if rpm else (table["url"], table["arch"])
    address = place.address(url.format(dir=asked.dir, arch=archs[asked.arch]))
    try:
        index = read_index(Upstream(name=asked.repository, url=address), asked.arch, deb=deb, proxy=proxy)
    except GpunodeError as error:
        unread.append(error.what)
        return None
    return held(index.every, date=index.date)


def read_versions(archive: str, codename: str) -> dict[str, str]:
    """Of the packages in non-free of a release of Debian the version; of several the newest suite's."""
    found: dict[str, str] = {}
    for suite in (codename, f"{codename}-updates"):
        url = f"{archive}/dists/{suite}/non-free/binary-amd64/Packages.xz"
        with urllib.request.urlopen(url) as answer:  # noqa: S310 # the archive that the person names
            text = lzma.decompress(answer.read()).decode()
        found |= {stanza["Package"]: stanza["Version"] for stanza in stanzas(text)}
    return found
