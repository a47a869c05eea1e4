"""Units, modules and settings: how each is to be again, where gpunode alone has set it."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.core.items.item import ABSENT, StateKind
from gpunode.core.undo.driver import modules_loaded_at_boot
from gpunode.core.undo.history import replay_value
from gpunode.core.undo.journal import JournalSnapshot
from gpunode.core.undo.kinds import KINDS, OTHER
from gpunode.core.undo.packages import plan_package_undo
from gpunode.core.undo.scope import Note, Scope


def states_to_restore(journal: JournalSnapshot, scope: Scope) -> Iterator[tuple[tuple[str, str], str]]:
    """(kind, name) → the value to put back, of what has another one and got it from gpunode."""
    for (kind, name), (value, now) in _different(journal, scope).items():
        if not _kind(kind).stuck(now):
            yield (kind, name), value


def _different(journal: JournalSnapshot, scope: Scope) -> dict[tuple[str, str], tuple[str, str]]:
    """(kind, name) → (the value to put back, the present one), of what has another one and got it from gpunode."""
    return {
        (kind, name): (value, now)
        for (kind, name), (value, ours) in _wanted(scope).items()
        if (now := journal.states.get((kind, name))) is not None
        and not _kind(kind).again(now, value)
        and not _is_theirs(kind, now, ours)
    }


def stuck(journal: JournalSnapshot, scope: Scope) -> list[Note]:
    """What stays because no script can change it."""
    return [
        Note(f"{_kind(kind).called}{name} stays {now}, and was {value}: {why}", (name,))
        for (kind, name), (value, now) in _different(journal, scope).items()
        if (why := _kind(kind).stuck(now))
    ]


def states_before(journal: JournalSnapshot, scope: Scope) -> dict[tuple[str, str], str]:
    """(kind, name) → how it is to be again, of what gpunode alone has set."""
    remove = set(plan_package_undo(journal, scope.records, scope.known, restored=()).remove)
    booted = modules_loaded_at_boot(journal, scope.records, scope.known, remove)
    return {
        (kind, name): value
        for (kind, name), (value, ours) in _wanted(scope).items()
        if not _is_theirs(kind, journal.states.get((kind, name), ""), ours)
        and (kind != "module" or value == ABSENT or booted.comes_back(name))
    }


def _is_theirs(kind: str, now: str, ours: set[str]) -> bool:
    """Whether somebody else has set it to something else than gpunode had: then it is theirs."""
    there = _kind(kind)
    return there.judged(now) and there.meaning(now) not in ours


def set_since(journal: JournalSnapshot, scope: Scope) -> list[Note]:
    return [
        Note(f"{_kind(kind).called}{name} stays {now or 'unset'}: set since, not by gpunode", (name,))
        for (kind, name), (value, ours) in _wanted(scope).items()
        if (now := journal.states.get((kind, name))) is not None and now != value and _is_theirs(kind, now, ours)
    ]


def first_states(scope: Scope) -> dict[tuple[str, str], str]:
    """(kind, name) → how it was before the records."""
    return {key: value for key, (value, _) in _wanted(scope).items()}


def _wanted(scope: Scope) -> dict[tuple[str, str], tuple[str, set[str]]]:
    """(kind, name) → (how it is to be, what gpunode's values of it mean)."""
    return {
        (kind, name): replay_value(
            ((one.before, one.after, one.mine) for one in ones), _kind(kind).meaning, _kind(kind).by_people
        )
        for (kind, name), ones in scope.states.items()
    }


def _kind(name: str) -> StateKind:
    return KINDS.get(name, OTHER)
