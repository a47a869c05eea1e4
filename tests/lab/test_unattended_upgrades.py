"""Debian's own unattended-upgrades on a node: it stays on, and passes the driver by."""

from __future__ import annotations

from typing import Any

import pytest
from test_provision import Node

pytestmark = pytest.mark.lab

# whatever NVIDIA's repository has, in one step; of Debian's own updates a dry run would fetch hundreds of MB
THEIRS = """#clear Unattended-Upgrade::Origins-Pattern;
Unattended-Upgrade::Origins-Pattern { "origin=NVIDIA"; };
Unattended-Upgrade::MinimalSteps "false";
"""
# a version of long ago, and nobody who asks for another one
OLDER = r"-e '/^Package: libnvidia-ml1$/,/^$/s/^Version: .*/Version: 1.0/' -e 's/libnvidia-ml1 ([^)]*)/libnvidia-ml1/g'"


@pytest.fixture(scope="module")
def node(provisioned: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Debian 12 with Python, no engine, and unattended-upgrades that may take what NVIDIA's repository has."""
    spec = {"toolkit": {"version": "none"}}
    lab = provisioned(spec, distro="debian:12", gpus=("h100",), engines=())
    made = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), spec)
    made.sh("apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install unattended-upgrades </dev/null")
    made.sh(f"printf '%s' '{THEIRS}' >/etc/apt/apt.conf.d/60theirs")
    made.json("provision", "--yes")
    return made


def upgrades(node: Node) -> str:
    return node.sh("unattended-upgrade --dry-run --debug 2>&1")


@pytest.mark.timeout(1200)
def test_libraries_that_nobody_holds_are_passed_by_too(node: Node) -> None:
    """A stand-in of an older version takes the place of the library: the newer one is in the repository."""
    node.sh(f"sed -i {OLDER} /var/lib/dpkg/status")
    assert "libnvidia-ml1" in node.sh("apt list --upgradable 2>/dev/null")
    printed = upgrades(node)
    assert "libnvidia-ml1" not in printed.partition("Packages that will be upgraded:")[2]
    node.sh("mv /etc/apt/apt.conf.d/52gpunode-unattended-upgrades /root/fence")
    without = upgrades(node)
    node.sh("mv /root/fence /etc/apt/apt.conf.d/52gpunode-unattended-upgrades")
    assert "libnvidia-ml1" in without.partition("Packages that will be upgraded:")[2], "the fence is what does it"


def test_unattended_upgrades_stay_on(node: Node) -> None:
    assert node.sh("systemctl is-enabled unattended-upgrades").strip() == "enabled"


@pytest.mark.timeout(1200)
def test_a_fence_that_somebody_took_away_is_reported_by_verify_and_put_back(node: Node) -> None:
    node.sh("rm /etc/apt/apt.conf.d/52gpunode-unattended-upgrades")
    host = node.json("verify", "--no-smoke", exit=3)
    assert [c["id"] for c in host["checks"] if "52gpunode-unattended-upgrades" in c["message"]] == [
        "plan.driver.upgrades"
    ]
    node.json("provision", "--yes")
    assert "Package-Blacklist" in node.sh("cat /etc/apt/apt.conf.d/52gpunode-unattended-upgrades")
