"""NVIDIA's MIG manager, where a cluster has it: layouts of our pools in its file, and labels by which it takes one.

The manager of a node reads `nvidia.com/mig.config` and says in `nvidia.com/mig.config.state` what came of it: pending,
rebooting, success or failed.  Before it changes a GPU it sets `nvidia.com/gpu.deploy.client` to paused-for-mig-change,
waits until the pods of daemon sets that select that label are gone, and sets it to true afterwards.

https://github.com/NVIDIA/mig-parted cmd/nvidia-mig-manager, pkg/mig/reconfigure
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gpunode.core.model import Problem
from gpunode.core.sharing.mig import ALL_DISABLED, Group, mig_parted
from gpunode.core.sharing.rules import cuts
from gpunode.kube.core.cluster import Cluster, Object, Pool
from gpunode.kube.core.objects import config_map

LAYOUTS = "mig-layouts"  # the ConfigMap
FILE = "config.yaml"  # the key that the manager wants


def mig_objects(cluster: Cluster) -> list[Object]:
    """The ConfigMap with the layouts; the GPU Operator's chart makes it by itself."""
    if not cluster.mig_managed or cluster.spec.install == "operator":
        return []
    return [config_map(cluster, LAYOUTS, LAYOUTS, {FILE: layouts_text(cluster)})]


def mig_values(cluster: Cluster) -> dict[str, Any]:
    """The GPU Operator's `migManager`."""
    if not cluster.mig_managed:
        return {"enabled": False}
    data = {FILE: layouts_text(cluster)}
    return {"enabled": True, "config": {"name": LAYOUTS, "create": True, "default": ALL_DISABLED, "data": data}}


def layouts_text(cluster: Cluster) -> str:
    """A layout for each pool that is cut, by the pool's name, and all-disabled."""
    layouts = {pool.name: list(_groups(pool)) for pool in cluster.mig_managed if cuts(pool.sharing)}
    return yaml.safe_dump(mig_parted(layouts), sort_keys=False)


def _groups(pool: Pool) -> Iterator[Group]:
    mig = pool.sharing.mig
    if profiles := _wanted(mig.profiles):
        yield Group(layout=profiles)
    for index, counts in mig.gpus.items():
        yield Group(layout=_wanted(counts) or None, devices=(int(index),))


def _wanted(counts: Mapping[str, int]) -> dict[str, int]:
    """Without the profiles that are set to 0."""
    return {profile: count for profile, count in counts.items() if count}


def mig_problems(cluster: Cluster) -> Iterator[Problem]:
    for pool in cluster.mig_managed:
        mig = pool.sharing.mig
        if _wanted(mig.profiles) and mig.gpus:
            yield Problem(
                what=f"pool {pool.name}: sharing.mig has profiles for all GPUs and gpus for single ones, and the MIG "
                "manager's file cannot say «the others»",
                fix="name every GPU in sharing.mig.gpus, or leave it out",
            )
        if pool.name == ALL_DISABLED:
            yield Problem(what=f"a pool is named {ALL_DISABLED}, as the layout without MIG is", fix="name it otherwise")
