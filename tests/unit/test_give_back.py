"""The end of a run gives back every node that it worked on, and no other; a converged host costs nothing for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleet_world import Offline, World

from gpunode.core.errors import Exit, GpunodeError, InterruptedByUser
from gpunode.edge import lease
from gpunode.edge.ansible.runner import Event, HostRun, PlayInterrupted
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import driver, undo
from gpunode.edge.fleet import provision as fleet
from gpunode.edge.fleet.driver import RunOptions
from gpunode.edge.fleet.workflow import plan_one
from gpunode.edge.ssh.many import Ran
from gpunode.edge.ssh.shell import Target

EVENTS = {"gpu0000": "changed", "gpu0001": "failed", "gpu0002": "unreachable", "gpu0003": "started"}


def notified(on_event: Any) -> None:
    for host, kind in EVENTS.items():
        on_event(Event(host=host, kind=kind, task="Install"))


def test_a_host_that_failed_before_an_interrupt_keeps_its_cause(tmp_path: Path) -> None:
    world = World(["fresh"] * 4)

    def run_playbook(*words: Any, **more: Any) -> dict[str, HostRun]:
        raise PlayInterrupted({"gpu0001": HostRun(exit=Exit.FAILED, message="no route to host"), "gpu0002": HostRun()})

    planner = Offline({})
    hosts = [plan_one(found, planner) for found in world.detect()]
    with world._patched(tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "run_playbook", run_playbook)
        found = {r.host: r for r in fleet.provision(hosts, Targets(inventory=("x,",)), planner)}
    assert (found["gpu0001"].outcome, found["gpu0001"].message) == ("failed", "no route to host")
    assert {found[host].outcome for host in ("gpu0000", "gpu0002", "gpu0003")} == {"interrupted"}


@pytest.mark.parametrize("how", ["a step fails", "proofs fail", "Ansible fails", "interrupted", "a rehearsal"])
def test_a_run_gives_back_the_hosts_that_ansible_worked_on(how: str, tmp_path: Path) -> None:
    world = World(["fresh"] * 4 + ["converged"] * 2)
    back: list[tuple[set[str], str, int, dict[str, str]]] = []

    def run_playbook(*words: Any, on_event: Any, **more: Any) -> dict[str, HostRun]:
        notified(on_event)
        if how == "Ansible fails":
            raise GpunodeError("no")
        if how == "interrupted":
            raise InterruptedByUser("Ctrl-C")
        proofs = [{"id": "driver.smi", "status": "failed"}] if how == "proofs fail" else []
        return {host: HostRun(exit=Exit.FAILED, checks=proofs) for host in EVENTS}

    def give_back(hosts: Sequence[Detected], *words: Any, run: str, generation: int, ended: dict[str, str]) -> None:
        back.append(({host.host for host in hosts}, run, generation, ended))

    planner = Offline({})
    hosts = [plan_one(found, planner) for found in world.detect()]
    with world._patched(tmp_path), pytest.MonkeyPatch.context() as patch:  # ends before the world's own patches
        patch.setattr(driver, "run_playbook", run_playbook)
        patch.setattr(driver, "give_back", give_back)
        fleet.provision(hosts, Targets(inventory=("x,",)), planner, options=RunOptions(check=how == "a rehearsal"))
    if how == "a rehearsal":
        assert not back
        return
    [(names, run, generation, ended)] = back
    word = {"a step fails": {"failed"}, "proofs fail": {"done"}}  # whose changes are all made: the next is another run
    assert set(ended.values()) == word.get(how, set()), "one that is cut off has no end"
    assert names == {"gpu0000", "gpu0001"} and generation > 1_000_000_000
    assert run == world.journal(tmp_path).latest(1)[0].name


@pytest.mark.parametrize("check", [False, True])
def test_an_uninstall_gives_the_hosts_back_too(check: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    back: list[set[str]] = []

    def run_playbook(*words: Any, on_event: Any, arguments: Sequence[str], **more: Any) -> dict[str, HostRun]:
        assert any(word.startswith("gpunode_generation=") for word in arguments)
        notified(on_event)
        raise KeyboardInterrupt

    monkeypatch.setattr(undo, "probe", lambda hosts, where: list(hosts))
    monkeypatch.setattr(driver, "run_playbook", run_playbook)
    monkeypatch.setattr(driver, "give_back", lambda hosts, *words, **more: back.append({h.host for h in hosts}))
    with pytest.raises(InterruptedByUser):
        undo.undo(
            Targets(hosts=("gpu0000", "gpu0001", "gpu0002")),
            {"verb": "uninstall"},
            options=RunOptions(check=check),
        )
    assert back == ([] if check else [{"gpu0000", "gpu0001"}])


@pytest.mark.slow
def test_what_paramiko_cannot_serve_is_given_back_by_ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine by the connection `local`, which needs no node: the script prints what it would do."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = 'echo $(cat "$GPUNODE_IN/run" "$GPUNODE_IN/generation" "$GPUNODE_IN/ended" 2>/dev/null)'
    monkeypatch.setattr(lease, "script", lambda name: f"{words} >>{tmp_path}/{name}")
    inventory = tmp_path / "hosts.yml"
    local = {"ansible_connection": "local"}
    inventory.write_text(yaml.safe_dump({"all": {"hosts": {"a": local, "b": local, "c": local}}}))
    hosts = [Detected(host=name, target=Target(name=name, connection="podman")) for name in ("b", "c")]
    targets = Targets(inventory=(str(inventory),))
    lease.give_back(hosts, targets, run="r1", generation=7, ended={"b": "done"})
    assert sorted((tmp_path / "release.sh").read_text().splitlines()) == ["r1 7", "r1 7 done"]


def test_a_node_that_cannot_be_reached_any_more_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(
        lease, "run_many", lambda programs, **more: [Ran(target=t, error=GpunodeError("gone")) for t, _ in programs]
    )
    target = Target(name="a", connection="ssh")
    lease.give_back([Detected(host="a", target=target)], Targets(), run="r1", generation=7)
