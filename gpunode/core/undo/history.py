"""What a thing would be without gpunode: its history in the journal, replayed.

gpunode writes down each change with how the thing was before and after.  Where it was not before a change as the change
before had left it, somebody else stands between: what they wrote stays, and what gpunode wrote goes out of it, as a
three-way merge has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpunode.core.edits.undo import record, revert

ABSENT, ANY = "absent", "any"  # in place of a hash: no such file; whatever it may be


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change in the journal; `mine` where it is to be undone, `edited` where only lines of a file were changed."""

    id: str
    before: str
    after: str
    mine: bool = True
    edited: bool = False


@dataclass(frozen=True, kw_only=True)
class Without:
    """A version of a file less what is undone: its hash, and its bytes where no copy has them (None: look them up).

    `exact` says that it was found: else it is what it was before all of it, and `theirs` have what somebody wrote since.
    """

    hash: str
    data: bytes | None = None
    exact: bool = True


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """`wanted` is what the file is to be now; `theirs` are the versions that somebody else wrote: hash → id of the
    transaction that found it, "" for the present one.  `aside` are versions of theirs that go into no file."""

    wanted: Without
    theirs: Mapping[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()

    @property
    def changed_since(self) -> bool:
        return "" in self.theirs.values()


def replay_file(changes: Iterable[Change], now: str, texts: Mapping[str, bytes]) -> Replayed:
    """What a file that is `now` (a hash) is to be once the changes that are `mine` are undone.

    `texts` are known bytes by hash.  There has to be such a change.
    """
    without: dict[str, Without] = {}
    theirs: dict[str, str] = {}
    aside: list[str] = []
    last, edited = "", False

    def less(base: str, version: str, *, edited: bool) -> Without:
        back = without[base]
        found = _less(base, version, back, texts, edited=edited)
        if base == ABSENT != version and back.hash not in (ABSENT, version):
            aside.append(back.hash)
        elif not found.exact:
            aside.append(version)
        return found

    for change in changes:
        if not without:
            if change.mine:
                without[change.before] = Without(hash=change.before)
                without[change.after] = without[change.before]
                last, edited = change.after, change.edited
            continue
        if change.before not in without:
            if last != ANY:
                theirs[change.before] = change.id
            without[change.before] = less(last, change.before, edited=edited)
        if change.mine:
            without[change.after] = without[change.before]
        elif without[change.before].hash == change.before:
            without[change.after] = Without(hash=change.after)
        else:
            without[change.after] = less(change.before, change.after, edited=True)
        last, edited = change.after, change.edited
    if now not in without:
        if last != ANY:
            theirs[now] = ""
        without[now] = less(last, now, edited=edited)
    return Replayed(wanted=without[now], theirs=theirs, aside=tuple(dict.fromkeys(aside)))


def _less(base: str, now: str, back: Without, texts: Mapping[str, bytes], *, edited: bool) -> Without:
    """What somebody made of `base`, which is to be `back`."""
    if base == ANY:
        return back
    if ABSENT in (base, now) or back.hash == base:
        return Without(hash=now)
    was = back.data if back.data is not None else texts.get(back.hash)
    if not back.exact or base not in texts or now not in texts or (was is None and back.hash != ABSENT):
        return Without(hash=back.hash, data=back.data, exact=False)
    data: bytes | None
    if was is None and not edited and (rest := _around(texts[now], texts[base])) is not None:
        data, lost = rest or None, False
    else:
        data, hunks = revert(texts[now], record(was, texts[base]))
        lost = bool(hunks)
    if lost:
        return Without(hash=back.hash, data=back.data, exact=False)
    return Without(hash=ABSENT if data is None else hashlib.sha256(data).hexdigest(), data=data)


def _around(data: bytes, wrote: bytes) -> bytes | None:
    """What stands around a file's text that was written as a whole, None where that is not there once, in whole lines."""
    at = data.find(wrote)
    if not wrote.endswith(b"\n") or at < 0 or data.find(wrote, at + 1) >= 0 or (at and data[at - 1 : at] != b"\n"):
        return None
    rest = data[:at] + data[at + len(wrote) :]
    return rest if rest.strip() else b""


def replay_value(changes: Iterable[Change], same: Callable[[str, str], bool]) -> tuple[str, set[str]]:
    """(value to put back, values that gpunode set) of a setting; what somebody else set between changes comes back.

    `same` says whether a value that was found is one that an earlier change set.
    """
    wanted = ""
    ours: set[str] = set()
    begun = False
    for change in changes:
        if not begun:
            begun, wanted = change.mine, change.before
        else:
            if not any(same(change.before, one) for one in ours):
                wanted = change.before
            if not change.mine:
                wanted = change.after
        ours.add(change.after)
    return wanted, ours
