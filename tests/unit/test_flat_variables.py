"""The keys of gpunode.yml as single variables of an inventory: what they say, and who wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpunode.core.spec import merge_spec, parse_spec
from gpunode.core.spec.flat import OTHERS, clashes, flat_spec, flat_variables, misspelt
from gpunode.edge.ansible.inventory import load_inventory


def test_no_variable_has_the_name_of_another_one() -> None:
    assert not set(flat_variables()) & set(OTHERS)
    assert len({one.path for one in flat_variables().values()}) == len(flat_variables())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpunode_driver_branch": 580}, {"driver": {"branch": 580}}),
        ({"gpunode_driver_branch": ""}, {}),
        ({"gpunode_driver_branch": None}, {}),
        ({"gpunode_driver_hold": "no"}, {"driver": {"hold": False}}),
        ({"gpunode_cuda_versions": "12.8,13.0"}, {"cuda": {"versions": ["12.8", "13.0"]}}),
        ({"gpunode_cuda_versions": "12.8\n13.0"}, {"cuda": {"versions": ["12.8", "13.0"]}}),
        ({"gpunode_cuda_versions": '["12.8", "13.0"]'}, {"cuda": {"versions": ["12.8", "13.0"]}}),
        ({"gpunode_docker_cdi": "True"}, {"runtimes": {"docker": {"cdi": True}}}),
        ({"gpunode_cuda_versions": ["12.8"]}, {"cuda": {"versions": ["12.8"]}}),
        ({"gpunode_verify_expect_gpus": "8"}, {"verify": {"expect_gpus": 8}}),
        ({"gpunode_mig_profiles": '{"1g.10gb": 7}'}, {"sharing": {"mig": {"profiles": {"1g.10gb": 7}}}}),
        ({"gpunode_docker_default_runtime": "nvidia"}, {"runtimes": {"docker": {"default_runtime": "nvidia"}}}),
    ],
)
def test_a_survey_or_the_command_line_can_say_it(given: dict[str, Any], said: dict[str, Any]) -> None:
    assert flat_spec(given) == said
    parse_spec(flat_spec(given))


def test_a_variable_replaces_its_key_and_a_null_in_gpunode_spec_removes_one_of_a_mapping() -> None:
    group = {"sharing": {"strategy": "mig", "mig": {"profiles": {"1g.10gb": 7}}}}
    merged = merge_spec(group, {"sharing": {"mig": {"profiles": {"1g.10gb": None, "3g.40gb": 2}}}})
    assert parse_spec(merged).sharing.mig.profiles == {"3g.40gb": 2}
    whole = merge_spec(group, flat_spec({"gpunode_mig_profiles": {"3g.40gb": 2}}))
    assert parse_spec(whole).sharing.mig.profiles == {"3g.40gb": 2}
    assert parse_spec(whole).sharing.strategy == "mig"


def test_a_clash_names_both_and_no_url_with_a_password() -> None:
    spec = {"driver": {"branch": "595"}, "proxy": "http://a:secret@b"}
    given = {"gpunode_driver_branch": "580", "gpunode_proxy": "http://a:other@b", "gpunode_reboot": "never"}
    found = clashes(given, spec)
    assert found[0] == "gpunode_driver_branch (580) wins over driver.branch (595)"
    assert len(found) == 2 and "secret" not in found[1] and "other" not in found[1]
    assert clashes({"gpunode_driver_branch": 595}, spec) == []


def test_a_misspelt_variable_is_named_and_one_of_somebody_else_is_not() -> None:
    assert misspelt(["gpunode_driver_brnach", "gpunode_plan", "gpunode_pool_owner", "driver_branch"]) == [
        "gpunode_driver_brnach is no variable of gpunode: did you mean gpunode_driver_branch?"
    ]


def test_the_command_line_reads_them_from_an_inventory_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(
        "all:\n  vars: {gpunode_driver_branch: 580, word: '12.8', gpunode_cuda_versions: ['{{ word }}']}\n"
        "  hosts:\n    a: {}\n    b: {gpunode_spec: {driver: {branch: '595', hold: false}}}\n"
    )
    found = {host.name: host.spec for host in load_inventory([str(hosts)])}
    assert found["a"] == {"driver": {"branch": 580}, "cuda": {"versions": ["12.8"]}}
    assert found["b"]["driver"] == {"branch": 580, "hold": False}
    assert "b: gpunode_driver_branch (580) wins over driver.branch (595)" in caplog.text
