"""What the commands that edit a host's files take and say: paths, diffs, what was done, why not; their exit codes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpunode.cli.common import show_error
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit, GpunodeError, RefusedError

if TYPE_CHECKING:
    from gpunode.core.model import Edit, Outcome
    from gpunode.edge.host.target import Subject

Files = Mapping[str, bytes]


def absolute(path: str) -> str:
    """A path as a shell's user means it; links stay as they are."""
    return posixpath.normpath(Path(path).absolute()) if path else ""


def diffs(before: Files, edit: Edit) -> str:
    """Unified diffs of all changes, secrets masked."""
    return "".join(_diff(before, path, data) for path, data in sorted(edit.changes.items()))


def _diff(before: Files, path: str, data: bytes | None) -> str:
    from gpunode.core.diff import unified

    return unified(before.get(path), data, path)


def edit_data(known: Mapping[str, Any], subject: Subject[Any], edit: Edit) -> dict[str, Any]:
    """The edit as plain data for JSON, behind what is known of its subject."""
    before = subject.texts
    return {
        **known,
        "changes": [
            {
                "path": path,
                "action": "remove" if data is None else "rewrite" if path in before else "create",
                "diff": _diff(before, path, data),
            }
            for path, data in sorted(edit.changes.items())
        ],
        "reasons": [r.data for r in edit.reasons],
        "problems": [asdict(p) for p in edit.problems],
        "disrupts": _disrupts(subject, edit) if edit.changes or edit.restart else "",
    }


def _disrupts(subject: Subject[Any], edit: Edit) -> str:
    from gpunode.edge.host.target import after

    return after(subject, edit).disrupts if not edit.problems else ""


def pending(edit: Edit, output_format: str, misfits: tuple[str, ...] = ()) -> int:
    """The exit code of what is not done yet; what stands against it is shown."""
    if edit.problems:
        if output_format == "text":
            show_error(RefusedError.of(edit.problems))
        return Exit.REFUSED
    return Exit.PENDING if edit.changes or edit.restart or misfits else Exit.OK


Result = tuple["Subject[Any]", "Edit", "Outcome | None"]


def print_done(known: Mapping[str, Any], result: Result, output_format: str, *, dry_run: bool) -> int:
    """Print what came of an edit and give the exit code."""
    subject, edit, outcome = result
    if output_format == "json":
        more = {"dry_run": dry_run, "outcome": asdict(outcome) if outcome else None}
        print_json(edit_data(known, subject, edit) | more)
    elif outcome:
        _show_outcome(subject, edit, outcome, dry_run=dry_run)
    if outcome is None:
        return pending(edit, output_format)
    ends = {"unchanged": Exit.OK, "changed": Exit.OK, "refused": Exit.REFUSED}
    return ends.get(outcome.status, Exit.FAILED)


def _show_outcome(subject: Subject[Any], edit: Edit, outcome: Outcome, *, dry_run: bool) -> None:
    """What came of an edit, for a reader; a failure as an error."""
    if outcome.status in ("failed", "rolled_back", "refused"):
        if outcome.log:
            echo(outcome.log, err=True)
        error = RefusedError if outcome.status == "refused" else GpunodeError
        show_error(error(outcome.message, fix=outcome.fix))
        return
    if dry_run:
        echo(diffs(subject.texts, edit), nl=False)
    for line in outcome.texts:
        echo(f"would be: {line}" if dry_run else line)
    for reason in edit.reasons:
        echo(f"{reason.what}: {reason.why}")
    for note in outcome.notes:
        echo(f"note: {note}")
    if dry_run and (disrupts := _disrupts(subject, edit)):
        echo(f"disturbs: {disrupts}")
    echo(outcome.message)
