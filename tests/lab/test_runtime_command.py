"""`gpunode runtime` on the node itself, with its own Python: no Ansible, no Kubernetes, no controller."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from daemon_node import IMAGE, DaemonNode

from gpunode.core.model import RuntimeName

# The node's own Python is 3.11 on the one and 3.13 on the other.
DISTROS = ("debian:12", "debian:13+forky")
pytestmark = [pytest.mark.lab, pytest.mark.parametrize("daemons", DISTROS, indirect=True, scope="module")]

BYTES = "find /etc/containerd /etc/docker -type f -exec sha256sum {} + | sort"
# and every file's mode, owner and time
TREE = f"find /etc/containerd /etc/docker -type f -printf '%p %m %u %g %T@\\n' | sort; {BYTES}"
# Kills gpunode and all that it started, so many seconds after commit.sh has written down what it is about to do.
KILLED = """
journal=/var/lib/gpunode/journal.jsonl
count() {{ grep -c '"phase":"intent"' $journal 2>/dev/null; }}
before=$(count)
setsid gpunode runtime configure --runtime {engine} --set-as-default >/tmp/killed 2>&1 &
leader=$!
until [ "$(count)" != "$before" ]; do kill -0 $leader || exit 1; done
sleep {delay}
kill -9 -- -$leader
for process in /proc/[0-9]*; do
    tr '\\0' '\\n' <$process/environ 2>/dev/null | grep -q ^GPUNODE_IN= && kill -9 ${{process#/proc/}}
done
true
"""


@pytest.fixture(scope="module")
def node(daemons: DaemonNode) -> DaemonNode:
    daemons.install_gpunode()
    daemons.sh("systemctl start docker; mkdir -p /etc/docker")
    assert daemons.pod("image").returncode == 0
    return daemons


def runtime(node: DaemonNode, verb: str, engine: str, *words: str, exit: int = 0) -> dict[str, Any]:
    """The command's answer as JSON; fails, showing all, when it ends with another exit code."""
    done = node.run(f"gpunode runtime {verb} --runtime {engine} --format json {' '.join(words)}")
    assert done.returncode == exit, f"{verb} {engine} {words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return dict(json.loads(done.stdout))


def runs_through_nvidia(node: DaemonNode, engine: RuntimeName, handler: str = "") -> bool:
    """Whether a container really started through the nvidia runtime."""
    node.trace()
    if engine == "containerd":
        done = node.pod("run", handler, "echo alive")
    else:
        named = f"--runtime={handler}" if handler else ""
        done = node.run(f"docker run --rm --network=none {named} {IMAGE} /bin/sh -c 'echo alive'")
    assert done.stdout == "alive\n", done.stderr
    return any(" create " in line for line in node.trace())


@pytest.mark.parametrize("engine", ["containerd", "docker"])
def test_an_engine_is_configured_used_and_given_back_to_the_byte(node: DaemonNode, engine: RuntimeName) -> None:
    tree, data = node.sh(TREE), node.sh(BYTES)
    assert not runs_through_nvidia(node, engine)
    assert runtime(node, "status", engine, exit=3)["configured"] is False
    [change, *_] = runtime(node, "diff", engine, exit=3)["changes"]
    assert re.search(r"(?m)^\+.*nvidia", change["diff"])
    assert runtime(node, "configure", engine, "--dry-run")["outcome"]["status"] == "changed"
    assert node.sh(TREE) == tree, "looking changes nothing"

    assert runtime(node, "configure", engine)["outcome"]["status"] == "changed"
    assert runs_through_nvidia(node, engine, "nvidia") and not runs_through_nvidia(node, engine)
    assert runtime(node, "status", engine)["configured"] is True
    assert runtime(node, "diff", engine)["changes"] == []

    assert runtime(node, "configure", engine, "--set-as-default")["outcome"]["status"] == "changed"
    assert runs_through_nvidia(node, engine)
    configured = node.sh(TREE)
    assert runtime(node, "configure", engine, "--set-as-default")["outcome"]["status"] == "unchanged"
    assert node.sh(TREE) == configured

    assert runtime(node, "unconfigure", engine)["outcome"]["status"] == "changed"
    assert node.sh(BYTES) == data
    assert runtime(node, "status", engine, exit=3)["state"]["path"] == ""
    assert not runs_through_nvidia(node, engine), "the default is what it was"
    assert runtime(node, "unconfigure", engine)["outcome"]["status"] == "unchanged"


@pytest.mark.parametrize(("engine", "delay"), [("containerd", "0"), ("docker", "0.4"), ("containerd", "1.5")])
def test_a_killed_run_leaves_nothing_half_done_and_the_next_one_converges(
    node: DaemonNode, engine: RuntimeName, delay: str
) -> None:
    data = node.sh(BYTES)
    node.sh(KILLED.format(engine=engine, delay=delay))
    assert runtime(node, "configure", engine, "--set-as-default")["outcome"]["status"] in ("changed", "unchanged")
    assert node.facts().unfinished == ()
    assert runtime(node, "status", engine, "--set-as-default")["configured"] is True
    assert runs_through_nvidia(node, engine)
    runtime(node, "unconfigure", engine)
    assert node.sh(BYTES) == data
