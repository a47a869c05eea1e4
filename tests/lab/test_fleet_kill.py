"""The controller is killed at every boundary that it tells of, and the fleet still gets there, disturbed once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.lab import Lab
from gpunode.lab.machine import podman

pytestmark = pytest.mark.lab

Boundary = tuple[str, ...]


class Killed:
    """A controller that is killed when its file of events names a boundary for the first time."""

    def __init__(self, lab: Lab, folder: Path, spec: Mapping[str, Any], *options: str, each_host: bool) -> None:
        self.lab, self.folder, self.options, self._each_host = lab, folder, options, each_host
        self.spec = folder / "gpunode.yml"
        self.spec.write_text(yaml.safe_dump(yaml.safe_load(lab.spec.read_text()) | spec))
        self.seen: list[Boundary] = []
        self.first = ""  # the name of the first run
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "NO_COLOR": "1"}

    def boundary(self, line: str) -> Boundary | None:
        """What a line of the events file begins or ends: a wave, a gate, a step of a host, a host; None: neither."""
        event = json.loads(line)
        host = event["host"] if self._each_host and "host" in event else ""
        if event["type"] == "wave":
            return ("wave", str(event["wave"]), event["what"])
        if event["type"] == "host":
            return ("host", host)
        if event["outcome"] != "started" or event["task"].startswith("Validating arguments"):
            return None  # the latter is no step: nothing is sent to a node
        return ("step", host, event.get("role", ""), event["task"])

    def words(self) -> list[str]:
        if self.first:
            return ["runs", "resume", self.first, "--yes"]
        return ["provision", "-i", str(self.lab.inventory), "-c", str(self.spec), "--yes", *self.options]

    def go(self) -> int | None:
        """One run: killed at the first boundary that is new (None), or its exit code when it came to its end."""
        events = self.folder / f"events-{len(self.seen)}-{time.monotonic_ns()}"
        events.touch()
        command = [sys.executable, "-m", "gpunode", *self.words(), "--events", str(events)]
        with (self.folder / "output").open("a") as output, events.open() as tail:
            controller = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            until = time.monotonic() + 900
            over = False
            while not over:
                assert time.monotonic() < until, "the controller does not come to an end"
                over = controller.poll() is not None
                for line in self._lines(tail):
                    found = self.boundary(line)
                    if found and found not in self.seen:
                        self.seen.append(found)
                        controller.send_signal(signal.SIGKILL)
                        controller.wait()
                        self.first = self.first or self.runs()[0]["name"]
                        return None
                time.sleep(0.02)
        return controller.returncode

    @staticmethod
    def _lines(tail: Any) -> Iterator[str]:
        """Whole lines only: of a torn one the beginning is read again."""
        while True:
            at = tail.tell()
            line = tail.readline()
            if not line.endswith("\n"):
                tail.seek(at)
                return
            yield line

    def until_done(self) -> None:
        """Killed again and again, until a run meets nothing new and ends well."""
        for _ in range(200):
            code = self.go()
            if code == 0:
                return
            if code == 4:  # a node that is booting
                time.sleep(2)
            else:
                assert code is None, (self.folder / "output").read_text()[-3000:]
        pytest.fail("it never ends")

    def runs(self) -> list[dict[str, Any]]:
        return list(json.loads(self.gpunode("runs", "list", "--limit", "500", "--format", "json"))["runs"])

    def gpunode(self, *words: str, exit: int = 0) -> str:
        command = [sys.executable, "-m", "gpunode", *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == exit, done.stdout + done.stderr
        return done.stdout

    def on(self, node: int, command: str) -> str:
        done = self.lab.run(self.lab.nodes[node], command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def until_nothing_is_new(self, spoil: Callable[[], None]) -> None:
        """Runs of a fleet that `spoil` has made to differ a little, until one meets no boundary that is new.

        Gates and the ends of hosts are met by a run that was not killed at its steps.
        """
        for _ in range(20):
            spoil()
            self.first = ""
            before = len(self.seen)
            self.until_done()
            if len(self.seen) == before:
                return
        pytest.fail("every run meets something new")

    def count_starts(self) -> None:
        """From now on each node counts how often its containerd is started."""
        unit = "[Service]\nExecStartPre=+/bin/sh -c 'echo start >>/var/log/containerd-starts'\n"
        folder = "/etc/systemd/system/containerd.service.d"
        for node in range(len(self.lab.nodes)):
            self.on(node, f"mkdir -p {folder}; printf '%b' \"{unit}\" >{folder}/count.conf; systemctl daemon-reload")

    def starts(self, node: int) -> int:
        return int(self.on(node, "cat /var/log/containerd-starts 2>/dev/null | wc -l"))

    def boots(self, node: int) -> int:
        """How often a node's container was started again: podman does that when it reboots."""
        return int(podman("inspect", "--format={{.RestartCount}}", self.lab.nodes[node].container).stdout)

    def verified(self) -> set[int]:
        words = ("-i", str(self.lab.inventory), "-c", str(self.spec), "--format", "json")
        return {host["exit"] for host in json.loads(self.gpunode("verify", *words))["hosts"]}


# long enough to hit the step
SLOW = {
    "debian:12": "printf 'DPkg::Pre-Invoke {\"sleep 20\";};\\n' >/etc/apt/apt.conf.d/zz-slow",
    "rocky:9": "mv /usr/bin/dnf /usr/bin/dnf-real; "
    "printf '#!/bin/sh\\ncase $* in *install*) sleep 20 ;; esac\\nexec dnf-real \"$@\"\\n' >/usr/bin/dnf; "
    "chmod +x /usr/bin/dnf",
}
FAST = {"debian:12": "rm /etc/apt/apt.conf.d/zz-slow", "rocky:9": "mv /usr/bin/dnf-real /usr/bin/dnf"}
INSTALLED = {"debian:12": "dpkg-query -W -f '${Package} ${Status}\n' | grep 'ok installed' || :", "rocky:9": "rpm -qa"}


def processes_of(run: str) -> list[str]:
    """The command lines on this machine that name a run."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = process.read_text().replace("\0", " ")
            if run in text:
                found.append(text)
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("distro", SLOW)
def test_a_killed_controller_leaves_nothing_behind_that_goes_on(lab_up: Any, tmp_path: Path, distro: str) -> None:
    """Killed in the middle of apt or dnf, alone; then an uninstall, and another controller at once."""
    lab = lab_up(1, distro=distro, engines=("containerd",), python=False)
    small = {"driver": {"branch": "none"}}
    fleet = Killed(lab, tmp_path, small, each_host=True)
    fleet.on(0, SLOW[distro])
    step = "Install the NVIDIA Container Toolkit"
    events = tmp_path / "events"
    events.touch()
    words = ["provision", "-i", str(lab.inventory), "-c", str(fleet.spec), "--yes", "--events", str(events)]
    controller = subprocess.Popen([sys.executable, "-m", "gpunode", *words], env=fleet.environment)
    until = time.monotonic() + 300
    while step not in events.read_text() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(3)
    run = fleet.runs()[0]["name"]
    assert processes_of(run), "ansible-playbook names its run"
    controller.kill()
    controller.wait()
    until = time.monotonic() + 20
    while processes_of(run) and time.monotonic() < until:
        time.sleep(0.2)
    assert not processes_of(run)

    fleet.gpunode("uninstall", "-i", str(lab.inventory), "--yes")
    holder = fleet.on(0, "cat /var/lib/gpunode/lease").split()
    assert holder[2] > run, "the uninstall was the last to work here"
    assert fleet.on(0, "cat /var/lib/gpunode/released").split() == holder[1:]
    assert "nvidia-container-toolkit" not in fleet.on(0, INSTALLED[distro])

    fleet.on(0, FAST[distro])
    fleet.environment["XDG_STATE_HOME"] = str(tmp_path / "another")
    fleet.gpunode("provision", "-i", str(lab.inventory), "-c", str(fleet.spec), "--yes")
    assert fleet.on(0, "cat /var/lib/gpunode/lease").split()[1] != holder[1]


@pytest.mark.timeout(3600)
def test_two_nodes_get_there_however_often_the_controller_dies(lab_up: Any, tmp_path: Path) -> None:
    """Each step of each node, each wave, gate and end of a host: killed there once, all in one life of two nodes."""
    fleet = Killed(lab_up(2, engines=("containerd",)), tmp_path, {"reboot": "always"}, each_host=True)
    fleet.count_starts()
    boots = [fleet.boots(node) for node in range(2)]

    fleet.until_done()

    names = [node.name for node in fleet.lab.nodes]
    assert [sum(b[:2] == ("step", name) for b in fleet.seen) > 5 for name in names] == [True, True], fleet.seen
    assert [fleet.boots(node) - boots[node] for node in range(2)] == [1, 1], "a node was booted twice"
    assert [fleet.starts(node) for node in range(2)] == [2, 2], "at its boot, and for its configuration"
    assert fleet.verified() == {0}
    reported = json.loads(fleet.gpunode("runs", "show", fleet.first, "--format", "json"))
    assert reported["counts"] == {"done": 2}, "nothing is lost in the journal of the first run"
    same = ("verify", "-i", str(fleet.lab.inventory), "-c", str(fleet.spec), "--since", fleet.first)
    printed = fleet.gpunode(*same)
    assert f"2 of 2 hosts are as run {fleet.first} left them" in printed, printed

    fleet.spec.write_text(fleet.lab.spec.read_text())  # nothing that asks for a reboot
    fleet.options = ("--waves", "1,100%", "--soak", "1")
    fleet.until_nothing_is_new(lambda: [fleet.on(node, "rm /etc/modprobe.d/gpunode-nouveau.conf") for node in range(2)])

    rest = {boundary for boundary in fleet.seen if boundary[0] != "step"}
    assert rest == {("host", name) for name in names} | {
        ("wave", "1", "begins"), ("wave", "1", "waits 1 s"), ("wave", "1", "verified"), ("wave", "2", "begins")
    }  # fmt: skip
    assert [fleet.boots(node) - boots[node] for node in range(2)] == [1, 1]
    assert [fleet.starts(node) for node in range(2)] == [2, 2]
    assert fleet.verified() == {0}
    print(f"killed at {len(fleet.seen)} boundaries: ", *map(" ".join, fleet.seen), sep="\n")


@pytest.mark.timeout(3600)
def test_twenty_nodes_get_there_however_often_the_controller_dies(lab_up: Any, tmp_path: Path) -> None:
    """The container toolkit alone, without a driver: what each of its steps and waves begins with."""
    count = 20
    small = {"driver": {"branch": "none"}}
    lab = lab_up(count, engines=("containerd",), python=False)
    fleet = Killed(lab, tmp_path, small, "--waves", "1,50%,100%", each_host=False)
    fleet.count_starts()

    fleet.until_done()

    assert [fleet.starts(node) for node in range(count)] == [1] * count, "a containerd was restarted twice"
    assert len({b for b in fleet.seen if b[0] == "step"}) >= 4 and ("wave", "1", "begins") in fleet.seen, fleet.seen
    assert fleet.verified() == {0}
    reported = json.loads(fleet.gpunode("runs", "show", fleet.first, "--format", "json"))
    assert reported["counts"] == {"done": count}
    print(f"killed at {len(fleet.seen)} boundaries: ", *map(" ".join, fleet.seen), sep="\n")
