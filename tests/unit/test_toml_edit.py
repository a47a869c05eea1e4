"""The TOML editor: what is meant is set or removed, all other bytes stay."""

from __future__ import annotations

import copy
import tomllib
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toml_documents import document

from gpunode.core.edits.target import Refusal
from gpunode.core.edits.text import toml
from gpunode.core.errors import InputError

DOCUMENTS = st.integers(0, 1 << 32).map(lambda seed: document(Random(seed)))
VALUES = st.sampled_from([True, 0, -7, 1.5, "nvidia", 'a "b"\n\t\\', [], ["x"], ["a", "b", "c"], ["b"], [1, 2, 3]])
NEW = "new key"


def paths(doc: dict[str, Any], above: toml.Path = ()) -> list[toml.Path]:
    """Paths of everything in a document that is not in an array."""
    found = [(*above, key) for key in doc]
    return found + [p for key, value in doc.items() if isinstance(value, dict) for p in paths(value, (*above, key))]


def printed(doc: Any) -> str:
    """What a document says, whatever the order: 1 is not 1.0, and nan is nan."""
    if isinstance(doc, dict):
        return f"{{{', '.join(sorted(f'{key!r}: {printed(value)}' for key, value in doc.items()))}}}"
    return f"[{', '.join(map(printed, doc))}]" if isinstance(doc, list) else repr(doc)


def with_value(doc: dict[str, Any], path: toml.Path, value: Any) -> dict[str, Any] | None:
    """What the document should say, None where something else is in the way."""
    wanted = table = copy.deepcopy(doc)
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            return None
    if isinstance(table.get(path[-1]), dict):
        return None
    table[path[-1]] = value
    return wanted


def without(doc: dict[str, Any], path: toml.Path) -> dict[str, Any]:
    """What the document should say, but for tables that are empty."""
    wanted = table = copy.deepcopy(doc)
    for name in path[:-1]:
        table = table[name]
    del table[path[-1]]
    return pruned(wanted)


def pruned(doc: dict[str, Any]) -> dict[str, Any]:
    inner = {key: pruned(value) if isinstance(value, dict) else value for key, value in doc.items()}
    return {key: value for key, value in inner.items() if value != {}}


def in_array_of_tables(doc: dict[str, Any], path: toml.Path) -> bool:
    value = toml.lookup(doc, path)
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


@given(DOCUMENTS)
def test_every_table_and_key_is_found_where_it_stands(text: str) -> None:
    document_read = toml.load("/x", text.encode())
    assert "".join(piece.text for piece in document_read.pieces) == text
    for at, key, path in document_read.places():
        assert text.startswith(key, at)
        try:
            assert path == () or toml.lookup(document_read.doc, path) is not None
        except Refusal:  # it stands in an array of tables
            assert any(in_array_of_tables(document_read.doc, path[:depth]) for depth in range(1, len(path)))


@given(DOCUMENTS, st.data())
def test_setting_keys_of_any_document_sets_them_and_nothing_else(text: str, data: st.DataObject) -> None:
    doc = tomllib.loads(text)
    there = [*paths(doc), ()]
    tails = st.lists(st.sampled_from([NEW, "a", "b", "k", "io.x.y"]), max_size=3)
    sets: dict[toml.Path, Any] = {}
    for _ in range(data.draw(st.integers(1, 4))):
        path = (*data.draw(st.sampled_from(there)), *data.draw(tails)) or (NEW,)
        if not any(path[: len(other)] == other[: len(path)] for other in sets):
            sets[path] = data.draw(VALUES)
    wanted: dict[str, Any] | None = doc
    for path, value in sets.items():
        wanted = None if wanted is None else with_value(wanted, path, value)
    if wanted is None or any(in_array_of_tables(doc, path) for path in sets):
        with pytest.raises(Refusal):
            toml.edit(text, sets)
            raise Refusal("an array of tables may be empty or of inline ones", "")
        return
    after = toml.edit(text, sets)
    assert printed(tomllib.loads(after)) == printed(wanted)
    assert toml.edit(after, sets) == after


@given(DOCUMENTS, st.data())
def test_setting_one_key_keeps_every_byte_before_and_behind_it(text: str, data: st.DataObject) -> None:
    doc = tomllib.loads(text)
    there = [path for path in [*paths(doc), ()] if isinstance(toml.lookup(doc, path) if path else doc, dict)]
    path = (*data.draw(st.sampled_from(there)), NEW, *data.draw(st.lists(st.just(NEW), max_size=2)))
    after = toml.edit(text, {path: data.draw(VALUES)})
    same = next((n for n, (a, b) in enumerate(zip(text, after, strict=False)) if a != b), min(len(text), len(after)))
    assert after.endswith(text[same:])
    assert after.count("\r\n") == after.count("\n") if "\r\n" in text else "\r" not in after
    assert (after[-1:] == "\n") is (text[-1:] == "\n") or not text or after.endswith("}")


@given(st.dictionaries(st.text(max_size=8), st.text() | st.integers() | st.lists(st.text(max_size=4)), max_size=4))
def test_any_text_is_written_so_that_it_reads_the_same(values: dict[str, Any]) -> None:
    after = toml.edit("", {("a b", "c", key): value for key, value in values.items()})
    assert tomllib.loads(after) == ({"a b": {"c": values}} if values else {})


@given(DOCUMENTS, st.data())
def test_what_was_set_goes_without_a_trace(text: str, data: st.DataObject) -> None:
    doc = tomllib.loads(text)
    there = [path for path in [*paths(doc), ()] if isinstance(toml.lookup(doc, path) if path else doc, dict)]
    above = [data.draw(st.sampled_from(there)) for _ in range(2)]
    sets = {
        (*path, f"{NEW} {n}"): {"runtime_type": "x", "options": {"BinaryName": "/usr/bin/x", "n": n}}
        for n, path in enumerate(above)
    }
    after = toml.edit(text, sets)
    assert toml.edit(after, removes=list(sets)) == text


def _stays(line: str, before: str) -> bool:
    """Whether it is the line that was there, or the comment that stood at its end."""
    return line == before or (line.lstrip().startswith("#") and before.rstrip().endswith(line.strip()))


@given(DOCUMENTS, st.data())
def test_removing_anything_removes_it_and_nothing_else(text: str, data: st.DataObject) -> None:
    doc = tomllib.loads(text)
    there = paths(doc)
    if not there:
        return
    gone = data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=3, unique=True))
    wanted = doc
    for path in gone:
        if len(path) == 1 or path[0] in wanted:
            try:
                wanted = without(wanted, path)
            except KeyError:
                continue
    after = toml.edit(text, removes=gone)
    assert printed(pruned(tomllib.loads(after))) == printed(pruned(wanted))
    lines = iter(text.splitlines())
    if "{" not in text and "[ " not in text:
        kept = (any(_stays(line, there) for there in lines) for line in after.splitlines())
        assert all(kept), "what is left is in its order"
    assert toml.edit(after, removes=gone) == after


@given(st.text(alphabet="[]{}\"'=.,#\n\r\t a1_-:\\T", max_size=60))
def test_any_valid_text_is_kept_or_refused(text: str) -> None:
    try:
        read = toml.load("/x", text.encode())
    except InputError:
        return
    try:
        after = read.edit({(NEW,): 1})
    except Refusal:
        return
    assert printed(tomllib.loads(after.text)) == printed({**read.doc, NEW: 1})
    assert after.edit(removes=[(NEW,)]).text == text


@given(st.binary(max_size=80) | st.text(alphabet='[]{}"=.,\n a1\\u', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused_with_their_place(data: bytes) -> None:
    try:
        assert toml.load("/x", data).text.encode() == data
    except InputError as error:
        assert error.what.startswith("/x")


# ---------------------------------------------------------------- case by case

CASES: dict[str, tuple[str, dict[toml.Path, Any], list[toml.Path], str]] = {
    "a table goes with its sub tables and the blank line before it, and comments stay": (
        "[x]\nq = 1\n\n[a]\n# inside\nb = 1 # c\n# right below\n\n# of a.c\n[a.c]\n  d = 1\n\n# of z\n[z]\n",
        {},
        [("a",)],
        "[x]\nq = 1\n# inside\n# c\n# right below\n# of a.c\n\n# of z\n[z]\n",
    ),
    "a comment right above the next table stays": ("[a]\nb = 1\n# of z\n[z]\n", {}, [("a",)], "# of z\n[z]\n"),
    "parents that were only implied go, those that are written stay": (
        "[a]\n[b]\n[b.c.d]\n[a.x.y]\n",
        {},
        [("b", "c", "d"), ("a", "x", "y")],
        "[a]\n[b]\n",
    ),
    "tables that stand apart go": ("[a.b]\nx = 1\n[c]\n[a]\ny = 1\n", {}, [("a",)], "[c]\n"),
    "dotted keys go together": ("a.b = 1\nq = 2\na.c.d = 3\n", {}, [("a",)], "q = 2\n"),
    "a member of an inline table goes": ("a = { b = 1, c = 2, d = 3 }\n", {}, [("a", "c")], "a = { b = 1, d = 3 }\n"),
    "the last member goes with its comma": ("a = {b = 1, c = 2}\n", {}, [("a", "c")], "a = {b = 1}\n"),
    "the only member leaves the braces": ("a = { b = 1 }\n", {}, [("a", "b")], "a = { }\n"),
    "the last line goes with the line end before it": ("a = 1\r\nb = 2", {}, [("b",)], "a = 1"),
    "what is removed and set is written again": ("[a]\nb = 1\nc = 2\n", {("a", "b"): 3}, [("a",)], "[a]\nb = 3\n"),
    "an inline table takes nested keys": (
        "[p]\nruntimes = { runc = { t = 'x' } }\n",
        {("p", "runtimes", "n", "t"): "y", ("p", "runtimes", "n", "o", "B"): "z", ("p", "runtimes", "runc", "s"): True},
        [],
        '[p]\nruntimes = { runc = { t = \'x\', s = true }, n = {t = "y", o = {B = "z"}} }\n',
    ),
    "a table written with dotted keys gets one more": (
        "[p]\na.b = 1\nc = 2\n",
        {("p", "a", "d", "e"): 3},
        [],
        "[p]\na.b = 1\na.d.e = 3\nc = 2\n",
    ),
    "new tables stand behind their relatives, sub tables behind their parents": (
        "[r.runc]\n  t = 1\n\n[z]\n",
        {("r", "n", "t"): 1, ("r", "runc", "o", "S"): True, ("r", "n", "o", "S"): True},
        [],
        "[r.runc]\n  t = 1\n\n[r.runc.o]\nS = true\n\n[r.n]\nt = 1\n\n[r.n.o]\nS = true\n\n[z]\n",
    ),
    "indentation is the brothers'": (
        "[p]\n  [p.a]\n    x = 1\n    [p.a.runc]\n      y = 1\n",
        {("p", "a", "n", "o", "z"): 1, ("p", "a", "n", "w"): 2},
        [],
        "[p]\n  [p.a]\n    x = 1\n    [p.a.runc]\n      y = 1\n\n"
        "    [p.a.n.o]\n      z = 1\n\n    [p.a.n]\n      w = 2\n",
    ),
    "indentation by tabs goes on by tabs": (
        "\t[a]\n\t\tb = 1\n\t[p]\n",
        {("p", "x"): 1, ("p", "c", "y"): 2},
        [],
        "\t[a]\n\t\tb = 1\n\t[p]\n\t\tx = 1\n\n\t\t[p.c]\n\t\t\ty = 2\n",
    ),
    "an element goes from its line, and its comment comes before the list": (
        '  x = [\n    "a", # 1\n    "b", # 2\n    "c" # 3\n  ]\n',
        {("x",): ["a", "c"]},
        [],
        '  # 2\n  x = [\n    "a", # 1\n    "c" # 3\n  ]\n',
    ),
    "the last element goes, and the comma of the one before it stays": (
        'x = [\n  "a", # 1\n  "b"\n]\n',
        {("x",): ["a"]},
        [],
        'x = [\n  "a", # 1\n]\n',
    ),
    "the comma behind the last element stays": (
        "x = [\n  'a',\n  'b',\n]\n",
        {("x",): ["a"]},
        [],
        "x = [\n  'a',\n]\n",
    ),
    "an element comes on a line of its own": (
        "x = [\n  'a', # 1\n  'b' # 2\n]\n",
        {("x",): ["a", "b", "c"]},
        [],
        "x = [\n  'a', # 1\n  'b', # 2\n  \"c\"\n]\n",
    ),
    "an element comes where only comments were": (
        "x = [\n  # 'a',\n]\n",
        {("x",): ["c"]},
        [],
        "x = [\n  # 'a',\n  \"c\"\n]\n",
    ),
    "one element of several is replaced": ("x = [ 'a', 'b' ]\n", {("x",): ["a", "c"]}, [], "x = [ 'a', \"c\" ]\n"),
    "an empty table is written as a header": ("[a]\n", {("b", "c"): {}}, [], "[a]\n\n[b.c]\n"),
    "one is not true": ("a = 1\nb = [1]\n", {("a",): True, ("b",): [True]}, [], "a = true\nb = [true]\n"),
    "what is so already stays as it is spelled": (
        "a = 0x10\nb = 'x'\n\"c\" . d = [ 'y' ]\n",
        {("a",): 16, ("b",): "x", ("c", "d"): ["y"]},
        [("q",), ("b", "x")],
        "a = 0x10\nb = 'x'\n\"c\" . d = [ 'y' ]\n",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_edit_gives_exactly_these_bytes(name: str) -> None:
    before, sets, removes, after = CASES[name]
    assert toml.edit(before, sets, removes) == after


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("a = 1\n", ("a", "b"), 1),
        ("[[a]]\nb = 1\n", ("a", "b"), 1),
        ("[[a]]\nb = 1\n", ("a",), ["x"]),
        ("[a]\n", ("a",), 1),
        ("a = 1\n", ("a",), {}),
    ],
)
def test_what_stands_in_the_way_is_refused(text: str, path: toml.Path, value: Any) -> None:
    with pytest.raises(Refusal):
        toml.edit(text, {path: value})


def test_toml_that_only_newer_readers_know_is_refused_with_its_place() -> None:
    with pytest.raises(InputError, match=r"^/x:1:6: "):
        toml.load("/x", b"a = {\n  b = 1,\n}\n")


def test_a_document_is_not_changed_by_its_edits() -> None:
    before = toml.load("/x", b"[a.b]\nc = 1\n")
    after = before.edit({("a", "b", "d"): 2, ("a", "e"): 3}, [("a", "b", "c")])
    assert (before.doc, after.doc) == ({"a": {"b": {"c": 1}}}, {"a": {"b": {"d": 2}, "e": 3}})
    assert tomllib.loads(after.text) == after.doc
    assert after.edit({("a", "e"): 3}, [("x",)]) is after


LATE_PARENT = "[a]\n  [a.b.c.d.e]\n    t = 1\n  [a.b.c.d]\n    [a.b.c.d.f]\n      t = 2\n"


@pytest.mark.parametrize(
    "hard", [LATE_PARENT, "[a." + '"b"' + ".c" * 900 + "]\n", "x = " + "[" * 200 + "]" * 200 + "\n"]
)
def test_what_tomlkit_cannot_read_stays_as_it_is_next_to_an_edit(hard: str) -> None:
    assert toml.edit(hard, {("new",): 1}).replace("new = 1\n", "", 1).strip() == hard.strip()


@pytest.mark.parametrize(
    "hard",
    [
        "[" + "a" * 30_000 + "]\n",
        "x = [" + '"a"  ,  ' * 2_000 + "\n]\n",
        "x = " + " " * 30_000 + "1\n",
        '[ "' + "a" * 30_000 + '" ]\n',
        "a-" * 10_000 + "a = '''\n'''\n",
    ],
    ids=range(5),
)
def test_long_lines_are_edited(hard: str) -> None:
    assert toml.edit(hard, {("new",): 1}).replace("new = 1\n", "") == hard
