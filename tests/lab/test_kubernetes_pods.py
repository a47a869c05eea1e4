"""What gpunode renders as pods, under a real kubelet: Node Feature Discovery, the MIG manager's
contract, the DCGM exporter.

GPUNODE_KUBERNETES names the folder of programs (test_kubernetes.py); Node Feature Discovery needs nfd-master,
nfd-worker and nfd-gc in it, the Prometheus operator's objects its definitions in crds/.  Not real: the GPUs, the MIG
manager (a double that plays its part at the API) and the exporter (a stub that serves fixed values).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import FOLDER, REASON, Cluster, failed, wait_for
from prometheus_client.parser import text_string_to_metric_families

from gpunode.edge.load import load_kube_knowledge
from gpunode.lab.kubernetes.archives import write_archive

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FOLDER, reason=REASON)]

ROOT = Path(__file__).parents[2]
NODE = "t-pods-1"
GPU = "nvidia.com/gpu"
SOON = ("--timeout", 2)  # for what does not pass by itself
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
        command = [
            "podman",
            "exec",
            "-i",
            cluster.lab.nodes[0].container,
            "ctr",
            "-n",
            "k8s.io",
            "images",
            "import",
            "-",
        ]
        subprocess.run(command, stdin=file, check=True, capture_output=True)


def scrape(cluster: Cluster, service: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What a Service of the namespace gpunode gives to Prometheus, asked on the node."""
    found = cluster.get("-n", "gpunode", "service", service)["spec"]
    url = f"http://{found['clusterIP']}:{found['ports'][0]['port']}/metrics"
    text = cluster.lab.run(
        NODE, f"python3 -c \"import urllib.request as u; print(u.urlopen('{url}', timeout=20).read().decode())\""
    ).stdout
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


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
        assert failed(clean.checks("verify", spec)) == []
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
        checks = clean.checks("verify", spec, *SOON)
        return next((status, text) for one in checks.values() for name, status, text in one if name == "kube.mig")

    try:
        clean.kube("apply", spec, "--no-wait")
        assert labels(clean)["nvidia.com/mig.config"] == "small"
        assert manager.layout() == [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]
        assert "no MIG manager has answered" in told()[1]
        wait_for(lambda: len(manager.clients()) > 0)
        manager.change("failed")
        assert told()[0] == "failed"
        assert "is failed" in clean.kube("verify", spec, *SOON, exit=1).stdout
        wait_for(lambda: len(manager.clients()) > 0)  # they come back
        manager.label(client="paused-for-mig-change")
        assert "gpu.deploy.client" not in clean.kube("verify", spec, *SOON, exit=None).stdout
        manager.change("success")
        assert told()[0] == "passed"
        assert "kube.mig" not in clean.kube("verify", spec, *SOON, exit=None).stdout
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


def test_the_dcgm_exporter_s_daemonset_serves_the_fields_of_its_counters_file(clean: Cluster, exporter: None) -> None:
    spec = clean.spec({"kubernetes": {"monitoring": {"enabled": True}}})
    clean.kube("apply", spec)
    found = scrape(clean, "dcgm-exporter")
    counters = clean.get("-n", "gpunode", "configmap", "dcgm-counters")["data"]["counters.csv"]
    fields = {line.split(",")[0] for line in counters.splitlines() if ", label," not in line}  # OpenMetrics: …_total
    assert {name.removesuffix("_total") for name, _ in found} == {name.removesuffix("_total") for name in fields}
    checks = clean.checks("verify", spec)
    assert ("kube.ready", "passed") in {(name, status) for name, status, _ in checks["cluster"]}
    assert failed(clean.checks("verify", spec)) == []


CRDS = sorted(Path(FOLDER, "crds").glob("*.yaml"))


@pytest.mark.skipif(not CRDS, reason=f"{REASON} with crds/ of the Prometheus operator")
def test_the_prometheus_operator_s_objects_fit_its_definitions(clean: Cluster, exporter: None) -> None:
    """The exporter's ServiceMonitor, and the alerts, by the operator's own schemas."""
    for path in CRDS:
        clean.kubectl("apply", "--server-side", "-f", path)
    monitoring = {"enabled": True, "prometheus_operator": True, "labels": {"release": "p"}, "interval": "15s"}
    spec = clean.spec({"kubernetes": {"monitoring": monitoring}})
    try:
        wait_for(lambda: "prometheusrules" in clean.kubectl("api-resources", "--api-group=monitoring.coreos.com"))
        clean.kubectl("wait", "--for=condition=Established", "crd", "--all")
        clean.gpunode("kube", "render", "-c", spec, "--server-version", "1.36", "-o", clean.folder / "operator")
        texts = [path.read_text() for path in (clean.folder / "operator").glob("*.yml")]
        kinds = ("ServiceMonitor", "PrometheusRule")
        every = [one for text in texts for one in yaml.safe_load_all(text) if one]
        objects = [one for one in every if one.get("kind") in kinds]
        assert sorted(one["kind"] for one in objects) == ["PrometheusRule", "ServiceMonitor"]
        clean.kubectl("create", "namespace", "gpunode")
        words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
        clean.kubectl(*words, stdin=yaml.safe_dump_all(objects))
        clean.kubectl("delete", "namespace", "gpunode")
        clean.kube("apply", spec)
        assert "nothing to do" in clean.kube("apply", spec).stdout
        assert failed(clean.checks("verify", spec)) == []
    finally:
        clean.kube("remove", clean.spec({"kubernetes": {}}, "remove.yml"))
        clean.kubectl("delete", "crd", "-l", "app.kubernetes.io/managed-by!=gpunode", "--ignore-not-found")
