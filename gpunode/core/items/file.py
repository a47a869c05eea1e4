"""Whole files that gpunode writes: the value of the role options `_sources` and `_files`."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import jinja2

from gpunode.core.errors import GpunodeError
from gpunode.core.items.file_undo import FileBack
from gpunode.core.items.item import ABSENT, PRESENT, HostCase, Item, KeyOf, StepKind
from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts, Repository
from gpunode.core.openpgp import fingerprints
from gpunode.core.validation import rows
from gpunode.core.validation import text as text_shape

SHAPE = rows(
    "Files to have.",
    path=text_shape("Absolute path.", required=True),
    content=text_shape("The whole text; null removes the file."),
    mode=text_shape("Mode, such as '0644'."),
)


FILES = FileBack(name="files")


@dataclass(frozen=True, kw_only=True)
class File(Item):
    """A small file that is gpunode's; without a text it has to go."""

    NAME = "{path}"
    BACK = (FILES,)
    option: str = "files"
    path: str
    text: str | None
    mode: str = "0644"

    @property
    def wanted(self) -> str:
        if self.text is None:
            return ABSENT
        return f"{hashlib.sha256(self.text.encode()).hexdigest()[:16]} {self.mode}"

    def actual(self, facts: NodeFacts) -> str:
        file = facts.files.get(self.path)
        if file is None or not file.sha256:
            return ABSENT
        return PRESENT if self.text is None else f"{file.sha256[:16]} {file.mode:04o}"

    def difference(self, have: str) -> str:
        if self.text is None:
            return "to be removed"
        if have == ABSENT:
            return "new file"
        (old, old_mode), (new, mode) = have.split(), self.wanted.split()
        return "differs" if old != new else f"mode {old_mode}; wanted {mode}"

    def request(self, case: HostCase) -> Mapping[str, Any]:
        data = self.content(case.key_of)
        return {"path": self.path, "content": None if data is None else data.decode(), "mode": self.mode}

    def content(self, key_of: KeyOf) -> bytes | None:
        """The bytes that it is to have; None when it is to go."""
        return None if self.text is None else self.text.encode()

    def changes(self, key_of: KeyOf) -> Iterator[tuple[str, bytes | None]]:
        yield self.path, self.content(key_of)


def file_if(facts: NodeFacts, text: str, *, role: str, path: str, option: str = "files") -> Iterator[File]:
    """The file with that text; without any, one that is there goes."""
    if text or path in facts.files:
        yield File(role=role, option=option, path=path, text=text or None)


@dataclass(frozen=True, kw_only=True)
class KeyFile(File):
    """The key of a repository, known by its fingerprint until it is written."""

    repository: Repository
    text: str | None = None

    @property
    def wanted(self) -> str:
        return f"key {self.repository.fingerprint}"

    def actual(self, facts: NodeFacts) -> str:
        file = facts.files.get(self.path)
        if file is None or not file.sha256:
            return ABSENT
        try:
            return "key " + " ".join(fingerprints(file.data or b""))
        except GpunodeError:
            return "not a key"

    def difference(self, have: str) -> str:
        return f"new file, {self.wanted}" if have == ABSENT else f"{have}; wanted {self.wanted}"

    def content(self, key_of: KeyOf) -> bytes | None:
        return key_of(self.repository)

    def changes(self, key_of: KeyOf) -> Iterator[tuple[str, bytes | None]]:
        yield from ()  # its armored text says nothing to a reader


STEP = StepKind(shape=SHAPE, action="edit_file", argument="files")


@functools.cache
def _compiled(template: str) -> jinja2.Template:
    compiled: jinja2.Template = jinja2.Template(template, keep_trailing_newline=True)
    return compiled


def render(template: str, **values: Any) -> str:
    """The text that a jinja2 template gives; each is compiled once, which takes far longer than to fill it in."""
    return _compiled(template).render(**values)
