"""What goes wrong with a node in the middle of a step: it dies, its network or its sudo goes, its clock is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.lab import Lab, nodes
from gpunode.lab.machine import podman

pytestmark = pytest.mark.lab

SPEC = {"driver": {"branch": "none"}}  # the container toolkit, and containerd's configuration, in a minute
STEP = "Install the NVIDIA Container Toolkit"
SLOW = "printf 'DPkg::Pre-Invoke {\"sleep 25\";};\\n' >/etc/apt/apt.conf.d/zz-slow"  # long enough to hit the step
HEALTHY, HIT = 0, 1  # the two nodes


class Fleet:
    """Two fresh nodes, one controller, and something that happens to the second node in the middle of a step."""

    def __init__(self, lab: Lab, folder: Path, **variables: Any) -> None:
        self.lab, self.folder = lab, folder
        self.inventory, self.spec = folder / "hosts.yml", folder / "gpunode.yml"
        inventory = yaml.safe_load(lab.inventory.read_text())
        inventory["all"]["vars"] |= variables
        self.inventory.write_text(yaml.safe_dump(inventory))
        self.spec.write_text(yaml.safe_dump(yaml.safe_load(lab.spec.read_text()) | SPEC))
        self.names = [node.name for node in lab.nodes]
        self.containers = [node.container for node in lab.nodes]

    def on(self, node: int, command: str) -> str:
        return podman("exec", self.containers[node], "sh", "-c", command).stdout.strip()

    def start(self, *words: str, state: str = "state") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gpunode", *words, "--format", "json"]
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / state), "NO_COLOR": "1"}
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, controller: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = controller.communicate(timeout=600)
        assert out, err
        return dict(json.loads(out))

    def provision(self, *more: str, state: str = "state") -> dict[str, Any]:
        return self.ended(self.start("provision", *self.words, "--yes", *more, state=state))

    @property
    def words(self) -> tuple[str, ...]:
        return ("-i", str(self.inventory), "-c", str(self.spec))

    def in_the_middle(self, *more: str) -> subprocess.Popen[str]:
        """A provision whose step runs on the second node now."""
        self.on(HIT, SLOW)
        events = self.folder / "events"
        controller = self.start("provision", *self.words, "--yes", "--events", str(events), *more)
        until = time.monotonic() + 300
        while not self.in_step(events):
            assert controller.poll() is None and time.monotonic() < until, controller.communicate()
            time.sleep(0.2)
        time.sleep(3)
        return controller

    def hit(self, fault: Callable[[], object]) -> dict[str, Any]:
        """A provision in the middle of which the fault happens, as its results say."""
        controller = self.in_the_middle()
        fault()
        return self.ended(controller)

    def in_step(self, events: Path) -> bool:
        lines = events.read_text().splitlines(keepends=True) if events.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return any(e.get("task") == STEP and e["host"] == self.names[HIT] for e in found)

    def fixed(self, first: dict[str, Any]) -> None:
        """Going on as the run said it brings the node there, and disturbs the healthy one no more."""
        self.on(HIT, "rm -f /etc/apt/apt.conf.d/zz-slow")
        assert first["go_on"] == f"gpunode runs resume {first['run']}"
        again = self.ended(self.start(*first["go_on"].split()[1:], "--yes"))
        assert [(host["host"], host["exit"]) for host in again["hosts"]] == [(self.names[HIT], 0)]
        verified = self.ended(self.start("verify", *self.words))
        assert {host["exit"] for host in verified["hosts"]} == {0}


def exits(results: dict[str, Any]) -> list[int]:
    return [host["exit"] for host in results["hosts"]]


@pytest.fixture(scope="module")
def lab(lab_up: Any) -> Lab:
    return lab_up(2, engines=("containerd",))  # type: ignore[no-any-return]


@pytest.fixture
def fresh(lab: Lab, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    lab.reset()
    yield lambda **variables: Fleet(lab, tmp_path, **variables)


@pytest.mark.timeout(1500)
def test_a_node_that_dies_in_the_middle_of_a_step(fresh: Callable[..., Fleet]) -> None:
    fleet = fresh()
    results = fleet.hit(lambda: podman("kill", fleet.containers[HIT]))
    assert exits(results) == [0, 4], results
    podman("start", fleet.containers[HIT])
    nodes.wait_until_up(fleet.lab.nodes[HIT])
    fleet.fixed(results)


@pytest.mark.timeout(1500)
def test_a_network_that_drops_ssh_in_the_middle_of_a_step(fresh: Callable[..., Fleet]) -> None:
    fleet = fresh()
    rule = ["OUTPUT", "-d", fleet.lab.nodes[HIT].address, "-p", "tcp", "--dport", "22", "-j", "DROP"]
    started = time.monotonic()
    try:
        results = fleet.hit(lambda: subprocess.run(["iptables", "-I", *rule], check=True))
    finally:
        subprocess.run(["iptables", "-D", *rule], check=False)
    assert exits(results) == [0, 4], results
    assert time.monotonic() - started < 400, "the controller waited on and on"
    fleet.fixed(results)


@pytest.mark.timeout(1500)
def test_sudo_that_is_revoked_in_the_middle_of_a_step(fresh: Callable[..., Fleet]) -> None:
    fleet = fresh(ansible_user="admin", ansible_become=True)
    away = "mv /etc/sudoers.d/admin /root/sudoers-admin"
    results = fleet.hit(lambda: fleet.on(HIT, away))
    assert exits(results)[HEALTHY] == 0 and exits(results)[HIT] in (1, 4, 5), results
    assert "sudo" in results["hosts"][HIT]["message"], results
    fleet.on(HIT, "mv /root/sudoers-admin /etc/sudoers.d/admin")
    fleet.fixed(results)


@pytest.mark.timeout(1500)
def test_after_a_controller_was_killed_another_waits_for_its_lease_or_takes_the_node(
    fresh: Callable[..., Fleet],
) -> None:
    fleet = fresh()
    one = ("--limit", fleet.names[HIT])
    with fleet.in_the_middle(*one) as killed:
        killed.kill()
    refused = fleet.provision(*one, state="two")["hosts"][0]
    assert refused["exit"] == 5 and "is at work on this node" in refused["message"], refused
    assert "or take the node from it: --break-lock" in refused["fix"]
    fleet.on(HIT, "rm -f /etc/apt/apt.conf.d/zz-slow; while pgrep -x apt-get; do sleep 1; done")
    assert exits(fleet.provision(*one, "--break-lock", state="two")) == [0]
    verified = fleet.ended(fleet.start("verify", *fleet.words, *one))
    assert exits(verified) == [0]
    assert fleet.provision(*one)["hosts"][0]["changed"] == [], "nothing is left to do for the first one"


FAKE = """#!/bin/sh
export LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 FAKETIME="$(cat /root/skew)"
exec /bin/date "$@"
"""


@pytest.mark.timeout(1500)
def test_a_lease_goes_by_the_nodes_own_clock_however_wrong_it_is(fresh: Callable[..., Fleet]) -> None:
    fleet = fresh()
    fleet.on(HIT, "apt-get -qq update && apt-get -qqy install --no-install-recommends libfaketime >/dev/null")
    fleet.on(HIT, f"cat >/usr/local/bin/date <<'E'\n{FAKE}E\nchmod +x /usr/local/bin/date")

    def skew(text: str) -> None:
        """A clock that is so much off, and something to do on the node."""
        fleet.on(HIT, f"echo '{text}' >/root/skew; rm -f /etc/apt/sources.list.d/gpunode-*")

    skew("+1d")
    assert exits(fleet.provision(state="one"))[HIT] == 0
    end = int(fleet.on(HIT, "cut -d ' ' -f 1 /var/lib/gpunode/lease"))
    assert 86_000 < end - time.time() < 86_400 + 180, "the lease was not made by the node's clock"

    skew("+1d")
    fleet.on(HIT, "rm /var/lib/gpunode/released")  # as a controller leaves it that was killed
    refused = fleet.provision(state="two")["hosts"][HIT]
    assert refused["exit"] == 5 and "is at work on this node" in refused["message"], refused

    skew("+0d")  # put right: an end that is further off than any lease lasts is from the clock that was wrong
    assert exits(fleet.provision(state="two"))[HIT] == 0

    skew("-1d")
    assert exits(fleet.provision(state="one"))[HIT] == 0
