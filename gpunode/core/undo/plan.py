"""What removes gpunode's changes: from a node's journal and its present to the packages, files and settings to restore.

For each thing the first record in scope says how it was before; what is so already needs nothing, so that a second run
goes on where the first was cut off, and what neither gpunode wrote nor was there before is somebody else's: it stays,
and a note says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpunode.core.engines import GPU_UNITS
from gpunode.core.items.item import ABSENT
from gpunode.core.model import Problem
from gpunode.core.undo.driver import modules_loaded_at_boot
from gpunode.core.undo.files import SOURCE_FILES, Files, FileTransaction
from gpunode.core.undo.journal import JournalSnapshot
from gpunode.core.undo.kinds import KINDS, OTHER
from gpunode.core.undo.packages import Packages, plan_package_undo
from gpunode.core.undo.scope import Note, Scope
from gpunode.core.undo.states import first_states, set_since, states_to_restore, stuck

_HOLD_GPUS = ("nvidia-cdi-refresh.path", *(f"{name}.service" for name in GPU_UNITS))


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
    reasons: tuple[Note, ...] = ()
    theirs: tuple[str, ...] = ()  # files of which somebody else has written a version: their copies stay
    problems: tuple[Problem, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note.text for note in self.reasons)

    @property
    def noted(self) -> frozenset[str]:
        """The names of what stays as it is."""
        return frozenset(name for note in self.reasons for name in note.about)

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
    made = dict.fromkeys(
        (
            *files.left_by(packages),
            *(key for key in states if KINDS.get(key[0], OTHER).made(key[1]) and packages.made(key[1], journal)),
        )
    )
    again = _by_field({key: value for key, value in states.items() if key not in made})
    before = _by_field(first_states(scope))
    booted = modules_loaded_at_boot(journal, scope.records, scope.known, set(packages.remove))
    gone = packages.remove or again.names("installers") or booted.unload
    stop = again.names("stop")
    unload = dict.fromkeys((*again.names("unload"), *booted.unload))
    load = [name for name in again.names("load") if booted.comes_back(name)]
    loaded = bool(journal.driver) and "nvidia" not in unload
    return UndoPlan(
        stop=(*stop, *(u for u in _HOLD_GPUS if gone and "nvidia" in unload and u not in stop)),
        disable=again.names("disable"),
        engines=files.engines,
        unload=tuple(reversed(unload)),  # each was loaded upon those before
        installers=again.names("installers"),
        files=files.first,
        packages=packages.with_streams(again["streams"].get("stream", {})),
        sources=last,
        exchange=("nvidia",) if loaded and (packages.install or _left_behind(journal, scope)) else (),
        settings=again["settings"],
        load=tuple(dict.fromkeys((*load, *booted.load))),
        enable=again.names("enable"),
        start=again.names("start"),
        idle=before.names("stop"),
        awake=before.names("start"),
        rebuild=files.at_boot or any(name.startswith(("kernel", "linux")) for name in packages.remove),
        reasons=(
            *files.notes,
            *packages.notes,
            *_made(made),
            *set_since(journal, scope),
            *(stuck(journal, scope) if packages.nothing else ()),  # before they are gone, units of theirs are there
            *_installers(scope),
            *_unknown(scope),
        ),
        theirs=files.theirs,
        problems=(*files.problems, *packages.problems, *_kept_packages(journal, scope)),
    )


class _Fields(defaultdict[str, dict[str, dict[str, str]]]):
    """By field of an UndoPlan and by kind: name → value."""

    def names(self, field: str) -> tuple[str, ...]:
        return tuple(name for values in self[field].values() for name in values)


def _by_field(states: Mapping[tuple[str, str], str]) -> _Fields:
    found = _Fields(dict)
    for (kind, name), value in states.items():
        found[KINDS.get(kind, OTHER).field(value)].setdefault(kind, {})[name] = value
    return found


def _left_behind(journal: JournalSnapshot, scope: Scope) -> bool:
    """Whether the driver is loaded that an interrupted run has taken off already."""
    done = (r for r in scope.records if r.op == "packages" and r.phase != "intent")
    return journal.stale and any(r.more.get("changed") or r.more.get("removed") for r in done)


def _made(things: Collection[tuple[str, str]]) -> list[Note]:
    """The journal does not say which package's scripts made what: what one that stays speaks of stays, too."""
    named = ", ".join(" ".join(filter(None, thing)) for thing in things)
    text = f"made by scripts of packages that stay, and left as long as they do: {named}"
    return [Note(text, tuple(name for _, name in things))] if things else []


def _installers(scope: Scope) -> list[Note]:
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
        Note(f"the {name.partition('-')[0]} {version} was of a runfile: run its installer to have it back", (name,))
        for name, version in before.items()
        if version != ABSENT
    ]


def _unknown(scope: Scope) -> list[Note]:
    kinds = {kind for kind, _ in scope.states} - set(KINDS)
    return [Note(f"what the journal calls {kind} cannot be undone by this version", (kind,)) for kind in sorted(kinds)]


def _kept_packages(journal: JournalSnapshot, scope: Scope) -> list[Problem]:
    """The toolkit cannot go while engines are configured for it."""
    others = {r.id for r in scope.known if not scope.has(r) and r.id in journal.follow and journal.follow[r.id].unit}
    engines = [
        path
        for path in sorted({path for id in others for path in journal.undo.get(id, ())})
        if any(journal.files.get(path, ABSENT) in (one.before, one.after) for one in scope.files.get(path, ()))
    ]
    if scope.whole or scope.to or not engines or not any(r.part == "toolkit" for r in scope.records):
        return []
    what = f"the container engines are configured for the toolkit: {', '.join(engines)}"
    return [Problem(what=what, fix="undo the part runtime together with the part toolkit")]
