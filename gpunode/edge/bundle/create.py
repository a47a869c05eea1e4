"""A bundle is made: what is wanted is worked out, fetched, compared, and laid out as signed repositories."""

from __future__ import annotations

import contextlib
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from gpunode import __version__
from gpunode.core.bundle.closure import puzzle
from gpunode.core.bundle.deb import Deb, Universe
from gpunode.core.bundle.manifest import (
    KEY,
    MANIFEST,
    SBOM,
    SIGNATURE,
    SUMS,
    Manifest,
    Packaged,
    Stored,
    TargetPart,
    digest,
    fragment,
    fragment_text,
    manifest_bytes,
    repository_folder,
    sums_text,
)
from gpunode.core.bundle.spdx import sbom
from gpunode.core.bundle.target import Target, Wants, bare_node, together, wants_of
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.model import NodeFacts
from gpunode.core.openpgp import fingerprints
from gpunode.core.spec_source import DISTRIBUTION
from gpunode.edge.bundle.apt import ARCHS, apt_repository, read_apt
from gpunode.edge.bundle.resolve import chosen
from gpunode.edge.bundle.store import Store, Wanted, Web, place
from gpunode.edge.load import read_key, resolve_key
from gpunode.edge.openpgp import Signer, signer
from gpunode.edge.planner import Planner

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a bundle is to hold."""

    targets: tuple[Target, ...]
    gpus: tuple[str, ...] = ()  # PCI ids
    kernels: tuple[str, ...] = ()
    facts: Mapping[Target, tuple[NodeFacts, ...]] = field(default_factory=dict)  # of saved probes
    repositories: Mapping[Target, tuple[Upstream, ...]] = field(default_factory=dict)  # the distribution's own
    base: frozenset[str] = frozenset()
    base_name: str = "nothing"
    packages: tuple[str, ...] = ()  # more packages: NAME or NAME=VERSION
    expired: bool = False


@dataclass(frozen=True, kw_only=True)
class Part:
    """One target, worked out."""

    target: Target
    family: str
    wants: tuple[Wants, ...]
    debs: tuple[Deb, ...]
    checked: Mapping[str, str]  # repository → whose signature its lists had


def create(order: Order, planner: Planner, store: Store, out: Path, *, url: str, tell: Tell) -> Manifest:
    """Make the bundle in the folder `out`, or as one file where its name ends in .tar.

    What is there already of an earlier one is replaced at the end, in one step.  Raises GpunodeError.
    """
    _may_write(out)
    parts = [_work_out(order, target, planner, store.web, tell) for target in order.targets]
    wanted = [Wanted(url=d.url, sha256=d.sha256, size=d.size) for part in parts for d in part.debs]
    store.fetch_all(wanted, lambda files, of, done, total: tell(_progress(files, of, done, total)))
    folder = out.with_name(f".{out.name}.new")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with signer(f"gpunode bundle {datetime.now(UTC):%Y-%m-%d}") as key:
            manifest = _lay_out(order, parts, store, folder, key, url)
        _into_place(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return manifest


def _progress(files: int, of: int, done: int, total: int) -> str:
    return f"fetched {files} of {of} packages, {done >> 20} of {total >> 20} MiB"


def _may_write(out: Path) -> None:
    if out.suffix == ".tar" or not out.exists() or (out / MANIFEST).exists():
        return
    if out.is_dir() and not any(out.iterdir()):
        return
    raise InputError(
        f"{out} is there, and no bundle", expected="a new name, or a bundle to replace", fix="choose another -o"
    )


# ---------------------------------------------------------------- what is wanted


def _work_out(order: Order, target: Target, planner: Planner, web: Web, tell: Tell) -> Part:
    row = planner.knowledge.distro(target.distro)
    assert row is not None  # parse_target has seen to it
    wants = tuple(together([*_wants(order, target, planner)], order.packages))
    upstreams = [*_vendors(wants, planner), *_distribution(order, target, planner)]
    tell(f"{target}: reading {len(upstreams)} repositories")
    lists: list[Deb] = []
    checked: dict[str, str] = {}
    for upstream in upstreams:
        keys = _keys(upstream, planner)
        trusted = replace(
            upstream, fingerprints=upstream.fingerprints or tuple(f for k in keys for f in fingerprints(k))
        )
        lists += read_apt(trusted, target.arch, keys, web, expired=order.expired)
        checked[upstream.name] = f"SHA-256 in lists signed by {' or '.join(trusted.fingerprints)}"
    debs: dict[str, Deb] = {}
    for want in wants:
        for deb in _closure(order, target, want, lists):
            debs.setdefault(deb.sha256, deb)
    tell(f"{target}: {len(debs)} packages")
    return Part(target=target, family=row.family, wants=wants, debs=tuple(debs.values()), checked=checked)


def _wants(order: Order, target: Target, planner: Planner) -> Iterator[Wants]:
    """What provision would install on a bare machine with each of the GPUs, or on the machines that were probed."""
    row = planner.knowledge.distro(target.distro)
    assert row is not None
    spec = planner.spec()
    gpus: list[tuple[str, ...]] = [(gpu,) for gpu in order.gpus] or [()]
    bare = [bare_node(target, row, planner.knowledge, some, order.kernels) for some in gpus]
    for facts in order.facts.get(target, ()) or bare:
        solution = planner.solution(facts, spec)
        if solution.problems:
            problem = solution.problems[0]
            raise RefusedError(f"{target}: {problem.what}", fix=problem.fix)
        if not (solution.driver or solution.toolkit or solution.cuda):
            raise InputError(
                f"{target}: nothing is wanted there",
                expected="a GPU to make the bundle for",
                fix="add --gpu, or --probe",
            )
        yield wants_of(facts, spec, solution, planner.templates)


def _vendors(wants: Sequence[Wants], planner: Planner) -> Iterator[Upstream]:
    """NVIDIA's repositories, at the places that the spec's `sources` name."""
    once = {r.name: r for want in wants for r in want.repositories}
    for repository in once.values():
        yield Upstream(
            name=repository.name,
            url=repository.url,
            key=resolve_key(repository, planner.spec()).decode("latin-1"),
            fingerprints=(repository.fingerprint,),
            signs=repository.signs,
        )


def _distribution(order: Order, target: Target, planner: Planner) -> tuple[Upstream, ...]:
    """The distribution's own repositories: the spec's, those that were given, else the public ones."""
    from gpunode.edge.load import load_archives

    if DISTRIBUTION in planner.spec().sources:
        return ()  # among the vendors': the solver has named it
    if given := order.repositories.get(target):
        return given
    if known := load_archives(target.distro, target.arch):
        return known
    raise InputError(
        f"the repositories of {target.distro} on {target.arch} are not known",
        expected="the files in which one of its machines names them",
        fix=f"copy /etc/yum.repos.d (zypp: /etc/zypp/repos.d) from one, and add --repositories {target}=FOLDER",
    )


def _keys(upstream: Upstream, planner: Planner) -> list[bytes]:
    if not upstream.key:
        raise InputError(
            f"{upstream.url}: no key is named that its signature could be compared with",
            expected="Signed-By (apt) or gpgkey (rpm)",
            fix="name the key in the file given by --repositories",
        )
    return [read_key(upstream.key, planner.spec().proxy, upstream.fingerprints)]


def _closure(order: Order, target: Target, want: Wants, lists: Sequence[Deb]) -> tuple[Deb, ...]:
    """The packages for one kind of machine; where the first alternatives exclude each other, by the others."""
    universe = Universe(lists, arch=ARCHS[target.arch], patterns=want.patterns)
    last: RefusedError | None = None
    for first in (True, False):
        found = puzzle(universe, want.packages, base=order.base, first=first)
        if found.missing:
            raise RefusedError(
                f"{target}: no repository has {', '.join(found.missing)}",
                fix="compare names and versions in gpunode.yml with the repositories (gpunode solve tells them)",
            )
        try:
            return chosen(found)
        except RefusedError as error:
            last = error
    assert last is not None
    raise RefusedError(f"{target}: {last.what}", fix="choose other versions in gpunode.yml, or see --repositories")


# ---------------------------------------------------------------- the folder


def _lay_out(order: Order, parts: Sequence[Part], store: Store, folder: Path, key: Signer, url: str) -> Manifest:
    files: dict[str, Stored] = {}

    def write(path: str, data: bytes) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        files[path] = digest(data)

    targets = {}
    for part in parts:
        repositories: dict[str, tuple[Packaged, ...]] = {}
        for name in dict.fromkeys(part.checked):
            debs = [deb for deb in part.debs if deb.repository == name]
            where = repository_folder(part.target.folder, name)
            for deb in debs:
                place(store.path(deb.sha256), folder / where / deb.file_name)
                files[f"{where}/{deb.file_name}"] = Stored(sha256=deb.sha256, size=deb.size)
            for file, data in apt_repository(debs, arch=part.target.arch, label=f"gpunode {name}", signer=key).items():
                write(f"{where}/{file}", data)
            repositories[name] = tuple(_packaged(deb, where, part.checked[name]) for deb in debs)
        targets[str(part.target)] = TargetPart(
            family=part.family,
            gpus=order.gpus,
            asked=tuple(dict.fromkeys(p.name for wants in part.wants for p in wants.packages)),
            base=order.base_name,
            repositories=repositories,
        )
    write(KEY, key.public)
    manifest = Manifest(
        gpunode=__version__,
        created=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        fingerprint=key.fingerprint,
        targets=targets,
        files=files,
    )
    write(SBOM, sbom(manifest))
    write(SUMS, sums_text(files).encode())
    data = manifest_bytes(manifest)
    (folder / MANIFEST).write_bytes(data)
    (folder / SIGNATURE).write_bytes(key.signature(data))
    if url:
        text = fragment_text(fragment(manifest, url, key.public.decode(), digest(data).sha256))
        (folder / "sources.yml").write_text(text)
    return manifest


def _packaged(deb: Deb, where: str, checked: str) -> Packaged:
    return Packaged(
        name=deb.name,
        version=deb.version,
        arch=deb.fields.get("Architecture", ""),
        file=f"{where}/{deb.file_name}",
        sha256=deb.sha256,
        size=deb.size,
        url=deb.url,
        checked=checked,
    )


def _into_place(folder: Path, out: Path) -> None:
    """The finished folder takes the old one's place, or becomes one file."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    if out.suffix == ".tar":
        part = out.with_name(f".{out.name}.part")
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(folder, arcname=out.stem)
        part.replace(out)
        return
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        out.rename(old)
    folder.rename(out)
    shutil.rmtree(old, ignore_errors=True)
