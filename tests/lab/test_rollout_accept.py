"""rollout.accept on a lab node with eight stub GPUs, and an nvbandwidth that prints what a real one printed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.lab import Lab

pytestmark = pytest.mark.lab

PRINTED = (Path(__file__).parents[1] / "cases/accept/nvbandwidth-0.10-8-h100.case").read_text().partition("---\n")[2]


def tool(lab: Lab, printed: str, before: str = "") -> None:
    body = f"#!/bin/sh\n{before}\ncat <<'END'\n{printed}END\n"
    put = f"cat >/usr/local/bin/nvbandwidth <<'STUB'\n{body}STUB\nchmod 755 /usr/local/bin/nvbandwidth"
    assert lab.run(lab.nodes[0], put).returncode == 0


def test_a_slow_node_has_failed_until_it_is_fast_also_after_a_kill(
    lab_up: Callable[..., Lab], run_gpunode: Any, controller: dict[str, str], tmp_path: Path
) -> None:
    lab = lab_up(1, name="t-gate", distro="debian:12", gpus=("h100",) * 8, engines=("containerd",))
    spec = tmp_path / "gpunode.yml"
    spec.write_text(yaml.safe_dump(yaml.safe_load(lab.spec.read_text()) | {"rollout": {"accept": "quick"}}))

    def host(*words: object, exit: int) -> str:
        done = run_gpunode(*words, "--yes", "--format", "json", exit=exit)
        [one] = json.loads(done.stdout)["hosts"]
        return str(one["message"])

    provision = ("provision", "-i", lab.inventory, "-c", spec)
    tool(lab, PRINTED.replace(" 55.", " 15."))
    message = host(*provision, exit=1)
    assert "but not accepted: accept.h2d: GPU 0: 15.37 GB/s" in message and "below 26" in message
    tool(lab, PRINTED, before="sleep 300")
    command = [sys.executable, "-m", "gpunode", "runs", "resume", "last", "--yes"]
    with subprocess.Popen(command, env=controller, stdin=subprocess.DEVNULL) as killed:
        runs = "pgrep -f '[/]usr/local/bin/nvbandwidth'"
        until = time.monotonic() + 120
        while lab.run(lab.nodes[0], runs).returncode:
            assert time.monotonic() < until and killed.poll() is None
            time.sleep(0.5)
        killed.send_signal(signal.SIGKILL)
    while not lab.run(lab.nodes[0], runs).returncode:
        assert time.monotonic() < until, "the tool goes on without its controller"
        time.sleep(0.5)
    tool(lab, PRINTED)
    assert host("runs", "resume", "last", exit=0).startswith("nothing to do; accepted")
    assert host(*provision, exit=0) == "nothing to do"
