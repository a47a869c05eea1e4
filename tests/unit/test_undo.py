"""Records of spans: what an edit did is undone to the byte, whatever else has changed since."""

from __future__ import annotations

import difflib
import json
import random

import pytest
from edit_cases import EDITS as EDITED
from edit_cases import cases
from hypothesis import assume, given
from hypothesis import strategies as st

from gpunode.core.edits import RuntimeRequest, configure_runtime, runtime_state, unconfigure_runtime
from gpunode.core.edits.undo import NOT_FOUND, record, remnant, revert, undo_data, undo_from_data
from gpunode.core.edits.values import values
from gpunode.core.errors import InputError
from gpunode.core.model import Undo

CREATED = b"version = 3\n\n[plugins.x]\na = 1\n"

ANY_BYTES = st.binary(max_size=60) | st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"c"]), max_size=12).map(b"".join)


@given(st.none() | ANY_BYTES, st.none() | ANY_BYTES)
def test_an_untouched_file_becomes_what_it_was(before: bytes | None, after: bytes | None) -> None:
    if before != after:
        assert revert(after, record(before, after)) == (before, ())


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[bytes], list[tuple[bytes, str]]]:
    """Lines of a file, no two alike, and what an edit did to each: kept, gone, new, or replaced."""
    count = draw(st.integers(1, 25))
    kinds = draw(st.lists(st.sampled_from("kkkkgnr"), min_size=count, max_size=count))
    return [b"line %d\n" % n for n in range(count)], [(b"edit %d\n" % n, kind) for n, kind in enumerate(kinds)]


@given(edited(), st.data())
def test_an_edit_goes_back_though_lines_came_around_it(
    made: tuple[list[bytes], list[tuple[bytes, str]]], data: st.DataObject
) -> None:
    lines, edits = made
    before, pairs = b"".join(lines), list(zip(lines, edits, strict=True))
    written = {"k": lambda a, b: [a], "g": lambda a, b: [], "n": lambda a, b: [a, b], "r": lambda a, b: [b]}
    after = [line for old, (new, kind) in pairs for line in written[kind](old, new)]
    undo = record(before, b"".join(after))
    kept = [
        n for n in range(len(after) + 1) if all(not line.startswith(b"edit") for line in after[max(0, n - 3) : n + 3])
    ]
    gone = [old for old, (_, kind) in pairs if kind == "g"]
    at = data.draw(st.sampled_from(kept)) if kept and not gone else None
    if at is None:
        return
    reverted, lost = revert(b"".join([*after[:at], b"somebody's\n", *after[at:]]), undo)
    assert lost == ()
    assert reverted is not None
    assert reverted.replace(b"somebody's\n", b"") == before
    assert revert(reverted, undo)[0] == reverted


BEFORE = b"""version = 2

[a]
  x = 1
  y = 2

[b]
  z = 3
"""
AFTER = BEFORE.replace(b"version = 2\n", b"version = 3\n").replace(b"\n[b]", b"\n[a.nvidia]\n  q = 1\n\n[b]")


@pytest.mark.parametrize(
    "change",
    [
        (b"version = ", b"# top\nversion = "),
        (b"version = ", b"\n\nversion = "),
        (b"[b]\n", b"[c]\nw = 1\n\n[b]\n"),
        (b"  z = 3\n", b"  z = 3\n  more = 4\n"),
        (b"  x = 1\n", b"  x = 77\n"),
        (b"  z = 3\n", b"  z = 3"),
        (b"[b]\n  z = 3\n", b""),
    ],
)
def test_changes_around_an_edit_stay_when_it_goes(change: tuple[bytes, bytes]) -> None:
    assert revert(AFTER.replace(*change), record(BEFORE, AFTER)) == (BEFORE.replace(*change), ())


def test_an_edit_that_somebody_changed_is_lost_and_the_rest_goes_back() -> None:
    undo = record(BEFORE, AFTER)
    reverted, lost = revert(AFTER.replace(b"q = 1", b"q = 2"), undo)
    assert reverted == AFTER.replace(b"q = 1", b"q = 2").replace(b"version = 3", b"version = 2")
    assert lost == NOT_FOUND


def test_a_line_that_stands_elsewhere_too_is_not_taken_for_the_edit() -> None:
    undo = record(b"[a]\nx = 1\n[b]\ny = 1\n[c]\n", b"[a]\nx = 2\n[b]\ny = 1\n[c]\n")
    changed = b"[a]\nx = 3\n[q]\n\n[other]\nx = 2\n"
    assert revert(changed, undo) == (changed, NOT_FOUND)


def test_the_place_of_lines_that_stand_twice_is_known_while_nothing_has_changed() -> None:
    before, after = b"a\n" * 50, b"a\n" * 20 + b"b\n" + b"a\n" * 30
    assert revert(after, record(before, after)) == (before, ())
    assert revert(after[:-2], record(before, after)) == (before[:-2], ())


def test_what_an_edit_took_out_comes_back_once() -> None:
    before = b"a\nb\nc\nd\ne\nf\n"
    undo = record(before, before.replace(b"d\n", b""))
    once = revert(b"top\na\nb\nc\ne\nf\n", undo)
    assert once == (b"top\n" + before, ())
    assert revert(once[0], undo) == once


def test_lines_that_the_edit_kept_are_no_proof_that_it_is_gone() -> None:
    undo = record(b"x\n", b"a\nx\nb\n")
    assert revert(b"a\nx\nc\n", undo)[1] == NOT_FOUND
    undo = record(b"1\n2\nx\n3\n", b"1\n2\ny\nx\n3\n")
    assert revert(b"1\n2\nz\nx\n3\n", undo) == (b"1\n2\nz\nx\n3\n", NOT_FOUND)


def test_part_of_a_line_is_not_taken_for_the_edit() -> None:
    undo = record(b"1\n2\n3\n", b"1\n2\nx = 1\n3\n")
    assert revert(b"0\n1\n2\nyx = 1\n3\n", undo) == (b"0\n1\n2\nyx = 1\n3\n", NOT_FOUND)


# ---------------------------------------------------------------- as a three-way merge does

Change = tuple[int, int, tuple[bytes, ...]]


def line_changes(old: list[bytes], new: list[bytes]) -> set[Change]:
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return {(i1, i2, tuple(new[j1:j2])) for tag, i1, i2, j1, j2 in codes if tag != "equal"}


def merged(base: list[bytes], mine: list[bytes], theirs: list[bytes]) -> list[bytes] | None:
    """The lines with both changes, as `git merge-file` has them; None where changes touch each other."""
    one, other = line_changes(base, mine), line_changes(base, theirs)
    if any(a[0] <= b[1] and b[0] <= a[1] for a in one for b in other):
        return None
    lines = list(base)
    for start, end, new in sorted(one | other, reverse=True):
        lines[start:end] = new
    return lines


def real_edits() -> list[tuple[str, bytes, bytes]]:
    """Each file that a case edits: its path, what it was and what it is then."""
    return [
        (path, case.before[path], case.done[path])
        for kind in sorted(folder.name for folder in EDITED.iterdir())
        for case in cases(kind, having="after")
        for path in case.before
        if case.done.get(path) not in (None, case.before[path])
    ]


EDITS = real_edits()


@given(st.sampled_from(EDITS), st.data())
def test_what_a_person_changed_elsewhere_stays_as_in_a_three_way_merge(
    edit: tuple[str, bytes, bytes], data: st.DataObject
) -> None:
    """To the byte where the lines around the edit are still there; else the settings are those of the merge.

    Settings that a person changed themselves are those of test_undo_values.py.
    """
    path, before, after = edit
    base = after.splitlines(keepends=True)
    lines = list(base)
    for n in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines)))
        how = data.draw(st.sampled_from(["insert", "change", "remove"]))
        lines[at : at + (how != "insert")] = [] if how == "remove" else [b"# of a person %d\n" % n]
    both = merged(base, lines, before.splitlines(keepends=True))
    assume(both is not None)
    now, wanted = b"".join(lines), b"".join(both or ())
    left, lost = revert(now, record(before, after), path)
    if left != wanted and (said := values(path, now)) in (None, values(path, after)):
        by_value = said is not None and values(path, left or b"") == values(path, wanted)
        assert by_value or lost == NOT_FOUND, "what is not undone is said"


def test_an_edit_between_changed_lines_is_left_to_its_meaning() -> None:
    changed = AFTER.replace(b"version = 3\n\n[a]\n  x = 1\n", b"version = 3 # why\n[a2]\n  x = 2\n")
    left, lost = revert(changed, record(BEFORE, AFTER))
    assert (left, lost) == (changed.replace(b"[a.nvidia]\n  q = 1\n\n", b""), NOT_FOUND)


# ---------------------------------------------------------------- whole files


@pytest.mark.parametrize("left", [CREATED, b"", b"\n\n", b"version = 3\n", b"{}\n", CREATED + b"\n"])
def test_a_file_that_the_edit_made_goes_when_nothing_else_is_left_of_it(left: bytes) -> None:
    undo = record(None, CREATED)
    assert remnant(left, undo)
    assert revert(left, undo) == (None, ())


@pytest.mark.parametrize("left", [CREATED + b"b = 2\n", b"version = 2\n", b"# a note\n", b"[plugins.x]\n"])
def test_a_file_that_the_edit_made_stays_when_somebody_wrote_into_it(left: bytes) -> None:
    undo = record(None, CREATED)
    assert not remnant(left, undo)
    assert revert(left, undo) == (left, NOT_FOUND)


def test_a_file_that_is_gone_is_lost_but_not_one_that_the_edit_made() -> None:
    assert revert(None, record(None, b"x")) == (None, ())
    undo = record(b"x", b"y")
    assert revert(None, undo) == (None, NOT_FOUND)


def test_a_file_that_the_edit_removed_comes_back() -> None:
    assert revert(None, record(b"x\n", None)) == (b"x\n", ())
    assert revert(b"other\n", record(b"x\n", None))[0] == b"other\n"


def test_an_entry_that_was_changed_goes_while_its_program_is_that_of_the_edit() -> None:
    path, request = "/etc/docker/daemon.json", RuntimeRequest(runtime="docker", version="28.5.2")
    edit = configure_runtime({}, request)
    changed = (edit.changes[path] or b"").replace(b'"runtimeArgs": []', b'"runtimeArgs": ["--debug"]')
    assert unconfigure_runtime({path: changed}, request, [edit.undo]).changes == {path: None}
    more = changed.replace(b"{", b'{\n    "debug": true,', 1)
    left = unconfigure_runtime({path: more}, request, [edit.undo]).changes[path]
    assert json.loads(left or b"") == {"debug": True}


def test_an_entry_that_names_another_program_by_now_stays_and_is_named() -> None:
    path, request = "/etc/docker/daemon.json", RuntimeRequest(runtime="docker", version="28.5.2")
    edit = configure_runtime({}, request)
    changed = (edit.changes[path] or b"").replace(b"/usr/bin/nvidia", b"/opt/nvidia")
    undone = unconfigure_runtime({path: changed}, request, [edit.undo])
    left = json.loads(undone.changes[path] or b"")
    assert left == {"runtimes": {"nvidia": {"path": "/opt/nvidia-container-runtime", "runtimeArgs": []}}}
    assert [one.why for one in undone.reasons if "before gpunode" in one.why] == [
        'changed since: runtimes.nvidia is {path: "/opt/nvidia-container-runtime", runtimeArgs: []}, '
        "and was not set before gpunode"
    ]


def test_a_runc_that_somebody_has_come_to_need_stays() -> None:
    path, request = "/etc/containerd/config.toml", RuntimeRequest(runtime="containerd", version="1.7.34")
    edit = configure_runtime({path: b"version = 2\n"}, request)
    own = b'\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]\nruntime_type = "io.containerd.kata.v2"\n'
    after = (edit.changes[path] or b"") + own
    left = unconfigure_runtime({path: after}, request, [edit.undo]).changes[path] or b""
    state = runtime_state({path: left}, request)
    assert ((*state.runtimes,), state.default, b"nvidia" in left) == (("runc", "kata"), "runc", False)


def test_a_table_of_somebody_elses_stays_and_the_rest_goes_back_to_the_byte() -> None:
    path, request = "/etc/containerd/config.toml", RuntimeRequest(runtime="containerd", version="1.7.34")
    before = b"version = 2\n[plugins]\n"
    edit = configure_runtime({path: before}, request)
    own = b"[debug]\nlevel = 'info'\n"
    after = (edit.changes[path] or b"") + own
    assert unconfigure_runtime({path: after}, request, [edit.undo]).changes == {path: before + own}


# ---------------------------------------------------------------- size


def test_a_record_of_ten_thousand_like_lines_holds_the_edits_alone() -> None:
    before = [b'key = ""\n', b"\n", b"[t]\n"] * 3334
    after = [b"first\n", *before[:5000], b"middle\n", *before[5000:], b"last\n"]
    undo = record(b"".join(before), b"".join(after))
    assert [(h.before, h.after) for h in undo.hunks] == [(b"", b"first\n"), (b"", b"middle\n"), (b"", b"last\n")]


def test_files_with_nothing_in_common_are_one_hunk() -> None:
    lines = [b"%d\n" % n for n in range(5000)]
    other = [b"x%d\n" % n for n in random.Random(1).sample(range(5000), 5000)]
    undo = record(b"".join(lines), b"".join(other))
    assert len(undo.hunks) == 1
    assert revert(b"".join(other), undo) == (b"".join(lines), ())


# ---------------------------------------------------------------- as JSON


@given(st.none() | ANY_BYTES, st.none() | ANY_BYTES)
def test_a_record_survives_json(before: bytes | None, after: bytes | None) -> None:
    undo = {"/etc/x": record(before, after)}
    assert undo_from_data(json.loads(json.dumps(undo_data(undo)))) == undo


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    PLAIN, st.lists(st.sampled_from(["files", "/etc/x", "hunks", 0, "at", "after", "created", "version"]), max_size=6)
)
def test_a_damaged_record_is_an_input_error(value: object, path: list[str | int]) -> None:
    data = json.loads(json.dumps(undo_data({"/etc/x": record(b"a\nb\n", b"a\nc\n")})))
    at = data
    for key in path[:-1]:
        if not (isinstance(at, dict) and key in at) and not (isinstance(at, list) and key == 0 and at):
            return
        at = at[key]
    if path and isinstance(at, (dict, list)) and not (isinstance(at, list) and path[-1] != 0):
        at[path[-1]] = value
    elif not path:
        data = value
    try:
        undo = undo_from_data(data)
    except InputError:
        return
    assert all(isinstance(one, Undo) for one in undo.values())
    for one in undo.values():
        revert(b"a\nc\n", one)
