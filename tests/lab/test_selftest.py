"""`gpunode selftest` on nodes with stub GPUs: healthy machines fail no check, and a broken driver fails its own."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_node import DaemonNode

pytestmark = pytest.mark.lab

# what the command imports; the node has the same Python as Debian 12
MODULES = (
    "gpunode click jinja2 markupsafe pynvml tomli tomlkit yaml attr attrs cattrs typing_extensions ahocorasick rich"
).split()
RUN = "cd /root && rm -f record.tar.gz && gpunode selftest --format json -o record.tar.gz"


def sources() -> Iterator[tuple[str, bytes]]:
    """The files of the modules, without what only the lab needs."""
    for module in MODULES:
        spec = importlib.util.find_spec(module)
        assert spec and spec.origin, module
        origin = Path(spec.origin)
        if not spec.submodule_search_locations:
            yield origin.name, origin.read_bytes()
            continue
        for path in sorted(origin.parent.rglob("*")):
            relative = path.relative_to(origin.parent)
            if path.is_file() and path.suffix not in (".so", ".pyc") and relative.parts[0] not in ("lab", "collection"):
                yield f"{module}/{relative}", path.read_bytes()


def node_with(provisioned: Any, *gpus: str, name: str) -> DaemonNode:
    """A node with these GPUs, provisioned, and gpunode on it."""
    node = DaemonNode(provisioned(name=name, distro="debian:12", gpus=gpus, like=("h100",), engines=("containerd",)))
    node.put("/opt/gpunode", dict(sources()))
    node.put("/usr/local/bin", {"gpunode": b'#!/bin/sh\nPYTHONPATH=/opt/gpunode exec python3 -m gpunode "$@"\n'})
    # busybox's shell asks its own uname, which knows the kernel of this machine and not the node's
    node.put("/usr/local/bin", {"busybox": b"#!/bin/sh\nexit 127\n"})
    node.sh("chmod 755 /usr/local/bin/gpunode /usr/local/bin/busybox")
    return node


def selftest(node: DaemonNode, *, exit: int) -> dict[str, dict[str, Any]]:
    """The checks by id; fails, showing all, when the command ends with another exit code."""
    done = node.run(RUN)
    assert done.returncode == exit, f"{done.returncode}\n{done.stdout}{done.stderr}"
    data = json.loads(done.stdout)
    assert data["seconds"] < 480
    return {check["id"]: check for check in data["checks"]}


def failed(checks: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    return {
        name: [check["message"], *check["details"]] for name, check in checks.items() if check["status"] == "failed"
    }


def passed(checks: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, check in checks.items() if check["status"] == "passed"}


READ = {
    "probe.shells", "driver.works", "facts.smi", "facts.lspci", "facts.sysfs", "smi.sysfs", "facts.proc", "smi.proc",
    "knowledge.pci-id", "knowledge.class", "knowledge.architecture", "knowledge.mig-capability",
    "knowledge.open-module", "knowledge.branch", "solver.accepts", "command.detect", "command.plan", "command.verify",
    "command.doctor", "command.report",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "gpus"), [("t-self-l4", ("l4",)), ("t-self-two", ("rtx3090", "a10")), ("t-self-h100", ("h100",) * 4)]
)
def test_a_node_passes_what_can_be_read_and_is_left_as_it_was(
    provisioned: Any, name: str, gpus: tuple[str, ...]
) -> None:
    node = node_with(provisioned, *gpus, name=name)
    tree = "find /etc /var/lib/gpunode -type f -not -name lock -exec sha256sum {} + | sort"
    before = node.sh(tree)
    checks = selftest(node, exit=0)
    assert failed(checks) == {} and passed(checks) >= READ
    assert node.sh(tree) == before
    names = node.sh("tar -tzf /root/record.tar.gz").split()
    assert "record/README.txt" in names and "record/nvidia-smi.xml" in names
    archive = node.sh("cd /root && tar -xzOf record.tar.gz")
    assert node.node.name not in archive
    uuids = node.sh("nvidia-smi --query-gpu=uuid --format=csv,noheader").split()
    assert [uuid for uuid in uuids if uuid in archive] == []


def test_mig_profiles_are_compared_and_a_broken_driver_is_named(provisioned: Any) -> None:
    node = node_with(provisioned, "a100", name="t-self-mig")
    node.sh("nvidia-smi -mig 1; nvidia-smi -r; nvidia-smi mig -lgip")
    checks = selftest(node, exit=0)
    assert "knowledge.mig-profiles" in passed(checks), checks

    node.sh("echo 580.1.1 >/lab/sys/module/nvidia/version")  # the libraries are others
    checks = selftest(node, exit=1)
    assert "driver.works" in failed(checks)
    assert "mismatch" in " ".join(failed(checks)["driver.works"])
    node.sh("rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; true")
    checks = selftest(node, exit=1)
    assert "driver.works" in failed(checks) and "facts.smi" not in failed(checks)
