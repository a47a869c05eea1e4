"""daemon.json: what dockerd takes and refuses, edited and undone; how a change is taken up."""

from __future__ import annotations

import json

import pytest
from daemon_json import VERSIONS, documents
from rows import over

from gpunode.core.edits import (
    RuntimeRequest,
    RuntimeState,
    configure_runtime,
    runtime_state,
    unconfigure_runtime,
)
from gpunode.core.edits.engines.docker_file import arguments
from gpunode.core.errors import InputError
from gpunode.core.model import Edit

DOCKER = "/etc/docker/daemon.json"
NVIDIA = {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": []}


def request(**options: object) -> RuntimeRequest:
    return RuntimeRequest(**{"runtime": "docker", "version": "28.5.2", **options})  # type: ignore[arg-type]


def printed(data: bytes | None) -> dict[str, object]:
    assert data is not None
    found = json.loads(data)
    assert isinstance(found, dict)
    return found


# ---------------------------------------------------------------- what dockerd takes and refuses


@over([(*document, version) for document in documents() for version in VERSIONS], name=lambda row: f"{row[0]} {row[3]}")
def test_what_dockerd_takes_is_edited_and_what_is_refused_it_refuses_too(
    text: str, printed: str, data: bytes, version: str
) -> None:
    takes = printed[VERSIONS.index(version)] == "y"
    asked = request(version=version)
    try:
        edit = configure_runtime({DOCKER: data}, asked)
    except InputError as error:
        assert not takes, error
        return
    if edit.problems:
        assert not takes or "is UTF-16" in edit.problems[0].what, edit.problems
    else:  # what it refuses of other keys, it says itself
        after = {DOCKER: edit.changes.get(DOCKER) or b""}
        assert (runtime_state(after, asked).path, runtime_state(after, asked).default) == (asked.path, "nvidia")
        assert configure_runtime(after, asked) == Edit()


def test_halves_of_surrogate_pairs_are_kept_as_they_are_written() -> None:
    text = r'{"exec-opts": ["\ud800=x", "native.cgroupdriver=cgroupfs"], "runtimes": {"\udfff": {"path": "\ud800"}}}'
    asked = request(version="26.1.5", cgroup_driver="systemd")
    after = configure_runtime({DOCKER: text.encode()}, asked).changes[DOCKER] or b""
    assert after.count(rb'"\ud800=x"') == after.count(rb'"\udfff": {"path": "\ud800"}') == 1
    assert runtime_state({DOCKER: after}, asked).runtimes == {"\ufffd": "\ud800", "nvidia": asked.path}


@pytest.mark.parametrize("text", [r'{"features": {"\ud800": "\ud800"}}', '{"log-opts": {"a": 1e999}}'])
def test_what_is_refused_is_said_in_words_that_can_be_printed(text: str) -> None:
    with pytest.raises(InputError) as error:
        configure_runtime({DOCKER: text.encode()}, request())
    assert str(error.value).encode()


@pytest.mark.parametrize(
    ("options", "sets"),
    [
        ({"cdi": False, "version": ""}, {"cdi": False}),  # from 28.2 on it would be on
        ({"cdi": True, "version": ""}, {"cdi": True}),
        ({"cdi": False, "version": "26.1.5"}, None),
        ({"cdi": True, "version": "28.2.0"}, None),
        ({"cdi": False, "version": "28.2.0"}, {"cdi": False}),
    ],
)
def test_cdi_is_said_where_the_daemon_has_it_otherwise(
    options: dict[str, object], sets: dict[str, bool] | None
) -> None:
    assert printed(configure_runtime({}, request(**options)).changes[DOCKER]).get("features") == sets


def test_docker_has_no_drop_in_files() -> None:
    with pytest.raises(InputError, match="drop-in"):
        configure_runtime({}, request(drop_in="/etc/docker/daemon.d/99-nvidia.json"))


# ---------------------------------------------------------------- the way back without a record


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"runtimes": {"nvidia": NVIDIA}, "default-runtime": "nvidia", "debug": True}, {"debug": True}),
        ({"runtimes": {"nvidia": NVIDIA, "kata": {"path": "/k"}}}, {"runtimes": {"kata": {"path": "/k"}}}),
        (
            {"runtimes": {"nvidia": NVIDIA, "kata": {"path": "/k"}}, "default-runtime": "kata"},
            {"runtimes": {"kata": {"path": "/k"}}, "default-runtime": "kata"},
        ),
        ({"runtimes": {"nvidia": None}}, {}),
        (
            {"exec-opts": ["native.cgroupdriver=systemd"], "features": {"cdi": True}, "runtimes": {"nvidia": NVIDIA}},
            {"exec-opts": ["native.cgroupdriver=systemd"], "features": {"cdi": True}},
        ),
    ],
)
def test_without_a_record_only_nvidias_entries_go(before: dict[str, object], after: dict[str, object]) -> None:
    files = {DOCKER: json.dumps(before, indent=2).encode()}
    edit = unconfigure_runtime(files, request())
    assert edit.problems == ()
    assert printed(edit.changes[DOCKER]) == after
    assert unconfigure_runtime({DOCKER: edit.changes[DOCKER] or b""}, request()).changes == {}


def test_what_stays_is_said() -> None:
    file = {"exec-opts": ["native.cgroupdriver=systemd"], "features": {"cdi": True}, "runtimes": {"nvidia": NVIDIA}}
    edit = unconfigure_runtime({DOCKER: json.dumps(file).encode()}, request())
    assert [reason.why for reason in edit.reasons] == [
        "removes runtimes",
        "features.cdi stays true",
        "exec-opts stays ['native.cgroupdriver=systemd']",
    ]


@pytest.mark.parametrize(
    "data", [None, b"", b"null", b"{}", b'{"runtimes": {}}', b'{"runtimes": null}', b"\xef\xbb\xbf"]
)
def test_a_file_without_nvidia_is_left_alone(data: bytes | None) -> None:
    assert unconfigure_runtime({} if data is None else {DOCKER: data}, request()) == Edit()


def test_a_runtime_that_the_units_default_names_is_not_taken_away() -> None:
    asked = request(flags=("--default-runtime=nvidia",))
    edit = unconfigure_runtime({DOCKER: json.dumps({"runtimes": {"nvidia": NVIDIA}}).encode()}, asked)
    assert edit.changes == {}
    assert edit.problems[0].what == (
        "docker's unit gives --default-runtime nvidia: without that runtime dockerd does not start"
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"runtimes": {"nvidia": {"path": "/a"}}, "runtimes": {"kata": {"path": "/k"}}}',
        '{"runtimes": {"nvidia": {"path": "/a"}}, "runtimes": {"nvidia": {"path": "/k"}}}',
        '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/a"}}, "default-runtime": "nvidia"}',
        '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/a"}}, "default-runtime": null}',
    ],
)
def test_of_keys_written_twice_none_stays_in_force(text: str) -> None:
    edit = unconfigure_runtime({DOCKER: text.encode()}, request())
    if not edit.problems:  # else it is left alone
        state = runtime_state({DOCKER: edit.changes[DOCKER] or b""}, request())
        assert (state.path, state.default) == ("", "runc")


# ---------------------------------------------------------------- what is in force


@pytest.mark.parametrize(
    ("file", "options", "expected"),
    [
        ("{}", {}, RuntimeState(default="runc", cdi=True, files=(DOCKER,))),
        ("{}", {"version": "26.1.5"}, RuntimeState(default="runc", cdi=False, files=(DOCKER,))),
        ("null", {"version": "20.10.24"}, RuntimeState(default="runc", files=(DOCKER,))),
        (
            '{"runtimes": {"nvidia": {"Path": "/n"}}, "default-runtime": "nvidia", "features": {"cdi": null}}',
            {},
            RuntimeState(runtimes={"nvidia": "/n"}, default="nvidia", path="/n", cdi=False, files=(DOCKER,)),
        ),
        (
            '{"runtimes": {"nvidia": {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/b"}}}}',
            {},
            RuntimeState(runtimes={"nvidia": "/b"}, default="runc", path="/b", cdi=True, files=(DOCKER,)),
        ),
        (
            '{"runtimes": {"kata": {"path": "/k"}}, "exec-opts": [" Native.CgroupDriver = cgroupfs"]}',
            {"flags": ("--add-runtime", "nvidia=/flag", "--default-runtime=nvidia", "--feature=cdi=false")},
            RuntimeState(
                runtimes={"nvidia": "/flag", "kata": "/k"},
                default="nvidia",
                path="/flag",
                cdi=False,
                cgroup_driver="cgroupfs",
                files=(DOCKER,),
            ),
        ),
    ],
)
def test_the_state_is_what_the_daemon_has_in_force(
    file: str, options: dict[str, object], expected: RuntimeState
) -> None:
    assert runtime_state({DOCKER: file.encode()}, request(**options)) == expected
    marked = file.encode("utf-8-sig")  # with a byte order mark
    if options.get("version") != "20.10.24":
        assert runtime_state({DOCKER: marked}, request(**options)) == expected


def test_an_edit_says_which_settings_it_meant() -> None:
    edit = configure_runtime({}, request(cdi=True, version="26.1.5", cgroup_driver="systemd"))
    assert edit.meant == ("runtimes.nvidia", "default-runtime", "exec-opts", "features.cdi")


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-H fd:// -D --live-restore --icc", {"live-restore": ["true"]}),
        ("--exec-opt a=b --exec-opt=c=d", {"exec-opts": ["a=b", "c=d"]}),
        ("--add-runtime nvidia=/n --label x=y", {"runtimes": ["nvidia=/n"]}),
        ("$DOCKER_OPTS --default-runtime", {"default-runtime": [""]}),
    ],
)
def test_arguments_are_read_as_dockerd_reads_them(line: str, expected: dict[str, list[str]]) -> None:
    assert arguments(line.split()) == expected


# ---------------------------------------------------------------- what dockerd says of the rest


def test_what_dockerd_says_against_its_file_is_a_problem_with_its_words() -> None:
    why = "the following directives don't match any configuration option: defaut-runtime"
    edit = configure_runtime({DOCKER: b'{"defaut-runtime": "nvidia"}'}, request(refused=why))
    assert edit.changes == {} and edit.problems[0].what == f"dockerd does not start with {DOCKER}: {why}"


@pytest.mark.parametrize(("version", "said"), [("20.10.24", True), ("", True), ("23.0.1", False), ("28.5.2", False)])
def test_where_no_dockerd_can_judge_the_file_that_is_said(version: str, said: bool) -> None:
    edit = configure_runtime({}, request(version=version))
    assert any(reason.why.startswith("not validated by dockerd") for reason in edit.reasons) is said
