"""Debian's own driver, real packages of it: as far as a kernel goes that is another one than the node's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_provision import Node

from gpunode.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.real_driver, pytest.mark.timeout(2400)]

# release, flavour, the branch that Debian has there; its open modules are refused: those of 12 are older than its user
# space, those of 13 do not build for its kernel
CASES = [("debian:13", "proprietary", "550."), ("debian:12", "proprietary", "535.")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case[:2]))
def case(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    found: tuple[str, str, str] = request.param
    return found


@pytest.fixture(scope="module")
def node(
    case: tuple[str, str, str], lab_up: Callable[..., Lab], run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> Node:
    """A node with Debian's non-free packages, after a provision that could not load the module."""
    distro, flavour, _ = case
    lab = lab_up(distro=distro, gpus=("h100",), engines=(), real_driver=True)
    own = {"driver": {"branch": "distro", "flavour": flavour}, "toolkit": {"version": "none"}}
    some = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), own)
    said = some.gpunode("provision", "--yes", exit=1)
    assert "modprobe nvidia failed: modprobe: ERROR: could not insert 'nvidia'" in said.stdout + said.stderr, said
    return some


def test_its_packages_are_installed_and_its_modules_built(case: tuple[str, str, str], node: Node) -> None:
    assert "stand-in" not in node.sh("dpkg-query -W -f '${Package} ${Description}\\n' '*nvidia*'")
    facts = node.json("detect")["facts"]
    [kernel] = facts["kernels"]
    driver = facts["driver"]["userspace"]
    assert driver.startswith(case[2]) and not facts["driver"]["loaded"]
    assert (kernel["module"], kernel["flavour"], kernel["dkms"]) == (driver, case[1], "installed")


def test_mps_is_there_and_answers(node: Node) -> None:
    ask = "get_default_active_thread_percentage"
    said = node.sh(
        f"nvidia-cuda-mps-control -d; echo {ask} | nvidia-cuda-mps-control; echo quit | nvidia-cuda-mps-control"
    )
    assert "100.0" in said.split()


def test_without_a_module_its_programs_say_so_and_doctor_names_it(node: Node) -> None:
    assert node.sh("nvidia-smi >/dev/null; echo $?").strip() == "9"
    node.sh("systemctl restart nvidia-persistenced || true")
    assert "Failed to query NVIDIA devices" in node.sh("journalctl -u nvidia-persistenced --no-pager")
    findings = {finding["id"]: finding["root"] for finding in node.json("doctor", exit=1)["findings"]}
    assert not findings["smi-cannot-communicate"] and not findings["persistenced-fail"]
    assert {name for name, root in findings.items() if root} & {"module-not-loaded", "modprobe-not-found"}, findings
    failed = {
        check["id"] for check in node.json("verify", "--no-smoke", exit=1)["checks"] if check["status"] == "failed"
    }
    assert failed == {"driver.loaded"}
