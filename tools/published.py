"""What NVIDIA publishes about its drivers, CUDA and repositories, and the knowledge's tables brought up to it.

Comments and marks that only people know (ends of support, generations, package names, which GPUs a branch serves) stay;
a row that is touched gets the day of its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tomlkit
from tomlkit.items import AoT, Table

from gpunode.core.errors import InputError
from gpunode.core.numbers import version_tuple
from gpunode.core.untrusted import load_json, load_yaml

KINDS = {"lts branch": "LTSB", "production branch": "PB", "new feature branch": "NFB"}
SOURCES = {
    "releases_json": "https://docs.nvidia.com/datacenter/tesla/drivers/releases.json",
    "redistributed": "https://developer.download.nvidia.com/compute/nvidia-driver/redist/ and .../cuda/redist/",
    "repository": "the repositories' own indexes, read by tools/refresh.py",
    "served": "the vendor's server, read by tools/refresh.py and compared with nothing else",
    "index": "index.yaml of the charts' repositories and tags in registries, read by tools/refresh.py",
}
_DRIVER = re.compile(r"(nvidia-open|cuda-drivers|nvidia-driver|kmod-nvidia-(open|latest)-dkms)(-\d{3})?\Z")
_TOOLKIT = re.compile(r"cuda-toolkit-(\d+)-(\d+)\Z")


@dataclass(frozen=True, kw_only=True)
class Release:
    """A driver branch as releases.json has it."""

    branch: int
    kind: str
    latest: str
    date: str  # YYYY-MM-DD of the newest release, "" where none is dated


@dataclass(frozen=True, kw_only=True)
class Redistributed:
    """A redistrib_VERSION.json: of a driver its version, of a CUDA release also the driver that came with it."""

    product: str  # "cuda" or "nvidia-driver"
    version: str
    driver: str
    date: str


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one repository holds for one architecture."""

    branches: Mapping[int, str] = field(default_factory=dict)  # driver branch → newest version there
    cuda: tuple[str, ...] = ()  # MAJOR.MINOR, oldest first
    toolkit: str = ""  # newest version of the container toolkit
    dcgm: str = ""  # newest version of DCGM 4
    date: str = ""  # YYYY-MM-DD of the index


@dataclass(frozen=True, kw_only=True)
class ServedKey:
    """A signing key as a repository's server has it; compared with nothing else."""

    id: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class ChartRelease:
    """The newest stable version of a helm chart, and the version of the program that it installs."""

    version: str
    app: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """A value that a refresh changes."""

    row: str  # branch 595, fedora:43 …
    key: str
    old: str
    new: str


def parse_releases(text: str) -> dict[int, Release]:
    """releases.json by branch.  Raises InputError for what has another form."""
    found = {}
    try:
        for name, row in load_json(text, "releases.json").items():
            versions = [one for one in row["driver_info"] if str(one["release_version"]).startswith(f"{name}.")]
            newest = max(versions, key=lambda one: version_tuple(one["release_version"]), default=None)
            if newest and row["type"] in KINDS and name.isdigit():
                day = _day(str(newest.get("release_date", "")))
                latest = str(newest["release_version"])
                found[int(name)] = Release(branch=int(name), kind=KINDS[row["type"]], latest=latest, date=day)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"releases.json is not what NVIDIA publishes: {error!r}",
            expected='{"580": {"type": "lts branch", "driver_info": [{"release_version": …}]}}',
        ) from error
    return found


def parse_redistrib(text: str) -> Redistributed:
    """A redistrib_VERSION.json (from CUDA 11.4.2 and driver 450 on).  Raises InputError."""
    try:
        data = load_json(text, "a redistrib file")
        driver = data.get("nvidia_driver", {}).get("version", "")
        version = data.get("release_label") or driver
        product = data.get("release_product", "cuda")
        if not re.fullmatch(r"\d+(\.\d+)+", version) or not re.fullmatch(r"(\d+(\.\d+)+)?", driver):
            raise ValueError(f"version {version!r}, driver {driver!r}")
        return Redistributed(product=product, version=version, driver=driver, date=_day(data.get("release_date", "")))
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"a redistrib file is not what NVIDIA publishes: {error}", expected="release_label, nvidia_driver.version"
        ) from error


def parse_listing(text: str) -> tuple[str, ...]:
    """The versions of redistrib_VERSION.json that a folder's page, or the names of its files, list; oldest first."""
    found = set(re.findall(r"redistrib_(\d+(?:\.\d+)+)\.json", text))
    return tuple(sorted(found, key=version_tuple))


def held(packages: Mapping[str, Sequence[str]], *, date: str = "") -> Held:
    """Driver branches, CUDA releases and the toolkit among the packages of a repository: name → versions."""
    branches: dict[int, str] = {}
    for name, versions in packages.items():
        for version in map(upstream, versions) if _DRIVER.match(name) else ():
            branch = version_tuple(version)[:1]
            if branch and version_tuple(version) > version_tuple(branches.get(branch[0], "")):
                branches[branch[0]] = version
    cuda = {f"{m[1]}.{m[2]}" for name in packages if (m := _TOOLKIT.match(name))}
    toolkit = max(map(upstream, packages.get("nvidia-container-toolkit", ())), key=version_tuple, default="")
    dcgm = max(map(upstream, packages.get("datacenter-gpu-manager-4-core", ())), key=version_tuple, default="")
    ordered = tuple(sorted(cuda, key=version_tuple))
    return Held(branches=dict(sorted(branches.items())), cuda=ordered, toolkit=toolkit, dcgm=dcgm, date=date)


def parse_chart(text: str, name: str) -> ChartRelease | None:
    """The newest stable release of a chart in the index.yaml of its repository.  Raises InputError."""
    rows: Any
    try:
        rows = load_yaml(text, "index.yaml")["entries"].get(name, [])
        stable = [row for row in rows if re.fullmatch(r"v?\d+(\.\d+)+", str(row["version"]))]
        newest = max(stable, key=lambda row: version_tuple(str(row["version"])), default=None)
        return ChartRelease(version=str(newest["version"]), app=str(newest.get("appVersion", ""))) if newest else None
    except (InputError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"the index of the charts' repository is none: {str(error)[:200]}",
            expected="entries: {NAME: [{version: …}]}",
        ) from error


def newest_tag(tags: Iterable[object], pattern: str) -> str:
    """The tag with the highest numbers of those that the pattern matches whole; "" where none does.

    >>> newest_tag(["4.6.1-4.8.4-distroless", "4.10.0-4.9.0-distroless", "4.11.0-ubi9"], r"[\\d.-]+distroless")
    '4.10.0-4.9.0-distroless'
    """
    fit = [tag for tag in tags if isinstance(tag, str) and re.fullmatch(pattern, tag)]
    return max(fit, key=_numbers, default="")


def _numbers(tag: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", tag)]


def parse_keys(text: str) -> tuple[str, ...]:
    """The ids of the keys that a repository's page, or the names of its files, list.

    >>> parse_keys("D42D0685.pub 7fa2af80.pub repodata/")
    ('7fa2af80', 'D42D0685')
    """
    return tuple(sorted(set(re.findall(r"\b([0-9A-Fa-f]{8})\.pub\b", text))))


def upstream(version: str) -> str:
    """3:580.95.05-1.el9 → 580.95.05: without the packager's epoch and release."""
    return version.rpartition(":")[2].partition("-")[0]


def _day(text: str) -> str:
    return text if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else ""


# ---------------------------------------------------------------- the tables


def update_drivers(
    text: str, releases: Mapping[int, Release], drivers: Iterable[Redistributed], found: Iterable[Held], *, today: str
) -> tuple[str, list[Change]]:
    """drivers.toml with the branches and newest versions that are published; nothing becomes older."""
    document = tomlkit.parse(text)
    rows: AoT = document["branches"]
    known = {int(row["branch"]): row for row in rows}
    newest, dates = _newest(releases, drivers, found)
    changes = []
    for branch, version in sorted(newest.items()):
        release = releases.get(branch)
        if branch not in known:
            if branch < max(known):
                continue  # an old one that nobody set up by hand: what it served is not known
            known[branch] = _new_branch(rows, branch, release)
            changes.append(Change(row=f"branch {branch}", key="branch", old="", new=str(branch)))
        row = known[branch]
        fresh = {"latest": version} if version_tuple(version) > version_tuple(str(row["latest"])) else {}
        if release and release.kind != row["kind"]:
            fresh["kind"] = release.kind
        for key, value in fresh.items():
            changes.append(Change(row=f"branch {branch}", key=key, old=str(row[key]), new=value))
            row[key] = value
        if fresh:
            source = "releases_json" if release and release.latest == version else "redistributed"
            _dated(row, source, dates.get(branch, ""), today)
    if changes:
        _add_sources(document, ("releases_json", "redistributed"))
    return tomlkit.dumps(document), changes


def _newest(
    releases: Mapping[int, Release], drivers: Iterable[Redistributed], found: Iterable[Held]
) -> tuple[dict[int, str], dict[int, str]]:
    """Branch → the newest version that any of these names, and the day of that source."""
    newest: dict[int, str] = {}
    dates: dict[int, str] = {}
    named = [(r.latest, r.date) for r in releases.values()]
    named += [(one.driver, one.date) for one in drivers if one.driver]
    named += [(version, one.date) for one in found for version in one.branches.values()]
    for version, day in named:
        branch = version_tuple(version)[0]
        if version_tuple(version) > version_tuple(newest.get(branch, "")):
            newest[branch], dates[branch] = version, day
    return newest, dates


def _new_branch(rows: AoT, branch: int, release: Release | None) -> Table:
    """A row for a branch that is newer than all that are known: it serves what the newest of them serves."""
    last = max(rows, key=lambda row: int(row["branch"]))
    row = tomlkit.table()
    row["branch"] = branch
    row["kind"] = release.kind if release else "unknown"
    row["latest"] = ""
    row["eol"] = ""
    for key in ("min_arch", "max_arch", "cuda_major", "open"):
        row[key] = last[key]
    row["confidence"] = "low"
    row["source"] = ""
    row["checked"] = ""
    _append(rows, row)
    return row


def _append(rows: AoT, row: Table) -> None:
    """A row at the end, with an empty line before it."""
    rows[-1].add(tomlkit.nl())
    rows.append(row)


def update_cuda(text: str, found: Iterable[Redistributed], *, today: str) -> tuple[str, list[Change]]:
    """cuda.toml with the releases that are published and newer than all that are known."""
    document = tomlkit.parse(text)
    rows: AoT = document["toolkits"]
    known = {str(row["version"]) for row in rows}
    newest = max((version_tuple(version) for version in known), default=())
    changes = []
    for one in sorted(found, key=lambda one: version_tuple(one.version)):
        if one.product != "cuda" or one.version in known or version_tuple(one.version) < newest:
            continue
        major = one.version.partition(".")[0]
        relatives = [row for row in rows if str(row["version"]).partition(".")[0] == major and row["compat"]]
        row = tomlkit.table()
        row["version"] = one.version
        row["native"] = one.driver
        row["compat"] = str(relatives[-1]["compat"]) if relatives else one.driver
        row["confidence"] = "medium" if relatives else "low"
        row["source"] = "redistributed"
        row["source_date"] = one.date or today
        _append(rows, row)
        changes.append(Change(row=f"CUDA {one.version}", key="native", old="", new=one.driver))
    if changes:
        _add_sources(document, ("redistributed",))
    return tomlkit.dumps(document), changes


def update_repos(
    text: str,
    found: Mapping[str, Mapping[str, Held]],
    toolkits: Iterable[Held],
    *,
    today: str,
    keys: Mapping[str, Sequence[ServedKey]] | None = None,
) -> tuple[str, list[Change]]:
    """repos.toml with what the repositories hold: directory → architecture → Held, and directory → keys.

    Branches are a set; the range of CUDA has no upper end where the repository has the newest of all that were read.
    """
    document = tomlkit.parse(text)
    every = [one for by_arch in found.values() for one in by_arch.values()]
    last_cuda = max((one.cuda[-1] for one in every if one.cuda), key=version_tuple, default="")
    changes: list[Change] = []
    for row in document["distros"]:
        by_arch = found.get(str(row["dir"]), {})
        spans = {arch: _spans(one, last_cuda) for arch, one in by_arch.items()}
        main, *others = row["archs"]
        if main not in spans:
            continue
        changed = _set(row, spans[main], str(row["keys"][0]), changes)
        separate = {arch: spans[arch] for arch in others if arch in spans and spans[arch] != spans[main]}
        if others and all(arch in spans for arch in others):
            changed |= _set_by_arch(row, separate, changes)
        if changed:
            _dated(row, "repository", min((one.date for one in by_arch.values() if one.date), default=""), today)
    _set_newest(document, "container-toolkit", {one.toolkit: one.date for one in toolkits}, changes, today)
    _set_newest(document, "dcgm", {one.dcgm: one.date for one in every}, changes, today)
    if keys and _set_keys(document, keys, changes, today):
        _add_sources(document, ("served",))
    if changes:
        _add_sources(document, ("repository",))
    return tomlkit.dumps(document), changes


def update_own(text: str, indexes: Mapping[str, Mapping[str, Mapping[str, str]]]) -> str:
    """repos.toml with the branches that Ubuntu has built modules of, and the kernels: distribution → name → stanza.

    Branches are those of the release's first line of kernels, which is kept to its end; a flavour counts where the
    modules of its newest kernel take the driver that the archive has.
    """
    document = tomlkit.parse(text)
    for row in document["distros"]:
        index = indexes.get(str(row["keys"][0]), {})
        newest: dict[tuple[str, str], str] = {}
        for name in index:
            if match := re.fullmatch(r"linux-image-(?:unsigned-)?((\d+\.\d+)\.\d+-\d+-(\S+))", name):
                kind = (match[2], match[3])
                newest[kind] = max(newest.get(kind, ""), match[1], key=version_tuple)
        main = newest.get((str(row.get("ga_kernel", "")), "generic"), "")
        own = [int(branch) for branch in _branches(index) if main and _built(index, branch, main)]
        built: dict[str, list[str]] = {}
        for line, flavour in sorted(newest, key=lambda kind: (version_tuple(kind[0]), kind[1])):
            release = newest[line, flavour]
            if any(_built(index, str(branch), release) for branch in own):
                built.setdefault(line, []).append(flavour)
        found = {"own": own, "built_for": built}
        for name, value in found.items() if own else ():
            if value != (row[name].unwrap() if name in row else {}):
                row[name] = value
    return tomlkit.dumps(document)


def update_debian(text: str, indexes: Mapping[str, Mapping[str, str]]) -> str:
    """repos.toml with the branches that Debian's own driver has: distribution → package of non-free → version.

    The branch of nvidia-driver comes; of the older ones that are known (nvidia-tesla-470-driver) go those it lacks.
    """
    document = tomlkit.parse(text)
    for row in document["distros"]:
        index = indexes.get(str(row["keys"][0]), {})
        if "nvidia-driver" not in index:
            continue
        names = [name for name in index if re.fullmatch(r"nvidia(-tesla(-\d+)?|-legacy-\d+xx)?-driver", name)]
        known = {*row["own"]} & {version_tuple(index[name])[0] for name in names}
        own = sorted({version_tuple(index["nvidia-driver"])[0]} | known)
        if list(row["own"]) != own:
            row["own"] = own
    return tomlkit.dumps(document)


def _branches(index: Mapping[str, Mapping[str, str]]) -> list[str]:
    return sorted({match[1] for name in index if (match := re.fullmatch(r"nvidia-kernel-common-(\d+)-server", name))})


def _built(index: Mapping[str, Mapping[str, str]], branch: str, release: str) -> bool:
    version = re.split(r"[-+]", index[f"nvidia-kernel-common-{branch}-server"]["Version"])[0]
    module = index.get(f"linux-modules-nvidia-{branch}-server-open-{release}", {})
    return f"(<= {version}-" in module.get("Depends", "")


def _set_newest(document: Any, name: str, dates: Mapping[str, str], changes: list[Change], today: str) -> None:
    """The newest version of the packages of that name, where it is newer than the one known; version → its day."""
    newest = max((version for version in dates if version), key=version_tuple, default="")
    row = document["packages"][name]
    if version_tuple(newest) > version_tuple(str(row["newest"])):
        changes.append(Change(row=name.replace("-", " "), key="newest", old=str(row["newest"]), new=newest))
        row["newest"] = newest
        _dated(row, "repository", dates[newest], today)


def _set_keys(document: Any, keys: Mapping[str, Sequence[ServedKey]], changes: list[Change], today: str) -> bool:
    """New keys, fingerprints that were not known, and which key signs a directory; what is known never changes."""
    rows: AoT = document["keys"]
    known = {str(row["id"]).upper(): row for row in rows}
    before = len(changes)
    for key in {one.id: one for served in keys.values() for one in served}.values():
        if not key.fingerprint.endswith(key.id.upper()):
            continue  # another key than its name says
        row = known.get(key.id.upper())
        if row is None:
            row = tomlkit.table()
            row["id"] = key.id
            row["url"] = f"{{repository}}{key.id}.pub"
            row["fingerprint"] = ""
            row["source"] = ""
            row["checked"] = ""
            row.add(tomlkit.nl())
            rows.insert(len(rows) - 1, row)  # what follows the last one is the heading of another part
            known[key.id.upper()] = row
        if not row["fingerprint"] and "file_sha256" not in row:
            changes.append(Change(row=f"key {key.id}", key="fingerprint", old="", new=key.fingerprint))
            row["fingerprint"] = key.fingerprint
            _dated(row, "served", today, today)
    for row in document["distros"]:
        ids = [key.id for key in keys.get(str(row["dir"]), ()) if key.id.upper() in known]
        if len(ids) == 1 and ids[0].upper() != str(row["signed_by"]).upper():
            name = str(known[ids[0].upper()]["id"])
            changes.append(Change(row=str(row["keys"][0]), key="signed_by", old=str(row["signed_by"]), new=name))
            row["signed_by"] = name
            _dated(row, "served", today, today)
    return len(changes) > before


def update_kubernetes(
    text: str, charts: Mapping[str, ChartRelease], tags: Mapping[str, str] = {}, *, today: str
) -> tuple[str, list[Change]]:
    """kubernetes.toml with newer charts, and the images whose tag follows their chart's; keys of values stay.

    `tags`: component → the newest tag that its registry lists.
    """
    document = tomlkit.parse(text)
    changes: list[Change] = []
    for row in document["charts"]:
        release = charts.get(str(row["name"]))
        if release and version_tuple(release.version) > version_tuple(str(row["version"])):
            changes.append(
                Change(row=f"chart {row['name']}", key="version", old=str(row["version"]), new=release.version)
            )
            row["version"] = release.version
            _dated(row, "index", today, today)
    for row in document["images"]:
        release = charts.get(str(row.get("chart", "")))
        name, _, tag = str(row["image"]).rpartition(":")
        fresh = ""
        if release and release.app and version_tuple(release.app) > version_tuple(tag):
            fresh = f"{name}:{str(row['tag']).format(app=release.app.removeprefix('v'))}"
        elif (listed := tags.get(str(row["component"]), "")) and _numbers(listed) > _numbers(tag):
            fresh = f"{name}:{listed}"
        if fresh:
            changes.append(Change(row=f"image {row['component']}", key="image", old=str(row["image"]), new=fresh))
            row["image"] = fresh
            _dated(row, "index", today, today)
    if changes:
        _add_sources(document, ("index",))
    return tomlkit.dumps(document), changes


Spans = Mapping[str, tuple[Any, ...]]


def _spans(one: Held, last_cuda: str) -> Spans:
    found: dict[str, tuple[Any, ...]] = {}
    if one.branches:
        found["branches"] = tuple(sorted(one.branches))
    if one.cuda:
        found["cuda"] = (one.cuda[0], "" if one.cuda[-1] == last_cuda else one.cuda[-1])
    return found


def _set(row: Any, spans: Spans, name: str, changes: list[Change]) -> bool:
    changed = False
    for key, span in spans.items():
        old = tuple(row[key])
        if old != span:
            changes.append(Change(row=name, key=key, old=_span(key, old), new=_span(key, span)))
            row[key] = list(span)
            changed = True
    return changed


def _set_by_arch(row: Any, apart: Mapping[str, Spans], changes: list[Change]) -> bool:
    """The ranges of architectures whose repository holds others than the first one's."""
    old = {arch: {key: tuple(span) for key, span in spans.items()} for arch, spans in row.get("by_arch", {}).items()}
    own = {arch: {k: v for k, v in spans.items() if k not in ("branches", "cuda")} for arch, spans in old.items()}
    apart = {arch: both for arch in {**old, **apart} if (both := {**own.get(arch, {}), **apart.get(arch, {})})}
    if old == apart:
        return False
    table = tomlkit.inline_table()
    for arch, spans in apart.items():
        inner = tomlkit.inline_table()
        for key, span in spans.items():
            inner[key] = list(span)
            changes.append(Change(row=f"{row['keys'][0]} {arch}", key=key, old="", new=_span(key, span)))
        table[arch] = inner
    if apart:
        row["by_arch"] = table
    elif "by_arch" in row:
        del row["by_arch"]
        changes.append(Change(row=str(row["keys"][0]), key="by_arch", old="others", new="as the first"))
    return True


def _span(key: str, span: tuple[Any, ...]) -> str:
    if key == "branches":
        return " ".join(map(str, span)) or "none"
    low, high = (str(one or "") for one in span)
    return f"{low}–{high}" if low or high else "not known"


def _dated(row: Any, source: str, date: str, today: str) -> None:
    """The row says where its values are from, and since when."""
    names = [part.strip() for part in str(row["source"]).split(";") if part.strip()]
    row["source"] = "; ".join([source, *(name for name in names if name != source)])
    row["source_date"] = date or today
    if "checked" in row or not {"native", "image", "kube"} & set(row):
        row["checked"] = today


def _add_sources(document: Any, names: Iterable[str]) -> None:
    for name in names:
        if name not in document["sources"]:
            document["sources"][name] = SOURCES[name]
