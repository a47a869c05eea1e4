"""NVIDIA's device plugin, its MPS daemon, and GPU Feature Discovery: as the chart, with the least privilege."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import yaml

from gpunode.kube.core.cluster import Cluster, Object, Pool, pool_affinity
from gpunode.kube.core.objects import (
    DEVICE_PLUGINS,
    UNPRIVILEGED,
    config_map,
    container,
    daemon_set,
    env,
    field,
    host_path,
    mount,
    pod,
)
from gpunode.kube.core.render.plugin_config import MPS_ROOT, mig_strategy, plugin_config

FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"
PLUGIN, DISCOVERY, MPS = "nvidia-device-plugin", "gpu-feature-discovery", "mps-control-daemon"
CONFIG = "device-plugin-config"
MPS_LABEL = "nvidia.com/mps.capable"  # by GPU Feature Discovery, through Node Feature Discovery
_PRIVILEGED = {"privileged": True}
_CONFIG_MOUNT = mount("config", "/config", readOnly=True)
_ENVIRONMENT = env(
    CONFIG_FILE="/config/config.yaml", NVIDIA_VISIBLE_DEVICES="all", NVIDIA_DRIVER_CAPABILITIES="compute,utility"
)


# At the pod's end: when the daemons have quit (.started goes then), what NVIDIA's program leaves on the host goes, too.
# The folder itself stays, as the device plugin has it mounted.
_CLEAN_UP = """\
clean_up() {
  tries=15
  while [ "$tries" != 0 ] && ls /mps/*/*/.started; do tries=$((tries - 1)); sleep 1; done >/dev/null 2>&1
  sleep 1
  umount /mps/shm
  rm -rf /mps/.ready /mps/shm /mps/nvidia.com
  exit 0
}
trap clean_up TERM
while :; do sleep 3600 & wait $!; done
"""


def plugin_configs(cluster: Cluster) -> dict[str, str]:
    """Pool → its configuration as YAML."""
    return {pool.name: config_text(cluster, pool.name) for pool in cluster.plugin_pools}


def config_text(cluster: Cluster, name: str) -> str:
    pool = next(pool for pool in cluster.pools if pool.name == name)
    return yaml.safe_dump(plugin_config(pool.sharing, cluster.spec.device_plugin), sort_keys=False)


def default_config(cluster: Cluster) -> str:
    """The configuration of nodes without the label: none where pools name their nodes, else the only one."""
    return next((pool.name for pool in cluster.plugin_pools if not pool.has_known_nodes), "")


def device_plugin(cluster: Cluster) -> list[Object]:
    """Everything for the pools whose GPUs the device plugin offers; [] where there is none.

    Each pool has workloads of its own, so that no pod ever exchanges its configuration while it runs: the plugin would
    register twice, and a kubelet that hears of the end of the first registration last counts all GPUs as unhealthy
    (https://github.com/NVIDIA/k8s-device-plugin/issues/1645).
    """
    if not cluster.plugin_pools:
        return []
    objects = [config_map(cluster, CONFIG, PLUGIN, plugin_configs(cluster))]
    objects += [_plugin(cluster, pool) for pool in cluster.plugin_pools]
    if cluster.spec.feature_discovery:
        objects += [_discovery(cluster, pool) for pool in cluster.plugin_pools]
    return objects + [_mps_daemon(cluster, pool) for pool in cluster.pools_of("mps")]


def of_pool(cluster: Cluster, component: str, pool: Pool) -> str:
    """The name of a component's workload for a pool: the component's own where there is no other pool.

    A pool's name is a label's value; what no object may be named is replaced, and its hash keeps names apart.
    """
    if len(cluster.plugin_pools) == 1:
        return component
    word = re.sub("[^a-z0-9]+", "-", pool.name.lower()).strip("-")[:24].strip("-")
    return f"{component}-{word}" if word == pool.name else f"{component}-{word}-{_digest(pool.name)[:6]}"


def plugin_affinity(*pools: Pool) -> Object:
    """The nodes of these pools, {} where nobody names them."""
    return pool_affinity(pools) if all(pool.has_known_nodes for pool in pools) else {}


def mps_affinity(pool: Pool) -> Object:
    """The nodes of a pool; where nobody names them also those that GFD calls capable: on others the daemon fails."""
    capable = {"key": MPS_LABEL, "operator": "In", "values": ["true"]}
    return pool_affinity([pool], *([] if pool.has_known_nodes else [capable]))


def mig_environment(pool: Pool) -> list[Object]:
    """Without it the driver hides MIG capabilities from the container."""
    return env(NVIDIA_MIG_MONITOR_DEVICES="all") if mig_strategy(pool.sharing) != "none" else []


def _plugin(cluster: Cluster, pool: Pool) -> Object:
    mps = pool.sharing.strategy == "mps"
    cdi = cluster.spec.device_plugin.by_cdi  # the plugin has to see the host's files under /driver-root for that
    main = container(
        cluster, PLUGIN, PLUGIN,
        command=["nvidia-device-plugin"],
        env=[
            *_ENVIRONMENT,
            *(env(MPS_ROOT=MPS_ROOT) if mps else []),
            *mig_environment(pool),
        ],
        securityContext=_least(cluster, pool),
        volumeMounts=[
            mount("device-plugins", DEVICE_PLUGINS),
            _CONFIG_MOUNT,
            *([mount("cdi", "/var/run/cdi"), mount("driver-root", "/driver-root", readOnly=True)] if cdi else []),
            *(_mps_mounts() if mps else []),
        ],
    )  # fmt: skip
    volumes = [
        host_path("device-plugins", DEVICE_PLUGINS, "Directory"),
        *([host_path("cdi", "/var/run/cdi"), host_path("driver-root", "/", "Directory")] if cdi else []),
        *(_mps_volumes() if mps else []),
    ]
    return _daemon_set(cluster, PLUGIN, pool, [main], volumes, affinity=plugin_affinity(pool))


def _discovery(cluster: Cluster, pool: Pool) -> Object:
    main = container(
        cluster, DISCOVERY, DISCOVERY,
        command=["gpu-feature-discovery"],
        env=[
            field("NODE_NAME", "spec.nodeName"),
            field("NAMESPACE", "metadata.namespace"),
            field("POD_NAME", "metadata.name"),
            *_ENVIRONMENT,
            *env(GFD_USE_NODE_FEATURE_API="false"),  # a file for Node Feature Discovery: no rights on the API
            *mig_environment(pool),
        ],
        securityContext=_PRIVILEGED,  # to read what a vGPU's host says
        volumeMounts=[mount("features", FEATURES), mount("sys", "/sys", readOnly=True), _CONFIG_MOUNT],
    )  # fmt: skip
    volumes = [host_path("features", FEATURES), host_path("sys", "/sys", "Directory")]
    return _daemon_set(cluster, DISCOVERY, pool, [main], volumes, affinity=plugin_affinity(pool))


def _mps_daemon(cluster: Cluster, pool: Pool) -> Object:
    prepare = _mps_helper(cluster, "mount-shm", "mps-control-daemon", "mount-shm")
    clean_up = _mps_helper(cluster, "clean-up", "sh", "-c", _CLEAN_UP)
    main = container(
        cluster, MPS, MPS,
        command=["mps-control-daemon"],
        env=[field("NODE_NAME", "spec.nodeName"), *_ENVIRONMENT],
        securityContext=_PRIVILEGED,
        volumeMounts=[*_mps_mounts(), _CONFIG_MOUNT],
    )  # fmt: skip
    return _daemon_set(
        cluster, MPS, pool, [main, clean_up], _mps_volumes(),
        initContainers=[prepare], affinity=mps_affinity(pool), hostPID=True,
    )  # fmt: skip


def _mps_helper(cluster: Cluster, name: str, *command: str) -> Object:
    """A container whose mounts are the host's, too."""
    return container(
        cluster, MPS, name,
        command=list(command),
        securityContext=_PRIVILEGED,
        volumeMounts=[mount("mps-root", "/mps", mountPropagation="Bidirectional")],
    )  # fmt: skip


def _mps_mounts() -> list[Object]:
    return [mount("mps-root", "/mps"), mount("mps-shm", "/dev/shm")]  # noqa: S108 - a path in the container


def _mps_volumes() -> list[Object]:
    return [host_path("mps-root", MPS_ROOT), host_path("mps-shm", f"{MPS_ROOT}/shm")]


def _least(cluster: Cluster, pool: Pool) -> Object:
    """What the plugin may do: MIG and volume-mounts need SYS_ADMIN, device files for the kubelet all."""
    if cluster.spec.device_plugin.pass_device_specs:
        return _PRIVILEGED
    if mig_environment(pool) or "volume-mounts" in cluster.spec.device_plugin.device_list_strategy:
        return {"capabilities": {"add": ["SYS_ADMIN"]}}
    return UNPRIVILEGED


def _daemon_set(
    cluster: Cluster, component: str, pool: Pool, containers: list[Object], volumes: list[Object], **fields: Any
) -> Object:
    """Its pods read the pool's file; a change of that changes the annotation, so that they start again."""
    source = {"name": CONFIG, "items": [{"key": pool.name, "path": "config.yaml"}]}
    spec = pod(
        cluster,
        containers=containers,
        volumes=[*volumes, {"name": "config", "configMap": source}],
        priorityClassName=cluster.spec.device_plugin.priority_class,
        # said always: the API server keeps the one that was under its old alias, serviceAccount
        serviceAccountName="default",
        automountServiceAccountToken=False,
        **fields,
    )
    annotations = {"gpunode/config-sha256": _digest(config_text(cluster, pool.name))}
    return daemon_set(cluster, of_pool(cluster, component, pool), spec, annotations=annotations)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
