"""The data of knowledge/*.toml as frozen dataclasses.  The edge reads the files, `parse_knowledge` gives them shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from gpunode.core.late import dataclass, field, replace
from gpunode.core.numbers import version_tuple

Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A GPU generation.  Branches: 0 = none is known (first), or no last one (last)."""

    name: str
    order: int
    first_branch: int
    last_branch: int
    open: Literal["no", "yes", "only"]
    source: str


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """A GPU by its PCI id (10de:2330)."""

    id: str
    name: str
    chip: str
    arch: str
    compute_capability: str  # "" where not published
    kind: str  # datacenter workstation geforce mining tegra grace-soc unnamed not-a-gpu
    mobile: bool
    mig: str  # where it is proven: mig-parted, guide, chip; "unknown"; "" = not capable
    fabric: Literal["", "nvswitch", "imex"]  # what joins several of them
    open: Literal["no", "yes", "only"]  # do the open kernel modules drive it
    first_release: str  # first driver that drives it, a version or a branch; "" where the architecture says enough
    source: str
    confidence: str


@dataclass(frozen=True, kw_only=True)
class NvLinks:
    """The NVLinks of a GPU that is well: how many are up, and GB/s of each (0: not known).

    `bridged`: only where a bridge joins two cards.
    """

    up: int
    speed: float
    bridged: bool
    source: str


@dataclass(frozen=True, kw_only=True)
class Subsystems:
    """What a subsystem of NVIDIA's own (10de:14bb) says of a GPU: a virtual one, or a board; no boards: not known."""

    virtual: frozenset[str]
    boards: frozenset[str]
    source: str


@dataclass(frozen=True, kw_only=True)
class LegacyGpu:
    """A GPU older than Kepler, with the last branch that drove it."""

    id: str
    name: str
    arch: str
    last_branch: str


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A driver branch.  `eol` is YYYY-MM, "past", or "" when none is announced."""

    branch: int
    kind: str  # LTSB PB NFB legacy unknown
    latest: str
    eol: str
    min_arch: str
    max_arch: str
    cuda_major: int
    open: Literal["no", "datacenter", "yes", "only"]
    source: str
    max_kernel: str = ""  # the newest Linux that its newest release still compiles for, "" where none is known

    def ended(self, as_of: str) -> bool:
        """Whether its support is over on the day `as_of` (YYYY-MM-DD)."""
        return self.eol == "past" or (bool(self.eol) and self.eol < as_of[:7])


@dataclass(frozen=True, kw_only=True)
class Capability:
    """A compute capability, and the first and last CUDA release that compiles for it ("" = no last)."""

    arch: str
    first: str
    last: str
    source: str


@dataclass(frozen=True, kw_only=True)
class CudaRelease:
    """CUDA MAJOR.MINOR: the driver it came with, and the oldest that runs it ("" where unknown)."""

    version: str
    native: str
    compat: str
    source: str


@dataclass(frozen=True, kw_only=True)
class RepositoryKey:
    """A repository's signing key.  `url` may hold {repository}; a fingerprint "" is not known.

    Where the fingerprint is not known, `file_sha256` may be: of the key's file without its `Version` lines.
    """

    id: str
    url: str
    fingerprint: str
    source: str
    state: str = ""  # "revoked on 2022-04-27"
    file_sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class DistroRow:
    """A distribution release and what the package repositories hold for it (knowledge/repos.toml says each field)."""

    key: str
    family: str
    dir: str
    archs: tuple[str, ...]
    signed_by: str
    branches: tuple[int, ...]  # in NVIDIA's repository
    cuda: tuple[str, str]
    eol: str
    source: str
    own: tuple[int, ...] = ()
    own_dkms: tuple[int, ...] = ()  # of which the distribution has what DKMS builds, not always built modules
    own_flavours: Mapping[int, str] = field(default_factory=dict)  # branches of its own that are there in one alone
    own_kernels: Mapping[int, str] = field(default_factory=dict)  # newest Linux that a branch of its own compiles for
    built_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # kernels that modules are built for
    no_extra: tuple[str, ...] = ()  # kernel flavours without a package of extra modules
    components: tuple[str, ...] = ()
    codename: str = ""
    ga_kernel: str = ""
    modular: bool = False
    kernels: tuple[tuple[str, ...], ...] = ()  # (pattern of uname -r, header packages …)
    owner_headers: str = ""  # the header package of a kernel, by the package {base} that the kernel is of
    headers_meta: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    epel: str = ""  # the release of EPEL that dkms comes from
    repositories: tuple[str, ...] = ()  # packages that set up repositories
    product: str = ""  # what its owner registers for packages that the driver's depend on
    builder: str = ""  # id of the repository that has what EPEL's packages need
    open_only: bool = False  # NVIDIA supports its open kernel modules alone on it
    by_arch: Mapping[str, Mapping[str, tuple[Any, Any]]] = field(default_factory=dict)  # other ranges than the row's
    read: str = ""  # the day of the newest source on NVIDIA's repository, YYYY-MM-DD; "" where none was read
    own_read: str = ""  # the same on what the distribution itself has
    verified: bool = True  # a source of it was read, and has a day

    def on(self, arch: str) -> DistroRow:
        """The row with the ranges that the repository of that architecture has."""
        other = self.by_arch.get(arch)
        return replace(self, **other) if other else self  # type: ignore[arg-type]  # branches and cuda


@dataclass(frozen=True, kw_only=True)
class Precompiled:
    """Kernel modules that are built for a distribution's kernels already (knowledge/repos.toml says each field)."""

    keys: tuple[str, ...]
    signer: str
    source: str
    own: bool = False
    flavour: Literal["", "open", "proprietary"] = ""
    branches: tuple[int, ...] = ()
    archs: tuple[str, ...] = ()
    trusted: bool = False
    unasked: bool = False
    since: str = ""
    repositories: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    stream: str = ""
    packages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    by_kernel: tuple[str, ...] = ()
    modules: str = ""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A release that exists, and of which too little was read to set it up."""

    key: str
    why: str
    fix: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """Everything gpunode knows of the world, on the day `as_of`."""

    as_of: str
    architectures: Mapping[str, Architecture]
    gpus: Mapping[str, GpuModel]
    nvswitches: Mapping[str, str]
    nvlinks: Mapping[str, NvLinks]  # by PCI id
    subsystems: Mapping[str, Subsystems]  # by PCI id
    legacy: Mapping[str, LegacyGpu]
    branches: Mapping[int, Branch]
    rules: Mapping[str, Table]
    capabilities: Mapping[str, Capability]
    cuda: Mapping[str, CudaRelease]
    cuda_packages: Table
    cuda_forward: Table
    cuda_runfile: Table
    driver_runfile: Table
    distros: Mapping[str, DistroRow]
    keys: Mapping[str, RepositoryKey]
    repositories: Mapping[str, Table]
    packages: Mapping[str, Table]
    application_xids: frozenset[int]  # the program is to blame, or it only tells of something: the GPU is sound
    cleanup_xids: frozenset[int]  # of them, those that say nothing by themselves
    precompiled: tuple[Precompiled, ...] = ()
    packagers: tuple[Table, ...] = ()  # of rpm packages of their own, with their repositories
    unread: Mapping[str, Unread] = field(default_factory=dict)  # ID:VERSION_ID → why it cannot be set up
    tested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # nodes, plans: DISTRIBUTION/ARCHITECTURE

    def evidence(self, distro: str, arch: str) -> Literal["nodes", "plans", ""]:
        """How far it was tested on that architecture: on throw-away nodes, as a recorded plan, or never."""
        found = (kind for kind in ("nodes", "plans") if f"{distro}/{arch}" in self.tested.get(kind, ()))
        return next(found, "")  # type: ignore[arg-type]  # one of the two

    def gpu(self, pci_id: str) -> GpuModel | None:
        """The model with that PCI id (10de:2330), None when it is not known or older than Kepler."""
        return self.gpus.get(pci_id.lower())

    def distro(self, key: str, made_from: str = "") -> DistroRow | None:
        """The row of ID:VERSION_ID; rocky:9.4 has that of rocky:9, a derivative that of what it is made from."""
        row = self.distros.get(key) or self.distros.get(key.partition(".")[0]) or self.distros.get(made_from)
        return row or next((row for row in self.distros.values() if made_from and row.codename == made_from), None)

    def built_modules(self, row: DistroRow, arch: str) -> Precompiled | None:
        """The kernel modules that are built for that release already, None where nobody builds them."""
        found = (one for one in self.precompiled if row.key in one.keys or row.family in one.keys)
        return next((one for one in found if not one.archs or arch in one.archs), None)

    def cuda_package(self, kind: Literal["toolkit", "compat"], version: str) -> str:
        """The package of CUDA MAJOR.MINOR, or the one that brings a newer driver's libraries for it."""
        major, minor = version.split(".")
        return str(self.cuda_packages[kind]).format(major=major, minor=minor)

    def ranges(self, branches: Iterable[int]) -> str:
        """Branches as ranges of those that exist: 450 to 575, 595."""
        numbers = sorted(branches)
        every = sorted({*self.branches, *numbers})
        runs: list[list[int]] = []
        for branch in numbers:
            if runs and every.index(branch) == every.index(runs[-1][-1]) + 1:
                runs[-1].append(branch)
            else:
                runs.append([branch])
        words = (f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
        return ", ".join(words) or "none"

    def revoked_keys(self) -> tuple[str, ...]:
        """Fingerprints of repository keys that their vendor has revoked."""
        return tuple(key.fingerprint for key in self.keys.values() if key.state.startswith("revoked"))

    def solved_distros(self) -> tuple[str, ...]:
        """Keys of the distributions whose package names are known."""
        return tuple(k for k, row in self.distros.items() if row.family in self.packages)


def parse_knowledge(gpus: Table, drivers: Table, cuda: Table, repos: Table, xids: Table) -> Knowledge:
    """The five parsed TOML files → Knowledge; short source keys become the text they stand for."""
    chips = {chip: (arch, cc) for chip, arch, cc in _rows(gpus["tables"]["chips"])}
    architectures = {
        name: Architecture(name=name, order=order, **_sourced(row, gpus))
        for order, (name, row) in enumerate(gpus["architectures"].items())
    }
    return Knowledge(
        as_of=drivers["as_of"],
        architectures=architectures,
        gpus={m.id: m for m in (_gpu(r, chips, architectures) for r in _rows(gpus["tables"]["gpus"]))},
        nvswitches={f"10de:{row[0]}": row[1] for row in _rows(gpus["tables"]["nvswitches"])},
        nvlinks={
            f"10de:{pci_id}": NvLinks(
                up=int(up),
                speed=float(speed or 0),
                bridged=kind == "bridge",
                source=source_of({"source": source}, gpus),
            )
            for ids, up, speed, kind, source in _rows(gpus["tables"]["nvlinks"])
            for pci_id in ids.split()
        },
        subsystems={
            f"10de:{i}": Subsystems(virtual=_ids(virtual), boards=_ids(boards), source=source_of({"source": s}, gpus))
            for i, virtual, boards, s in _rows(gpus["tables"]["vgpus"])
        },
        legacy={
            f"10de:{i}": LegacyGpu(id=f"10de:{i}", name=name, arch=arch, last_branch=last)
            for i, name, arch, last in _rows(gpus["tables"]["legacy"])
        },
        branches={r["branch"]: Branch(**_sourced(r, drivers)) for r in drivers["branches"]},
        rules={name: _sourced(row, drivers) for name, row in drivers["rules"].items()},
        capabilities={cc: Capability(**_sourced(row, cuda)) for cc, row in cuda["capabilities"].items()},
        cuda=_cuda_releases(cuda),
        cuda_packages=_sourced(cuda["packages"], cuda),
        cuda_forward=_sourced(cuda["forward"], cuda),
        cuda_runfile=_sourced(cuda["runfile"], cuda),
        driver_runfile=_sourced(drivers["runfile"], drivers),
        distros={key: _distro(key, r, repos) for r in repos["distros"] for key in r["keys"]},
        keys={r["id"]: RepositoryKey(**_sourced(r, repos)) for r in repos["keys"]},
        repositories={name: _sourced(row, repos) for name, row in repos["repositories"].items()},
        packages={name: _sourced(row, repos) for name, row in repos["packages"].items()},
        application_xids=frozenset(
            row["code"] for row in xids["xid"] if row.get("application") or row.get("immediate") == "IGNORE"
        ),
        cleanup_xids=frozenset(row["code"] for row in xids["xid"] if row.get("cleanup")),
        precompiled=tuple(
            Precompiled(**{name: _frozen(value) for name, value in _sourced(row, repos).items()})
            for row in repos.get("precompiled", ())
        ),
        packagers=tuple(_sourced(row, repos) for row in repos.get("packagers", ())),
        unread={row["key"]: Unread(**_sourced(row, repos)) for row in repos.get("unread", ())},
        tested={kind: tuple(names) for kind, names in repos.get("tested", {}).items()},
    )


def _rows(text: str) -> Iterable[list[str]]:
    return ([cell.strip() for cell in line.split("|")] for line in text.splitlines() if line)


def _ids(text: str) -> frozenset[str]:
    """Words 14b6-14cb 1482 → PCI ids of NVIDIA."""
    spans = [(first, last or first) for first, _, last in (word.partition("-") for word in text.split())]
    return frozenset(f"10de:{n:04x}" for first, last in spans for n in range(int(first, 16), int(last, 16) + 1))


def _sourced(row: Table, file: Table) -> dict[str, Any]:
    """The row without its bookkeeping, `source` spelled out by the file's [sources]."""
    kept = {k: v for k, v in row.items() if k not in ("checked", "source_date", "confidence", "note")}
    return kept | {"source": source_of(row, file)}


def source_names(source: str) -> list[str]:
    """The short names of what is cited, without the details that may follow one."""
    return [part.strip().partition(" ")[0] for part in source.split(";")]


def source_of(row: Table, file: Table) -> str:
    """The row's source, its short names spelled out by the file's [sources]."""
    # a short name may be followed by a detail: `ubuntu (nvidia-driver-590)`
    parts = [part.strip().partition(" ") for part in str(row["source"]).split(";")]
    return "; ".join(file["sources"].get(name, name) + space + rest for name, space, rest in parts)


def source_date_of(row: Table, file: Table) -> str:
    """The day of the newest source of the row, YYYY-MM-DD; "" where none has one, and the row is unverified."""
    names = source_names(str(row["source"]))
    return str(max((row.get("source_date", ""), *(file["dates"].get(name, "") for name in names))))


def _gpu(row: list[str], chips: Mapping[str, tuple[str, str]], archs: Mapping[str, Architecture]) -> GpuModel:
    pci_id, name, chip, kind, mobile, mig, fabric, open_, first, source, confidence = row
    arch, capability = chips[chip]
    by_id: Mapping[str, Literal["no", "only"]] = {"no": "no", "required": "only"}
    return GpuModel(
        id=f"10de:{pci_id}",
        name=name,
        chip=chip,
        arch=arch,
        compute_capability=capability,
        kind=kind,
        mobile=bool(mobile),
        mig=mig,
        fabric=fabric,  # type: ignore[arg-type]  # tests/unit/test_knowledge.py checks the words
        open=by_id.get(open_, archs[arch].open),
        first_release=first,
        source=source,
        confidence=confidence,
    )


def _cuda_releases(file: Table) -> dict[str, CudaRelease]:
    """Toolkits by MAJOR.MINOR, each with the lowest drivers that any of its updates asks for."""
    found: dict[str, CudaRelease] = {}
    for row in file["toolkits"]:
        version = ".".join(row["version"].split(".")[:2])
        seen = found.get(version)
        native = min((v for v in (row["native"], seen.native if seen else "") if v), key=version_tuple, default="")
        compat = min((v for v in (row["compat"], seen.compat if seen else "") if v), key=version_tuple, default="")
        found[version] = CudaRelease(version=version, native=native, compat=compat, source=source_of(row, file))
    return found


def _distro(key: str, row: Table, file: Table) -> DistroRow:
    fields = {name: _frozen(value) for name, value in _sourced(row, file).items() if name != "keys"}
    distribution = key.partition(":")[0]
    fields["verified"] = bool(source_date_of(row, file))
    fields["read"], fields["own_read"] = _read(row, file)
    fields["own_flavours"] = {int(branch): flavour for branch, flavour in row.get("own_flavours", {}).items()}
    fields["own_kernels"] = {int(branch): kernel for branch, kernel in row.get("own_kernels", {}).items()}
    fields["built_for"] = {version: tuple(flavours) for version, flavours in row.get("built_for", {}).items()}
    fields["repositories"] = _frozen(row.get("repositories", {}).get(distribution, []))
    fields["product"] = row.get("product", {}).get(distribution, "")
    fields["builder"] = row.get("builder", {}).get(distribution, "")
    fields["eol"] = row["eol"].get(distribution, "") if isinstance(row["eol"], Mapping) else row["eol"]
    fields["by_arch"] = {
        arch: {name: _frozen(span) for name, span in spans.items()} for arch, spans in row.get("by_arch", {}).items()
    }
    return DistroRow(key=key, **fields)


def _read(row: Table, file: Table) -> tuple[str, str]:
    """The days on which NVIDIA's repository, and what the distribution itself has, were read last; "" for never."""
    about = file.get("about", {})
    own, other = set(about.get("own", ())), set(about.get("other", ()))
    names = source_names(str(row["source"]))
    theirs = [file["dates"].get(name, "") for name in names if name not in own | other]
    if {"repository", "source_date"} <= {*names, *row}:
        theirs = [row["source_date"]]  # its index was read
    ours = [file["dates"].get(name, "") for name in names if name in own]
    return max(theirs, default="") or str(row.get("source_date", "")), max(ours, default="")


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
