"""gpunode.yml: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpunode.cli.main import cli
from gpunode.core.errors import InputError, error_data
from gpunode.core.spec import Spec, merge_spec, parse_spec
from gpunode.core.spec.reference import find_keys, reference

ACCEPTED = [
    ({}, Spec()),
    (None, Spec()),
    ({"driver": None}, Spec()),
    ({"driver": {"branch": 580}}, "580"),
    ({"cuda": {"versions": "12.8"}}, ("12.8",)),
]
REFUSED = [
    ({"drver": {}}, "unknown key 'drver'", "did you mean 'driver'?"),
    ({"driver": {"brnch": 580}}, "unknown key 'driver.brnch'", "did you mean 'driver.branch'?"),
    ({"driver": {"flavour": "opne"}}, "driver.flavour is 'opne'", "did you mean 'open'?"),
    ({"driver": {"branch": "latest"}}, "driver.branch is 'latest'", "did you mean 'auto'?"),
    ({"driver": {"version": "new"}}, "driver.version is 'new'", ""),
    ({"driver": []}, "driver is []", "gpunode explain driver"),
    ({"driver": {"hold": "yes"}}, "driver.hold is 'yes'", ""),
    ({"cuda": {"versions": ["12"]}}, "cuda.versions has '12'", ""),
    ({"cuda": {"versions": ["12.8"], "default": "13.0"}}, "cuda.default is '13.0'", ""),
    ({"sources": {"nvidia-cuda": {"fingerprint": "abc"}}}, "sources.nvidia-cuda.fingerprint is 'abc'", ""),
    ({"reboot": "ifneeded"}, "reboot is 'ifneeded'", "if-needed"),
    ([], "the top level is []", ""),
    ("text", "the top level is 'text'", ""),
]


@pytest.mark.parametrize(("data", "want"), ACCEPTED)
def test_a_valid_spec_is_read(data: object, want: object) -> None:
    spec = parse_spec(data)
    assert want in (spec, spec.driver.branch, spec.cuda.versions)


@pytest.mark.parametrize(("data", "what", "fix"), REFUSED)
def test_a_mistake_is_named_with_its_place_and_what_to_do(data: object, what: str, fix: str) -> None:
    with pytest.raises(InputError) as error:
        parse_spec(data, where="gpunode.yml")
    assert what in error.value.what
    assert error.value.what.startswith("gpunode.yml: ")
    assert fix in error.value.fix
    assert (error.value.key or "the top level") in error.value.what


def test_all_mistakes_are_named_at_once() -> None:
    data = {
        "drver": {},
        "cuda": 12.8,
        "driver": {"flavour": "opne", "hold": "yes", "branch": "580"},
        "runtimes": {"docker": {"manage": "never"}},
    }
    with pytest.raises(InputError) as error:
        parse_spec(data)
    assert [e.what.removeprefix("gpunode.yml: ") for e in (error.value, *error.value.others)] == [
        "unknown key 'drver'",
        "cuda is 12.8",
        "driver.flavour is 'opne'",
        "driver.hold is 'yes'",
        "runtimes.docker.manage is 'never'",
    ]
    assert error.value.others[0].expected == "a mapping with keys of versions, default, method, runfiles"
    assert str(error.value).startswith("5 mistakes\n") and len(error_data(error.value)["others"]) == 4


def test_rules_between_keys_are_all_checked_once_each_key_is_right() -> None:
    with pytest.raises(InputError) as error:
        parse_spec({"driver": {"branch": "new", "version": "new"}, "cuda": {"default": "13.0"}, "proxy": ""})
    assert [e.what for e in (error.value, *error.value.others)] == [
        "gpunode.yml: driver.branch is 'new'",
        "gpunode.yml: driver.version is 'new'",
        "gpunode.yml: cuda.default is '13.0'",
    ]


def test_a_host_overrides_key_by_key_and_keeps_the_rest() -> None:
    base = {"driver": {"branch": "580", "hold": False}, "runtimes": {"docker": {"manage": "ignore"}}}
    over = {"driver": {"branch": "595"}, "runtimes": {"containerd": {"cdi": True}}}
    assert merge_spec(base, over) == {
        "driver": {"branch": "595", "hold": False},
        "runtimes": {"docker": {"manage": "ignore"}, "containerd": {"cdi": True}},
    }


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["driver", "cuda", "branch", "versions", "runtimes", "sources", "x"]), inner)
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_any_plain_data_is_read_or_refused_with_our_error(data: object) -> None:
    try:
        parse_spec(data)
    except InputError as error:
        assert error.what


def explained(*words: str) -> str:
    result = CliRunner().invoke(cli, ["explain", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_key_of_the_file_is_explained_without_the_pages() -> None:
    whole, top = explained("--recursive"), explained()
    for key in reference(Spec):
        assert key.path in whole.splitlines()
        assert (key.path in top.splitlines()) == ("." not in key.path)
        shown = explained(key.path)
        assert shown.startswith(f"{key.path}\n    ") and (f"  default  {key.default}\n" in shown or not key.values)
    assert "sources.NAME.url" in explained("sources") and explained("sources.mine.url") == explained("sources.NAME.url")


def test_a_key_that_there_is_not_is_named_with_those_that_are_meant() -> None:
    for key, says in {"branch": "did you mean driver.branch?", "zzz": "gpunode explain lists all keys"}.items():
        with pytest.raises(InputError) as caught:
            find_keys(key, Spec)
        assert caught.value.fix == says


def test_what_an_error_names_can_be_explained() -> None:
    for spec in ({"driver": []}, {"kubernetes": []}, {"driver": {"qqq": 1}}, {"verify": {"smoke": 7}}):
        with pytest.raises(InputError) as caught:
            parse_spec(spec)
        named = re.findall(r"gpunode explain ([\w.]+)", str(caught.value.fix))
        assert named and all(explained(key) for key in named), caught.value
