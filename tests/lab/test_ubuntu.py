"""Ubuntu nodes: NVIDIA's repository, modules that Canonical builds, a newer kernel, Ubuntu's unattended-upgrades."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_provision import Node, failed, make_it_so, passed

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]

PREBUILT = {"branch": "580", "modules": "precompiled"}


OLD = {"ubuntu:24.04": "6.8.0-138-generic", "ubuntu:22.04": "5.15.0-190-generic"}  # signed modules of 595.71.05
OLDEST_CUDA = {"ubuntu:26.04": "13.2"}  # of its repository; elsewhere 12.8


@pytest.fixture(scope="module", params=["ubuntu:24.04", "ubuntu:22.04", "ubuntu:26.04"])
def lab(request: pytest.FixtureRequest, lab_up: Callable[..., Any]) -> Any:
    """A node with containerd, and nouveau where its kernel has it: not before linux-modules-extra is there."""
    name = f"t-{re.sub(r'[^a-z0-9]', '', request.param)}"
    return lab_up(distro=request.param, engines=("containerd",), nouveau=True, name=name)


@pytest.fixture(scope="module")
def node(lab: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    cuda = OLDEST_CUDA.get(lab.nodes[0].distro, "12.8")
    return Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), {"cuda": {"versions": [cuda]}})


def lacking(node: Node, *names: str) -> set[str]:
    """Which of the packages the node does not have."""
    installed = node.sh("dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n' | sed -n 's/^ii *//p'").split()
    return set(names) - set(installed)


def test_a_new_node_has_no_more_than_a_cloud_image(node: Node) -> None:
    never = {
        "dkms",
        "gcc",
        "make",
        "linux-headers-generic",
        "linux-modules-extra-generic",
        "snapd",
        "ubuntu-drivers-common",
    }
    assert lacking(node, *never) == never
    assert node.sh("command -v gcc cc make dkms snap || true") == ""
    assert "nouveau" not in node.sh("find /lib/modules -name '*.ko*'")
    assert re.search(r"^VERSION_ID=\"2\d\.04\"$", node.sh("cat /etc/os-release"), re.M)


def test_unattended_upgrades_are_what_ubuntu_sets_up(node: Node) -> None:
    assert node.sh("systemctl is-enabled unattended-upgrades").strip() == "enabled"
    stated = node.sh("apt-config dump Unattended-Upgrade::Allowed-Origins APT::Periodic::Unattended-Upgrade")
    assert '"${distro_id}:${distro_codename}-security"' in stated
    assert 'APT::Periodic::Unattended-Upgrade "1";' in stated


def test_from_nvidias_repository_to_proven_pods(node: Node) -> None:
    cuda = OLDEST_CUDA.get(node.lab.nodes[0].distro, "12.8")
    make_it_so(node, {"driver.smi", "containerd.cri-nvidia", "containerd.cri-default", f"cuda.nvcc-{cuda}"})
    assert "620.70.06" in node.sh("dkms status")
    assert (
        "nvidia-driver-open"
        not in node.sh("unattended-upgrade --dry-run --debug 2>&1").partition("will be upgraded:")[2]
    )


def test_canonicals_modules_need_no_compiler_and_come_with_each_kernel(lab: Any, node: Node) -> None:
    lab.reset()
    node.set({"driver": PREBUILT})
    # for the kernel that runs by name; the metapackage brings the newest kernel with its own
    first = node.json("provision", "--yes")
    assert not failed(first) and {"driver.smi", "containerd.cri-nvidia"} <= passed(first)
    assert node.json("provision", "--yes")["changed"] == []
    assert lacking(node, "dkms", "gcc") == {"dkms", "gcc"}
    stubs = set(node.sh("dpkg-query -W -f '${Package} ${Maintainer}\\n' | sed -n 's/ gpunode lab .*//p'").split())
    assert not {name for name in stubs if re.fullmatch(r"nvidia-(compute-)?utils.*|libnvidia-(compute|cfg1).*", name)}
    assert "--no-persistence-mode" in node.sh("ps -o args= -C nvidia-persistenced"), "Canonical's own"
    running = node.sh("uname -r").strip()
    kernels = node.sh("cd /boot && echo vmlinuz-*").replace("vmlinuz-", "").split()
    for kernel in kernels:
        assert node.sh(f"modinfo -k {kernel} -F version nvidia") == "580.178.04\n", f"runs {running}"
        assert "srv-open/nvidia.ko" in node.sh(f"modinfo -k {kernel} -n nvidia")


@pytest.mark.parametrize("lab", ["ubuntu:24.04"], indirect=True)
def test_under_secure_boot_a_node_with_kernels_of_two_drivers_boots_into_the_one_that_has_modules(
    lab: Any, node: Node
) -> None:
    """It runs the older kernel, whose signed modules are of a driver that the archive has no more."""
    lab.reset()
    old = OLD["ubuntu:24.04"]
    variables = lab.nodes[0].hardware / "sys/firmware/efi/efivars"
    variables.mkdir(parents=True)
    (variables / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c").write_bytes(bytes([6, 0, 0, 0, 1]))
    running = node.sh("uname -r").strip()
    node.sh(f"apt-get update -qq && apt-get install -qq -y --no-install-recommends linux-image-{old} 2>&1")
    metapackages = "$(dpkg-query -W -f '${Package}\\n' 'linux-*virtual*')"
    node.sh(f"dpkg --purge {metapackages} linux-image-{running} linux-modules-{running} 2>&1")
    node.reboot()
    assert node.sh("uname -r").strip() == old
    node.set({})
    text = node.gpunode("plan", "-v", exit=3).stdout
    assert f"{old} runs and gets no modules of this driver" in text and "Secure Boot" in text
    done = node.json("provision", "--yes")
    assert not failed(done) and {"driver.smi", "containerd.cri-nvidia"} <= passed(done)
    assert node.sh("uname -r").strip() not in (old, running) and old in node.sh("ls /boot")
    assert node.json("provision", "--yes")["changed"] == [] and not failed(node.json("verify"))
    assert lacking(node, "dkms") == {"dkms"}
    node.sh("head -c -40 $(modinfo -n mlx5_core) >/root/unsigned.ko")
    assert "Key was rejected by service" in node.sh("insmod /root/unsigned.ko 2>&1 || true")


@pytest.mark.parametrize("lab", OLD, indirect=True)
def test_a_kernel_whose_signed_modules_are_of_an_older_driver_is_named_and_gets_none(lab: Any, node: Node) -> None:
    """The archive has 595.91.07 alone: no transaction gives both kernels their modules."""
    lab.reset()
    old = OLD[lab.nodes[0].distro]
    node.sh(f"apt-get update -qq && apt-get install -qq -y --no-install-recommends linux-image-{old} 2>&1")
    node.set({"driver": {"branch": "595", "modules": "precompiled"}})
    text = node.gpunode("plan", exit=3).stdout
    assert f"{old} gets no modules of this driver" in text and "595.71.05-1" in text
    assert not failed(node.json("provision", "--yes"))
    assert node.json("provision", "--yes")["changed"] == []
    assert node.sh(f"find /lib/modules/{old} -name nvidia.ko") == ""
    assert node.sh("modinfo -F version nvidia") == "595.91.07\n"
    assert lacking(node, f"linux-modules-nvidia-595-server-open-{old}")


@pytest.mark.parametrize("lab", ["ubuntu:26.04"], indirect=True)
def test_sudo_in_rust_is_known_and_ansible_takes_the_other_one(
    lab: Any, node: Node, run_gpunode: Any, tmp_path: Path
) -> None:
    """An account whose sudo asks for a password."""
    lab.reset()
    node.sh(
        "useradd -m -s /bin/bash ann; echo ann:secret | chpasswd; install -d -o ann /home/ann/.ssh;"
        "install -o ann /root/.ssh/authorized_keys /home/ann/.ssh/; echo 'ann ALL=(ALL) ALL' >/etc/sudoers.d/ann"
    )
    assert "sudo-rs" in node.sh("sudo --version")
    node.set({"driver": {"branch": "none"}})

    def as_ann(*words: Any, exit: int, **more: str) -> str:
        hosts = yaml.safe_load(lab.inventory.read_text())
        hosts["all"]["vars"] |= {"ansible_user": "ann", "ansible_become": True, **more}
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump(hosts))
        done = run_gpunode(*words, "-i", tmp_path / "hosts.yml", exit=exit)
        return str(done.stdout + done.stderr)

    provision = ("provision", "-c", node.spec, "--yes")
    assert "asks for a password" in as_ann("detect", exit=4)
    assert "wrong password" in as_ann("detect", ansible_become_password="other", exit=4)
    said = as_ann(*provision, ansible_become_password="secret", exit=4)
    assert "ansible_become_exe: sudo.ws" in said, "ansible-core that knows its question needs no other one"
    as_ann(*provision, ansible_become_password="secret", ansible_become_exe="sudo.ws", exit=0)
