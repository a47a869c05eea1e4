"""The journal of a node, read: what gpunode changed there, in order, and how each thing is now.

node/undo/read_journal.sh prints lines `recall<TAB>KIND<TAB>FIELD…`; `parse_snapshot` makes values of them.  Without a
request it prints the journal alone; `present_request` names the things in it whose present state a second run prints:
`states` (lines KIND<TAB>NAME), `paths`, `packages`, `changed` (packages that had another version before), and `configs`
of engines, edited or not.  A record is one JSON object (docs/uninstall.md describes it): `id` ties the intent of an
operation and its outcome together, `run` is the controller's run and `part` the role at work (of an undo: uninstall or
rollback), both "" where nobody said.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from calendar import monthrange
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.edits.undo import undo_from_data
from gpunode.core.engines import ROWS
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.grammar import (
    COPY,
    HASH,
    MARK,
    NAME,
    NUMBER,
    PACKAGE,
    PATH,
    RECORD,
    TIME,
    UNIT,
    VALUE,
    VERSION,
    WORD,
    WORD_OR_DASH,
    Grammar,
)
from gpunode.core.grouped import grouped
from gpunode.core.items.item import ABSENT
from gpunode.core.late import dataclass, field, regex, replace
from gpunode.core.model import Undo
from gpunode.core.model.journal import ROLLBACK, RUN, Damage, JournalSnapshot, PostCommit, Record
from gpunode.core.plan.steps import KINDS
from gpunode.core.printable import printable, shortened
from gpunode.core.remote import as_lines

MOST_RECORDS = 100_000  # a run that sets up a whole node writes some hundred: a thousand such runs
# What belongs to an operation, by op and key: a text, a list of texts, or a list of objects with just these texts.
# A journal may have other keys, which nothing here reads.
_Shape = Grammar | list[Grammar] | list[dict[str, Grammar]]
_FILE = {"path": PATH, "before": HASH, "after": HASH}
_VERSIONED = {"name": PACKAGE, "version": VERSION}
_SHAPES: Mapping[str, Mapping[str, _Shape]] = {
    "baseline": {"driver": VALUE, "modules": [NAME]},
    "files": {"files": [_FILE], "by": WORD, "unit": UNIT},
    "packages": {
        "added": [_VERSIONED],
        "removed": [_VERSIONED],
        "changed": [{"name": PACKAGE, "from": VERSION, "to": VERSION}],
        "held": [PACKAGE],
        "unheld": [PACKAGE],
        "marks": [MARK],
        "unmarked": [MARK],
    },
    "state": {"kind": WORD, "name": NAME, "from": VALUE, "to": VALUE},
    "runfile": {"name": WORD, "version": VERSION, "from": VALUE, "kind": WORD, "remove": VALUE},
    "uninstall": {"to": RECORD},
    ROLLBACK: {"to": RECORD},
}
_NEEDED = {"state": ("kind", "name", "from", "to")}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run's part of the journal: records[first:last + 1], with the runs that went on where it was cut off.

    `name` is that of the last of them, `names` are all.
    """

    name: str
    first: int
    last: int
    at: str
    parts: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  # by op
    names: tuple[str, ...] = ()
    state: str = "done"  # failed, interrupted, or "" of a playbook, which does not say when it ends
    what: str = ""  # in words, where somebody has asked for it (core/undo/summary.py)

    @property
    def finished(self) -> bool:
        return self.state not in ("failed", "interrupted")


def present_request(records: Sequence[Record]) -> dict[str, bytes]:
    """Request files of read_journal.sh: what the journal names, in order."""
    packages = [record.more for record in records if record.op == "packages"]
    gone = {one["name"] for more in packages for key in ("changed", "removed") for one in more.get(key, ())}
    names = gone | {one["name"] for more in packages for one in more.get("added", ())}
    states = {(r.more["kind"], r.more["name"]) for r in records if r.op == "state" and r.more["kind"] in KINDS}
    return {
        "states": as_lines(f"{kind}\t{name}" for kind, name in sorted(states)),
        "paths": as_lines(sorted({file["path"] for r in records for file in r.more.get("files", ())})),
        "packages": as_lines(sorted(names)),
        "changed": as_lines(sorted(gone)),  # which a rollback may install again: has a repository them?
        "configs": as_lines(row.config for row in ROWS.values()),
    }


# ---------------------------------------------------------------- what read_journal.sh prints


def parse_snapshot(text: str) -> JournalSnapshot:
    """What read_journal.sh printed.  Raises InputError when it is not whole, or from another version of gpunode."""
    lines = text.replace("\r\n", "\n").split("\n")
    if not any(line.startswith("gpunode\tstatus\tunchanged") for line in lines):
        raise InputError("the journal's text is cut off", expected="the whole output of read_journal.sh")
    recalled = (line.split("\t")[1:] for line in lines if line.startswith("recall\t"))
    reported = grouped((kind, row) for kind, *row in recalled)
    if len(reported.get("journal", ())) > MOST_RECORDS:
        raise InputError(
            f"the journal of this node has {len(reported['journal'])} records",
            expected=f"at most {MOST_RECORDS}: no node has so many runs",
            fix="see what writes /var/lib/gpunode/journal.jsonl there; its lines before the last one of an uninstall "
            '("op":"uninstall") are over, and may be moved away',
        )
    try:
        return _snapshot(reported)
    except (ValueError, IndexError, KeyError, TypeError, RecursionError, GpunodeError, binascii.Error) as error:
        raise InputError(
            f"the journal cannot be read: {printable(str(error))[:300]}", expected="what this version of gpunode wrote"
        ) from error


def _snapshot(printed: Mapping[str, Sequence[Sequence[str]]]) -> JournalSnapshot:
    def rows(kind: str, *grammars: Grammar) -> Sequence[Sequence[str]]:
        for row in printed.get(kind, ()):
            for text, grammar in zip(row, grammars, strict=False):
                _fit(text, grammar)
        return printed.get(kind, ())

    lines = [_record("\t".join(row)) for row in rows("journal")]
    copies = {
        (id, path): f"{id}/{n}.old"
        for id, n, kept, _made, path in rows("copy", RECORD, NUMBER, WORD, PATH, PATH)
        if kept == "kept"
    }
    undo = {id: _undo(_bytes(data)) for id, data in rows("undo", RECORD)}
    leads = {row[0]: row[1] for row in rows("leads", PATH, PATH)}
    records, undo, moved, called = _by_links(_attributed([record for record in lines if record]), undo, leads)
    copies |= {(id, path): copies[id, target] for id, path, target in moved if (id, target) in copies}
    made = [row[0] for row in rows("backup")]
    return JournalSnapshot(
        records=records,
        damage=damage_of(rows("damage"), made, [(r.id, r.at) for r in records], unparsed=lines.count(None)),
        copies=copies,
        undo=undo,
        moved={path: target for _, path, target in moved},
        called=called,
        follow={
            row[0]: _follow(**dict(zip(("after", "validate", "health"), map(_bytes, row[1:]), strict=False)))
            for row in rows("follow", RECORD)
        },
        files={row[0]: row[1] for row in rows("file", PATH, HASH)},
        contents={path: _bytes(data) for path, data in rows("content", PATH)},
        engines={row[0]: row[1] for row in rows("engine", NAME, VALUE)},
        versions={(place, path): _bytes(data) for place, path, data in rows("version", COPY, PATH)},
        states={(kind, row[0]): row[1] if len(row) > 1 else "" for kind in KINDS for row in rows(kind, NAME, VALUE)},
        manager=rows("manager", WORD)[0][0] if rows("manager") else "",
        packages={name: (version, state) for name, version, state in rows("package", PACKAGE, VERSION, WORD_OR_DASH)},
        marks=frozenset(row[0] for row in rows("mark", MARK)),
        remnants=frozenset(row[0] for row in rows("remnant", PACKAGE)),
        needs=tuple((name, frozenset(words.split("|"))) for name, words in rows("needs", PACKAGE)),
        gives=_sets((word, name) for name, word in rows("gives", PACKAGE, VALUE)),
        edited=_sets((name, path) for name, path in rows("edited", PACKAGE, PATH)),
        mentions=_sets((thing, name) for name, thing in rows("mention", PACKAGE, NAME)),
        unchanged=_sets((path, name) for name, path in rows("unchanged", PACKAGE, PATH)),
        available=_sets((name, version) for name, version in rows("available", PACKAGE, VERSION)),
        driver=rows("driver", VERSION)[0][0] if rows("driver") else "",
        stale=bool(rows("stale")),
        old_initramfs=bool(rows("old_initramfs")),
    )


def _record(line: str) -> Record | None:
    """None for a line that the power cut off: its operation has not begun, or has no outcome."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    if data.pop("v", None) != 1:
        raise InputError(f"journal of format {line[:40]!r}", expected="format 1", fix="use the gpunode that wrote it")
    grammars = {"id": RECORD, "at": TIME, "op": WORD, "phase": WORD, "run": RECORD, "part": WORD}
    grammars |= {"controller": RECORD}
    words = {name: _fit(data.pop(name, ""), grammar) for name, grammar in grammars.items()}
    return Record(**words, more=_more(words["op"], data))


def _attributed(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records, where what an undo finished of an interrupted run is that run's: outcomes, and before that of a
    package transaction what scripts of its packages had made."""
    found = list(records)
    begun: dict[str, Record] = {}  # by id
    for n, record in enumerate(records):
        origin = begun.setdefault(record.id, record) if record.phase == "intent" else begun.get(record.id, record)
        if origin.undoes or not record.undoes:
            continue
        made = itertools.takewhile(lambda at: found[at].undoes and _by_scripts(found[at]), range(n - 1, -1, -1))
        for at in (n, *made):
            found[at] = replace(found[at], run=origin.run, part=origin.part, controller=origin.controller)
    return tuple(found)


def _by_links(
    records: Sequence[Record], undo: Mapping[str, Mapping[str, Undo]], leads: Mapping[str, str]
) -> tuple[tuple[Record, ...], dict[str, dict[str, Undo]], list[tuple[str, str, str]], dict[str, str]]:
    """Records of edits by the files that were written, as those of files are.

    An edit names the program's own path, a record of files the one where links led from there.  Where they no longer
    do, both files have what was written: (id, path, where it led) of those.  Last: place → path, where links led.
    """
    found: dict[str, dict[str, Undo]] = {id: dict(files) for id, files in undo.items()}
    moved: list[tuple[str, str, str]] = []
    called: dict[str, str] = {}
    wrote = {r.id: {f["path"]: f["after"] for f in r.more["files"]} for r in records if r.more.get("files")}
    for id, files in undo.items():
        targets = {after: path for path, after in wrote.get(id, {}).items() if path not in files}
        for path in files.keys() & leads.keys():
            target = targets.get(files[path].sha256 or ABSENT)
            if target:
                found[id][target], called[target] = files[path], path
            if target == leads[path]:
                del found[id][path]
            elif target:
                moved.append((id, path, target))
    names = {(id, target): path for id, path, target in moved}
    return tuple(_with_links(record, names) for record in records), found, moved, called


def _with_links(record: Record, names: Mapping[tuple[str, str], str]) -> Record:
    files = record.more.get("files", ())
    more = [file | {"path": names[record.id, file["path"]]} for file in files if (record.id, file["path"]) in names]
    return replace(record, more={**record.more, "files": [*files, *more]}) if more else record


def _by_scripts(record: Record) -> bool:
    """Whether scripts of packages may have made what it says."""
    more = record.more
    if record.op == "state":
        return more["kind"] == "active" or (more["kind"] in KINDS and KINDS[more["kind"]].made(more["name"]))
    return more.get("by") == "packages"


def _more(op: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to the operation, each text by its grammar; what nothing reads is left out."""
    for name in _NEEDED.get(op, ()):
        if name not in data:
            raise InputError(f"a record of {op} without {name}")
    shapes = _SHAPES.get(op, {})
    return {key: _shaped(value, shapes[key]) for key, value in data.items() if key in shapes}


def _shaped(value: Any, shape: _Shape) -> Any:
    if isinstance(shape, Grammar):
        return _fit(value, shape)
    if not isinstance(value, list):
        raise InputError(f"{shortened(value)} is no list")
    [inner] = shape
    if isinstance(inner, Grammar):
        return [_fit(one, inner) for one in value]
    return [_object(one, inner) for one in value]


def _object(value: Any, keys: Mapping[str, Grammar]) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InputError(f"{shortened(value)} is no object")
    return {key: _fit(value.get(key), grammar) for key, grammar in keys.items()}


def _fit(text: Any, grammar: Grammar) -> str:
    if not isinstance(text, str) or not grammar.fits(text):
        raise InputError(f"{shortened(text)} is not a valid {grammar.what}")
    return text


def _undo(data: bytes) -> dict[str, Undo]:
    undo = undo_from_data(json.loads(data))
    for path in undo:
        _fit(path, PATH)
    return undo


def _follow(**files: bytes) -> PostCommit:
    follow = PostCommit(**files)
    _fit(follow.unit, UNIT)
    return follow


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _sets(pairs: Iterator[tuple[str, str]]) -> dict[str, frozenset[str]]:
    return {key: frozenset(values) for key, values in grouped(pairs).items()}


# ---------------------------------------------------------------- runs


def era(records: Sequence[Record]) -> int:
    """The position behind the last uninstall: what stands before it is over."""
    return max((n + 1 for n, r in enumerate(records) if r.op == "uninstall" and r.phase == "done"), default=0)


def runs(records: Sequence[Record]) -> list[Run]:
    """The runs since the last uninstall, oldest first.

    Neighbouring records of no run (of a playbook of one's own, of `gpunode runtime`) count as one, which has the id of
    its first record as its name.  Those of an undo are always apart.
    """
    since = era(records)
    groups: list[list[tuple[int, Record]]] = []
    whose: tuple[str, bool] | None = None
    ids: set[str] = set()  # of operations: what finishes one, or undoes it, belongs to the run that began with it
    for n, r in enumerate(records):
        if n < since or r.op == "baseline":
            continue
        if groups and r.op in ("files", "packages") and r.id in ids:
            groups[-1].append((n, r))
            continue
        if whose != (r.run, r.undoes) and not (whose and whose[0] == r.run and r.op == RUN):
            whose, ids = (r.run, r.undoes), set()
            groups.append([])
        groups[-1].append((n, r))
        ids.add(r.id)
    return [_run(members) for members in groups]


def _run(members: Sequence[tuple[int, Record]]) -> Run:
    own = [record for _, record in members]
    ended = next((r.phase for r in reversed(own) if r.op == RUN), "interrupted")
    return Run(
        name=own[0].run or own[0].id,
        first=members[0][0],
        last=members[-1][0],
        at=own[0].at,
        parts=tuple(dict.fromkeys(r.part for r in own if r.part)),
        counts=dict(Counter(r.op for r in own if r.phase == "done" and r.op != RUN)),
        names=(own[0].run or own[0].id,),
        state=ended if any(r.controller for r in own) else "",
    )


def _together(found: Sequence[Run]) -> Run:
    """Runs that were cut off, and the last, which went on from there."""
    counts: Counter[str] = Counter()
    for run in found:
        counts.update(run.counts)
    return replace(
        found[-1],
        first=found[0].first,
        at=found[0].at,
        parts=tuple(dict.fromkeys(part for run in found for part in run.parts)),
        counts=dict(counts),
        names=tuple(name for run in found for name in run.names),
    )


def standing(records: Sequence[Record]) -> list[Run]:
    """The runs whose work stands: without those that a rollback undid, and without the rollbacks.

    An undo that failed, or was cut off, has undone nothing yet, and is no run that an undo could undo: what it did
    belongs to what was to go.  A run that did not come to its end, and the next one, are one run.
    """
    kept: list[list[Run]] = []  # each one that was cut off with those that went on from it
    first: dict[str, int] = {"": -1}  # by name, where it is among them
    for run in runs(records):
        own = records[run.first : run.last + 1]
        if not own[0].undoes or run.state == "done":  # also an uninstall of some parts, which has ended
            if not kept or kept[-1][-1].finished:
                kept.append([])
            kept[-1].append(run)
            first.setdefault(run.name, len(kept) - 1)
            continue
        to = next((str(r.more.get("to", "")) for r in reversed(own) if r.op == ROLLBACK and r.phase == "done"), None)
        if to is not None and (last := first.get(to)) is not None:
            for gone in (run for group in kept[last + 1 :] for run in group):
                if first.get(gone.name, -1) > last:
                    del first[gone.name]
            del kept[last + 1 :]
    return [_together(group) for group in kept]


_TIME = regex(r"(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])(?:T([01]\d|2[0-3]):[0-5]\d(:[0-5]\dZ?)?)?")


def _is_time(text: str) -> bool:
    found = _TIME.fullmatch(text)
    return found is not None and int(found[3]) <= monthrange(int(found[1]), int(found[2]))[1]


def after_run(records: Sequence[Record], to: str | None) -> tuple[int, str]:
    """(position, run): what stands from the position on is to be undone so that the node is as `run` left it.

    `to` is a run's name or the beginning of one, or a time such as 2026-11-22T01:40:00Z (the last run that began before
    it); None means the run before the last one that stands.  The run is "", as `to` may be, when nothing stays.
    Raises InputError for an unknown one.
    """
    if to == "":
        return era(records), ""
    kept = standing(records)
    if to is None:
        if not kept:
            return len(records), ""  # nothing to undo, as an uninstall would say
        kept = kept[:-1]
    else:
        named = [n for n, run in enumerate(kept) if to in run.names]
        named = named or [n for n, run in enumerate(kept) if any(name.startswith(to) for name in run.names)]
        if _is_time(to):
            named = [n for n, run in enumerate(kept) if run.at <= to][-1:] or [-1]
        if len(named) > 1:
            several = ", ".join(kept[n].name for n in named)
            raise InputError(f"several runs of this node begin with {to!r}", expected=f"one of {several}")
        if not named:
            known = ", ".join(run.name for run in kept)
            expected = f"one of {known}" if known else "nothing: there is no run that could be undone"
            raise InputError(f"no run {to!r} on this node", expected=expected, fix="gpunode rollback --list")
        kept = kept[: named[-1] + 1]
    return (kept[-1].last + 1, kept[-1].name) if kept else (era(records), "")


# ---------------------------------------------------------------- what is damaged

_MADE = regex(r"(\d{8}T\d{6}Z)-(?:baseline|files-(\d+))\Z")
_KINDS = ("nul", "torn", "garbage", "empty", "missing")


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
