"""gpunode.pyz as `make release` builds it, on nodes with Python 3.11 to 3.14, without pip and without a network."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_node import DaemonNode

from gpunode import __version__

pytestmark = [pytest.mark.lab, pytest.mark.extended]

ROOT = Path(__file__).parents[2]
ALONE = "cd /root && unshare --net python3 -I gpunode.pyz"
LEFT = "find / -xdev -newer /root/before -type f -not -path '/proc/*' -not -path '/run/*' -not -path '/var/log/*'"


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    target = tmp_path_factory.mktemp("dist")
    for command in ("build", "pyz"):
        done = subprocess.run(
            [sys.executable, str(ROOT / ".ci/release.py"), command, str(target)],
            env=os.environ | {"SOURCE_DATE_EPOCH": "1790000000"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return (target / "gpunode.pyz").read_bytes()


@contextlib.contextmanager
def node_with(lab_up: Any, pyz: bytes, distro: str, name: str, **more: Any) -> Iterator[DaemonNode]:
    with lab_up(1, name=name, distro=distro, gpus=("h100",), **more) as lab:
        node = DaemonNode(lab)
        node.sh("command -v python3 || { apt-get -qq update && apt-get -qq install python3; } >/dev/null")
        node.put("/root", {"gpunode.pyz": pyz})
        # busybox's shell asks its own uname, which knows the kernel of this machine and not the node's
        node.put("/usr/local/bin", {"busybox": b"#!/bin/sh\nexit 127\n"})
        node.sh("chmod 755 /usr/local/bin/busybox")
        yield node


@pytest.mark.parametrize(
    ("distro", "python"),
    [("debian:12", "3.11"), ("ubuntu:24.04", "3.12"), ("debian:13", "3.13"), ("ubuntu:26.04", "3.14")],
)
def test_it_works_without_pip_and_network_and_leaves_the_archive_and_its_cache(
    lab_up: Any, pyz: bytes, distro: str, python: str
) -> None:
    with node_with(lab_up, pyz, distro, f"t-pyz-{python.replace('.', '')}") as node:
        assert f"python {python}." in node.sh(f"{ALONE} version")
        for words in ("detect --local", "plan --local --no-check-repositories", "doctor --local", "--help"):
            done = node.run(f"{ALONE} {words}")
            codes = (1,) if "doctor" in words else (0, 3)  # doctor finds that there is no driver
            assert done.returncode in codes and "Traceback" not in done.stderr, done.stdout + done.stderr
        done = node.run(f"{ALONE} verify --local --no-smoke")
        assert done.returncode == 1 and "driver.loaded" in done.stdout, done.stdout + done.stderr  # no driver yet
        node.sh("rm -rf /root/.cache /root/.local && touch /root/before && sleep 1")
        done = node.run(f"{ALONE} selftest --format json -o record.tar.gz")
        data = json.loads(done.stdout)
        commands = {c["id"]: c["status"] for c in data["checks"] if c["id"].startswith("command.")}
        assert len(commands) == 5 and set(commands.values()) == {"passed"}, data["checks"]
        others = ("/root/.cache/gpunode/pyz/", "/root/.cache/motd.legal-displayed")  # the latter is login's, on Ubuntu
        left = [path for path in node.sh(LEFT).split() if not path.startswith(others)]
        assert left == ["/root/record.tar.gz"]


def test_it_provisions_the_machine_that_it_lies_on(lab_up: Any, pyz: bytes) -> None:
    with node_with(lab_up, pyz, "debian:12", "t-pyz-provision", engines=("containerd",)) as node:
        node.put("/root", {"gpunode.yml": node.lab.spec.read_bytes()})
        done = node.run("cd /root && python3 -I gpunode.pyz provision --local --yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"gpunode {__version__}" in node.sh(f"{ALONE} version")
        done = node.run(f"{ALONE} verify --local")
        assert done.returncode == 0, done.stdout + done.stderr
