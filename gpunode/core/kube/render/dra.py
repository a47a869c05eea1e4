"""Dynamic Resource Allocation: the driver by its chart, and examples of classes and claims in the server's version."""

from __future__ import annotations

from typing import Any

from gpunode.core.kube.cluster import NEEDS_PLUGIN, POOL_LABEL, Cluster, Object, node_affinity, tolerations
from gpunode.core.kube.objects import pod, thing

DRIVER = "gpu.nvidia.com"


def dra_values(cluster: Cluster) -> dict[str, Any]:
    """Values of the chart dra-driver-nvidia-gpu, for the nodes of the pools that share by DRA."""
    repository, tag = cluster.image_parts("dra-driver")
    names = [pool.name for pool in cluster.pools_of("dra")]
    spec = cluster.spec
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": spec.images.pull_policy},
        "imagePullSecrets": [{"name": name} for name in spec.images.pull_secrets],
        "nvidiaDriverRoot": "/",
        "resourceApiVersion": cluster.knowledge.api("DeviceClass", cluster.server),
        "gpuResourcesEnabledOverride": True,  # asked for where no device plugin runs beside it: gpunode sees to that
        "resources": {"gpus": {"enabled": True}, "computeDomains": {"enabled": False}},
        "kubeletPlugin": {
            "kubeletRegistrarDirectoryPath": f"{spec.kubelet_dir}/plugins_registry",
            "kubeletPluginsDirectoryPath": f"{spec.kubelet_dir}/plugins",
            "nodeSelector": dict(spec.node_selector),
            "tolerations": tolerations(cluster),
            "affinity": node_affinity({"key": POOL_LABEL, "operator": "In", "values": names}),
            "priorityClassName": spec.device_plugin.priority_class,
        },
    }


def dra_problem(cluster: Cluster) -> tuple[str, str] | None:
    """Why DRA cannot be had here, and what would fix it."""
    if not cluster.pools_of("dra"):
        return None
    if not cluster.knowledge.api("DeviceClass", cluster.server):
        oldest = cluster.knowledge.apis["DeviceClass"][-1].since
        return f"Kubernetes {cluster.server} has no DRA that NVIDIA's driver knows", f"upgrade to {oldest} or newer"
    if cluster.spec.device_plugin.enabled and not cluster.pools_of(*NEEDS_PLUGIN):
        return (
            "the device plugin and the DRA driver on one node hand out the same GPUs, each unknown to the other",
            "remove kubernetes.device_plugin.enabled, or give other nodes a pool with another sharing.strategy",
        )
    return None


def dra_examples(cluster: Cluster) -> list[Object]:
    """A class of large GPUs, claims for a whole and for a shared GPU, and a pod that uses one."""
    api = cluster.knowledge.api("DeviceClass", cluster.server)
    if not cluster.pools_of("dra") or not api:
        return []
    large = (
        f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu' && "
        f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0"
    )
    device_class = thing("DeviceClass", api, "large-gpu.gpunode", "dra", {"spec": {"selectors": [_cel(large)]}})
    main = {
        "name": "cuda",
        "image": cluster.image("cuda-sample"),
        "resources": {"claims": [{"name": "gpu"}]},
    }
    spec = pod(cluster, containers=[main], restartPolicy="Never")
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "whole-gpu"}]
    return [
        device_class,
        claim_template(api, "whole-gpu", DRIVER),
        claim_template(api, "large-gpu", "large-gpu.gpunode"),
        thing("Pod", "v1", "dra-vectoradd", "dra", {"spec": spec}, namespace="default"),
    ]


def claim_template(api: str, name: str, device_class: str) -> Object:
    """A ResourceClaimTemplate for one device of the class.

    From v1beta2 on a request says `exactly`: https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
    """
    wanted = {"deviceClassName": device_class}
    request = {"name": "gpu", **(wanted if api.endswith("v1beta1") else {"exactly": wanted})}
    spec = {"spec": {"devices": {"requests": [request]}}}
    return thing("ResourceClaimTemplate", api, name, "dra", {"spec": spec}, namespace="default")


def _cel(expression: str) -> Object:
    return {"cel": {"expression": expression}}
