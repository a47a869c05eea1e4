"""Nodes of a running cluster are maintained, and every dangerous moment of that: budgets, reboots, a controller that
is killed, an API server that goes away, two controllers at once.  Real kubelets and pods; see test_kubernetes.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import FOLDER, REASON, Cluster, wait_for

from gpunode.core.errors import RefusedError
from gpunode.core.spec.rollout import DrainSpec
from gpunode.kube.core.draining import CORDONED, pod_name
from gpunode.kube.edge.drain import pods_to_evict
from gpunode.kube.edge.kubeconfig import connect

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FOLDER, reason=REASON), pytest.mark.timeout(2400)]

GPU = "nvidia.com/gpu"
NAME = "t-roll"
FIRST, NODE, CONTROL = f"{NAME}-1", f"{NAME}-2", f"{NAME}-control"
SAMPLE = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"
LABELS = {"app": "work"}
Seen = Callable[[dict[str, Any]], bool]


@pytest.fixture(scope="module")
def cluster(
    cluster_up: Callable[..., Cluster],
) -> Cluster:
    """Two nodes, provisioned, with NVIDIA's device plugin and three pods of a Deployment on their four GPUs."""
    found = cluster_up(2, name=NAME)
    old = found.spec({"kubernetes": {}, "driver": {"branch": "580"}}, "old.yml")
    found.gpunode("provision", "-i", found.lab.inventory, "-c", old, "--yes")
    found.kube("apply", old)
    wait_for(lambda: found.allocatable(GPU) == {FIRST: "2", NODE: "2"})
    container = {"name": "c", "image": SAMPLE, "command": ["sh", "-c", "exec sleep 36000"],
                 "resources": {"limits": {GPU: 1}}}  # fmt: skip
    template = {"metadata": {"labels": LABELS}, "spec": {"terminationGracePeriodSeconds": 3, "containers": [container]}}
    found.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "work", "namespace": "default"},
            "spec": {"replicas": 3, "selector": {"matchLabels": LABELS}, "template": template},
        }
    )
    return found


@pytest.fixture
def work(cluster: Cluster) -> Iterator[Cluster]:
    """All pods run, one at least on the node, and one may be away."""
    budget(cluster, 1)
    wait_for(lambda: cluster.get("deploy", "work")["status"].get("readyReplicas") == 3, 120)
    assert not cordoned(cluster)
    yield cluster
    budget(cluster, 1)
    hold_gpus(cluster, False)
    cluster.kubectl("uncordon", NODE)  # after a test that failed


def budget(cluster: Cluster, away: int) -> None:
    cluster.apply(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "calm", "namespace": "default"},
            "spec": {"maxUnavailable": away, "selector": {"matchLabels": LABELS}},
        }
    )


def cordoned(cluster: Cluster, node: str = NODE) -> bool:
    return bool(cluster.get("node", node)["spec"].get("unschedulable"))


def version(cluster: Cluster, node: str = NODE) -> str:
    found = re.search(r" (5\d\d)\.", cluster.lab.run(node, "cat /proc/driver/nvidia/version").stdout)
    return found[1] if found else ""


def boot(cluster: Cluster, node: str = NODE) -> str:
    return cluster.lab.run(node, "cat /proc/sys/kernel/random/boot_id").stdout.strip()


def other_branch(cluster: Cluster, **rollout: Any) -> tuple[str, Path]:
    """The branch that the node does not have, and the spec that asks for it, with a reboot."""
    branch = "595" if version(cluster) == "580" else "580"
    drain = {"when": "disruptive", "timeout": 300, "ready_timeout": 300, **rollout.pop("drain", {})}
    rollout = {"waves": [1, "100%"], "max_unavailable": 1, "max_failures": 0, "drain": drain, **rollout}
    spec = {"kubernetes": {}, "driver": {"branch": branch}, "reboot": "always", "rollout": rollout}
    return branch, cluster.spec(spec, "new.yml")


class Controller:
    """`gpunode provision` in a session of its own; what it tells of in its file of events is followed."""

    def __init__(self, cluster: Cluster, spec: Path, *words: object, **environment: str) -> None:
        self.events = cluster.folder / f"events-{time.monotonic_ns()}"
        self.events.touch()
        self.output = self.events.with_suffix(".log")
        chosen = (
            "provision",
            "-i",
            cluster.lab.inventory,
            "-c",
            spec,
            "--yes",
            "--events",
            self.events,
            *words,
        )
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpunode", *map(str, chosen)],
                env={**cluster.controller, "KUBECONFIG": str(cluster.lab.kubeconfig), **environment},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores it
            )  # fmt: skip

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()

    def until(self, seen: Seen, seconds: float = 300) -> None:
        """Until an event is reported."""
        deadline = time.monotonic() + seconds
        while not any(seen(event) for event in self._told()):
            assert self.process.poll() is None, f"it ended before: {self.output.read_text()}"
            assert time.monotonic() < deadline, self.events.read_text()
            time.sleep(0.02)

    def _told(self) -> list[dict[str, Any]]:
        lines = self.events.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ended(self, seconds: float = 400) -> int:
        return self.process.wait(seconds)


def node(*words: str) -> Seen:
    return lambda event: event["type"] == "node" and event["host"] == NODE and all(w in event["what"] for w in words)


def task(words: str) -> Seen:
    return lambda event: event["type"] == "task" and event["outcome"] == "started" and words in event["task"]


INSTALL, LOAD = "Install the NVIDIA driver", "Load the NVIDIA driver"
# what the controller tells of, or None; what `runs show` says the host was at
STAGES: dict[str, tuple[Seen, str]] = {
    "after cordon": (node("cordoned"), "cordoned|evicting"),
    "in the middle of eviction": (node("evicting"), "evicting"),
    "while the budget is waited for": (node("disruption budget calm"), "disruption budget calm"),
    "during the change": (task(INSTALL), INSTALL),
    "after the change, before the reboot": (task(LOAD), LOAD),
    "while the node reboots": (task(LOAD), LOAD),
    "while GPUs are waited for": (node("waiting until it is ready"), "waiting until|offers|booted|NotReady|ready"),
    "before uncordon": (node("is given back"), "is given back|uncordoned"),
}


def reach(cluster: Cluster, run: Controller, stage: str) -> None:
    before = boot(cluster) if stage == "while the node reboots" else ""
    if stage == "while GPUs are waited for":
        run.until(task(LOAD))
        hold_gpus(cluster, True)  # else they are there at once
    run.until(STAGES[stage][0])
    if stage == "during the change":
        wait_for(lambda: not cluster.lab.run(NODE, "pgrep -x 'apt-get|dpkg'").returncode)
    if before:
        wait_for(lambda: boot(cluster) != before)
    if stage == "after the change, before the reboot":
        time.sleep(1.6)  # what `runs show` says may be a second behind


def hold_gpus(cluster: Cluster, held: bool) -> None:
    """Keep the device plugin off the nodes, or let it come back."""
    selector = {"example.com/later": "true" if held else None}
    change = json.dumps({"spec": {"template": {"spec": {"nodeSelector": selector}}}})
    cluster.kubectl("-n", "gpunode", "patch", "daemonset", "nvidia-device-plugin", "--type=merge", "-p", change)


def shown(cluster: Cluster) -> dict[str, Any]:
    return dict(json.loads(cluster.gpunode("runs", "show", "last", "--format", "json").stdout))


def resume(cluster: Cluster) -> None:
    """Again while the node does not answer yet, as the exit code says."""
    hold_gpus(cluster, False)
    for _ in range(5):
        done = cluster.gpunode("runs", "resume", "last", "--yes", exit=None)
        if done.returncode != 4:
            break
        time.sleep(5)
    assert done.returncode == 0, done.stdout + done.stderr


def settled(cluster: Cluster, branch: str, spec: Path, *, closed: bool = False) -> None:
    """The node has the branch, is given back without a trace, has its GPUs and pods, and nothing is left to do."""
    assert version(cluster) == branch
    live = cluster.get("node", NODE)
    assert bool(live["spec"].get("unschedulable")) is closed
    assert CORDONED not in live["metadata"].get("annotations", {})
    cluster.gpunode("plan", "-i", cluster.lab.inventory, "-c", spec, "--limit", NODE)  # exit code 0: nothing to do
    if not closed:
        wait_for(lambda: cluster.allocatable(GPU)[NODE] == "2", 120)
        wait_for(lambda: cluster.get("deploy", "work")["status"].get("readyReplicas") == 3, 120)


# ---------------------------------------------------------------- budgets and rights


def test_a_budget_that_allows_nothing_is_named_and_the_node_is_given_back(work: Cluster) -> None:
    before, files = version(work), "cat /var/lib/gpunode/journal.jsonl | sha256sum"
    journal = work.lab.run(NODE, files).stdout
    _, spec = other_branch(work, drain={"timeout": 12})
    budget(work, 0)
    done = work.gpunode("provision", "-i", work.lab.inventory, "-c", spec, "--limit", NODE, "--yes", exit=1)
    said = done.stdout + done.stderr
    pod = next(p["metadata"]["name"] for p in pods(work) if p["spec"].get("nodeName") == NODE)
    assert f"default/{pod}" in said and "The disruption budget calm needs 3 healthy pods" in said, said
    assert f"{NODE} is not drained after 12 s" in said and f"node {NODE} is uncordoned again" in said
    assert not cordoned(work) and version(work) == before and work.lab.run(NODE, files).stdout == journal
    host = shown(work)["hosts"][0]
    assert (host["state"], host["exit"]) == ("failed", 1) and "budget calm" in host["message"]


def test_what_cannot_be_done_in_the_cluster_is_said_before_anything_is_changed(work: Cluster) -> None:
    _, spec = other_branch(work)
    kubeconfig = yaml.safe_load(work.lab.kubeconfig.read_text())
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]},
    ]
    group = "rbac.authorization.k8s.io"
    work.apply(
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "no-evictions"}, "rules": rules},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "no-evictions"},
         "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "no-evictions"},
         "subjects": [{"apiGroup": group, "kind": "User", "name": "carol"}]},
    )  # fmt: skip
    carol = json.loads(json.dumps(kubeconfig))
    carol["users"][0]["user"]["as"] = "carol"
    stranger = json.loads(json.dumps(kubeconfig))
    key, certificate = work.folder / "stranger.key", work.folder / "stranger.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-days", "2", "-subj", "/CN=stranger"],
        check=True, capture_output=True,
    )  # fmt: skip
    stranger["users"][0]["user"] = {"client-certificate": str(certificate), "client-key": str(key)}
    rows = [("carol", carol, 5, "may not create pods/eviction"), ("stranger", stranger, 4, "Unauthorized|certificate")]
    resource = work.get("node", NODE)["metadata"]["annotations"]
    for name, data, code, says in rows:
        path = work.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(data))
        words = ("-i", work.lab.inventory, "-c", spec, "--kubeconfig", path, "--yes")
        done = work.gpunode("provision", *words, exit=code)
        assert re.search(says, done.stdout + done.stderr), done.stdout + done.stderr
        assert not cordoned(work) and work.get("node", NODE)["metadata"]["annotations"] == resource
    work.kubectl("delete", f"clusterrole.{group}/no-evictions", f"clusterrolebinding.{group}/no-evictions")


def pods(cluster: Cluster) -> list[dict[str, Any]]:
    return list(cluster.get("pods", "-l", "app=work")["items"])


def test_what_a_drain_does_with_each_pod_is_what_kubectl_drain_does(work: Cluster) -> None:
    """kubectl drain --dry-run=server against the plan, for each choice of the options."""

    def pod(name: str, **spec: Any) -> dict[str, Any]:
        container = {"name": "c", "image": SAMPLE, "command": ["sh", "-c", "exec sleep 36000"], **spec.pop("c", {})}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": NODE, "containers": [container], **spec}}  # fmt: skip

    extra = [
        pod("alone"),
        pod("scratch", volumes=[{"name": "s", "emptyDir": {}}]),
        pod("slow", terminationGracePeriodSeconds=600),
        pod("ended", restartPolicy="Never", c={"command": ["sh", "-c", "exit 0"]}),
    ]
    work.apply(*extra)
    wait_for(lambda: work.get("pod", "ended")["status"]["phase"] in ("Succeeded", "Failed"))
    wait_for(lambda: work.get("pod", "slow")["status"]["phase"] == "Running")
    api = connect(str(work.lab.kubeconfig))
    try:
        for name in (FIRST, NODE):  # the first one has the scheduler's mirror pod
            for force in (False, True):
                for local in (False, True):
                    words = [f"--force={force}".lower(), f"--delete-emptydir-data={local}".lower()]
                    printed = work.kubectl(
                        "drain", name, "--ignore-daemonsets", "--dry-run=server", *words, check=False
                    )
                    theirs = set(re.findall(r"^evicting pod (\S+)", printed, re.M))
                    try:
                        plan = pods_to_evict(api, name, DrainSpec(force=force, delete_local_data=local))
                        ours, refused = {pod_name(one) for one in plan.evict}, ""
                    except RefusedError as error:
                        ours, refused = set(), error.what
                    assert ours == theirs, f"{name} {words}: {printed}"
                    assert bool(refused) == ("cannot delete" in printed), printed
                    for found in ("default/alone", "default/scratch"):
                        assert (found in refused) == (found in printed and bool(refused)), f"{refused}\n{printed}"
    finally:
        work.kubectl("delete", "pod", *(one["metadata"]["name"] for one in extra), "--force", "--grace-period=0")


# ---------------------------------------------------------------- the controller dies


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_controller_leaves_the_truth_and_resume_finishes(work: Cluster, stage: str) -> None:
    branch, spec = other_branch(work)
    if "budget" in stage:
        budget(work, 0)
    with Controller(work, spec, "--limit", NODE) as run:
        reach(work, run, stage)
        run.send(signal.SIGKILL)
        run.process.wait()
    told = shown(work)
    (host,) = told["hosts"]
    assert (told["status"], host["state"]) == ("killed", "running"), told
    assert re.search(STAGES[stage][1], host["step"]), host["step"]
    if stage != "before uncordon":
        assert cordoned(work)
    budget(work, 1)
    resume(work)
    settled(work, branch, spec)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("stage", ["while the budget is waited for", "while GPUs are waited for"])
def test_an_interrupt_ends_the_wait_at_once(work: Cluster, stage: str, number: signal.Signals) -> None:
    branch, spec = other_branch(work)
    before = version(work)
    waits_for_budget = "budget" in stage
    if waits_for_budget:
        budget(work, 0)
    with Controller(work, spec, "--limit", NODE) as run:
        reach(work, run, stage)
        run.process.send_signal(number)
        assert run.ended(30) == 130, run.output.read_text()
    told = shown(work)
    assert told["status"] == "interrupted", told
    if waits_for_budget:
        assert not cordoned(work) and version(work) == before
        return
    assert cordoned(work)
    resume(work)
    settled(work, branch, spec)


def test_a_node_that_an_administrator_cordoned_stays_so_after_a_kill(work: Cluster) -> None:
    branch, spec = other_branch(work)
    work.kubectl("cordon", NODE)
    try:
        with Controller(work, spec, "--limit", NODE) as run:
            reach(work, run, "during the change")
        resume(work)
        settled(work, branch, spec, closed=True)
    finally:
        work.kubectl("uncordon", NODE)


# ---------------------------------------------------------------- the node never comes back


def test_a_node_whose_kubelet_stays_away_is_never_given_back(work: Cluster) -> None:
    """Finding: cordoned by an earlier run, it was given back by the boot between, which the cluster had seen."""

    def kubelet(starts: bool) -> None:
        file = "/etc/systemd/system/kubelet.service.d/99-masked.conf"
        masked = f"printf '[Unit]\\nConditionPathExists=/never\\n' >{file}; systemctl daemon-reload"
        given = f"rm -f {file}; systemctl daemon-reload; systemctl start kubelet"
        assert not work.lab.run(NODE, given if starts else masked).returncode

    def boot_in_cluster() -> str:
        return str(work.get("node", NODE)["status"]["nodeInfo"]["bootID"])

    try:
        for _ in range(2):
            before = boot(work)
            branch, spec = other_branch(work, drain={"ready_timeout": 45})
            kubelet(starts=False)
            words = ("provision", "-i", work.lab.inventory, "-c", spec, "--limit", NODE, "--yes")
            done = work.gpunode(*words, exit=1)
            assert "has not booted yet" in done.stdout + done.stderr, done.stdout + done.stderr
            assert cordoned(work) and version(work) == branch and boot(work) != before
            kubelet(starts=True)
            wait_for(lambda: boot_in_cluster() == boot(work) and work.allocatable(GPU)[NODE] == "2", 120)
            assert cordoned(work)
    finally:
        kubelet(starts=True)
    resume(work)
    settled(work, branch, spec)


# ---------------------------------------------------------------- the API server goes away, two controllers


def test_an_api_server_that_is_away_for_a_minute_is_waited_for(work: Cluster) -> None:
    branch, spec = other_branch(work)
    budget(work, 0)

    def away(seconds: float) -> None:
        work.lab.run(CONTROL, "systemctl stop kube-apiserver")
        time.sleep(seconds)
        work.lab.run(CONTROL, "systemctl start kube-apiserver")
        wait_for(lambda: "ok" in work.kubectl("get", "--raw=/readyz", check=False))

    with Controller(work, spec, "--limit", NODE) as run:
        run.until(node("disruption budget calm"))
        away(60)
        budget(work, 1)
        run.until(task(LOAD))
        second = threading.Thread(target=away, args=(60,))
        second.start()
        code = run.ended()
        second.join()
        assert code == 0, run.output.read_text()
        assert "it is waited for" in run.output.read_text()
    settled(work, branch, spec)


def test_of_two_controllers_the_second_one_is_refused(work: Cluster, tmp_path: Path) -> None:
    branch, spec = other_branch(work)
    budget(work, 0)
    with Controller(work, spec, "--limit", NODE) as run:
        run.until(node("disruption budget calm"))
        words = ("provision", "-i", work.lab.inventory, "-c", spec, "--limit", NODE, "--yes")
        same = work.gpunode(*words, exit=5)
        assert "is used by run" in same.stdout + same.stderr
        with Controller(work, spec, "--limit", NODE, XDG_STATE_HOME=str(tmp_path)) as another:
            assert another.ended() == 5, another.output.read_text()
            assert f"node {NODE} was cordoned by run" in another.output.read_text()
        assert cordoned(work), "it is still the first one's"
        budget(work, 1)
        assert run.ended() == 0, run.output.read_text()
    settled(work, branch, spec)


# ---------------------------------------------------------------- the whole cluster


def test_nodes_are_rebooted_one_after_the_other_and_pods_come_back(work: Cluster) -> None:
    branch, spec = other_branch(work)
    if version(work, FIRST) == branch:  # both nodes are to change
        work.gpunode("provision", "-i", work.lab.inventory, "-c", spec, "--limit", NODE, "--yes")
        branch, spec = other_branch(work)
    before = {name: boot(work, name) for name in (FIRST, NODE)}
    work.gpunode("provision", "-i", work.lab.inventory, "-c", spec, "--yes")
    for name in (FIRST, NODE):
        assert version(work, name) == branch and boot(work, name) != before[name] and not cordoned(work, name)
    settled(work, branch, spec)


def test_a_rollback_drains_a_node_and_gives_it_back_with_its_gpus(work: Cluster) -> None:
    before = version(work)
    branch, spec = other_branch(work)
    work.gpunode("provision", "-i", work.lab.inventory, "-c", spec, "--limit", NODE, "--yes")
    assert version(work) == branch
    events = work.folder / "rollback.jsonl"
    words = ("-i", work.lab.inventory, "-c", spec, "--limit", NODE, "--yes")
    done = work.gpunode("rollback", *words, "--events", events, exit=None)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(line).get("what", "") for line in events.read_text().splitlines()]
    assert [what for what in said if re.search(r": (cordoned|drained|uncordoned)$", what)] == [
        f"{NODE}: {what}" for what in ("cordoned", "drained", "uncordoned")
    ]
    assert version(work) == before and not cordoned(work)
    wait_for(lambda: work.allocatable(GPU)[NODE] == "2", 120)
    again = work.gpunode("rollback", *words, "--to", "20000101T000000Z-0", exit=None)
    assert again.returncode and not cordoned(work), "what is refused is not drained"
