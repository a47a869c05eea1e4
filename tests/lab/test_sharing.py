"""MIG and MPS on a real node, whose nvidia-smi is a stand-in with the modes and instances of an A100 and an H100."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import undo_node

from gpunode.core.checks.health import sharing_checks
from gpunode.core.facts import parse_probe
from gpunode.core.items.sharing import mig_request, mig_value, mps_request
from gpunode.core.model import NodeFacts, Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.core.sharing.host import choose_sharing
from gpunode.core.spec import parse_spec
from gpunode.edge.desired import load_templates
from gpunode.edge.load import load_knowledge, load_mig
from gpunode.lab import Lab
from gpunode.node import script

pytestmark = pytest.mark.lab


class Node:
    """The node with its driver, and what MIG and MPS are asked for on it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.texts = load_templates()
        self.signature: dict[str, bytes] = {}

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def run(self, name: str, request: dict[str, bytes]) -> Outcome:
        done = self.lab.run(self.lab.nodes[0], "sh -s", stdin=program(script(name), request))
        return parse_outcome(done.stdout, done.returncode)

    def facts(self) -> NodeFacts:
        done = self.lab.run(self.lab.nodes[0], "sh -s", stdin=program(script("probe.sh"), {}))
        return parse_probe(done.stdout)

    def mig(self, *, check: bool = False, **mig: Any) -> Outcome:
        facts = self.facts()
        spec = parse_spec({"sharing": {"strategy": "mig", "mig": mig}} if mig else {}, where="gpunode.yml")
        choice = choose_sharing(facts, spec.sharing, load_mig(), load_knowledge(), driver="580.95.05")
        assert choice.problems == ()
        value = mig_value(facts, spec, choice, self.texts)
        return self.run("mig.sh", mig_request(value, facts, script("mig.sh"), check=check) | self.signature)

    def mps(self, replicas: int = 0) -> Outcome:
        value = {"replicas": replicas, "unit": self.texts["mps.service.j2"]} if replicas else {"remove": True}
        return self.run("mps.sh", mps_request(value))

    def instances(self) -> list[list[str]]:
        """Profiles of each GPU, in the order of their starts."""
        found = sorted(self.facts().sharing.instances, key=lambda i: (i.gpu, i.start))
        return [[i.profile for i in found if i.gpu == gpu and i.computes] for gpu in (0, 1)]

    def reboot(self) -> None:
        before = self.sh("cat /proc/sys/kernel/random/boot_id")
        self.lab.run(self.lab.nodes[0], "systemctl reboot")
        for _ in range(120):
            time.sleep(1)
            now = self.lab.run(
                self.lab.nodes[0], "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running --wait"
            )
            if now.stdout.split()[:1] not in ([], before.split()):
                return
        raise AssertionError("the node did not come back")

    @contextmanager
    def holding(self, path: str) -> Iterator[str]:
        """A process that has the device open; its PID.  A device of the lab cannot be opened: a file stands in."""
        self.sh(f"[ -f {path} ] || {{ rm -f {path}; : >{path}; }}")
        pid = self.sh(f"nohup sh -c 'exec sleep 600' 7<{path} >/dev/null 2>&1 & echo $!").strip()
        try:
            yield pid
        finally:
            self.sh(f"kill {pid}")


@pytest.fixture(scope="module")
def node(provisioned: Callable[..., Lab]) -> Node:
    spec = {"toolkit": {"version": "none"}}
    return Node(provisioned(spec, distro="debian:12", engines=(), gpus=("a100", "h100"), like=("h100",)))


@pytest.fixture
def whole(node: Node) -> Iterator[Node]:
    """The node with nothing of MIG and MPS on it, before and after a test."""
    yield node
    node.sh("rm -f /lab/no-gpu-reset")
    node.mps()
    assert node.mig().status in ("changed", "unchanged")


def test_gpus_are_cut_and_cut_otherwise_and_a_reboot_finds_them_so(whole: Node) -> None:
    asked = {"profiles": {"3g.40gb": 2}}
    assert whole.mig(**asked, check=True).status == "changed"
    assert whole.instances() == [[], []]
    first = whole.mig(**asked)
    assert first.status == "changed", first
    assert "GPU 0000:17:00.0: 2 × 3g.40gb (was no instance)" in first.texts
    assert whole.instances() == [["3g.40gb"] * 2] * 2
    assert whole.mig(**asked).status == "unchanged"
    other: dict[str, Any] = {"strategy": "mixed", "profiles": {"4g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1}}
    assert whole.mig(**other).status == "changed"
    assert whole.instances() == [["4g.40gb", "2g.20gb", "1g.10gb"]] * 2
    whole.reboot()
    assert whole.instances() == [["4g.40gb", "2g.20gb", "1g.10gb"]] * 2
    assert whole.mig(**other).status == "unchanged"
    [check] = sharing_checks(whole.facts())
    assert (check.id, check.status) == ("sharing.mig", "passed")
    order = whole.sh("systemctl show -p Before gpunode-mig.service")
    assert "containerd.service" in order and "kubelet.service" in order


def test_where_no_reset_is_allowed_the_mode_of_an_a100_waits_for_a_reboot_and_an_h100_does_not(whole: Node) -> None:
    whole.sh("touch /lab/no-gpu-reset")
    asked = {"profiles": {"1g.10gb": 7}}
    first = whole.mig(**asked)
    assert first.status == "changed"
    assert first.message.startswith("reboot needed: MIG of GPU 0000:17:00.0 turns on with a reboot")
    assert whole.instances() == [[], ["1g.10gb"] * 7]
    [check] = sharing_checks(whole.facts())
    assert check.status == "failed" and "Enabled after a reset" in check.message
    again = whole.mig(**asked)
    assert (again.status, again.changed) == ("unchanged", ())
    whole.reboot()
    assert whole.instances() == [["1g.10gb"] * 7] * 2
    assert "status success" in whole.sh("cat /var/lib/gpunode/mig")


def test_whoever_uses_a_gpu_or_an_instance_is_named_and_nothing_changes(whole: Node) -> None:
    with whole.holding("/dev/nvidia0") as pid:
        refused = whole.mig(profiles={"3g.40gb": 2})
        assert refused.status == "refused"
        assert refused.message == f"GPU 0000:17:00.0 is used by sleep (PID {pid}): its MIG mode cannot be changed"
        assert whole.instances() == [[], []]
    whole.mig(strategy="mixed", profiles={"4g.40gb": 1, "2g.20gb": 1})
    big = next(i for i in whole.facts().sharing.instances if i.gpu == 0 and i.profile == "4g.40gb")
    minor = whole.sh(
        f"sed -n 's/DeviceFileMinor: //p' /proc/driver/nvidia/capabilities/gpu0/mig/gi{big.id}/access"
    ).strip()
    with whole.holding(f"/dev/nvidia-caps/nvidia-cap{minor}") as pid:
        refused = whole.mig(profiles={"3g.40gb": 2})
        assert refused.message == f"instance {big.id} of GPU 0000:17:00.0 is used by sleep (PID {pid})"
        assert whole.mig().status == "refused"
        assert whole.instances() == [["4g.40gb", "2g.20gb"]] * 2
        # what it uses may stay: only the others are made again
        assert whole.mig(strategy="mixed", profiles={"4g.40gb": 1, "1g.10gb": 3}).status == "changed"
        assert whole.instances() == [["4g.40gb", "1g.10gb", "1g.10gb", "1g.10gb"]] * 2
        assert big in whole.facts().sharing.instances


def test_a_cut_that_breaks_off_is_undone(whole: Node) -> None:
    whole.mig(gpus={"1": {"3g.40gb": 2}})
    table = whole.sh("cat /lab/standin-mig")
    whole.sh("sed -i '/^0000:1e.*1g.10gb+me/d' /lab/standin-mig")  # a driver that does not know the profile
    try:
        failed = whole.mig(strategy="mixed", gpus={"1": {"1g.10gb+me": 1, "1g.10gb": 2}})
    finally:
        whole.lab.run(whole.lab.nodes[0], "cat >/lab/standin-mig", stdin=table)
    assert failed.status == "rolled_back", failed
    assert "its instances are as they were before" in failed.message
    assert whole.instances() == [[], ["3g.40gb"] * 2]
    assert "status failed" in whole.sh("cat /var/lib/gpunode/mig")
    [check] = sharing_checks(whole.facts())
    assert check.status == "failed"


def test_what_was_made_is_undone_whole_and_a_single_gpu_stays_whole(whole: Node) -> None:
    whole.mig(gpus={"1": {"7g.80gb": 1}})
    assert whole.instances() == [[], ["7g.80gb"]]
    taken = whole.mig()
    assert (taken.status, taken.message) == ("changed", "MIG is off, and nothing of it is left on the node")
    assert {gpu.mig_current for gpu in whole.facts().nvml} == {"Disabled"}
    whole.sh("! ls -d /etc/gpunode /usr/lib/gpunode/mig /etc/systemd/system/gpunode-mig.service 2>/dev/null")
    assert whole.mig().status == "unchanged"


def test_a_rollback_makes_the_instances_that_were_there_before_the_cut(
    whole: Node, run_gpunode: Any, tmp_path: Path
) -> None:
    whole.sh("nvidia-smi -i 1 -mig 1; nvidia-smi mig -i 1 -cgi 4g.40gb,2g.20gb -C")
    by_hand = [[], ["4g.40gb", "2g.20gb"]]
    assert whole.instances() == by_hand
    whole.signature = {"run": b"20261128T190000Z-cut\n"}
    assert whole.mig(profiles={"1g.10gb": 7}).status == "changed"
    assert whole.instances() == [["1g.10gb"] * 7] * 2
    undo = undo_node.Node(whole.lab, run_gpunode, tmp_path)
    used = whole.sh(
        "cat /proc/driver/nvidia/capabilities/gpu1/mig/gi1/access | sed -n 's/DeviceFileMinor: //p'"
    ).strip()
    with whole.holding(f"/dev/nvidia-caps/nvidia-cap{used}") as pid:
        refused = undo.json("rollback", "--yes", exit=None)
        assert f"instance 1 of GPU 0000:1e:00.0 is used by sleep (PID {pid})" in refused["message"]
        assert whole.instances() == [["1g.10gb"] * 7] * 2
    undo.json("rollback", "--yes")
    assert whole.instances() == by_hand
    assert [gpu.mig_current for gpu in whole.facts().nvml] == ["Disabled", "Enabled"]
    whole.sh("! ls /usr/lib/gpunode/mig /etc/gpunode/mig.yaml /var/lib/gpunode/mig 2>/dev/null")


def test_mps_runs_as_a_unit_with_a_share_for_each_client_and_goes_without_a_trace(whole: Node) -> None:
    assert whole.mps(4).status == "changed"
    assert whole.facts().sharing.mps_threads == "25"
    assert whole.sh("cat /etc/gpunode/mps").splitlines() == [
        "set_default_active_thread_percentage 25",
        "set_default_device_pinned_mem_limit 0 20389M",
        "set_default_device_pinned_mem_limit 1 20389M",
    ]
    assert whole.sh("nvidia-smi --query-gpu=compute_mode --format=csv,noheader").split() == ["Exclusive_Process"] * 2
    assert whole.mps(4).status == "unchanged"
    assert whole.mps(2).status == "changed"
    assert whole.facts().sharing.mps_threads == "50"
    [check] = sharing_checks(whole.facts())
    assert (check.id, check.status) == ("sharing.mps", "passed")
    whole.reboot()
    assert whole.mps(2).status == "unchanged"
    with whole.holding("/dev/nvidia0") as pid:
        assert whole.mps(4).message == f"sleep (PID {pid}) uses a GPU, and would lose it to MPS"
        assert whole.mps().message == f"sleep (PID {pid}) is a client of MPS"
    assert whole.mps().status == "changed"
    whole.sh("! ls -d /etc/gpunode /etc/systemd/system/gpunode-mps.service 2>/dev/null")
    assert whole.sh("nvidia-smi --query-gpu=compute_mode --format=csv,noheader").split() == ["Default"] * 2


def test_mps_stands_back_from_mig_and_from_another_daemon(whole: Node) -> None:
    whole.mig(gpus={"1": {"7g.80gb": 1}})
    assert whole.mps(4).message == "MIG is on, and MPS is for whole GPUs"
    whole.mig()
    pid = whole.sh("nohup nvidia-cuda-mps-control -f >/dev/null 2>&1 & echo $!").strip()
    assert whole.mps(4).message == f"another MPS control daemon runs (PID {pid})"
    whole.sh("echo quit | nvidia-cuda-mps-control; sleep 1")
