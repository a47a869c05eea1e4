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
    transaction that found it, "" for the present one."""

    wanted: Without
    theirs: Mapping[str, str] = field(default_factory=dict)

    @property
    def changed_since(self) -> bool:
        return "" in self.theirs.values()


def replay_file(changes: Iterable[Change], now: str, texts: Mapping[str, bytes]) -> Replayed:
    """What a file that is `now` (a hash) is to be once the changes that are `mine` are undone.

    `texts` are known bytes by hash.  There has to be such a change.
    """
    without: dict[str, Without] = {}
    theirs: dict[str, str] = {}
    last, edited = "", False
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
            without[change.before] = _less(last, change.before, without[last], texts, edited=edited)
        if change.mine:
            without[change.after] = without[change.before]
        elif without[change.before].hash == change.before:
            without[change.after] = Without(hash=change.after)
        else:
            without[change.after] = _less(change.before, change.after, without[change.before], texts, edited=True)
        last, edited = change.after, change.edited
    if now not in without:
        if last != ANY:
            theirs[now] = ""
        without[now] = _less(last, now, without[last], texts, edited=edited)
    return Replayed(wanted=without[now], theirs=theirs)


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


def replay_value(changes: Iterable[Change], same: Callable[[str, str], bool]) -> tuple[str, str]:
    """(value to put back, value that gpunode left) of a setting; what somebody else set between changes comes back.

    `same` says whether a value that was found is the one that an earlier change set.
    """
    wanted = last = ""
    begun = False
    for change in changes:
        if not begun:
            begun = change.mine
            wanted, last = change.before, change.after
            continue
        if not same(change.before, last):
            wanted = change.before
        if not change.mine:
            wanted = change.after
        last = change.after
    return wanted, last
