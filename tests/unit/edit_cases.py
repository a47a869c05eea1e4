"""Folders of cases: tests/edits/KIND/CASE/{wanted.json, before/PATH, and one of after/PATH, problem.txt, error.txt}."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError
from gpunode.core.model import Edit, Undo

Files = dict[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is edited, and by which functions; `request` makes the request from wanted.json."""

    name: str
    request: Callable[..., Any]
    configure: Callable[[Files, Any], Edit]
    unconfigure: Callable[[Files, Any, Undo], Edit]

    @property
    def cases(self) -> list[Path]:
        return sorted((Path(__file__).parents[1] / "edits" / self.name).iterdir())

    def cases_with(self, outcome: str) -> list[Path]:
        return [case for case in self.cases if (case / outcome).exists()]

    def asked(self, case: Path) -> Any:
        return self.request(**json.loads((case / "wanted.json").read_text()))

    def write(self, case: Path) -> None:
        """Record what comes of a case that does not say it yet; to be read before it is committed."""
        if OUTCOMES & {path.name for path in case.iterdir()}:
            return
        before = files(case / "before")
        try:
            edit = self.configure(before, self.asked(case))
        except GpunodeError as error:
            (case / "error.txt").write_text(f"{error}\n")
            return
        if edit.problems:
            (case / "problem.txt").write_text(problems(edit))
            return
        for path, data in applied(before, edit).items():
            place = case / "after" / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)


OUTCOMES = {"after", "problem.txt", "error.txt"}


def files(folder: Path) -> Files:
    """The files below a folder, as if it were the root."""
    return {f"/{path.relative_to(folder)}": path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def applied(before: Mapping[str, bytes], edit: Edit) -> Files:
    """The files after an edit, which has no problem."""
    assert edit.problems == ()
    return {path: data for path, data in {**before, **edit.changes}.items() if data is not None}


def problems(edit: Edit) -> str:
    return "".join(f"{p.what}\n{p.fix}\n" for p in edit.problems)
