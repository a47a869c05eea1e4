"""NVIDIA's device plugin, its MPS daemon, and GPU Feature Discovery, as manifests.

They say what the chart nvidia-device-plugin says, with the least privilege that each needs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import yaml

from gpunode.core.kube.cluster import POOL_LABEL, Cluster, Object, node_affinity, not_on
from gpunode.core.kube.objects import (
    UNPRIVILEGED,
    account,
    config_map,
    container,
    daemon_set,
    env,
    field,
    host_path,
    mount,
    pod,
    rule,
)
from gpunode.core.kube.render.discovery import FEATURES
from gpunode.core.kube.render.plugin_config import MPS_ROOT, mig_strategy, plugin_config

PLUGIN, DISCOVERY, MPS = "nvidia-device-plugin", "gpu-feature-discovery", "mps-control-daemon"
CONFIG = "device-plugin-config"
MPS_LABEL = "nvidia.com/mps.capable"  # by GPU Feature Discovery, through Node Feature Discovery
_PRIVILEGED = {"privileged": True}
_AVAILABLE = "available-configs"  # every pool's configuration, mounted at the path of that name


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
    """The configuration of nodes without the label: that of the pool `default`, else of the first."""
    names = [pool.name for pool in cluster.plugin_pools]
    return "default" if "default" in names else names[0]


def device_plugin(cluster: Cluster) -> list[Object]:
    """Everything for the pools whose GPUs the device plugin offers; [] where there is none."""
    if not cluster.plugin_pools:
        return []
    found = [config_map(cluster, CONFIG, PLUGIN, plugin_configs(cluster))]
    if _several(cluster):  # the config manager reads its node's label
        found += account(cluster, PLUGIN, [rule(["nodes"], ["get", "list", "watch"])])
    found.append(_plugin(cluster))
    if cluster.spec.feature_discovery:
        found.append(_discovery(cluster))
    if cluster.pools_of("mps"):
        found.append(_mps_daemon(cluster))
    return found


def plugin_affinity(cluster: Cluster) -> Object:
    """Away from the nodes whose GPUs something else offers."""
    mine = cluster.plugin_pools
    return node_affinity(*not_on([pool for pool in cluster.pools if pool not in mine]))


def mps_affinity(cluster: Cluster) -> Object:
    """Nodes whose pool shares by MPS; of those without a pool, where that is the default, those that GFD calls capable.

    Not all of those: the daemon ends with an error on a node without a GPU.
    """
    shared = cluster.pools_of("mps")
    names = [pool.name for pool in shared]
    found = node_affinity({"key": POOL_LABEL, "operator": "In", "values": names})
    if default_config(cluster) in names:
        others = not_on([pool for pool in cluster.pools if pool not in shared])
        capable = {"key": MPS_LABEL, "operator": "In", "values": ["true"]}
        terms = found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        terms.append({"matchExpressions": [capable, *others]})
    return found


def mig_environment(cluster: Cluster) -> list[Object]:
    """Without it the driver hides MIG capabilities from the container."""
    cut = any(mig_strategy(pool.sharing) != "none" for pool in cluster.plugin_pools)
    return env(NVIDIA_MIG_MONITOR_DEVICES="all") if cut else []


def _plugin(cluster: Cluster) -> Object:
    mps = bool(cluster.pools_of("mps"))
    cdi = cluster.spec.device_plugin.by_cdi  # the plugin has to see the host's files under /driver-root for that
    security = _least(cluster)
    config = _config(cluster, PLUGIN, "nvidia-device-plugin", security)
    main = container(
        cluster, PLUGIN, PLUGIN,
        command=["nvidia-device-plugin"],
        env=[
            *env(CONFIG_FILE="/config/config.yaml", NVIDIA_VISIBLE_DEVICES="all"),
            *env(NVIDIA_DRIVER_CAPABILITIES="compute,utility"),
            *(env(MPS_ROOT=MPS_ROOT) if mps else []),
            *mig_environment(cluster),
        ],
        securityContext=security,
        volumeMounts=[
            mount("device-plugins", "/var/lib/kubelet/device-plugins"),
            *config.mounts,
            *([mount("cdi", "/var/run/cdi"), mount("driver-root", "/driver-root", readOnly=True)] if cdi else []),
            *(_mps_mounts() if mps else []),
        ],
    )  # fmt: skip
    volumes = [
        host_path("device-plugins", f"{cluster.spec.kubelet_dir}/device-plugins", "Directory"),
        *config.volumes,
        *([host_path("cdi", "/var/run/cdi"), host_path("driver-root", "/", "Directory")] if cdi else []),
        *(_mps_volumes() if mps else []),
    ]
    spec = _pod(cluster, config, [main], volumes, affinity=plugin_affinity(cluster))
    return daemon_set(cluster, PLUGIN, spec, annotations=config.annotations)


def _discovery(cluster: Cluster) -> Object:
    config = _config(cluster, DISCOVERY, "gpu-feature-discovery", _PRIVILEGED)
    main = container(
        cluster, DISCOVERY, DISCOVERY,
        command=["gpu-feature-discovery"],
        env=[
            field("NODE_NAME", "spec.nodeName"),
            field("NAMESPACE", "metadata.namespace"),
            field("POD_NAME", "metadata.name"),
            *env(CONFIG_FILE="/config/config.yaml", NVIDIA_VISIBLE_DEVICES="all"),
            *env(NVIDIA_DRIVER_CAPABILITIES="compute,utility"),
            *env(GFD_USE_NODE_FEATURE_API="false"),  # a file for Node Feature Discovery: no rights on the API
            *mig_environment(cluster),
        ],
        securityContext=_PRIVILEGED,  # to read what a vGPU's host says
        volumeMounts=[mount("features", FEATURES), mount("sys", "/sys", readOnly=True), *config.mounts],
    )  # fmt: skip
    volumes = [host_path("features", FEATURES), host_path("sys", "/sys", "Directory"), *config.volumes]
    spec = _pod(cluster, config, [main], volumes, affinity=plugin_affinity(cluster))
    return daemon_set(cluster, DISCOVERY, spec, annotations=config.annotations)


def _mps_daemon(cluster: Cluster) -> Object:
    config = _config(cluster, MPS, "/usr/bin/mps-control-daemon", _PRIVILEGED)
    prepare = container(
        cluster, MPS, "mount-shm",
        command=["mps-control-daemon", "mount-shm"],
        securityContext=_PRIVILEGED,
        volumeMounts=[mount("mps-root", "/mps", mountPropagation="Bidirectional")],
    )  # fmt: skip
    clean_up = container(
        cluster, MPS, "clean-up",
        command=["sh", "-c", _CLEAN_UP],
        securityContext=_PRIVILEGED,
        volumeMounts=[mount("mps-root", "/mps", mountPropagation="Bidirectional")],
    )  # fmt: skip
    main = container(
        cluster, MPS, MPS,
        command=["mps-control-daemon"],
        env=[
            field("NODE_NAME", "spec.nodeName"),
            *env(CONFIG_FILE="/config/config.yaml", NVIDIA_VISIBLE_DEVICES="all"),
            *env(NVIDIA_DRIVER_CAPABILITIES="compute,utility"),
        ],
        securityContext=_PRIVILEGED,
        volumeMounts=[*_mps_mounts(), *config.mounts],
    )  # fmt: skip
    spec = _pod(
        cluster, config, [main, clean_up], [*_mps_volumes(), *config.volumes],
        first=[prepare], affinity=mps_affinity(cluster), hostPID=True,
    )  # fmt: skip
    return daemon_set(cluster, MPS, spec, annotations=config.annotations)


def _mps_mounts() -> list[Object]:
    return [mount("mps-root", "/mps"), mount("mps-shm", "/dev/shm")]  # noqa: S108 - a path in the container


def _mps_volumes() -> list[Object]:
    return [host_path("mps-root", MPS_ROOT), host_path("mps-shm", f"{MPS_ROOT}/shm")]


def _least(cluster: Cluster) -> Object:
    """What the plugin may do: MIG and volume-mounts need SYS_ADMIN, device files for the kubelet all."""
    if cluster.spec.device_plugin.pass_device_specs:
        return _PRIVILEGED
    if mig_environment(cluster) or "volume-mounts" in cluster.spec.device_plugin.device_list_strategy:
        return {"capabilities": {"add": ["SYS_ADMIN"]}}
    return UNPRIVILEGED


def _pod(
    cluster: Cluster, config: _Config, main: list[Object], volumes: list[Object], *,
    first: list[Object] | None = None, **fields: Any,
) -> Object:  # fmt: skip
    several = bool(config.first)
    share = {} if "hostPID" in fields or not several else {"shareProcessNamespace": True}
    return pod(
        cluster,
        containers=[*config.sidecars, *main],
        initContainers=[*(first or []), *config.first],
        volumes=volumes,
        priorityClassName=cluster.spec.device_plugin.priority_class,
        # said always: the API server keeps the one that was under its old alias, serviceAccount
        serviceAccountName=PLUGIN if several else "default",
        **({} if several else {"automountServiceAccountToken": False}),
        **share,
        **fields,
    )


# ---------------------------------------------------------------- how a pod gets its configuration


@dataclass(frozen=True, kw_only=True)
class _Config:
    volumes: list[Object]
    mounts: list[Object]
    annotations: dict[str, str]
    first: list[Object]
    sidecars: list[Object]


def _several(cluster: Cluster) -> bool:
    return len(cluster.plugin_pools) > 1


def _config(cluster: Cluster, component: str, process: str, security: Object) -> _Config:
    """One pool: its file, mounted.  Several: the config manager picks the file that the node's label names.

    A change of the one file changes the annotation, so that the pods start again; the manager sends SIGHUP instead.
    What the manager writes to /config is a symbolic link into its source folder, at the path where the manager itself
    has that folder: whoever reads the link needs both volumes, at the same paths.
    """
    if not _several(cluster):
        (name, text), *_ = plugin_configs(cluster).items()
        items = [{"key": name, "path": "config.yaml"}]
        return _Config(
            volumes=[{"name": "config", "configMap": {"name": CONFIG, "items": items}}],
            mounts=[mount("config", "/config", readOnly=True)],
            annotations={"gpunode/config-sha256": hashlib.sha256(text.encode()).hexdigest()},
            first=[],
            sidecars=[],
        )
    managers = [
        container(
            cluster, component, name,
            command=["config-manager"],
            env=[
                field("NODE_NAME", "spec.nodeName"),
                *env(ONESHOT=oneshot, KUBECONFIG="", NODE_LABEL=POOL_LABEL, CONFIG_FILE_SRCDIR=f"/{_AVAILABLE}"),
                *env(CONFIG_FILE_DST="/config/config.yaml", DEFAULT_CONFIG=default_config(cluster)),
                *env(FALLBACK_STRATEGIES="named,single", SEND_SIGNAL=signal, SIGNAL="1" if signal == "true" else ""),
                *env(PROCESS_TO_SIGNAL=process if signal == "true" else ""),
            ],
            securityContext=security if signal == "true" else UNPRIVILEGED,
            volumeMounts=[mount(_AVAILABLE, f"/{_AVAILABLE}", readOnly=True), mount("config", "/config")],
        )
        for name, oneshot, signal in (("config-init", "true", "false"), ("config-manager", "false", "true"))
    ]  # fmt: skip
    return _Config(
        volumes=[{"name": _AVAILABLE, "configMap": {"name": CONFIG}}, {"name": "config", "emptyDir": {}}],
        mounts=[mount("config", "/config"), mount(_AVAILABLE, f"/{_AVAILABLE}", readOnly=True)],
        annotations={},
        first=managers[:1],
        sidecars=managers[1:],
    )
