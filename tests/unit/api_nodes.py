"""A scheduler, kubelets and the gpushare extender in a few lines, as a controller of api_server.py.

They do what the real ones are seen to do with pods that ask for GPUs: nodes by affinity and capacity, the extender's
annotations, `nvidia-smi -L` in the log, the messages of the scheduler.  `spoil` makes them do it wrongly.
"""

from __future__ import annotations

import threading
from typing import Any

from api_server import ApiServer

from gpunode.kube.core.usage import asked

Object = dict[str, Any]
MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
GIB = 16  # memory of gpu-0, which claims share


class Nodes:
    """`replicas`: shares of each GPU.  `spoil`: vectoradd, sees-all, no-extender, spread, too-generous, slow, whole,
    nowhere.

    Claims for memory get it on gpu-0, GIB at most; with `whole` they get all of it.
    """

    def __init__(self, server: ApiServer, *, replicas: int = 1, spoil: str = "") -> None:
        self.server = server
        self.replicas = replicas
        self.spoil = spoil
        self.lock = threading.RLock()
        self.started: list[str] = []
        server.controllers.append(self)

    def __call__(self, server: ApiServer, event: str, item: Object) -> None:
        if event == "DELETED":
            if item["kind"] == "StatefulSet":
                for name in server.names("Pod"):
                    if name.startswith(f"{item['metadata']['namespace']}/{item['metadata']['name']}-"):
                        server.gone(("v1", "pods", *name.split("/")))
            return
        if event != "ADDED":
            return
        namespace = item["metadata"].get("namespace", "")
        if item["kind"] == "Namespace":
            name = item["metadata"]["name"]
            server.put(
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
            )
        elif item["kind"] == "StatefulSet" and namespace == "gpunode-verify":
            for i in range(item["spec"]["replicas"]):
                metadata = {"name": f"{item['metadata']['name']}-{i}", "namespace": namespace}
                spec = item["spec"]["template"]["spec"]
                server.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {}})
        elif item["kind"] == "Pod" and namespace == "gpunode-verify" and self.spoil != "slow":
            self.started.append(item["metadata"]["name"])
            server.later(0.02, lambda: self.schedule(item["metadata"]["name"]))

    # ------------------------------------------------------------ the scheduler

    def schedule(self, name: str) -> None:
        with self.lock, self.server.changed:
            pod = self.server.get("Pod", name, "gpunode-verify")
            if pod is None:
                return
            if self.spoil == "nowhere":
                self.unschedulable(pod, "0/1 nodes are available: 1 node(s) had untolerated taint(s).")
                return
            if "resourceClaims" in pod["spec"] and not self.allocated(pod):
                why = "0/1 nodes are available: 1 cannot allocate all claims."
                self.unschedulable(pod, why)
                return
            limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
            resource, amount = next(((r, int(v)) for r, v in limits.items()), ("", 0))
            for node in self.fitting(pod):
                free = self.free(node, resource)
                if resource == MEMORY and self.spoil != "no-extender":
                    card = self.card(free, amount)
                    if card is not None:
                        pod["metadata"].setdefault("annotations", {}).update(
                            {"ALIYUN_COM_GPU_MEM_IDX": str(card), "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
                        )
                        self.run(pod, node, [card])
                        return
                elif sum(free) >= amount or self.spoil == "too-generous":
                    self.run(pod, node, sorted(range(len(free)), key=lambda i: -free[i])[: max(1, amount)])
                    return
            why = "0/1 nodes are available: 1 Insufficient GPU Memory in one device." if resource == MEMORY else (
                f"0/1 nodes are available: 1 Insufficient {resource}.")  # fmt: skip
            self.unschedulable(pod, why)

    def unschedulable(self, pod: Object, why: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        pod["status"] = {"phase": "Pending", "conditions": [condition]}
        self.server.put(pod, "kube-scheduler")

    def allocated(self, pod: Object) -> bool:
        """Allocate the claims for memory that the pod names; those of templates are taken for granted."""
        for one in pod["spec"]["resourceClaims"]:
            claim = self.server.get("ResourceClaim", one.get("resourceClaimName", ""), "gpunode-verify")
            if claim is None:
                continue
            amount = claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"]
            if int(amount.removesuffix("Gi")) > GIB:
                return False
            result = {"driver": "gpu.nvidia.com", "pool": "gpu1", "device": "gpu-0", "request": "gpu"}
            result |= {} if self.spoil == "whole" else {"consumedCapacity": {"memory": amount}}
            claim["status"] = {"allocation": {"devices": {"results": [result]}}}
            self.server.put(claim, "kube-scheduler")
        return True

    def fitting(self, pod: Object) -> list[Object]:
        terms = (((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []  # fmt: skip
        names = [v for term in terms for field in term["matchFields"] for v in field["values"]]
        found = [self.server.get("Node", name) for name in self.server.names("Node")]
        return [node for node in found if node and (not names or node["metadata"]["name"] in names)]

    def free(self, node: Object, resource: str) -> list[int]:
        """Free amount by GPU."""
        allocatable = node["status"]["allocatable"]
        total = int(allocatable.get(resource, "0"))
        cards = int(allocatable.get(COUNT, "0")) if resource == MEMORY else total // self.replicas
        free = [total // cards] * cards if cards else []
        for name in self.server.names("Pod"):
            pod = self.server.get("Pod", name.split("/")[1], name.split("/")[0]) or {"spec": {}}
            if pod["spec"].get("nodeName") != node["metadata"]["name"] or not asked(pod, resource):
                continue
            if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                continue
            for card in (pod["metadata"].get("annotations") or {}).get("cards", "0").split(","):
                free[int(card)] -= asked(pod, resource) if resource == MEMORY else 1
        return free

    def card(self, free: list[int], amount: int) -> int | None:
        room = [i for i, memory in enumerate(free) if memory >= amount]
        if not room:
            return None
        return max(room, key=lambda i: free[i]) if self.spoil == "spread" else min(room, key=lambda i: free[i])

    # ------------------------------------------------------------ the kubelet

    def run(self, pod: Object, node: Object, cards: list[int]) -> None:
        name, on = pod["metadata"]["name"], node["metadata"]["name"]
        pod["metadata"].setdefault("annotations", {})["cards"] = ",".join(map(str, cards))
        pod["spec"]["nodeName"] = on
        holds = "command" in pod["spec"]["containers"][0]
        seen = range(8) if self.spoil == "sees-all" else cards
        lines = [f"GPU {i}: NVIDIA A100 (UUID: GPU-{on}-{card})" for i, card in enumerate(seen)]
        good = "[Vector addition of 50000 elements]\nTest PASSED\nDone\n"
        bad = "Failed to allocate device vector A (error code no CUDA-capable device is detected)!\n"
        failed = not holds and self.spoil == "vectoradd"
        self.server.logs[f"gpunode-verify/{name}"] = "\n".join(lines) + "\n" if holds else bad if failed else good
        state = {"running": {}} if holds else {"terminated": {"exitCode": int(failed), "reason": "Error"}}
        pod["status"] = {
            "phase": "Running" if holds else "Failed" if failed else "Succeeded",
            "containerStatuses": [{"name": "cuda", "state": state}],
        }
        self.server.put(pod, "kubelet")
