"""What is decided about a node, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gpunode.core.late import dataclass, field

Flavour = Literal["open", "proprietary"]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why something was chosen: a person can check `why` at `source`; a warning is about what it brings along.

    `stays`: of an undo, about what others have in a file.
    """

    what: str
    why: str
    source: str = ""
    level: Literal["info", "warning", "stays"] = "info"

    @property
    def data(self) -> dict[str, str]:
        """As JSON data; its level only where that is no information."""
        level = {"level": self.level} if self.level != "info" else {}
        return {"what": self.what, "why": self.why, "source": self.source, **level}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A refusal as a value: what does not work, and what would fix it."""

    what: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class PackageWant:
    """A package to have.  `version` "" takes the repository's candidate; a trailing * matches a prefix."""

    name: str
    version: str = ""
    hold: bool = False


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A package repository with its key.

    `url` is the directory, `suite` "./" or "/" for flat apt repositories (their url is complete), `key` armored or
    binary OpenPGP bytes (b"" until the edge has fetched `key_url`), `fingerprint` 40 hex digits, upper case.  `signs`
    is what an rpm repository's key signs; apt's signs the metadata always.
    """

    name: str  # nvidia-cuda, nvidia-container-toolkit, docker, debian-non-free …
    url: str
    suite: str = "/"
    components: tuple[str, ...] = ()
    key_url: str = ""
    key: bytes = b""
    fingerprint: str = ""
    key_sha256: str = ""  # of the key's file without its `Version` lines, where the fingerprint is not known
    key_id: str = ""  # what the fingerprint must end with then
    source: str = ""
    signs: Literal["packages", "metadata"] = "packages"


@dataclass(frozen=True, kw_only=True)
class Runfile:
    """One of NVIDIA's self-extracting installers, and how it is run.

    `urls` are tried in order; a `path` on the controller that is not "" stands in their place.  `sha256` "" is the
    checksum that the vendor's server has beside the file.  `options` are the installer's words.
    """

    name: str
    version: str
    arch: str
    urls: tuple[str, ...] = ()
    path: str = ""
    sha256: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A package that a node's package manager has, and what it depends on of those that were asked about."""

    name: str
    version: str
    needs: tuple[str, ...] = ()  # nvidia-kernel-common-595-server (<= 595.71.05-1)


@dataclass(frozen=True, kw_only=True)
class Unresolved:
    """A way to a driver whose transaction the package manager cannot do, and its own sentence why."""

    own: bool  # the distribution's own packages
    branch: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Archive:
    """What a node's package manager has of the names in `asked`; none where it was not asked."""

    asked: frozenset[str] = frozenset()
    offers: tuple[Offer, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()

    def lacks(self, name: str) -> bool:
        """Whether it was asked for that package, and has none."""
        return name in self.asked and not self.of(name)

    def of(self, name: str) -> list[Offer]:
        """The versions that it has of a package."""
        return [offer for offer in self.offers if offer.name == name]


@dataclass(frozen=True, kw_only=True)
class DriverChoice:
    """The driver that fits a node, and how it is installed."""

    branch: int
    flavour: Flavour
    version: str  # the exact one asked for, else the newest known of the branch
    method: Literal["packages", "runfile", "preinstalled", "none"]
    packages: tuple[PackageWant, ...]
    repository: str  # name of a Repository, "" when the distribution's own
    kernel_packages: tuple[PackageWant, ...] = ()  # headers for every kernel that can boot next
    services: tuple[str, ...] = ()  # units to enable: nvidia-persistenced, nvidia-fabricmanager …
    remove: tuple[str, ...] = ()  # conflicting packages to remove, of those installed
    may_go: tuple[str, ...] = ()  # those that the package manager may remove with them, or change
    newest: str = ""  # newest version known of the branch: what to expect where `version` is ""
    offered: str = ""  # newest version of the branch in its repository's index, "" where nobody read that
    pin: str = ""  # versions (580.*) to prefer or lock, because package names do not tell branches apart
    stream: str = ""  # nvidia-driver:580-open, the stream of a dnf module that holds the branch
    runfile: Runfile | None = None  # of method runfile
    repository_packages: tuple[PackageWant, ...] = ()  # that set up repositories; installed before the others
    builder: str = ""  # id of a repository of the distribution's that is to be enabled
    repository_files: tuple[str, ...] = ()  # what these bring of repositories that gpunode would set up itself
    modules: tuple[str, ...] = ()  # kernel modules beside its own that must be loaded, before the services start
    without: tuple[str, ...] = ()  # kernels that get no module of it: nothing that the archive has would give them one


@dataclass(frozen=True, kw_only=True)
class CudaChoice:
    """The CUDA toolkits of a node, side by side."""

    version: str  # the default one
    versions: tuple[str, ...]  # all, side by side
    method: Literal["packages", "runfile"]
    packages: tuple[PackageWant, ...]
    repository: str
    runfiles: tuple[Runfile, ...] = ()  # of method runfile, one for each of `versions`
    compat: tuple[str, ...] = ()  # versions whose forward-compatibility package stands in for a newer driver


@dataclass(frozen=True, kw_only=True)
class ToolkitChoice:
    """The NVIDIA Container Toolkit of a node."""

    version: str
    method: Literal["packages"]
    packages: tuple[PackageWant, ...]
    repository: str
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FabricChoice:
    """What is not of the driver's version: DCGM; the IMEX domain, nodes_config.cfg line by line."""

    packages: tuple[PackageWant, ...]
    repository: str
    services: tuple[str, ...]
    imex_nodes: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()  # units that must not run
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MigPlace:
    """One MIG instance to have: `id` of the profile (-1 unknown), `start` in memory slices (-1: the driver chooses)."""

    profile: str
    id: int = -1
    start: int = -1


@dataclass(frozen=True, kw_only=True)
class MigLayout:
    """How one GPU is cut.  Without instances MIG is off."""

    slot: str
    instances: tuple[MigPlace, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SharingChoice:
    """How the GPUs of a host are shared by the host itself.  `mig` None and `mps` 0: not at all."""

    mig: tuple[MigLayout, ...] | None = None
    mps: int = 0  # clients that each GPU's threads and memory are parted among
    reasons: tuple[Reason, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TuningChoice:
    """What is set on a host itself: see core/items/tuning.py."""

    arguments: tuple[str, ...] = ()  # of the kernel's command line
    sysctl: Mapping[str, str] = field(default_factory=dict)
    acs: tuple[str, ...] = ()  # slots of the bridges that must not redirect
    governor: str = ""
    memlock: tuple[str, ...] = ()  # units
    modules: tuple[str, ...] = ()  # of the kernel, for GPUDirect
    reasons: tuple[Reason, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What solve() answers.  A part that is not wanted, or could not be solved, is None or empty (see `problems`)."""

    driver: DriverChoice | None = None
    fabric: FabricChoice | None = None
    cuda: CudaChoice | None = None
    toolkit: ToolkitChoice | None = None
    sharing: SharingChoice = field(default_factory=SharingChoice)
    tuning: TuningChoice = field(default_factory=TuningChoice)
    repositories: tuple[Repository, ...] = ()
    revoked_keys: tuple[str, ...] = ()  # fingerprints of repository keys that must go
    reasons: tuple[Reason, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One span of a file that an edit replaced, with the bytes in front of it and behind it that find it again."""

    before: bytes
    after: bytes
    lead: bytes = b""
    trail: bytes = b""
    at: int = 0  # where `after` begins in the file as the edit left it


@dataclass(frozen=True, kw_only=True)
class Undo:
    """How one file gets its former bytes back, even when other lines of it have changed since."""

    created: bool = False  # the file was not there
    hunks: tuple[Hunk, ...] = ()  # in the order of the file
    sha256: str = ""  # of the file as the edit left it, "" when the edit removed it


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Files → files: what changes (None = the file goes), how to undo it, and why.

    `meant` are the settings that may differ in what the engine has in force afterwards: dotted paths without quotes,
    a table's path stands for all below it.  `restart`: the files are right, but the engine has not read them.
    `files` are those that it rests on, of a node that was probed.
    """

    changes: Mapping[str, bytes | None] = field(default_factory=dict)
    undo: Mapping[str, Undo] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    problems: tuple[Problem, ...] = ()
    meant: tuple[str, ...] = ()
    restart: bool = False
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing provision will do: option `option` of role `role` gets the literal `value`.

    The play sets the variable `<role>_<option>`; the role hands it to one action.  `diff` is a masked unified diff.
    """

    role: str  # preflight driver cuda toolkit runtime verify
    option: str
    title: str  # a sentence, shown to the user and used as task title
    value: Any  # plain data: str, int, bool, list, dict
    reasons: tuple[Reason, ...] = ()
    diff: str = ""
    disruptive: str = ""  # what it disturbs: "restarts docker: 3 containers stop"; "" when nothing

    @property
    def id(self) -> str:
        return f"{self.role}.{self.option}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done on one host, in order."""

    host: str
    steps: tuple[Step, ...] = ()
    problems: tuple[Problem, ...] = ()
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = ()
    facts_hash: str = ""  # of the facts the plan rests on
    files: Mapping[str, str] = field(default_factory=dict)  # path → masked hash ("" = absent) of those it rests on
    resolved: Mapping[str, str] = field(default_factory=dict)  # package → version, or FROM → TO, by the node's own word
    no_gpu: bool = False  # the machine lacks the GPU that it should have

    @property
    def converged(self) -> bool:
        return self.outcome == "ok"

    @property
    def outcome(self) -> Literal["ok", "pending", "refused"]:
        """How planning ended: nothing to do, steps or a GPU pending, or refused."""
        return "refused" if self.problems else "pending" if self.steps or self.no_gpu else "ok"
