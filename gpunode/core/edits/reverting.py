"""Edits with a record, and back by their records: the same for every kind of file that is edited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gpunode.core.edits.request import Refusal
from gpunode.core.edits.undo import record, remnant, revert
from gpunode.core.errors import InputError
from gpunode.core.mask import mask_quoted, masked_errors
from gpunode.core.model import Edit, Reason, Undo

Files = Mapping[str, bytes]


def recorded(files: Files, make: Callable[[], Edit]) -> Edit:
    """What `make` gives, with the record of how to take it back; a Refusal becomes its Problem."""
    try:
        with masked():
            edit = make()
    except Refusal as refusal:
        return Edit(problems=(refusal.problem,))
    except RecursionError:
        raise InputError("the files are nested too deeply", expected="less than a hundred levels") from None
    return replace(
        edit,
        reasons=quoting_no_secret(edit.reasons),
        undo={path: record(files.get(path), data) for path, data in edit.changes.items()},
    )


def quoting_no_secret(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """The reasons without the secrets of what they quote."""
    return tuple(replace(one, what=mask_quoted(one.what), why=mask_quoted(one.why)) for one in reasons)


@contextmanager
def masked() -> Iterator[None]:
    """No secret of a person's file in an error, whatever of the file it quotes."""
    try:
        with masked_errors():
            yield
    except Refusal as refusal:
        problem = refusal.problem
        raise Refusal(mask_quoted(problem.what), mask_quoted(problem.fix)) from None


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
    reasons = tuple(Reason(what=path, why="undoes what configure wrote", source="") for path in _changes(files, after))
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
