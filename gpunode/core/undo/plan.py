"""What removes gpunode's changes: from a node's journal and its present to the packages, files and settings to restore.

For each thing the first record in scope says how it was before; what is so already needs nothing, so that a second run
goes on where the first was cut off, and what neither gpunode wrote nor was there before is somebody else's: it stays,
and a note says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from gpunode.core.engines import GPU_UNITS
from gpunode.core.items.activation import LOADED
from gpunode.core.items.file import FILES
from gpunode.core.items.file_undo import Files, FileTransaction
from gpunode.core.items.item import ABSENT, Back, StateKind, Thing
from gpunode.core.items.module_undo import Booted, driver_left, modules_loaded_at_boot
from gpunode.core.items.package import PACKAGE_BACK
from gpunode.core.items.package_undo import Packages
from gpunode.core.items.sharing import MIG_LAYOUT, MIG_PROGRAM
from gpunode.core.late import dataclass, field
from gpunode.core.model import Problem
from gpunode.core.model.journal import ROLLBACK, RUN, JournalSnapshot, Note, Scope
from gpunode.core.plan.steps import KINDS
from gpunode.core.undo.scope import things_of

_HOLD_GPUS = ("nvidia-cdi-refresh.path", *(f"{name}.service" for name in GPU_UNITS))


@dataclass(frozen=True, kw_only=True)
class UndoPlan:
    """All that is to be done, in the order of the fields; `notes` say what stays as it is, and why."""

    stop: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    engines: tuple[FileTransaction, ...] = ()
    early: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # as settings, by the driver's own program
    mig: Mapping[str, str] = field(default_factory=dict)  # by the slot of a GPU
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
        others = (self.early, self.mig, self.unload, self.installers, self.settings, self.load, self.exchange)
        return not any((*files, *units, *others)) and self.packages.nothing

    @property
    def by_scripts_alone(self) -> bool:
        """Whether something is left, and no more than what scripts of packages may have done meanwhile."""
        rest = (self.engines, self.unload, self.installers, self.files, self.exchange, self.problems)
        return not self.nothing and not any(rest) and self.packages.nothing


class _Ways:
    """How each thing that the records name goes back, kind by kind: packages after the files, settings after both."""

    def __init__(self, journal: JournalSnapshot, scope: Scope) -> None:
        self.journal, self.scope = journal, scope
        self.files: Files = FILES.undo(journal, scope)
        restored, theirs = self.files.sources_restored, self.files.theirs
        self.packages: Packages = PACKAGE_BACK.undo(journal, scope, restored=restored, theirs=theirs)
        self.booted: Booted = modules_loaded_at_boot(journal, scope, self.packages.remove)

    @cached_property
    def states(self) -> Sequence[Thing[StateKind]]:
        """Those of which this version knows the kind, in the order of the records."""
        found = (thing for kind in KINDS.values() for thing in kind.undo(self.journal, self.scope))
        return sorted(found, key=lambda thing: thing.at)

    def stays_away(self, thing: Thing[StateKind]) -> bool:
        """Whether it is a module of a driver that goes."""
        return thing.kind is LOADED and thing.was != ABSENT and not self.booted.comes_back(thing.name)


def differences(journal: JournalSnapshot, scope: Scope, noted: Collection[str] = ()) -> list[str]:
    """What is not as it was before the records of `scope`, in words; what is `noted` has its reason, and stays.

    By what the node says after an undo, not by the plan.
    """
    ways = _Ways(journal, scope)
    states = (thing for thing in ways.states if not ways.stays_away(thing))
    things: Iterable[Thing[Back]] = (*ways.files.things, *ways.packages.things, *states)
    found = [one.difference for one in things if one.differs and one.name not in noted]
    left = driver_left(journal, scope) if "nvidia" not in noted else ""
    return [*found, *([f"the driver {left} is loaded, and none was"] if left else [])]


def without_repeats(notes: Sequence[str]) -> list[str]:
    """The notes once each; not one that another begins with, which a second look gives of what the first has named."""
    repeated = {one for one, other in pairwise(sorted(set(notes))) if other.startswith(one)}
    return [one for one in dict.fromkeys(notes) if one not in repeated]


def plan_undo(journal: JournalSnapshot, scope: Scope) -> UndoPlan:
    """What makes the node what it was before the records of `scope`."""
    ways = _Ways(journal, scope)
    files, packages, booted = ways.files, ways.packages, ways.booted
    last = files.last(packages)
    different = [(t, t.kind.stuck(t.now or "")) for t in ways.states if t.differs]
    stuck, states = [one for one in different if one[1]], [thing for thing, why in different if not why]
    left = [(t.kind.name, t.name) for t in states if t.kind.made(t.name) and packages.made(t.name, journal)]
    made = dict.fromkeys((*files.left_by(packages), *left))
    again = _by_field(t for t in states if (t.kind.name, t.name) not in made and not ways.stays_away(t))
    before = _by_field(ways.states)
    gone = packages.remove or again.names("installers") or booted.unload
    stop = again.names("stop")
    unload = dict.fromkeys((*again.names("unload"), *booted.unload))
    loaded = bool(journal.driver) and "nvidia" not in unload
    return UndoPlan(
        stop=(*stop, *(u for u in _HOLD_GPUS if gone and "nvidia" in unload and u not in stop)),
        disable=again.names("disable"),
        engines=files.engines,
        early=again["early"],
        mig=again["mig"].get("mig", {}),
        unload=tuple(reversed(unload)),  # each was loaded upon those before
        installers=again.names("installers"),
        files=files.first,
        packages=packages.with_streams(again["streams"].get("stream", {})),
        sources=last,
        exchange=("nvidia",) if loaded and (packages.install or _left_behind(journal, scope)) else (),
        settings=again["settings"],
        load=tuple(dict.fromkeys((*again.names("load"), *booted.load))),
        enable=again.names("enable"),
        start=again.names("start"),
        idle=before.names("stop"),
        awake=before.names("start"),
        rebuild=files.at_boot or any(name.startswith(("kernel", "linux")) for name in packages.remove),
        reasons=(
            *files.notes,
            *packages.notes,
            *_made(made),
            *(_stays(t, ": set since, not by gpunode") for t in ways.states if t.theirs),
            # before the packages are gone, units of theirs are there
            *(_stays(t, f", and was {t.was}: {why}") for t, why in stuck if packages.nothing),
            *(Note(f"{t.kind.called}{t.name}: {why}", ()) for t in states if (why := t.kind.lacks(t.was))),
            *_installers(scope),
            *_uncut(scope),
            *_unknown(scope),
        ),
        theirs=files.theirs,
        problems=(*files.problems, *packages.problems, *_kept_packages(journal, scope), *_parts_again(scope)),
    )


class _Fields(defaultdict[str, dict[str, dict[str, str]]]):
    """By field of an UndoPlan and by kind: name → value."""

    def names(self, field: str) -> tuple[str, ...]:
        return tuple(name for values in self[field].values() for name in values)


def _by_field(things: Iterable[Thing[StateKind]]) -> _Fields:
    found = _Fields(dict)
    for thing in things:
        found[thing.kind.goes_by(thing.was)].setdefault(thing.kind.name, {})[thing.name] = thing.was
    return found


def _stays(thing: Thing[StateKind], why: str) -> Note:
    return Note(f"{thing.kind.called}{thing.name} stays {thing.now or 'unset'}{why}", (thing.name,))


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
    kinds = sorted(scope.states.keys() - KINDS.keys())
    return [Note(f"what the journal calls {kind} cannot be undone by this version", (kind,)) for kind in kinds]


def _uncut(scope: Scope) -> list[Note]:
    """Of what an older gpunode did, or where another program makes the instances by now."""
    text = "MIG instances stay as they are until the next boot: no record has those that were there before"
    return [Note(text, ())] if MIG_PROGRAM in scope.own_files and MIG_LAYOUT.name not in scope.states else []


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


def _parts_again(scope: Scope) -> list[Problem]:
    """What an uninstall of some parts has removed is not all in its records: of units and settings they say nothing."""
    ended = {record.run for record in scope.records if record.op == RUN and record.phase == "done"}
    undone = [one for one in scope.records if one.undoes and one.part != ROLLBACK and one.run in ended]
    stays = {thing for record in scope.known if not scope.has(record) for thing in things_of(record)}
    if stays.isdisjoint(thing for record in undone for thing in things_of(record)):
        return []
    what = f"run {undone[0].run} uninstalled some parts, and a rollback does not bring them again"
    return [Problem(what=what, fix=f"run gpunode provision for that; rollback --to {undone[0].run} keeps it as it is")]
