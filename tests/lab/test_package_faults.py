"""Trouble of every kind while packages are installed, by the command a user calls: with apt, and with dnf.

After each fault the message names it, the package manager works, and a later run converges.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from mirror import ExpiredKey, Mirror

from gpunode.core.items.package import locked_by, packages_request
from gpunode.core.remote import parse_outcome, program
from gpunode.node import script

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

OLD, NEW = "580.95.05", "580.178.04"
# the driver alone, then the toolkit as well
DRIVER = {"driver": {"version": OLD}, "toolkit": {"version": "none"}, "runtimes": {"containerd": {"manage": "ignore"}}}
TOOLKIT = DRIVER | {"toolkit": {}}
# the shells that read the scripts, before they can say that a command failed, and every process that they started
KILL = (
    "pkill -KILL -f '^(/bin/)?sh -s$'; for p in /proc/[0-9]*; do "
    "tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -q ^GPUNODE_IN= && kill -9 ${p#/proc/}; done; true"
)
INTENTS = """grep -c '"op":"packages","phase":"intent"' /var/lib/gpunode/journal.jsonl"""


@dataclass(frozen=True, kw_only=True)
class Manager:
    """A package manager: how its node is asked, and the words of its messages."""

    distro: str
    listed: str  # every package with its version, but EPEL, which a step before sets up
    usable: str  # prints nothing where the package manager and its database are whole
    prepare: str  # installs a second kernel, the newest, with its headers, and what builds modules
    lock: str
    disk: str  # what the message says of a full disk


MANAGERS = (
    Manager(
        distro="debian:12",
        listed="dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n' | grep ^.i",
        usable="dpkg --audit; apt-get check 2>&1 >/dev/null",
        prepare="apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq --no-install-recommends install "
        "linux-image-amd64 linux-headers-amd64 dkms >/dev/null 2>&1",
        lock="/var/lib/dpkg/lock-frontend",
        disk="No space left on device",
    ),
    Manager(
        distro="rocky:9",
        listed="rpm -qa | grep -v -e ^gpg-pubkey -e ^epel-release | sort",
        usable="rpm -qa 2>&1 >/dev/null; dnf -q -C check 2>&1 | grep -v kernel",
        prepare="dnf -q -y install kernel-devel-matched >/dev/null 2>&1",
        lock="/var/lib/rpm/.rpm.lock",
        disk="more space on the /usr/src filesystem",
    ),
)


class Node:
    """The node, with gpunode on it, and its mirror."""

    def __init__(self, manager: Manager, lab: Any, run: Any, tmp: Path) -> None:
        self.manager, self.lab, self._run, self.spec = manager, lab, run, tmp / "gpunode.yml"
        self.sources = yaml.safe_load(lab.spec.read_text())["sources"]
        upstream = "/".join(self.sources["nvidia-cuda"]["url"].split("/")[:3])
        network, _, _ = upstream.removeprefix("http://").rpartition(".")
        self.mirror = Mirror(f"{network}.1", upstream)
        self.toolkit = self.mirror.source(self.sources["nvidia-container-toolkit"])

    def set(self, spec: dict[str, Any], **toolkit: str) -> None:
        sources = self.sources | {"nvidia-container-toolkit": self.toolkit | toolkit}
        self.spec.write_text(yaml.safe_dump({"sources": sources} | spec))

    def provision(self, *, exit: int = 0) -> dict[str, Any]:
        """The node's part of the answer."""
        [host] = json.loads(self.call(exit=exit).stdout)["hosts"]
        return dict(host)

    def call(self, *, exit: int | None) -> subprocess.CompletedProcess[str]:
        """Provision, always as the same controller: its lease keeps others off the node."""
        done: subprocess.CompletedProcess[str] = self._run(
            "provision", "-i", self.lab.inventory, "-c", self.spec, "--yes", "--format", "json", exit=exit
        )
        return done

    def refuse(self, *words: str) -> dict[str, Any]:
        """Provision in vain: the message has all the words and a fix, and no package is another one than before."""
        before = self.sh(self.manager.listed)
        host = self.provision(exit=1)
        assert host["fix"], host
        said = f"{host['message']} {host['fix']}".lower()
        assert all(word.lower() in said for word in words), said
        assert self.sh(self.manager.listed) == before
        self.check()
        return host

    def check(self) -> None:
        printed = self.lab.run(self.lab.nodes[0], self.manager.usable)
        assert printed.stdout + printed.stderr == ""

    def converge(self) -> dict[str, Any]:
        done = self.provision()
        assert "nothing pending" in done["message"], done["message"]
        self.check()
        return done

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)


@pytest.fixture(scope="module", params=MANAGERS, ids=lambda manager: manager.distro)
def node(request: Any, lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    name = f"t-faults-{request.param.distro.replace(':', '')}"
    lab = lab_up(distro=request.param.distro, engines=("containerd",), name=name)
    node = Node(request.param, lab, run_gpunode, tmp_path_factory.mktemp("spec"))
    node.sh(request.param.prepare)
    yield node
    node.mirror.close()
    lab.down()


@pytest.fixture
def expired(tmp_path: Path) -> Iterator[ExpiredKey]:
    key = ExpiredKey(tmp_path / "gpg")
    yield key
    key.close()


# ---------------------------------------------------------------- the driver's transaction


def test_a_disk_that_is_full_leaves_the_packages_as_they_were(node: Node) -> None:
    node.set(DRIVER)
    node.sh("mount -t tmpfs -o size=4k tmpfs /usr/src")
    try:
        node.refuse(node.manager.disk)
    finally:
        node.sh("umount /usr/src")


def test_a_module_that_dkms_cannot_build_for_one_of_two_kernels_names_that_kernel(node: Node) -> None:
    node.set(DRIVER)
    [makefile] = node.sh("ls /lib/modules/*/build/Makefile").split()
    broken = makefile.split("/")[3]
    assert broken != node.sh("uname -r").strip()
    node.sh(f"cp {makefile} /root/ && echo 'CC = no-such-compiler' >>{makefile}")
    host = node.provision(exit=1)
    assert "DKMS could not build nvidia" in host["message"] and broken in host["message"], host["message"]
    assert "compiler" in host["message"]
    node.sh(f"cp /root/Makefile {makefile}")
    node.converge()
    assert node.sh("cat /sys/module/nvidia/version").strip() == OLD
    kernels = node.sh("ls /lib/modules").split()
    assert len(kernels) == 2
    assert sorted(line.split(", ")[1] for line in node.sh("dkms status").splitlines()) == sorted(kernels)


# ---------------------------------------------------------------- the repository, in four kinds of trouble, then fixed


def test_a_repository_that_is_down_is_named(node: Node) -> None:
    node.set(TOOLKIT)
    node.mirror.down = True
    node.refuse("gpunode-nvidia-container-toolkit", "cannot be read")


def test_a_mirror_that_answers_every_path_with_a_web_page_is_named(node: Node) -> None:
    node.mirror.behave()
    node.mirror.pages = True
    node.refuse("gpunode-nvidia-container-toolkit")


def test_another_key_than_the_one_that_signed_is_said_to_be_the_cause(node: Node) -> None:
    node.mirror.behave()
    other = node.sources["nvidia-cuda"]
    node.set(TOOLKIT, key=other["key"], fingerprint=other["fingerprint"])
    node.refuse("does not fit its key", "fingerprint")


def test_a_signature_by_an_expired_key_is_not_taken(node: Node, expired: ExpiredKey) -> None:
    base = node.sources["nvidia-container-toolkit"]["url"]
    node.mirror.files = {"/old.asc": expired.public}
    if node.manager.distro.startswith("debian"):
        with urllib.request.urlopen(f"{base}/Release") as found:
            release = found.read()
        node.mirror.files |= {"/InRelease": expired.clearsigned(release), "/Release.gpg": expired.signature(release)}
    else:
        with urllib.request.urlopen(f"{base}/repodata/repomd.xml") as found:
            node.mirror.files |= {"/repodata/repomd.xml.asc": expired.signature(found.read())}
    node.set(TOOLKIT, key=f"{node.mirror.url}/old.asc", fingerprint=expired.fingerprint)
    node.refuse("does not fit its key")


def test_with_the_right_key_and_after_a_wait_for_the_lock_it_converges(node: Node) -> None:
    node.mirror.behave()
    node.set(TOOLKIT)
    node.sh(f"systemd-run --quiet --collect --unit=holder flock {node.manager.lock} sleep 15; sleep 1")
    done = node.converge()
    assert "nvidia-container-toolkit" in " ".join(done["changed"])
    assert node.provision()["changed"] == []


def test_who_holds_the_lock_is_said_when_it_is_not_given_back(node: Node) -> None:
    node.sh(f"systemd-run --quiet --collect --unit=holder flock {node.manager.lock} sleep 60; sleep 1")
    request = packages_request({"install": ["cuda-toolkit-12-8"]}, wait=2)
    done = node.lab.run(node.lab.nodes[0], "sh -s", stdin=program(script("packages.sh"), request))
    node.sh("systemctl stop holder")
    outcome = parse_outcome(done.stdout, done.returncode)
    assert outcome.status == "failed"
    assert f"holds {node.manager.lock}" in outcome.message
    assert locked_by(done.stdout).startswith(("flock (PID ", "sleep (PID "))
    node.check()


# ---------------------------------------------------------------- the power goes


@pytest.mark.parametrize(("delay", "version"), [(0.3, NEW), (2.0, OLD)], ids=["at its start", "amid it"])
def test_a_transaction_that_is_killed_is_finished_by_the_next_run(node: Node, delay: float, version: str) -> None:
    node.set(TOOLKIT | {"driver": {"version": version}})
    begun = int(node.sh(INTENTS))
    trap = f"until [ $({INTENTS}) -gt {begun} ]; do sleep 0.05; done; sleep {delay}; {KILL}"
    node.lab.run(node.lab.nodes[0], "cat >/root/cut", stdin=trap)
    node.sh("systemctl stop cut 2>/dev/null; systemd-run --quiet --collect --unit=cut sh /root/cut")
    cut = node.call(exit=None)
    assert cut.returncode != 0, cut.stdout
    time.sleep(1)
    records = [json.loads(line) for line in node.sh("cat /var/lib/gpunode/journal.jsonl").splitlines()]
    last = [record for record in records if record["op"] != "run"][-1]  # which the controller adds at the end
    assert (last["op"], last["phase"]) == ("packages", "intent"), f"not cut amid the transaction: {cut.stdout}"
    node.converge()
    assert node.sh("cat /sys/module/nvidia/version").strip() == version
    assert node.provision()["changed"] == []
