"""A machine prepared before its GPU is there: nothing loaded, every kernel served, proven at the first boot with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_provision import Node, failed

from gpunode.lab import hardware

pytestmark = pytest.mark.lab

PREPARE = ("--for-gpu", "10de:2330", "--no-load")
NEWEST = "ls /boot/vmlinuz-* | sort -V | tail -n 1 | sed 's|.*vmlinuz-||'"


@pytest.fixture(scope="module")
def image(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Debian 12 with containerd and two kernels, no GPU, no Python."""
    lab = lab_up(distro="debian:12", gpus=("none",), engines=("containerd",), python=False)
    node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), {"cuda": {"versions": ["12.8"]}})
    node.sh("apt-get -qq update && apt-get -qq install linux-image-amd64 </dev/null")
    return node


def boot_with(node: Node, *gpus: str) -> None:
    """Put these cards in, and boot; the unit has ended when this returns."""
    [machine] = node.lab.nodes
    hardware.write_hardware(machine.hardware, gpus or ("none",), nouveau=False)
    node.reboot()


def check(host: dict[str, Any], name: str) -> tuple[str, str]:
    [found] = [c for c in host["checks"] if c["id"] == name]
    return found["status"], found["message"]


@pytest.mark.timeout(1200)
def test_a_machine_without_a_gpu_is_prepared_for_one_and_a_second_run_does_nothing(image: Node) -> None:
    nothing = image.json("provision", "--yes", exit=3)  # without a word about GPUs to come
    assert nothing["message"].startswith("no NVIDIA GPU on PCI")
    assert "nvidia" not in image.sh("dpkg -l")
    checked = image.json("provision", *PREPARE, "--check", exit=3)
    assert "nvidia" not in image.sh("dpkg -l; ls /usr/lib; ls /etc/systemd/system")
    done = image.json("provision", *PREPARE, "--yes")
    assert not failed(done)
    assert len(done["changed"]) >= len(checked["changed"])
    kernels = image.sh("ls /boot/vmlinuz-* | sed 's|.*vmlinuz-||'").split()
    assert len(kernels) == 2
    for kernel in kernels:
        assert image.sh(f"find /lib/modules/{kernel} -name 'nvidia.ko*'").strip()
    assert "nvidia" not in image.sh("lsmod; systemctl list-units --state=active --no-legend 'nvidia*' 'gpunode*'")
    assert image.sh("systemctl is-enabled gpunode-firstboot nvidia-persistenced").split() == ["enabled"] * 2
    assert image.json("provision", *PREPARE, "--yes")["changed"] == []
    verified = image.json("verify", *PREPARE)
    assert check(verified, "image.first-boot") == (
        "not-proven",
        "prepared, not proven: it has not booted with a GPU since",
    )
    assert check(verified, "plan.empty")[0] == "passed"


@pytest.mark.timeout(1200)
def test_a_boot_without_a_gpu_waits_for_the_next_one(image: Node) -> None:
    boot_with(image)
    assert "no NVIDIA GPU on PCI at this boot" in check(image.json("verify", *PREPARE), "image.first-boot")[1]
    assert image.sh(
        "systemctl is-enabled gpunode-firstboot; systemctl is-failed gpunode-firstboot || true"
    ).split() == [
        "enabled",
        "inactive",
    ]


@pytest.mark.timeout(1200)
def test_a_card_that_the_driver_does_not_drive_is_reported_and_tried_again(image: Node) -> None:
    boot_with(image, "v100")  # only proprietary modules drive it, open ones were prepared
    host = image.json("verify", *PREPARE, exit=1)
    assert image.sh("systemctl is-enabled gpunode-firstboot; systemctl is-failed gpunode-firstboot").split() == [
        "enabled",
        "failed",
    ]
    status, message = check(host, "image.first-boot")
    assert status == "failed" and "could not insert 'nvidia'" in message


@pytest.mark.timeout(1200)
def test_the_first_boot_with_the_gpu_loads_the_driver_proves_it_and_ends(image: Node) -> None:
    boot_with(image, "h100", "h100")
    assert image.sh("uname -r").strip() == image.sh(NEWEST).strip()
    host = image.json("verify", *PREPARE)
    status, message = check(host, "image.first-boot")
    assert status == "passed" and "on 2 GPU(s)" in message
    assert not failed(host)
    assert {"driver.smi", "containerd.cri-nvidia", "cuda.nvcc-12.8"} <= {c["id"] for c in host["checks"]}
    assert image.sh("systemctl is-enabled gpunode-firstboot || true").strip() == "disabled"
    assert not failed(image.json("verify"))  # also for a spec that says nothing of the image
    record = image.sh("cat /var/lib/gpunode/first-boot")
    boot_with(image, "h100", "h100")
    assert image.sh("cat /var/lib/gpunode/first-boot") == record, "it runs once"


def test_the_page_names_what_is_left_on_the_machine(image: Node) -> None:
    page = (Path(__file__).parents[2] / "docs/provision.md").read_text()
    for path in ("/usr/lib/gpunode/first-boot", "/var/lib/gpunode/first-boot"):
        assert path in page
        image.sh(f"test -e {path}")
