"""What `gpunode kube scheduler` and `gpunode kube kubelet` have in common: their options, and how they answer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option, show_error
from gpunode.cli.edits import diffs, edit_data, exit_of, show_outcome
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit, RefusedError

if TYPE_CHECKING:
    from gpunode.core.model import Edit
    from gpunode.edge.host.target import Host, Subject

ROOT = click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/",
    show_default=True,
    help="Another tree, such as a mounted image: its files, nothing is restarted.",
)
VERSION = click.option(
    "--server-version", metavar="V", default="", help="Release of Kubernetes here, such as 1.34 or v1.34.2."
)
FORMAT = format_option("text", "json")
HOW = (
    click.option("--dry-run", is_flag=True, help="Show what would change, change nothing."),
    click.option("--no-wait", is_flag=True, help="Write the files; nothing is restarted, nothing awaited."),
)


def show_diff(host: Host, output_format: str) -> int:
    """What configure would change."""
    from gpunode.edge.host import target

    subject = target.look(host)
    edit = target.edit(subject)
    if output_format == "json":
        print_json(_data(subject, edit))
    else:
        echo(diffs(subject.texts, edit), nl=False)
        for reason in edit.reasons:
            echo(f"# {reason.what}: {reason.why}")
    return _pending(edit, output_format)


def configure_or_undo(host: Host, *, undo: bool, dry_run: bool, output_format: str) -> int:
    """Configure or unconfigure, print what came of it, and give the exit code."""
    from gpunode.edge.host import target

    subject, edit, outcome = (target.unconfigure if undo else target.configure)(lambda _: host, check=dry_run)
    if output_format == "json":
        print_json(_data(subject, edit) | {"dry_run": dry_run, "outcome": asdict(outcome) if outcome else None})
    elif outcome:
        show_outcome(subject.texts, edit, outcome, disrupts=_disrupts(subject, edit), dry_run=dry_run)
    return _pending(edit, output_format) if outcome is None else exit_of(outcome)


def _data(subject: Subject[Host], edit: Edit) -> dict[str, Any]:
    known = {"component": subject.host.target.name, "root": subject.host.target.root}
    return known | edit_data(subject.texts, edit, _disrupts(subject, edit))


def _disrupts(subject: Subject[Host], edit: Edit) -> str:
    from gpunode.edge.host.target import after

    return after(subject, edit).disrupts if not edit.problems else ""


def _pending(edit: Edit, output_format: str) -> int:
    if edit.problems:
        if output_format == "text":
            show_error(RefusedError.of(edit.problems))
        return Exit.REFUSED
    return Exit.PENDING if edit.changes else Exit.OK
