"""What gpunode renders under a real kubelet: the MIG manager's contract.

GPUNODE_KUBERNETES names the folder of programs (test_kubernetes.py).  Not real: the GPUs, and the MIG manager (a double
that plays its part at the API).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from cluster import FOLDER, REASON, Cluster, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FOLDER, reason=REASON)]

NODE = "t-pods-1"
SOON = ("--timeout", 2)  # for what does not pass by itself


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


def labels(cluster: Cluster) -> dict[str, str]:
    return dict(cluster.get("node", NODE)["metadata"]["labels"])


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
        clean.kubectl("label", "node", NODE, *(f"{name}-" for name in left if name.startswith("nvidia.com/")))
    assert "nvidia.com/mig.config" not in left
    assert "nvidia.com/gpu.deploy.client" not in left
