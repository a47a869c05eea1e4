"""uninstall and rollback on real nodes: afterwards the tree is what it was before, to the byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from undo_node import DAEMON, Node

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

OLD, NEW, CUDA = {"version": "580.95.05"}, {"version": "580.178.04"}, {"versions": ["12.8"]}


@pytest.fixture(scope="module", params=["debian:12", "debian:13", "rocky:9", "ubuntu:24.04"])
def node(
    request: pytest.FixtureRequest, lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """A node with containerd and Docker, nouveau on the GPU; a person has set Docker up."""
    name = f"t-uninstall-{re.sub(r'[^a-z0-9]', '', request.param)}"
    with lab_up(name=name, distro=request.param, gpus=("h100",), nouveau=True) as lab:
        node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"))
        node.sh(f'mkdir -p /etc/docker; printf \'{{"log-level":"warn"}}\' >{DAEMON}; chmod 640 {DAEMON}')
        node.sh(f"chown root:docker {DAEMON}; systemctl restart docker")
        node.before = node.photo()
        yield node


def reported_files(result: dict[str, Any]) -> set[str]:
    return {line for line in result["changed"] if line.startswith(("removes ", "rewrites ", "creates "))}


def test_after_uninstall_the_tree_is_what_it_was(node: Node) -> None:
    newer = {"versions": ["13.1"]}  # the first that NVIDIA has for Debian 13
    if node.lab.nodes[0].distro == "debian:13":  # for which NVIDIA has no 580
        node.provision(driver={"branch": "595"}, cuda=newer)
    else:
        node.provision(driver=OLD, cuda=CUDA)
    checked = node.json("uninstall", "--check", "--diff", exit=3)
    assert "nvidia" in node.sh("lsmod"), "check mode changes nothing"
    assert any(diff.startswith(f"--- {DAEMON}\n+++ {DAEMON}\n") for diff in checked["extra"]["diffs"])
    taken = node.json("uninstall", "--yes")
    assert node.differs(node.before) == ""
    assert reported_files(taken) <= reported_files(checked), "some files go with their package"
    assert node.json("uninstall", "--yes")["changed"] == []


@pytest.mark.parametrize("node", ["debian:12", "rocky:9"], indirect=True)
def test_two_runs_are_rolled_back_and_the_former_driver_is_loaded_again(node: Node) -> None:
    first = node.provision(driver=OLD)
    old = node.photo()
    assert {"nvidia_uvm", "580.95.05"} <= {*old}
    second = node.provision(driver=NEW)
    third = node.provision(driver=NEW, cuda=CUDA)
    assert node.sh("cat /sys/module/nvidia/version") == "580.178.04\n"
    assert node.runs() == [first, second, third]
    node.json("rollback", "--to", first, "--yes")
    assert node.differs(old) == ""
    assert node.runs() == [first]


@pytest.mark.parametrize("node", ["debian:12"], indirect=True)
def test_what_is_killed_is_finished_by_the_next_one(node: Node) -> None:
    old = node.photo()
    assert "580.95.05" in old, "the test before has left a driver"
    node.provision(driver=NEW)
    node.cut_off("rollback", "packages", controller=True, shell=True)
    node.json("rollback", "--yes")
    assert node.differs(old) == ""
    node.cut_off("uninstall", "files", controller=False, shell=True)
    node.cut_off("uninstall", "packages", controller=True, shell=False)
    node.json("uninstall", "--yes")
    assert node.differs(node.before) == ""


@pytest.mark.parametrize("node", ["debian:12"], indirect=True)
def test_what_a_boot_has_loaded_and_left_out_is_as_it_was_before(node: Node) -> None:
    """As after a power cut between the packages and the modules: no record names a module."""
    node.provision(driver=OLD)
    node.sh('sed -i \'/"kind":"module"/d\' /var/lib/gpunode/journal.jsonl')
    taken = node.json("uninstall", "--yes")
    assert {"unloaded nvidia", "load nouveau"} <= set(taken["changed"])
    assert taken["message"] == "as it was before gpunode"
    assert node.differs(node.before) == ""


@pytest.mark.parametrize("node", ["debian:12"], indirect=True)
def test_a_damaged_journal_is_reported_or_refused_and_strays_are_swept(node: Node) -> None:
    node.provision(driver=OLD)
    node.sh(r"printf '\0\0\0\0' >>/var/lib/gpunode/journal.jsonl")
    node.sh("cp /var/lib/gpunode/journal.jsonl /root/journal; : >/var/lib/gpunode/journal.jsonl")
    refused = node.json("uninstall", "--yes", exit=5)
    assert "is empty" in refused["message"] and "-baseline" in refused["message"]
    node.json("rollback", "--yes", exit=5)
    node.sh("cp /root/journal /var/lib/gpunode/journal.jsonl; rm /root/journal")
    node.sh(
        'mkdir -m 700 /tmp/gpunode.abcdef; echo "999999999 1 $(readlink /proc/self/ns/pid)" >/tmp/gpunode.abcdef/.alive'
    )
    taken = node.json("uninstall", "--yes")
    assert [note for note in taken["extra"]["notes"] if "4 NUL bytes" in note]
    assert taken["message"] == "as it was before gpunode"
    assert node.differs(node.before) == ""
    assert node.sh("ls -d /tmp/gpunode.* 2>/dev/null || true") == ""


@pytest.mark.parametrize("node", ["debian:12"], indirect=True)
def test_what_somebody_has_changed_since_stays_and_is_named(node: Node) -> None:
    node.provision(cuda=CUDA)
    node.sh(f"sed -i s/warn/info/ {DAEMON}")
    node.sh("echo '# mine' >>/etc/profile.d/cuda.sh")
    done = node.json("uninstall", "--yes")
    notes = "\n".join(done["extra"]["notes"])
    assert f"{DAEMON}: changed since, not by gpunode; their lines stay" in notes
    assert "/etc/profile.d/cuda.sh: changed since, not by gpunode; their lines stay" in notes
    assert node.sh("cat /etc/profile.d/cuda.sh") == "# mine\n"
    assert done["message"] == "as it was before gpunode, but for what the notes name"
    assert json.loads(node.sh(f"cat {DAEMON}")) == {"log-level": "info"}
    left = {line.split(" ")[1] for line in node.differs(node.before).splitlines()}
    assert left == {f".{DAEMON}", "./etc/profile.d/cuda.sh"}


@pytest.mark.parametrize("node", ["debian:12"], indirect=True)
def test_what_somebody_wrote_between_two_runs_stays(node: Node) -> None:
    """Of a file that gpunode made: with an administrator's settings, it stays when gpunode goes."""
    node.sh(f"rm {DAEMON} && systemctl restart docker && rm -rf /var/lib/gpunode")
    node.provision(driver=OLD)
    theirs = r'"registry-mirrors":["https://mirror.example"],"log-opts":{"max-size":"10m"},'
    node.sh(f"sed -i '0,/{{/s|{{|{{{theirs}|' {DAEMON} && systemctl restart docker")
    node.provision(driver=OLD, runtimes={"docker": {"default_runtime": "nvidia"}})
    runtimes = "docker info -f '{{.DefaultRuntime}} {{json .Runtimes}}'"
    assert node.sh(runtimes).startswith("nvidia ")
    node.sh("tar -C / -chf - bin/busybox | docker import - t && docker run -d --runtime runc t /bin/busybox sleep 3600")
    changed = node.json("uninstall", "--check", exit=3)["changed"]
    assert {"restarts containerd.service", "restarts docker.service, which ends its containers: 1 run"} <= {*changed}
    done = node.json("uninstall", "--yes")
    assert "nvidia" not in node.sh(runtimes), "a reload would have left it in force"
    assert json.loads(node.sh(f"cat {DAEMON}")) == {
        "registry-mirrors": ["https://mirror.example"],
        "log-opts": {"max-size": "10m"},
    }
    assert done["message"] == "as it was before gpunode, but for what the notes name"
    assert node.sh("ls /var/lib/gpunode/backup") != ""


HAND = """set -e
export DEBIAN_FRONTEND=noninteractive
/usr/lib/apt/apt-helper -q download-file {cuda[key]} /usr/share/keyrings/cuda.asc
/usr/lib/apt/apt-helper -q download-file {toolkit[key]} /usr/share/keyrings/toolkit.asc
echo 'deb [signed-by=/usr/share/keyrings/cuda.asc] {cuda[url]} /' >/etc/apt/sources.list.d/cuda.list
echo 'deb [signed-by=/usr/share/keyrings/toolkit.asc] {toolkit[url]} /' >/etc/apt/sources.list.d/toolkit.list
apt-get -q update
apt-get -q -y install "linux-headers-$(uname -r)"
apt-get -q -y install nvidia-driver-pinning-580.95.05
apt-get -q -y install nvidia-open-580 nvidia-container-toolkit
echo 'blacklist nouveau' >/etc/modprobe.d/own.conf
echo nvidia_uvm >/etc/modules-load.d/own.conf
modprobe -r nouveau
modprobe nvidia_uvm
systemctl restart nvidia-persistenced
update-initramfs -u -k all
mkdir -p /etc/docker
echo '{{"runtimes":{{"nvidia":{{"path":"nvidia-container-runtime"}}}}}}' >/etc/docker/daemon.json
systemctl restart docker
"""


@pytest.mark.timeout(1200)
def test_a_node_that_a_person_set_up_is_adopted_and_given_back(
    lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lab = lab_up(name="t-adopt", distro="debian:12", engines=("docker",), nouveau=True)
    node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"))
    sources = yaml.safe_load(lab.spec.read_text())["sources"]
    node.sh(HAND.format(cuda=sources["nvidia-cuda"], toolkit=sources["nvidia-container-toolkit"]))
    before = node.photo()
    node.provision(driver=NEW, cuda=CUDA)
    baseline = json.loads(node.sh("head -n 1 /var/lib/gpunode/journal.jsonl"))
    assert (baseline["op"], baseline["driver"]) == ("baseline", "580.95.05")
    assert "nvidia-open-580 580.95.05-1 ii " in baseline["packages"]
    assert node.sh("cat /sys/module/nvidia/version") == "580.178.04\n"
    node.json("uninstall", "--yes")
    assert node.differs(before) == ""
