"""node/commit/commit.sh and a program that the kubelet starts again by itself: awaited, judged, and put back."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
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
from gpunode.core.edits.target import asks
from gpunode.core.model import Outcome


class Kubelet(threading.Thread):
    """Starts the program again when the manifest differs, as the kubelet does; one that says `crash` ends at once."""

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
    assert (outcome.status, outcome.message) == ("changed", f"2 files changed, {kubelet.name_} started again")
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


class Answering(threading.Thread):
    """A server that answers one line to whoever connects, by TLS or not, and closes; `asked` is what it was asked."""

    def __init__(self, line: str, *, folder: Path | None = None, family: int = socket.AF_INET) -> None:
        super().__init__(daemon=True)
        self.line, self.asked = line, list[str]()
        self.socket = socket.socket(family)
        self.socket.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        self.socket.listen()
        self.port = str(self.socket.getsockname()[1])
        self.tls = None
        if folder:
            command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
            command += ["-keyout", str(folder / "key"), "-out", str(folder / "cert"), "-subj", "/CN=x", "-days", "1"]
            subprocess.run(command, check=True, capture_output=True)
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(folder / "cert", folder / "key")
        self.start()

    def run(self) -> None:
        while True:
            try:
                client = self.socket.accept()[0]
            except OSError:
                return
            try:
                with client, self.tls.wrap_socket(client, server_side=True) if self.tls else client as talk:
                    request = b""
                    while not request.endswith(b"\r\n\r\n") and (part := talk.recv(1000)):
                        request += part  # bash sends line by line
                    self.asked.append(request.decode())
                    talk.sendall(f"{self.line}\r\n\r\nok".encode())
            except OSError:
                pass  # somebody who only connects


GOOD, BAD = "HTTP/1.0 200 OK", "HTTP/1.0 500 Internal Server Error"
GO = "HTTP/1.0 400 Bad Request"  # what a TLS server of Go says to plain HTTP


def ask_by_bash(scheme: str, address: str, port: str, path: str | None = None) -> tuple[bool, bool]:
    """Whether it is taken for healthy, and whether only for serving."""
    command = asks(scheme, address, port)[-1]
    environment = {"PATH": os.environ["PATH"] if path is None else path}
    bash = shutil.which("bash") or "bash"
    done = subprocess.run(
        [bash, *command[1:]], capture_output=True, text=True, check=False, timeout=30, env=environment
    )
    return done.returncode == 0, "served" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("scheme", "line", "tls", "path", "found"),
    [
        ("http", GOOD, False, None, (True, False)),
        ("http", BAD, False, None, (False, False)),
        ("http", "200 hello", False, None, (False, False)),
        ("https", GOOD, True, None, (True, False)),
        ("https", BAD, True, None, (False, False)),
        ("https", GO, False, "", (True, True)),
        ("https", "SSH-2.0-x", False, "", (False, False)),
    ],
)
def test_bash_asks_where_neither_curl_nor_wget_is(
    tmp_path: Path, scheme: str, line: str, tls: bool, path: str | None, found: tuple[bool, bool]
) -> None:
    server = Answering(line, folder=tmp_path if tls else None)
    assert ask_by_bash(scheme, "127.0.0.1", server.port, path) == found
    assert server.asked[0].startswith("GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n")
    server.socket.shutdown(socket.SHUT_RDWR)
    server.socket.close()
    assert ask_by_bash(scheme, "127.0.0.1", server.port, path) == (False, False)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_bash_asks_an_address_of_version_6(tmp_path: Path, scheme: str) -> None:
    try:
        server = Answering(GOOD, folder=tmp_path if scheme == "https" else None, family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    assert ask_by_bash(scheme, "::1", server.port) == (True, False)


def test_a_program_that_serves_and_could_not_be_asked_more_is_reported_so(node: Node, kubelet: Kubelet) -> None:
    server = Answering(GO)
    bash = shutil.which("bash")
    node.shim("bash-alone", f'#!/bin/sh\nPATH=/nonexistent exec {bash} "$@"\n')
    outcome = change(node, kubelet, "new\n", health=("bash-alone", *asks("https", "127.0.0.1", server.port)[-1][1:]))
    assert outcome.status == "changed", outcome
    assert "serves its port; its health was not asked: none of curl, wget and openssl is here" in outcome.notes[0]


def test_nothing_is_awaited_where_no_kubelet_runs(node: Node, kubelet: Kubelet) -> None:
    (node.root / "active").write_text("inactive\n")
    outcome = change(node, kubelet, "ignored\n")
    assert (outcome.status, outcome.message) == ("changed", "2 files changed")
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
