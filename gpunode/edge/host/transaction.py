"""Transactions of commit.sh on this machine or in an image's tree: where the journal is, what it remembers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gpunode.core.edits.commit import TRIES, runtime_request
from gpunode.core.edits.engine import Activation
from gpunode.core.edits.undo import recorded_edits
from gpunode.core.errors import InputError
from gpunode.core.mask import mask, mask_quoted
from gpunode.core.model import Edit, Outcome, Undo
from gpunode.core.remote import parse_outcome, program
from gpunode.edge.host.tree import Found, Tree
from gpunode.edge.ssh.shell import local_run
from gpunode.node import script

STATE = "/var/lib/gpunode"


def run(name: str, request: Mapping[str, bytes]) -> Outcome:
    """What node script `name` did on this machine; what daemons say about their files is without secrets."""
    rc, stdout, _ = local_run(program(script(name), request), timeout=600)
    outcome = parse_outcome(stdout, rc)
    return replace(
        outcome,
        message=mask_quoted(outcome.message),
        changed=tuple(map(mask_quoted, outcome.changed)),
        notes=tuple(map(mask_quoted, outcome.notes)),
        log="\n".join(map(mask_quoted, mask(outcome.log).split("\n"))),
    )


def state_folder(root: Path, written: Sequence[Path] = ()) -> Path:
    """Where the journal is: in the tree; for a user's own files, which need no root, in the user's state folder."""
    if root != Path("/"):
        return Tree(root).place(STATE)
    if not os.geteuid() or not all(os.access(path if path.exists() else path.parent, os.W_OK) for path in written):
        return Path(STATE)
    from gpunode.edge.state import state_dir

    return state_dir() / "node"


def placed(root: Path, path: str) -> str:
    """A path of the tree as commit.sh is told of it; on this machine it follows links itself, and says so."""
    return path if root == Path("/") else str(Tree(root).place(path))


def journal_request(root: Path, edit: Edit) -> dict[str, bytes]:
    """The request file that says where the journal of this edit is; none where it always is."""
    state = state_folder(root, [Path(placed(root, path)) for path in edit.changes])
    return {} if state == Path(STATE) else {"state": f"{state}\n".encode()}


def records(root: Path, label: str) -> dict[str, Mapping[str, Undo]]:
    """What edits of that label left in the journal, newest first: id → record."""
    files = {}
    for file in (state_folder(root) / "backup").glob("*/undo.json"):
        try:
            files[str(file)] = file.read_bytes()
        except OSError as error:
            raise InputError(f"{file}: {error}", expected="an undo record that can be read") from error
    return recorded_edits(files, label)


# ---------------------------------------------------------------- one edit: read, change, commit


class Seen(Protocol):
    """Files of a tree as an edit was made from them; None for one that is not there."""

    @property
    def seen(self) -> Mapping[str, Found | None]: ...


S = TypeVar("S", bound=Seen)


def texts(seen: Mapping[str, Found | None]) -> dict[str, bytes]:
    """The files that are there."""
    return {path: found.data for path, found in seen.items() if found}


def gathered(root: Path, wanted: Callable[[Mapping[str, bytes]], Iterable[str]]) -> dict[str, Found | None]:
    """All files that an edit needs: asked for again with what was read, until nothing new is named."""
    tree, seen = Tree(root), dict[str, Found | None]()
    while fresh := {path for pattern in wanted(texts(seen)) for path in tree.matching(pattern)} - set(seen):
        seen |= {path: tree.read(path) for path in sorted(fresh)}
    return seen


def committed(
    look: Callable[[bool], S],
    make: Callable[[S], tuple[Edit, tuple[str, ...]]],
    send: Callable[[S, Edit, tuple[str, ...]], Outcome],
) -> tuple[S, Edit, Outcome | None]:
    """Read, edit, and hand the outcome to a node script; once more when a file changed in between.

    `look` is given whether it is the first time, `make` gives the edit and the records that it uses up.  No outcome
    where the edit has problems.
    """
    for left in reversed(range(TRIES)):
        subject = look(left == TRIES - 1)
        edit, used = make(subject)
        if edit.problems:
            return subject, edit, None
        outcome = send(subject, edit, used)
        if not outcome.stale:
            break
    return subject, edit, outcome


def request_of(
    root: Path, seen: Mapping[str, Found | None], edit: Edit, after: Activation, **how: Any
) -> dict[str, bytes]:
    """The request of commit.sh for an edit of files of this tree: every file that was read, or was not, is compared."""
    read = {path: (one.sha256, one.mode) if one else ("", 0) for path, one in seen.items()}
    request = runtime_request(edit, read, after, place=partial(placed, root), **how)
    return request | journal_request(root, edit)
