"""The payload of `make test-gpu`, whole, on a node whose GPU is a stub: all but what computes.

With a cluster where GPUNODE_KUBERNETES names a folder of its programs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import FOLDER

from gpunode.lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not (Path(os.environ.get("GPUNODE_VENDOR", "/nonexistent")) / "nvidia-ctk").is_file(),
        reason="GPUNODE_VENDOR names no folder with NVIDIA's nvidia-ctk",
    ),
]

BUILD = Path(__file__).parents[1] / "gpu/build.py"
SPEC = {"driver": {"branch": "580", "modules": "precompiled"}}
# CUDA has no device there, and busybox asks this machine's kernel past the node's stub of uname
NOT_HERE = {"machine.selftest", "node.computes"}
WAYS = ("containerd.binary.gpus", "containerd.cri-nvidia.gpus", "containerd.cri-default")

LEFT = "ls -A /var/tmp; find /sys/fs/cgroup -name 'gpunode-trial*'; nvidia-smi -q | grep -v Timestamp"


def test_the_trial_of_a_physical_gpu_runs_whole_on_a_faked_one(provisioned: Callable[..., Lab], tmp_path: Path) -> None:
    subprocess.run((sys.executable, BUILD, tmp_path), check=True)
    assert all(path.stat().st_size <= 40 << 20 for path in tmp_path.glob("part.*"))
    lab = provisioned(
        SPEC,
        distro="ubuntu:24.04",
        engines=("containerd",),
        gpus=("h100",),
        name="t-gpu",
        vendor=os.environ["GPUNODE_VENDOR"],
    )
    [node] = lab.nodes
    with subprocess.Popen(("tar", "-C", tmp_path, "-cf", "-", "."), stdout=subprocess.PIPE) as packed:
        put = ("ssh", "-F", lab.ssh_config, node.name, "mkdir /var/tmp/gpu && tar -C /var/tmp/gpu -xf -")
        subprocess.run(put, stdin=packed.stdout, check=True)
    before = lab.run(node, LEFT).stdout
    done = lab.run(node, "cd /var/tmp/gpu && sh run.sh /root/record.tar.gz")
    rows = {tuple(line.split()[: 3 if line.startswith("not") else 2]) for line in done.stdout.splitlines()[:-1]}
    failed = {words[-1] for words in rows if words[0] == "failed"}
    assert failed <= NOT_HERE, done.stdout
    assert {("passed", name) for name in ("node.provision", "node.second-run", "node.uninstall")} <= rows, done.stdout
    assert "card.settings-after        10 settings as before" in done.stdout
    if FOLDER:
        cluster = {("passed", "cluster.start"), ("passed", "cluster.whole"), ("passed", "cluster.time-slicing")}
        assert cluster <= rows, done.stdout
    for way in WAYS:
        assert f"verify {way} " in done.stdout
    listed = lab.run(node, "tar -tzf /root/record.tar.gz").stdout.split()
    assert {"results.json", "record.json", "node-verify.json"} <= set(listed)
    assert node.name not in lab.run(node, "tar -xzOf /root/record.tar.gz").stdout, "the record is redacted"
    assert lab.run(node, LEFT).stdout == before
