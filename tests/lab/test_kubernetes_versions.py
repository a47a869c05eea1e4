"""gpunode on a cluster of each release of Kubernetes that is at hand: one node, its oldest and newest releases alike.

GPUNODE_KUBERNETES_OTHERS names folders as GPUNODE_KUBERNETES does, with a colon between.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from cluster import FOLDER, GPU, REASON, SAMPLE, Cluster, failed, pod, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FOLDER, reason=REASON)]

CASES = sorted(Path(__file__).parents[1].glob("cases/kube/*/case.yml"))
SHARES_FROM = 36  # before, the feature gate DRAConsumableCapacity is off, and its field in an expression refused
MEMORY = "aliyun.com/gpu-mem"
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
UNIT = "/etc/systemd/system/kube-scheduler.service"
AS_UNIT = f"""set -e
mv {MANIFEST} /root/kube-scheduler.yaml
ln -sf /opt/kubernetes/kube-scheduler /usr/bin/kube-scheduler
cat >{UNIT} <<END
[Unit]
Description=Kubernetes scheduler

[Service]
ExecStart=/usr/bin/kube-scheduler \\\\
  --authentication-kubeconfig=/etc/kubernetes/scheduler.conf \\\\
  --authorization-kubeconfig=/etc/kubernetes/scheduler.conf \\\\
  --kubeconfig=/etc/kubernetes/scheduler.conf \\\\
  --leader-elect=false
Restart=always

[Install]
WantedBy=multi-user.target
END
systemctl daemon-reload
systemctl enable --now kube-scheduler 2>/dev/null
"""
AS_POD = f"""systemctl disable --now kube-scheduler
rm {UNIT}
systemctl daemon-reload
mv /root/kube-scheduler.yaml {MANIFEST}
"""


@pytest.fixture(scope="module")
def provisioned(cluster: Cluster) -> Cluster:
    spec = cluster.spec({"kubernetes": {}})
    cluster.gpunode("provision", "-i", cluster.lab.inventory, "-c", spec, "--yes")
    return cluster


def minor_of(cluster: Cluster) -> int:
    server = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]
    return int("".join(filter(str.isdigit, server["minor"])))


@pytest.mark.parametrize("case", CASES, ids=[case.parent.name for case in CASES])
def test_every_object_is_accepted_strictly(case: Path, cluster: Cluster, tmp_path: Path) -> None:
    """Rendered for this server's version, by its own validation of fields; kinds that only a CRD brings aside."""
    asked = yaml.safe_load(case.read_text())
    minor = minor_of(cluster)
    oldest = asked.get("servers", {}).get("from", "1.0") if isinstance(asked.get("servers"), dict) else "1.0"
    if minor < int(str(oldest).split(".")[1]):
        pytest.skip(f"the case is for {oldest} and later")
    spec = cluster.spec(asked["spec"], "case.yml")
    words: list[object] = ["kube", "render", "-c", spec, "--server-version", f"1.{minor}", "-o", tmp_path / "out"]
    if asked.get("hosts"):
        inventory = tmp_path / "hosts.yml"
        hosts = {name: {"gpunode_spec": own} for name, own in asked["hosts"].items()}
        inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
        words += ["-i", inventory]
    done = cluster.gpunode(*words, exit=None)
    needs = re.search(r"needs Kubernetes 1[.]([0-9]+)", done.stderr)
    if done.returncode == 5 and needs and int(needs[1]) > minor:
        return  # refused with the reason: the answer for such a server
    assert done.returncode == 0, done.stderr
    texts = [path.read_text() for path in sorted((tmp_path / "out").rglob("*.y*ml")) if "values" not in path.name]
    objects = [item for text in texts for item in yaml.safe_load_all(text) if item and "apiVersion" in item]
    spaces = {item["metadata"]["namespace"] for item in objects if "namespace" in item.get("metadata", {})}
    spaces -= {"kube-system", "default"}
    kinds = {line.split()[-1] for line in cluster.kubectl("api-resources", "--no-headers").splitlines() if line.strip()}
    assert "DaemonSet" in kinds
    checked = yaml.safe_dump_all([item for item in objects if item["kind"] in kinds])
    for space in spaces:
        cluster.kubectl("create", "namespace", space)
    try:
        gated = minor < SHARES_FROM and "allowMultipleAllocations" in checked
        words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
        said = cluster.kubectl(*words, stdin=checked, check=not gated)
        assert not gated or "undefined field 'allowMultipleAllocations'" in said
    finally:
        if spaces:
            cluster.kubectl("delete", "namespace", *spaces)


def test_an_unknown_field_is_refused(cluster: Cluster) -> None:
    """Else the test above would prove nothing."""
    bad = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "default"}, "dat": {}}
    words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    assert "dat" in cluster.kubectl(*words, stdin=yaml.safe_dump(bad), check=False)


def test_from_new_nodes_to_a_pod_with_a_gpu(provisioned: Cluster) -> None:
    spec = provisioned.spec({"kubernetes": {}})
    again = provisioned.gpunode("provision", "-i", provisioned.lab.inventory, "-c", spec, "--yes")
    assert "nothing to do" in again.stdout, again.stdout
    provisioned.kube("apply", spec)
    assert "nothing to do" in provisioned.kube("apply", spec).stdout
    assert failed(provisioned.checks("verify", spec, "--smoke")) == []
    assert list(provisioned.allocatable(GPU).values()) == ["2"]
    assert "0/2" in provisioned.kube_text("status")
    provisioned.kube("remove", spec)
    assert provisioned.get("namespaces", "--field-selector=metadata.name=gpunode")["items"] == []


@pytest.mark.parametrize("way", ["static pod", "unit"])
def test_the_scheduler_packs_by_memory_and_is_given_back_to_the_byte(way: str, provisioned: Cluster) -> None:
    """As kubeadm's static pod, and as a unit of systemd; a patch of the node stands in for its device plugin."""
    if not Path(FOLDER, "gpushare-sche-extender").exists():
        pytest.skip(f"{REASON} with gpushare-sche-extender")
    (node,) = provisioned.lab.nodes
    path = MANIFEST if way == "static pod" else UNIT
    if way == "unit":
        assert provisioned.lab.run(node, AS_UNIT).returncode == 0
    try:
        before = provisioned.lab.run(node, f"cat {path}").stdout
        version = {} if way == "static pod" else {"server_version": f"1.{minor_of(provisioned)}"}
        packs_by_memory(provisioned, {"state": "present", "proxy_mode": "iptables", **version})
        assert provisioned.lab.run(node, f"cat {path}").stdout != before
        assert "gpushare" in provisioned.lab.run(node, "cat /etc/kubernetes/*sched*").stdout
        scheduler(provisioned, {"state": "absent", **version})
        assert provisioned.lab.run(node, f"cat {path}").stdout == before
        provisioned.apply(pod("plain", {}))  # what was given back schedules
        wait_for(lambda: provisioned.get("pod", "plain")["spec"].get("nodeName"))
        provisioned.kubectl("delete", "pod", "plain", "--wait=false")
    finally:
        if way == "unit":
            provisioned.lab.run(node, AS_POD)


def packs_by_memory(cluster: Cluster, edit: dict[str, str]) -> None:
    """Of eight GPUs of 16 GiB: pods of 3 and 5 on one GPU, one of 17 on none, three of 3 of a StatefulSet on one."""
    spec = cluster.spec({"kubernetes": {}, "sharing": {"strategy": "gpushare"}})
    cluster.kube("apply", spec, "--no-wait")
    (node,) = cluster.lab.nodes
    capacity = {"status": {"capacity": {MEMORY: "128", "aliyun.com/gpu-count": "8"}}}
    patch(cluster, node.name, "merge", capacity)
    scheduler(cluster, edit)
    wait_for(lambda: cluster.get("-n", "gpunode", "deploy")["items"][0]["status"].get("readyReplicas") == 1, 120)
    wanted = {"three": 3, "five": 5, "too-large": 17}
    cluster.apply(*(pod(name, {MEMORY: memory}) for name, memory in wanted.items()))
    small = ("three", "five")
    wait_for(lambda: all(cluster.get("pod", name)["spec"].get("nodeName") for name in small))
    cards = {cluster.get("pod", name)["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] for name in small}
    assert len(cards) == 1, "both on one GPU, as bin packing has it"
    assert "nodeName" not in cluster.get("pod", "too-large")["spec"]
    # for five minutes the kubelet also remembers what the plugin before it offered: 0 of nvidia.com/gpu
    (table,) = [part for part in cluster.kube_text("status").split("\n\n") if "GPU Memory In" in part]
    head, row, *_ = table.splitlines()
    assert head.split()[2:] == [*(f"GPU{index}(Allocated/Total)" for index in range(8)), "GPU", "Memory(GiB)"]
    assert sorted(row.split()[2:]) == sorted(["8/16", *["0/16"] * 7, "8/128"])
    cluster.kubectl("delete", "pod", *wanted, "--force", "--grace-period=0")
    is_packed(cluster, spec)
    cluster.kube("remove", spec)
    gone = [{"op": "remove", "path": f"/status/capacity/aliyun.com~1gpu-{what}"} for what in ("mem", "count")]
    patch(cluster, node.name, "json", gone)


def is_packed(cluster: Cluster, spec: Path) -> None:
    """The example that is rendered: three pods of a StatefulSet, with an image that the node has."""
    folder = cluster.folder / "packed"
    cluster.gpunode("kube", "render", "-c", spec, "--server-version", f"1.{minor_of(cluster)}", "-o", folder)
    (example,) = yaml.safe_load_all((folder / "examples/examples.yml").read_text())
    name, template = example["metadata"]["name"], example["spec"]["template"]["spec"]
    template["containers"][0] |= {"image": SAMPLE, "command": ["sh", "-c", "exec sleep 3600"]}
    template["terminationGracePeriodSeconds"] = 1
    cluster.apply(example)
    pods = [f"{name}-{number}" for number in range(3)]
    wait_for(lambda: all(cluster.get("pod", one)["spec"].get("nodeName") for one in pods), 120)
    cards = [cluster.get("pod", one)["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] for one in pods]
    assert len(set(cards)) == 1 and "9/16" in cluster.kube_text("status")
    cluster.kubectl("delete", "statefulset", name)
    cluster.kubectl("delete", "pod", *pods, "--force", "--grace-period=0", "--ignore-not-found")


def patch(cluster: Cluster, node: str, kind: str, change: object) -> None:
    """Of a node's status; by the newest kubectl."""
    words = ("patch", "node", node, "--subresource=status", f"--type={kind}", "-p", json.dumps(change))
    cluster.kubectl(*words)


def scheduler(cluster: Cluster, edit: dict[str, str]) -> None:
    """The playbook that edits kube-scheduler, on the lab's node."""
    (node,) = cluster.lab.nodes
    spec = cluster.spec({"kubernetes": {}, "sharing": {"strategy": "gpushare"}})
    cluster.play("playbooks/scheduler.yml", "-e", f"gpunode_control_plane={node.name}", "-e", f"gpunode_config={spec}",
                 "-e", json.dumps({"gpunode_scheduler": edit}))  # fmt: skip
