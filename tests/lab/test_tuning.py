"""`tuning` of gpunode.yml on a node with Debian's own update-grub and sysctl: one reboot, in force, undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from grub import put_grub
from test_provision import Node

from gpunode.core.model import ENDS
from gpunode.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

WISH = {
    "iommu": "passthrough",
    "memlock": "unlimited",
    "sysctl": {"net.core.somaxconn": "8192"},  # of a node's own; most others are this machine's
}
READ = "cat /proc/sys/net/core/somaxconn; systemctl show -P LimitMEMLOCK containerd"


def test_settings_are_in_force_after_one_reboot_and_undone(
    provisioned: Callable[..., Lab], run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lab = provisioned(distro="debian:13", gpus=("h100",), engines=("containerd",), name="t-tuning")
    node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), {})
    put_grub(lab)
    before = node.sh(READ), node.sh("cat /boot/grub/grub.cfg")
    assert "quiet iommu=on" in before[1]
    boot = node.sh("cat /proc/sys/kernel/random/boot_id")
    node.set({"tuning": WISH})
    plan = node.gpunode("plan", exit=3).stdout
    assert "iommu=pt" in plan and "devices of the host are no longer kept" in plan, plan
    done = node.json("provision", "--yes")
    assert [text for text in done["changed"] if "rebooted" in text] == [
        "rebooted: iommu=pt is on the kernel's command line from the next boot on"
    ], done["changed"]
    assert node.sh("cat /proc/sys/kernel/random/boot_id") != boot
    assert "iommu=on iommu=pt" in node.sh("cat /proc/cmdline")
    assert node.sh(READ).split() == ["8192", "infinity"]
    assert "restart containerd.service" in done["changed"], "a lab node may not raise limits, so no process shows it"
    assert node.json("provision", "--yes")["changed"] == []
    node.sh("sysctl -q -w net.core.somaxconn=4096")
    failed = [c for c in node.json("verify", "--no-smoke", exit=3)["checks"] if c["status"] in ENDS]
    assert [c["message"] for c in failed] == ["sysctl net.core.somaxconn: 4096; wanted 8192"]
    node.json("provision", "--yes")
    run_gpunode("uninstall", "-i", lab.inventory, "--yes")
    assert node.sh("cat /boot/grub/grub.cfg") == before[1]
    assert node.sh(READ) == before[0]
    node.sh("test ! -e /etc/default/grub.d/90-gpunode.cfg")
