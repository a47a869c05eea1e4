"""containerd's files: what is in force, what an edit means for it, and the way back without a record.

A case of tests/edits/containerd may have left/PATH: what is left of after/ when the runtime is taken out again.
"""

from __future__ import annotations

import pytest
from edit_cases import EditCase, cases, over
from hypothesis import given
from hypothesis import strategies as st
from test_edits import request_of

from gpunode.core.edits import (
    RuntimeRequest,
    activation,
    configure_runtime,
    edit_runtime,
    runtime_files,
    runtime_state,
    unconfigure_runtime,
)
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.model import ConfigFile, NodeFacts, Runtime

CONFIG = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
GRPC = '[plugins."io.containerd.grpc.v1.cri"'
RUNTIME = '[plugins."io.containerd.cri.v1.runtime"'
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'


def asked(version: str, **options: object) -> RuntimeRequest:
    return RuntimeRequest(runtime="containerd", version=version, **options)  # type: ignore[arg-type]


def tree(root: str, **others: str) -> dict[str, bytes]:
    """The root and its neighbours: a_toml is /etc/containerd/a.toml, conf_d__x_toml conf.d/x.toml."""
    named = {f"/etc/containerd/{name.replace('__', '/').replace('_', '.')}": text for name, text in others.items()}
    return {path: text.encode() for path, text in {CONFIG: root, **named}.items()}


@pytest.mark.parametrize("version", ["1.6.20", "1.7.34", ""])
@pytest.mark.parametrize(
    "root",
    [
        'version = 2\n["plug\\u0069ns"."io.containerd.grpc.v1.cri"]\n',
        'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n"contain\\u0065rd".runtimes.x.runtime_type = "y"\n',
        '"vers\\u0069on" = 2\n',
        f'version = 2\n{GRPC}.containerd.runtimes."a\\u0062c"]\nruntime_type = "x"\n',
    ],
)
def test_an_escaped_key_on_the_way_to_the_runtimes_is_refused_below_2_0(root: str, version: str) -> None:
    for edit in (configure_runtime, unconfigure_runtime):
        [problem] = edit(tree(root), asked(version)).problems
        assert "has an escape, which containerd 1.x takes as it is spelled" in problem.what
    assert configure_runtime(tree(root), asked("2.1.9")).problems == ()


@pytest.mark.parametrize(
    "rest",
    [
        '[plugins."io.containerd.a.v1.b\\\\c"]\n',
        "[plugins.'io.containerd.a.v1.b\\c']\n",
        f'{GRPC}.registry.mirrors."a\\u0062"]\n',
        "x = 'a\\b'\n",
    ],
)
def test_an_escape_elsewhere_is_nobody_s_concern(rest: str) -> None:
    assert configure_runtime(tree(f"version = 2\n{rest}"), asked("1.7.34")).changes


# ---------------------------------------------------------------- the way back without a record


@over(cases("containerd", having="left"))
def test_without_a_record_only_the_runtime_s_own_entries_go(case: EditCase) -> None:
    after, request = case.done, request_of(case)
    edit = unconfigure_runtime(after, request)
    assert edit.problems == ()
    assert {path: data for path, data in {**after, **edit.changes}.items() if data is not None} == case.left


@over(cases("containerd", having="after"))
def test_what_was_configured_can_be_taken_out_and_then_nothing_is_left_to_do(case: EditCase) -> None:
    after, request = case.done, request_of(case)
    edit = unconfigure_runtime(after, request)
    left = {path: data for path, data in {**after, **edit.changes}.items() if data is not None}
    assert edit.problems == ()
    assert edit.reasons
    state = runtime_state(left, request)
    assert request.name not in state.runtimes
    assert state.default != request.name
    assert unconfigure_runtime(left, request).changes == {}


@pytest.mark.parametrize("version", ["1.7.34", "2.1.9", "2.3.4", ""])
@pytest.mark.parametrize("root", ["", "version = 2\n", f"version = 2\n{GRPC}.containerd.runtimes.nvidia-cdi]\n"])
def test_files_that_do_not_know_the_runtime_are_left_alone(root: str, version: str) -> None:
    assert unconfigure_runtime(tree(root), asked(version)).changes == {}
    assert unconfigure_runtime({}, asked(version)).changes == {}


def test_the_reasons_say_what_stays() -> None:
    before = tree(f"version = 2\n{IMPORTS}{GRPC}]\nenable_cdi = false\n")
    request = asked("2.1.9", cdi=True, cgroup_driver="systemd")
    after = {**before, **configure_runtime(before, request).changes}
    printed = [(reason.what, reason.why) for reason in unconfigure_runtime(after, request).reasons]  # type: ignore[arg-type]
    assert printed == [
        (DROP_IN, "removes the runtime nvidia; the default runtime is runc"),
        ("enable_cdi", "stays: other runtimes may use CDI devices"),
        ("SystemdCgroup of runc", "stays: it is the kubelet's"),
        (DROP_IN, "stays: it says more than the runtime"),
        ("the import of /etc/containerd/conf.d/*.toml", "stays: other files may be there"),
    ]


def test_the_import_of_a_drop_in_that_goes_goes_too() -> None:
    before = tree(
        'version = 3\nimports = ["a.toml"] # mine\n', a_toml="version = 3\n", conf_d__10_toml="oom_score = 1\n"
    )
    request = asked("2.1.9")
    after = {**before, **configure_runtime(before, request).changes}
    assert b'imports = ["a.toml", "/etc/containerd/conf.d/99-nvidia.toml"] # mine\n' in (after[CONFIG] or b"")
    left = unconfigure_runtime(after, request)  # type: ignore[arg-type]
    assert left.changes == {CONFIG: before[CONFIG], DROP_IN: None}


def test_an_import_of_a_drop_in_that_is_not_there_goes_too() -> None:
    before = tree('version = 3\nimports = ["conf.d/99-nvidia.toml"]\n')
    edit = unconfigure_runtime(before, asked("2.1.9"))
    assert edit.changes == {CONFIG: b"version = 3\n"}
    converged = {**before, CONFIG: before[CONFIG] + f"{RUNTIME}.containerd.runtimes.nvidia]\n".encode()}
    text = f'runtime_type = "io.containerd.runc.v2"\noptions = {{ BinaryName = "{asked("").path}" }}\n'
    converged[CONFIG] += text.encode()
    edit = configure_runtime(converged, asked("2.1.9", default_runtime="keep"))
    assert [problem.what for problem in edit.problems] == [
        f"{CONFIG} imports {DROP_IN}, which is not there: containerd does not start"
    ]


def test_a_default_that_would_name_no_runtime_becomes_runc() -> None:
    before = tree(
        f'version = 3\n{IMPORTS}{RUNTIME}.containerd]\ndefault_runtime_name = "gone"\n',
        conf_d__99_toml=f'version = 3\n{RUNTIME}.containerd]\ndefault_runtime_name = "nvidia"\n'
        f'{RUNTIME}.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n',
    )
    edit = unconfigure_runtime(before, asked("2.1.9"))
    assert b'default_runtime_name = "runc"' in (edit.changes["/etc/containerd/conf.d/99.toml"] or b"")


def test_runc_is_written_where_the_other_runtimes_would_be_left_without_it() -> None:
    text = f'version = 2\n{GRPC}.containerd]\ndefault_runtime_name = "nvidia"\n'
    for name, kind in (("kata", "kata"), ("nvidia", "runc")):
        text += f'{GRPC}.containerd.runtimes.{name}]\nruntime_type = "io.containerd.{kind}.v2"\n'
    edit = unconfigure_runtime(tree(text), asked("1.7.34"))
    after = {CONFIG: edit.changes[CONFIG] or b""}
    state = runtime_state(after, asked("1.7.34"))
    assert (sorted(state.runtimes), state.default) == (["kata", "runc"], "runc")


def test_a_runtime_whose_table_hides_others_is_not_taken_out() -> None:
    hidden = f'{GRPC}.containerd.runtimes.kata]\nruntime_type = "io.containerd.kata.v2"\n'
    text = f'version = 2\n{hidden}{RUNTIME}.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
    edit = unconfigure_runtime(tree(text), asked("2.1.9"))
    assert (edit.changes, len(edit.problems)) == ({}, 1)
    assert "other settings of containerd would change" in edit.problems[0].what


# ---------------------------------------------------------------- what is in force


@pytest.mark.parametrize(
    ("version", "root", "others", "runtimes", "default"),
    [
        ("1.7.34", "", {}, ["runc"], "runc"),
        ("1.7.34", f"version = 2\n{GRPC}.containerd.runtimes.kata]\n", {}, ["kata"], "runc"),
        ("2.1.9", f"version = 2\n{GRPC}.containerd.runtimes.kata]\n", {}, ["kata", "runc"], "runc"),
        ("1.7.34", f"{IMPORTS}[plugins.cri.containerd.runtimes.kata]\n", {}, ["kata"], "runc"),
        ("2.1.9", f"{IMPORTS}[plugins.cri.containerd.runtimes.kata]\n", {}, ["runc"], "runc"),
        ("2.3.4", f"{IMPORTS}[plugins.cri.containerd.runtimes.kata]\n", {}, ["kata", "runc"], "runc"),
        (  # 1.x: the table of a later file replaces the earlier one
            "1.7.34",
            f'version = 2\n{IMPORTS}{GRPC}.containerd]\ndefault_runtime_name = "kata"\n',
            {"conf_d__a_toml": f"{GRPC}.containerd.runtimes.crun]\n"},
            ["crun"],
            "runc",
        ),
        (
            "2.0.11",
            f'version = 2\n{IMPORTS}{GRPC}.containerd]\ndefault_runtime_name = "kata"\n',
            {"conf_d__a_toml": f"version = 2\n{GRPC}.containerd.runtimes.crun]\n"},
            ["crun", "runc"],
            "kata",
        ),
    ],
)
def test_the_state_is_what_the_daemon_has_in_force(
    version: str, root: str, others: dict[str, str], runtimes: list[str], default: str
) -> None:
    state = runtime_state(tree(root, **others), asked(version))
    assert (sorted(state.runtimes), state.default, state.path) == (runtimes, default, "")


def test_the_state_knows_cdi_and_the_cgroup_driver() -> None:
    root = f"version = 2\n{GRPC}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
    found = {version: runtime_state(tree(root), asked(version)) for version in ("1.6.39", "1.7.34", "2.1.9")}
    assert {version: state.cdi for version, state in found.items()} == {"1.6.39": None, "1.7.34": False, "2.1.9": True}
    assert {state.cgroup_driver for state in found.values()} == {"systemd"}
    assert runtime_state({}, asked("2.1.9")).cgroup_driver == ""


def test_a_plugin_that_is_off_a_default_without_runtime_and_a_lost_version_1_are_noted() -> None:
    def notes(root: str) -> list[str]:
        return [note.what for note in runtime_state(tree(root), asked("2.1.9")).notes]

    assert notes('disabled_plugins = ["cri"]\n') == [f"{CONFIG} disables the CRI plugin"]
    assert notes(f'version = 3\n{RUNTIME}.containerd]\ndefault_runtime_name = "x"\n') == ["default_runtime_name is x"]
    assert notes("[plugins.cri]\n") == [f"{CONFIG} is config version 1"]
    assert notes(f"version = 2\n{GRPC}]\n") == []
    assert notes("version = 3\n") == []


def test_a_file_whose_settings_a_newer_drop_in_hides_is_noted() -> None:
    before = tree(f"version = 2\n{IMPORTS}{GRPC}]\nsandbox_image = 'a'\n", conf_d__99_toml="version = 3\n")
    assert [note.what for note in runtime_state(before, asked("2.1.9")).notes] == [f"{CONFIG} is config version 2"]


def test_the_state_of_files_that_containerd_does_not_start_with_is_refused() -> None:
    with pytest.raises(RefusedError, match="knows versions up to 3"):
        runtime_state(tree("version = 4\n"), asked("2.1.9"))


# ---------------------------------------------------------------- what the edit needs, and what it means


def test_all_files_that_an_edit_needs_are_named_imports_of_imports_too() -> None:
    root = tree('imports = ["conf.d/*.toml", "../site.toml", 7]\n', conf_d__a_toml='imports = ["deep/x.toml"]\n')
    assert runtime_files({}, asked("2.1.9")) == (CONFIG, DROP_IN, "/etc/containerd/conf.d/*.toml")
    assert runtime_files(root, asked("2.1.9")) == (
        CONFIG,
        "/etc/containerd/conf.d/*.toml",
        "/etc/containerd/conf.d/a.toml",
        "/etc/site.toml",
        "/etc/containerd/conf.d/deep/x.toml",
        DROP_IN,
    )


def test_the_drop_in_lies_next_to_a_root_that_is_elsewhere() -> None:
    request = asked("2.1.9", config="/opt/etc/config.toml")
    assert list(configure_runtime({}, request).changes) == ["/opt/etc/conf.d/99-nvidia.toml", "/opt/etc/config.toml"]


def test_an_edit_names_the_settings_that_may_differ_under_every_name_of_the_plugin() -> None:
    edit = configure_runtime(tree("version = 2\n"), asked("2.1.9", cgroup_driver="systemd"))
    below = ("default_runtime_name", "runtimes.runc.options.SystemdCgroup", "runtimes.nvidia")
    names = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
    assert edit.meant == ("imports", *(f"plugins.{name}.containerd.{key}" for key in below for name in names))


def test_a_drop_in_that_cannot_be_is_explained() -> None:
    before = tree(f"version = 3\n{IMPORTS}", conf_d__zz_toml=f'{RUNTIME}.containerd]\ndefault_runtime_name = "runc"\n')
    edit = configure_runtime(before, asked("2.1.9"))
    assert list(edit.changes) == ["/etc/containerd/conf.d/zz.toml"]
    overruled = "/etc/containerd/conf.d/zz.toml overrules containerd.default_runtime_name"
    assert [(reason.what, reason.why) for reason in edit.reasons[1:]] == [("no drop-in is written", overruled)]
    old = configure_runtime(tree("version = 2\n"), asked("1.7.34", drop_in=DROP_IN))
    assert old.reasons[1].why == "this containerd is configured in place"


def test_containerd_is_restarted_and_its_cri_plugin_asked_for_unless_it_is_off() -> None:
    def plugin(text: str) -> str:
        engine = Runtime(name="containerd", version="2.1.9", unit="containerd.service", config=CONFIG)
        facts = NodeFacts(runtimes=(engine,), files={CONFIG: ConfigFile(path=CONFIG, data=text.encode())})
        wanted = RuntimeRequest(runtime="containerd")
        how = activation(facts, wanted, edit_runtime(facts, wanted))
        assert (how.verb, how.unit) == ("restart", "containerd.service")
        return how.plugin

    assert plugin("version = 3\n") == "cri"
    assert plugin('version = 3\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n') == ""
    assert plugin("broken [") == "cri"


# ---------------------------------------------------------------- any input

VALUES = st.sampled_from(['"x"', "1", "-1", "2.5", "true", "[]", "[1]", '["a"]', "{}", "{ a = 1 }", "1979-05-27"])
KEYS = st.sampled_from(
    [
        "version",
        "imports",
        "plugins",
        "disabled_plugins",
        'plugins."io.containerd.grpc.v1.cri"',
        'plugins."io.containerd.grpc.v1.cri".containerd',
        'plugins."io.containerd.cri.v1.runtime".containerd.default_runtime_name',
        'plugins."io.containerd.cri.v1.runtime".enable_cdi',
        "plugins.cri.containerd.runtimes",
        "plugins.cri.containerd.runtimes.runc",
        'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options',
        'plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options.SystemdCgroup',
        'plugins."io.containerd.grpc.v1.cri".containerd.default_runtime',
    ]
)


@given(
    st.lists(st.tuples(KEYS, VALUES), max_size=4, unique_by=lambda pair: pair[0]),
    st.sampled_from(["", "version = 1\n", "version = 2\n", "version = 3\n"]),
    st.sampled_from(["1.6.39", "1.7.34", "2.1.9", "2.3.4", ""]),
)
def test_any_shape_is_edited_or_refused_in_our_words(lines: list[tuple[str, str]], head: str, version: str) -> None:
    before = tree(head + "".join(f"{key} = {value}\n" for key, value in lines))
    request = asked(version)
    try:
        edit = configure_runtime(before, request)
        unconfigure_runtime(before, request)
        runtime_files(before, request)
    except GpunodeError:
        return
    if edit.problems:
        assert edit.changes == {}
        return
    after = {path: data for path, data in {**before, **edit.changes}.items() if data is not None}
    assert configure_runtime(after, request).changes == {}
    assert request.name in runtime_state(after, request).runtimes
