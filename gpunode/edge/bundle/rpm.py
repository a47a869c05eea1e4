"""Repositories of rpm: the lists of an upstream, what its key signs compared, the closure, and a signed repository."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpunode.core.bundle.manifest import matches_version
from gpunode.core.bundle.rpm import (
    Rpm,
    left_out,
    parse_modules,
    parse_primary,
    parse_repomd,
    rpm_metadata,
    signed_header,
)
from gpunode.core.bundle.target import Wants
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.late import dataclass
from gpunode.core.model import PackageWant
from gpunode.edge.bundle.inside import refuse_other
from gpunode.edge.bundle.resolve import libsolv
from gpunode.edge.bundle.store import PIECE, Web
from gpunode.edge.bundle.unpack import list_text
from gpunode.edge.openpgp import Signer, check_signature

NAMES = ("primary", "modules")  # the lists that say what there is, without a look at files
HEADERS = 16 << 20  # bytes at the beginning of an rpm file that hold its headers


@dataclass(frozen=True, kw_only=True)
class RpmLists:
    """An upstream's packages, and the texts of its lists."""

    upstream: Upstream
    packages: tuple[Rpm, ...]
    primary: str
    filelists: str
    modules: str
    date: str = ""  # YYYY-MM-DD on which they were made


def check_metadata(data: bytes, where: str, upstream: Upstream, keys: Sequence[bytes], web: Web) -> None:
    """That an upstream's lists are signed, where its key signs them and not each package.  Raises RefusedError."""
    if upstream.signs != "metadata":
        return
    signature = web.read(f"{where}.asc")
    if signature is None:
        raise RefusedError(
            f"{where}.asc is not there, and its packages are not said to be signed",
            fix="set sources.NAME.signs: packages (or gpgcheck=1 and repo_gpgcheck=0) where they are",
        )
    check_signature(data, signature, keys, upstream.fingerprints, where)


def read_rpm(
    upstream: Upstream,
    keys: Sequence[bytes],
    web: Web,
    *,
    kinds: Sequence[str] = (*NAMES, "filelists"),
    named_by: str = "--repositories",
    compare: bool = True,
) -> RpmLists:
    """The lists of an upstream.  Where its key signs the metadata, that is compared here, else each package later.

    Without `compare` nothing is: to know what there is.  Raises GpunodeError, RefusedError.
    """
    base = upstream.url.rstrip("/")
    where = f"{base}/repodata/repomd.xml"
    if (data := web.read(where)) is None:
        raise GpunodeError(f"{where} is not there", fix=f"is it a repository of rpm? see {named_by}")
    if compare:
        check_metadata(data, where, upstream, keys, web)
    texts = {"filelists": ""} | _texts(base, data, where, web, kinds)
    packages = parse_primary(
        texts["primary"], texts["filelists"], repository=upstream.name, base=base, origin=upstream.address
    )
    made = max(map(int, re.findall(rb"<timestamp>(\d{1,11})", data)), default=0)
    day = datetime.fromtimestamp(made, UTC).date().isoformat() if made else ""
    return RpmLists(upstream=upstream, packages=tuple(packages), date=day, **texts)


def _texts(base: str, repomd: bytes, where: str, web: Web, kinds: Sequence[str]) -> dict[str, str]:
    """The lists of these kinds, unpacked; "" for one that the repository does not have."""
    lists = parse_repomd(repomd.decode("utf-8", "replace"), where)
    texts = {}
    for kind in kinds:
        texts[kind] = ""
        if one := lists.get(kind):
            place = f"{base}/{one.href}"
            texts[kind] = list_text(web.read(place), place, one.sha256, one.unpacked, "repomd.xml")
    return texts


# ---------------------------------------------------------------- the closure


def rpm_closure(lists: Sequence[RpmLists], wants: Wants, arch: str, base: frozenset[str]) -> tuple[Rpm, ...]:
    """The packages that are asked for with all they need.  Raises RefusedError that says what stands against it."""
    solv = libsolv()
    pool = solv.Pool()
    pool.setdisttype(solv.Pool.DISTTYPE_RPM)
    pool.setarch(arch)
    hidden: set[str] = set()
    by_key: dict[tuple[str, str, str, str], Rpm] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, one in enumerate(lists):
            repository = pool.add_repo(str(number))
            _load(solv, repository, one, Path(folder))
            hidden |= left_out(parse_modules(one.modules, one.upstream.url), wants.streams, one.packages)
            by_key |= {(str(number), p.name, p.version, p.arch): p for p in one.packages}
    found = {s.id: by_key.get((s.repo.name, s.name, s.evr, s.arch)) for s in pool.solvables}
    pool.set_disabled_list([*_hidden(found, hidden), *_other_versions(found, wants.patterns)])
    pool.addfileprovides()
    pool.createwhatprovides()
    jobs, missing = [], []
    for want in wants.packages:
        groups = _matching(solv, pool, found, want)
        if groups:
            jobs.append(
                pool.Job(solv.Job.SOLVER_INSTALL | solv.Job.SOLVER_SOLVABLE_ONE_OF, pool.towhatprovides(groups))
            )
        elif want.name not in base:
            missing.append(f"{want.name} {want.version}".strip())
    if missing:
        raise RefusedError(
            f"no repository has {', '.join(missing)}",
            fix="compare names and versions in gpunode.yml with the repositories",
        )
    solver = pool.Solver()
    solver.set_flag(solv.Solver.SOLVER_FLAG_IGNORE_RECOMMENDED, 1)
    if problems := solver.solve(jobs):
        raise RefusedError(f"these packages cannot be installed together: {'; '.join(str(p) for p in problems[:3])}")
    chosen = (found[s.id] for s in solver.transaction().newsolvables())
    return tuple(p for p in chosen if p is not None and p.name not in base)


def _load(solv: Any, repository: Any, lists: RpmLists, folder: Path) -> None:
    for kind, flags in (("primary", 0), ("filelists", solv.Repo.REPO_EXTEND_SOLVABLES)):
        text = getattr(lists, kind)
        if not text:
            continue
        file = folder / kind
        file.write_text(text, encoding="utf-8")
        repository.add_rpmmd(solv.xfopen(str(file)), "FL" if flags else None, flags)


def _hidden(found: dict[int, Rpm | None], names: set[str]) -> list[int]:
    return [number for number, rpm in found.items() if rpm is None or rpm.full_name in names]


def _other_versions(found: dict[int, Rpm | None], patterns: Sequence[str]) -> list[int]:
    """Of names that exist in a version asked for, the packages in other ones."""
    fits = {n: any(matches_version(rpm.version, one) for one in patterns) for n, rpm in found.items() if rpm}
    fitting = {rpm.name for number, rpm in found.items() if rpm and fits[number]}
    return [number for number, rpm in found.items() if rpm and rpm.name in fitting and not fits[number]]


def _matching(solv: Any, pool: Any, found: dict[int, Rpm | None], want: PackageWant) -> list[int]:
    """The packages that the words mean: a name, NAME-VERSION-RELEASE.ARCH, or a capability."""
    disabled = set(pool.get_disabled_list())
    kinds = solv.Selection
    for name, version in _readings(want):
        for flags in (kinds.SELECTION_NAME | kinds.SELECTION_CANON | kinds.SELECTION_DOTARCH, kinds.SELECTION_PROVIDES):
            numbers = [s.id for s in pool.select(name, flags).solvables() if s.id not in disabled]
            numbers = [n for n in numbers if (rpm := found[n]) and matches_version(rpm.version, version or "*")]
            if numbers:
                return numbers
    return []


def _readings(want: PackageWant) -> list[tuple[str, str]]:
    """SUSE's kernel-default-devel-6.4.0-150600.21 is a name and the beginning of a version."""
    match = re.fullmatch(r"(kernel-.*devel)-(\d.*)", want.name)
    return [(want.name, want.version), *([(match[1], f"{match[2]}*")] if match else [])]


# ---------------------------------------------------------------- files


def check_rpm(package: Rpm, file: Path, keys: Sequence[bytes], fingerprints: Sequence[str]) -> str:
    """The fingerprint whose signature the file itself carries: of its header, which holds the digest of all else.

    Raises RefusedError, for a file that is another package than its list says as well.
    """
    where = package.url
    with file.open("rb") as data:
        head = signed_header(data.read(HEADERS), where)
        signed_by = check_signature(head.header, head.signature, keys, fingerprints, where)
        data.seek(head.payload_at)
        digest = hashlib.sha256()
        while piece := data.read(PIECE):
            digest.update(piece)
    if digest.hexdigest() != head.payload_sha256:
        raise RefusedError(f"{where}: its content is not what its signed header says", fix="use another mirror")
    refuse_other(head.package, (package.name, package.version, package.arch), where)
    return signed_by


def rpm_repository(packages: Sequence[Rpm], modules: str, signer: Signer) -> dict[str, bytes]:
    """The metadata of these packages, which lie in the repository's folder, signed."""
    files = rpm_metadata(packages, modules, revision=int(time.time()))
    repomd = files["repodata/repomd.xml"]
    return {**files, "repodata/repomd.xml.asc": signer.signature(repomd), "repodata/repomd.xml.key": signer.public}
