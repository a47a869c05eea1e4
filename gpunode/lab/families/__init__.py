"""Nodes of other distributions: Debian below, with the real dnf, zypper or pacman, and packages with true names.

families/NAME.toml says what nodes of a family have and what their repositories offer, in the form of packages.toml, and
in `distros` what differs between the distributions of the family, as values of {names}; the packages are built by the
distribution's own tools in a container of its plain tree, because the lab's machine has none of them.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import tomli

from gpunode.core.late import dataclass
from gpunode.edge.openpgp import Signer, gpg_home, new_key
from gpunode.lab.machine import Log, podman
from gpunode.lab.packages import Built, RepositoryInfo, RepositorySource, built_once
from gpunode.lab.packages_deb import File, public_keys
from gpunode.lab.packages_table import LIBRARIES, Row, digest_of, files_of, fill, rows, texts_in

SCRIPTS = {"pre": "%pre", "post": "%post", "preun": "%preun", "postun": "%postun", "posttrans": "%posttrans"}
PACMAN_SCRIPTS = {"post": ("post_install", "post_upgrade"), "preun": ("pre_remove",)}


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package to be: what the table says, and its files by path without leading slash."""

    name: str
    version: str  # [EPOCH:]VERSION-RELEASE
    source: str
    summary: str
    relations: Mapping[str, tuple[str, ...]]  # depends, provides, conflicts
    files: Mapping[str, File]
    scripts: Mapping[str, str]  # post, preun … of rpm
    values: Mapping[str, str]

    @property
    def label(self) -> str:
        """NAME-VERSION-RELEASE, as the file's name begins."""
        return f"{self.name}-{self.version.rpartition(':')[2]}"


def build(
    distro: str, family: str, directory: Path, tree: str, *, programs: Mapping[str, bytes], log: Log
) -> RepositoryInfo:
    """The repositories of such a distribution below `directory`, as `built_once` does, in a container of `tree`.

    Raises GpunodeError.
    """
    with as_file(files("gpunode.lab")) as lab:
        table_text = (lab / f"families/{family}.toml").read_bytes()
        script = (lab / "families/build.sh").read_bytes()
        texts = texts_in(lab / "standins/packages") | texts_in(lab / "standins/families")
        texts |= programs
        code = (
            (lab / "families/__init__.py").read_bytes(),
            *(path.read_bytes() for path in sorted(lab.glob("packages*.py"))),
        )
        digest = digest_of(f"{tree} {distro}", texts, table_text, script, *code)

    def build(folder: Path) -> Built:
        log(f"building the packages of {distro}")
        return _build(distro, tomli.loads(table_text.decode()), texts, folder, tree, script)

    return built_once(directory, digest, build)


def _build(
    distro: str, table: Mapping[str, Any], texts: Mapping[str, bytes], directory: Path, tree: str, script: bytes
) -> Built:
    some = [_package(row, table, texts) for row in rows(table, distro)]
    with gpg_home() as home, tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()  # its own folder, because some tools build as a user that isn't root
        (work / "build.sh").write_bytes(script)
        (work / "format").write_text(f"{table['format']}\n")
        keys = {n: new_key(home, f"gpunode lab stand-in for {n} of {distro}") for n in _folders(table, distro)}
        shutil.copytree(home, work / "gpg", ignore=shutil.ignore_patterns("S.*"))  # the agent's sockets stay
        signs = "".join(f"{name} {key.fingerprint} {table['signs'][name]}\n" for name, key in keys.items())
        (work / "signs").write_text(signs)
        for package in some:
            WRITERS[table["format"]](work, package)
        if distro in table.get("module", {}).get("distros", ()):
            _write_modules(work, table["module"], some)
        container = f"gpunode-lab-packages-{hashlib.sha256(distro.encode()).hexdigest()[:8]}"
        mount = f"{work}:/packages"
        podman(
            "run",
            "--rm",
            "--replace",
            "--name",
            container,
            "--network=none",
            "-v",
            mount,
            tree,
            "sh",
            "/packages/build.sh",
        )
        for name, path in _folders(table, distro).items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(work / "out" / name, directory / path)
        public_keys(directory / "keys", keys)
    return _record(distro, table, directory, keys)


def _folders(table: Mapping[str, Any], distro: str) -> dict[str, str]:
    """Where each source's packages go, by the paths of the vendors' servers."""
    some, values = table.get("only", {}), table["distros"][distro]
    return {n: path.format(**values) for n, path in table["folders"].items() if distro in some.get(n, (distro,))}


def _record(distro: str, table: Mapping[str, Any], directory: Path, keys: Mapping[str, Signer]) -> Built:
    folders = _folders(table, distro)
    sources = [
        RepositorySource(
            name=name, distro=distro, path=path, key=f"keys/{name}.asc", fingerprint=keys[name].fingerprint
        )
        for name, path in folders.items()
    ]
    own = directory / folders["kernels"]
    labels = [label.format(**table["distros"][distro]) for label in table["base"]]
    base = [next(path for path in own.glob(f"{label}[-.]*") if path.suffix != ".sig") for label in labels]
    return sources, {distro: [str(path.relative_to(directory)) for path in base]}


# ---------------------------------------------------------------- from the table to packages


def _package(row: Row, table: Mapping[str, Any], texts: Mapping[str, bytes]) -> Package:
    stated, values = row.package, row.values
    relations = {
        kind: tuple(text.format(**values) for text in stated.get(kind, ()))
        for kind in ("depends", "provides", "conflicts")
    }
    libraries = table["libraries"]
    found = files_of(stated, values, texts)
    return Package(
        name=stated["name"].format(**values),
        version=row.version,
        source=row.source,
        summary=f"{stated['summary'].format(**values)} (stand-in)",
        relations=relations,
        files={path.replace(LIBRARIES, libraries): _moved(file, libraries) for path, file in found.items()},
        scripts={n: fill(texts[text], values).decode() for n, text in stated.get("scripts", {}).items()},
        values=values,
    )


def _moved(file: File, libraries: str) -> File:
    """The file, with the folder of Debian's libraries in a text replaced by the distribution's."""
    if file.data.startswith(b"\x7fELF"):
        return file
    data = file.data.replace(LIBRARIES.encode(), libraries.encode())
    return File(data=data.replace(b"usr/lib/*-linux-gnu", libraries.encode()), mode=file.mode, target=file.target)


# ---------------------------------------------------------------- from packages to what builds them


def _write_tree(root: Path, some: Mapping[str, File]) -> None:
    for path, file in some.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.target:
            place.symlink_to(file.target)
            continue
        place.write_bytes(file.data)
        place.chmod(file.mode)


def _write_spec(work: Path, package: Package) -> None:
    version, _, release = package.version.rpartition(":")[2].partition("-")
    epoch = package.version.rpartition(":")[0]
    tags = {"depends": "Requires", "provides": "Provides", "conflicts": "Conflicts"}
    lines = [
        f"Name: {package.name}",
        *([f"Epoch: {epoch}"] if epoch else []),
        f"Version: {version}",
        f"Release: {release}",
        f"Summary: {package.summary}",
        "License: Apache-2.0",
        "AutoReqProv: no",
        *(f"{tags[kind]}: {text}" for kind, texts in package.relations.items() for text in texts),
        "%description\nA stand-in of the gpunode lab: it has the name, version, dependencies\n"
        "and paths of the real package.",
        f"%install\nmkdir -p %{{buildroot}}\ncp -a /packages/roots/{package.label}/. %{{buildroot}}/",
        *(f"{SCRIPTS[name]}\n{text}" for name, text in package.scripts.items()),
        "%files\n%defattr(-,root,root,-)",
        *(f"{'%config(noreplace) ' if path.startswith('etc/') else ''}/{path}" for path in sorted(package.files)),
    ]
    _write_tree(work / "roots" / package.label, package.files)
    spec = work / "specs" / package.source / f"{package.label}.spec"
    spec.parent.mkdir(parents=True, exist_ok=True)
    spec.write_text("\n".join(lines) + "\n")


def _write_pkgbuild(work: Path, package: Package) -> None:
    version, _, release = package.version.partition("-")
    quoted = {kind: " ".join(f"'{text}'" for text in texts) for kind, texts in package.relations.items()}
    lines = [
        f"pkgname={package.name}",
        f"pkgver={version}",
        f"pkgrel={release}",
        f"pkgdesc={shlex.quote(package.summary)}",
        "arch=(x86_64)",
        "license=(Apache)",
        "options=(!strip !debug)",
        *(f"{kind}=({text})" for kind, text in quoted.items()),
        *([f"install={package.name}.install"] if package.scripts else []),
        f'package() {{ cp -a /packages/roots/{package.label}/. "$pkgdir/"; }}',
    ]
    _write_tree(work / "roots" / package.label, package.files)
    folder = work / "specs" / package.source / package.label
    folder.mkdir(parents=True)
    (folder / "PKGBUILD").write_text("\n".join(lines) + "\n")
    if package.scripts:
        functions = [
            f"{function}() {{\n{text}\n}}"
            for name, text in package.scripts.items()
            for function in PACMAN_SCRIPTS[name]
        ]
        (folder / f"{package.name}.install").write_text("\n".join(functions) + "\n")


WRITERS = {"rpm": _write_spec, "pacman": _write_pkgbuild}


def _write_modules(work: Path, module: Mapping[str, Any], some: Iterable[Package]) -> None:
    """modules.yaml: a document for each stream, with the packages it holds (modulemd v2)."""
    streams: dict[str, list[str]] = {}
    for package in some:
        if package.source != module["source"] or "branch" not in package.values:
            continue
        for flavour, pattern in module["streams"].items():
            if module["only"].get(package.name, flavour) == flavour:
                full = f"{package.name}-{package.version}.x86_64"
                if ":" not in package.version:
                    full = f"{package.name}-0:{package.version}.x86_64"
                streams.setdefault(pattern.format(**package.values), []).append(full)
    text = "".join(
        f"---\ndocument: modulemd\nversion: 2\ndata:\n  name: {module['name']}\n  stream: {stream}\n"
        f'  version: 20261101000000\n  context: "00000000"\n  arch: x86_64\n'
        f"  summary: NVIDIA driver {stream}\n  description: Stand-in of the gpunode lab\n"
        "  license:\n    module: [Apache-2.0]\n"
        "  artifacts:\n    rpms:\n" + "".join(f"    - {name}\n" for name in sorted(names)) + "...\n"
        for stream, names in streams.items()
    )
    (work / "modules").mkdir()
    (work / "modules" / f"{module['source']}.yaml").write_text(text)


# ---------------------------------------------------------------- a node's own


def build_folder(build: Path, distro: str, family: str, base: Iterable[Path], source: Path) -> None:
    """What families/finish.sh finds under /build/family when an image is made."""
    table = tomli.loads((source / f"families/{family}.toml").read_text())
    folder = build / "family"
    (folder / "packages").mkdir(parents=True)
    shutil.copy(source / "families/finish.sh", folder / "finish.sh")
    (folder / "name").write_text(f"{family}\n")
    (folder / "dbpath").write_text(table["distros"][distro].get("dbpath", "/var/lib/rpm"))
    for package in base:
        shutil.copy(package, folder / "packages")
        key = next(parent for parent in package.parents if (parent / "keys").is_dir()) / "keys/kernels.asc"
        shutil.copy(key, folder / "key.asc")
        for database in package.parent.glob("extra.db"):
            shutil.copy(database, folder)


def seed(family: str, own: Sequence[RepositorySource], url: str, key: str) -> dict[str, str]:
    """The distribution's own repositories as files of a new node: {path without leading slash: text}.

    The first is on; one for builders is set up and off.  The variable of dnf is where epel-release finds the lab.
    """
    kernels, *off = own
    place = f"{url}/{kernels.path}"
    if family == "arch":
        return {"etc/pacman.d/mirrorlist": f"Server = {place}\n"}
    path = "etc/pki/rpm-gpg/RPM-GPG-KEY-distribution"
    text = f"[base]\nname=base\nbaseurl={place}\nenabled=1\ngpgcheck=1\nrepo_gpgcheck=0\ngpgkey=file:///{path}\n"
    for source in off:
        name = source.path.split("/")[-3].lower()  # …/CRB/x86_64/os
        text += (
            f"\n[{name}]\nname={name}\nbaseurl={url}/{source.path}\nenabled=0\ngpgcheck=1\ngpgkey={url}/{source.key}\n"
        )
    folder = {"rhel": "etc/yum.repos.d", "sles": "etc/zypp/repos.d"}[family]
    lab = {"etc/dnf/vars/gpunodelab": f"{url}/{kernels.path.partition('/')[0]}\n"} if family == "rhel" else {}
    return {path: key, f"{folder}/base.repo": text, **lab}
