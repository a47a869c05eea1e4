"""Files → files: the cases of tests/edits for container engines, requests, facts, any input."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from edit_cases import EDITS, EditCase, cases, over, problems, record
from hypothesis import given
from hypothesis import strategies as st
from toml_documents import document

from gpunode.core.checks.ids import CHECKS
from gpunode.core.edits import (
    RuntimeRequest,
    activation,
    configure_runtime,
    edit_runtime,
    runtime_state,
    runtime_target,
    unconfigure_runtime,
)
from gpunode.core.edits.target import Engine
from gpunode.core.edits.values import values
from gpunode.core.engines import ENGINES, ROWS, RuntimeName
from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.model import ConfigFile, Distribution, Edit, NodeFacts, Runtime
from gpunode.core.spec import RuntimesSpec
from gpunode.node import script

KINDS = tuple(sorted((*ENGINES, *filter(None, get_args(Distribution)))))
CONTAINERD = "/etc/containerd/config.toml"
DOCKER = "/etc/docker/daemon.json"


def request_of(case: EditCase) -> RuntimeRequest:
    options = {**case.asked, "flags": tuple(case.asked.get("flags", ()))}
    if case.kind in get_args(Distribution):
        return RuntimeRequest(runtime="containerd", distribution=case.kind, **options)  # type: ignore[arg-type]
    return RuntimeRequest(runtime=case.kind, **options)  # type: ignore[arg-type]


RECORDED = {
    engine["name"]
    for path in Path(__file__).parents[1].glob("cases/probes/*/facts.json")
    for engine in json.loads(path.read_text()).get("runtimes", [])
}


@pytest.mark.parametrize("name", sorted({*get_args(RuntimeName), *ROWS, *(one.name for one in fields(RuntimesSpec))}))
def test_an_engine_has_a_name_a_row_a_key_an_editor_and_cases(name: RuntimeName) -> None:
    assert name in get_args(RuntimeName), "RuntimeName of gpunode/core/engines.py does not have it"
    assert name in ROWS, "ROWS of gpunode/core/engines.py do not have it"
    assert hasattr(RuntimesSpec(), name), "RuntimesSpec of gpunode/core/spec/__init__.py has no field of this name"
    editor = import_module(f"gpunode.core.edits.engines.{name}")
    assert isinstance(getattr(editor, "ENGINE", None), Engine), f"{editor.__file__} has no ENGINE"
    functions = [f"{name}_{part}" for part in ("checks", "clean") if f"\n{name}_{part}() {{" in script("smoke.sh")]
    wanted = [f"{name}_checks", f"{name}_clean"] if ROWS[name].smoke else []
    assert functions == wanted, "smoke of its row differs from the functions of gpunode/node/smoke/smoke.sh"
    assert name in RECORDED, "no node of tests/cases/probes has it: add the lines that its probe prints to one"
    listed = any(identity.startswith(f"{name}.") for group in CHECKS.values() for identity in group)
    assert listed == ROWS[name].smoke, f"no check {name}.… is in gpunode/core/checks/ids.py, or its row has no smoke"


PAGES = ("README.md", "docs/README.md", "docs/runtime.md", "docs/tested.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_about_engines_names_each(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    titles = [one.metadata["doc"].split()[0] for one in fields(RuntimesSpec)]
    assert [title for title in titles if title not in text] == [], f"{page} lacks these engines"


@pytest.mark.parametrize("kind", KINDS)
def test_an_editor_has_cases(kind: str) -> None:
    assert cases(kind), f"tests/edits/{kind}/ has no case"
    assert any(case.after for case in cases(kind)), f"no case of tests/edits/{kind}/ has an `after`"


@over([case for case in cases(*ENGINES, having="after") if not {"config", "drop_in", "flags"} & case.asked.keys()])
def test_the_probe_sends_every_file_that_an_edit_of_an_engine_makes(case: EditCase) -> None:
    row = ROWS[next(name for name in ENGINES if name == case.kind)]
    sent = [row.config, row.below(row.config), *row.files]
    for path in case.done.keys() - case.before.keys():
        assert any(fnmatchcase(path, one) for one in sent), f"{path}: drop_ins or files of {case.kind}'s row lack it"


# other spaces, and a folder that is nobody's: these go back by lines alone
BY_LINES = ("docker/no-break-spaces", "crio/own-config-and-drop-in")


@over([case for case in cases(*ENGINES, having="after") if not case.id.startswith(BY_LINES)])
def test_undo_knows_the_values_of_every_file_that_an_engine_has(case: EditCase) -> None:
    for path in {path for path, data in case.done.items() if data and data != case.before.get(path)}:
        found = values(path, case.done[path])
        assert found is not None, f"gpunode/core/edits/values.py does not know what {path} is written in"


def test_every_case_says_what_comes_of_it() -> None:
    for case in cases(*KINDS):
        record(case, lambda case: configure_runtime(case.before, request_of(case)))
    wrong = [c.id for c in cases(*KINDS) if (c.after is not None) + bool(c.problem) + bool(c.error) != 1]
    assert wrong == []


@over([folder.name for folder in sorted(EDITS.iterdir())])
def test_a_file_that_several_cases_begin_with_is_there_once(kind: str) -> None:
    """One of four lines or more; shorter ones read better where they are."""
    named = {name for case in cases(kind) for name in case.shared.values()}
    assert {path.name for path in (EDITS / kind).glob("before/*")} == named
    written = [d for case in cases(kind) for path, d in case.before.items() if path not in case.shared]
    known = Counter([*written, *(path.read_bytes() for path in (EDITS / kind).glob("before/*"))])
    assert [data for data, times in known.items() if times > 1 and data.count(b"\n") >= 4] == []


@over(cases(*KINDS, having="after"))
def test_edited_files_are_those_of_the_case(case: EditCase) -> None:
    before, request = case.before, request_of(case)
    edit = configure_runtime(before, request)
    after = {**before, **edit.changes}
    assert edit.problems == ()
    assert after == case.done, "what the edit makes differs from the sections `after`"
    undone = unconfigure_runtime(after, request, [edit.undo])
    left = {p: d for p, d in {**after, **undone.changes}.items() if d is not None}
    if case.name == "default-without-table":  # CRI-O did not start with that, and does now
        before = {path: data.replace(b'default_runtime = "nvidia"\n', b"") for path, data in before.items()}
    assert left == before, "an edit and its undo do not leave the files as before"
    assert configure_runtime(after, request).changes == {}, "editing twice equals editing once"


@over(cases(*KINDS, having="problem"))
def test_what_cannot_work_is_a_problem_and_no_file_changes(case: EditCase) -> None:
    edit = configure_runtime(case.before, request_of(case))
    assert edit.changes == {}
    assert problems(edit) == case.problem


@over(cases(*KINDS, having="error"))
def test_broken_files_are_named_with_their_place(case: EditCase) -> None:
    with pytest.raises(InputError) as error:
        configure_runtime(case.before, request_of(case))
    assert f"{error.value}\n" == case.printed


# a list that loses elements on several lines; drop-ins of another version with nothing but our own runtime
WRITTEN_AGAIN = {"cri-enabled-among-others-2.1", "drop-in-above-the-root-2.3", "unread-drop-in-above-the-root-2.1"}


@over(cases(*KINDS, having="after"))
def test_every_line_that_was_there_is_still_there(case: EditCase) -> None:
    if case.name in WRITTEN_AGAIN:
        return
    before, after = case.before, case.done
    changing = (
        "imports",
        "enable_cdi",
        "runtime_",
        "disabled_plugins",
        "default",
        "BinaryName",
        "SystemdCgroup",
        "exec-opts",
        "path",
        "runtime = ",
        "= {",
    )
    for path, data in before.items():
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            continue
        kept = after[path].decode().splitlines()
        lost = [
            line
            for line in data.decode().splitlines()
            if line.rstrip(",") not in [k.rstrip(",") for k in kept]
            and not any(word in line for word in changing)
            and line.strip() not in ("", "null", "{}")
            and not line.strip().startswith(('{"', '"runtimes": null', '"nvidia": null'))
        ]
        assert lost in ([], case.lost), "write the lines that go into the section `lost`"


def test_edits_are_undone_by_what_they_carry() -> None:
    before = {CONTAINERD: b"version = 3\n"}
    edit = configure_runtime(before, RuntimeRequest(runtime="containerd", version="2.1.9"))
    after = {path: data for path, data in edit.changes.items() if data is not None}
    undone = unconfigure_runtime(after, RuntimeRequest(runtime="containerd", version="2.1.9"), [edit.undo])
    assert undone.changes == {CONTAINERD: b"version = 3\n", "/etc/containerd/conf.d/99-nvidia.toml": None}


@pytest.mark.parametrize("runtime", ["containerd", "docker"])
def test_a_file_over_one_mebibyte_is_refused(runtime: str) -> None:
    path = CONTAINERD if runtime == "containerd" else DOCKER
    with pytest.raises(InputError, match=rf"{path} has 1048577 bytes"):
        configure_runtime({path: b" " * ((1 << 20) + 1)}, RuntimeRequest(runtime=runtime))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"name": "runc"},
        {"name": 'x"]\n'},
        {"name": ""},
        {"path": "relative"},
        {"path": "/a/../b"},
        {"path": ""},
        {"config": "/etc/x\n"},
        {"config": "/etc/a.toml", "drop_in": "/etc/a.toml"},
    ],
)
def test_a_request_that_no_engine_takes_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InputError):
        configure_runtime({}, RuntimeRequest(runtime="containerd", **options))  # type: ignore[arg-type]


def test_a_runtime_that_is_not_rewritten_yet_is_refused_by_name() -> None:
    with pytest.raises(GpunodeError, match="minikube"):
        configure_runtime({}, RuntimeRequest(runtime="containerd", distribution="minikube"))  # type: ignore[arg-type]


# ---------------------------------------------------------------- from facts


def node(data: bytes | None, *, version: str = "1.7.24", size: int = 0, flags: tuple[str, ...] = ()) -> NodeFacts:
    runtime = Runtime(
        name="containerd",
        version=version,
        unit="containerd.service",
        config=CONTAINERD,
        flags=flags,
    )
    file = ConfigFile(path=CONTAINERD, data=data, size=size, mode=0o600, sha256="aa")
    return NodeFacts(runtimes=(runtime,), files={CONTAINERD: file})


REQUEST = RuntimeRequest(runtime="containerd")


def test_an_edit_from_facts_is_the_edit_of_their_files() -> None:
    edit = edit_runtime(node(b"version = 2\n"), REQUEST)
    request = RuntimeRequest(runtime="containerd", version="1.7.24")
    alone = configure_runtime({CONTAINERD: b"version = 2\n"}, request)
    assert alone.changes and edit == replace(alone, files=(CONTAINERD,))


def test_an_engine_that_is_not_there_is_a_problem() -> None:
    assert [p.what for p in edit_runtime(NodeFacts(), REQUEST).problems] == ["containerd is not installed"]


def test_a_file_the_probe_could_not_read_is_a_problem() -> None:
    assert [p.what for p in edit_runtime(node(None), REQUEST).problems] == [f"{CONTAINERD} could not be read"]


def test_a_file_the_probe_found_too_large_is_a_problem() -> None:
    assert [p.what for p in edit_runtime(node(None, size=2 << 20), REQUEST).problems] == [
        f"{CONTAINERD} has 2097152 bytes"
    ]


def test_a_broken_file_is_a_problem_with_its_place() -> None:
    edit = edit_runtime(node(b"version = [\n"), REQUEST)
    assert edit.changes == {}
    assert edit.problems[0].what.startswith(f"{CONTAINERD}:2:1: ")


def test_what_containerd_says_against_its_files_is_a_problem_unless_our_own_drop_in_is_missing() -> None:
    drop_in = "/etc/containerd/conf.d/99-nvidia.toml"
    said = "failed to unmarshal TOML: (2, 1): Can't convert x(string) to int"  # containerd 1.7.24
    for text, refused in (
        ("", [f"containerd does not start with {CONTAINERD}: {said}"]),
        (f'imports = ["{drop_in}"]\n', []),
    ):
        facts = node(f"{text}version = 3\noom_score = 1\n".encode(), version="2.1.9")
        facts = replace(facts, runtimes=(replace(facts.runtimes[0], effective_error=said),))
        edit = edit_runtime(facts, REQUEST)
        assert [p.what for p in edit.problems] == refused and (drop_in in edit.changes) is not bool(refused)


def test_the_config_that_the_daemon_is_started_with_is_edited() -> None:
    runtime = Runtime(
        name="docker", version="26.1.5", config=DOCKER, flags=("-H", "fd://", "--config-file", "/opt/d.json")
    )
    edit = edit_runtime(NodeFacts(runtimes=(runtime,)), RuntimeRequest(runtime="docker"))
    assert list(edit.changes) == ["/opt/d.json"]


def test_activation_says_who_is_disturbed() -> None:
    docker = Runtime(name="docker", version="26.1.5", unit="docker.service", config=DOCKER, binary="/usr/sbin/dockerd")
    facts = NodeFacts(runtimes=(docker,))
    wanted = RuntimeRequest(runtime="docker")
    edit = edit_runtime(facts, wanted)
    assert activation(facts, wanted, edit).disrupts == "restarts docker.service: running containers stop"
    assert activation(facts, wanted, Edit()).disrupts == ""
    live = NodeFacts(runtimes=(docker,), files={DOCKER: ConfigFile(path=DOCKER, data=b'{"live-restore" : true}')})
    assert "keep running" in activation(live, wanted, edit_runtime(live, wanted)).disrupts


def test_the_cri_plugin_is_not_asked_for_where_it_is_disabled() -> None:
    off = node(b'disabled_plugins = ["cri"]\n')
    assert activation(off, REQUEST, edit_runtime(off, REQUEST)).plugin == ""
    on = node(b"version = 2\n")
    assert activation(on, REQUEST, edit_runtime(on, REQUEST)).plugin == "cri"


# ---------------------------------------------------------------- any input


TOML = [("containerd", "1.7.34"), ("containerd", "2.1.9"), ("containerd", "2.3.4"), ("crio", "1.30"), ("podman", "5")]
WORDS = {'"a b"': "plugins", "'io.x.y'": '"io.containerd.grpc.v1.cri"', '"ключ"': "crio", "io-x": "containerd"}


@given(st.sampled_from(TOML), st.integers(0, 1 << 32))
def test_any_valid_toml_is_edited_or_refused_in_our_words(engine: tuple[str, str], seed: int) -> None:
    text = document(Random(seed))
    for word, name in WORDS.items():
        text = text.replace(word, name)
    tomllib.loads(text)
    request = RuntimeRequest(runtime=engine[0], version=engine[1])  # type: ignore[arg-type]
    path = runtime_target(request).root
    try:
        edit = configure_runtime({path: text.encode()}, request)
        runtime_state({path: text.encode()}, request)
    except (InputError, RefusedError):
        return
    assert edit.changes or edit.problems
    assert not any("Error" in problem.what for problem in edit.problems), "a library's own exception: edit that, too"


@pytest.mark.parametrize("error", [AttributeError, KeyError, ValueError, RecursionError])
def test_whatever_a_library_raises_is_a_refusal_with_the_file(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(_text: str) -> None:
        raise error("of the library")

    monkeypatch.setattr("tomlkit.parse", parse)
    files = {"/etc/containerd/config.toml": b"version = 2\nimports = []\n"}
    edit = configure_runtime(files, RuntimeRequest(runtime="containerd", version="2.1.9"))
    assert [problem.what for problem in edit.problems] == [
        f"/etc/containerd/config.toml is written in a way that gpunode cannot edit ({error.__name__})"
    ]
    assert edit.changes == {}


@pytest.mark.parametrize("folder", ["/opt/nvidia/toolkit", "/usr/local/nvidia/toolkit"])
@pytest.mark.parametrize(
    ("runtime", "distribution", "path", "text"),
    [
        ("docker", "", DOCKER, '{"runtimes": {"nvidia": {"path": "%s/nvidia-container-runtime"}}}'),
        (
            "containerd",
            "k0s",
            "/etc/k0s/containerd.d/nvidia.toml",
            '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]\n'
            'runtime_type = "io.containerd.runc.v2"\noptions = {BinaryName = "%s/nvidia-container-runtime"}\n',
        ),
    ],
)
def test_an_entry_of_the_gpu_operator_is_named_as_another_tools(
    runtime: RuntimeName, distribution: Distribution, path: str, text: str, folder: str
) -> None:
    asked = RuntimeRequest(
        runtime=runtime, distribution=distribution, version="28.5.2" if not distribution else "2.1.9"
    )
    files = {path: (("version = 3\n" if distribution else "") + text % folder).encode()}
    edit = configure_runtime(files, asked)
    assert path in edit.changes
    said = [reason.why for reason in edit.reasons if reason.why.startswith("another tool owns this entry")]
    assert len(said) == 1
    assert f"{folder}/nvidia-container-runtime" in said[0]
    after = {name: data for name, data in {**files, **edit.changes}.items() if data is not None}
    assert configure_runtime(after, asked).reasons == ()


@given(st.sampled_from(["containerd", "docker"]), st.binary(max_size=200))
def test_any_bytes_are_edited_or_refused_in_our_words(runtime: str, data: bytes) -> None:
    path = CONTAINERD if runtime == "containerd" else DOCKER
    request = RuntimeRequest(runtime=runtime, version="1.7.24" if runtime == "containerd" else "26.1.5")  # type: ignore[arg-type]
    try:
        edit = configure_runtime({path: data}, request)
    except InputError:
        return
    if not edit.problems:
        assert configure_runtime({path: edit.changes.get(path, data)}, request).changes == {}
