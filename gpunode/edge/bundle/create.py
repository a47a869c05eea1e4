"""A bundle is made: what is wanted is worked out, fetched, compared, and laid out as signed repositories."""

from __future__ import annotations

import contextlib
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpunode import __version__
from gpunode.core.bundle.deb import Deb
from gpunode.core.bundle.manifest import (
    KEY,
    MANIFEST,
    NOTHING,
    PLAIN_PATH,
    SBOM,
    SIGNATURE,
    SUMS,
    Manifest,
    Packaged,
    Stored,
    TargetPart,
    digest,
    fragment,
    manifest_bytes,
    repository_folder,
    sums_text,
)
from gpunode.core.bundle.rpm import Rpm
from gpunode.core.bundle.spdx import sbom
from gpunode.core.bundle.target import MANAGERS, BundleTarget, Wants, bare_node, together, wants_of
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.late import dataclass, field, replace
from gpunode.core.model import NodeFacts
from gpunode.core.openpgp import fingerprints
from gpunode.core.spec.source import DISTRIBUTION
from gpunode.core.yaml_text import yaml_text
from gpunode.edge.bundle.apt import apt_repository
from gpunode.edge.bundle.choose import Package, Source, choose
from gpunode.edge.bundle.cluster import ClusterNeeds, cluster_needs
from gpunode.edge.bundle.extras import Extras, cluster_extras, wheels
from gpunode.edge.bundle.inside import check_inside
from gpunode.edge.bundle.rpm import check_rpm, rpm_repository
from gpunode.edge.bundle.store import Store, Wanted, Web, place, progress
from gpunode.edge.desired import DesiredState
from gpunode.edge.load import load_archives, read_key, resolve_key
from gpunode.edge.openpgp import Signer, signer
from gpunode.edge.state import now

Notify = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a bundle is to hold."""

    targets: tuple[BundleTarget, ...]
    gpus: tuple[str, ...] = ()  # PCI ids
    kernels: tuple[str, ...] = ()
    facts: Mapping[BundleTarget, tuple[NodeFacts, ...]] = field(default_factory=dict)  # of saved probes
    repositories: Mapping[BundleTarget, tuple[Upstream, ...]] = field(default_factory=dict)  # the distribution's own
    base: frozenset[str] = frozenset()
    base_name: str = NOTHING
    packages: tuple[str, ...] = ()  # more packages: NAME or NAME=VERSION
    expired: bool = False
    wheels: tuple[str, ...] = ()  # requirements of pip
    cluster: bool = False  # charts and images of what `gpunode kube render` makes


@dataclass(frozen=True, kw_only=True)
class Part:
    """One target, worked out: its packages, whose signature vouches for each repository, and dnf's modules."""

    target: BundleTarget
    family: str
    wants: tuple[Wants, ...]
    sources: tuple[Source, ...]
    packages: tuple[Package, ...]
    modules: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The repositories of the bundle."""
        return tuple(dict.fromkeys(source.upstream.name for source in self.sources))

    def source(self, package: Package) -> Source:
        """The one that the package is from."""
        return next(source for source in self.sources if source.upstream.address == package.origin)


def create(order: Order, desired: DesiredState, store: Store, out: Path, *, url: str, notify: Notify) -> Manifest:
    """Make the bundle in the folder `out`, or as one file where its name ends in .tar.

    What is there already of an earlier one is replaced at the end, in one step.  Raises GpunodeError.
    """
    _may_write(out)
    parts = [_work_out(order, target, desired, store.web, notify) for target in order.targets]
    wanted = [Wanted(url=p.url, sha256=p.sha256, size=p.size) for part in parts for p in part.packages]
    store.fetch_all(wanted, lambda *numbers: notify(progress("fetched", *numbers)))
    signers = {package.sha256: _signed_by(package, part, store) for part in parts for package in part.packages}
    extras = _extras(order, desired, store.web, notify)
    fetched = Fetched(parts=parts, extras=extras, store=store, signers=signers)
    folder = out.with_name(f".{out.name}.new")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with signer(f"gpunode bundle {datetime.now(UTC):%Y-%m-%d}") as key:
            manifest = _lay_out(order, fetched, folder, key, url)
        _into_place(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return manifest


def _signed_by(package: Package, part: Part, store: Store) -> str:
    """The key of the package's own signature, "" where the lists are signed.

    Raises RefusedError, for a file that is another package than its list says as well.
    """
    source = part.source(package)
    file, keys, trusted = store.path(package.sha256), source.keys, source.upstream.fingerprints
    if isinstance(package, Rpm):
        return check_rpm(package, file, keys, trusted) if source.upstream.signs == "packages" else ""
    check_inside(package, file)
    return ""


def _may_write(out: Path) -> None:
    if out.suffix == ".tar" or not out.exists() or (out / MANIFEST).exists():
        return
    if out.is_dir() and not any(out.iterdir()):
        return
    raise InputError(
        f"{out} is there, and no bundle", expected="a new name, or a bundle to replace", fix="choose another -o"
    )


def _extras(order: Order, desired: DesiredState, web: Web, notify: Notify) -> Extras:
    found, spec = Extras(), desired.opened_spec()
    more = [one for one in (spec.verify.image if order.cluster else "", spec.accept.image) if one]
    if order.cluster or more:
        needs = cluster_needs(spec) if order.cluster else ClusterNeeds(charts=(), images=())
        found = cluster_extras(needs, more, web)
        notify(f"{len(needs.charts)} charts fetched, {len(found.images)} images listed")
    if order.wheels:
        notify(f"wheels of {' '.join(order.wheels)}")
        found = replace(found, files={**found.files, **wheels(order.wheels, spec.proxy)})
    return found


# ---------------------------------------------------------------- what is wanted


def _work_out(order: Order, target: BundleTarget, desired: DesiredState, web: Web, notify: Notify) -> Part:
    row = desired.knowledge.distro(target.distro)
    assert row is not None  # parse_target has seen to it
    more = dict.fromkeys([*order.packages, *desired.spec().accept.packages])
    wants = tuple(together([*_wants(order, target, desired)], tuple(more)))
    upstreams = [*_vendors(wants, desired, MANAGERS[row.family]), *_distribution(order, target, desired)]
    notify(f"{target}: reading {len(upstreams)} repositories")
    sources = tuple(_source(upstream, desired) for upstream in upstreams)
    packages, modules = choose(target, row.family, wants, sources, web, base=order.base, expired=order.expired)
    if order.base and not packages:
        raise InputError(
            f"{target}: nothing to bundle: {order.base_name} has every package that gpunode.yml asks for",
            expected="what the nodes have before gpunode has provisioned them",
            fix="list the packages of a node without a driver",
        )
    notify(f"{target}: {len(packages)} packages")
    return Part(target=target, family=row.family, wants=wants, sources=sources, packages=packages, modules=modules)


def _source(upstream: Upstream, desired: DesiredState) -> Source:
    if not upstream.key:
        raise InputError(
            f"{upstream.url}: no key is named that its signature could be compared with",
            expected="Signed-By (apt) or gpgkey (rpm)",
            fix="name the key in the file given by --repositories",
        )
    key = read_key(upstream.key, desired.opened_spec().proxy, upstream.fingerprints)
    return Source(upstream=replace(upstream, fingerprints=upstream.fingerprints or fingerprints(key)), keys=(key,))


def _wants(order: Order, target: BundleTarget, desired: DesiredState) -> Iterator[Wants]:
    """What provision would install on a bare machine with each of the GPUs, or on the machines that were probed."""
    row = desired.knowledge.distro(target.distro)
    assert row is not None
    spec = desired.opened_spec()
    gpus: list[tuple[str, ...]] = [(gpu,) for gpu in order.gpus] or [()]
    bare = [bare_node(target, row, desired.knowledge, some, order.kernels) for some in gpus]
    for facts in order.facts.get(target, ()) or bare:
        solution = desired.solution(
            facts, spec, extra_repositories=("epel",)
        )  # what would come from there is in the bundle
        if solution.problems:
            problem = solution.problems[0]
            raise RefusedError(f"{target}: {problem.what}", fix=problem.fix)
        if not (solution.driver or solution.toolkit or solution.cuda):
            raise InputError(
                f"{target}: nothing is wanted there",
                expected="a GPU to make the bundle for",
                fix="add --gpu, or --probe",
            )
        yield wants_of(facts, spec, solution, desired.templates)


def _vendors(wants: Sequence[Wants], desired: DesiredState, manager: str) -> Iterator[Upstream]:
    """NVIDIA's repositories, at the places that the spec's `sources` name."""
    once = {r.name: r for want in wants for r in want.repositories}
    for repository in once.values():
        yield Upstream(
            name=repository.name,
            url=repository.url,
            key=resolve_key(repository, desired.opened_spec()).decode("latin-1"),
            fingerprints=tuple(filter(None, (repository.fingerprint,))),
            signs="metadata" if manager == "apt" else repository.signs,
        )


def _distribution(order: Order, target: BundleTarget, desired: DesiredState) -> tuple[Upstream, ...]:
    """The distribution's own repositories: the spec's, those that were given, else the public ones."""
    if DISTRIBUTION in desired.opened_spec().sources:
        return ()  # among the vendors': the solver has named it
    if given := order.repositories.get(target):
        return given
    if known := load_archives(target.distro, target.arch):
        return known
    raise InputError(
        f"the repositories of {target.distro} on {target.arch} are not known",
        expected="the files in which one of its machines names them",
        fix=f"copy /etc/yum.repos.d (/etc/zypp/repos.d) of one; add --repositories {target}=FOLDER",
    )


# ---------------------------------------------------------------- the folder


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """All that goes into a bundle; `signers` has whose key signed each package, by its SHA-256."""

    parts: Sequence[Part]
    extras: Extras
    store: Store
    signers: Mapping[str, str]


def _lay_out(order: Order, fetched: Fetched, folder: Path, key: Signer, url: str) -> Manifest:
    extras = fetched.extras
    files: dict[str, Stored] = {}

    def plain(path: str) -> Path:
        if not PLAIN_PATH.fullmatch(path):
            raise RefusedError(f"a repository has a file that would lie at {path!r}", fix="use another mirror")
        return folder / path

    def write(path: str, data: bytes) -> None:
        target = plain(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        files[path] = digest(data)

    targets = {}
    for part in fetched.parts:
        repositories: dict[str, tuple[Packaged, ...]] = {}
        for name in part.names:
            packages = [package for package in part.packages if package.repository == name]
            where = repository_folder(part.target.folder, name)
            for package in packages:
                path = f"{where}/{package.file_name}"
                place(fetched.store.path(package.sha256), plain(path))
                files[path] = Stored(sha256=package.sha256, size=package.size)
            for file, data in _metadata(part, name, packages, key).items():
                write(f"{where}/{file}", data)
            repositories[name] = tuple(
                _packaged(package, where, part.source(package), fetched.signers[package.sha256]) for package in packages
            )
        targets[str(part.target)] = TargetPart(
            family=part.family,
            gpus=order.gpus,
            asked=tuple(dict.fromkeys(p.name for wants in part.wants for p in wants.packages)),
            base=order.base_name,
            base_names=tuple(sorted(order.base)),
            repositories=repositories,
        )
    for path, data in extras.files.items():
        write(path, data)
    write(KEY, key.public)
    manifest = Manifest(
        gpunode=__version__,
        created=now(),
        fingerprint=key.fingerprint,
        targets=targets,
        files=files,
        images=extras.images,
        charts=tuple(path for path in extras.files if path.startswith("charts/")),
        wheels=tuple(path for path in extras.files if path.startswith("wheels/")),
    )
    write(SBOM, sbom(manifest))
    write(SUMS, sums_text(files).encode())
    data = manifest_bytes(manifest)
    (folder / MANIFEST).write_bytes(data)
    (folder / SIGNATURE).write_bytes(key.signature(data))
    if url:
        text = yaml_text(fragment(manifest, url, key.public.decode(), digest(data).sha256))
        (folder / "sources.yml").write_text(text)
    return manifest


def _metadata(part: Part, name: str, packages: Sequence[Package], key: Signer) -> dict[str, bytes]:
    """The signed index files of one repository."""
    debs = [package for package in packages if isinstance(package, Deb)]
    if MANAGERS[part.family] == "apt":
        return apt_repository(debs, arch=part.target.arch, label=f"gpunode {name}", signer=key)
    rpms = [package for package in packages if isinstance(package, Rpm)]
    return rpm_repository(rpms, part.modules.get(name, ""), key)


def _packaged(package: Package, where: str, source: Source, signer: str) -> Packaged:
    signed = "its own signature" if signer else "SHA-256 in lists signed"
    return Packaged(
        name=package.name,
        version=package.version,
        arch=package.arch,
        file=f"{where}/{package.file_name}",
        sha256=package.sha256,
        size=package.size,
        url=package.url,
        checked=f"{signed} by {signer or ' or '.join(source.upstream.fingerprints)}",
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
