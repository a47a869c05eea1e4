"""What a person writes into a configured file is still there after unconfigure, with a record and without one."""

from __future__ import annotations

import difflib
import json

import pytest
import yaml
from edit_cases import EditCase, Files, applied, cases
from hypothesis import assume, given
from hypothesis import strategies as st
from test_edits import KINDS, request_of

from gpunode.core.edits import RuntimeRequest, configure_runtime, runtime_state, unconfigure_runtime
from gpunode.core.edits.text import jsontext, toml, yamltext
from gpunode.core.edits.undo import NOT_FOUND, record, revert
from gpunode.core.errors import GpunodeError
from gpunode.core.model import Edit

CONTAINERD = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
NVIDIA = b"[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia"
FORMS = ("# mine %d\n", "# mine %d\n\n", "\n# mine %d\n", "  # mine %d  \n# and mine %d\n")


def configured(before: Files, version: str) -> tuple[Files, RuntimeRequest, Edit]:
    request = RuntimeRequest(runtime="containerd", version=version)
    edit = configure_runtime(before, request)
    return applied(before, edit), request, edit


def undone(after: Files, request: RuntimeRequest, edit: Edit | None) -> Files:
    return applied(after, unconfigure_runtime(after, request, [edit.undo] if edit else ()))


# ---------------------------------------------------------------- at the end of the file


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("comment", [b"# mine\n", b"# mine\n\n", b"# mine", b"\n# mine\n", b"#mine\n# too\n"])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_comment_below_what_configure_wrote_at_the_end_stays(end: bytes, comment: bytes, recorded: bool) -> None:
    before = {CONTAINERD: b"version = 2\n[debug]\nlevel = 'info'" + end}
    after, request, edit = configured(before, "1.7.34")
    gap = b"" if after[CONTAINERD].endswith(b"\n") else b"\n"
    after[CONTAINERD] += gap + comment
    back = undone(after, request, edit if recorded else None)[CONTAINERD]
    assert b"nvidia" not in back
    assert back.endswith(comment)
    if recorded:
        assert back == before[CONTAINERD] + gap + comment


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(("version", "path"), [("1.7.34", CONTAINERD), ("2.1.9", DROP_IN)])
def test_a_comment_in_a_file_that_configure_made_stays_with_the_file(version: str, path: str, recorded: bool) -> None:
    after, request, edit = configured({} if path == CONTAINERD else {CONTAINERD: b"version = 3\n"}, version)
    for changed in (after[path] + b"# mine\n", b"# mine\n" + after[path], after[path].replace(b"\n\n", b"\n# mine\n")):
        back = undone({**after, path: changed}, request, edit if recorded else None)
        assert b"# mine\n" in back[path]
        assert b"nvidia" not in back[path]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_file_that_configure_made_goes_when_nothing_of_anybody_else_s_is_in_it(recorded: bool) -> None:
    before = {CONTAINERD: b"version = 3\n"}
    after, request, edit = configured(before, "2.1.9")
    back = undone({**after, DROP_IN: after[DROP_IN] + b"\n"}, request, edit if recorded else None)
    assert DROP_IN not in back
    assert not recorded or back == before


def test_a_comment_on_a_line_that_goes_stays_on_a_line_of_its_own() -> None:
    after, request, _ = configured({CONTAINERD: b"version = 2\n"}, "1.7.34")
    line = next(line for line in after[CONTAINERD].splitlines() if b"BinaryName" in line)
    after[CONTAINERD] = after[CONTAINERD].replace(line, line + b"  # why")
    assert b"\n# why\n" in undone(after, request, None)[CONTAINERD]


def test_lines_come_back_with_their_end_where_the_last_one_had_none() -> None:
    undo = record(b"a\nb\nc", b"a\nb\nc\nours\n")
    assert revert(b"a\nb\nc\nours\n# mine\n", undo) == (b"a\nb\nc\n# mine\n", ())
    crlf = record(b"a\r\nb\r\nc", b"a\r\nb\r\nc\r\nours\r\n")
    assert revert(b"a\r\nb\r\nc\r\nours\r\n# mine", crlf) == (b"a\r\nb\r\nc\r\n# mine", ())


def test_what_ended_the_file_without_a_line_end_is_found_above_other_lines() -> None:
    undo = record(b"a\nb", b"a\nb\nours")
    assert revert(b"a\nb\nours\n# mine\n", undo) == (b"a\nb\n# mine\n", ())
    assert revert(b"a\nb\nours\r\n# mine\n", undo) == (b"a\nb\r\n# mine\n", ())
    assert revert(b"a\nb\nours too\n", undo) == (b"a\nb\nours too\n", NOT_FOUND)


def test_a_recorded_file_of_our_own_loses_our_lines_and_keeps_comments_and_a_version_that_others_need() -> None:
    undo = record(None, b"version = 3\n[ours]\nx = 1\n")
    assert revert(b"# a\nversion = 3\n[ours]\nx = 1\n# b\n", undo, "/c.toml") == (b"# a\n# b\n", ())
    assert revert(b"version = 3\n[ours]\nx = 1\nkey = 1\n", undo, "/c.toml") == (b"version = 3\n[ours]\nkey = 1\n", ())


# ---------------------------------------------------------------- YAML


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a: 1\nkey: x # why\nb: 2\n", "a: 1\n# why\nb: 2\n"),
        ("{\n  a: 1,\n  # mine\n  key: x\n}\n", "{\n  a: 1\n  # mine\n}\n"),
        ("{\n  key: x,\n  # mine\n  a: 1\n}\n", "{\n  # mine\n  a: 1\n}\n"),
        ("a: 1\nkey:\n  # mine\n  - x\n", "a: 1\n  # mine\n"),
        ("a: '#1'\nkey: '#x'\n", "a: '#1'\n"),
    ],
)
def test_a_yaml_key_goes_and_comments_stay(text: str, after: str) -> None:
    got = yamltext.remove(text, ("key",))
    assert got == after
    assert yaml.safe_load(got) == {key: one for key, one in yaml.safe_load(text).items() if key != "key"}


# ---------------------------------------------------------------- anywhere in any case


def edited_files() -> list[tuple[EditCase, str]]:
    """Each file, not in JSON, that a case edits or makes."""
    found = []
    for case in cases(*KINDS, having="after"):
        before, after = case.before, case.done
        found += [(case, path) for path in after if after[path] != before.get(path) and not path.endswith(".json")]
    return found


def near_the_edit(before: bytes, after: bytes) -> list[int]:
    """Numbers of lines within the edit and next to it, and both ends of the file."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    changed = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    edits = [(j1, j2) for tag, _, _, j1, j2 in changed if tag != "equal"]
    near = {n for start, end in edits for n in range(max(0, start - 3), min(len(new), end + 3) + 1)}
    return sorted(near | {0, len(new)})


def with_lines(data: bytes, at: int, lines: bytes) -> bytes:
    every = data.splitlines(keepends=True)
    head = b"".join(every[:at])
    gap = b"\n" if head and not head.endswith(b"\n") else b""
    return head + gap + lines + b"".join(every[at:])


def same_state(one: Files, other: Files, request: RuntimeRequest) -> bool:
    """Whether both can be read and say the same: a line within a string of several lines would be no comment."""
    try:
        return runtime_state(one, request) == runtime_state(other, request)
    except GpunodeError:
        return False


EDITED = edited_files()


@given(st.sampled_from(EDITED), st.booleans(), st.data())
def test_comments_that_a_person_writes_anywhere_stay(
    edited: tuple[EditCase, str], recorded: bool, data: st.DataObject
) -> None:
    case, path = edited
    before, request = case.before, request_of(case)
    edit = configure_runtime(before, request)
    after = applied(before, edit)
    assume(not after[path].startswith((b"\xff\xfe", b"\xfe\xff")))
    places = st.sampled_from(near_the_edit(before.get(path, b""), after[path]))
    mine = []
    changed = after[path]
    for n, at in enumerate(sorted(data.draw(st.lists(places, min_size=1, max_size=3)), reverse=True)):
        lines = data.draw(st.sampled_from(FORMS)).replace("%d", str(n)).encode()
        changed = with_lines(changed, at, lines)
        mine += [line for line in lines.splitlines() if line.strip()]
    assume(same_state(after, {**after, path: changed}, request))
    back = unconfigure_runtime({**after, path: changed}, request, [edit.undo] if recorded else ())
    if back.problems:
        assert back.changes == {}
        return
    left = applied({**after, path: changed}, back).get(path, b"").splitlines()
    assert [line for line in mine if line not in left] == []


@given(st.sampled_from([one for one in EDITED if one[1].endswith(".toml")]), st.booleans(), st.data())
def test_tables_that_a_person_writes_between_others_stay(
    edited: tuple[EditCase, str], recorded: bool, data: st.DataObject
) -> None:
    case, path = edited
    before, request = case.before, request_of(case)
    edit = configure_runtime(before, request)
    after = applied(before, edit)
    text = after[path].decode("utf-8-sig")
    heads = [n for n, line in enumerate(text.splitlines()) if line.lstrip().startswith("[")]
    lines = b"[mine]\n# about x\nx = 'y'\n"
    changed = with_lines(after[path], data.draw(st.sampled_from([*heads, len(text.splitlines())])), lines)
    assume(same_state(after, {**after, path: changed}, request))
    assume("mine" in toml.parse(path, changed.removeprefix(b"\xef\xbb\xbf"))[1])  # not in a string of several lines
    back = unconfigure_runtime({**after, path: changed}, request, [edit.undo] if recorded else ())
    if not back.problems:
        left = applied({**after, path: changed}, back)[path]
        assert lines.strip() in left.replace(b"\r\n", b"\n")
        assert toml.parse(path, left.removeprefix(b"\xef\xbb\xbf"))[1]["mine"] == {"x": "y"}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("setting", [{("shutdown-timeout",): 41}, {("runtimes", "mine"): {"path": "/usr/bin/mine"}}])
def test_settings_that_a_person_writes_into_daemon_json_stay(
    setting: dict[tuple[str, ...], object], recorded: bool
) -> None:
    for case in cases("docker"):
        before, request = case.before, request_of(case)
        [path] = (case.after or {}) or [""]
        if not (case.after or {}).get(path, b"").lstrip().startswith(b"{") or "white-space" in case.name:
            continue  # not in UTF-8, or with white space that is none of JSON's
        edit = configure_runtime(before, request)
        after = applied(before, edit)
        changed = {**after, path: jsontext.edit(after[path].decode(), setting).encode()}
        back = unconfigure_runtime(changed, request, [edit.undo] if recorded and edit.undo else ())
        if not back.problems:
            left = json.loads(applied(changed, back)[path])
            assert {key[0]: left[key[0]][key[1]] if key[1:] else left[key[0]] for key in setting} == {
                key[0]: value for key, value in setting.items()
            }, case.name
