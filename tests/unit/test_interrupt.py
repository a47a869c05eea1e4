"""Ctrl-C ends each command that waits for a node, at whatever it waits, with status 130, and leaves nothing running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from api_server import ApiServer, Fault
from kube_cluster import node
from sshd import Sshd, narrow_server

pytestmark = pytest.mark.slow

PROBES = Path(__file__).parents[1] / "cases/probes"
NODE = """\
#!/bin/sh
# answers the first programs with the probe of a recorded node, and each further one after 12 seconds
cat >/dev/null
echo gpunode-shell-started >&2
[ "$(wc -l <{folder}/asked)" -lt {answers} ] || {{ touch {folder}/hangs; exec sleep 12; }}
echo >>{folder}/asked
cat {probe}
"""


SETTING = """\
driver: {branch: none}
toolkit: {version: none}
tuning: {sysctl: {net.core.somaxconn: "4444"}}
"""


@dataclass(frozen=True)
class Waiting:
    """A command, and at which of the programs that it sends a node is silent."""

    command: tuple[str, ...]
    answers: int = 0
    node: str = "debian12-h100-provisioned"
    spec: str = SETTING
    connection: str = "ssh"


COMMANDS = {
    "detect": Waiting(("detect",)),
    "detect, over a connection of Ansible's own": Waiting(("detect",), connection="ansible.builtin.ssh"),
    "doctor, probing": Waiting(("doctor",)),
    "doctor, reading logs": Waiting(("doctor",), 1),
    "plan, probing": Waiting(("plan",)),
    "plan, asking the package manager": Waiting(("plan",), 1, "debian12-h100-fresh", spec="{}"),
    "provision, probing": Waiting(("provision", "--yes")),
    "verify, probing": Waiting(("verify",)),
    "verify, using the GPU": Waiting(("verify",), 1, spec=SETTING),
    "accept, measuring": Waiting(("accept",), 1),
    "rollback --list": Waiting(("rollback", "--list")),
    "check-boot": Waiting(("check-boot",)),
    "lock": Waiting(("lock",)),
    "uninstall --check, by Ansible": Waiting(("uninstall", "--check")),
    "provision, by Ansible": Waiting(("provision", "--yes"), 1),
}


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    folder = tmp_path_factory.mktemp("sshd")
    server = Sshd(folder, f"ForceCommand {folder}/node")
    yield server
    server.stop()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: Ansible's ssh has its socket below, and the path of a socket has at most 108 characters."""
    with tempfile.TemporaryDirectory(prefix="gpunode-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def spawn(sshd: Sshd, waiting: Waiting, tmp_path: Path, more: str = "") -> subprocess.Popen[str]:
    (sshd.folder / "asked").write_text("")
    (sshd.folder / "hangs").unlink(missing_ok=True)
    probe = PROBES / waiting.node / "probe.txt"
    node = sshd.folder / "node"
    node.write_text(NODE.format(folder=sshd.folder, answers=waiting.answers, probe=probe))
    node.chmod(0o755)
    (tmp_path / "gpunode.yml").write_text(waiting.spec)
    host = f"ansible_host=127.0.0.1 ansible_port={sshd.port} ansible_ssh_private_key_file={sshd.key}"
    connection = f"ansible_connection={waiting.connection}"
    args = f"-o UserKnownHostsFile={sshd.known_hosts} -o GlobalKnownHostsFile=none"
    (tmp_path / "hosts.ini").write_text(f"n1 {host} ansible_ssh_common_args='{args}' {connection}\n{more}\n")
    env = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "gpunode", *waiting.command, "-i", "hosts.ini"]
    return subprocess.Popen(
        command, cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def interrupt(process: subprocess.Popen[str], hangs: Callable[[], bool]) -> tuple[float, str]:
    """Seconds from SIGINT to the end of the process, and what it printed."""
    until = time.monotonic() + 60
    while not hangs() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    assert process.poll() is None, process.stdout and process.stdout.read()
    time.sleep(1)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=30)
    return time.monotonic() - sent, printed


def left_of(state: Path) -> list[str]:
    """What still runs of a command, also in sessions of their own: the processes that have its environment."""
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"XDG_STATE_HOME={state}".encode() in (process / "environ").read_bytes().split(b"\0"):
                left.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return left


@pytest.mark.parametrize("waiting", COMMANDS.values(), ids=COMMANDS)
def test_ctrl_c_ends_a_command_that_waits_for_a_node(waiting: Waiting, sshd: Sshd, tmp_path: Path) -> None:
    process = spawn(sshd, waiting, tmp_path)
    took, printed = interrupt(process, (sshd.folder / "hangs").exists)
    print(f"TOOK {took:.2f}", printed[-300:])
    assert process.returncode == 130, printed
    assert not left_of(tmp_path / "state")
    assert took < 5, printed  # one alone on the machine; the node takes 12


DRAINING = Waiting(
    ("provision", "--yes"), 1, "ubuntu2204-hgx-h100-kubelet", SETTING + "rollout: {drain: {when: always}}\n"
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ApiServer]:
    """A cluster with the node, and a pod on it that its disruption budget does not let go."""
    server = ApiServer()
    server.put(node("hgx-03", allocatable={"nvidia.com/gpu": "8"}))
    owners = [{"kind": "ReplicaSet", "name": "owner", "controller": True}]
    metadata = {"name": "a", "namespace": "team", "uid": "uid-a", "ownerReferences": owners}
    server.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "hgx-03"}, "status": {}})
    server.budgets["team/a"] = 10**6
    (tmp_path / ".kube").mkdir()
    server.kubeconfig(tmp_path / ".kube/config")
    yield server
    server.close()


def test_ctrl_c_ends_a_drain_and_uncordons_the_node(cluster: ApiServer, sshd: Sshd, tmp_path: Path) -> None:
    def unschedulable() -> bool:
        found = cluster.get("Node", "hgx-03")
        return bool(found and found["spec"].get("unschedulable"))

    process = spawn(sshd, DRAINING, tmp_path)
    took, printed = interrupt(process, unschedulable)
    assert process.returncode == 130 and not left_of(tmp_path / "state"), printed
    assert not unschedulable(), printed
    assert took < 6, printed


@pytest.mark.parametrize("request_", ["GET /api/v1/nodes", "POST .*/eviction"])
def test_ctrl_c_ends_a_drain_whose_cluster_is_silent(
    request_: str, cluster: ApiServer, sshd: Sshd, tmp_path: Path
) -> None:
    cluster.faults.append(Fault(request_, status=500, delay=12, times=9))
    process = spawn(sshd, DRAINING, tmp_path)
    took, printed = interrupt(process, lambda: len(cluster.faults) == 0 or cluster.faults[0].times < 9)
    assert process.returncode == 130 and not left_of(tmp_path / "state"), printed
    assert took < 6, printed


def test_a_silent_host_costs_a_step_of_ansible_its_time_and_no_more(sshd: Sshd, tmp_path: Path) -> None:
    """What did not end, and what to do, is said of it."""
    process = spawn(sshd, Waiting(("uninstall", "--check", "--timeout", "3")), tmp_path)
    began = time.monotonic()
    printed, _ = process.communicate(timeout=30)
    assert time.monotonic() - began < 10, printed
    assert process.returncode == 4, printed
    assert "its script did not end within 3 s" in printed and "--timeout" in printed
    assert not left_of(tmp_path / "state")


@pytest.mark.parametrize(
    ("command", "code", "shown"),
    [
        (("detect", "--timeout", "4"), 4, "H100"),
        (("doctor", "--timeout", "4"), 4, "n1\n"),
        (("rollback", "--list", "--timeout", "4"), 1, "n1: the node's script ended early"),  # a probe is no journal
    ],
)
def test_a_server_that_takes_a_byte_at_a_time_costs_its_time(
    command: tuple[str, ...], code: int, shown: str, sshd: Sshd, tmp_path: Path
) -> None:
    """Its way with the program is the message, and the other host's result is there."""
    with narrow_server() as port:
        slow = f"slow ansible_host=127.0.0.1 ansible_port={port} ansible_user=x ansible_password=x"
        slow += f" ansible_ssh_common_args='-o UserKnownHostsFile={tmp_path}/known'"
        process = spawn(sshd, Waiting((*command, "--accept-new-host-keys"), 9), tmp_path, slow)
        began = time.monotonic()
        printed, _ = process.communicate(timeout=60)
    print(f"TOOK {time.monotonic() - began:.1f}")
    assert time.monotonic() - began < 12, printed  # with the start of a Python on a busy machine
    assert process.returncode == code, printed
    assert shown in printed and "slow: not done within 4 s: the time went to sending the program" in printed
