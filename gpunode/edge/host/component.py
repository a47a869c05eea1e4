"""The files of a Kubernetes component, on this machine or in an image's tree: looked at, edited, and edited back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpunode.core.edits import Activation
from gpunode.core.edits.engine import Component
from gpunode.core.model import Edit, Outcome, Undo
from gpunode.edge.host import transaction
from gpunode.edge.host.tree import Found, Tree


@dataclass(frozen=True, kw_only=True)
class Host:
    """A component and the tree it lies in.  `wait` False leaves the program running with what it has."""

    component: Component
    root: Path = Path("/")
    wait: bool = True

    @property
    def here(self) -> bool:
        return self.root == Path("/")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The component's files as they were read; None for one that is not there."""

    host: Host
    seen: Mapping[str, Found | None] = field(default_factory=dict)

    @property
    def texts(self) -> dict[str, bytes]:
        """The files that are there."""
        return transaction.texts(self.seen)


def read(root: Path, paths: Iterable[str]) -> dict[str, bytes]:
    """Those of the files that are there.  Raises InputError for what is there and is no file."""
    return transaction.texts({path: Tree(root).read(path) for path in paths})


def look(host: Host) -> Subject:
    """Read what an edit needs to be given.  Raises InputError, RefusedError."""
    return Subject(host=host, seen=transaction.gathered(host.root, host.component.files))


def edit(subject: Subject) -> Edit:
    """What configure changes."""
    return subject.host.component.configure(subject.texts)


def after(subject: Subject, edit: Edit) -> Activation:
    """How the program takes the edit up: not at all in another tree."""
    component, host = subject.host.component, subject.host
    if host.here and host.wait and edit.changes:
        return component.activation(subject.texts, edit)
    return Activation(unit="", verb="", config=str(Tree(host.root).place(component.root)))


def configure(host: Host, *, check: bool = False) -> tuple[Subject, Edit, Outcome | None]:
    """Edit, write, and wait for health; no outcome where the edit has problems.  `check` changes nothing."""
    return _commit(host, lambda subject: (edit(subject), ()), keep=True, check=check)


def unconfigure(host: Host, *, check: bool = False) -> tuple[Subject, Edit, Outcome | None]:
    """Take back what configure did, by the records it left in the journal, newest first."""
    return _commit(host, _unconfigured, keep=False, check=check)


def _unconfigured(subject: Subject) -> tuple[Edit, tuple[str, ...]]:
    host = subject.host
    kept = transaction.records(host.root, host.component.label)
    texts = _with_recorded(subject, kept.values())
    return host.component.unconfigure(texts, tuple(kept.values())), tuple(kept)


def _with_recorded(subject: Subject, kept: Iterable[Mapping[str, Undo]]) -> dict[str, bytes]:
    """The files, with those that an edit wrote and that nothing names any more."""
    return subject.texts | read(subject.host.root, {path for one in kept for path in one} - set(subject.seen))


def _commit(
    host: Host, make: Callable[[Subject], tuple[Edit, tuple[str, ...]]], *, keep: bool, check: bool
) -> tuple[Subject, Edit, Outcome | None]:
    def send(subject: Subject, edit: Edit, used: Sequence[str]) -> Outcome:
        component, tree = host.component, Tree(host.root)
        unseen = {path: tree.read(path) for path in edit.changes if path not in subject.seen}
        request = transaction.request_of(
            host.root,
            {**subject.seen, **unseen},
            edit,
            replace(after(subject, edit), config=transaction.placed(host.root, component.root)),
            label=component.label if keep else "",
            used=used,
            settle=component.settle,
            check=check,
        )
        return transaction.run("commit.sh", request)

    return transaction.committed(lambda _: look(host), make, send)


def kubelet_version() -> str:
    """What this machine's kubelet says of itself, such as v1.34.2; "" where there is none."""
    if not (program := shutil.which("kubelet")):
        return ""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.split()[-1] if said.startswith("Kubernetes v") else ""
