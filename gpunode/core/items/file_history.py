"""What a file would be without gpunode: its history in the journal, replayed.

gpunode writes down each change with how the file was before and after.  Where it was not before a change as the change
before had left it, somebody else stands between: what they wrote stays, and what gpunode wrote goes out of it, as a
three-way merge has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from gpunode.core.edits.undo import record, revert
from gpunode.core.items.item import ABSENT
from gpunode.core.late import dataclass, field

ANY = "any"  # in place of a hash: whatever it may be; ABSENT: no such file


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

    `exact` says that it was found: else it is what it was before, and what somebody wrote since stands in a copy.
    """

    hash: str
    data: bytes | None = None
    exact: bool = True


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """`wanted` is what the file is to be now; `theirs` are the versions that somebody else wrote: hash → id of the
    transaction that found it, "" for the present one.  `aside` are versions that went before theirs came,
    `unmerged` those out of which gpunode's part could not be taken."""

    wanted: Without
    theirs: Mapping[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()
    unmerged: tuple[str, ...] = ()

    @property
    def changed_since(self) -> bool:
        return "" in self.theirs.values()


def replay_file(changes: Iterable[Change], now: str, texts: Mapping[str, bytes], path: str = "") -> Replayed:
    """What a file that is `now` (a hash) is to be once the changes that are `mine` are undone.

    `texts` are known bytes by hash; `path` says how to read what was edited.  Without such a change it stays as it is.
    """
    history = _History(texts, path)
    for change in changes:
        history.add(change)
    if not history.without:  # by scripts of packages alone: with these it goes, or stays
        return Replayed(wanted=Without(hash=now))
    if now in history.without and now != history.last != ANY:  # as an earlier version was, without what came after it
        history.aside += [version for version in history.theirs if version != now]
    wanted = history.of(now, "")
    aside, unmerged = (tuple(dict.fromkeys(found)) for found in (history.aside, history.unmerged))
    return Replayed(wanted=wanted, theirs=history.theirs, aside=aside, unmerged=unmerged)


class _History:
    """The changes of a file so far, and what each version would be without those that are undone."""

    def __init__(self, texts: Mapping[str, bytes], path: str) -> None:
        self.texts, self.path = texts, path
        self.without: dict[str, Without] = {}
        self.theirs: dict[str, str] = {}
        self.aside: list[str] = []
        self.unmerged: list[str] = []
        self.last, self._edited = "", False

    def add(self, change: Change) -> None:
        if not self.without and not change.mine:
            return
        if not self.without:
            self.without[change.before] = Without(hash=change.before)
        before = self.of(change.before, change.id)
        if change.mine:
            self.without[change.after] = before
        elif before.hash == change.before:
            self.without[change.after] = Without(hash=change.after)
        else:
            self.without[change.after] = self._less(change.before, change.after, edited=True)
        self.last, self._edited = change.after, change.edited

    def of(self, version: str, id: str) -> Without:
        """Of a version that the transaction `id` found; one that nobody knows is somebody else's."""
        if version not in self.without:
            if self.last != ANY:
                self.theirs[version] = id
            self.without[version] = self._less(self.last, version, edited=self._edited)
        return self.without[version]

    def _less(self, base: str, version: str, *, edited: bool) -> Without:
        back = self.without[base]
        found = _less(base, version, back, self.texts, self.path if edited else "")
        if ABSENT in (base, version) and back.hash not in (ABSENT, base, version):
            self.aside.append(back.hash)
        elif not found.exact:
            self.unmerged.append(version)
        return found


def _less(base: str, now: str, back: Without, texts: Mapping[str, bytes], edited: str) -> Without:
    """What somebody made of `base`, which is to be `back`; `edited` is the path of a file that edits alone wrote."""
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
        data, left = revert(texts[now], record(was, texts[base]), edited)
        lost = bool(left)
    if lost:
        return Without(hash=back.hash, data=back.data, exact=False)
    return Without(hash=ABSENT if data is None else hashlib.sha256(data).hexdigest(), data=data)


def _around(data: bytes, wrote: bytes) -> bytes | None:
    """What stands around a text that was written as a whole, None where that is not there once, in whole lines."""
    at = data.find(wrote)
    if not wrote.endswith(b"\n") or at < 0 or data.find(wrote, at + 1) >= 0 or (at and data[at - 1 : at] != b"\n"):
        return None
    rest = data[:at] + data[at + len(wrote) :]
    return rest if rest.strip() else b""
