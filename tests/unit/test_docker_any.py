"""daemon.json of any content: what it says is kept, what is not understood is refused, and all of it comes back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.edits import RuntimeRequest, configure_runtime, runtime_state, unconfigure_runtime
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.model import Edit

DOCKER = "/etc/docker/daemon.json"


def request(**options: object) -> RuntimeRequest:
    return RuntimeRequest(**{"runtime": "docker", "version": "28.5.2", **options})  # type: ignore[arg-type]


def printed(data: bytes) -> dict[str, object]:
    found = json.loads(data)
    assert isinstance(found, dict)
    return found


RUNTIMES = st.dictionaries(
    st.sampled_from(["kata", "crun", "nvidia", "a.b"]),
    st.fixed_dictionaries({"path": st.sampled_from(["/k", "/usr/bin/nvidia-container-runtime"])}),
)
MEMBERS = st.one_of(
    st.tuples(st.just("runtimes"), RUNTIMES | st.none()),
    st.tuples(st.just("features"), st.dictionaries(st.sampled_from(["cdi", "buildkit"]), st.booleans()) | st.none()),
    st.tuples(st.just("exec-opts"), st.lists(st.just("a=b"), max_size=2) | st.none()),
    st.tuples(st.just("live-restore"), st.booleans() | st.none()),
    st.tuples(st.just("default-runtime"), st.sampled_from(["runc", "nvidia", None])),
    st.tuples(
        st.sampled_from(["debug", "log-opts", "labels", "mtu"]),
        st.none() | st.integers() | st.lists(st.text(max_size=4)) | st.dictionaries(st.text(max_size=4), st.booleans()),
    ),
)
DOCUMENTS = st.lists(MEMBERS, max_size=6, unique_by=lambda pair: pair[0]).map(dict)


@given(DOCUMENTS, st.sampled_from([None, 0, 2, 4, "\t"]), st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")]))
def test_any_file_keeps_what_it_says_and_comes_back_to_the_byte(
    document: dict[str, object], indent: int | str | None, separators: tuple[str, str]
) -> None:
    data = json.dumps(document, indent=indent, separators=separators).encode()
    asked = request(cdi=True, cgroup_driver="systemd", version="28.1.1")
    edit = configure_runtime({DOCKER: data}, asked)
    if document.get("default-runtime") == "nvidia" and "nvidia" not in (document.get("runtimes") or {}):
        assert edit.changes
    assert edit.problems == ()
    after = edit.changes.get(DOCKER, data) or b""
    meant = ("runtimes", "default-runtime", "exec-opts", "features")
    assert {k: v for k, v in printed(after).items() if k not in meant} == {
        k: v for k, v in document.items() if k not in meant
    }
    others = {k: v for k, v in (document.get("runtimes") or {}).items() if k != "nvidia"}  # type: ignore[attr-defined]
    assert {k: v for k, v in printed(after)["runtimes"].items() if k != "nvidia"} == others  # type: ignore[attr-defined]
    assert configure_runtime({DOCKER: after}, asked) == Edit()
    back = unconfigure_runtime({DOCKER: after}, asked, [edit.undo])
    assert back.changes.get(DOCKER, after) == data


@given(DOCUMENTS, st.sampled_from([None, 2, "\t"]))
def test_without_a_record_the_way_back_takes_nvidia_away_and_nothing_else(
    document: dict[str, object], indent: int | str | None
) -> None:
    asked = request(default_runtime="keep")
    files = {DOCKER: json.dumps(document, indent=indent).encode()}
    edit = unconfigure_runtime(files, asked)
    assert edit.problems == ()
    expected = {k: v for k, v in document.items() if not (k == "default-runtime" and v == "nvidia")}
    runtimes = document.get("runtimes") or {}
    assert isinstance(runtimes, dict)
    if "nvidia" in runtimes:
        expected["runtimes"] = {k: v for k, v in runtimes.items() if k != "nvidia"}
        if not expected["runtimes"]:
            del expected["runtimes"]
    after = edit.changes.get(DOCKER, files[DOCKER]) or b""
    assert printed(after) == expected
    assert unconfigure_runtime({DOCKER: after}, asked).changes == {}


@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(alphabet='{}[]":, \n\\ue0runtimsvpahdfl-1', max_size=60).map(str.encode),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=6),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["runtimes", "features", "exec-opts", "default-runtime", "nvidia", "Path", "path", "x"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        ).map(lambda value: json.dumps(value).encode()),
    ),
    st.sampled_from(["", "20.10.24", "24.0.9", "26.1.5", "29.7.2"]),
)
def test_any_bytes_are_edited_or_refused_in_our_words(data: bytes, version: str) -> None:
    asked = request(version=version)
    for act in (configure_runtime, unconfigure_runtime, runtime_state):
        try:
            found = act({DOCKER: data}, asked)  # type: ignore[operator]
        except GpunodeError:
            continue
        if isinstance(found, Edit) and not found.problems:
            assert act({DOCKER: found.changes.get(DOCKER, data)}, asked).changes == {}  # type: ignore[operator]


def test_a_file_nested_beyond_reason_is_refused() -> None:
    with pytest.raises(InputError):
        configure_runtime({DOCKER: b'{"runtimes": ' + b"[" * 100_000}, request())
