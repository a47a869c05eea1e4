"""node/commit/commit.sh and a program that the kubelet starts anew by itself: awaited, judged, and put back."""

from __future__ import annotations

import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commit_node import SHELLS, SYSTEMCTL, Node

from gpunode.core.edits import Activation
from gpunode.core.edits.commit import FileChange, commit_request
from gpunode.core.model import Outcome


class Kubelet(threading.Thread):
    """Starts the program anew when the manifest differs, as the kubelet does; one that says `crash` ends at once."""

    def __init__(self, node: Node, name: str) -> None:
        super().__init__(daemon=True)
        self.node, self.name_, self.over = node, name, threading.Event()
        self.program = node.bin / name
        shutil.copy("/bin/sleep", self.program)
        self.running, self.without = "", list[str]()  # starts for which the configuration was not there
        self.process = self.spawn(node.config.read_text())

    def spawn(self, manifest: str) -> subprocess.Popen[bytes]:
        self.running = manifest
        if manifest != "old\n" and not (self.node.root / "etc/scheduler.yaml").exists():
            self.without.append(manifest)
        return subprocess.Popen([self.program, "0.3" if "crash" in manifest else "600"])

    def run(self) -> None:
        while not self.over.wait(0.1):
            manifest = self.node.config.read_text()
            if (manifest != self.running or self.process.poll() is not None) and "ignored" not in manifest:
                self.process.kill()
                self.process.wait()
                self.process = self.spawn(manifest)

    def stop(self) -> None:
        self.over.set()
        self.join()
        self.process.kill()
        self.process.wait()


@pytest.fixture(params=SHELLS)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(tmp_path / "a root", request.param)


@pytest.fixture
def kubelet(node: Node) -> Iterator[Kubelet]:
    node.shim("systemctl", SYSTEMCTL.replace("restart | reload)", "told)"))
    node.shim("sleep", "#!/bin/sh\nexec /bin/sleep 0.1\n")
    node.shim("curl", f'#!/bin/sh\necho "$*" >"{node.root}/asked"\n! grep -q deaf "{node.config}"\n')
    kubelet = Kubelet(node, f"ks{uuid.uuid4().hex[:10]}")  # a name that no other test's process has
    kubelet.start()
    yield kubelet
    kubelet.stop()


CURL = ("curl", "-k", "https://127.0.0.1:10259/healthz")


def change(node: Node, kubelet: Kubelet, text: str, limit: int = 20, health: tuple[str, ...] = CURL) -> Outcome:
    after = Activation(
        unit="kubelet.service",
        verb="await",
        process=kubelet.name_,
        config=str(node.config),
        health=(("not-there", "x"), health),
        settle=1,
    )
    config = node.root / "etc/scheduler.yaml"
    files = [
        FileChange(path=str(config), data=b"extenders: []\n"),
        FileChange(path=str(node.config), data=text.encode()),
    ]
    request = commit_request(files, after=after)
    request["after"] += f"limit {limit}\n".encode()
    return node.ask(request)


def test_the_change_stands_when_a_new_process_answers_and_stays(node: Node, kubelet: Kubelet) -> None:
    before = kubelet.process.pid
    outcome = change(node, kubelet, "new\n")
    assert (outcome.status, outcome.message) == ("changed", f"2 file(s) changed, {kubelet.name_} started again")
    assert kubelet.process.pid != before
    assert (node.root / "asked").read_text() == "-k https://127.0.0.1:10259/healthz\n"
    assert [line["phase"] for line in node.journal][-2:] == ["intent", "done"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("crash\n", "does not stay up"),
        ("deaf\n", "runs, and does not answer"),
        ("ignored\n", "has not started"),
    ],
)
def test_what_does_not_come_up_gets_its_files_back_and_runs_with_them(
    node: Node, kubelet: Kubelet, text: str, words: str
) -> None:
    outcome = change(node, kubelet, text, limit=5)
    assert outcome.status == "rolled_back", outcome
    assert words in outcome.message
    assert (node.config.read_text(), (node.root / "etc/scheduler.yaml").exists()) == ("old\n", False)
    assert kubelet.process.poll() is None
    assert (kubelet.running, kubelet.without) == ("old\n", [])
    assert node.leftovers == []
    assert sorted(p.name for p in node.config.parent.iterdir()) == ["config"], "no copy beside the manifest"


def test_it_is_said_when_nobody_can_ask(node: Node, kubelet: Kubelet) -> None:
    outcome = change(node, kubelet, "new\n", health=("not-there", "x"))
    assert outcome.status == "changed"
    assert "whether it answers was not asked" in outcome.notes[0]


def test_nothing_is_awaited_where_no_kubelet_runs(node: Node, kubelet: Kubelet) -> None:
    (node.root / "active").write_text("inactive\n")
    outcome = change(node, kubelet, "ignored\n")
    assert (outcome.status, outcome.message) == ("changed", "2 file(s) changed")
    assert "does not run" in outcome.notes[0]


def test_the_order_is_configuration_manifest_and_what_goes_last(tmp_path: Path) -> None:
    from gpunode.core.edits.commit import target_request
    from gpunode.core.edits.kubernetes.scheduler import SchedulerRequest, scheduler_target
    from gpunode.core.model import ConfigFile, Edit
    from gpunode.edge.load import load_scheduler_rules

    after = Activation(unit="", verb="", config="/m/kube-scheduler.yaml")
    asked = SchedulerRequest(manifest="/m/kube-scheduler.yaml", server_version="1.34", config="/z.yaml")
    target = replace(scheduler_target(asked, load_scheduler_rules()), patterns=lambda _files: ())
    seen = {
        "/m/kube-scheduler.yaml": ConfigFile(path="/m/kube-scheduler.yaml", sha256="0" * 64, mode=0o600),
        "/z.yaml": None,
        "/a.yaml": ConfigFile(path="/a.yaml", sha256="1" * 64),
    }
    edit = Edit(changes={"/m/kube-scheduler.yaml": b"x", "/z.yaml": b"y", "/a.yaml": None})
    rows = target_request(target, edit, seen, after)["changes"].decode().splitlines()
    assert [row.rpartition("\t")[2] for row in rows] == ["/z.yaml", "/m/kube-scheduler.yaml", "/a.yaml"]


@pytest.mark.parametrize("text", ["new\n", "broken\n"])
def test_systemd_reads_its_units_again_before_a_unit_is_notified(node: Node, text: str) -> None:
    again = SYSTEMCTL.replace("  *) echo", "  daemon-reload) echo again >>told ;;\n  *) echo")
    node.shim("systemctl", again)
    after = Activation(unit="engine.service", verb="restart", config=str(node.config), reread=True)
    outcome = node.write(text, after)
    once = ["again", "restart"]
    if text == "new\n":
        assert (outcome.status, node.notified()) == ("changed", once)
    else:
        assert (outcome.status, node.notified()) == ("rolled_back", once + once)
