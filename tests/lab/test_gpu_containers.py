"""Running GPU containers and systemd's daemon-reload, for real: Docker with the systemd driver, runc, cgroup v1.

A container that may open a GPU's device file gets ENXIO (a node has no such device), one that may not EPERM.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.core.facts import parse_probe
from gpunode.core.model import GpuContainer, NodeFacts
from gpunode.core.remote import program
from gpunode.lab import Lab
from gpunode.node import script

pytestmark = pytest.mark.lab

MAY, MAY_NOT = "No such device or address", "Operation not permitted"
RULE = "/etc/udev/rules.d/72-gpunode-nvidia-dev-char.rules"
SET_UP = """set -e
mkdir -p /etc/docker /tmp/image/bin
echo '{"exec-opts": ["native.cgroupdriver=systemd"]}' >/etc/docker/daemon.json
systemctl restart docker
cp "$(command -v busybox)" /tmp/image/bin/busybox
for name in sh sleep head; do ln -s busybox /tmp/image/bin/$name; done
tar -C /tmp/image -c . | docker import - own
"""
# What nvidia-container-cli does in legacy mode: a device file of the machine's mounted into the container, and its
# cgroup told behind the back of runc and systemd.  A mount needs the container's namespace, which a shell of the node
# can enter, but then sees no file of the node: the device is mounted before, and shared by --volume.
LEGACY = """set -e
docker run -d --name {name} --volume /dev/nvidia0:/dev/nvidia0 own sleep 10000
pid=$(docker inspect -f '{{{{.State.Pid}}}}' {name})
echo 'c 195:0 rw' >"/sys/fs/cgroup/devices$(sed -n 's/^[0-9]*:devices://p' /proc/$pid/cgroup)/devices.allow"
"""
POD = """set -e
mkdir -p /tmp/pod/root/bin && cd /tmp/pod
cp "$(command -v busybox)" root/bin/busybox
ln -s busybox root/bin/sleep
tar -C root -cf layer.tar .
layer=$(sha256sum <layer.tar | cut -d ' ' -f 1)
printf '{"os": "linux", "architecture": "amd64", "config": {}, "rootfs": {"type": "layers", "diff_ids": ["%s"]}}' \\
  "sha256:$layer" >config.json
echo '[{"Config": "config.json", "RepoTags": ["localhost/own:1"], "Layers": ["layer.tar"]}]' >manifest.json
tar -cf image.tar layer.tar config.json manifest.json
ctr -n k8s.io images import image.tar >/dev/null
echo '{"metadata": {"name": "llm", "namespace": "default", "uid": "llm"}, "log_directory": "/tmp/pod",
  "linux": {"cgroup_parent": "kubepods.slice", "security_context": {"namespace_options": {"network": 2}}}}' >pod.json
echo '{"metadata": {"name": "server"}, "image": {"image": "localhost/own:1"}, "log_path": "log",
  "command": ["/bin/sleep", "10000"], "envs": [{"key": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}' >container.json
pod=$(crictl runp --runtime=nvidia pod.json)
crictl start "$(crictl create "$pod" container.json pod.json)" >/dev/null
echo "$pod"
"""


class Node:
    """The node, gpunode on it, and the containers there."""

    def __init__(self, lab: Lab, run_gpunode: Callable[..., Any], folder: Path) -> None:
        self.lab, self._run = lab, run_gpunode
        self.spec = folder / "gpunode.yml"
        asked = {"runtimes": {"containerd": {"cgroup_driver": "systemd"}, "docker": {"default_runtime": "runc"}}}
        self.spec.write_text(yaml.safe_dump(yaml.safe_load(lab.spec.read_text()) | asked))

    def gpunode(self, verb: str, *args: object, exit: int | None = 0) -> dict[str, Any]:
        done = self._run(verb, "-i", self.lab.inventory, "-c", self.spec, *args, "--format", "json", exit=exit)
        [host] = json.loads(done.stdout)["hosts"]
        return dict(host)

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def script(self, name: str, request: dict[str, bytes]) -> str:
        return str(self.lab.run(self.lab.nodes[0], "sh -s", stdin=program(script(name), request)).stdout)

    def facts(self) -> NodeFacts:
        return parse_probe(self.script("probe.sh", {"sections": b"gpu_containers\n"}))

    def container(self, name: str) -> GpuContainer:
        return next(c for c in self.facts().gpu_containers if c.name == name)

    def reloaded(self, name: str) -> bool:
        """Whether systemd says that it has reloaded since the container started."""
        functions = script("probe.sh").partition("#!/bin/sh")[0]
        asked = f"{functions}reloaded {self.container(name).unit} && echo yes"
        return str(self.lab.run(self.lab.nodes[0], "sh -s", stdin=asked).stdout) == "yes\n"

    def opens(self, name: str) -> str:
        """What a container gets that opens the GPU."""
        return str(self.lab.run(self.lab.nodes[0], f"docker exec {name} head -c1 /dev/nvidia0").stderr)

    def checks(self) -> dict[str, tuple[str, str]]:
        return {c["id"]: (c["status"], c["message"]) for c in self.gpunode("verify", "--no-smoke", exit=None)["checks"]}


@pytest.fixture(scope="module")
def node(
    provisioned: Callable[..., Lab], run_gpunode: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Node:
    """Debian 12 with an H100, systemd as the engines' cgroup driver, provisioned; runc is 1.1.5 there."""
    made = Node(provisioned(), run_gpunode, tmp_path_factory.mktemp("spec"))
    done = made.lab.run(made.lab.nodes[0], "sh -s", stdin=SET_UP)
    assert done.returncode == 0, done.stderr
    made.gpunode("provision", "--yes")
    return made


@pytest.fixture
def containers(node: Node) -> Callable[[str, str], None]:
    node.sh("docker ps -aq | xargs -r docker rm -f")

    def start(name: str, how: str) -> None:
        options = "--runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all"
        node.sh(
            LEGACY.format(name=name) if how == "legacy" else f"docker run -d --name {name} {options} own sleep 10000"
        )
        assert MAY in node.opens(name)

    return start


def test_provision_links_the_devices_and_has_them_linked_at_each_boot(node: Node) -> None:
    assert node.gpunode("plan")["converged"]
    assert node.checks()["devices.char-links"][0] == "passed"
    assert node.sh("readlink -f /dev/char/195:0 /dev/char/195:255").split() == ["/dev/nvidia0", "/dev/nvidiactl"]
    node.sh("rm -r /dev/char")
    assert node.checks()["devices.char-links"][0] == "failed"
    plan = node.gpunode("plan", exit=3)
    assert [s["id"] for s in plan["steps"]] == ["preflight.expect", "runtime.activate", "verify.smoke"]
    checked = node.gpunode("provision", "--check", exit=3)
    assert any("/dev/char/195:0" in line for line in checked["changed"])
    node.lab.run(node.lab.nodes[0], "test ! -e /dev/char")
    node.gpunode("provision", "--yes")
    assert node.gpunode("provision", "--yes")["changed"] == []
    node.sh(f"rm {RULE}")
    assert [s["id"] for s in node.gpunode("plan", exit=3)["steps"]][1:-1] == ["runtime.files"]
    node.gpunode("provision", "--yes")
    assert node.gpunode("plan")["converged"]


def test_after_a_reboot_the_links_are_there_again(node: Node) -> None:
    before = node.sh("cat /proc/sys/kernel/random/boot_id")
    node.lab.run(node.lab.nodes[0], "systemctl reboot")
    deadline = time.monotonic() + 60
    while (now := node.lab.run(node.lab.nodes[0], "cat /proc/sys/kernel/random/boot_id").stdout) in ("", before):
        assert time.monotonic() < deadline, "the node does not come back"
        time.sleep(0.5)
    assert now != before
    node.sh("systemctl is-system-running --wait || true")
    assert node.checks()["devices.char-links"][0] == "passed"
    assert node.gpunode("plan")["converged"]


def test_a_reload_takes_the_gpu_from_a_container_that_systemd_was_not_notified_of(
    node: Node, containers: Callable[[str, str], None]
) -> None:
    containers("legacy", "legacy")
    containers("linked", "spec")
    node.sh("mv /dev/char /dev/char.away")
    containers("unlinked", "spec")
    node.sh("mv /dev/char.away /dev/char")
    states = {c.name: (c.state, c.hook) for c in node.facts().gpu_containers}
    assert states == {"legacy": ("keepable", True), "linked": ("kept", False), "unlinked": ("keepable", False)}
    assert not node.reloaded("linked")
    status, message = node.checks()["containers.gpu-kept"]
    assert (status, "legacy, unlinked would lose /dev/nvidia0" in message) == ("warning", True)
    node.sh("systemctl daemon-reload")
    assert MAY_NOT in node.opens("legacy"), "links do not help what systemd never heard of"
    assert MAY_NOT in node.opens("unlinked"), "runc 1.1.5 passed it by, because its number had no link"
    assert MAY in node.opens("linked")
    assert node.reloaded("linked")
    assert node.container("legacy").state == "lost"
    assert node.checks()["containers.gpu-kept"][0] == "failed"


def test_gpunode_notifies_systemd_before_it_enables_a_service(
    node: Node, containers: Callable[[str, str], None]
) -> None:
    containers("web", "legacy")
    containers("train", "legacy")
    node.sh("systemctl --no-reload disable nvidia-persistenced && systemctl stop nvidia-persistenced")
    assert MAY in node.opens("web"), "neither of the two reloads"
    [step] = [s for s in node.gpunode("plan", exit=3)["steps"] if s["id"] == "driver.activate"]
    assert [r["what"] for r in step["reasons"]][-1] == "running GPU containers train, web"
    node.gpunode("provision", "--check", exit=3)
    assert node.container("web").state == "keepable", "check mode tells nobody"
    node.gpunode("provision", "--yes")
    assert (node.container("web").state, node.container("train").state) == ("kept", "kept")
    node.sh("systemctl daemon-reload")
    assert MAY in node.opens("web")
    assert MAY in node.opens("train")
    assert node.checks()["containers.gpu-kept"][0] == "passed"


def test_gpunode_notifies_systemd_before_package_scripts_reload_it(
    node: Node, containers: Callable[[str, str], None]
) -> None:
    containers("web", "legacy")
    printed = node.script("packages.sh", {"install": b"anacron - -\n", "refresh": b""})
    assert "gpunode\tstatus\tchanged" in printed, printed
    assert "notified systemd of the GPUs of the running container web" in printed
    assert MAY in node.opens("web")


def test_a_container_that_made_itself_a_device_file_gets_no_right_to_it(
    node: Node, containers: Callable[[str, str], None]
) -> None:
    node.sh("docker run -d --name sly own sleep 10000")
    node.sh("docker exec sly busybox mknod -m 666 /dev/nvidia0 c 195 0")
    assert MAY_NOT in node.opens("sly")
    assert node.facts().gpu_containers == ()


def test_a_pod_is_known_by_its_name_and_keeps_its_gpu(node: Node, containers: Callable[[str, str], None]) -> None:
    done = node.lab.run(node.lab.nodes[0], "sh -s", stdin=POD)
    assert done.returncode == 0, done.stderr
    [pod] = node.facts().gpu_containers
    assert (pod.name, pod.state, pod.hook) == ("llm/server", "kept", False)
    assert pod.unit == f"cri-containerd-{pod.id}.scope"
    node.sh("systemctl daemon-reload")
    devices = node.sh(f"cat /sys/fs/cgroup/devices/kubepods.slice/{pod.unit}/devices.list")
    assert "c 195:0 rw" in devices
    node.sh(f"crictl rmp -f {done.stdout.strip()}")


SMI_IMAGE = """set -e
rm -rf /tmp/smi && mkdir -p /tmp/smi/bin
for file in $(ldd /usr/bin/nvidia-smi | grep -o '/[^ ]*'); do cp -L --parents "$file" /tmp/smi; done
tar -C /tmp/smi -c . | docker import - smi
"""
ASK = "docker run --rm --network=none --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES={} smi nvidia-smi {}"


def test_nvidias_own_program_in_a_container_sees_what_it_was_given_and_sets_the_gpu(node: Node) -> None:
    node.sh("docker ps -aq | xargs -r docker rm -f")
    node.sh(SMI_IMAGE)
    node.sh("nvidia-smi -mig 1 && nvidia-smi mig -cgi 9,19,19 -C")
    try:
        devices = re.findall("MIG-[0-9a-f-]{36}", node.sh("nvidia-smi -L"))
        assert len(devices) == 3
        assert re.findall("MIG-[0-9a-f-]{36}", node.sh(ASK.format("all", "-L"))) == devices
        assert re.findall("MIG-[0-9a-f-]{36}", node.sh(ASK.format(devices[1], "-L"))) == [devices[1]]
    finally:
        node.sh("nvidia-smi mig -dci; nvidia-smi mig -dgi; nvidia-smi -mig 0")
    node.sh(ASK.format("all", "-c EXCLUSIVE_PROCESS"))
    assert "Exclusive_Process" in node.sh(ASK.format("0", "--query-gpu=compute_mode --format=csv"))
    assert "Exclusive_Process" in node.sh("nvidia-smi --query-gpu=compute_mode --format=csv")
    node.sh("nvidia-smi -c DEFAULT")
