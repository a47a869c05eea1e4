"""gpushare (Aliyun): the scheduler extender on the control plane, the device plugin on GPU nodes, their rights.

Upstream's manifests select and tolerate node-role.kubernetes.io/master only, which no node carries since 1.24.
"""

from __future__ import annotations

from gpunode.core.edits.kubernetes.scheduler import with_prefix
from gpunode.kube.core.cluster import GPUSHARE_LABEL, Cluster, Object, required_affinity, tolerations, user_tolerations
from gpunode.kube.core.marks import CONTROL_PLANE
from gpunode.kube.core.objects import (
    DEVICE_PLUGINS,
    UNPRIVILEGED,
    account,
    container,
    daemon_set,
    env,
    field,
    host_path,
    labels,
    mount,
    pod,
    rule,
    selector,
    single,
    thing,
)

EXTENDER, PLUGIN = "gpushare-extender", "gpushare-device-plugin"
MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
PORT = 12345

_READ, _POD = ["get", "list", "watch"], ["update", "patch", "get", "list", "watch"]
# pods/binding is what binds: without it a pod is annotated, and stays Pending
EXTENDER_RULES = (
    rule(["nodes"], _READ),
    rule(["events"], ["create", "patch"]),
    rule(["pods"], _POD),
    rule(["bindings", "pods/binding"], ["create"]),
    rule(["configmaps"], _READ),
)
PLUGIN_RULES = (
    rule(["nodes", "nodes/proxy"], _READ),
    rule(["events"], ["create", "patch"]),
    rule(["pods"], _POD),
    rule(["nodes/status"], ["patch", "update"]),
)


def extender_url(cluster: Cluster) -> str:
    """The urlPrefix for kube-scheduler; "" where it has to be given.

    127.0.0.1 reaches a NodePort through kube-proxy's iptables mode only.
    """
    spec = cluster.spec.gpushare
    local = f"http://127.0.0.1:{spec.node_port}" if spec.kube_proxy == "iptables" else ""
    base = spec.extender_url or local
    return with_prefix(base) if base else ""


def gpushare(cluster: Cluster) -> list[Object]:
    """Everything, where a pool shares by memory."""
    if not cluster.pools_of("gpushare"):
        return []
    return [
        *account(cluster, EXTENDER, EXTENDER_RULES),
        *account(cluster, PLUGIN, PLUGIN_RULES),
        _service(cluster),
        _extender(cluster),
        _plugin(cluster),
    ]


def _service(cluster: Cluster) -> Object:
    node_port = cluster.spec.gpushare.node_port
    port = {"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP", "nodePort": node_port}
    spec = {"type": "NodePort", "selector": selector(EXTENDER), "ports": [port]}
    return thing("Service", "v1", EXTENDER, EXTENDER, {"spec": spec}, namespace=cluster.spec.namespace)


def _extender(cluster: Cluster) -> Object:
    """One pod only: each keeps the free memory of every GPU in its own head."""
    main = container(
        cluster, EXTENDER, EXTENDER,
        env=env(LOG_LEVEL="info", PORT=str(PORT)),
        ports=[{"name": "http", "containerPort": PORT}],
        readinessProbe={"tcpSocket": {"port": "http"}, "periodSeconds": 5},
        securityContext=UNPRIVILEGED,
    )  # fmt: skip
    taints = (CONTROL_PLANE, "node.cloudprovider.kubernetes.io/uninitialized")
    tolerated = [{"key": taint, "operator": "Exists", "effect": "NoSchedule"} for taint in taints]
    spec = pod(
        cluster, containers=[main], gpu=False,
        serviceAccountName=EXTENDER,
        priorityClassName="system-cluster-critical",
        terminationGracePeriodSeconds=5,  # it does not hear SIGTERM: as long does every removal and update wait
        hostNetwork=True,  # kube-scheduler asks it even while the pod network is down
        affinity=required_affinity({"matchExpressions": [{"key": CONTROL_PLANE, "operator": "Exists"}]}),
        tolerations=tolerations(cluster, *tolerated),
    )  # fmt: skip
    return single(cluster, EXTENDER, spec)


def _plugin(cluster: Cluster) -> Object:
    spec = cluster.spec.gpushare
    flags = ["-logtostderr", "--v=5", f"--memory-unit={spec.memory_unit}"]
    main = container(
        cluster, PLUGIN, PLUGIN,
        command=["gpushare-device-plugin-v2", *flags, *(["--health-check=true"] if spec.health_check else [])],
        env=[
            field("NODE_NAME", "spec.nodeName"),
            *env(NVIDIA_VISIBLE_DEVICES="all", NVIDIA_DRIVER_CAPABILITIES="utility"),
        ],
        # Guaranteed: never evicted
        resources={kind: {"cpu": "1", "memory": "300Mi"} for kind in ("requests", "limits")},
        securityContext=UNPRIVILEGED,
        volumeMounts=[mount("device-plugins", DEVICE_PLUGINS)],
    )  # fmt: skip
    template = pod(
        cluster, containers=[main],
        serviceAccountName=PLUGIN,
        priorityClassName=cluster.spec.device_plugin.priority_class,
        hostNetwork=True,
        nodeSelector={**cluster.spec.node_selector, GPUSHARE_LABEL: "true"},
        volumes=[host_path("device-plugins", DEVICE_PLUGINS, "Directory")],
    )  # fmt: skip
    return daemon_set(cluster, PLUGIN, template)


def gpushare_examples(cluster: Cluster) -> list[Object]:
    """Three pods that the scheduler packs onto one GPU."""
    name = "binpack-1"
    main = {"name": name, "image": "cheyang/gpu-player:v2", "resources": {"limits": {MEMORY: "3"}}}
    spec = {
        "serviceName": name,
        "replicas": 3,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": name}},
        "template": {
            "metadata": {"labels": {"app": name, **labels(name)}},
            "spec": pod(cluster, containers=[main], tolerations=user_tolerations(cluster)),
        },
    }
    return [thing("StatefulSet", "apps/v1", name, name, {"spec": spec}, namespace="default")]
