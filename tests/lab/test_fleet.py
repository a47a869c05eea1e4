"""A fleet on real nodes: a canary that fails, a controller that is killed, two controllers, and going on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpunode.lab import Lab

pytestmark = pytest.mark.lab


class Fleet:
    """Two nodes and the gpunode of one controller."""

    def __init__(self, lab: Lab, run: Any, state: Path) -> None:
        self.lab, self._run, self.state = lab, run, state

    def gpunode(self, *args: str, exit: int | None = 0, state: Path | None = None) -> str:
        done = self._run(*args, exit=exit, env={"XDG_STATE_HOME": str(state or self.state)})
        return str(done.stdout)

    def provision(self, *more: str, **how: Any) -> dict[str, dict[str, Any]]:
        """Results by host."""
        text = self.gpunode("provision", *self.words, *more, **how)
        return {host["host"]: host for host in json.loads(text)["hosts"]}

    @property
    def words(self) -> tuple[str, ...]:
        return ("-i", str(self.lab.inventory), "-c", str(self.lab.spec), "--yes", "--format", "json")

    def shell(self, node: int, command: str) -> str:
        done = self.lab.run(self.lab.nodes[node], command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def runs(self) -> list[dict[str, Any]]:
        return list(json.loads(self.gpunode("runs", "list", "--format", "json"))["runs"])

    def installing(self) -> bool:
        """Whether the last run is at work, and a host of it at its packages."""
        run = json.loads(self.gpunode("runs", "show", "--format", "json"))
        return run["status"] == "running" and any("Install" in host["step"] for host in run["hosts"])


@pytest.fixture(scope="module", params=["debian:12", "rocky:9"])
def fleet(
    request: pytest.FixtureRequest, lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    with lab_up(2, distro=request.param, engines=("containerd",)) as lab:
        yield Fleet(lab, run_gpunode, tmp_path_factory.mktemp("controller"))


def test_a_canary_that_fails_leaves_the_other_node_alone(fleet: Fleet) -> None:
    manager = "/usr/bin/apt-get" if fleet.lab.nodes[0].distro == "debian:12" else "/usr/bin/dnf"
    broken = f"printf '#!/bin/sh\\necho this {manager} is broken >&2\\nexit 100\\n' >{manager}"
    fleet.shell(0, f"cp -a {manager} {manager}.away && rm {manager} && {broken} && chmod +x {manager}")
    try:
        found = fleet.provision("--waves", "1,100%", exit=None)
    finally:
        fleet.shell(0, f"mv {manager}.away {manager}")
    first, second = (node.name for node in fleet.lab.nodes)
    assert found[first]["exit"] == 1
    assert found[second]["exit"] == 3 and "max_failures" in found[second]["message"]
    assert fleet.shell(1, "ls /var/lib/gpunode 2>/dev/null || true") == ""
    assert fleet.runs()[0]["status"] == "stopped"


def test_after_a_kill_of_the_controller_the_run_goes_on(fleet: Fleet) -> None:
    command = [sys.executable, "-m", "gpunode", "provision", *fleet.words]
    environment = {**os.environ, "XDG_STATE_HOME": str(fleet.state), "NO_COLOR": "1"}
    controller = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 240
    while not fleet.installing():
        assert controller.poll() is None and time.monotonic() < until
        time.sleep(0.5)
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    assert fleet.runs()[0]["status"] == "killed"
    fleet.gpunode("runs", "resume", "last", "--yes")
    text = fleet.gpunode("verify", "-i", str(fleet.lab.inventory), "-c", str(fleet.lab.spec), "--format", "json")
    assert {host["exit"] for host in json.loads(text)["hosts"]} == {0}
    assert {host["message"] for host in fleet.provision().values()} == {"nothing to do"}


def test_another_controller_is_refused_while_the_lease_lasts(fleet: Fleet, tmp_path: Path) -> None:
    fleet.shell(0, "rm /etc/modprobe.d/gpunode-nouveau.conf")
    lease = "echo $(( $(date +%s) + 100 )) somebody-else 20260101 >/var/lib/gpunode/lease"
    fleet.shell(0, lease)
    name = fleet.lab.nodes[0].name
    found = fleet.provision(exit=5, state=tmp_path)[name]
    assert "somebody-else is at work" in found["message"] and "--break-lock" in found["fix"]
    assert fleet.provision("--break-lock", state=tmp_path)[name]["exit"] == 0
