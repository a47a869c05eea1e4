"""The container toolkit's own config.toml: the cases of tests/edits/toolkit, and any input."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import tomlkit
from edit_cases import EditCase, cases, over
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.edits.commit import target_request
from gpunode.core.edits.engines.toolkit import toolkit_target
from gpunode.core.edits.undo import revert
from gpunode.core.engines import TOOLKIT_CONFIG as CONFIG
from gpunode.core.errors import InputError
from gpunode.core.items.item import Question
from gpunode.core.items.toolkit import config_edit, config_hints, toolkit_settings, wanted
from gpunode.core.model import ConfigFile, NodeFacts, Reason, Solution
from gpunode.core.spec import Spec, parse_spec

CASES = cases("toolkit")
AFTER = cases("toolkit", having="after")


def asked(case: EditCase) -> dict[str, Any]:
    return dict(case.asked)


def spec(**config: Any) -> Spec:
    return parse_spec({"toolkit": {"config": config}})


def test_every_case_says_what_comes_of_it() -> None:
    assert [c.name for c in CASES if (c.after is not None) + bool(c.problem) + bool(c.error) != 1] == []


@over(AFTER)
def test_the_file_becomes_that_of_the_case_once_and_goes_back_to_the_byte(case: EditCase) -> None:
    before, wanted = case.before, asked(case)
    edit = toolkit_target(wanted).configure(before)
    after = {path: data for path, data in {**before, **edit.changes}.items() if data is not None}
    assert after == case.done
    assert toolkit_target(wanted).configure(after).changes == {}
    back = {path: revert(after[path], undo)[0] for path, undo in edit.undo.items()}
    assert {path: data for path, data in {**after, **back}.items() if data is not None} == before


@over(AFTER)
def test_the_file_says_what_was_asked_and_all_else_as_before(case: EditCase) -> None:
    before, after = case.before.get(CONFIG, b""), case.done[CONFIG]
    text = after.decode("utf-8-sig")
    assert tomlkit.parse(text).unwrap() == tomllib.loads(text)
    changed = {key for key, _ in leaves(before) ^ leaves(after)}
    assert len(changed) <= len(asked(case)) + ("debug" in asked(case))


def leaves(data: bytes) -> set[tuple[str, str]]:
    def walk(value: Any, path: str) -> set[tuple[str, str]]:
        if isinstance(value, dict) and value:
            return set().union(*(walk(item, f"{path}/{key}") for key, item in value.items()))
        return set() if value == {} else {(path, repr(value))}

    return walk(tomllib.loads(data.decode("utf-8-sig")), "")


@over(cases("toolkit", having="problem"))
def test_what_cannot_be_edited_is_a_problem(case: EditCase) -> None:
    edit = toolkit_target(asked(case)).configure(case.before)
    assert edit.changes == {}
    assert [f"{p.what}\n{p.fix}\n" for p in edit.problems] == [case.problem]


@over(cases("toolkit", having="error"))
def test_a_broken_file_or_setting_is_named(case: EditCase) -> None:
    with pytest.raises(InputError) as error:
        toolkit_target(asked(case)).configure(case.before)
    assert f"{error.value}\n" == case.error


@given(
    st.binary(max_size=200), st.sampled_from([{"mode": "cdi"}, {"debug": False}, {"no_cgroups": True, "debug": True}])
)
def test_any_bytes_are_edited_or_refused_in_our_words(data: bytes, wanted: dict[str, Any]) -> None:
    try:
        edit = toolkit_target(wanted).configure({CONFIG: data})
    except InputError:
        return
    after = edit.changes.get(CONFIG, data)
    assert edit.problems or (after is not None and toolkit_target(wanted).configure({CONFIG: after}).changes == {})


def test_lines_of_others_stay_when_the_edit_is_undone() -> None:
    before = b'[nvidia-container-runtime]\nmode = "auto"\n'
    edit = toolkit_target({"mode": "cdi"}).configure({CONFIG: before})
    later = (edit.changes[CONFIG] or b"") + b'\n[nvidia-ctk]\npath = "/opt/nvidia-ctk"\n'
    assert revert(later, edit.undo[CONFIG]) == (before + b'\n[nvidia-ctk]\npath = "/opt/nvidia-ctk"\n', ())


def test_nothing_is_asked_where_the_spec_says_nothing() -> None:
    asked = Question(facts=NodeFacts(), spec=Spec(), solution=Solution(), templates={})
    assert list(wanted(asked)) == []
    assert parse_spec({"toolkit": {"config": {"mode": None}}}).toolkit.config.settings == {}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mode": "cdii"}, "toolkit.config.mode is 'cdii'"),
        ({"ldconfig": "/sbin/ldconfig"}, "toolkit.config.ldconfig is '/sbin/ldconfig'"),
        ({"no_cgroups": "yes"}, "toolkit.config.no_cgroups is 'yes'"),
        ({"no-cgroups": True}, "unknown key 'toolkit.config.no-cgroups'"),
        ({"supported_driver_capabilities": "compute;utility"}, "supported_driver_capabilities is 'compute;utility'"),
        ({"user": "root video"}, "toolkit.config.user is 'root video'"),
        ({"log_level": "loud"}, "toolkit.config.log_level is 'loud'"),
    ],
)
def test_a_wrong_value_is_refused_before_any_node_is_asked(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("'", ".")):
        spec(**config)
    with pytest.raises(InputError):
        toolkit_settings(config)


def test_a_file_that_the_probe_may_not_read_is_no_empty_file() -> None:
    facts = NodeFacts(files={CONFIG: ConfigFile(path=CONFIG, sha256="ab", size=9)})
    assert config_edit(facts, {"mode": "cdi"}).problems[0].what == f"{CONFIG} could not be read"


def test_the_transaction_compares_the_file_and_restarts_nothing() -> None:
    target = toolkit_target({"mode": "cdi"})
    edit = target.configure({})
    request = target_request(target, edit, {CONFIG: None}, target.activation({}, edit), check=True)
    assert request["changes"] == f"0\twrite\t0644\tabsent\t-\t{CONFIG}\n".encode()
    assert request["after"] == f"config {CONFIG}\nsettle 3\n".encode()
    assert json.loads(request["undo"])["label"] == f"toolkit {CONFIG}"


def test_a_rootless_engine_is_notified_of_its_cgroups_unless_it_goes_by_cdi() -> None:
    facts = NodeFacts(rootless_docker=("1000",))

    def words(reasons: tuple[Reason, ...]) -> str:
        return " ".join(reason.why for reason in reasons)

    assert "set toolkit.config.no_cgroups" in words(config_hints(facts, spec(debug=True)))
    assert config_hints(facts, spec(mode="cdi")) == ()
    assert config_hints(facts, spec(no_cgroups=True)) == ()
    assert "Unknown Error" in words(config_hints(NodeFacts(), spec(no_cgroups=True)))
