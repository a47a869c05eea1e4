"""What is wrong with the journal of a node as a file: what a power cut, a full disk or somebody left of it.

node/undo/read_journal.sh counts what is no whole record, and lists the folders below backup/.  A journal that cannot be
read, or that was emptied, is not one in which nothing stands: the copies that it made show that there was more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpunode.core.model import Problem

FOLDER = "/var/lib/gpunode/backup"
_MADE = re.compile(r"(\d{8}T\d{6}Z)-(?:baseline|files-(\d+))\Z")
_KINDS = ("nul", "torn", "garbage", "empty", "missing")


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Counts of what is no record, and the copies that show that records are gone."""

    nul: int = 0  # bytes
    torn: int = 0  # lines of ours that were cut off: their operation had not started, or has no outcome
    garbage: int = 0  # lines that no gpunode wrote
    empty: bool = False
    missing: bool = False
    readable: bool = True  # at least one record
    lost: tuple[str, ...] = ()  # copies of operations that no record names, from before the first one

    @property
    def partial(self) -> bool:
        """Whether what can be read may not be all that gpunode has changed."""
        return bool(self.garbage or self.lost)

    @property
    def notes(self) -> tuple[str, ...]:
        parts = [
            f"{self.nul} NUL bytes, as a power cut leaves them" if self.nul else "",
            f"{self.torn} line(s) that were cut off: what they were about had not started, or has no outcome"
            if self.torn
            else "",
            f"{self.garbage} line(s) that gpunode did not write" if self.garbage else "",
        ]
        found = "; ".join(part for part in parts if part)
        return (f"the journal of this node has {found}",) if found else ()

    @property
    def problem(self) -> Problem | None:
        """Why nothing can be taken back by this journal: then it is refused, and not called done."""
        state = "is gone" if self.missing else "is empty" if self.empty else "cannot be read"
        if self.lost:
            names = ", ".join(self.lost[:3]) + (f" and {len(self.lost) - 3} more" if len(self.lost) > 3 else "")
            gone = "has lost its first records" if self.readable else state
            return Problem(
                what=f"the journal of this node {gone}, and copies of what it was about are there: {names}",
                fix=f"the folders below {FOLDER} hold files as they were (N.old; `plan` has the paths), and what was "
                "installed (packages): put back by hand what is to be as it was, remove holds (apt-mark showhold), "
                "then move these folders away and run again",
            )
        if not self.readable and (self.garbage or self.nul):
            return Problem(
                what=f"the journal of this node {state}: it has no record, {'; '.join(self.notes)}",
                fix="put /var/lib/gpunode/journal.jsonl back from a backup of the node; without one, move it away",
            )
        return None


def damage_of(
    counts: Sequence[Sequence[str]], backups: Sequence[str], records: Sequence[tuple[str, str]], unparsed: int = 0
) -> Damage:
    """From read_journal.sh's lines `damage KIND COUNT`, names of folders, and (id, at) of records.

    `unparsed` are lines that look like records and are none.  Raises ValueError where a count is no number.
    """
    found: Mapping[str, int] = {kind: int(count) for kind, count in counts if kind in _KINDS}
    return Damage(
        nul=found.get("nul", 0),
        torn=found.get("torn", 0) + unparsed,
        garbage=found.get("garbage", 0),
        empty=bool(found.get("empty")),
        missing=bool(found.get("missing")),
        readable=bool(records),
        lost=_lost(backups, records),
    )


def _lost(backups: Sequence[str], records: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Copies whose operation is named by no record, though their journal had records when they were made.

    A baseline gets its folder after its record, and a transaction's name counts the records before it.  Copies younger
    than the first record may be of a run that was killed before it wrote its own.
    """
    named = {id for id, _ in records}
    first = re.sub(r"[-:]", "", records[0][1]) if records else "9"
    found = []
    for name in backups:
        made = _MADE.match(name)
        if made and name not in named and int(made[2] or 1) and made[1] < first:
            found.append(name)
    return tuple(sorted(found))
