"""Two GPUs as NVIDIA's own nvidia-smi speaks of them, healthy and ill: verify sees each, doctor names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_provision import Node

from gpunode.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

FIRST, SECOND = "0000:17:00.0", "0000:1e:00.0"
BRANCHES = {
    "550": "debian:13+non-free",
    "595": "debian:13",
}  # Debian's own driver, and the newest of NVIDIA's repository
IN_PROGRESS = {"fabric.state": "In Progress", "fabric.status": "N/A"}
JOINED = {"fabric.state": "Completed", "fabric.status": "Success"}

# what the second GPU says → what verify fails with, what doctor names
ILL = {
    "a row waits for its repair": ({"remapped_rows.pending": "Yes"}, "gpu.remap-pending", "reset-required"),
    "a row cannot be repaired": ({"remapped_rows.failure": "Yes"}, "gpu.remap-failure", "row-remap-failed"),
    "the fabric is in progress": (IN_PROGRESS, "fabric.state", "fm-state-in-progress"),
    "it requires a reset": ({"reset": "Yes"}, "gpu.fault", "reset-required"),
    "it is lost": ({"lost": "Yes"}, "gpu.count", "gpu-lost"),
    "a link is down": ({"nvlink.3": "down"}, "nvlink.down", "nvlink-inactive"),
    "all its links are down": ({"nvlink": "down"}, "nvlink.down", "nvlink-inactive"),
    "heat slows it down": ({"clocks.reasons": "0x40"}, "gpu.slowdown", "gpu-throttled"),
}


@pytest.fixture(scope="module", params=BRANCHES)
def node(
    request: pytest.FixtureRequest,
    lab_up: Callable[..., Lab],
    provisioned: Callable[..., Lab],
    run_gpunode: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Node]:
    """A node with a driver of that branch and no container engine."""
    distro, gpus, name = BRANCHES[request.param], ("h100", "h100"), f"t-smi-{request.param}"
    folder = tmp_path_factory.mktemp("spec")
    spec = {"driver": {"branch": "distro" if "non-free" in distro else request.param}, "toolkit": {"version": "none"}}
    if "non-free" in distro:  # of a kind of its own
        some = Node(lab_up(distro=distro, gpus=gpus, engines=(), name=name), run_gpunode, folder, spec)
        some.gpunode("provision", "--yes")
    else:
        lab = provisioned(spec, distro=distro, gpus=gpus, like=("h100",), engines=(), name=name)
        some = Node(lab, run_gpunode, folder, spec)
    assert some.sh("nvidia-smi --version").splitlines()[0].split()[-1].startswith(f"{request.param}.")
    assert "ELF" in some.sh("head -c 4 /usr/bin/nvidia-smi"), "NVIDIA's own"
    yield some


def make_ill(node: Node, *rows: tuple[str, str, str]) -> None:
    text = "".join("\t".join(row) + "\n" for row in rows)
    Path(node.lab.nodes[0].hardware / "standin-health").write_text(text)


def seen(node: Node) -> tuple[set[str], set[str]]:
    """The checks of verify that do not pass, and what doctor finds."""
    host = node.json("verify", "--no-smoke", exit=None)
    named = node.json("doctor", exit=None)
    wrong = {check["id"] for check in host["checks"] if check["status"] not in ("passed", "skipped")}
    return wrong, {finding["id"] for finding in named["findings"]}


def test_healthy_gpus_raise_no_alarm(node: Node) -> None:
    make_ill(node)
    assert seen(node) == (set(), set())


def test_healthy_gpus_with_a_fabric_raise_no_alarm(node: Node) -> None:
    make_ill(node, *((slot, field, value) for slot in (FIRST, SECOND) for field, value in JOINED.items()))
    assert seen(node) == (set(), set())


@pytest.mark.parametrize("ailment", ILL)
def test_an_ill_gpu_is_seen_by_verify_and_named_by_doctor(node: Node, ailment: str) -> None:
    fields, check, fault = ILL[ailment]
    make_ill(node, *((SECOND, field, value) for field, value in fields.items()))
    wrong, named = seen(node)
    assert fault in named, ailment
    assert check in wrong, ailment
