"""Ansible alone, with the static playbooks, against a node that has nouveau on its GPU and no Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpunode.lab import Lab

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parent.parent.parent
Play = Callable[..., str]


@pytest.fixture(scope="module")
def node(lab_up: Callable[..., Lab]) -> Lab:
    return lab_up(nouveau=True, python=False)


@pytest.fixture(scope="module")
def play(node: Lab, tmp_path_factory: pytest.TempPathFactory) -> Play:
    """`play(PLAYBOOK, ARGUMENT…)`: the output of ansible-playbook, which has to succeed (or fail with `rc`)."""
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(node.inventory)]
    environment = os.environ | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(tmp_path_factory.mktemp("ansible"))}

    def run(playbook: Path | str, *arguments: str, rc: int = 0) -> str:
        words = [*command, str(playbook), "-e", f"gpunode_config={node.spec}", *arguments]
        done = subprocess.run(words, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stderr + done.stdout

    return run


def recap(output: str) -> dict[str, int]:
    return {key: int(count) for key, count in re.findall(r"(\w+)=(\d+)", output.rpartition("PLAY RECAP")[2])}


def test_detect_shows_the_gpu(play: Play) -> None:
    assert "10de:2330" in play("playbooks/detect.yml")


def test_verify_fails_before_provision_and_names_what_is_to_be_done(play: Play) -> None:
    assert "Install the NVIDIA driver" in play("playbooks/verify.yml", rc=2)


def test_check_mode_changes_nothing(node: Lab, play: Play) -> None:
    listing = "dpkg -l; find /etc /var/lib/gpunode -type f -exec sha256sum {} + 2>/dev/null | sort -k 2"
    before = node.run(node.nodes[0], listing).stdout
    output = play("playbooks/provision.yml", "--check", "--diff")
    assert recap(output)["changed"] > 0
    assert "install nvidia-container-toolkit " in output, "packages with their versions"
    assert "because:" in output and "Install the NVIDIA driver" in output, "the plan with its reasons"
    assert node.run(node.nodes[0], listing).stdout == before


def test_provision_then_nothing_to_do_then_verify(play: Play) -> None:
    assert recap(play("gpunode.node.provision"))["changed"] > 0
    again = recap(play("gpunode.node.provision"))
    assert again["changed"] == 0 and again["skipped"] > 5, "parts with nothing to do are skipped"
    assert "The node is what the spec asks for" in play("playbooks/verify.yml")


def test_a_gpu_in_use_by_an_old_driver_takes_a_reboot(node: Lab, play: Play, tmp_path: Path) -> None:
    version = node.run(node.nodes[0], "cat /sys/module/nvidia/version").stdout.strip()
    # a file beside the devices counts as they do; they themselves cannot be opened in a lab node
    hold = "systemd-run --unit=busy sh -c 'exec 5>/dev/nvidia-busy; sleep 600'; sleep 1"
    node.run(node.nodes[0], f"{hold}; echo 535.54.03 >/sys/module/nvidia/version")
    before = node.run(node.nodes[0], "cat /proc/sys/kernel/random/boot_id").stdout
    playbook = tmp_path / "reboot.yml"
    activate = f"{{load: [nvidia], version: '{version}', reboot: if-needed, services: [nvidia-persistenced]}}"
    playbook.write_text(f"""
- hosts: all
  gather_facts: false
  tasks:
    - gpunode.node.activate:
        activate: {activate}
""")
    output = play(playbook, "-v")
    after = node.run(node.nodes[0], "cat /proc/sys/kernel/random/boot_id").stdout
    assert f"rebooted: nvidia 535.54.03 is loaded, {version} is wanted" in output
    assert after not in ("", before)
    assert recap(play(playbook))["changed"] == 0
