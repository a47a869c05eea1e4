"""Nodes that are reached without ssh: the role applied for real through the connections podman and docker.

The plugins are of the collections containers.podman and community.docker, which the package `ansible` brings.  Docker's
command line, of this machine or of Debian's package, asks podman's own service, as on machines with podman-docker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from gpunode.lab import Lab
from gpunode.lab.machine import containers_conf

pytestmark = [pytest.mark.lab, pytest.mark.extended]

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
COLLECTIONS = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")
PLUGINS = ("containers.podman.podman", "community.docker.docker")
SITE = """
- hosts: all
  gather_facts: false
  roles: [gpunode.node.node]
  post_tasks:
    - ansible.builtin.debug: {msg: "parts {{ gpunode_result.parts | join(' ') }}"}
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    for name in PLUGINS:
        if subprocess.run([BIN / "ansible-doc", "-t", "connection", name], capture_output=True, check=False).returncode:
            pytest.skip(f"{name} is not installed (the package ansible has it)")
    folder = tmp_path_factory.mktemp("podman")
    if not shutil.which("docker"):  # unpacked, and not installed: its daemon is not asked for
        subprocess.run(["apt-get", "download", "-qq", "docker.io"], cwd=folder, check=True)
        subprocess.run(["dpkg-deb", "-x", *folder.glob("docker.io_*.deb"), folder], check=True)
    socket = folder / "socket"
    found = {
        "PATH": f"{os.environ['PATH']}:{folder / 'usr/bin'}",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_COLLECTIONS_PATH": f"{ROOT / 'gpunode/collection'}:{COLLECTIONS}",
        "CONTAINERS_CONF": str(containers_conf()),
        "DOCKER_HOST": f"unix://{socket}",
    }
    service = subprocess.Popen(
        ["podman", "system", "service", "--time=0", found["DOCKER_HOST"]], env=os.environ | found
    )
    for _ in range(100):
        if socket.exists():
            break
        time.sleep(0.2)
    yield found
    service.terminate()
    service.wait()


def test_the_role_and_the_command_work_through_podman_and_docker(
    environment: dict[str, str], lab_up: Callable[..., Lab], run_gpunode: Run, tmp_path: Path
) -> None:
    lab = lab_up(2)
    hosts = {node.container: {"ansible_connection": name} for node, name in zip(lab.nodes, PLUGINS, strict=True)}
    inventory, site = tmp_path / "hosts.yml", tmp_path / "site.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    site.write_text(SITE)
    words = [BIN / "ansible-playbook", "-i", inventory, site, "-e", f"gpunode_config={lab.spec}"]

    def play() -> str:
        done = subprocess.run(words, env=os.environ | environment, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        return done.stdout

    assert play().count('"msg": "parts driver toolkit runtime"') == 2
    again = play()
    assert again.count("changed=0") == 2 and again.count('"msg": "parts "') == 2
    asked = ("-i", inventory, "-c", lab.spec)
    assert run_gpunode("plan", *asked, env=environment).stdout.count("nothing to do") >= 1
    run_gpunode("verify", *asked, env=environment)
    run_gpunode("uninstall", *asked, "--yes", env=environment)
    assert [lab.run(node, "command -v nvidia-ctk").returncode for node in lab.nodes] == [1, 1]
