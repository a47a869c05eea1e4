"""Dynamic Resource Allocation: the driver by its chart, and examples of classes and claims in the server's version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpunode.core.model import Problem, Reason
from gpunode.kube.core.cluster import NEEDS_PLUGIN, Cluster, Object, pool_affinity, tolerations, user_tolerations
from gpunode.kube.core.objects import image_values, pod, thing
from gpunode.kube.core.render.handover import handover_values

DRIVER = "gpu.nvidia.com"
MEMORY_CLASS = "gpu-memory.gpunode"


def dra_values(cluster: Cluster) -> dict[str, Any]:
    """Values of the chart dra-driver-nvidia-gpu, for the nodes of the pools that share by DRA."""
    spec = cluster.spec
    shares = {"featureGates": memory_gates(cluster), "consumableShares": "memory"} if shares_memory(cluster) else {}
    host = handover_values(cluster, "dra-driver")
    return {
        **image_values(cluster, "dra-driver"),
        **host,
        "resourceApiVersion": cluster.knowledge.api("DeviceClass", cluster.server),
        "gpuResourcesEnabledOverride": True,  # asked for where no device plugin runs beside it: gpunode sees to that
        "resources": {"gpus": {"enabled": True}, "computeDomains": {"enabled": False}},
        **shares,
        "kubeletPlugin": {
            **host["kubeletPlugin"],
            "nodeSelector": dict(spec.node_selector),
            "tolerations": tolerations(cluster),
            "affinity": pool_affinity(cluster.pools_of("dra")),
            "priorityClassName": spec.device_plugin.priority_class,
        },
    }


def shares_memory(cluster: Cluster) -> bool:
    """Whether claims share a GPU by its memory."""
    return any(pool.sharing.dra.shares == "memory" for pool in cluster.pools_of("dra"))


def memory_gates(cluster: Cluster) -> dict[str, bool]:
    """The driver's own feature gates for shares of memory."""
    return {cluster.knowledge.memory_shares.driver_gate: True}


def dra_problems(cluster: Cluster) -> Iterator[Problem]:
    """Why DRA cannot be had here, and what would fix it."""
    if not cluster.pools_of("dra"):
        return
    if not cluster.knowledge.api("DeviceClass", cluster.server):
        oldest = cluster.knowledge.apis["DeviceClass"][-1].since
        yield Problem(
            what=f"Kubernetes {cluster.server} has no DRA that NVIDIA's driver knows",
            fix=f"upgrade to {oldest} or newer",
        )
    elif cluster.spec.device_plugin.enabled and not cluster.pools_of(*NEEDS_PLUGIN):
        yield Problem(
            what="the device plugin and the DRA driver on one node hand out the same GPUs, each unknown to the other",
            fix="remove kubernetes.device_plugin.enabled, or give other nodes a pool with another sharing.strategy",
        )
    elif shares_memory(cluster):
        yield from _memory_problems(cluster)


def _memory_problems(cluster: Cluster) -> Iterator[Problem]:
    needs = cluster.knowledge.memory_shares
    if cluster.server < needs.since:
        yield Problem(
            what=f"Kubernetes {cluster.server} knows no shares of a device's memory (sharing.dra.shares)",
            fix=f"upgrade to {needs.since} or newer ({needs.on} has them on), or set sharing.strategy: gpushare",
        )
    whole = [pool.name for pool in cluster.pools_of("dra") if pool.sharing.dra.shares != "memory"]
    if whole:
        yield Problem(
            what=f"sharing.dra.shares is memory for some pools, and none for {', '.join(whole)}: "
            "NVIDIA's DRA driver has one setting for all nodes",
            fix="set the same for all pools with strategy dra: a claim without an amount gets a whole GPU",
        )
    _, tag = cluster.image_parts("dra-driver")
    if _is_older(tag, needs.driver):
        yield Problem(
            what=f"the DRA driver {tag} offers whole devices alone; shares of memory came with {needs.driver}",
            fix=f"set kubernetes.images.names.dra-driver to {needs.driver} or newer, or remove it",
        )


def _is_older(tag: str, version: str) -> bool:
    """Whether a tag of the driver is of an older release; what is no release is not judged.

    Up to 25.12 releases were named by year and month, and the next one was 0.4 (RELEASE.md of the driver).
    """
    found = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:-.*)?", tag)
    if not found:
        return False
    number = tuple(int(part or 0) for part in found.groups())
    return number[0] >= 25 or number < tuple(int(part) for part in version.split("."))


def dra_notes(cluster: Cluster) -> Iterator[Reason]:
    """What an administrator has to know or to do besides."""
    if not cluster.pools_of("dra"):
        return
    api = cluster.knowledge.api("DeviceClass", cluster.server)
    if "beta" in api:
        yield Reason(
            what=f"DRA is off by default on {cluster.server}",
            why="feature gate DynamicResourceAllocation on every component, and "
            f"--runtime-config={api}=true on kube-apiserver; from 1.34 on it is on",
        )
    if not shares_memory(cluster):
        return
    needs = cluster.knowledge.memory_shares
    if cluster.server < needs.on:
        yield Reason(
            what=f"shares of a device's memory are alpha and off by default on {cluster.server}",
            why=f"--feature-gates={needs.gate}=true on kube-apiserver, kube-scheduler, kube-controller-manager and "
            f"every kubelet; from {needs.on} on it is on",
        )
    yield Reason(
        what="DRA counts memory, and limits no container",
        why=f"a container may use more than its claim; in NVIDIA's driver shares are alpha ({needs.driver_gate}), and "
        "exclude MPS",
    )


def dra_examples(cluster: Cluster) -> list[Object]:
    """Classes and claims, and pods that use them: a whole and a large GPU, or 3 and 5 GiB of one."""
    api = cluster.knowledge.api("DeviceClass", cluster.server)
    if not cluster.pools_of("dra") or not api:
        return []
    gpus = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
    if shares_memory(cluster):
        shared = f"{gpus} && device.allowMultipleAllocations"
        examples = [_class(api, MEMORY_CLASS, shared), claim_template(api, "whole-gpu", DRIVER)]
        for size in ("3Gi", "5Gi"):
            name = f"gpu-memory-{size.lower()}"
            examples += [claim_template(api, name, MEMORY_CLASS, memory=size), _example(cluster, f"dra-{name}", name)]
        return examples
    large = f"{gpus} && device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0"
    return [
        _class(api, "large-gpu.gpunode", large),
        claim_template(api, "whole-gpu", DRIVER),
        claim_template(api, "large-gpu", "large-gpu.gpunode"),
        _example(cluster, "dra-vectoradd", "whole-gpu"),
    ]


def _example(cluster: Cluster, name: str, template: str) -> Object:
    main = {"name": "cuda", "image": cluster.image("cuda-sample"), "resources": {"claims": [{"name": "gpu"}]}}
    spec = pod(cluster, containers=[main], restartPolicy="Never", tolerations=user_tolerations(cluster))
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
    return thing("Pod", "v1", name, "dra", {"spec": spec}, namespace="default")


def claim(api: str, name: str, device_class: str, *, memory: str = "") -> Object:
    """A ResourceClaim for one device of the class, or for so much of its memory.

    From v1beta2 on a request says `exactly`: https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
    """
    wanted: Object = {"deviceClassName": device_class}
    wanted |= {"capacity": {"requests": {"memory": memory}}} if memory else {}
    request = {"name": "gpu", **(wanted if api.endswith("v1beta1") else {"exactly": wanted})}
    return thing("ResourceClaim", api, name, "dra", {"spec": {"devices": {"requests": [request]}}}, namespace="default")


def claim_template(api: str, name: str, device_class: str, *, memory: str = "") -> Object:
    """A ResourceClaimTemplate for such claims."""
    spec = {"spec": {"spec": claim(api, name, device_class, memory=memory)["spec"]}}
    return thing("ResourceClaimTemplate", api, name, "dra", spec, namespace="default")


def _class(api: str, name: str, expression: str) -> Object:
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return thing("DeviceClass", api, name, "dra", {"spec": spec})
