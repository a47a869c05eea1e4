"""A configuration that the engine cannot start with is rolled back by itself, and what runs keeps running."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from daemon_node import IMAGE, DaemonNode
from edit_cases import edit_request

from gpunode.core.edits import RuntimeRequest, edit_runtime
from gpunode.core.model import Edit, NodeFacts, RuntimeName

pytestmark = pytest.mark.lab

CONFIG = {"containerd": "/etc/containerd/config.toml", "docker": "/etc/docker/daemon.json"}
CRI = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
SPOILED = ("root", "data-root", *(f"plugins.{plugin}.containerd.default_runtime_name" for plugin in CRI))
WORK = "while :; do sleep 1; done"
# as on a node with much else to do: what a daemon wrote before it ended is read some time after
SLOW_JOURNAL = "j=$(pidof systemd-journald); kill -STOP $j; (sleep 6; kill -CONT $j) >/dev/null 2>&1 &"
# PID and start of every container's first process: a restarted one has another
RUNNING = {
    "containerd": "ctr -n k8s.io tasks ls | sed 1d | sort",
    "docker": "docker inspect -f '{{.State.Pid}} {{.State.StartedAt}} {{.State.Running}}' $(docker ps -q)",
}


@pytest.fixture(scope="module")
def busy(daemons: DaemonNode) -> DaemonNode:
    """The node with a pod and a container at work; Docker keeps containers while it restarts."""
    daemons.put("/etc/docker", {"daemon.json": b'{"live-restore": true}\n'})
    daemons.sh("systemctl restart docker")
    daemons.sh("systemctl is-active containerd docker")
    assert daemons.pod("image").returncode == 0
    daemons.sh(f"docker run -d --network=none {IMAGE} /bin/sh -c '{WORK}'")
    kept = daemons.pod("keep", "", WORK)
    assert kept.returncode == 0, kept.stderr
    return daemons


def unusable_root(engine: RuntimeName, data: bytes) -> bytes:
    """A folder for its data that cannot be made: the file is valid, the daemon ends."""
    if engine == "docker":
        return json.dumps(json.loads(data) | {"data-root": "/proc/nope"}).encode()
    return b'root = "/proc/nope"\n' + data


def missing_default(_: RuntimeName, data: bytes) -> bytes:
    """A default runtime that nobody configured: containerd runs, its CRI plugin does not."""
    cri = b'[plugins."io.containerd.grpc.v1.cri".containerd]\n  default_runtime_name = "nosuch"\n'
    return data + b"\n" + cri


BROKEN = [
    pytest.param("containerd", unusable_root, "/proc/nope", id="containerd-does-not-start"),
    pytest.param("containerd", missing_default, "nosuch", id="cri-plugin-does-not-load"),
    pytest.param("docker", unusable_root, "/proc/nope", id="docker-does-not-start"),
]


def restarted(facts: NodeFacts) -> NodeFacts:
    """Facts by which Docker has to be restarted: one that knew NVIDIA's hook when it started is reloaded, and takes no
    other folder for its data up."""
    return replace(facts, containers={name: replace(one, knows_hook=False) for name, one in facts.containers.items()})


def broken(facts: NodeFacts, request: RuntimeRequest, spoil: Callable[[RuntimeName, bytes], bytes]) -> Edit:
    """The right edit, and something in the root config that only the running daemon finds fault with."""
    edit, path = edit_runtime(facts, request), CONFIG[request.runtime]
    data = edit.changes.get(path) or facts.files[path].data
    assert data is not None
    return replace(edit, changes={**edit.changes, path: spoil(request.runtime, data)}, meant=(*edit.meant, *SPOILED))


@pytest.mark.parametrize(("engine", "spoil", "word"), BROKEN)
def test_an_engine_that_fails_with_its_new_files_gets_the_old_ones_and_loses_no_container(
    busy: DaemonNode, engine: RuntimeName, spoil: Callable[[RuntimeName, bytes], bytes], word: str
) -> None:
    facts, request = restarted(busy.facts()), RuntimeRequest(runtime=engine, default_runtime="keep")
    running = {name: busy.sh(command) for name, command in RUNNING.items()}
    assert all(running.values())
    stat = f"stat -c '%a %u:%g %s' {CONFIG[engine]}"
    before = busy.sh(stat)

    busy.sh(SLOW_JOURNAL)
    outcome = busy.commit(edit_request(facts, request, broken(facts, request, spoil)))

    assert outcome.status == "rolled_back", outcome
    assert word in outcome.message, "the daemon's own words"
    assert f"journalctl -u {engine}" in outcome.fix
    assert {name: busy.sh(command) for name, command in RUNNING.items()} == running
    now = busy.facts()
    assert now.files[CONFIG[engine]] == facts.files[CONFIG[engine]]
    assert busy.sh(stat) == before
    assert now.unfinished == ()
    assert busy.sh(f"systemctl is-active {engine}") == "active\n"
    assert busy.pod("run", "", "echo alive").stdout == "alive\n"
    assert busy.sh(f"docker run --rm --network=none {IMAGE} /bin/sh -c 'echo alive'") == "alive\n"


@pytest.mark.parametrize("engine", ["containerd", "docker"])
def test_the_right_edit_succeeds_afterwards_and_loses_no_container(busy: DaemonNode, engine: RuntimeName) -> None:
    facts, request = busy.facts(), RuntimeRequest(runtime=engine)
    running = {name: busy.sh(command) for name, command in RUNNING.items()}
    outcome = busy.commit(edit_request(facts, request, edit_runtime(facts, request)))
    assert outcome.status == "changed", outcome
    assert {name: busy.sh(command) for name, command in RUNNING.items()} == running
