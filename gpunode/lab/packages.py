"""Signed apt repositories that stand in for NVIDIA's, for the distribution's kernels and for Debian's own driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from types import MappingProxyType

import tomli

from gpunode.core.late import asdict, dataclass, replace
from gpunode.edge.openpgp import Signer, gpg_home, new_key, signer
from gpunode.lab import packages_deb
from gpunode.lab.packages_deb import Deb, Fetched
from gpunode.lab.packages_runfile import write_runfiles
from gpunode.lab.packages_table import ARCHITECTURES, Row, digest_of, files_of, fill, rows, texts_in
from gpunode.lab.packages_ubuntu import CODENAMES, stanzas, ubuntu_rows

ORIGINS = {
    "nvidia-cuda": "NVIDIA",
    "nvidia-container-toolkit": "https://nvidia.github.io/libnvidia-container",
    "kernels": "gpunode-lab",
    "non-free": "Debian",
    "restricted": "Ubuntu",
}


NO_PROGRAMS: Mapping[str, bytes] = MappingProxyType({})
UNUSED = 2 * 24 * 3600  # seconds


@dataclass(frozen=True, kw_only=True)
class RepositorySource:
    """One repository: `path` and `key` are relative to the directory, `distro` "" serves all of amd64."""

    name: str
    distro: str
    path: str
    key: str
    fingerprint: str
    suite: str = "/"
    components: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RepositoryInfo:
    """What is below the directory: sources, and by distro the packages that a new node has from the start."""

    directory: Path
    sources: tuple[RepositorySource, ...]
    base: Mapping[str, tuple[str, ...]]  # distro → .deb files relative to the directory

    def base_packages(self, distro: str) -> tuple[Path, ...]:
        """The .deb files of a new node's first kernel, in the order dpkg is to get them."""
        return tuple(self.directory / name for name in self.base[distro])


Built = tuple[Sequence[RepositorySource], Mapping[str, Sequence[str]]]  # as in RepositoryInfo, relative to the folder


def build_repository(
    directory: Path, *, programs: Mapping[str, bytes] = NO_PROGRAMS, log: Callable[[str], None] = print
) -> RepositoryInfo:
    """Build all repositories in a folder of `directory`, as `built_once` does.

    `programs` are those of packages_vendor.py.  Needs gpg.  The keys are made for this build, and their secret halves
    thrown away.  Raises GpunodeError.
    """
    with as_file(files("gpunode.lab")) as lab:
        texts = texts_in(lab / "standins/packages") | dict(programs)
        tables = [path.read_bytes() for path in sorted(lab.glob("packages*.toml"))]
        code = [path.read_bytes() for path in sorted(lab.glob("packages*.py"))]
        ubuntu = texts_in(lab / "ubuntu")
        digest = digest_of("", texts | ubuntu, *tables, *code)

    def build(folder: Path) -> Built:
        log("building the lab's package repositories")
        found = [row for table in tables for row in rows(tomli.loads(table.decode()))]
        contents = tomli.loads(ubuntu["contents.toml"].decode())
        for version in CODENAMES:
            found += ubuntu_rows(version, ubuntu[f"{version}.packages"].decode(), contents)
        write_runfiles(folder, texts)
        return _write_all(folder, found, texts)

    return built_once(directory, digest, build)


def build_restricted(
    directory: Path,
    version: str,
    canonical: Mapping[str, Path],
    *,
    programs: Mapping[str, bytes] = NO_PROGRAMS,
    log: Callable[[str], None] = print,
) -> RepositoryInfo:
    """Build «restricted» and «multiverse» of that Ubuntu, as build_repository does.

    `canonical` are the packages that are Canonical's own, by the SHA-256 that the excerpt says; the others are stubs.
    """
    with as_file(files("gpunode.lab")) as lab:
        texts = texts_in(lab / "standins/packages") | dict(programs)
        code = [path.read_bytes() for path in sorted(lab.glob("packages*.py"))]
        excerpt, contents = (
            (lab / f"ubuntu/{version}.packages").read_bytes(),
            (lab / "ubuntu/contents.toml").read_bytes(),
        )
    place = replace(RESTRICTED, distro=f"ubuntu:{version}", suite=SUITES[version])
    digest = digest_of(" ".join([version, *sorted(canonical)]), texts, excerpt, contents, *code)

    def build(folder: Path) -> Built:
        log(f"building the packages of ubuntu:{version}")
        real = {
            (stanza["Package"], stanza["Version"]): Fetched(fields=stanza, path=canonical[stanza["SHA256"]])
            for stanza in stanzas(excerpt.decode())
            if stanza.get("SHA256") in canonical
        }
        pairs = [
            (row, real.get((row.name, row.version)) or _deb(row, texts, place.arch))
            for row in ubuntu_rows(version, excerpt.decode(), tomli.loads(contents.decode()))
            if row.source == place.name
        ]
        with signer(f"gpunode lab stand-in for Ubuntu {version}") as key:
            packages_deb.public_keys(folder / "keys", {place.name: key})
            source = _write_place(folder, place, pairs, key)
        return [source], {}

    return built_once(directory, digest, build)


def built_once(directory: Path, digest: str, build: Callable[[Path], Built]) -> RepositoryInfo:
    """What `build` makes, in a folder named by the digest of what it is made from; at once done where that is there.

    Nodes that take packages from an older folder keep it: a folder goes when nothing has asked for it for days.
    """
    folder = directory / digest[:12]
    if not (folder / "built.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.iterdir():
            if time.time() - old.stat().st_mtime > UNUSED:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        new = directory / f".{folder.name}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        sources, base = build(new)
        text = json.dumps({"sources": [asdict(source) for source in sources], "base": base}, indent=1)
        (new / "built.json").write_text(text)
        new.rename(folder)
    os.utime(folder)
    built = json.loads((folder / "built.json").read_text())
    stated = (RepositorySource(**{**row, "components": tuple(row["components"])}) for row in built["sources"])
    return RepositoryInfo(
        directory=directory,
        sources=tuple(replace(one, path=f"{folder.name}/{one.path}", key=f"{folder.name}/{one.key}") for one in stated),
        base={distro: tuple(f"{folder.name}/{name}" for name in names) for distro, names in built["base"].items()},
    )


# ---------------------------------------------------------------- from the table to packages


def _deb(row: Row, texts: Mapping[str, bytes], arch: str) -> Deb:
    package, values = row.package, row.values
    relations = {
        name.capitalize(): ", ".join(package.get(name, ())).format(**values)
        for name in ("depends", "recommends", "conflicts", "breaks", "provides")
    }
    replaces = {"Replaces": relations["Conflicts"]} if relations["Conflicts"] else {}
    fields = {
        "Package": package["name"].format(**values),
        "Version": row.version,
        "Architecture": arch,
        "Maintainer": "gpunode lab <gpunode@localhost>",
        "Section": "kernel" if row.source == "kernels" else "non-free/utils",
        "Priority": "optional",
        **relations,
        **replaces,
        "Description": f"{package['summary'].format(**values)} (stand-in)\n"
        " A stand-in of the gpunode lab: it has the name, version, dependencies and paths of the real package, and\n"
        " nothing of what that does.",
    }
    scripts = {name: fill(texts[text], values).decode() for name, text in package.get("scripts", {}).items()}
    return Deb(fields=fields, files=files_of(package, values, texts), scripts=scripts)


# ---------------------------------------------------------------- from packages to repositories


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where one source's packages for one distribution go: the paths of NVIDIA's and Debian's own servers."""

    name: str
    distro: str  # "" serves all of amd64
    path: str
    suite: str = "/"  # a flat repository
    components: tuple[str, ...] = ()
    arch: str = "amd64"

    def rows(self, found: Iterable[Row]) -> list[Row]:
        """The rows of its packages, with the values of its architecture."""
        distros = (self.distro,) if self.name == "kernels" else (self.distro, self.distro.partition("+")[0])
        values = ARCHITECTURES[self.arch]
        mine = (row for row in found if row.source == self.name and any(row.is_for(distro) for distro in distros))
        return [replace(row, values={**row.values, **values}) for row in mine]


NON_FREE = ("contrib", "non-free", "non-free-firmware")
PLACES = (
    _Place(name="nvidia-cuda", distro="debian:12", path="cuda/repos/debian12/x86_64"),
    _Place(name="nvidia-cuda", distro="debian:13", path="cuda/repos/debian13/x86_64"),
    _Place(name="nvidia-container-toolkit", distro="", path="libnvidia-container/stable/deb/amd64"),
    _Place(name="nvidia-cuda", distro="debian:12+arm64", path="cuda/repos/debian12/sbsa", arch="arm64"),
    _Place(
        name="nvidia-container-toolkit",
        distro="debian:12+arm64",
        path="libnvidia-container/stable/deb/arm64",
        arch="arm64",
    ),
    _Place(name="kernels", distro="debian:12+arm64", path="kernels/debian12-arm64", arch="arm64"),
    _Place(name="kernels", distro="debian:12", path="kernels/debian12"),
    _Place(name="kernels", distro="debian:13", path="kernels/debian13"),
    _Place(name="non-free", distro="debian:12", path="debian", suite="bookworm", components=NON_FREE),
    _Place(name="non-free", distro="debian:13", path="debian", suite="trixie", components=NON_FREE),
    *(
        place
        for version in CODENAMES
        for distro, short in ((f"ubuntu:{version}", f"ubuntu{version.replace('.', '')}"),)
        for place in (
            _Place(name="nvidia-cuda", distro=distro, path=f"cuda/repos/{short}/x86_64"),
            _Place(name="kernels", distro=distro, path=f"kernels/{short}"),
        )
    ),
)
SUITES = {version: f"{codename}-security" for version, codename in CODENAMES.items()}
RESTRICTED = _Place(name="restricted", distro="", path="ubuntu", components=("restricted", "multiverse"))


def _write_all(directory: Path, found: list[Row], texts: Mapping[str, bytes]) -> Built:
    sources, base = [], {}
    with gpg_home() as home:
        keys = {name: new_key(home, f"gpunode lab stand-in for {name}") for name in {place.name for place in PLACES}}
        packages_deb.public_keys(directory / "keys", keys)
        for place in PLACES:
            chosen = place.rows(found)
            debs = [_deb(row, texts, place.arch) for row in chosen]
            pairs: list[tuple[Row, Deb | Fetched]] = list(zip(chosen, debs, strict=True))
            sources.append(_write_place(directory, place, pairs, keys[place.name]))
            if place.name == "kernels":
                base[place.distro] = [f"{place.path}/{file}" for file in _base(chosen, debs)]
    return sources, base


def _write_place(
    directory: Path,
    place: _Place,
    pairs: Sequence[tuple[Row, Deb | Fetched]],
    key: Signer,
) -> RepositorySource:
    """Write the packages below `directory`; what a node has to know of them."""
    folder, origin = directory / place.path, ORIGINS[place.name]
    if place.components:
        components: dict[str, list[Deb | Fetched]] = {name: [] for name in place.components}
        for row, deb in pairs:
            components[row.package.get("component", "non-free")].append(deb)
        packages_deb.write_suite(folder, place.suite, components, origin=origin, key=key, arch=place.arch)
    else:
        packages_deb.write_flat_repository(folder, [deb for _, deb in pairs], origin=origin, key=key, arch=place.arch)
    stated = {name: value for name, value in asdict(place).items() if name != "arch"}
    return RepositorySource(**stated, key=f"keys/{place.name}.asc", fingerprint=key.fingerprint)


def _base(found: list[Row], debs: list[Deb]) -> list[str]:
    """File names of what a new node has: initramfs-tools, then the first kernel and its metapackage."""
    firsts = [(row.package["name"], deb.file_name) for row, deb in zip(found, debs, strict=True) if row.first]
    wanted = (
        "initramfs-tools",
        r"linux-modules-\d.*",
        r"linux-image-(\{release\}|\d.*)",
        r"linux-image-(\{arch\}|virtual)",
    )
    return [file for pattern in wanted for name, file in firsts if re.fullmatch(pattern, name)]
