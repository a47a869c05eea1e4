"""doctor on a node: silent after the first provision, and the cause first when something is broken, over real SSH."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_provision import Node

from gpunode.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
UNLOAD = (
    "systemctl stop nvidia-persistenced; for m in nvidia_peermem nvidia_uvm nvidia_drm nvidia_modeset nvidia; "
    "do rmmod $m 2>/dev/null || true; done; test ! -e /sys/module/nvidia; "
)
LOAD = "modprobe nvidia; systemctl start nvidia-persistenced"
MODULES = "$(find /lib/modules/$(uname -r) -name 'nvidia*.ko*')"
INSTALLER = "echo 'ERROR: The Nouveau kernel driver is currently in use by your system.' >/var/log/nvidia-installer.log"
RECIPE = """mkdir -p /var/lib/dkms/nvidia/1/build; """
RECIPE += (
    r"""printf 'echo >&2 "  ERROR: Kernel configuration is invalid.";\\\n' >/var/lib/dkms/nvidia/1/build/make.log"""
)

# what is broken → how, how it is repaired, the root cause; "" where something only looks as if it were
BROKEN: dict[str, tuple[str, str, str]] = {
    "the module is not loaded": (UNLOAD, LOAD, "module-not-loaded"),
    "modprobe.d keeps it out": (
        UNLOAD + "echo 'install nvidia /bin/false' >/etc/modprobe.d/zz-no.conf",
        f"rm /etc/modprobe.d/zz-no.conf; {LOAD}",
        "modprobe-blocked",
    ),
    "the kernel has no module": (
        UNLOAD + f"mkdir /root/k; mv {MODULES} /root/k/; depmod",
        f"d=/lib/modules/$(uname -r)/updates/dkms; mkdir -p $d; mv /root/k/* $d/; rmdir /root/k; depmod; {LOAD}",
        "modprobe-not-found",
    ),
    "the next kernel has none": (
        "mkdir -p /lib/modules/9.9.9-test; : >/boot/vmlinuz-9.9.9-test",
        "rm -r /lib/modules/9.9.9-test /boot/vmlinuz-9.9.9-test",
        "module-next-kernel",
    ),
    "Docker is stopped": (
        "systemctl stop docker.socket docker",
        "systemctl start docker.socket docker",
        "engine-stopped",
    ),
    "daemon.json is torn": (
        "cp /etc/docker/daemon.json /root/d; echo '{,' >/etc/docker/daemon.json",
        "cp /root/d /etc/docker/daemon.json",
        "docker-daemon-json",
    ),
    "the default runtime is not there": (
        """cp /etc/docker/daemon.json /root/d; echo '{"default-runtime": "nvidia"}' >/etc/docker/daemon.json""",
        "cp /root/d /etc/docker/daemon.json",
        "docker-default-runtime-missing",
    ),
    "CDI is of another driver": (
        "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml 2>/dev/null; "
        r"sed -i 's/\.so\.[0-9][0-9.]*/.so.111.11/g' /etc/cdi/nvidia.yaml",
        "rm /etc/cdi/nvidia.yaml",
        "cdi-stale",
    ),
    "the daemon has crashed": (
        "systemctl kill -s SEGV nvidia-persistenced; sleep 1",
        "systemctl reset-failed; systemctl restart nvidia-persistenced",
        "persistenced-fail",
    ),
    "the plugin offers nothing": (
        f"mkdir -p $(dirname {CHECKPOINT}); "
        f"""echo '{{"Data":{{"RegisteredDevices":{{"nvidia.com/gpu":[]}}}}}}' >{CHECKPOINT}""",
        f"rm -r $(dirname {CHECKPOINT})",
        "plugin-no-devices",
    ),
    "an installer's old log": (INSTALLER, "rm /var/log/nvidia-installer.log", ""),
    "a recipe in make's log": (RECIPE, "rm -r /var/lib/dkms/nvidia/1", ""),
}
MENDED = ("the module is not loaded", "Docker is stopped")  # by doctor --fix


def roots(node: Node) -> set[str]:
    return {one["id"] for one in node.json("doctor", exit=None)["findings"] if one["root"]}


@pytest.fixture(scope="module")
def node(lab_up: Callable[..., Lab], run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Debian 12 with containerd and Docker, after its first provision."""
    some = Node(lab_up(1, name="t-doctor"), run_gpunode, tmp_path_factory.mktemp("spec"), {})
    assert roots(some) == {"driver-missing"}, "before"
    some.gpunode("provision", "--yes")
    return some


def test_right_after_the_first_provision_there_is_nothing_to_say(node: Node) -> None:
    found = node.json("doctor", exit=0)
    assert (found["findings"], found["xids"]) == ([], [])


@pytest.mark.parametrize("name", BROKEN)
def test_the_cause_is_named_first(node: Node, name: str) -> None:
    how, repair, cause = BROKEN[name]
    node.sh(how)
    try:
        assert roots(node) == ({cause} if cause else set())
    finally:
        node.sh(repair)


@pytest.mark.parametrize("name", MENDED)
def test_fix_mends_it_and_verify_is_green(node: Node, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node.sh(BROKEN[name][0])
    monkeypatch.chdir(node.spec.parent)
    Path("gpunode.yml").write_text(node.spec.read_text())
    node.gpunode("doctor", "--fix", "--yes")
    assert roots(node) == set()
    node.gpunode("verify", "--no-smoke")


def test_logs_of_a_node_without_a_driver_are_read(lab_up: Callable[..., Lab], run_gpunode: Callable[..., Any]) -> None:
    lab = lab_up(1)
    assert lab.run(lab.nodes[0], INSTALLER).returncode == 0
    ran = run_gpunode("doctor", "-i", str(lab.inventory), "--format", "json", exit=1)
    (host,) = json.loads(ran.stdout)["hosts"]
    assert host["error"] is None and host["notes"] == []
    found = {finding["id"]: finding for finding in host["findings"]}
    assert found["nouveau-in-use"]["evidence"][0].startswith("nvidia-installer:1:")
    assert "nvml-version-mismatch" not in found
