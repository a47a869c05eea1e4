"""Containers really go through the nvidia runtime once it is configured, and none before: CRI pods and `docker run`."""

from __future__ import annotations

import re

import pytest
from daemon_node import IMAGE, DaemonNode
from edit_cases import edit_request

from gpunode.core.edits import RuntimeRequest, edit_runtime
from gpunode.core.model import RuntimeName

pytestmark = pytest.mark.lab

SAY = "env | grep ^NVIDIA_ | sort"
UUID = "GPU-5dd1e4a3-24b2-5c0a-8f3d-0f6a2f1c9a77"
# What people ask for: an index, several, a UUID, all, and none at all.
REQUESTS = ("1", "0,1", UUID, "all", "void")


def configure(node: DaemonNode, request: RuntimeRequest) -> None:
    facts = node.facts()
    edit = edit_runtime(facts, request)
    assert edit.problems == ()
    outcome = node.commit(edit_request(facts, request, edit))
    assert outcome.status == "changed", outcome


def created(node: DaemonNode) -> list[dict[str, str]]:
    """NVIDIA_* of every container that the nvidia runtime has been told to create since the last call of this.

    Engines ask a runtime for its `features`, too, without any container.
    """
    return [dict(re.findall(r"(NVIDIA_\w+)=(\S*)", line)) for line in node.trace() if " create " in line]


def ask(node: DaemonNode, engine: RuntimeName, handler: str, *environment: str) -> str:
    """Run a container that says its NVIDIA_* and is gone; what it said, or the engine's words when there is none."""
    if engine == "containerd":
        done = node.pod("run", handler, SAY, *environment)
    else:
        words = " ".join([f"--runtime={handler}" * bool(handler), *(f"--env={pair}" for pair in environment)])
        done = node.run(f"docker run --rm --network=none {words} {IMAGE} /bin/sh -c '{SAY}'")
    return str(done.stdout + done.stderr)


UNKNOWN = {
    "containerd": 'no runtime for "nvidia" is configured',
    "docker": "nknown.* runtime.* nvidia|nvidia.* not found",
}


@pytest.mark.parametrize("engine", ["containerd", "docker"])
def test_containers_reach_the_nvidia_runtime_by_name_then_by_default(daemons: DaemonNode, engine: RuntimeName) -> None:
    node = daemons
    node.sh("systemctl start docker")
    assert node.pod("image").returncode == 0
    assert re.search(UNKNOWN[engine], ask(node, engine, "nvidia", "NVIDIA_VISIBLE_DEVICES=all"))
    assert ask(node, engine, "", "NVIDIA_VISIBLE_DEVICES=all") == "NVIDIA_VISIBLE_DEVICES=all\n"
    assert created(node) == []

    configure(node, RuntimeRequest(runtime=engine, default_runtime="keep"))
    assert ask(node, engine, "", "NVIDIA_VISIBLE_DEVICES=all") == "NVIDIA_VISIBLE_DEVICES=all\n"
    assert created(node) == [], "who names no runtime gets runc as before"
    for request in REQUESTS:
        asked = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "NVIDIA_VISIBLE_DEVICES": request}
        pairs = [f"{key}={value}" for key, value in asked.items()]
        assert ask(node, engine, "nvidia", *pairs).splitlines() == pairs
        assert asked in created(node)

    configure(node, RuntimeRequest(runtime=engine, default_runtime="nvidia"))
    ask(node, engine, "", "NVIDIA_VISIBLE_DEVICES=0")
    assert {"NVIDIA_VISIBLE_DEVICES": "0"} in created(node)
    ask(node, engine, "runc", "NVIDIA_VISIBLE_DEVICES=0")
    assert created(node) == [], "runc can still be had by name"
