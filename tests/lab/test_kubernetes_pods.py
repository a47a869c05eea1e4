"""What gpunode renders as pods, under a real kubelet: the watch from the Containerfile's image, Node Feature
Discovery, the MIG manager's contract, the DCGM exporter.

GPUNODE_KUBERNETES names the folder of programs (test_kubernetes.py); Node Feature Discovery needs nfd-master,
nfd-worker and nfd-gc in it, the Prometheus operator's objects its definitions in crds/.  The watch's image is built
from the Containerfile on a Debian tree with Python.  Not real: the GPUs, the MIG manager (a double that plays its part
at the API) and the exporter (a stub that serves fixed values).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import FOLDER, REASON, Cluster, wait_for
from prometheus_client.parser import text_string_to_metric_families

from gpunode.edge.load import load_kube_knowledge
from gpunode.lab.kubernetes.archives import write_archive

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FOLDER, reason=REASON)]

ROOT = Path(__file__).parents[2]
NODE = "t-pods-1"
GPU = "nvidia.com/gpu"
IMAGE = "localhost/gpunode-watch:test"
MADE = os.environ.get("GPUNODE_WATCH_IMAGE", "")  # an archive of IMAGE, made before
WATCHED = {"watch": {"image": IMAGE, "interval": 2}}
DISCOVERY = ("nfd-master", "nfd-worker", "nfd-gc")


@pytest.fixture(scope="module")
def cluster(
    cluster_up: Callable[..., Cluster],
) -> Cluster:
    """One provisioned node with two GPUs."""
    found = cluster_up(1, name="t-pods")
    found.gpunode("provision", "-i", found.lab.inventory, "-c", found.spec({"kubernetes": {}}), "--yes")
    return found


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.kube("remove", cluster.spec({"kubernetes": {}}, "remove.yml"))


def load_image(cluster: Cluster, archive: Path) -> None:
    with archive.open("rb") as file:
        command = ["podman", "exec", "-i", NODE, "ctr", "-n", "k8s.io", "images", "import", "-"]
        subprocess.run(command, stdin=file, check=True, capture_output=True)


def run_python(cluster: Cluster, code: str, name: str = "client") -> str:
    """What a program prints in a pod of the namespace gpunode, with the watch's image."""
    container = {"name": "main", "image": IMAGE, "command": ["python3", "-c", code]}
    body = {"containers": [container], "restartPolicy": "Never", "automountServiceAccountToken": False}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "gpunode"}, "spec": body})

    def ended() -> bool:
        return cluster.get("-n", "gpunode", "pod", name)["status"]["phase"] in ("Succeeded", "Failed")

    wait_for(ended)
    text = cluster.kubectl("-n", "gpunode", "logs", name)
    cluster.kubectl("-n", "gpunode", "delete", "pod", name, "--wait=false")
    return text


def scrape(cluster: Cluster, service: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The metrics of a Service, by an HTTP client in a pod: sample and its labels → value."""
    address = cluster.get("-n", "gpunode", "service", service)["spec"]
    url = f"http://{address['clusterIP']}:{address['ports'][0]['port']}/metrics"
    text = run_python(
        cluster, f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=20).read().decode())"
    )
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# ---------------------------------------------------------------- gpunode kube watch as a Deployment


@pytest.fixture(scope="module")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Containerfile's image on the node.  Its base is a tree of Debian with Python, as registries may be away."""
    if MADE:
        load_image(cluster, Path(MADE))
        yield IMAGE
        return
    folder = tmp_path_factory.mktemp("image")
    base, archive = folder / "base.tar", folder / "image.tar"
    packages = "--include=python3,python3-pip,ca-certificates"
    quiet = ["mmdebstrap", "--quiet", "--variant=minbase", '--aptopt=Apt::Install-Recommends "false"', packages]
    subprocess.run([*quiet, "trixie", str(base)], check=True)
    python = "localhost/gpunode-python:test"
    settings = ["-c", "ENV PIP_BREAK_SYSTEM_PACKAGES=1"]
    subprocess.run(["podman", "import", "--quiet", *settings, str(base), python], check=True)
    words = ["podman", "build", "--quiet", "--isolation", "chroot", "--network", "host", *_pip_settings()]
    subprocess.run([*words, "--build-arg", f"PYTHON={python}", "-t", IMAGE, str(ROOT)], check=True)
    subprocess.run(["podman", "save", "--quiet", "-o", str(archive), IMAGE], check=True)
    load_image(cluster, archive)
    archive.unlink()
    yield IMAGE
    subprocess.run(["podman", "rmi", "--force", IMAGE, python], check=False, capture_output=True)


def _pip_settings() -> list[str]:
    """This machine's own settings of pip and its certificates, for a build on it."""
    settings = Path("/etc/pip.conf")
    named = re.findall(r"(?:file://)?(/[^\s]+)", settings.read_text()) if settings.exists() else []
    folders = {Path("/", *Path(one).parts[1:3]) for one in named if not one.startswith("//")}
    mounted = [one for one in (settings, Path("/etc/ssl/certs"), *sorted(folders - {Path("/etc/ssl")})) if one.exists()]
    return [f"--volume={one}:{one}:ro" for one in mounted]


@pytest.fixture(scope="module")
def watched(cluster: Cluster, image: str) -> Iterator[Cluster]:
    """The device plugin and a watch of it, with nothing to report."""
    spec = cluster.spec({"kubernetes": WATCHED}, "watched.yml")
    cluster.kube("apply", spec)
    wait_for(lambda: cluster.allocatable(GPU) == {NODE: "2"})
    wait_for(lambda: quiet(cluster))
    yield cluster
    cluster.kube("remove", cluster.spec({"kubernetes": {}}, "remove.yml"))


def log(cluster: Cluster) -> list[dict[str, Any]]:
    lines = cluster.kubectl("-n", "gpunode", "logs", "deploy/watch").splitlines()
    return [json.loads(line) for line in lines]


def open_findings(cluster: Cluster) -> dict[tuple[str, str], str]:
    """What the log of the watch says is so now: check and object → message."""
    found: dict[tuple[str, str], str] = {}
    for line in log(cluster):
        if line["state"] == "found":
            found[line["check"], line["about"]] = line["message"]
        elif line["state"] == "gone":
            found.pop((line["check"], line["about"]), None)
    return found


def quiet(cluster: Cluster) -> bool:
    return bool(log(cluster)) and not open_findings(cluster)


def has(cluster: Cluster, check: str, about: str, *words: str) -> bool:
    message = open_findings(cluster).get((check, about))
    assert message is not None and all(word in message for word in words), open_findings(cluster)
    return True


def events(cluster: Cluster) -> set[tuple[str, str, str, str]]:
    """(type, reason, kind, name) of the Events that the watch wrote."""
    return {
        (one["type"], one["reason"], one["involvedObject"]["kind"], one["involvedObject"]["name"])
        for one in cluster.get("-A", "events")["items"]
        if one["source"].get("component") == "gpunode-watch"
    }


def state(cluster: Cluster) -> dict[str, Any]:
    """What somebody asked for: the generation, labels and data of all that a watch could change."""
    kinds = (
        "nodes,namespaces,daemonsets,deployments,configmaps,services,serviceaccounts,roles,clusterroles,runtimeclasses"
    )
    return {
        f"{one['kind']} {one['metadata']['name']}": (one["metadata"]["uid"], one["metadata"].get("generation"),
                                                     one["metadata"].get("labels"), one.get("data"), one.get("rules"))
        for one in cluster.get("-A", kinds)["items"]
        if one["metadata"].get("namespace", "gpunode") == "gpunode"
    }  # fmt: skip


def test_the_watch_runs_with_its_own_rights_alone_as_nobody_and_read_only(watched: Cluster) -> None:
    before = state(watched)
    assert len(before) > 10
    (pod,) = watched.get("-n", "gpunode", "pod", "-l", "app.kubernetes.io/name=watch")["items"]
    assert pod["spec"]["serviceAccountName"] == "watch"
    ask = "import os, pathlib; print(os.getuid(), pathlib.Path('/proc/1/cmdline').read_text().split(chr(0))[1:4])"
    words = ("-n", "gpunode", "exec", "deploy/watch", "--", "python3", "-c")
    assert watched.kubectl(*words, ask).startswith("65532 ")
    assert "Read-only file system" in watched.kubectl(*words, "open('/tmp/x', 'w')", check=False)
    assert [line for line in log(watched) if line["state"] == "unread"] == []
    account = "--as=system:serviceaccount:gpunode:watch"
    assert watched.kubectl("auth", "can-i", "create", "events", account).strip() == "yes"
    for verb, what in (("patch", "nodes"), ("get", "secrets"), ("create", "pods"), ("delete", "daemonsets"),
                       ("list", "configmaps"), ("watch", "pods"), ("patch", "events")):  # fmt: skip
        assert watched.kubectl("-n", "gpunode", "auth", "can-i", verb, what, account, check=False).startswith("no")
    assert state(watched) == before


def test_prometheus_reads_the_watch_by_its_service(watched: Cluster) -> None:
    found = scrape(watched, "watch")
    assert found["gpunode_kube_watch_up", ()] == 1
    assert found["gpunode_kube_node_resource_total", (("node", NODE), ("resource", GPU))] == 2
    assert found["gpunode_kube_node_ready", (("node", NODE),)] == 1
    assert {value for (name, _), value in found.items() if name == "gpunode_kube_findings"} == {0}
    assert found["gpunode_kube_unread", ()] == 0


def test_an_object_changed_or_deleted_by_hand_is_an_event_until_apply_mends_it(watched: Cluster) -> None:
    about = "ConfigMap gpunode/device-plugin-config"
    data = watched.get("-n", "gpunode", "configmap", "device-plugin-config")["data"]
    change = json.dumps({"data": dict.fromkeys(data, "version: v1\nflags: {migStrategy: single}\n")})
    watched.kubectl("-n", "gpunode", "patch", "configmap", "device-plugin-config", "--type=merge", "-p", change)
    wait_for(lambda: has(watched, "kube.drift", about, "differs"))
    watched.kubectl("delete", "runtimeclass", "nvidia")
    wait_for(lambda: has(watched, "kube.drift", "RuntimeClass nvidia", "it is gone"))
    now = {("Warning", "GpunodeDrift", "ConfigMap", "device-plugin-config")}
    now |= {("Warning", "GpunodeDrift", "RuntimeClass", "nvidia")}
    wait_for(lambda: now <= events(watched))
    assert watched.get("runtimeclasses")["items"] == [], "it only reports"
    watched.kube("apply", watched.folder / "watched.yml")
    wait_for(lambda: quiet(watched))
    wait_for(lambda: {("Normal", *one[1:]) for one in now} <= events(watched))


def test_a_pod_that_crashes_again_and_again_is_told(watched: Cluster) -> None:
    kind, name = "DaemonSet", "nvidia-device-plugin"
    wrong = ["nvidia-device-plugin", "--no-such-flag"]
    broken = [{"op": "replace", "path": "/spec/template/spec/containers/0/command", "value": wrong}]
    watched.kubectl("-n", "gpunode", "patch", "daemonset", name, "--type=json", "-p", json.dumps(broken))
    wait_for(lambda: has(watched, "kube.ready", f"{kind} gpunode/{name}", "no-such-flag"), 120)
    # its GPUs are gone with it
    wait_for(lambda: has(watched, "kube.gpus", f"node {NODE}"), 120)
    wait_for(lambda: has(watched, "kube.pool", "the cluster", "no node that is Ready offers a GPU"), 120)
    wanted = {("Warning", "GpunodeReady", kind, name), ("Warning", "GpunodeGpus", "Node", NODE)}
    wait_for(lambda: wanted | {("Warning", "GpunodePool", kind, name)} <= events(watched))
    watched.kube("apply", watched.folder / "watched.yml")
    wait_for(lambda: quiet(watched), 120)
    wait_for(lambda: {("Normal", *one[1:]) for one in wanted} <= events(watched))


def test_a_restart_of_the_api_server_is_told_and_outlived(watched: Cluster) -> None:
    (before,) = watched.get("-n", "gpunode", "pod", "-l", "app.kubernetes.io/name=watch")["items"]
    subprocess.run(["podman", "exec", "t-pods-control", "systemctl", "stop", "kube-apiserver"], check=True)
    address = before["status"]["podIP"]
    try:
        wait_for(lambda: "gpunode_kube_watch_up 0.0" in watched.lab.run(NODE, _get(address)).stdout, 120)
    finally:
        subprocess.run(["podman", "exec", "t-pods-control", "systemctl", "start", "kube-apiserver"], check=True)
    wait_for(lambda: "gpunode_kube_watch_up 1.0" in watched.lab.run(NODE, _get(address)).stdout, 120)
    wait_for(lambda: watched.ready() == {NODE: "True"})
    (after,) = watched.get("-n", "gpunode", "pod", "-l", "app.kubernetes.io/name=watch")["items"]
    restarts = [one["status"]["containerStatuses"][0]["restartCount"] for one in (before, after)]
    assert (after["metadata"]["uid"], restarts) == (before["metadata"]["uid"], [0, 0])
    assert any(line["state"] == "unread" for line in log(watched))
    wait_for(lambda: quiet(watched))


def _get(address: str) -> str:
    return (
        f"python3 -c \"import urllib.request as u; print(u.urlopen('http://{address}:9405/metrics').read().decode())\""
    )


# ---------------------------------------------------------------- Node Feature Discovery


def labels(cluster: Cluster) -> dict[str, str]:
    return dict(cluster.get("node", NODE)["metadata"]["labels"])


def unlabel(cluster: Cluster) -> None:
    """What `kube remove` leaves to `nfd-master -prune`."""
    gone = [f"{name}-" for name in labels(cluster) if name.startswith(("nvidia.com/", "feature.node.kubernetes.io/"))]
    if gone:
        cluster.kubectl("label", "node", NODE, *gone)


@pytest.mark.skipif(
    not all(Path(FOLDER, name).exists() for name in DISCOVERY), reason=f"{REASON} with nfd-master, nfd-worker, nfd-gc"
)
def test_discovery_labels_the_node_and_a_pool_is_chosen_by_its_labels(clean: Cluster) -> None:
    discovery = {"node_feature_discovery": True, "node_feature_discovery_install": "manifest"}
    present = {"feature.node.kubernetes.io/pci-10de.present": "true"}
    clean.kube("apply", clean.spec({"kubernetes": {**discovery, "node_selector": present}}))
    try:
        wait_for(lambda: clean.allocatable(GPU) == {NODE: "2"})
        wait_for(lambda: labels(clean).get("nvidia.com/gpu.count") == "2")
        found = labels(clean)
        assert "H100" in found["nvidia.com/gpu.product"]
        version = clean.lab.run(NODE, "cat /proc/driver/nvidia/version").stdout
        assert f" {found['nvidia.com/cuda.driver-version.full']} " in version
        (feature,) = clean.get("-n", "gpunode", "nodefeatures.nfd.k8s-sigs.io")["items"]
        assert feature["metadata"]["name"] == NODE
        assert {one["kind"] for one in feature["metadata"]["ownerReferences"]} == {"Pod", "DaemonSet"}
        pools = {"h100": {"nodes": "nvidia.com/gpu.count=2", "sharing": {"strategy": "time-slicing", "replicas": 4}}}
        spec = clean.spec({"kubernetes": {**discovery, "pools": pools}})
        clean.kube("apply", spec)
        wait_for(lambda: clean.allocatable(GPU) == {NODE: "8"})
        wait_for(lambda: labels(clean).get("nvidia.com/gpu.replicas") == "4", 120)
        assert [one for checks in clean.checks("verify", spec).values() for one in checks if one[1] == "failed"] == []
        assert "nothing found" in clean.kube("watch", spec, "--once").stdout
        for name in DISCOVERY:
            what = "daemonset" if name == "nfd-worker" else "deployment"
            assert "forbidden" not in clean.kubectl("-n", "gpunode", "logs", f"{what}/{name}")
        clean.kube("remove", spec)
        assert "nodefeatures" not in clean.kubectl("api-resources", "--api-group=nfd.k8s-sigs.io")
    finally:
        unlabel(clean)


# ---------------------------------------------------------------- NVIDIA's MIG manager


class ManagerDouble:
    """Plays nvidia-mig-manager at the API: it reads the label and the layout, pauses pods, says what came of it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def label(self, **values: str) -> None:
        names = {"state": "nvidia.com/mig.config.state", "client": "nvidia.com/gpu.deploy.client"}
        self.cluster.kubectl("label", "--overwrite", "node", NODE, *(f"{names[k]}={v}" for k, v in values.items()))

    def layout(self) -> Any:
        """What the node's label asks for, in the file that it would mount."""
        file = self.cluster.get("-n", "gpunode", "configmap", "mig-layouts")["data"]["config.yaml"]
        return yaml.safe_load(file)["mig-configs"][labels(self.cluster)["nvidia.com/mig.config"]]

    def clients(self) -> list[str]:
        """The pods that have to go before a GPU is changed."""
        pods = self.cluster.get("-n", "gpunode", "pods")["items"]
        return [one["metadata"]["name"] for one in pods if "deletionTimestamp" not in one["metadata"]]

    def change(self, state: str) -> None:
        self.label(state="pending", client="paused-for-mig-change")
        wait_for(lambda: not self.clients())
        self.label(state=state, client="true")


def test_the_mig_manager_s_labels_are_given_and_its_answers_are_read(clean: Cluster) -> None:
    mig = {"manager": "mig-manager", "strategy": "mixed", "profiles": {"1g.10gb": 7}}
    pools = {"small": {"nodes": f"kubernetes.io/hostname={NODE}", "sharing": {"strategy": "mig", "mig": mig}}}
    spec = clean.spec({"kubernetes": {"pools": pools}})
    manager = ManagerDouble(clean)

    def told() -> tuple[str, str]:
        checks = clean.checks("verify", spec, "--no-smoke")
        return next((status, text) for one in checks.values() for name, status, text in one if name == "kube.mig")

    try:
        clean.kube("apply", spec, "--no-wait")
        assert labels(clean)["nvidia.com/mig.config"] == "small"
        assert manager.layout() == [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]
        assert "no MIG manager has answered" in told()[1]
        wait_for(lambda: len(manager.clients()) > 0)
        manager.change("failed")
        assert told()[0] == "failed"
        assert "is failed" in clean.kube("watch", spec, "--once", exit=1).stdout
        wait_for(lambda: len(manager.clients()) > 0)  # they come back
        manager.label(client="paused-for-mig-change")
        assert "gpu.deploy.client" not in clean.kube("watch", spec, "--once", exit=None).stdout
        manager.change("success")
        assert told()[0] == "passed"
        assert "kube.mig" not in clean.kube("watch", spec, "--once", exit=None).stdout
    finally:
        clean.kube("remove", spec)
        left = labels(clean)
        unlabel(clean)
    assert "nvidia.com/mig.config" not in left
    assert "nvidia.com/gpu.deploy.client" not in left


# ---------------------------------------------------------------- DCGM exporter

STUB = """#!/bin/sh
# Stands in for dcgm-exporter: the fields of its counters file, with fixed values: nothing is measured.
[ "$1" = -f ] && [ -d /var/lib/kubelet/pod-resources ] || exit 1
mkdir -p /srv && echo OK >/srv/health
while IFS=, read -r name kind _; do
    case $name in DCGM_*) [ "$kind" != " label" ] || continue ;; *) continue ;; esac
    echo "# TYPE $name$kind"
    for gpu in 0 1; do
        echo "$name{gpu=\\"$gpu\\",UUID=\\"GPU-$gpu\\",device=\\"nvidia$gpu\\",modelName=\\"NVIDIA H100\\"} 4$gpu"
    done
done <"$2" >/srv/metrics
exec httpd -f -p "${DCGM_EXPORTER_LISTEN#:}" -h /srv
"""


@pytest.fixture(scope="module")
def exporter(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    archive, busybox = tmp_path_factory.mktemp("exporter") / "image.tar", Path("/usr/bin/busybox")
    contents = {f"/bin/{name}": busybox for name in ("sh", "mkdir", "httpd")}
    name = load_kube_knowledge().images["dcgm-exporter"]
    write_archive(archive, [name], {**contents, "/usr/bin/dcgm-exporter": STUB}, entrypoint=["dcgm-exporter"])
    load_image(cluster, archive)


def test_the_dcgm_exporter_s_daemonset_serves_the_fields_of_its_counters_file(
    clean: Cluster, exporter: None, image: str
) -> None:
    spec = clean.spec({"kubernetes": {"monitoring": {"enabled": True}}})
    clean.kube("apply", spec)
    found = scrape(clean, "dcgm-exporter")
    counters = clean.get("-n", "gpunode", "configmap", "dcgm-counters")["data"]["counters.csv"]
    fields = {line.split(",")[0] for line in counters.splitlines() if ", label," not in line}  # OpenMetrics: …_total
    assert {name.removesuffix("_total") for name, _ in found} == {name.removesuffix("_total") for name in fields}
    checks = clean.checks("verify", spec, "--no-smoke")
    assert ("kube.ready", "passed") in {(name, status) for name, status, _ in checks["cluster"]}
    assert "nothing found" in clean.kube("watch", spec, "--once").stdout


CRDS = sorted(Path(FOLDER, "crds").glob("*.yaml"))


@pytest.mark.skipif(not CRDS, reason=f"{REASON} with crds/ of the Prometheus operator")
def test_the_prometheus_operator_s_objects_fit_its_definitions(clean: Cluster, exporter: None, image: str) -> None:
    """ServiceMonitors of the exporter and of the watch, and the alerts, by the operator's own schemas."""
    for path in CRDS:
        clean.kubectl("apply", "--server-side", "-f", path)
    monitoring = {"enabled": True, "prometheus_operator": True, "labels": {"release": "p"}, "interval": "15s"}
    spec = clean.spec({"kubernetes": {"monitoring": monitoring, **WATCHED}})
    try:
        wait_for(lambda: "prometheusrules" in clean.kubectl("api-resources", "--api-group=monitoring.coreos.com"))
        clean.kubectl("wait", "--for=condition=Established", "crd", "--all")
        clean.gpunode("kube", "render", "-c", spec, "--server-version", "1.36", "-o", clean.folder / "operator")
        texts = [path.read_text() for path in (clean.folder / "operator").glob("*.yml")]
        kinds = ("ServiceMonitor", "PrometheusRule")
        every = [one for text in texts for one in yaml.safe_load_all(text) if one]
        objects = [one for one in every if one.get("kind") in kinds]
        assert sorted(one["kind"] for one in objects) == ["PrometheusRule", "ServiceMonitor", "ServiceMonitor"]
        clean.kubectl("create", "namespace", "gpunode")
        words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
        clean.kubectl(*words, stdin=yaml.safe_dump_all(objects))
        clean.kubectl("delete", "namespace", "gpunode")
        clean.kube("apply", spec)
        assert "nothing to do" in clean.kube("apply", spec).stdout
        assert "nothing found" in clean.kube("watch", spec, "--once").stdout
        wait_for(lambda: quiet(clean))  # the watch may read what it compares, ServiceMonitors too
    finally:
        clean.kube("remove", clean.spec({"kubernetes": {}}, "remove.yml"))
        clean.kubectl("delete", "crd", "-l", "app.kubernetes.io/managed-by!=gpunode", "--ignore-not-found")
