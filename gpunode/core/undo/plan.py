"""What removes gpunode's changes: from a node's journal and its present to the packages, files and settings to restore.

For each thing the first record in scope says how it was before; what is so already needs nothing, so that a second run
goes on where the first was cut off, and what neither gpunode wrote nor was there before is somebody else's: it stays,
and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpunode.core.model import Problem
from gpunode.core.undo.driver import modules_loaded_at_boot
from gpunode.core.undo.files import SOURCE_FILES, UNITS, Files, FileTransaction, hashes
from gpunode.core.undo.history import ABSENT
from gpunode.core.undo.journal import STATES, JournalSnapshot
from gpunode.core.undo.packages import Packages, plan_package_undo
from gpunode.core.undo.scope import Scope
from gpunode.core.undo.states import ENABLED, ON, first_states, set_since, states_to_restore

GPU_UNITS = (
    "nvidia-cdi-refresh.path",
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "dcgm-exporter.service",
    "nvsm.service",
)

MADE_BY_PACKAGES = ("user", "group", "kernel", "initramfs", "cdi")


@dataclass(frozen=True, kw_only=True)
class UndoPlan:
    """All that is to be done, in the order of the fields; `notes` say what stays as it is, and why."""

    stop: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    engines: tuple[FileTransaction, ...] = ()
    unload: tuple[str, ...] = ()
    installers: tuple[str, ...] = ()  # driver, cuda-VERSION: what NVIDIA's installers put there goes
    files: FileTransaction | None = None
    packages: Packages = field(default_factory=Packages)
    sources: FileTransaction | None = None  # repositories go after the packages that came from them
    exchange: tuple[str, ...] = ()  # modules to load again in the version that is installed then
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by kind, name → value
    load: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()  # units that did not run: scripts of the packages that are put back may start them
    awake: tuple[str, ...] = ()  # units that ran: they may stop them
    rebuild: bool = False  # the initramfs
    notes: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()  # files of which somebody else has written a version: their copies stay
    problems: tuple[Problem, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether the node is as it was, but for what the notes name."""
        files = (self.engines, self.files, self.sources)
        units = (self.stop, self.disable, self.enable, self.start)
        others = (self.unload, self.installers, self.settings, self.load, self.exchange)
        return not any((*files, *units, *others)) and self.packages.nothing

    @property
    def by_scripts_alone(self) -> bool:
        """Whether something is left, and no more than what scripts of packages may have done meanwhile."""
        rest = (self.engines, self.unload, self.installers, self.files, self.exchange, self.problems)
        return not self.nothing and not any(rest) and self.packages.nothing


def plan_undo(journal: JournalSnapshot, scope: Scope) -> UndoPlan:
    """What makes the node what it was before the records of `scope`."""
    files = Files(journal, scope)
    packages = plan_package_undo(
        journal, scope.records, scope.known, restored=files.sources_restored(SOURCE_FILES), theirs=files.theirs
    )
    last = files.last(packages)
    states = dict(states_to_restore(journal, scope))
    made = [*files.left_by(packages), *(key for key in states if packages.kept and _is_made(key))]
    states = {key: value for key, value in states.items() if key not in made}
    booted = modules_loaded_at_boot(journal, scope.records, scope.known, set(packages.remove))
    gone = packages.remove or any(_of(states, "runfile", ABSENT)) or booted.unload
    stop = [name for kind, name, _ in _of(states, "active", "inactive")]
    unload = [name for kind, name, _ in _of(states, "module", ABSENT)]
    unload += [name for name in booted.unload if name not in unload]
    load = [name for kind, name, _ in _of(states, "module", "loaded") if booted.comes_back(name)]
    loaded = bool(journal.driver) and "nvidia" not in unload
    settings = {
        kind: {name: value for (k, name), value in states.items() if k == kind}
        for kind in ("alternative", "sysctl", "link", "cdi", "initramfs", "user", "group", "kernel", "ecc")
    }
    return UndoPlan(
        stop=(*stop, *(u for u in GPU_UNITS if gone and "nvidia" in unload and u not in stop)),
        disable=tuple(name for (kind, name), value in states.items() if kind == "enabled" and value not in ON),
        engines=files.engines,
        unload=tuple(reversed(unload)),  # each was loaded upon those before
        installers=tuple(name for _, name, _ in _of(states, "runfile", ABSENT)),
        files=files.first,
        packages=packages.with_streams({n: v for (k, n), v in states.items() if k == "stream"}),
        sources=last,
        exchange=("nvidia",) if loaded and (packages.install or _left_behind(journal, scope)) else (),
        settings={kind: values for kind, values in settings.items() if values},
        load=(*load, *(name for name in booted.load if name not in load)),
        enable=tuple(name for (kind, name), value in states.items() if kind == "enabled" and value in ENABLED),
        start=tuple(name for kind, name, _ in _of(states, "active", "active")),
        idle=tuple(name for kind, name, _ in _of(first_states(scope), "active", "inactive")),
        awake=tuple(name for kind, name, _ in _of(first_states(scope), "active", "active")),
        rebuild=files.at_boot or any(name.startswith(("kernel", "linux")) for name in packages.remove),
        notes=(
            *files.notes,
            *packages.notes,
            *_made(made),
            *set_since(journal, scope),
            *_installers(scope),
            *_unknown(scope),
        ),
        theirs=files.theirs,
        problems=(*files.problems, *packages.problems, *_kept_packages(journal, scope)),
    )


def _is_made(key: tuple[str, str]) -> bool:
    """Whether scripts of packages make such a thing; links in /dev are made by others."""
    return key[0] in MADE_BY_PACKAGES or (key[0] == "link" and key[1].startswith(UNITS))


def _of(states: Mapping[tuple[str, str], str], kind: str, value: str) -> Iterator[tuple[str, str, str]]:
    return ((k, name, v) for (k, name), v in states.items() if k == kind and v == value)


def _left_behind(journal: JournalSnapshot, scope: Scope) -> bool:
    """Whether the driver is loaded that an interrupted run has taken off already."""
    done = (r for r in scope.records if r.op == "packages" and r.phase != "intent")
    return journal.stale and any(r.more.get("changed") or r.more.get("removed") for r in done)


def _made(things: Sequence[tuple[str, str]]) -> list[str]:
    """The journal does not say which package's scripts made what: while one of them stays, all of it does."""
    named = ", ".join(" ".join(filter(None, thing)) for thing in things)
    return [f"made by scripts of packages, and left as long as some of these stay: {named}"] if things else []


def _installers(scope: Scope) -> list[str]:
    """What an installer replaced, or gpunode took off, cannot be had without that installer."""
    before: dict[str, str] = {}  # by what it is: the version that was there first
    for record in scope.records:
        more = record.more
        if record.op == "state" and more["kind"] == "runfile":
            before.setdefault(more["name"], more["from"])
        elif record.op == "runfile" and "remove" in more:
            name = f"{more['kind']}-{more['remove']}" if more["kind"] == "cuda" else more["kind"]
            before.setdefault(name, more["remove"])
    return [
        f"the {name.partition('-')[0]} {version} was of a runfile: run its installer to have it back"
        for name, version in before.items()
        if version != ABSENT
    ]


def _unknown(scope: Scope) -> list[str]:
    kinds = {r.more["kind"] for r in scope.records if r.op == "state"} - STATES
    return [f"what the journal calls {kind} cannot be undone by this version" for kind in sorted(kinds)]


def _kept_packages(journal: JournalSnapshot, scope: Scope) -> list[Problem]:
    """The toolkit cannot go while engines are configured for it."""
    engines = {
        path
        for record in scope.known
        if record not in scope.records and record.id in journal.follow and journal.follow[record.id].unit
        for path in journal.undo.get(record.id, {})
        if journal.files.get(path, ABSENT) in hashes(scope.known, path)[1:]
    }
    if scope.whole or scope.to or not engines or not any(r.part == "toolkit" for r in scope.records):
        return []
    what = f"the container engines are configured for the toolkit: {', '.join(sorted(engines))}"
    return [Problem(what=what, fix="undo the part runtime together with the part toolkit")]
