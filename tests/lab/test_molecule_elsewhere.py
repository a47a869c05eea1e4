"""A project elsewhere tests with the lab by Molecule: its own folder and playbook, our roles from the wheel."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpunode import lab
from gpunode.lab.machine import podman
from gpunode.lab.network import network_name

pytestmark = [pytest.mark.lab, pytest.mark.extended]

FILES = {
    "nodes.yml": "- {name: t-elsewhere, distro: 'debian:12', engines: [containerd], gpus: [h100]}\n",
    "molecule/default/molecule.yml": """---
dependency:
  name: galaxy
  enabled: false
driver:
  name: podman
provisioner:
  name: ansible
  config_options:
    defaults:
      gathering: explicit
verifier:
  name: ansible
""",
    "molecule/default/converge.yml": """---
- name: Converge
  hosts: all
  gather_facts: false
  tasks:
    - name: Write a file of mine
      ansible.builtin.raw: sh -c 'test -e /etc/mine || { touch /etc/mine; echo made; }'
      register: made
      changed_when: "'made' in made.stdout"
    - name: Set the GPU up
      ansible.builtin.import_role:
        name: gpunode.node.node
      vars:
        gpunode_spec:
          runtimes:
            containerd: {manage: install}
            docker: {manage: ignore}
""",
    "molecule/default/verify.yml": """---
- name: Verify
  hosts: all
  gather_facts: false
  tasks:
    - name: See the GPU
      ansible.builtin.raw: nvidia-smi -L
      register: seen
      changed_when: false
      failed_when: "'H100' not in seen.stdout"
""",
}


def test_a_project_elsewhere_tests_with_lab_nodes(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    gpunode = [sys.executable, "-m", "gpunode"]
    prepared = subprocess.run(
        [*gpunode, "lab", "molecule", "nodes.yml", "-o", ".cache/base.yml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    try:
        name, _, value = prepared.stdout.strip().removeprefix("export ").partition("=")
        environment = os.environ | {name: shlex.split(value)[0]}
        done = subprocess.run(
            ["molecule", "-c", ".cache/base.yml", "test"], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        assert not podman("network", "exists", network_name(), check=False).returncode, "it is the lab's to remove"
    finally:
        lab.down(["t-elsewhere"])
