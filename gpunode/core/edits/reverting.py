"""Edits with a record, and back by their records: the same for every kind of file that is edited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpunode.core.edits.request import Refusal
from gpunode.core.edits.undo import record, remnant, revert
from gpunode.core.errors import InputError
from gpunode.core.model import Edit, Reason, Undo

Files = Mapping[str, bytes]


def recorded(files: Files, make: Callable[[], Edit]) -> Edit:
    """What `make` gives, with the record of how to take it back; a Refusal becomes its Problem."""
    try:
        edit = make()
    except Refusal as refusal:
        return Edit(problems=(refusal.problem,))
    except RecursionError:
        raise InputError("the files are nested too deeply", expected="less than a hundred levels") from None
    return replace(edit, undo={path: record(files.get(path), data) for path, data in edit.changes.items()})


def reverted(files: Files, undo: Sequence[Mapping[str, Undo]], take_out: Callable[[Files], Edit]) -> Edit:
    """What takes the edits of the records back, newest first, to the byte.

    Where a record does not fit any more, `take_out` takes our own entries out of what is left; so it does without one.
    """
    after, lost = dict(files), False
    for one in undo:
        for path, how in one.items():
            data, missing = revert(after.get(path), how)
            lost = lost or bool(missing)
            if data is None:
                after.pop(path, None)
            else:
                after[path] = data
    reasons = tuple(
        Reason(what=path, why="takes back what configure wrote", source="") for path in _changes(files, after)
    )
    if lost or not undo:
        rest = take_out(after)
        if rest.problems:
            return rest
        reasons = (*reasons, *rest.reasons)
        for path, data in rest.changes.items():
            if data is None:
                after.pop(path, None)
            else:
                after[path] = data
    made = {path: how for one in undo for path, how in one.items() if how.created}
    for path in [path for path, data in after.items() if path in made and remnant(data, made[path])]:
        del after[path]
    return Edit(changes=_changes(files, after), reasons=reasons)


def _changes(files: Files, after: Files) -> dict[str, bytes | None]:
    return {path: after.get(path) for path in sorted({*files, *after}) if files.get(path) != after.get(path)}
