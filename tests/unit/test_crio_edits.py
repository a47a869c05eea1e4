"""CRI-O: what its files come to, going back without a record, and the daemon's own opinion.

GPUNODE_CRIOS names crio binaries, separated by colons: then every case is held against what `crio config` has in force
before and after.
"""

from __future__ import annotations

import os
import posixpath
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from edit_cases import EditCase, applied, case, cases
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.edits import (
    RuntimeRequest,
    activation,
    configure_runtime,
    edit_runtime,
    probed_runtime_files,
    runtime_files,
    runtime_state,
    unconfigure_runtime,
)
from gpunode.core.edits.engines.crio import NAME
from gpunode.core.engines import ROWS
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.facts import parse_probe
from gpunode.core.model import ConfigFile, Edit, NodeFacts, Runtime

ROOT = "/etc/crio/crio.conf"
FOLDER = posixpath.dirname(ROWS["crio"].drop_ins)
DROP_IN = f"{FOLDER}/{NAME}"
STOCK = case("crio", "package-1.31").before["/etc/crio/crio.conf.d/10-crio.conf"]
TABLE = b'[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
PACKAGE = {f"{FOLDER}/10-crio.conf": STOCK}
NO_START_BEFORE = ("default-without-table", "flag-says-it-already")  # their default runtime has no table
CRIOS = [path for path in os.environ.get("GPUNODE_CRIOS", "").split(":") if path]


def request(**options: Any) -> RuntimeRequest:
    return RuntimeRequest(runtime="crio", **{"version": "1.31.13", **options})


# ---------------------------------------------------------------- going back without a record


def test_unconfigure_removes_the_drop_in_and_what_stood_below_counts_again() -> None:
    after = applied(PACKAGE, configure_runtime(PACKAGE, request()))
    assert runtime_state(after, request()).default == "nvidia"
    assert applied(after, unconfigure_runtime(after, request())) == PACKAGE


def test_unconfigure_takes_nvidia_out_of_every_file_and_leaves_the_rest_of_them() -> None:
    before = {
        ROOT: b'[crio.runtime]\ndefault_runtime = "nvidia" # gpus\nlog_level = "info"\n',
        f"{FOLDER}/50-gpu": b"# ours\n" + TABLE + b'\n[crio.image]\npause_image = "p"\n',
        DROP_IN: b'[crio.runtime]\ncgroup_manager = "cgroupfs"\nconmon_cgroup = "pod"\n\n' + TABLE,
    }
    edit = unconfigure_runtime(before, request())
    assert applied(before, edit) == {
        ROOT: b'[crio.runtime]\n# gpus\nlog_level = "info"\n',
        f"{FOLDER}/50-gpu": b'# ours\n\n[crio.image]\npause_image = "p"\n',
        DROP_IN: b'[crio.runtime]\ncgroup_manager = "cgroupfs"\nconmon_cgroup = "pod"\n',
    }
    assert ["stays" in reason.why for reason in edit.reasons] == [False, False, False, True]


def test_unconfigure_leaves_a_default_that_has_a_table_where_the_built_in_one_may_not_be_installed() -> None:
    runc = b'\n[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\n'
    before = {ROOT: b'[crio.runtime]\ndefault_runtime = "nvidia"\n\n' + TABLE + runc}
    after = applied(before, unconfigure_runtime(before, request()))
    assert after == {ROOT: b'[crio.runtime]\ndefault_runtime = "runc"\n' + runc}


def test_unconfigure_of_the_drop_in_gives_back_the_built_in_default_that_counted_before() -> None:
    before = {ROOT: b'[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\n'}
    after = applied(before, configure_runtime(before, request()))
    assert applied(after, unconfigure_runtime(after, request())) == before


def test_unconfigure_refuses_where_the_daemon_is_started_with_nvidia_as_default() -> None:
    asked = request(flags=("--default-runtime", "nvidia"))
    [problem] = unconfigure_runtime({DROP_IN: TABLE}, asked).problems
    assert problem.what == "CRI-O is started with --default-runtime, which overrules default_runtime of its files"


def test_unconfigure_changes_nothing_where_nvidia_is_not_known() -> None:
    assert unconfigure_runtime(PACKAGE, request()).changes == {}


def test_unconfigure_leaves_another_default_alone() -> None:
    before = {
        ROOT: b'[crio.runtime]\ndefault_runtime = "kata"\n',
        DROP_IN: b'[crio.runtime.runtimes.nvidia]\nruntime_path = "/y"\n',
    }
    assert applied(before, unconfigure_runtime(before, request())) == {ROOT: before[ROOT]}


# ---------------------------------------------------------------- what is in force


def test_the_built_in_runtime_of_a_release_is_known_next_to_those_of_the_files() -> None:
    table = {DROP_IN: b'[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'}
    old, new = (runtime_state(table, request(version=version)) for version in ("1.30.4", "1.31.0"))
    assert ((*old.runtimes,), old.default) == (("runc", "nvidia"), "runc")
    assert ((*new.runtimes,), new.default) == (("crun", "nvidia"), "crun")
    assert runtime_state(table, request(version="")).default == ""


def test_what_is_in_force_names_files_cdi_and_cgroup_driver() -> None:
    state = runtime_state(
        {ROOT: b'[crio.runtime]\ncgroup_manager = "cgroupfs"\ncdi_spec_dirs = []\n', **PACKAGE}, request()
    )
    assert state.files == (ROOT, f"{FOLDER}/10-crio.conf")
    assert (state.cgroup_driver, state.cdi, state.path) == ("cgroupfs", False, "")
    assert runtime_state({}, request(version="1.20.1")).cdi is None


def test_what_crio_would_refuse_is_refused_when_its_state_is_asked() -> None:
    with pytest.raises(RefusedError, match="default_runtime"):
        runtime_state({ROOT: b"[crio.runtime]\ndefault_runtime = 1\n"}, request())


def test_every_file_of_the_folder_is_asked_for_whatever_its_name() -> None:
    assert runtime_files({}, request())[:2] == (ROOT, f"{FOLDER}/*")
    assert f"{FOLDER}/*/*" in runtime_files({}, request())


# ---------------------------------------------------------------- taking it up


def test_crio_is_restarted_and_judges_the_files_first() -> None:
    crio = Runtime(name="crio", version="1.31.13", binary="/usr/bin/crio", unit="crio.service", config=ROOT)
    facts = NodeFacts(runtimes=(crio,), files={ROOT: ConfigFile(path=ROOT, data=b"")})
    found = activation(facts, RuntimeRequest(runtime="crio"), Edit(changes={DROP_IN: b""}))
    assert (found.verb, found.unit, found.socket) == ("restart", "crio.service", "/run/crio/crio.sock")
    assert found.validate == ("/usr/bin/crio", "--config", "@FILE@", "--config-dir", FOLDER, "config")
    assert found.disrupts == "restarts crio.service: running containers keep running"


def test_a_root_file_that_is_not_there_is_not_named_to_crio() -> None:
    facts = NodeFacts(runtimes=(Runtime(name="crio", version="1.31.13", config=ROOT),))
    found = activation(facts, RuntimeRequest(runtime="crio"), Edit())
    assert found.validate == ("crio", "--config-dir", FOLDER, "config")
    assert found.disrupts == ""


PROBE = """#: gpunode-probe 1
#: units
| Id=crio.service
| LoadState=loaded
| ActiveState=active
| MainPID=7
|
| process 7\t/usr/bin/crio\t--config\t/opt/crio.conf\t--config-dir=/opt/d\t
#: runtimes
| binary crio /usr/bin/crio
| crio version 1.31.13
#: files
#: file /opt/d/50.d/x
| 644 root:root 0
#: file /opt/crio.conf
| 644 root:root 0
#: file /opt/d/50-a
| 644 root:root 0
#: end
"""


def test_the_files_that_the_daemon_was_started_with_are_those_in_force() -> None:
    facts = parse_probe(PROBE)
    [crio] = facts.runtimes
    assert {"/opt/crio.conf", "/opt/d/50-a", "/opt/d/50.d/x"} == set(probed_runtime_files(facts, crio))
    assert list(edit_runtime(facts, RuntimeRequest(runtime="crio")).changes) == ["/opt/d/99-nvidia.toml"]


# ---------------------------------------------------------------- any input


@given(st.binary(max_size=200), st.sampled_from([ROOT, DROP_IN, f"{FOLDER}/10-x"]), st.booleans())
def test_any_bytes_are_edited_or_refused_in_our_words(data: bytes, path: str, in_place: bool) -> None:
    try:
        edit = configure_runtime({path: data}, request(in_place=in_place))
    except InputError:
        return
    if not edit.problems:
        after = applied({path: data}, edit)
        assert configure_runtime(after, request(in_place=in_place)).changes == {}
        assert runtime_state(after, request()).default == "nvidia"


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=5),
    st.lists(st.text(max_size=3), max_size=2),
)
SHAPES = st.recursive(
    VALUES,
    lambda inner: st.dictionaries(
        st.sampled_from(
            ["crio", "runtime", "runtimes", "nvidia", "crun", "default_runtime", "runtime_path", "cdi_spec_dirs"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.just("crio"), st.dictionaries(st.just("runtime"), SHAPES)), st.booleans())
def test_any_shape_is_edited_or_refused_in_our_words(doc: dict[str, Any], in_place: bool) -> None:
    from gpunode.core.edits.text import toml

    text = toml.literal(_without_none(doc))[1:-1].encode()
    edit = configure_runtime({ROOT: text}, request(in_place=in_place, cgroup_driver="systemd", cdi=True))
    if not edit.problems:
        assert configure_runtime(applied({ROOT: text}, edit), request(in_place=in_place)).changes == {}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


# ---------------------------------------------------------------- crio's own opinion


def effective(binary: str, tree: Path, found: dict[str, bytes], asked: RuntimeRequest) -> dict[str, Any]:
    """What `crio config` has in force, dotted path → value."""
    for path, data in found.items():
        target = tree / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    root = asked.config or ROOT
    folder = next((asked.flags[at + 1] for at, word in enumerate(asked.flags) if word == "--config-dir"), FOLDER)
    if asked.drop_in and asked.config:
        folder = str(Path(asked.drop_in).parent)
    flags = [word for word in asked.flags if word.startswith(("--default-runtime=", "--runtimes="))]
    config = str(tree / root[1:]) if root in found else ""
    words = [binary, *flags, "--config", config, "--config-dir", str(tree / folder[1:]), "config"]
    # what is as by default stands in comments there
    return _printed(binary, "--config", "", "--config-dir", str(tree / "none"), "config", "--default") | _printed(
        *words
    )


def _printed(*words: str) -> dict[str, Any]:
    return _flat(tomllib.loads(_printed_text(*words)))


def _printed_text(*words: str) -> str:
    printed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    return printed.stdout


def _flat(doc: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in doc.items():
        below = f"{path}.{key}" if path else key
        found |= _flat(value, below) if isinstance(value, dict) else {below: value}
    return found


@pytest.mark.skipif(not CRIOS, reason="GPUNODE_CRIOS names no crio")
@pytest.mark.parametrize("binary", CRIOS)
@pytest.mark.parametrize("one", cases("crio", having="after"), ids=lambda one: one.name)
def test_crio_has_in_force_what_was_meant_and_nothing_else_changes(one: EditCase, binary: str, tmp_path: Path) -> None:
    options = one.asked
    version = _printed_text(binary, "--version").split()[2]
    asked = RuntimeRequest(runtime="crio", **{**options, "version": version, "flags": tuple(options.get("flags", ()))})
    before = one.before
    edit = configure_runtime(before, asked)
    after = applied(before, edit)
    now = effective(binary, tmp_path / "after", after, asked)
    assert now[f"crio.runtime.runtimes.{asked.name}.runtime_path"] == asked.path
    assert (now["crio.runtime.default_runtime"] == asked.name) is (asked.default_runtime == "nvidia")
    if one.name in NO_START_BEFORE:
        return
    was = effective(binary, tmp_path / "before", before, asked)
    differ = {key for key in {*was, *now} if was.get(key) != now.get(key)}
    # conmon_cgroup counts for every runtime: CRI-O shows it in each
    meant = (*edit.meant, *(f"crio.runtime.runtimes.{name}.monitor_cgroup" for name in ("crun", "runc")))
    assert [key for key in differ if not key.startswith(meant)] == []
    undone = effective(binary, tmp_path / "undone", applied(after, unconfigure_runtime(after, asked)), asked)
    assert [key for key in undone if key.startswith(f"crio.runtime.runtimes.{asked.name}.")] == []
    assert undone["crio.runtime.default_runtime"] != asked.name
