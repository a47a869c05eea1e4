"""The request of node/commit.sh: one transaction on files.

Request files:
  changes   lines N, `write` | `remove` | `read`, mode of a new file, expected hash, path; separated by tabs.  The hash
            is sha256 in hex, `absent`, or `any`; `read` only compares.
  data.N    the new bytes of a file to write
  after     lines `KEY VALUE` of what follows the writes: unit, verb (restart | reload), config (the file to validate),
            socket, plugin (what `ctr plugins ls` must call ok), settle (seconds the unit has to stay up)
  validate  the words of a command, one a line; @FILE@ stands for the config
  health    commands, one a line, words separated by tabs: the first whose tool is there has to succeed
  check     1 in check mode
Without changes the script only finishes or undoes what an interrupted run left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpunode.core.edits import Activation, activation
from gpunode.core.errors import InputError
from gpunode.core.model import ConfigFile, Edit, NodeFacts, RuntimeWish


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """A file to have (`data`), to remove (`data` None), or only to compare (`read`).

    `mode` is for a new file, such as 0o644; one that is there keeps its own.  `expect` is the sha256 the file had when
    it was read, "" when it was absent, None when it does not matter.
    """

    path: str
    data: bytes | None = None
    mode: int = 0o644
    expect: str | None = None
    read: bool = False


def commit_request(
    changes: Sequence[FileChange] = (), *, after: Activation | None = None, settle: int = 3, check: bool = False
) -> dict[str, bytes]:
    """Request files for one transaction, in the order in which the files are to be written."""
    request: dict[str, bytes] = {}
    lines = []
    for n, change in enumerate(changes):
        if not change.path.startswith("/") or not change.path.isprintable() or "/../" in change.path:
            raise InputError(f"path {change.path!r}", expected="an absolute path without control characters")
        action = "read" if change.read else "remove" if change.data is None else "write"
        expect = "any" if change.expect is None else change.expect or "absent"
        lines.append(f"{n}\t{action}\t{change.mode:04o}\t{expect}\t{change.path}\n")
        if action == "write" and change.data is not None:
            request[f"data.{n}"] = change.data
    request["changes"] = "".join(lines).encode()
    if after:
        request |= _after(after, settle)
    return request | ({"check": b"1\n"} if check else {})


def _after(after: Activation, settle: int) -> dict[str, bytes]:
    keys = {
        "unit": after.unit,
        "verb": after.verb,
        "config": after.config,
        "socket": after.socket,
        "plugin": after.plugin,
        "settle": str(settle),
    }
    return {
        "after": "".join(f"{key} {value}\n" for key, value in keys.items() if value).encode(),
        "validate": "".join(f"{word}\n" for word in after.validate).encode(),
        "health": "".join("\t".join(words) + "\n" for words in after.health).encode(),
    }


def edit_request(facts: NodeFacts, wish: RuntimeWish, edit: Edit, *, check: bool = False) -> dict[str, bytes]:
    """The transaction of an engine's edit: every file that was read is compared, the root config is written last.

    A new file is never more readable than the root config, whose settings it may repeat.
    """
    after = activation(facts, wish, edit)
    runtime = facts.runtime(wish.runtime)
    root = facts.files.get(after.config, ConfigFile(path=after.config))
    paths = dict.fromkeys((*edit.changes, *(runtime.files if runtime else ())))
    ordered = sorted(paths, key=lambda path: (path == after.config, path))
    changes = [
        FileChange(
            path=path,
            data=edit.changes.get(path),
            mode=root.mode & 0o644,
            expect=facts.files[path].sha256 if path in facts.files else "",
            read=path not in edit.changes,
        )
        for path in ordered
    ]
    return commit_request(changes, after=after, check=check)


def file_changes(files: Sequence[Mapping[str, object]]) -> list[FileChange]:
    """[{path, content (None removes the file), mode "0644"}] of a role's `_files` or `_sources` → changes."""
    return [_file_change(file) for file in files]


def _file_change(file: Mapping[str, object]) -> FileChange:
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
