"""rollback of a driver branch, on each family: up and down, at once and after an interruption."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from undo_node import Node

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

FAMILIES = ["debian:12", "ubuntu:24.04", "rocky:8", "rocky:9", "rocky:10", "sles:15"]
OLD, NEW = {"branch": "580"}, {"branch": "595"}


@pytest.fixture(scope="module", params=FAMILIES)
def node(
    request: pytest.FixtureRequest, lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    name = f"undo-{re.sub(r'[^a-z0-9]', '', request.param)}"
    with lab_up(name=name, distro=request.param, gpus=("h100",), engines=("docker",)) as lab:
        yield Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"))


def loaded(node: Node) -> str:
    return node.sh("cat /sys/module/nvidia/version; systemctl is-active nvidia-persistenced || true")


def test_a_branch_goes_up_and_comes_back(node: Node) -> None:
    node.provision(driver=OLD)
    old = node.photo()
    assert loaded(node) == "580.178.04\nactive\n"
    node.provision(driver=NEW)
    assert loaded(node) == "595.91.07\nactive\n"
    done = node.json("rollback", "--yes")
    assert loaded(node) == "580.178.04\nactive\n", done
    assert node.differs(old) == ""


@pytest.mark.parametrize("at", ["packages", "state"])
def test_an_upgrade_that_was_cut_off_and_went_on_is_one_run(node: Node, at: str) -> None:
    """Killed in the middle of its packages, or behind them; the next run goes on with it."""
    old, runs = node.photo(), node.runs()
    node.spec_of(driver=NEW)
    node.cut_off("provision", at, controller=True, shell=True)
    node.provision(driver=NEW)
    assert len(node.runs()) == len(runs) + 1
    done = node.json("rollback", "--yes")
    assert loaded(node) == "580.178.04\nactive\n", done
    assert node.differs(old) == ""
    assert node.runs() == runs


@pytest.mark.parametrize("node", ["debian:12"], indirect=True)
def test_an_upgrade_that_was_stopped_by_ctrl_c_and_resumed_is_one_run(node: Node) -> None:
    node.has(driver=OLD)
    old, runs = node.photo(), node.runs()
    node.spec_of(driver=NEW)
    assert "gpunode runs resume" in node.interrupt("provision", "packages")
    node.resume()
    assert loaded(node) == "595.91.07\nactive\n"
    assert len(node.runs()) == len(runs) + 1
    node.json("rollback", "--yes")
    assert loaded(node) == "580.178.04\nactive\n"
    assert node.differs(old) == ""
    assert node.runs() == runs


def test_a_branch_goes_down_and_comes_back(node: Node) -> None:
    node.json("uninstall", "--yes")
    node.provision(driver=NEW)
    new = node.photo()
    node.provision(driver=OLD)
    assert loaded(node) == "580.178.04\nactive\n"
    node.json("rollback", "--yes")
    assert loaded(node) == "595.91.07\nactive\n"
    assert node.differs(new) == ""


CDI = "/var/run/cdi/nvidia.yaml"


@pytest.mark.parametrize("node", ["debian:12"], indirect=True)
def test_the_cdi_specification_goes_with_the_toolkit_and_comes_back_with_it(node: Node) -> None:
    there = f"sleep 3; grep -c nvidia.com/gpu {CDI} 2>/dev/null || true"  # nvidia-cdi-refresh makes it in its own time
    node.has(driver=NEW)
    node.json("uninstall", "--part", "toolkit", "--part", "runtime", "--yes")
    without = node.photo()
    assert node.sh(there) == ""
    node.has(driver=NEW)
    assert node.sh(there) != ""
    node.json("rollback", "--yes")
    assert node.sh(there) == ""
    assert node.differs(without) == ""


NOUVEAU = "/etc/modprobe.d/gpunode-nouveau.conf"


@pytest.mark.parametrize("node", ["debian:12"], indirect=True)
def test_what_another_tool_writes_back_during_an_uninstall_stays_and_is_named(node: Node) -> None:
    node.has(driver=NEW)
    node.sh(f"cp {NOUVEAU} /root/again")
    node.sh(f"echo 'DPkg::Post-Invoke {{ \"cp /root/again {NOUVEAU}\"; }};' >/etc/apt/apt.conf.d/zz-again")
    done = node.json("uninstall", "--yes")
    assert done["message"] == "as it was before gpunode, but for what the notes name", done
    assert done["extra"]["notes"] == [f"{NOUVEAU}: changed since: others need what is still in it"]
    node.sh("rm /etc/apt/apt.conf.d/zz-again /root/again")
    assert node.json("uninstall", "--yes")["message"].startswith("nothing to undo: ")
    assert node.sh(f"ls {NOUVEAU}").strip() == NOUVEAU
