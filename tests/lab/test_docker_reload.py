"""Docker told of its configuration on running daemons: a reload where it serves, a restart where it has to be."""

from __future__ import annotations

import time

import pytest
from daemon_node import DaemonNode
from edit_cases import edit_request

from gpunode.core.edits import RuntimeRequest, activation, edit_runtime
from gpunode.core.items.kubelet import driver_in_force

pytestmark = pytest.mark.lab

# busybox as an image, and two containers of it
CONTAINERS = """
set -e
tar -C / -chf - bin/busybox | docker import - gpunode-busybox >/dev/null
for name in web db; do docker run -d --name $name --network none gpunode-busybox /bin/busybox sleep 3600; done
"""
PIDS = "docker inspect -f '{{.State.Pid}}' web db"


def test_docker_is_reloaded_once_it_knows_the_hook_and_its_containers_go_on(daemons: DaemonNode) -> None:
    node, request = daemons, RuntimeRequest(runtime="docker")
    node.sh("systemctl is-active docker || systemctl start docker")
    docker = node.facts().containers["docker"]
    assert (docker.count, docker.knows_hook, docker.reloads) == (0, False, True), "the toolkit is newer than dockerd"
    facts = node.facts()
    assert (
        activation(facts, request, edit_runtime(facts, request)).disrupts
        == "restarts docker.service: no container runs"
    )

    time.sleep(2)
    node.sh("systemctl restart docker")
    node.sh(CONTAINERS)
    pids = node.sh(PIDS)
    facts = node.facts()
    docker = facts.containers["docker"]
    assert docker.knows_hook and "nvidia" not in docker.runtimes
    assert sorted(facts.containers["docker"].names) == ["db", "web"]
    edit = edit_runtime(facts, request)
    reported = activation(facts, request, edit)
    assert (reported.verb, reported.disrupts) == ("reload", "reloads docker.service: running containers keep running")
    outcome = node.commit(edit_request(facts, request, edit))
    assert (outcome.status, "docker.service reloaded" in outcome.message) == ("changed", True), outcome
    assert node.sh("docker info --format '{{.DefaultRuntime}} {{(index .Runtimes \"nvidia\").Path}}'").split() == [
        "nvidia",
        "/usr/bin/nvidia-container-runtime",
    ]
    assert "nvidia" in node.facts().containers["docker"].runtimes
    node.trace()
    node.sh("docker run --rm --network none gpunode-busybox /bin/busybox true")
    assert node.trace(), "the container started through the nvidia runtime"
    assert node.sh(PIDS) == pids


def test_a_restart_is_reported_with_the_names_of_the_containers_that_stop(daemons: DaemonNode) -> None:
    node = daemons
    facts = node.facts()
    driver = "cgroupfs" if driver_in_force(facts, facts.runtime("docker")) == "systemd" else "systemd"  # type: ignore[arg-type]
    request = RuntimeRequest(runtime="docker", cgroup_driver=driver)  # type: ignore[arg-type]
    reported = activation(facts, request, edit_runtime(facts, request))
    assert reported.disrupts.startswith("restarts docker.service: 2 running containers stop: ")
    assert set(reported.disrupts.rpartition(": ")[2].split(", ")) == {"db", "web"}


def test_a_reload_that_brings_nothing_into_force_is_rolled_back(daemons: DaemonNode) -> None:
    """dockerd only logs what it does not like of a reload: the runtime it was to know decides."""
    node, request = daemons, RuntimeRequest(runtime="docker", path="/usr/bin/nvidia-container-runtime.cdi")
    node.sh("mkdir -p /etc/systemd/system/docker.service.d; ln -sf /bin/true /usr/local/bin/no-reload")
    node.sh(
        "printf '[Service]\\nExecReload=\\nExecReload=/usr/local/bin/no-reload\\n'"
        " >/etc/systemd/system/docker.service.d/no-reload.conf; systemctl daemon-reload"
    )
    node.sh("printf '{}' >/etc/docker/daemon.json; systemctl restart docker")
    facts = node.facts()
    reported = activation(facts, request, edit_runtime(facts, request))
    assert reported.verb == "reload"
    outcome = node.commit(edit_request(facts, request, edit_runtime(facts, request)))
    assert outcome.status == "rolled_back", outcome
    assert node.sh("cat /etc/docker/daemon.json") == "{}"
