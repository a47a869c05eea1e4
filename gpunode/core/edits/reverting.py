"""Edits with a record, and back by their records: the same for every kind of file that is edited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gpunode.core.edits.request import Refusal
from gpunode.core.edits.undo import record, remnant, revert, untouched
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


def reverted(
    files: Files,
    undo: Sequence[Mapping[str, Undo]],
    take_out: Callable[[Files], Edit],
    usable: Callable[[Files], bool] = lambda _: True,
) -> Edit:
    """What takes the edits of the records back, newest first, to the byte.

    Where a record does not fit any more, `take_out` takes our own entries out of what is left; so it does without one,
    and where files have changed since and what the records leave is not `usable`.
    """
    after, lost, touched = dict(files), False, False
    for path, how in (item for one in undo for item in one.items()):
        touched = touched or not untouched(after.get(path), how)
        data, missing = revert(after.get(path), how)
        lost = lost or bool(missing)
        _put(after, path, data)
    if not undo or (touched and not usable(after)):
        return take_out(files)
    changes = _changes(files, after)
    edit = Edit(
        changes=changes,
        reasons=tuple(Reason(what=path, why="undoes what configure wrote", source="") for path in changes),
    )
    if not lost:
        return edit
    rest = take_out(after)
    if rest.problems:
        return rest
    for path, data in rest.changes.items():
        _put(after, path, data)
    made = {path: how for one in undo for path, how in one.items() if how.created}
    for path in [path for path, data in after.items() if path in made and remnant(data, made[path])]:
        del after[path]
    return replace(rest, changes=_changes(files, after), reasons=(*edit.reasons, *rest.reasons))


def _put(files: dict[str, bytes], path: str, data: bytes | None) -> None:
    if data is None:
        files.pop(path, None)
    else:
        files[path] = data


def _changes(files: Files, after: Files) -> dict[str, bytes | None]:
    return {path: after.get(path) for path in sorted({*files, *after}) if files.get(path) != after.get(path)}
