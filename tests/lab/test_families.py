"""The main job where packages are not deb: the real dnf, zypper and pacman, and no Python on the node's PATH."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.core.model import ENDS

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

# what gpunode may touch, and what is installed; logs and caches aside
TREE = (
    "find /etc /boot /lib/modules /var/lib/dkms /var/lib/gpunode -xdev -type f"
    " -not -path '/etc/machine-id' -not -name lock -printf '%p %m %u %T@\\n' 2>/dev/null;"
    " rpm -qa 2>/dev/null; pacman -Q 2>/dev/null; true"
)


# what is asked for later, one after the other: with the version and the licence of the modules that come of it
CHANGES: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"branch": "595"}, "595.91.07", "Dual MIT/GPL"),
    ({"version": "580.178.04"}, "580.178.04", "Dual MIT/GPL"),
    ({"branch": "580", "flavour": "proprietary"}, "580.178.04", "NVIDIA"),
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One distribution: the driver that is asked for first, and what the file of its locks has then."""

    distro: str
    driver: dict[str, Any]
    locks: str
    lock: str
    changes: tuple[tuple[dict[str, Any], str, str], ...] = CHANGES
    lacks: str = "580.1.1"  # a version that the repository does not have


FAMILIES = (
    *(
        Family(
            distro=f"rocky:{release}",
            driver={"version": "580.95.05"},
            locks="/etc/dnf/plugins/versionlock.list",
            lock=f"nvidia-open-3:580.95.05-1.el{release}.*",
        )
        for release in (8, 10, 9)
    ),
    Family(
        distro="fedora:43",  # whose repository has one branch
        driver={},
        locks="/etc/dnf/versionlock.toml",
        lock='name = "nvidia-open"',
        changes=(({"flavour": "proprietary"}, "595.91.07", "NVIDIA"), ({}, "595.91.07", "Dual MIT/GPL")),
        lacks="595.1.1",
    ),
    Family(
        distro="sles:15",
        driver={"version": "580.95.05"},
        locks="/etc/zypp/locks",
        lock="solvable_name: nvidia-open",
    ),
    Family(
        distro="arch",
        driver={},
        locks="/etc/pacman.d/gpunode-hold.conf",
        lock="IgnorePkg = linux nvidia-open nvidia-utils",
    ),
)


class Node:
    """The family's node, with gpunode on it."""

    def __init__(self, family: Family, lab: Any, run: Any, tmp: Path) -> None:
        self.family, self.lab, self._run = family, lab, run
        self.spec = tmp / "gpunode.yml"
        self.set(family.driver)

    def set(self, driver: dict[str, Any]) -> None:
        base = yaml.safe_load(self.lab.spec.read_text())
        self.spec.write_text(yaml.safe_dump({**base, "driver": driver}))

    def json(self, verb: str, *args: object, exit: int = 0) -> dict[str, Any]:
        config = () if verb == "doctor" else ("-c", self.spec)
        done: subprocess.CompletedProcess[str] = self._run(
            verb, "-i", self.lab.inventory, *config, *args, "--format", "json", exit=exit
        )
        [host] = json.loads(done.stdout)["hosts"]
        return dict(host)

    def tree(self) -> set[str]:
        return set(self.sh(TREE).splitlines())

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.distro)
def node(request: Any, lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    family = request.param
    lab = lab_up(distro=family.distro, engines=("containerd",), name=f"t-fam-{family.distro.replace(':', '')}")
    return Node(family, lab, run_gpunode, tmp_path_factory.mktemp("spec"))


def failed(host: dict[str, Any]) -> list[str]:
    return [f"{c['id']}: {c['message']}" for c in host["checks"] if c["status"] in ENDS]


def installed(lines: list[str], verb: str) -> set[str]:
    """The names of packages that lines such as «install nvidia-open 580.95.05-*» speak of."""
    return {line.split()[1] for line in lines if line.startswith(f"{verb} ")}


def test_a_new_node_comes_to_proven_pods_and_a_second_run_does_nothing(node: Node) -> None:
    assert node.sh("command -v python3 apt-get dpkg dkms gcc cc make || true") == ""
    before = node.tree()
    plan = node.json("plan", exit=3)
    assert plan["problems"] == []
    assert ("driver.repositories" in [step["id"] for step in plan["steps"]]) == node.family.distro.startswith("rocky")
    checked = node.json("provision", "--check", exit=3)
    assert node.tree() ^ before == set(), "plan and check mode change nothing"
    done = node.json("provision", "--yes")
    assert not failed(done)
    said = node.json("doctor")
    assert (said["findings"], said["xids"]) == ([], []), "the doctor has nothing to say of a fresh node"
    printed = installed(checked["changed"], "install")
    assert printed and printed <= installed(done["changed"], "installed")
    after = node.tree()
    assert after - before
    again = node.json("provision", "--yes")
    assert again["changed"] == [] and "nothing to do" in again["message"]
    assert node.tree() ^ after == set(), "a second run changes no file, not even its time"
    verified = node.json("verify")
    assert not failed(verified)
    assert {"driver.smi", "toolkit.cli", "containerd.cri-nvidia.gpus"} <= {c["id"] for c in verified["checks"]}


def test_the_driver_is_held_as_the_distribution_does_it(node: Node) -> None:
    assert node.family.lock in node.sh(f"cat {node.family.locks}").splitlines()


def test_the_driver_is_upgraded_and_switches_branch_and_flavour(node: Node) -> None:
    if node.family.distro == "arch":
        pytest.skip("Arch has one branch at a time, with open modules only")
    for driver, version, licence in node.family.changes:
        node.set(driver)
        if driver == {"branch": "595"}:
            assert node.json("provision", "--check", exit=3)["changed"]
        done = node.json("provision", "--yes")  # which ends with 0 where the plan is empty afterwards
        assert not failed(done), driver
        assert node.sh("cat /sys/module/nvidia/version").strip() == version
        assert (
            node.sh("for k in /lib/modules/*; do modinfo -k ${k##*/} -F license nvidia; done").split("\n")[0] == licence
        )
        assert ("Open Kernel Module" in node.sh("cat /proc/driver/nvidia/version")) == (licence != "NVIDIA")


def test_a_version_that_the_repository_lacks_is_said_and_nothing_is_touched(node: Node) -> None:
    if node.family.distro == "arch":
        pytest.skip("no version can be asked of Arch")
    before = node.tree()
    node.set({"version": node.family.lacks})
    host = node.json("provision", "--yes", exit=5)
    assert node.family.lacks in host["message"], host["message"]
    assert {line for line in node.tree() ^ before if "gpunode" not in line} == set()
