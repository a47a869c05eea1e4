"""The request of node/commit/commit.sh: one transaction on files.

Request files:
  changes   lines N, `write` | `remove` | `read` | `restore` | `renew`, mode of a new file, expected hash, file that a
            new one is like or `-`, path; separated by tabs.  The hash is sha256 in hex, `absent`, or `any`; `read` only
            compares; `renew`, which cdi.sh adds, writes what other programs write again as well;
            `restore` takes an earlier transaction's copy, which is in place of the file it is like
  data.N    the new bytes of a file to write
  after     lines `KEY VALUE` of what follows the writes: unit, verb (restart | reload | await), config (the file to
            validate), socket, plugin (what `ctr plugins ls` must call ok), settle (seconds the unit has to stay up),
            handlers (runtimes the engine has to know), dump (yes: what `validate` prints is what is in force),
            process (the program that the unit restarts by itself: await), limit (seconds it has for that), reread
            (yes: systemd reads its units again before the unit is notified)
  validate  the words of a command, one a line; @FILE@ stands for the config
  health    commands, one a line, words separated by tabs: the first whose tool is there has to succeed
  undo      JSON, kept as backup/ID/undo.json when the transaction is done: whose record it is (`label`), and how the
            edit is undone (core/edits/undo.py)
  used      ids of transactions whose records are used up when this one is done: undo.json becomes undo.used.json
  later     1: that the unit stays up is proven by a later run; then the script says `settling ID`
  settling  ids of such transactions: left alone by one with changes, proven or put back by one without
  check     1 in check mode
Without changes the script only finishes or undoes what an interrupted run left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from gpunode.core.edits.target import Activation, EditTarget, FileSnapshot, texts
from gpunode.core.edits.undo import undo_data
from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, regex, replace
from gpunode.core.model import Edit
from gpunode.core.remote import as_flags, as_lines, values_of
from gpunode.core.validation import check_keys

TRIES = 3  # a transaction that is refused with Outcome.stale is worth reading and editing again, twice
_ID = regex(r"[A-Za-z0-9][A-Za-z0-9-]*\Z")
_HELD = regex(r"[A-Za-z0-9][A-Za-z0-9-]*/[0-9]+\.old\Z")


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """A file to have (`data`), to remove (`data` None), to put back (`held`), or only to compare (`read`)."""

    path: str
    data: bytes | None = None
    mode: int = 0o644  # of a new file; one that is there keeps its own
    like: str = ""  # a file whose owner a new one gets, and which it is never more readable than
    expect: str | None = None  # the sha256 it had when it was read, "" when it was absent; None: it does not matter
    read: bool = False
    held: str = ""  # an earlier transaction's copy, ID/N.old: bytes, owner and mode


def commit_request(
    changes: Sequence[FileChange] = (), *, after: Activation | None = None, check: bool = False
) -> dict[str, bytes]:
    """Request files for one transaction, in the order in which the files are to be written."""
    request: dict[str, bytes] = {}
    lines = []
    for n, change in enumerate(changes):
        for path in filter(None, (change.path, change.like)):
            if not path.startswith("/") or not path.isprintable() or "/../" in path:
                raise InputError(f"path {path!r}", expected="an absolute path without control characters")
        if change.held and not _HELD.match(change.held):
            raise InputError(f"copy {change.held!r}", expected="ID/N.old in the journal's backup")
        kinds = {"read": change.read, "restore": bool(change.held), "remove": change.data is None, "write": True}
        action = next(kind for kind, fits in kinds.items() if fits)
        like = change.held or change.like or "-"
        expect = "any" if change.expect is None else change.expect or "absent"
        lines.append(f"{n}\t{action}\t{change.mode:04o}\t{expect}\t{like}\t{change.path}\n")
        if action == "write" and change.data is not None:
            request[f"data.{n}"] = change.data
    request["changes"] = "".join(lines).encode()
    if after:
        request |= _after(after)
    return request | as_flags(check=check)


def _after(after: Activation) -> dict[str, bytes]:
    keys = {
        "unit": after.unit,
        "verb": after.verb,
        "config": after.config,
        "socket": after.socket,
        "plugin": after.plugin,
        "settle": str(after.settle),
        # `containerd config dump` prints all that is in force; `crio config` leaves out what is default
        "dump": "yes" if after.validate[-2:] == ("config", "dump") else "",
        "process": after.process,
        "reread": "yes" if after.reread else "",
        "handlers": " ".join(after.handlers),
    }
    return {
        "after": "".join(f"{key} {value}\n" for key, value in keys.items() if value).encode(),
        "validate": as_lines(after.validate),
        "health": as_lines("\t".join(words) for words in after.health),
    }


def target_request(
    target: EditTarget,
    edit: Edit,
    files: Mapping[str, FileSnapshot | None],
    after: Activation,
    *,
    used: Sequence[str] | None = None,
    place: Callable[[str], str] = str,
    check: bool = False,
) -> dict[str, bytes]:
    """The transaction of an edit: every file that was read, or was not there, is compared, the root config is written
    last, and after it what goes is removed.

    `files` are the files that were read, None for one that must stay absent.  A new file is never more readable than
    the root config, whose settings it may repeat; where there is none, than the most private file that was read.
    `used` are the ids of the records that an edit which undoes others has used up: such an edit leaves none of its
    own.  `place` gives the place on this machine of a path, where paths are those of another tree.
    """

    def order(path: str) -> tuple[bool, bool, str]:
        """The root config last, since it names the others; behind it those that go, which it names no more."""
        return edit.changes.get(path, b"") is None, path == after.config, path

    paths = {*files, *edit.changes, *(path for path in target.files(texts(files)) if not set(path) & set("*?["))}
    there = {path: found.mode for path, found in files.items() if found and found.sha256}
    like = min(there, key=lambda path: (path != after.config, there[path] & 0o077, path), default="")
    changes = [
        FileChange(
            path=place(path),
            data=edit.changes.get(path),
            like=place(like) if like else "",
            expect=found.sha256 if (found := files.get(path)) else "",
            read=path not in edit.changes,
        )
        for path in sorted(paths, key=order)
    ]
    keep = used is None
    request = commit_request(
        changes, after=replace(after, config=place(after.config), handlers=after.handlers if keep else ()), check=check
    )
    for one in used or ():
        if not _ID.match(one):
            raise InputError(f"transaction {one!r}", expected="the name of a folder in the journal's backup")
    undo = {"label": target.label, **undo_data(edit.undo)}
    return request | {
        **({"undo": json.dumps(undo).encode() + b"\n"} if keep else {}),
        **({"used": as_lines(used)} if used else {}),
    }


def side_by_side(settling: Sequence[str], *, later: bool = False) -> dict[str, bytes]:
    """Request files of one among several transactions whose units settle at the same time."""
    return ({"settling": as_lines(settling)} if settling else {}) | as_flags(later=later)


def settling_of(stdout: str) -> list[str]:
    """The transaction that a run of the script has left to be proven."""
    return [one for one in values_of(stdout, "settling") if _ID.match(one)]


def file_changes(files: Sequence[Mapping[str, object]]) -> list[FileChange]:
    """[{path, content (None removes the file), mode "0644"}] of a role's `_files` or `_sources` → changes."""
    return [_file_change(file) for file in files]


def _file_change(file: Mapping[str, object]) -> FileChange:
    check_keys("file", file, ("path", "content", "mode"))
    if "content" not in file:  # only a null that somebody wrote removes a file
        raise InputError(f"file {file.get('path')!r}: no content", expected="its text, or null to remove the file")
    path, content, mode = file.get("path"), file.get("content"), file.get("mode") or "0644"
    if not isinstance(path, str) or not isinstance(content, str | None):
        raise InputError(f"file {path!r}", expected="path and content as text, content null to remove the file")
    try:
        bits = int(mode, 8) if isinstance(mode, str) else -1
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0o777:
        raise InputError(f"{path}: mode {mode!r}", expected='octal digits in quotes, such as "0644"')
    return FileChange(path=path, data=None if content is None else content.encode(), mode=bits)
