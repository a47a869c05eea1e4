"""`ansible-runner transmit | worker | process` with the shards of a plan: the worker has gpunode, Ansible and ssh."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpunode.lab import Lab

pytestmark = pytest.mark.lab

RUNNER = str(Path(sys.executable).with_name("ansible-runner"))


def send(shard: Path, worker: Path) -> subprocess.CompletedProcess[str]:
    """The pipe of docs/fleet.md; the worker knows nothing of `shard`."""
    pipe = (
        f"'{RUNNER}' transmit '{shard}' -p playbook.yml"
        f" | '{RUNNER}' worker --private-data-dir '{worker}'"
        f" | '{RUNNER}' process '{shard}'"
    )
    return subprocess.run(["bash", "-o", "pipefail", "-c", pipe], capture_output=True, text=True, check=False)


def test_two_shards_make_two_nodes_and_the_controller_sees_it(
    lab_up: Callable[..., Lab], run_gpunode: Callable[..., Any], tmp_path: Path
) -> None:
    lab = lab_up(2, engines=("containerd",))
    words = ("-i", str(lab.inventory), "-c", str(lab.spec))
    run_gpunode("plan", *words, "-o", tmp_path / "plan", "--shards", "2", exit=3)
    shards = sorted((tmp_path / "plan/shards").iterdir())
    assert [shard.name for shard in shards] == ["1", "2"]

    first = send(shards[0], tmp_path / "worker1")
    assert first.returncode == 0, first.stdout + first.stderr
    left = json.loads(run_gpunode("plan", *words, "--format", "json", exit=3).stdout)["hosts"]
    assert sorted(bool(host["steps"]) for host in left) == [False, True]

    second = send(shards[1], tmp_path / "worker2")
    assert second.returncode == 0, second.stdout + second.stderr
    run_gpunode("plan", *words, exit=0)
    again = send(shards[1], tmp_path / "worker2")
    assert "failed=1" in again.stdout, "a plan that was carried out is stale, and preflight says so"
