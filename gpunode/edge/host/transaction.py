"""Transactions of commit.sh on this machine or in an image's tree: where the journal is, what it remembers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpunode.core.edits.undo import undo_from_data
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.mask import mask, mask_quoted
from gpunode.core.model import Edit, Outcome, Undo
from gpunode.core.remote import parse_outcome, program
from gpunode.edge.host.tree import Tree
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


def records(state: Path, label: str) -> dict[str, Mapping[str, Undo]]:
    """What edits of that label left in the journal, newest first: id → record."""
    found: dict[str, Mapping[str, Undo]] = {}
    for file in sorted((state / "backup").glob("*/undo.json"), reverse=True):
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(data, dict) and data.get("label") == label:
                found[file.parent.name] = undo_from_data(data)
        except (OSError, ValueError, RecursionError, GpunodeError) as error:
            raise InputError(
                f"{file}: {error}",
                expected="an undo record that configure wrote",
                fix="move it away: then unconfigure takes only what it knows for its own out",
            ) from error
    return found
