"""Hosts that are nodes of a cluster: emptied first, given back with their GPUs; against an API over HTTP."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from api_server import ApiServer
from kube_cluster import node, quick, silent
from rows import over

from gpunode.core.errors import Exit, GpunodeError, RefusedError, UnreachableError
from gpunode.core.model import Check, HostResult, Kubernetes, NodeFacts, NvmlGpu, PciDevice, Plan, Step
from gpunode.core.report.drains import DrainPreview, drains_text
from gpunode.core.spec import parse_spec
from gpunode.core.spec.rollout import DrainSpec
from gpunode.edge.accept import run as accept
from gpunode.edge.accept import tool as accept_tool
from gpunode.edge.ansible.runner import HostRun
from gpunode.edge.desired import DesiredState, Planned
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import driver
from gpunode.edge.fleet import provision as fleet
from gpunode.edge.fleet.draining import NodeChange, NodeDrains
from gpunode.edge.fleet.driver import RunOptions
from gpunode.edge.fleet.provision import to_measure
from gpunode.edge.fleet.runs import Runs
from gpunode.edge.fleet.worker import Worker
from gpunode.edge.fleet.workflow import HostPlan
from gpunode.edge.ssh.many import Ran
from gpunode.edge.ssh.shell import Target
from gpunode.kube.core.draining import CORDONED
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect
from gpunode.kube.edge.nodes import ClusterNodes

pytest_plugins = ("kube_fixtures",)

DRAIN = DrainSpec(when="disruptive", timeout=3, ready_timeout=2)
FACTS = NodeFacts(
    hostname="GPU1",
    kubernetes=Kubernetes(kind="kubeadm", kubelet="v1.34.1"),
    gpus=(PciDevice(slot="0000:17:00.0", id="10de:2330", class_code="0302"),),
)
STEP = Step(role="driver", option="activate", title="Load it", value={}, disruptive="unloads nvidia")
PLAN = Plan(host="gpu1", steps=(STEP,), problems=(), reasons=(), warnings=(), facts_hash="x", files={})


@pytest.fixture
def nodes(api: Api) -> ClusterNodes:
    return ClusterNodes(lambda: api, silent)


def add(server: ApiServer, name: str = "gpu1", **more: Any) -> None:
    server.put(node(name, allocatable={"nvidia.com/gpu": "8"}, **more))


def pod(server: ApiServer, name: str, *, of: str = "ReplicaSet", **spec: Any) -> None:
    owners = [{"kind": of, "name": "owner", "controller": True}]
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "ownerReferences": owners}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Running"}}
    server.put(body | {"spec": {"nodeName": "gpu1", **spec}})


def unschedulable(server: ApiServer) -> bool:
    found = server.get("Node", "gpu1")
    return bool(found and found["spec"].get("unschedulable"))


@pytest.mark.parametrize(
    ("when", "facts", "plan", "answer"),
    [
        ("never", FACTS, PLAN, False),
        ("disruptive", FACTS, PLAN, True),
        ("disruptive", FACTS, Plan(**{**PLAN.__dict__, "steps": ()}), False),
        ("always", FACTS, Plan(**{**PLAN.__dict__, "steps": ()}), False),  # it is measured at most
        ("always", FACTS, replace(PLAN, steps=(replace(STEP, disruptive=""),)), True),
        ("always", NodeFacts(hostname="gpu1"), PLAN, False),
    ],
)
def test_only_nodes_that_are_disturbed_are_emptied(when: Any, facts: NodeFacts, plan: Plan, answer: bool) -> None:
    planned = Planned(plan=plan, facts=facts, spec=DesiredState({}).spec(), solution=None)  # type: ignore[arg-type]
    assert NodeChange.of(planned, DrainSpec(when=when)).drains is answer


def test_a_node_is_emptied_and_given_back_when_its_gpus_are_there(server: ApiServer, nodes: ClusterNodes) -> None:
    add(server)
    pod(server, "a")
    taken = nodes.take("10.1.1.1", FACTS, DRAIN)
    assert (taken.node, dict(taken.offers), server.names("Pod")) == ("gpu1", {"nvidia.com/gpu": 8}, [])
    assert unschedulable(server)
    nodes.give_back(taken, DRAIN)
    assert not unschedulable(server)


def test_a_node_that_offers_fewer_gpus_stays_cordoned(server: ApiServer, nodes: ClusterNodes) -> None:
    add(server)
    taken = nodes.take("gpu1", FACTS, DRAIN)
    found = server.get("Node", "gpu1")
    assert found
    server.put(found | {"status": found["status"] | {"allocatable": {"nvidia.com/gpu": "7"}}})
    with pytest.raises(GpunodeError, match="offers 7"):
        nodes.give_back(taken, DRAIN)
    assert unschedulable(server)


SHARED: list[tuple[str, dict[str, str]]] = [
    ("renamed shares", {"nvidia.com/gpu.shared": "8", "nvidia.com/gpu": "0"}),
    ("instances", {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2"}),
    ("memory", {"aliyun.com/gpu-mem": "160"}),
]


@over(SHARED, name=lambda row: row[0])
def test_shares_and_instances_have_to_come_back_as_gpus_do(_name: str, offers: dict[str, str]) -> None:
    """Also for the controller that goes on with what another one left."""
    server = ApiServer()
    try:
        with TemporaryDirectory() as folder:
            api = quick(connect(str(server.kubeconfig(Path(folder) / "k")), timeout=2))
        server.put(node("gpu1", allocatable=offers))
        taken = ClusterNodes(lambda: api, silent).take("gpu1", FACTS, DRAIN)
        first = next(iter(offers))
        server.edit("Node", "gpu1", "", lambda item: item["status"].update(allocatable={**offers, first: "1"}))
        later = ClusterNodes(lambda: api, silent)
        left = later.left("gpu1", FACTS)
        assert left == taken
        with pytest.raises(GpunodeError, match=f"offers 1 {first}, not {offers[first]}"):
            later.give_back(left, DrainSpec(ready_timeout=1))
        assert unschedulable(server)
        server.edit("Node", "gpu1", "", lambda item: item["status"].update(allocatable=offers))
        later.give_back(left, DRAIN)
        assert not unschedulable(server)
    finally:
        server.close()


SEVENTHS = {"strategy": "mig", "mig": {"strategy": "mixed", "profiles": {"1g.10gb": 7}}}
# what the file says → what a node of two GPUs has to offer whose layout changed, what is wrong, what is right
CUTS: list[tuple[str, dict[str, Any], dict[str, int], dict[str, int]]] = [
    ("instances", {"sharing": SEVENTHS}, {"nvidia.com/mig-1g.10gb": 7}, {"nvidia.com/mig-1g.10gb": 14}),
    ("what was before", {"sharing": SEVENTHS}, {"nvidia.com/gpu": 8}, {"nvidia.com/mig-1g.10gb": 14}),
    ("whole again", {}, {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2}),
    ("whole again, and instances of before", {}, {"nvidia.com/gpu": 14}, {"nvidia.com/gpu": 2}),
    ("by claims", {"sharing": {"strategy": "dra"}}, {}, {}),
    ("of its pool by label", {"kubernetes": {"pools": {"small": {"nodes": "a=b", "sharing": SEVENTHS}}}},
     {"nvidia.com/gpu": 2}, {"nvidia.com/mig-1g.10gb": 14}),
    ("one GPU of two", {"sharing": {"strategy": "mig", "mig": {"strategy": "mixed", "gpus": {"1": {"3g.40gb": 2}}}}},
     {"nvidia.com/mig-3g.40gb": 2}, {"nvidia.com/mig-3g.40gb": 2, "nvidia.com/gpu": 1}),
    ("cut by somebody else", {"sharing": {"strategy": "mig", "mig": {"manager": "mig-manager"}}},
     {"nvidia.com/gpu": 0}, {"nvidia.com/mig-1g.10gb": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("_name", "file", "less", "enough"), CUTS, ids=[row[0] for row in CUTS])
def test_where_the_layout_changes_what_its_pool_shares_has_to_come(
    _name: str, file: dict[str, Any], less: dict[str, int], enough: dict[str, int], server: ApiServer, api: Api
) -> None:
    """Also for the controller that goes on with what another one left."""
    add(server, labels={"nvidia.com/device-plugin.config": "small"})
    nodes = ClusterNodes(lambda: api, silent)
    nodes.take("gpu1", FACTS, DRAIN, relaid=True)
    taken = nodes.left("gpu1", FACTS)
    assert taken is not None
    shares = nodes.shares(taken, parse_spec(file), 2)
    offers(server, less)
    if less == enough:  # the kubelet does not say
        nodes.give_back(taken, DRAIN, shares=shares)
        return
    with pytest.raises(GpunodeError, match=r"offers \d+ .*, (not|and should offer)"):
        nodes.give_back(taken, DrainSpec(ready_timeout=1), shares=shares)
    offers(server, enough)
    nodes.give_back(taken, DRAIN, shares=shares)
    assert not unschedulable(server)


def offers(server: ApiServer, amounts: dict[str, int]) -> None:
    found = {name: str(count) for name, count in amounts.items()}
    server.edit("Node", "gpu1", "", lambda item: item["status"].update(allocatable=found))


def test_a_cordon_of_somebody_else_stays(server: ApiServer, nodes: ClusterNodes) -> None:
    add(server, spec={"unschedulable": True})
    taken = nodes.take("gpu1", FACTS, DRAIN)
    nodes.give_back(taken, DRAIN)
    found = server.get("Node", "gpu1")
    assert found and unschedulable(server) and CORDONED not in found["metadata"].get("annotations", {})


def test_a_node_that_cannot_be_emptied_is_open_again(server: ApiServer, nodes: ClusterNodes) -> None:
    add(server)
    pod(server, "data", volumes=[{"name": "scratch", "emptyDir": {}}])
    with pytest.raises(RefusedError, match="delete_local_data"):
        nodes.take("gpu1", FACTS, DRAIN)
    assert not unschedulable(server) and server.names("Pod") == ["team/data"]


@pytest.mark.parametrize("names", [["gpu1"], ["GPU1"], ["gpu1.lan", "gpu1"]])
def test_a_host_is_found_by_its_names(names: list[str], server: ApiServer, nodes: ClusterNodes) -> None:
    add(server, labels={"kubernetes.io/hostname": "gpu1"})
    for name in names:
        assert nodes.take("somewhere", NodeFacts(hostname=name, kubernetes=FACTS.kubernetes), DRAIN).node == "gpu1"


def test_what_a_former_name_has_left_is_not_drained_in_place_of_the_node(
    server: ApiServer, nodes: ClusterNodes
) -> None:
    """A kubelet that got another name makes another node; the former one stays, NotReady, until somebody deletes it."""
    add(server, "gpu1")
    gone(server, "gpu1")
    add(server, "rack7-a")
    with pytest.raises(RefusedError, match="no node GPU1"):
        nodes.take("gpu1", FACTS, DRAIN)
    assert not unschedulable(server)
    assert nodes.take("10.0.0.1", FACTS, DRAIN).node == "rack7-a"


def gone(server: ApiServer, name: str) -> None:
    lost = [{"type": "Ready", "status": "Unknown"}]
    server.edit("Node", name, "", lambda item: item["status"].update(conditions=lost))


def test_a_kubelet_of_another_cluster_is_refused(server: ApiServer, nodes: ClusterNodes) -> None:
    add(server, "other")
    with pytest.raises(RefusedError, match="no node GPU1"):
        nodes.take("gpu1", FACTS, DRAIN)


# ---------------------------------------------------------------- whose it is


def worker(name: str, **more: Any) -> Worker:
    return Worker(controller=name, run=f"run-of-{name}", **more)


def test_a_node_that_another_controller_has_in_work_is_left_alone(server: ApiServer, api: Api) -> None:
    """Else the first one would let pods come while the second one changes the driver below them."""
    add(server)
    one, two = (ClusterNodes(lambda: api, silent, worker(name)) for name in ("one", "two"))
    taken = one.take("gpu1", FACTS, DRAIN)
    with pytest.raises(RefusedError, match="was cordoned by run run-of-one of the controller one") as caught:
        two.take("gpu1", FACTS, DRAIN)
    assert "--break-lock" in caught.value.fix and two.left("gpu1", FACTS) is None and unschedulable(server)
    again = ClusterNodes(lambda: api, silent, Worker(controller="one", run="resumed")).take("gpu1", FACTS, DRAIN)
    assert again == replace(taken, run="resumed")
    third = ClusterNodes(lambda: api, silent, worker("two", take_over=True))
    over = third.take("gpu1", FACTS, DRAIN)
    one.give_back(again, DRAIN)
    assert unschedulable(server), "it was taken over"
    third.give_back(over, DRAIN)
    assert not unschedulable(server)


def test_a_node_that_was_begun_with_is_not_open_when_it_cannot_be_emptied_again(server: ApiServer, api: Api) -> None:
    add(server)
    nodes = ClusterNodes(lambda: api, silent, worker("one"))
    taken = nodes.take("gpu1", FACTS, DRAIN)
    assert taken.begun
    pod(server, "late")
    server.budgets["team/late"] = 10**6
    with pytest.raises(GpunodeError, match=r"stays cordoned: an earlier run has begun to change it"):
        nodes.take("gpu1", FACTS, replace(DRAIN, timeout=1))
    assert unschedulable(server)


def test_a_budget_that_lasts_gives_the_node_back_and_that_is_said(server: ApiServer, nodes: ClusterNodes) -> None:
    add(server)
    pod(server, "a")
    server.budgets["team/a"] = 10**6
    with pytest.raises(GpunodeError, match=r"team/a Cannot evict .*budget calm.*node gpu1 is uncordoned again"):
        nodes.take("gpu1", FACTS, replace(DRAIN, timeout=1))
    assert not unschedulable(server)


RIGHTS = [
    ("create pods/eviction", "create pods/eviction in team", False),
    ("create pods/eviction $", "", True),  # in the namespaces that matter it may
    ("patch nodes", "patch nodes", False),
]


@over(RIGHTS, name=lambda row: row[0])
def test_a_right_that_lacks_is_said_before_anything_is_changed(denied: str, says: str, goes: bool) -> None:
    server = ApiServer()
    try:
        with TemporaryDirectory() as folder:
            api = quick(connect(str(server.kubeconfig(Path(folder) / "k")), timeout=2))
        add(server)
        pod(server, "a")
        server.denied.append(denied)
        nodes = ClusterNodes(lambda: api, silent)
        if goes:
            nodes.check({"gpu1": FACTS}, {"gpu1": DRAIN})
            return
        with pytest.raises(RefusedError, match=says):
            nodes.check({"gpu1": FACTS}, {"gpu1": DRAIN})
        assert not [r for r in server.requests if r.startswith(("PATCH", "DELETE"))]
    finally:
        server.close()


# ---------------------------------------------------------------- reboots


def boot(server: ApiServer, boot_id: str) -> None:
    server.edit("Node", "gpu1", "", lambda live: live["status"].update(nodeInfo={"bootID": boot_id}))


def cordoned(server: ApiServer, **annotations: str) -> None:
    add(server, spec={"unschedulable": True})
    server.edit("Node", "gpu1", "", lambda live: live["metadata"].update(annotations=annotations))


def on_boot(boot_id: str) -> NodeFacts:
    return replace(FACTS, boot_id=boot_id)


# as the cluster had it when the node was taken, as the host said before and says now → is it waited for another one?
BOOTS = [
    ("one", "one", "two", True),
    ("one", "one", "one", False),
    ("one", "one", "", False),  # nobody knows
    ("two", "one", "two", False),  # booted between the probe and the drain
    ("machine", "one", "one", False),  # a kubelet that does not have the host's own id, and no reboot
    ("machine", "one", "two", True),
    ("one", "", "two", False),
]


@pytest.mark.parametrize(("cluster", "before", "now", "waits"), BOOTS)
def test_what_a_node_says_from_before_its_reboot_counts_for_nothing(
    cluster: str, before: str, now: str, waits: bool, server: ApiServer, nodes: ClusterNodes
) -> None:
    add(server)
    boot(server, cluster)
    taken = nodes.take("gpu1", on_boot(before), DRAIN)
    soon = replace(DRAIN, ready_timeout=1)
    if waits:  # Ready, with all its GPUs: as it was before it went down
        with pytest.raises(GpunodeError, match="has not booted yet"):
            nodes.give_back(taken, soon, boot_id=now)
        assert unschedulable(server)
        server.later(0.3, lambda: boot(server, now if cluster == before else "its new one"))
    nodes.give_back(taken, DRAIN, boot_id=now)
    assert not unschedulable(server)


@pytest.mark.parametrize("own", [False, True])
def test_a_node_that_an_earlier_run_left_has_to_come_back_from_its_second_reboot(
    own: bool, server: ApiServer, api: Api, nodes: ClusterNodes
) -> None:
    """It was given back by what the cluster still told of the boot between the two, while its kubelet was dead."""
    names = {boot_id: f"machine {boot_id}" if own else boot_id for boot_id in ("one", "two", "three")}
    add(server)
    boot(server, names["one"])
    nodes.take("gpu1", on_boot("one"), DRAIN)  # this run ends while the node is away
    boot(server, names["two"])
    again = ClusterNodes(lambda: api, silent)
    taken = again.take("gpu1", on_boot("two"), DRAIN)
    with pytest.raises(GpunodeError, match="has not booted yet"):
        again.give_back(taken, replace(DRAIN, ready_timeout=1), boot_id="three")
    assert unschedulable(server)
    boot(server, names["three"])
    again.give_back(taken, DRAIN, boot_id="three")
    assert not unschedulable(server)


def test_what_a_node_was_like_outlives_the_controller(server: ApiServer, api: Api, nodes: ClusterNodes) -> None:
    add(server)
    boot(server, "one")
    first = nodes.take("gpu1", on_boot("one"), DRAIN)
    found = server.get("Node", "gpu1")
    assert found
    server.put(found | {"status": found["status"] | {"allocatable": {}}})
    again = ClusterNodes(lambda: api, silent)
    assert again.take("gpu1", on_boot("two"), DRAIN) == first == again.left("gpu1", on_boot("two"))


@pytest.mark.parametrize("annotation", ["", "gpunode", "offers=x boot", "gpunode offers= boot= host="])
def test_a_mark_that_says_little_is_no_obstacle(annotation: str, server: ApiServer, nodes: ClusterNodes) -> None:
    cordoned(server, **{CORDONED: annotation})
    taken = nodes.take("gpu1", on_boot("one"), DRAIN)
    assert dict(taken.offers) == {"nvidia.com/gpu": 8} and taken.ours


@pytest.mark.parametrize("mark", [{}, {CORDONED: ""}, {CORDONED: "gpunode offers=nvidia.com/gpu:8 boot=one host=one"}])
def test_only_what_we_left_cordoned_is_found_again(
    mark: dict[str, str], server: ApiServer, nodes: ClusterNodes
) -> None:
    cordoned(server, **mark)
    assert bool(nodes.left("gpu1", FACTS)) is bool(mark)


# ---------------------------------------------------------------- in provision

SPEC = {"rollout": {"drain": {"when": "disruptive", "timeout": 3, "ready_timeout": 2}}}


def provision(
    api: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    exit: Exit = Exit.OK,
    broken: str = "",
    now: NodeFacts = FACTS,
    checks: tuple[dict[str, str], ...] = (),
    spec: dict[str, Any] | None = None,
    steps: tuple[Step, ...] = (STEP,),
) -> tuple[HostResult, list[str]]:
    """provision of gpu1, with Ansible and the second probe played: its result, and the hosts that had a play.

    `broken`: what keeps Ansible itself from working; `steps`: what is to be done.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    played: list[str] = []

    def run_playbook(folder: Path, playbook: str, *, arguments: list[str], **_: Any) -> dict[str, HostRun]:
        hosts = Path(arguments[arguments.index("--limit") + 1][1:]).read_text().split()
        played.extend(hosts)
        if broken:
            raise GpunodeError(broken)
        return {host: HostRun(exit=exit, message="played", checks=list(checks)) for host in hosts}

    desired = DesiredState(spec or SPEC)
    before = replace(FACTS, boot_id="one")
    planned = Planned(plan=replace(PLAN, steps=steps), facts=before, spec=desired.spec(), solution=None)  # type: ignore[arg-type]
    target = Target(name="gpu1")
    host = HostPlan(detected=Detected(host="gpu1", facts=before, target=target), planned=planned)
    empty = Planned(plan=Plan(**{**PLAN.__dict__, "steps": ()}), facts=now, spec=desired.spec(), solution=None)  # type: ignore[arg-type]
    again: Callable[..., Iterable[Detected]] = lambda hosts, where: list(hosts)  # noqa: E731
    monkeypatch.setattr(driver, "run_playbook", run_playbook)
    monkeypatch.setattr(fleet, "probe", again)
    plans = lambda found, *_: [HostPlan(detected=one, planned=empty) for one in found]  # noqa: E731
    monkeypatch.setattr(fleet, "plan_all", plans)
    (result,) = fleet.provision([host], Targets(hosts=("gpu1",)), desired, options=RunOptions(cluster=lambda: api))
    return result, played


def test_provision_empties_a_node_and_gives_it_back(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    pod(server, "a")
    result, played = provision(api, tmp_path, monkeypatch)
    assert (result.outcome, played, server.names("Pod")) == ("ok", ["gpu1"], []) and not unschedulable(server)


def test_a_node_that_was_rebooted_is_not_given_back_by_what_it_said_before(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    boot(server, "one")
    result, _ = provision(api, tmp_path, monkeypatch, now=on_boot("two"))
    assert result.outcome == "failed" and "has not booted yet" in result.message and unschedulable(server)
    boot(server, "two")
    result, _ = provision(api, tmp_path, monkeypatch, now=on_boot("two"))
    assert result.outcome == "ok" and not unschedulable(server)


def test_a_node_that_was_left_is_given_back_after_steps_that_disturb_nobody(server: ApiServer, api: Api) -> None:
    add(server)
    nodes = NodeDrains(lambda: api, silent, worker("one"))
    nodes.nodes.take("gpu1", FACTS, DRAIN)
    calm = replace(PLAN, steps=(replace(STEP, disruptive=""),))
    planned = Planned(plan=calm, facts=FACTS, spec=DesiredState(SPEC).spec(), solution=None)  # type: ignore[arg-type]
    taken, refused = nodes.claim_all({"gpu1": NodeChange.of(planned, DRAIN)})
    assert taken["gpu1"].node == "gpu1" and not refused


def test_without_the_right_to_evict_provision_changes_nothing_and_begins_no_run(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    pod(server, "a")
    server.denied.append("create pods/eviction")
    result, played = provision(api, tmp_path, monkeypatch)
    assert result.outcome == "refused" and "may not create pods/eviction" in result.message and played == []
    assert Runs().latest() == [] and not [r for r in server.requests if r.startswith("PATCH")]


def test_a_node_that_failed_stays_cordoned_and_that_is_said(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    result, _ = provision(api, tmp_path, monkeypatch, exit=Exit.FAILED)
    assert result.outcome == "failed" and "node gpu1 stays cordoned" in result.message and unschedulable(server)


@pytest.mark.parametrize(("status", "code", "cordoned"), [("not-proven", "ok", False), ("failed", "failed", True)])
def test_a_node_stays_cordoned_for_a_proof_that_failed_and_not_for_one_that_could_not_be_had(
    status: str,
    code: str,
    cordoned: bool,
    server: ApiServer,
    api: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add(server)
    check = {"id": "containerd.cri-nvidia", "status": status, "message": "the pod of this check was removed"}
    result, _ = provision(api, tmp_path, monkeypatch, checks=(check,))
    assert (result.outcome, unschedulable(server)) == (code, cordoned)
    assert [(c.id, c.status) for c in result.checks] == [("containerd.cri-nvidia", status)]


UNFIT = replace(FACTS, nvml=(NvmlGpu(index=0, slot="0000:17:00.0", fault="GPU requires reset"),))
WAITS = replace(FACTS, nvml=(NvmlGpu(index=0, slot="0000:17:00.0", fabric_state="In Progress"),))


@pytest.mark.parametrize(("now", "code", "cordoned"), [(UNFIT, "failed", True), (WAITS, "ok", False)])
def test_a_node_with_a_gpu_that_cannot_be_used_is_not_given_back(
    now: NodeFacts,
    code: str,
    cordoned: bool,
    server: ApiServer,
    api: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add(server)
    result, _ = provision(api, tmp_path, monkeypatch, now=now)
    assert (result.outcome, unschedulable(server)) == (code, cordoned)
    assert ("GPU 0: the driver says «GPU requires reset»" in result.message) is cordoned


def test_a_node_that_was_left_for_its_gpu_stays_cordoned_while_that_cannot_be_used(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    provision(api, tmp_path, monkeypatch, exit=Exit.FAILED)
    desired = DesiredState(SPEC)
    planned = Planned(plan=replace(PLAN, steps=()), facts=UNFIT, spec=desired.spec(), solution=None)  # type: ignore[arg-type]
    host = HostPlan(detected=Detected(host="gpu1", facts=UNFIT), planned=planned)
    options = RunOptions(cluster=lambda: api)
    [result] = fleet.provision([host], Targets(hosts=("gpu1",)), desired, options=options)
    assert result.outcome == "failed" and "GPU requires reset" in result.message and unschedulable(server)


def test_a_node_that_ansible_could_not_be_run_for_stays_cordoned_and_that_is_said(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    result, _ = provision(api, tmp_path, monkeypatch, broken="no space left")
    assert result.message == "no space left (node gpu1 stays cordoned)" and unschedulable(server)
    assert result.outcome == "failed"


def test_a_node_that_cannot_be_emptied_is_in_no_play(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    pod(server, "data", volumes=[{"name": "scratch", "emptyDir": {}}])
    result, played = provision(api, tmp_path, monkeypatch)
    assert result.outcome == "refused" and "not started" in result.message and played == []


def test_a_node_that_a_killed_run_left_cordoned_is_given_back_by_the_next_one(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    provision(api, tmp_path, monkeypatch, exit=Exit.FAILED)
    assert unschedulable(server)
    desired = DesiredState(SPEC)
    plan = replace(PLAN, steps=())
    planned = Planned(plan=plan, facts=FACTS, spec=desired.spec(), solution=None)  # type: ignore[arg-type]
    host = HostPlan(detected=Detected(host="gpu1", facts=FACTS), planned=planned)
    asked: list[int] = []

    def cluster() -> Api:
        asked.append(1)
        return api

    options = RunOptions(cluster=cluster)
    results = [fleet.provision([host], Targets(hosts=("gpu1",)), desired, options=options)[0] for _ in range(2)]
    assert [r.message for r in results] == ["nothing to do; node gpu1 is given back", "nothing to do"]
    assert not unschedulable(server) and len(asked) == 2, "the second time the cluster is not asked"
    assert [row.state for row in Runs().hosts(Runs().get("last").name)] == ["done"]


# ---------------------------------------------------------------- in the plan


# ---------------------------------------------------------------- rollout.accept

ACCEPT = {**SPEC, "rollout": {**SPEC["rollout"], "accept": "quick"}}
BANDWIDTH = """\
nvbandwidth Version: v0.8
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)
          0
0     {0}
SUM host_to_device_memcpy_ce {0}
"""


def answers(tool: str) -> Callable[..., list[Ran]]:
    """What accept.sh sends: `tool` is what nvbandwidth printed, in-use, or unreachable; other tools are missing."""

    def run_many(programs: list[tuple[Target, str]], **_: Any) -> list[Ran]:
        [(target, text)] = programs
        outcome = "gpunode\tstatus\tunchanged\ngpunode\tmissing\tyes\n"
        if tool == "in-use":
            outcome = "gpunode\tstatus\trefused\ngpunode\tmessage\tthe node is in use: a pod\n"
        elif base64.b64encode(b"nvbandwidth\n").decode()[:12] in text:
            output = base64.b64encode(BANDWIDTH.format(tool).encode()).decode()
            sent = {"program": "nvbandwidth", "ended": "0", "output": output, "status": "unchanged", "message": "ran"}
            outcome = "".join(f"gpunode\t{key}\t{value}\n" for key, value in sent.items())
        error = UnreachableError("gpu1: no route") if tool == "away" else None
        return [Ran(target=target, stdout=outcome, error=error)]

    return run_many


def converged(spec: dict[str, Any]) -> HostPlan:
    plan = replace(PLAN, steps=())
    planned = Planned(plan=plan, facts=FACTS, spec=DesiredState(spec).spec(), solution=None)  # type: ignore[arg-type]
    return HostPlan(detected=Detected(host="gpu1", facts=FACTS), planned=planned)


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check(id="gpu.ecc", status="passed", message="none")
    verified = lambda hosts, *_, **__: [HostResult(host=one.host, checks=(check,)) for one in hosts]  # noqa: E731
    monkeypatch.setattr(accept, "verify_planned", verified)


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    ("tool", "code", "words"),
    [
        ("52.1", "ok", "accepted, not proven: accept.dcgm"),
        ("12.0", "failed", "not accepted: accept.h2d: GPU 0: 12 GB/s below 26"),
        ("in-use", "ok", "not measured: the node is in use"),
        ("away", "failed", "not accepted: accept.dcgm: gpu1: no route"),
    ],
)
def test_a_node_is_measured_before_it_is_given_back(
    tool: str, code: str, words: str, server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    monkeypatch.setattr(accept_tool, "run_many", answers(tool))
    result, _ = provision(api, tmp_path, monkeypatch, spec=ACCEPT)
    assert (result.outcome, unschedulable(server)) == (code, code == "failed"), result.message
    assert words in result.message


@pytest.mark.usefixtures("healthy")
def test_a_node_with_nothing_to_measure_is_not_called_accepted(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    spec = {**ACCEPT, "verify": {"allow_no_gpu": True}}
    result, _ = provision(api, tmp_path, monkeypatch, spec=spec, now=replace(FACTS, gpus=()))
    assert result.ok and result.message.endswith("; not measured: no NVIDIA GPU to measure")


@pytest.mark.usefixtures("healthy")
def test_a_node_that_was_not_accepted_is_measured_again_and_a_converged_one_is_not(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    monkeypatch.setattr(accept_tool, "run_many", answers("12.0"))
    provision(api, tmp_path, monkeypatch, spec=ACCEPT)
    found = []
    for tool in ("12.0", "52.1", "in-use"):
        assert bool(to_measure([converged(ACCEPT)])) is (tool != "in-use")
        monkeypatch.setattr(accept_tool, "run_many", answers(tool))
        result, played = provision(api, tmp_path, monkeypatch, spec=ACCEPT, steps=())
        assert played == []
        found.append((result.outcome, unschedulable(server), result.message.partition(":")[0]))
    assert found == [
        ("failed", True, "nothing to do, but not accepted"),
        ("ok", False, "nothing to do; accepted, not proven"),
        ("ok", False, "nothing to do"),
    ]


@pytest.mark.usefixtures("healthy")
def test_a_controller_that_was_killed_while_it_measured_measures_again(
    server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    release = NodeDrains.release_all

    def killed(*_: Any) -> None:
        monkeypatch.setattr(NodeDrains, "release_all", release)
        raise SystemExit

    monkeypatch.setattr(accept_tool, "run_many", answers("52.1"))
    monkeypatch.setattr(NodeDrains, "release_all", killed)
    with pytest.raises(SystemExit):
        provision(api, tmp_path, monkeypatch, spec=ACCEPT)
    assert unschedulable(server)
    result, played = provision(api, tmp_path, monkeypatch, spec=ACCEPT, steps=())
    assert result.message.startswith("nothing to do; accepted") and played == [] and not unschedulable(server)


def previewed(connect: Callable[[], Api]) -> DrainPreview:
    planned = Planned(plan=PLAN, facts=FACTS, spec=DesiredState(SPEC).spec(), solution=None)  # type: ignore[arg-type]
    (preview,) = NodeDrains(connect, silent, Worker()).previews({"gpu1": NodeChange.of(planned, DRAIN)})
    return preview


def test_the_plan_says_what_a_drain_would_do_and_changes_nothing(server: ApiServer, api: Api) -> None:
    add(server)
    for name in ("a", "b"):
        pod(server, name)
    pod(server, "c", volumes=[{"name": "scratch", "emptyDir": {}}])
    server.budgets["team/b"] = 99
    preview = previewed(lambda: api)
    assert (preview.node, preview.evicts, preview.error) == ("gpu1", ("team/a", "team/b"), None)
    (wait,), (refusal,) = preview.waits, preview.refuses
    assert wait.startswith("team/b: ") and "disruption budget calm" in wait
    assert "local data in an emptyDir" in refusal and refusal.endswith("team/c")
    assert (
        server.names("Pod") == ["team/a", "team/b", "team/c"]
        and not unschedulable(server)
        and server.budgets["team/b"] == 99
    )
    text = drains_text([preview])
    assert "gpu1: 2 pods evicted: team/a, team/b" in text and "refused now: pods with local data" in text


def test_the_plan_says_that_the_cluster_cannot_be_asked(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    preview = previewed(lambda: connect(str(tmp_path / "none")))
    assert "there is no kubeconfig" in drains_text([preview]) and preview.error
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert "the package kubernetes is not installed" in drains_text([previewed(connect)])
    monkeypatch.undo()
    add(server)
    server.denied.append("create pods/eviction")
    pod(server, "a")
    assert "may not create pods/eviction" in drains_text([previewed(lambda: api)])


def test_hosts_that_are_not_drained_are_not_asked_for() -> None:
    calm = DesiredState({}).spec()
    planned = Planned(plan=PLAN, facts=FACTS, spec=calm, solution=None)  # type: ignore[arg-type]
    nodes = NodeDrains(connect, silent, Worker())
    assert nodes.previews({"gpu1": NodeChange.of(planned)}) == []
