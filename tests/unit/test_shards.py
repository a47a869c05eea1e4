"""Shards of a plan: every host in exactly one, inventories beside it, and nothing secret that was not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from test_plan import fresh

from gpunode.core.errors import InputError
from gpunode.core.model import Plan, Step
from gpunode.core.plan.playbook import classes, split
from gpunode.edge.ansible.shards import write_shards
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet.workflow import HostPlan


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[HostPlan]:
    planned = fresh(monkeypatch)
    names = ("node1", "node2", "node3")
    return [
        HostPlan(detected=Detected(host=n), planned=replace(planned, plan=replace(planned.plan, host=n))) for n in names
    ]


def in_shard(shard: Path) -> set[str]:
    return set(yaml.safe_load((shard / "project/inventory.yml").read_text())["all"]["hosts"])


def test_a_shard_has_its_hosts_the_inventories_and_no_vault_password(hosts: list[HostPlan], tmp_path: Path) -> None:
    (tmp_path / "mine/group_vars").mkdir(parents=True)
    (tmp_path / "mine/group_vars/all.yml").write_text("ansible_user: ops\n")
    (tmp_path / "mine/hosts.yml").write_text("all: {hosts: {node1: , node2: , node3: }}\n")
    (tmp_path / "mine/vault-password").write_text("s3cret\n")
    where = Targets(
        inventory=(str(tmp_path / "mine/hosts.yml"), "node1,"), become=True, forks=7,
        vault_password_files=(str(tmp_path / "mine/vault-password"),),
    )  # fmt: skip
    first, second = write_shards(tmp_path / "plan", hosts, where, 2)
    assert in_shard(first) | in_shard(second) == {"node1", "node2", "node3"}
    assert not in_shard(first) & in_shard(second)
    assert (first / "project/inventories/0/group_vars/all.yml").read_text() == "ansible_user: ops\n"
    words = (first / "env/cmdline").read_text().split()
    assert {"--become", "--forks=7", "--inventory=inventories/0/hosts.yml", "--inventory=node1,"} < set(words)
    text = "".join(p.read_text() for p in first.rglob("*") if p.is_file())
    assert "vault" not in text and "s3cret" not in text
    assert yaml.safe_load((first / "env/envvars").read_text()) == {"ANSIBLE_HOST_KEY_CHECKING": "True"}
    assert {p.stat().st_mode & 0o77 for p in (first, first / "env/cmdline", first / "project/playbook.yml")} == {0}


def test_shards_of_an_earlier_plan_go_away_and_other_files_stay(hosts: list[HostPlan], tmp_path: Path) -> None:
    write_shards(tmp_path, hosts, Targets(), 3)
    (tmp_path / "shards/notes").write_text("mine")
    write_shards(tmp_path, hosts, Targets(), 1)
    assert {p.name for p in (tmp_path / "shards").iterdir()} == {"1", "notes"}
    assert in_shard(tmp_path / "shards/1") == {"node1", "node2", "node3"}


def test_a_folder_as_inventory_is_copied_whole(hosts: list[HostPlan], tmp_path: Path) -> None:
    (tmp_path / "inventory/host_vars").mkdir(parents=True)
    (tmp_path / "inventory/hosts.ini").write_text("node1\n")
    (tmp_path / "inventory/host_vars/node1.yml").write_text("ansible_port: 2222\n")
    [shard] = write_shards(tmp_path / "plan", hosts, Targets(inventory=(str(tmp_path / "inventory"),)), 1)
    assert (shard / "project/inventories/0/inventory/host_vars/node1.yml").is_file()


def test_where_nothing_is_to_do_there_is_nothing_to_share_out(hosts: list[HostPlan], tmp_path: Path) -> None:
    idle = [replace(h, planned=replace(h.planned, plan=replace(h.planned.plan, steps=()))) for h in hosts if h.planned]
    with pytest.raises(InputError, match="no host has anything to do"):
        write_shards(tmp_path, idle, Targets(), 2)


@given(kinds=st.lists(st.integers(0, 3), max_size=40), count=st.integers(1, 12))
def test_each_host_is_in_one_shard_and_no_shard_is_much_longer(kinds: list[int], count: int) -> None:
    def plan(number: int, kind: int) -> Plan:
        step = Step(role="driver", option="install", title="t", value=kind)
        return Plan(host=f"n{number}", facts_hash="", steps=(step,))

    plans = [plan(number, kind) for number, kind in enumerate(kinds)]
    found = split(plans, count)
    assert sorted(p.host for part in found for p in part) == sorted(p.host for p in plans)
    assert len(found) == min(count, len(plans))
    assert not found or max(map(len, found)) - min(map(len, found)) <= 1
    assert sum(len(classes(part)) for part in found) <= len(set(kinds)) + max(len(found) - 1, 0)
