"""CDI on a real node with the archive's podman: made, left alone, found stale, renewed, and used by a container."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from daemon_node import DaemonNode

from gpunode.core.facts.cdi import stale
from gpunode.core.items.cdi import cdi_request
from gpunode.core.model import Outcome
from gpunode.core.remote import parse_outcome
from gpunode.edge.desired import load_templates

pytestmark = pytest.mark.lab

SPECIFICATION = "/run/cdi/nvidia.yaml"
UNITS = {name: load_templates()[f"cdi-refresh.{name}.j2"] for name in ("service", "path")}
# crun refuses this machine's cgroups, and containers in containers have no overlay and no free limits
PODMAN = "podman --storage-driver vfs --runtime runc --cgroup-manager cgroupfs"
RUN = f"{PODMAN} run --rm --network none --ulimit host"
_INSTALL = """
apt-get -qq update >/dev/null 2>&1
DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends podman runc >/dev/null 2>&1
rm -rf /var/lib/containers/storage  # the package began one with another driver
mkdir -p /tmp/image/bin && cp "$(command -v busybox)" /tmp/image/bin/busybox
tar -C /tmp/image -c . | podman --storage-driver vfs import --quiet - test:1
"""


@pytest.fixture(scope="module")
def node(lab_up: Callable[..., Any], run_gpunode: Callable[..., Any]) -> DaemonNode:
    """Debian 12 with podman and two H100, provisioned: driver, toolkit, CDI."""
    node = DaemonNode(lab_up(distro="debian:12", gpus=("h100", "h100"), engines=()))
    node.sh(_INSTALL)
    run_gpunode("provision", "-i", node.lab.inventory, "-c", node.lab.spec, "--yes")
    return node


def verb(node: DaemonNode, run_gpunode: Callable[..., Any], name: str, exit: int = 0) -> dict[str, Any]:
    done = run_gpunode(name, "-i", node.lab.inventory, "-c", node.lab.spec, "--format", "json", exit=exit)
    [host] = json.loads(done.stdout)["hosts"]
    return dict(host)


def cdi(node: DaemonNode, **value: str) -> Outcome:
    done = node.send("cdi.sh", cdi_request(value))
    return parse_outcome(done.stdout, done.returncode)


# as for root; in a node of the lab a user may mount neither /proc nor /sys
_ROOTLESS = f"""
DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends uidmap slirp4netns >/dev/null 2>&1
useradd -m anna
install -d -o anna -m 700 /tmp/anna
cat >/tmp/anna/run <<'END'
export XDG_RUNTIME_DIR=/tmp/anna
tar -C /tmp/image -c . | {PODMAN} import --quiet - test:1
{PODMAN} run --rm --network host --pid host --device nvidia.com/gpu=all test:1 /bin/busybox ls $@
END
"""


def test_a_container_of_a_user_without_root_has_them_too(node: DaemonNode) -> None:
    node.sh(_ROOTLESS)
    found = node.sh("su - anna -c 'sh /tmp/anna/run /dev /usr/lib/x86_64-linux-gnu'").split()
    assert {"nvidia0", "nvidia1", "nvidiactl"} < set(found)
    assert any(name.startswith("libcuda.so.") for name in found)


def test_a_container_has_the_gpus_it_asks_for(node: DaemonNode) -> None:
    ls = "/bin/busybox ls /dev /usr/lib/x86_64-linux-gnu"
    found = node.sh(f"{RUN} --device nvidia.com/gpu=all test:1 {ls}").split()
    assert {"nvidia0", "nvidia1", "nvidiactl"} < set(found)
    assert any(name.startswith("libcuda.so.") for name in found)
    one = node.sh(f"{RUN} --device nvidia.com/gpu=1 test:1 {ls}").split()
    assert ("nvidia0" in one, "nvidia1" in one) == (False, True)


def test_units_of_the_toolkit_keep_it_and_systemd_was_not_reloaded_for_them(node: DaemonNode) -> None:
    units = "nvidia-cdi-refresh.service nvidia-cdi-refresh.path"
    assert node.sh(f"systemctl is-enabled {units}").split() == ["enabled", "enabled"]
    assert node.sh("systemctl is-active nvidia-cdi-refresh.path").strip() == "active"


def test_a_second_run_changes_nothing(node: DaemonNode, run_gpunode: Callable[..., Any]) -> None:
    before = node.sh(f"stat -c '%y %i' {SPECIFICATION}")
    assert cdi(node).status == "unchanged"
    assert verb(node, run_gpunode, "plan")["steps"] == []
    assert node.sh(f"stat -c '%y %i' {SPECIFICATION}") == before


def test_after_another_driver_it_is_stale_until_it_is_renewed(
    node: DaemonNode, run_gpunode: Callable[..., Any]
) -> None:
    node.sh(f"sed -i 's/\\(\\.so\\.\\)[0-9.]*/\\1535.1.2/' {SPECIFICATION}")
    [other, gone] = stale(node.facts())
    assert other.startswith(f"{SPECIFICATION} is made for driver 535.1.2; installed is ")
    assert gone.startswith(f"{SPECIFICATION} brings files that are gone: /usr/lib/x86_64-linux-gnu/libcuda.so.535.1.2")
    [step] = [step for step in verb(node, run_gpunode, "plan", exit=3)["steps"] if step["role"] == "runtime"]
    assert step["option"] == "cdi"
    assert "cdi.fresh" in failed(verb(node, run_gpunode, "verify", exit=1))
    run_gpunode("provision", "-i", node.lab.inventory, "-c", node.lab.spec, "--yes")
    assert stale(node.facts()) == ()


def test_after_a_gpu_is_gone_it_is_stale_until_it_is_renewed(node: DaemonNode) -> None:
    slots = sorted((node.node.hardware / "sys/bus/pci/devices").iterdir())
    shutil.rmtree(slots[-1])
    assert stale(node.facts()) == (f"{SPECIFICATION} names GPUs that are gone: /dev/nvidia1",)
    assert cdi(node).texts == (f"rewrites /var{SPECIFICATION}",)
    assert stale(node.facts()) == ()


def test_our_own_units_keep_it_where_those_of_the_toolkit_pass_the_node_over(node: DaemonNode) -> None:
    modules = "/lib/modules/$(uname -r)/modules.dep"
    node.sh(f"mv {modules} /root/; rm {SPECIFICATION}")
    first = cdi(node, **UNITS)
    assert "nvidia-cdi-refresh.service passes this node over by its ExecCondition" in first.notes
    done = [line.split()[0] for line in first.texts]
    assert done == ["creates", "creates", "creates", "enables", "enables", "starts"]
    assert first.message.endswith(", and is kept so")
    assert cdi(node, **UNITS).status == "unchanged"
    node.sh(f"rm {SPECIFICATION}; systemctl start nvidia-cdi-refresh.service; test ! -e {SPECIFICATION}")
    node.sh("systemctl start gpunode-cdi-refresh.service")
    assert stale(node.facts()) == ()
    ours = "/etc/systemd/system/gpunode-cdi-refresh"
    node.sh(f"systemctl disable --now gpunode-cdi-refresh.path gpunode-cdi-refresh.service; rm {ours}.*")
    node.sh(f"mv /root/modules.dep {modules}; systemctl daemon-reload")


def test_our_own_units_keep_it_where_the_toolkit_brings_none(node: DaemonNode) -> None:
    node.sh("systemctl disable --now nvidia-cdi-refresh.path; rm /etc/systemd/system/nvidia-cdi-refresh.*")
    node.sh("systemctl daemon-reload")  # the toolkit's units are forgotten
    first = cdi(node, **UNITS)
    assert [line.split()[0] for line in first.texts] == ["creates", "creates", "enables", "enables", "starts"]
    assert node.sh("systemctl is-active gpunode-cdi-refresh.path").strip() == "active"
    assert cdi(node, **UNITS).status == "unchanged"
    node.sh(f"rm {SPECIFICATION}; systemctl start gpunode-cdi-refresh.service")
    assert cdi(node, **UNITS).status == "unchanged", "the service makes what nvidia-ctk makes for us"


def test_without_the_driver_it_is_refused_and_stays(node: DaemonNode) -> None:
    node.sh("systemctl stop nvidia-persistenced; modprobe -r nvidia_uvm nvidia_modeset nvidia")
    outcome = cdi(node)
    assert (outcome.status, outcome.message[:28]) == ("refused", "no NVIDIA driver is loaded: ")
    assert node.sh(f"grep -c kind {SPECIFICATION}").strip() == "1"


def failed(host: dict[str, Any]) -> set[str]:
    return {check["id"] for check in host["checks"] if check["status"] == "failed"}
