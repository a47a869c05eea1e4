"""No secret of a configuration is in what an edit says: errors, problems, reasons, notes, diffs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from edit_cases import EditCase, Files, Kind, cases
from hypothesis import given
from hypothesis import strategies as st
from test_component_edits import KINDS
from test_edits import DOCKER, request_of
from test_edits import KINDS as ENGINES

from gpunode.core.diff import unified
from gpunode.core.edits import RuntimeRequest, configure_runtime, runtime_files, runtime_state, unconfigure_runtime
from gpunode.core.edits.engines.toolkit import toolkit_target
from gpunode.core.engines import TOOLKIT_CONFIG as TOOLKIT
from gpunode.core.errors import GpunodeError
from gpunode.core.model import Edit

SECRET = "hunter2hunter2"
URLS = (f"https://me:{SECRET}@host/x", f"ssh://{SECRET}@host", f"tcp://me:a/{SECRET}@host", f"me:{SECRET}@host:3128")
# where strings stand: in quotes (keys too), and plain behind a colon
STRING = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|(?<=: )[^\s\"'{\[#|>&*][^\n#]*")
PAIR = re.compile(r"(?P<key>\"[^\"\n]*\"|[\w.-]+)(?P<sign>[ \t]*[:=][ \t]*)(?P<value>\"[^\"\n]*\"|\d+)")

ENGINE_CASES = cases(*ENGINES)
KIND_CASES = [(kind, case) for kind in KINDS for case in kind.cases()]


def planted(text: str, at: int, secret: str) -> str | None:
    """The text with the secret as the string number `at`; None where it has no strings."""
    found = list(STRING.finditer(text))
    if not found:
        return None
    one = found[at % len(found)]
    mark = one[0][0] if one[0][0] in "\"'" else ""
    return f"{text[: one.start()]}{mark}{secret}{mark}{text[one.end() :]}"


def named(text: str, at: int) -> str | None:
    """The text with the secret as the value of pair number `at`, below a key that names it."""
    found = list(PAIR.finditer(text))
    if not found:
        return None
    one = found[at % len(found)]
    key = '"splunk-token"' if one["key"].startswith('"') else "splunk-token"
    value = f'"{SECRET}"' if one["value"].startswith('"') else "987654321987654321"
    return f"{text[: one.start()]}{key}{one['sign']}{value}{text[one.end() :]}"


def printed_of(before: Files, edit: Edit) -> Iterator[str]:
    yield from (f"{one.what} {one.fix}" for one in edit.problems)
    yield from (f"{one.what} {one.why}" for one in edit.reasons)
    yield from (unified(before.get(path), data, path) for path, data in edit.changes.items())


def all_printed(before: Files, request: RuntimeRequest) -> Iterator[str]:
    """Whatever the four functions of an engine's files have to say."""
    edits = (configure_runtime, unconfigure_runtime)
    for edit in edits:
        try:
            yield from printed_of(before, edit(before, request))
        except GpunodeError as error:
            yield str(error)
    try:
        runtime_files(before, request)
        yield from (f"{note.what} {note.why}" for note in runtime_state(before, request).notes)
    except GpunodeError as error:
        yield str(error)


def all_printed_of_component(kind: Kind, before: Files, case: EditCase) -> Iterator[str]:
    try:
        yield from printed_of(before, kind.configure(before, kind.asked(case)))
    except GpunodeError as error:
        yield str(error)


def leaks(printed: Iterator[str]) -> list[str]:
    return [text for text in printed if SECRET in text or "987654321987654321" in text]


def with_secret(case: EditCase, path_at: int, at: int, secret: str) -> Files | None:
    before = dict(case.before)
    texts = [path for path, data in before.items() if b"\0" not in data and data.isascii()]
    if not texts:
        return None
    path = texts[path_at % len(texts)]
    text = before[path].decode()
    changed = planted(text, at, secret) if secret else named(text, at)
    return None if changed is None else {**before, path: changed.encode()}


@given(st.sampled_from(ENGINE_CASES), st.integers(0, 9), st.integers(0, 10_000), st.sampled_from([*URLS, ""]))
def test_no_secret_of_an_engine_s_files_is_said(case: EditCase, path_at: int, at: int, secret: str) -> None:
    before = with_secret(case, path_at, at, secret)
    if before is not None:
        assert leaks(all_printed(before, request_of(case))) == []


@given(st.sampled_from(KIND_CASES), st.integers(0, 9), st.integers(0, 10_000), st.sampled_from([*URLS, ""]))
def test_no_secret_of_a_component_s_files_is_said(of: tuple[Kind, Path], path_at: int, at: int, secret: str) -> None:
    before = with_secret(of[1], path_at, at, secret)
    if before is not None:
        assert leaks(all_printed_of_component(of[0], before, of[1])) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"registry-mirrors": ["https://user:hunter2hunter2@mirror"]}',
        '{"registry-mirrors": ["https://user:hunter2/hunter2hunter2@mirror"]}',
        '{"hosts": ["ssh://u:hunter2hunter2@h"]}',
        '{"log-opts": {"splunk-token": 987654321987654321}}',
        '{"log-opts": {"splunk-token": ["hunter2hunter2"]}}',
        '{"labels": ["com.docker.token=hunter2hunter2"]}',
        '{"https://u:hunter2hunter2@h": 1}',
        '{"default-runtime": "https://u:hunter2hunter2@h"}',
        '{"runtimes": {"x": {"path": ["hunter2hunter2"]}}}',
        '"https://u:hunter2hunter2@h"',
    ],
)
def test_what_dockerd_refuses_is_said_without_secrets(text: str) -> None:
    printed = list(all_printed({DOCKER: text.encode()}, RuntimeRequest(runtime="docker", version="28.5")))
    assert leaks(iter(printed)) == []
    assert any("dockerd" in one or "daemon.json" in one for one in printed)


def test_the_toolkit_s_file_is_quoted_without_secrets() -> None:
    broken = f'["https://u:{SECRET}@h"]\na = 1\n["https://u:{SECRET}@h"]\n'.encode()
    with pytest.raises(GpunodeError) as error:
        toolkit_target({"no_cgroups": True}).configure({TOOLKIT: broken})
    assert SECRET not in str(error.value)
