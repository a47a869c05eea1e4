"""Containerd settles while Docker starts: whatever ends in between, the engine or the controller, loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.lab import Lab

pytestmark = pytest.mark.lab
Gpunode = Callable[..., "subprocess.CompletedProcess[str]"]
FILES = ("/etc/containerd/config.toml", "/etc/docker/daemon.json")
SETTLES = "timeout 300 sh -c 'until ls /var/lib/gpunode/backup/*/settling >/dev/null 2>&1; do sleep 0.02; done'"


@pytest.fixture(scope="module")
def lab(provisioned: Callable[..., Lab], run_gpunode: Gpunode) -> Lab:
    """A node with driver and toolkit, whose engines have runc as their default."""
    made = provisioned()
    words(made, "runc")
    run_gpunode("provision", *where(made), "--yes")
    return made


def words(lab: Lab, default: str) -> None:
    spec = yaml.safe_load(lab.spec.read_text())
    engines = {name: {"default_runtime": default} for name in ("containerd", "docker")}
    lab.spec.write_text(yaml.safe_dump(spec | {"runtimes": engines}))


def where(lab: Lab) -> tuple[str, ...]:
    return "-i", str(lab.inventory), "-c", str(lab.spec)


def on(lab: Lab, command: str) -> str:
    done = lab.run(lab.nodes[0], command)
    assert done.returncode == 0, done
    return done.stdout


@contextmanager
def meanwhile(lab: Lab, act: Callable[[], Any]) -> Iterator[None]:
    """Act once containerd is left to settle, while the body runs."""
    on(lab, "rm -f /var/lib/gpunode/backup/*/settling")
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: (on(lab, SETTLES), act()))
        yield
        done.result()


def outcomes(lab: Lab) -> list[tuple[str, str]]:
    """(file, last phase) of each transaction on the engines' files, oldest first."""
    records = [json.loads(line) for line in on(lab, "cat /var/lib/gpunode/journal.jsonl").splitlines()]
    phases = {record["id"]: record["phase"] for record in records}
    begun = (r for r in records if r["op"] == "files" and r["phase"] == "intent")
    return [(f["path"], phases[r["id"]]) for r in begun for f in r["files"] if f["path"] in FILES]


def test_containerd_that_ends_while_docker_starts_gets_its_files_back_alone(lab: Lab, run_gpunode: Gpunode) -> None:
    before = on(lab, f"cat {FILES[0]}")
    words(lab, "nvidia")
    with meanwhile(lab, lambda: on(lab, "systemctl kill --signal=KILL containerd")):
        done = run_gpunode("provision", *where(lab), "--yes", exit=1)
    assert "containerd.service does not stay up with the new configuration" in done.stdout
    assert on(lab, f"cat {FILES[0]}") == before
    assert outcomes(lab)[-2:] == [(FILES[0], "undone"), (FILES[1], "done")]
    assert on(lab, "systemctl is-active containerd docker").split() == ["active", "active"]
    run_gpunode("provision", *where(lab), "--yes")
    assert outcomes(lab)[-1] == (FILES[0], "done")
    run_gpunode("verify", *where(lab))


def test_a_controller_that_is_killed_meanwhile_leaves_what_the_next_run_finishes(
    lab: Lab, run_gpunode: Gpunode, controller: dict[str, str]
) -> None:
    words(lab, "runc")
    command = [sys.executable, "-m", "gpunode", "provision", *where(lab), "--yes"]
    process = subprocess.Popen(command, env=controller, stdout=subprocess.DEVNULL, start_new_session=True)
    with meanwhile(lab, lambda: os.killpg(process.pid, signal.SIGKILL)):
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert (FILES[0], "intent") in outcomes(lab)
    run_gpunode("provision", *where(lab), "--yes")
    assert {phase for _, phase in outcomes(lab)} <= {"done", "undone"}
    assert all("nvidia" not in line for line in on(lab, f"grep default {' '.join(FILES)}").splitlines())
    run_gpunode("verify", *where(lab))


def test_all_of_it_can_be_undone(lab: Lab, run_gpunode: Gpunode) -> None:
    run_gpunode("uninstall", "-i", str(lab.inventory), "--yes")
    assert "nvidia" not in on(lab, f"cat {' '.join(FILES)} 2>/dev/null || :")
    assert Path(FILES[0]).name in on(lab, "ls /etc/containerd")
