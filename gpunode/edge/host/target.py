"""The files of a program, on this machine or in an image's tree: read, edited in one transaction, and edited back."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from gpunode.core.edits.commit import TRIES, target_request
from gpunode.core.edits.target import Activation, EditTarget, gathered
from gpunode.core.edits.target import texts as texts_of
from gpunode.core.edits.undo import recorded_edits
from gpunode.core.errors import InputError
from gpunode.core.facts.machine import unfinished
from gpunode.core.late import dataclass, field, replace
from gpunode.core.mask import mask, mask_quoted
from gpunode.core.model import Edit, Outcome, Reason, Undo
from gpunode.core.remote import parse_outcome, program
from gpunode.edge.host.tree import Found, Tree
from gpunode.edge.ssh.shell import local_run
from gpunode.node import script

STATE = "/var/lib/gpunode"
WAIT = 300.0  # seconds


def run(name: str, request: Mapping[str, bytes]) -> Outcome:
    """What node script `name` did on this machine; what daemons print about their files is without secrets."""
    rc, stdout, _ = local_run(program(script(name), request), timeout=600)
    outcome = parse_outcome(stdout, rc)
    return replace(
        outcome,
        message=mask_quoted(outcome.message),
        changed=tuple(replace(one, text=mask_quoted(one.text)) for one in outcome.changed),
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
    """A path of the tree as commit.sh gets it; on this machine it follows links itself, and says so."""
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


def interrupted(root: Path) -> bool:
    """Whether the journal has a transaction without an outcome, which commit.sh finishes or undoes before all else."""
    try:
        with (state_folder(root) / "journal.jsonl").open(encoding="utf-8") as journal:
            return bool(unfinished((record["phase"], record["id"]) for record in map(json.loads, journal)))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):  # a line that only the node's script can make sense of
        return True


# ---------------------------------------------------------------- one edit: read, change, commit


@dataclass(frozen=True, kw_only=True)
class Host:
    """What is asked of a program, and the tree that its files are in.

    `wait` False leaves the program running with what it has.  `notes` are what to know of any edit.
    """

    target: EditTarget
    root: Path = Path("/")
    wait: bool = True
    notes: tuple[Reason, ...] = ()

    @property
    def here(self) -> bool:
        return self.root == Path("/")


H = TypeVar("H", bound=Host)


@dataclass(frozen=True, kw_only=True)
class Subject(Generic[H]):
    """The program's files as they were read; None for one that is not there."""

    host: H
    seen: Mapping[str, Found | None] = field(default_factory=dict)

    @property
    def texts(self) -> dict[str, bytes]:
        """The files that are there."""
        return texts_of(self.seen)


def read(root: Path, paths: Iterable[str]) -> dict[str, bytes]:
    """Those of the files that are there.  Raises InputError for what is there and is no file."""
    return texts_of({path: Tree(root).read(path) for path in paths})


def look(host: H) -> Subject[H]:
    """Read what an edit needs to be given.  Raises InputError, RefusedError."""
    tree = Tree(host.root)
    return Subject(host=host, seen=gathered(host.target.files, tree.matching, tree.read))


def edit(subject: Subject[H]) -> Edit:
    """What configure changes; in another tree nothing runs that would have to restart."""
    host = subject.host
    made = host.target.configure(subject.texts)
    return replace(made, restart=made.restart and host.here, reasons=(*made.reasons, *host.notes))


def after(subject: Subject[H], edit: Edit) -> Activation:
    """How the program takes the edit up: not at all in another tree, or where nothing changes."""
    host = subject.host
    if host.here and host.wait and (edit.changes or edit.restart):
        found = host.target.activation(subject.texts, edit)
        return found if found.unit else replace(found, handlers=())
    return Activation(unit="", verb="", config=host.target.root)


Result = tuple[Subject[H], Edit, Outcome | None]


def configure(find: Callable[[bool], H], *, check: bool = False) -> Result[H]:
    """Edit, write, and wait for health; no outcome where the edit has problems.  `check` changes nothing.

    `find` is given whether it is the first time: it is asked again when a file changed in between.
    """
    return _committed(find, undo=False, check=check)


def unconfigure(find: Callable[[bool], H], *, check: bool = False) -> Result[H]:
    """Undo what configure did, by the records it left in the journal, newest first."""
    return _committed(find, undo=True, check=check)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Commands of one user that edit at the same time wait for each other, so that none reads what another replaces.

    The node's own lock is taken for the writing alone; who still holds this one after WAIT is not waited for.
    """
    from gpunode.edge.state import StateError, append_private, state_dir

    try:
        file = append_private(state_dir() / "edit.lock")
    except (OSError, StateError):  # nowhere to keep a lock: an edit that meets another one is made again
        yield
        return
    with file:
        ends = time.monotonic() + WAIT
        while time.monotonic() < ends:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.05)
        yield


def _committed(find: Callable[[bool], H], *, undo: bool, check: bool) -> Result[H]:
    with nullcontext() if check else _one_at_a_time():
        for left in reversed(range(TRIES)):
            subject = look(find(left == TRIES - 1))
            made, used = _undone(subject) if undo else (edit(subject), None)
            if made.problems:
                return subject, made, None
            outcome = _send(subject, made, used, check=check)
            if not outcome.stale:
                break
    return subject, made, outcome


def _undone(subject: Subject[H]) -> tuple[Edit, tuple[str, ...]]:
    """The edit with the records that it uses up; it is given what they name and the files name no longer, too."""
    host = subject.host
    kept = records(host.root, host.target.label)
    more = read(host.root, {path for one in kept.values() for path in one} - set(subject.seen))
    made = host.target.unconfigure(subject.texts | more, tuple(kept.values()))
    return replace(made, reasons=(*made.reasons, *host.notes)), tuple(kept)


def _send(subject: Subject[H], edit: Edit, used: Sequence[str] | None, *, check: bool) -> Outcome:
    host, found = subject.host, after(subject, edit)
    if found.unit and edit.restart and not edit.changes:  # the program was started before its files were right
        from gpunode.core.items.activation import activate_request

        return run("activate.sh", activate_request({"restart": [found.unit]}, check=check))
    if not edit.changes and not interrupted(host.root):
        stays = any(reason.level == "stays" for reason in edit.reasons)
        message = "nothing to undo: what others have set since stays" if stays else "every file is as it should be"
        return Outcome(status="unchanged", message=message)
    unseen = {path: Tree(host.root).read(path) for path in edit.changes if path not in subject.seen}
    request = target_request(
        host.target, edit, {**subject.seen, **unseen}, found, used=used, place=partial(placed, host.root), check=check
    )
    return run("commit.sh", request | journal_request(host.root, edit))


def kubelet_version() -> str:
    """What this machine's kubelet says of itself, such as v1.34.2; "" where there is none."""
    if not (program := shutil.which("kubelet")):
        return ""
    try:
        printed = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return printed.split()[-1] if printed.startswith("Kubernetes v") else ""
