"""The JSON editor: what is meant is set or removed, all other bytes stay."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.edits.target import Refusal
from gpunode.core.edits.text import jsontext

KEYS = st.sampled_from(["a", "b", "runtimes", "nvidia", "x y", 'q"\\', "ключ", ""])
LEAVES = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "s", "5", ': {"a', 1.5, 2**53 + 1, [], {}])
VALUES = st.sampled_from([True, 5, "5", "s", 1.5, [], ["a"], ["a", "b"], [1, 2, 3], None])
PLAIN = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=10
)
OBJECTS = st.dictionaries(KEYS, PLAIN, max_size=4)
PATHS = st.lists(KEYS, min_size=1, max_size=3).map(tuple)


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A JSON object as people write it, and what it says."""
    doc = draw(OBJECTS)
    separators = draw(st.sampled_from([None, (",", ":"), (" , ", " : ")]))
    indent = draw(st.sampled_from([None, None, 1, 2, 4, "\t"]))
    text = json.dumps(doc, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return draw(st.sampled_from(["", "\n", "  "])) + text + draw(st.sampled_from(["", "\n", " \r\n"])), doc


def with_value(doc: dict[str, Any], path: jsontext.Path, value: Any) -> dict[str, Any] | None:
    wanted = table = copy.deepcopy(doc)
    for name in path[:-1]:
        if table.get(name) is None:
            table[name] = {}
        table = table[name]
        if not isinstance(table, dict):
            return None
    table[path[-1]] = value
    return wanted


def without(doc: dict[str, Any], path: jsontext.Path) -> dict[str, Any]:
    wanted = copy.deepcopy(doc)
    table: Any = wanted
    for name in path[:-1]:
        table = table.get(name) if isinstance(table, dict) else None
    if isinstance(table, dict):
        table.pop(path[-1], None)
    return wanted


@given(texts(), st.dictionaries(PATHS, VALUES, min_size=1, max_size=4))
def test_setting_members_sets_them_and_nothing_else(made: tuple[str, Any], sets: dict[jsontext.Path, Any]) -> None:
    text, doc = made
    sets = {p: v for p, v in sets.items() if not any(p != q and q == p[: len(q)] for q in sets)}
    wanted: dict[str, Any] | None = doc
    for path, value in sets.items():
        wanted = None if wanted is None else with_value(wanted, path, value)
    if wanted is None:
        with pytest.raises(Refusal):
            jsontext.edit(text, sets)
        return
    after = jsontext.edit(text, sets)
    assert json.dumps(json.loads(after), sort_keys=True) == json.dumps(wanted, sort_keys=True)
    assert jsontext.edit(after, sets) == after
    assert "\r\n" not in text.strip() or after.strip().count("\r\n") == after.strip().count("\n")


@given(texts(), st.lists(PATHS, min_size=1, max_size=3))
def test_removing_members_removes_them_and_nothing_else(made: tuple[str, Any], removes: list[jsontext.Path]) -> None:
    text, wanted = made
    for path in removes:
        wanted = without(wanted, path)
    after = jsontext.edit(text, removes=removes)
    assert json.loads(after) == wanted
    assert jsontext.edit(after, removes=removes) == after


@given(texts(), KEYS, VALUES)
def test_a_new_member_keeps_every_byte_around_it_and_goes_without_a_trace(
    made: tuple[str, Any], key: str, value: Any
) -> None:
    text, doc = made
    above = next((path for path in ((key, "a"), (key,), ()) if isinstance(at(doc, path), dict) and at(doc, path)), None)
    if above is None:
        return
    path = (*above, "new", "path")
    after = jsontext.edit(text, {path: value, (*above, "new", "args"): ["a"]})
    same = next(n for n, (a, b) in enumerate(zip(text, after, strict=False)) if a != b)
    assert after.endswith(text[same:])
    assert jsontext.edit(after, removes=[path[:-1]]) == text


def at(doc: Any, path: jsontext.Path) -> Any:
    for name in path:
        doc = doc.get(name) if isinstance(doc, dict) else None
    return doc


CASES: dict[str, tuple[str, dict[jsontext.Path, Any], list[jsontext.Path], str]] = {
    "numbers stay as they are spelled": (
        '{"a": 1.50, "b": 9007199254740993, "c": 1E5}',
        {("d",): 1},
        [],
        '{"a": 1.50, "b": 9007199254740993, "c": 1E5, "d": 1}',
    ),
    "a number is not its digits as text": ('{"a": 5}', {("a",): "5"}, [], '{"a": "5"}'),
    "one is not true": ('{"a": 1}', {("a",): True}, [], '{"a": true}'),
    "tabs, and no line end at the end": (
        '{\n\t"a": 1\n}',
        {("r", "n", "p"): "x", ("r", "n", "q"): []},
        [],
        '{\n\t"a": 1,\n\t"r": {\n\t\t"n": {\n\t\t\t"p": "x",\n\t\t\t"q": []\n\t\t}\n\t}\n}',
    ),
    "an object on one line among many": (
        '{\n  "r": {"a": {"p": "x"}},\n  "b": 1\n}\n',
        {("r", "n", "p"): "y"},
        [],
        '{\n  "r": {"a": {"p": "x"}, "n": {"p": "y"}},\n  "b": 1\n}\n',
    ),
    "an empty object takes lines": ("{}\n", {("a", "b"): 1}, [], '{\n    "a": {\n        "b": 1\n    }\n}\n'),
    "null becomes an object": ('{"r": null}', {("r", "n"): 1, ("r", "m"): 2}, [], '{"r": {"n": 1, "m": 2}}'),
    "of a key that stands twice the last is set": ('{"a": 1, "a": 2}', {("a",): 3}, [], '{"a": 1, "a": 3}'),
    "of a key that stands twice both go": (
        '{"r": {"n": 1}, "b": 2, "r": {"n": 3, "m": 4}}',
        {},
        [("r", "n")],
        '{"r": {}, "b": 2, "r": {"m": 4}}',
    ),
    "an element of a list is replaced": (
        '{"e": [\n  "a=b",\n  "c=d" ]}',
        {("e",): ["a=b", "c=e"]},
        [],
        '{"e": [\n  "a=b",\n  "c=e" ]}',
    ),
    "an element goes from a list": ('{"e": ["a" , "b" , "c"]}', {("e",): ["a", "c"]}, [], '{"e": ["a" , "c"]}'),
    "an element comes to a list": (
        '{\n  "e": [\n    "a"\n  ]\n}\n',
        {("e",): ["a", "b"]},
        [],
        '{\n  "e": [\n    "a",\n    "b"\n  ]\n}\n',
    ),
    "the first, the last and one between go": (
        '{\n  "a": 1,\n  "b": 2,\n  "c": 3,\n  "d": 4,\n  "e": 5\n}\n',
        {},
        [("a",), ("c",), ("e",)],
        '{\n  "b": 2,\n  "d": 4\n}\n',
    ),
    "what is so already stays": ('{ "a" :[ 1 ] }', {("a",): [1]}, [("b",), ("a", "c")], '{ "a" :[ 1 ] }'),
    "a mapping is set key by key": ('{"a": {"b": 1}}', {("a",): {"c": 2}}, [], '{"a": {"b": 1, "c": 2}}'),
}


@pytest.mark.parametrize("name", CASES)
def test_an_edit_gives_exactly_these_bytes(name: str) -> None:
    before, sets, removes, after = CASES[name]
    assert jsontext.edit(before, sets, removes) == after


@pytest.mark.parametrize("text", ['{"a": 1}', '{"a": []}', '{"a": "x"}', '{"a": true}'])
def test_what_stands_in_the_way_of_an_object_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="a is no object"):
        jsontext.edit(text, {("a", "b"): 1})
