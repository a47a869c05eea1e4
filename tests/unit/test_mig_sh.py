"""node/activate/mig.sh under several shells, on an nvidia-smi that keeps its instances in a file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.items.sharing import boot_program, mig_request, mig_undo_request
from gpunode.core.model import MigInstance, NodeFacts, NvmlGpu, Outcome, Sharing
from gpunode.core.remote import parse_outcome, program
from gpunode.node import script

SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]
SLOT = "0000:17:00.0"
CLAIMS = Path(__file__).parents[1] / "cases/kubelet/dra_manager_state"  # as the code of Kubernetes 1.36.2 writes it
# One GPU.  Its instances are lines `ID PROFILE START`; a profile is named, or numbered by the digit it begins with.
SMI = r"""#!/bin/sh
cd "$NODE" || exit 9
echo "$*" >>asked
case "$*" in
  -L)
    echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)'
    while read -r id profile _; do echo "  MIG $profile     Device  0: (UUID: MIG-$id)"; done <instances ;;
  *index,pci.bus_id*) echo '0, 00000000:17:00.0' ;;
  *mig.mode*) cat mode ;;
  *--gpu-reset*) flock -n lock true || echo locked >>asked; rm needs_reset && echo Enabled >mode ;;
  *-mig*)
    [ ! -e needs_reset ] || exit 0
    if [ "${4}" = 1 ]; then echo Enabled >mode; else echo Disabled >mode; fi ;;
  *-lgi) while read -r id profile start; do echo "| 0 MIG $profile ${profile%g.*} $id $start:1 |"; done <instances ;;
  *-lci) while read -r id profile _; do echo "|   0   $id   MIG $profile  0  0  0:1 |"; done <instances ;;
  *-dgi) sed -i "/^$5 /d" instances ;;
  *-dci) ;;
  *-cgi*)
    for one in $(echo "$5" | tr , ' '); do
      [ "$one" != "$(cat refused 2>/dev/null)" ] || { echo "Unable to create a GPU instance: no room"; exit 23; }
      id=$(($(cat last 2>/dev/null || echo 0) + 1))
      echo "$id" >last
      case $one in *g.*) name=${one%:*} ;; *) name=${one%:*}g.10gb ;; esac
      echo "$id $name ${one#*:}" >>instances
    done ;;
  *) exit 9 ;;
esac
"""


class Node:
    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.folder, self.shell = folder, shell
        self.set(mode="Enabled", instances="")
        (folder / "nvidia-smi").write_text(SMI)
        (folder / "nvidia-smi").chmod(0o755)

    def set(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / name).write_text(text and f"{text}\n")

    @property
    def instances(self) -> list[list[str]]:
        return [line.split() for line in (self.folder / "instances").read_text().splitlines()]

    @property
    def facts(self) -> NodeFacts:
        found = [
            MigInstance(gpu=0, id=int(i), profile=profile, start=int(start), size=1, computes=1)
            for i, profile, start in self.instances
        ]
        return NodeFacts(nvml=(NvmlGpu(index=0, slot=SLOT),), sharing=Sharing(instances=tuple(found)))

    def run(self, text: str) -> Outcome:
        places = {"KUBELET": "kubelet", "PROC": "proc", "PODS_LOG": "pods"}
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", "NODE": str(self.folder)}
        environment |= {name: str(self.folder / folder) for name, folder in places.items()}
        done = subprocess.run(self.shell, input=text, env=environment, capture_output=True, text=True, check=False)
        return parse_outcome(done.stdout, done.returncode)

    def cut(self, *requested: str, facts: NodeFacts | None = None, check: bool = False) -> Outcome:
        request = mig_request(value(*requested), facts or self.facts, script("mig.sh"), check=check)
        return self.run(program(script("mig.sh"), request | {"state": f"{self.folder}\n".encode()}))

    def boot(self, *requested: str) -> Outcome:
        text = boot_program(value(*requested), script("mig.sh")).decode()
        return self.run(text.replace("/var/lib/gpunode", str(self.folder)))


def value(*requested: str) -> dict[str, Any]:
    """`1g.10gb:0`: profile and place; mode off when nothing is wished."""
    split = (one.partition(":") for one in requested)
    instances = [{"profile": name, "id": int(name[0]), "start": int(start)} for name, _, start in split]
    return {"gpus": [{"slot": SLOT, "mode": "on" if requested else "off", "instances": instances}]}


@pytest.fixture(params=SHELLS, ids=" ".join)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(tmp_path, request.param)


def test_a_gpu_gets_its_mode_and_instances_and_then_nothing_more(node: Node) -> None:
    node.set(mode="Disabled")
    assert node.cut("3g.10gb:4", "3g.10gb:0", check=True).status == "changed"
    assert (node.instances, (node.folder / "mode").read_text()) == ([], "Disabled\n")
    outcome = node.cut("3g.10gb:4", "3g.10gb:0")
    assert (outcome.status, outcome.texts) == (
        "changed",
        (f"GPU {SLOT}: MIG on", f"GPU {SLOT}: 2 × 3g.10gb (was no instance)"),
    )
    assert node.instances == [["1", "3g.10gb", "0"], ["2", "3g.10gb", "4"]]
    assert node.cut("3g.10gb:4", "3g.10gb:0").status == "unchanged"


def test_an_instance_that_is_wanted_stays_while_others_change(node: Node) -> None:
    node.set(instances="7 3g.10gb 4\n8 2g.10gb 0", last="8")
    assert node.cut("1g.10gb:0", "3g.10gb:4", "1g.10gb:1").status == "changed"
    assert node.instances == [["7", "3g.10gb", "4"], ["9", "1g.10gb", "0"], ["10", "1g.10gb", "1"]]


# devices that a pod has, whether it runs, instances that are wanted → the layout is changed
POD = "8a94fd9e-7a3b-4f2c-9d55-0c6f2d3b1a77"
HELD = [
    ("GPU-0", True, ["1g.10gb:0"], True),
    ("MIG-7", True, ["1g.10gb:0"], False),
    ("MIG-7::3", True, [], False),
    ("MIG-7", False, ["1g.10gb:0"], True),
    ("MIG-8", True, ["1g.10gb:2"], True),
]


@pytest.mark.parametrize(("device", "runs", "wanted", "goes"), HELD)
def test_an_instance_of_a_pod_that_sleeps_is_never_taken(
    device: str, runs: bool, wanted: list[str], goes: bool, node: Node
) -> None:
    node.set(instances="7 2g.10gb 0\n8 1g.10gb 2")
    pod_with(node, device, runs=runs)
    outcome = node.cut(*wanted)
    assert (outcome.status == "changed") is goes, outcome
    if not goes:
        assert outcome.status == "refused" and "would go: team/idle" in outcome.message
        assert node.instances == [["7", "2g.10gb", "0"], ["8", "1g.10gb", "2"]]


def test_a_gpu_of_a_pod_that_sleeps_is_not_cut(node: Node) -> None:
    node.set(mode="Disabled")
    pod_with(node, "GPU-0", runs=True)
    outcome = node.cut("1g.10gb:0")
    assert outcome.status == "refused" and "team/idle" in outcome.message
    assert (node.folder / "mode").read_text() == "Disabled\n"


@pytest.mark.parametrize("ends", ["well", "killed", "rolled back"])
def test_a_device_plugin_sees_the_new_layout_and_other_processes_run_on(node: Node, ends: str) -> None:
    """Instances that are made again have other ids; after a kill the next run finds nothing to cut."""
    with subprocess.Popen(["sleep", "60"]) as plugin, subprocess.Popen(["sleep", "60"]) as other:
        try:
            for process, where in ((plugin, "/kubepods/besteffort/pod1/2"), (other, "/system.slice/a.service")):
                folder = node.folder / f"proc/{process.pid}"
                folder.mkdir(parents=True)
                (folder / "comm").write_text("nvidia-device-p\n")
                (folder / "cgroup").write_text(f"0::{where}\n")
            assert node.cut("1g.10gb:0", check=True).status == "changed" and plugin.poll() is None
            if ends == "killed":
                node.set(instances="7 1g.10gb 0", **{"mig-cut": ""})
                assert node.cut("1g.10gb:0", check=True).status == "unchanged" and plugin.poll() is None
            if ends == "rolled back":
                node.set(instances="7 2g.10gb 0", last="7", refused="1:0")
            status = {"well": "changed", "killed": "unchanged", "rolled back": "rolled_back"}[ends]
            assert node.cut("1g.10gb:0").status == status
            assert plugin.wait(5) < 0 and other.poll() is None
            assert not (node.folder / "mig-cut").exists()
        finally:
            plugin.kill()
            other.kill()


def pod_with(node: Node, device: str, *, runs: bool) -> None:
    """As the kubelet writes down who has which devices; an entry outlives a pod that has ended."""
    entry = {
        "PodUID": POD, "ContainerName": "c", "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"-1": ["GPU-9", device]},
        "AllocResp": "CgA=",
    }  # fmt: skip
    data = {"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {"nvidia.com/gpu": ["GPU-0", "GPU-9"]}}}
    for folder in ("kubelet/device-plugins", f"pods/team_idle_{POD}", "proc/4711"):
        (node.folder / folder).mkdir(parents=True)
    text = json.dumps(data, separators=(",", ":"))
    (node.folder / "kubelet/device-plugins/kubelet_internal_checkpoint").write_text(text)
    slice_ = f"kubepods-besteffort-pod{POD.replace('-', '_')}.slice" if runs else "system.slice"
    (node.folder / "proc/4711/cgroup").write_text(f"0::/kubepods.slice/{slice_}/cri-containerd-1.scope\n")


@pytest.mark.parametrize(("held", "refused"), [("gpu-0-mig-1g10gb-19-0", True), ("gpu-1", False), ("nic", False)])
@pytest.mark.parametrize("root", ["kubelet", "k0s/kubelet"])
def test_a_pod_that_has_an_instance_by_a_claim_keeps_it(node: Node, held: str, refused: bool, root: str) -> None:
    """By the kubelet's own list (1.36), wherever the kubelet that runs keeps it; claims of one pod each."""
    pod = {"gpu-0-mig-1g10gb-19-0": "10", "gpu-1": "11", "nic": "13"}[held]
    node.set(instances="7 1g.10gb 0")
    for folder in (root, "proc/4711", "proc/1"):
        (node.folder / folder).mkdir(parents=True)
    shutil.copy(CLAIMS, node.folder / root)
    (node.folder / "proc/1/cmdline").write_text(f"/usr/bin/kubelet\0--root-dir={node.folder / root}\0")
    (node.folder / "proc/4711/cgroup").write_text(f"0::/kubepods/pod0b5c4ab1-8e8e-4b2e-9a31-5a4b8a1c7d{pod}/1\n")
    outcome = node.cut("3g.10gb:4")
    assert outcome.status == ("refused" if refused else "changed"), outcome
    assert not refused or f"instances of it that would go: 0b5c4ab1-8e8e-4b2e-9a31-5a4b8a1c7d{pod}" in outcome.message


def test_the_profiles_that_are_wanted_may_be_anywhere(node: Node) -> None:
    node.set(instances="7 1g.10gb 6\n8 2g.10gb 0")
    assert node.cut("2g.10gb:2", "1g.10gb:0").status == "unchanged"


def test_instances_that_changed_after_they_were_read_are_left_alone(node: Node) -> None:
    node.set(instances="7 2g.10gb 0")
    before = node.facts
    node.set(instances="8 2g.10gb 0")
    outcome = node.cut("1g.10gb:0", facts=before)
    assert (outcome.status, outcome.fix, node.instances) == ("refused", "run again", [["8", "2g.10gb", "0"]])
    assert "changed after they were read" in outcome.message


def test_where_an_instance_cannot_be_made_those_before_come_back(node: Node) -> None:
    node.set(instances="7 2g.10gb 0", last="7", refused="3:4")
    outcome = node.cut("1g.10gb:0", "3g.10gb:4")
    assert outcome.status == "rolled_back"
    assert "Unable to create a GPU instance: no room; its instances are as they were before" in outcome.message
    assert [one[1:] for one in node.instances] == [["2g.10gb", "0"]]


def test_mode_off_takes_all_instances_away(node: Node) -> None:
    node.set(instances="7 2g.10gb 0\n8 1g.10gb 2")
    assert node.cut().status == "changed"
    assert (node.instances, (node.folder / "mode").read_text()) == ([], "Disabled\n")


@pytest.mark.parametrize("wanted", [(), ("3g.10gb:4",), ("1g.10gb:0",)])
def test_an_undo_makes_the_instances_that_were_there_before_the_first_cut(node: Node, wanted: tuple[str, ...]) -> None:
    node.set(instances="7 2g.10gb 2\n8 1g.10gb 0")
    assert node.cut(*wanted).status == "changed"
    journal = [json.loads(line) for line in (node.folder / "journal.jsonl").read_text().splitlines()]
    [cut] = [one for one in journal if one["op"] == "state"]
    to = " ".join(["on", *(one.partition(":")[0] for one in wanted)]) if wanted else "off"
    assert (cut["kind"], cut["name"], cut["from"], cut["to"]) == ("mig", SLOT, "on 1g.10gb:0 2g.10gb:2", to)
    request = mig_undo_request({SLOT: cut["from"]}, gone=True, check=False)
    outcome = node.run(program(script("mig.sh"), request | {"state": f"{node.folder}\n".encode()}))
    assert outcome.status == "changed"
    assert sorted(one[1:] for one in node.instances) == [["1g.10gb", "0"], ["2g.10gb", "2"]]


def test_instances_that_another_tool_has_now_are_not_looked_at(node: Node) -> None:
    node.set(instances="7 2g.10gb 0")
    request = mig_request({"gpus": [], "remove": True}, node.facts, "", check=True)
    outcome = node.run(program(script("mig.sh"), request | {"state": f"{node.folder}\n".encode()}))
    assert (outcome.status, node.instances) == ("unchanged", [["7", "2g.10gb", "0"]])
    assert {line.split()[0] for line in (node.folder / "asked").read_text().splitlines()} == {
        "--query-gpu=index,pci.bus_id"
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="what runs at boot is root's")
@pytest.mark.parametrize(
    ("have", "status", "left"),
    [
        ("", "changed", [["1", "1g.10gb", "0"], ["2", "2g.10gb", "2"]]),
        ("5 2g.10gb 2\n6 1g.10gb 0", "unchanged", [["5", "2g.10gb", "2"], ["6", "1g.10gb", "0"]]),
        ("5 3g.10gb 0", "changed", [["1", "1g.10gb", "0"], ["2", "2g.10gb", "2"]]),
    ],
)
def test_at_boot_the_same_is_made_without_a_controller(
    node: Node, have: str, status: str, left: list[list[str]]
) -> None:
    node.set(instances=have)
    assert node.boot("2g.10gb:2", "1g.10gb:0").status == status
    assert node.instances == left


@pytest.mark.skipif(os.geteuid() != 0, reason="what runs at boot is root's")
def test_at_boot_services_are_paused_under_the_lock(node: Node) -> None:
    node.set(mode="Disabled", needs_reset="")
    assert node.boot("1g.10gb:0").status == "changed"
    assert "locked" in (node.folder / "asked").read_text().splitlines()
    assert node.instances == [["1", "1g.10gb", "0"]]
