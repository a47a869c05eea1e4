"""Cases of edits: one text per case, tests/edits/KIND/NAME.case.

The first part is the request as JSON; then sections, each behind a line `-- WORD [PATH] [(HOW)] --`:

    before PATH    a file as it is before the edit
    after PATH     what the edit makes of it: a unified diff, or the whole file where there was none before
    gone PATH      a file that the edit removes
    left PATH      what is there after the edit was undone without a record, like `after`; no PATH: as before
    problem        the sentences of an edit that cannot work
    error          the message of a file that cannot be read; `error 3.13` where a later Python words it differently
    lost           lines of a person's that may change

A case of the request alone has no file before.  A file that an edit leaves alone has no `after`.  HOW is `no newline at
end`, `crlf` or `base64` (other bytes).  A file that several cases begin with is there once: `before PATH (as NAME)` is
tests/edits/KIND/before/NAME.
"""

from __future__ import annotations

import base64
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gpunode.core.edits import RuntimeRequest, completed, runtime_target
from gpunode.core.edits.commit import target_request
from gpunode.core.edits.target import probed_files, texts
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.model import Edit, NodeFacts, Undo
from tests import rows

Files = dict[str, bytes]
EDITS = Path(__file__).parent / "edits"
HEAD = re.compile(r"^-- (before|after|gone|left|problem|error|lost)(?: (\S.*?))?(?: \(([^()]+)\))? --$", re.MULTILINE)
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True, kw_only=True)
class EditCase:
    """One case: what is asked, the files before, and what comes of it (after, problem or error)."""

    kind: str
    name: str
    asked: dict[str, Any]
    before: Files
    after: Files | None = None
    left: Files | None = None
    problem: str = ""
    error: str = ""
    error_newer: str = ""
    lost: list[str] = field(default_factory=list)
    shared: Mapping[str, str] = field(default_factory=dict)  # path → the name of its file in before/

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def done(self) -> Files:
        """The files after the edit, of a case that has them."""
        assert self.after is not None, self.id
        return dict(self.after)

    @property
    def printed(self) -> str:
        """The message of a file that cannot be read, in the words of this Python."""
        return self.error_newer if self.error_newer and sys.version_info >= (3, 13) else self.error


def case(kind: str, name: str) -> EditCase:
    """The case of that name."""
    return read_case(EDITS / kind / f"{name}.case")


@cache
def read_case(path: Path) -> EditCase:
    text = path.read_bytes().decode()
    heads = list(HEAD.finditer(text))
    found: dict[str, Any] = {"before": {}, "after": {}, "left": {}, "gone": []}
    shared: dict[str, str] = {}
    notes: dict[str, str] = {}
    for head, end in zip(heads, [*(h.start() for h in heads[1:]), len(text)], strict=True):
        word, name, how = head[1], head[2] or "", head[3] or ""
        body = text[head.end() + 1 : end]
        if word == "before" and how.startswith("as "):
            shared[name] = how.removeprefix("as ")
            found["before"][name] = (path.parent / "before" / shared[name]).read_bytes()
        elif word == "before":
            found["before"][name] = _bytes(body, how)
        elif word == "gone":
            found["gone"].append(name)
        elif word in ("after", "left"):
            old = found["before"].get(name)
            found[word][name] = _patched(old, body) if how == "diff" and old is not None else _bytes(body, how)
        else:
            notes[f"{word} {name}".strip()] = body
    before: Files = found["before"]
    outcome = "problem" in notes or "error" in notes
    after = None if outcome else {p: d for p, d in {**before, **found["after"]}.items() if p not in found["gone"]}
    return EditCase(
        kind=path.parent.name,
        name=path.stem,
        asked=json.loads(text[: heads[0].start()] if heads else text),
        before=before,
        after=after,
        left={**before, **{p: d for p, d in found["left"].items() if p}} if found["left"] else None,
        problem=notes.get("problem", ""),
        error=notes.get("error", ""),
        error_newer=notes.get("error 3.13", ""),
        lost=notes.get("lost", "").splitlines(),
        shared=shared,
    )


def text_of(one: EditCase) -> str:
    """A case as the text of its file."""
    parts = [json.dumps(one.asked, indent=2, ensure_ascii=False) + "\n"]
    for path, data in one.before.items():
        shared = f"-- before {path} (as {one.shared[path]}) --\n" if path in one.shared else ""
        parts.append(shared or _section("before", path, data))
    for word, files in (("after", one.after), ("left", one.left)):
        for path, data in (files or {}).items():
            if one.before.get(path) != data:
                parts.append(_changed(word, path, one.before.get(path), data))
    if one.left is not None and one.left == one.before:
        parts.append("-- left --\n")
    parts += [f"-- gone {path} --\n" for path in one.before if one.after is not None and path not in one.after]
    for word, text in (("problem", one.problem), ("error", one.error), ("error 3.13", one.error_newer)):
        parts += [f"-- {word} --\n{text}"] if text else []
    if one.lost:
        parts.append("-- lost --\n" + "".join(f"{line}\n" for line in one.lost))
    return "".join(parts)


def cases(*kinds: str, having: str = "") -> list[EditCase]:
    """All cases of these kinds, by name; `having` one of after, left, problem, error."""
    found = [read_case(path) for kind in kinds for path in sorted((EDITS / kind).glob("*.case"))]
    return [one for one in found if not having or _has(one, having)]


def _has(one: EditCase, what: str) -> bool:
    value = getattr(one, what)
    return value is not None and value != ""


def write_tree(files: Mapping[str, bytes], root: Path) -> Path:
    """The files below `root`, as if it were the root of a machine."""
    for path, data in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return root


def files(folder: Path) -> Files:
    """The files below a folder, as if it were the root."""
    return {f"/{path.relative_to(folder)}": path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def applied(before: Mapping[str, bytes], edit: Edit) -> Files:
    """The files after an edit, which has no problem."""
    assert edit.problems == ()
    return {path: data for path, data in {**before, **edit.changes}.items() if data is not None}


def problems(edit: Edit) -> str:
    return "".join(f"{p.what}\n{p.fix}\n" for p in edit.problems)


def over(found: Sequence[EditCase]) -> Callable[[Callable[[EditCase], None]], Callable[[], None]]:
    """One test over all these cases, which names every case that fails."""
    return rows.over(found, name=lambda one: one.id)


def every(found: Sequence[EditCase], check: Callable[[EditCase], None]) -> None:
    rows.every(found, check, name=lambda one: one.id)


# ---------------------------------------------------------------- one section


def _plain(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029\ufeff]", text) and not HEAD.search(text)


def _section(word: str, path: str, data: bytes) -> str:
    if not data:
        return f"-- {word} {path} --\n"
    if _plain(data):
        end = "" if data.endswith(b"\n") else " (no newline at end)"
        return f"-- {word} {path}{end} --\n{data.decode()}" + ("\n" if end else "")
    unix = data.replace(b"\r\n", b"\n")
    if _plain(unix) and unix.endswith(b"\n") and unix.replace(b"\n", b"\r\n") == data:
        return f"-- {word} {path} (crlf) --\n{unix.decode()}"
    return f"-- {word} {path} (base64) --\n{base64.encodebytes(data).decode()}"


def _bytes(body: str, how: str) -> bytes:
    if how == "base64":
        return base64.b64decode(body)
    if how == "no newline at end":
        body = body[:-1]
    return (body.replace("\n", "\r\n") if how == "crlf" else body).encode()


def _changed(word: str, path: str, old: bytes | None, new: bytes) -> str:
    if old is None or not old or not _plain(old) or not _plain(new):
        return _section(word, path, new)
    diff = list(difflib.unified_diff(_lines(old), _lines(new), n=3))[2:]
    text = "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in diff)
    assert _patched(old, text) == new, path
    return f"-- {word} {path} (diff) --\n{text}"


def _lines(data: bytes) -> list[str]:
    return data.decode().splitlines(keepends=True)


def _patched(old: bytes, diff: str) -> bytes:
    """`old` with a unified diff applied; every line of context is compared."""
    source, made, at = _lines(old), [], 0
    for start, body in _hunks(diff.splitlines(keepends=True)):
        made += source[at:start]
        at = start
        for mark, line in body:
            if mark != "+":
                assert source[at] == line, f"the diff does not fit: {line!r}"
                at += 1
            if mark != "-":
                made.append(line)
    return "".join([*made, *source[at:]]).encode()


def _hunks(lines: list[str]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    start, body = 0, list[tuple[str, str]]()
    for line in lines:
        if match := HUNK.match(line):
            if body:
                yield start, body
            start, body = int(match[1]) - (match[2] != "0"), []
        elif line == NO_NEWLINE:
            body[-1] = (body[-1][0], body[-1][1].removesuffix("\n"))
        else:
            body.append((line[0], line[1:]))
    if body:
        yield start, body


# ---------------------------------------------------------------- kinds that are alike


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is edited, and by which functions; `request` makes the request from the case's first part."""

    name: str
    request: Callable[..., Any]
    configure: Callable[[Files, Any], Edit]
    unconfigure: Callable[[Files, Any, Undo], Edit]

    def cases(self, having: str = "") -> list[EditCase]:
        return cases(self.name, having=having)

    def asked(self, one: EditCase) -> Any:
        return self.request(**one.asked)


def record(one: EditCase, configure: Callable[[EditCase], Edit]) -> None:
    """With GPUNODE_WRITE_CASES write what comes of a case that does not say it yet; read it before you commit it."""
    if one.problem or one.error or one.after != one.before or not os.environ.get("GPUNODE_WRITE_CASES"):
        return
    try:
        edit = configure(one)
    except GpunodeError as error:
        outcome: dict[str, Any] = {"after": None, "error": f"{error}\n"}
    else:
        outcome = {"after": None, "problem": problems(edit)} if edit.problems else {"after": applied(one.before, edit)}
    text = text_of(EditCase(**{**one.__dict__, **outcome}))
    (EDITS / one.kind / f"{one.name}.case").write_bytes(text.encode())


# ---------------------------------------------------------------- on a node


def edit_request(facts: NodeFacts, request: RuntimeRequest, edit: Edit, *, check: bool = False) -> dict[str, bytes]:
    """The transaction of an edit of an engine as the probe found it."""
    runtime = facts.runtime(request.runtime)
    if runtime is None:
        raise InputError(f"{request.runtime} is not installed", expected="an engine that the probe found")
    target = runtime_target(completed(request, runtime), facts)
    seen = probed_files(facts.files, target.files)
    return target_request(target, edit, seen, target.activation(texts(seen), edit), check=check)
