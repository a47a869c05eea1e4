"""A host costs its deadline and no more, and Ctrl-C is noticed at once, whatever a host keeps a command waiting for."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from sshd import Open, Sshd, narrow_server

from gpunode.core.errors import InterruptedByUser
from gpunode.edge.side_by_side import Deadline, side_by_side
from gpunode.edge.ssh.many import Ran, Reach, run_many
from gpunode.edge.ssh.shell import Target


def test_results_come_in_the_order_of_the_items_and_are_seen_as_they_come() -> None:
    seen: list[int] = []
    waits = {1: 0.4, 2: 0.0, 3: 0.2}

    def work(item: int, deadline: Deadline) -> int:
        time.sleep(waits[item])
        return item * 10

    assert side_by_side(work, [1, 2, 3], at_once=3, on_done=seen.append) == [10, 20, 30]
    assert seen == [20, 30, 10]


def test_an_item_that_takes_too_long_gives_its_place_to_the_next() -> None:
    block = threading.Event()

    def work(item: str, deadline: Deadline) -> str:
        if item == "stuck":
            block.wait(30)
        return item

    found = side_by_side(work, ["stuck", "a", "b"], at_once=1, seconds=0.3, late=lambda item, deadline: f"{item}: late")
    block.set()
    assert found == ["stuck: late", "a", "b"]


def test_an_item_that_came_in_time_is_not_late_because_another_one_is_looked_at() -> None:
    found = side_by_side(
        lambda item, deadline: item, ["costly", "a", "b"], at_once=3, seconds=0.3,
        on_done=lambda item: time.sleep(0.6), late=lambda item, deadline: f"{item}: late",
    )  # fmt: skip
    assert found == ["costly", "a", "b"]


def test_what_work_raises_is_raised() -> None:
    def fail(_: int, deadline: Deadline) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError):
        side_by_side(fail, [1, 2], at_once=2)


def test_an_event_that_another_thread_sets_ends_all_and_closes_what_is_open() -> None:
    """So Ctrl-C ends also what a thread of a rollout waits for."""
    stop, closed = threading.Event(), threading.Event()

    def work(item: int, deadline: Deadline) -> None:
        with deadline.closes(closed.set):
            stop.set()
            closed.wait(20)

    began = time.monotonic()
    with pytest.raises(InterruptedByUser):
        side_by_side(work, [1], at_once=1, stop=stop)
    assert closed.is_set() and time.monotonic() - began < 2


@pytest.fixture
def narrow() -> Iterator[int]:
    with narrow_server() as port:
        yield port


def test_a_server_that_takes_a_byte_at_a_time_costs_its_deadline_and_the_others_are_there_before(
    narrow: int, tmp_path: Path
) -> None:
    known = ("-o", f"UserKnownHostsFile={tmp_path}/known")
    slow = Target(
        name="slow", address="127.0.0.1", port=narrow, user="x", password="x", check_host_key=False, ssh_args=known
    )
    done: list[str] = []

    def on_done(ran: Ran) -> None:
        done.append(ran.target.name)

    programs = [(slow, "echo in\n" * 20_000), (Target(name="localhost", connection="local"), "echo here")]
    began = time.monotonic()
    found = run_many(programs, reach=Reach(connect_timeout=2, timeout=3), on_done=on_done)
    assert time.monotonic() - began < 5
    assert done == ["localhost", "slow"] and found[1].stdout == "here\n"
    assert found[0].error and "not done within 3 s: the time went to sending the program" in found[0].error.what


class _Silent(Open):
    """A server that waits in one of its answers."""

    def __init__(self, at: str, ended: threading.Event) -> None:
        self.at, self.ended = at, ended

    def _wait(self, at: str) -> None:
        if at == self.at:
            self.ended.wait(20)

    def check_auth_password(self, username: str, password: str) -> int:
        self._wait("auth")
        return super().check_auth_password(username, password)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        self._wait("channel")
        return super().check_channel_request(kind, chanid)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._wait("exec")
        return super().check_channel_exec_request(channel, command)


def _drip(sock: socket.socket, ended: threading.Event) -> None:
    """A line of a banner that never ends; each byte is progress."""
    with contextlib.suppress(OSError):
        while not ended.wait(0.3):
            sock.sendall(b"x")


@pytest.mark.parametrize(
    ("at", "part"),
    [
        ("banner", "the key exchange"),
        ("auth", "logging in"),
        ("channel", "opening a channel"),
        ("exec", "opening a channel"),
        ("program", "waiting for output"),
        ("jump", "connecting"),
    ],
)
def test_wherever_a_server_is_silent_its_host_costs_its_time_and_the_part_is_named(
    at: str, part: str, tmp_path: Path
) -> None:
    ended = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    key = paramiko.RSAKey.generate(2048)

    def serve() -> None:
        sock, _ = listening.accept()
        if at in ("banner", "jump"):
            return _drip(sock, ended)
        transport = paramiko.Transport(sock)
        transport.add_server_key(key)
        transport.start_server(server=_Silent(at, ended))
        ended.wait(20)
        return None

    threading.Thread(target=serve, daemon=True).start()
    port = listening.getsockname()[1]
    jump = ("-J", f"x@127.0.0.1:{port}") if at == "jump" else ()
    args = ("-o", f"UserKnownHostsFile={tmp_path}/known", *jump)
    target = Target(
        name="slow",
        address="192.0.2.1" if jump else "127.0.0.1",
        port=port,
        user="x",
        password="x",
        check_host_key=False,
        ssh_args=args,
    )
    began = time.monotonic()
    try:
        [found] = run_many([(target, "echo in")], reach=Reach(connect_timeout=30, timeout=2))
    finally:
        ended.set()
        listening.close()
    assert time.monotonic() - began < 4
    assert found.error and found.error.what.endswith(f"within 2 s: the time went to {part}")


# ---------------------------------------------------------------- Ctrl-C


@pytest.fixture(scope="module")
def sleepy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sleepy"), "ForceCommand sleep 12")
    yield server
    server.stop()


HOST = """
from pathlib import Path
from types import SimpleNamespace
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import workflow
from gpunode.edge.ssh.shell import Target
known = ("-o", "UserKnownHostsFile=KNOWN")
target = Target(name="n1", address="127.0.0.1", port=PORT, keys=(KEY,), ssh_args=known)
one, targets = Detected(host="n1", target=target), Targets(hosts=("n1",))
print("ready", flush=True)
"""
CALLS = {
    "the question to a package manager": "workflow._ask({1: (one, {})}, targets)",
    "the proofs": """
host = SimpleNamespace(host="n1", detected=one, planned=None)
workflow._smoke_program = lambda *_: "true"
workflow._smoke([host], targets, None)""",
    "the probe": "from gpunode.edge.detect import probe\nprobe([one], targets)",
    "drains": """
import time
from gpunode.edge.side_by_side import side_by_side
side_by_side(lambda _, deadline: time.sleep(12), ["n1"], at_once=8)""",
    "the list of runs": """
from gpunode.edge.fleet import standing
standing.find_hosts = lambda _: [one]
standing.list_runs(targets)""",
    "the end of a lease": """
from gpunode.edge import lease
lease.give_back([one], targets, run="r1", generation=7)""",
}


def interrupted(code: str, tmp_path: Path) -> float:
    """Seconds from SIGINT, sent while the call waits, to the end of the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    time.sleep(1.5)
    assert process.poll() is None, process.stderr and process.stderr.read()
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err
    return time.monotonic() - sent


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ctrl_c_ends_a_call_that_waits_for_a_node_within_a_second(call: str, sleepy: Sshd, tmp_path: Path) -> None:
    code = (
        HOST.replace("PORT", str(sleepy.port))
        .replace("KEY", repr(str(sleepy.key)))
        .replace("KNOWN", str(sleepy.known_hosts))
        + call
    )
    assert interrupted(code, tmp_path) < 5  # one alone on the machine; the node takes 12


@pytest.mark.slow
def test_what_a_command_has_started_on_this_machine_ends_with_it(tmp_path: Path) -> None:
    call = f"""
from gpunode.edge.ssh.many import run_many
from gpunode.edge.ssh.shell import Target
print("ready", flush=True)
run_many([(Target(name="localhost", connection="local"), "echo $$ >{tmp_path}/pid; sleep 12")])"""
    assert interrupted(call, tmp_path) < 5
    cmdline = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/cmdline")
    assert not cmdline.exists() or not cmdline.read_bytes()  # a process that has ended, and that none has waited for
