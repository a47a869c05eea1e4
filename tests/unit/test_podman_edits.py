"""Podman's containers.conf: going back without a record, what is in force, any input."""

from __future__ import annotations

from typing import Any

from edit_cases import applied
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.edits import (
    RuntimeRequest,
    activation,
    configure_runtime,
    runtime_files,
    runtime_state,
    unconfigure_runtime,
)
from gpunode.core.errors import InputError
from gpunode.core.model import Edit, NodeFacts, Runtime

ROOT = "/etc/containers/containers.conf"
DROP_IN = f"{ROOT}.d/99-nvidia.conf"
CRUN = {ROOT: b'# ours\n[engine]\nruntime = "crun"\n'}


def request(**options: Any) -> RuntimeRequest:
    return RuntimeRequest(runtime="podman", **options)


def test_unconfigure_removes_the_drop_in_and_says_that_the_specification_stays() -> None:
    after = applied(CRUN, configure_runtime(CRUN, request()))
    assert runtime_state(after, request()).default == "nvidia"
    edit = unconfigure_runtime(after, request())
    assert applied(after, edit) == CRUN
    assert edit.reasons[-1].what == "the CDI specification"


def test_unconfigure_takes_only_our_entries_out_of_a_file_with_others() -> None:
    before = {
        ROOT: b'[engine]\nruntime = "nvidia"\nevents_logger = "file"\n\n'
        b'[engine.runtimes]\nnvidia = ["/x"]\nkata = ["/usr/bin/kata-runtime"]\n'
    }
    assert applied(before, unconfigure_runtime(before, request())) == {
        ROOT: b'[engine]\nevents_logger = "file"\n\n[engine.runtimes]\nkata = ["/usr/bin/kata-runtime"]\n'
    }


def test_the_distributions_own_file_counts_and_is_never_written() -> None:
    vendor = {
        "/usr/share/containers/containers.conf": b'[engine]\nruntime = "nvidia"\n[engine.runtimes]\nnvidia = ["/x"]\n'
    }
    assert runtime_state(vendor, request()).default == "nvidia"
    assert list(configure_runtime(vendor, request()).changes) == [DROP_IN]
    assert unconfigure_runtime(vendor, request()).changes == {}


def test_files_that_podman_passes_over_do_not_count() -> None:
    others = {f"{ROOT}.d/note.txt": b"[", f"{ROOT}.d/below/10.conf": b"["}
    assert runtime_state({**CRUN, **others}, request()).files == (ROOT,)


def test_a_users_own_configuration_has_its_drop_in_next_to_it() -> None:
    own = "/home/u/.config/containers/containers.conf"
    assert runtime_files({}, request(config=own))[1:] == (own, f"{own}.d/*.conf")
    assert list(configure_runtime({}, request(config=own)).changes) == [f"{own}.d/99-nvidia.conf"]


def test_nothing_is_restarted() -> None:
    podman = Runtime(name="podman", version="5.4.2", config=ROOT)
    found = activation(NodeFacts(runtimes=(podman,)), RuntimeRequest(runtime="podman"), Edit(changes={DROP_IN: b""}))
    assert (found.unit, found.verb, found.disrupts) == ("", "", "")


@given(st.binary(max_size=200), st.sampled_from([ROOT, DROP_IN, f"{ROOT}.d/10.conf"]), st.booleans())
def test_any_bytes_are_edited_or_refused_in_our_words(data: bytes, path: str, in_place: bool) -> None:
    try:
        edit = configure_runtime({path: data}, request(in_place=in_place))
    except InputError:
        return
    if not edit.problems:
        after = applied({path: data}, edit)
        assert configure_runtime(after, request(in_place=in_place)).changes == {}
        assert runtime_state(after, request()).default == "nvidia"
