"""The configuration file of NVIDIA's device plugin and GPU Feature Discovery (api/config/v1 of k8s-device-plugin).

It is made from typed values of the spec, so that there is no key that the plugin would pass over.
"""

from __future__ import annotations

from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.plain import mapping
from gpunode.core.sharing.rules import cuts, mig_profiles
from gpunode.core.spec.kubernetes import DevicePluginSpec, SharingSpec
from gpunode.core.untrusted import load_yaml

MPS_ROOT = "/run/nvidia/mps"


def plugin_config(sharing: SharingSpec, plugin: DevicePluginSpec) -> dict[str, Any]:
    """The file for nodes that share so."""
    config: dict[str, Any] = {
        "version": "v1",
        "flags": {
            "migStrategy": mig_strategy(sharing),
            "failOnInitError": plugin.fail_on_init_error,
            "plugin": {
                "passDeviceSpecs": plugin.pass_device_specs,
                "deviceListStrategy": list(plugin.device_list_strategy),
                "deviceIDStrategy": plugin.device_id_strategy,
            },
        },
    }
    if sharing.strategy in ("time-slicing", "mps"):
        shared = {
            "renameByDefault": sharing.rename_by_default,
            "failRequestsGreaterThanOne": sharing.fail_requests_greater_than_one,
            "resources": [{"name": name, "replicas": sharing.replicas} for name in shared_resources(sharing)],
        }
        config["sharing"] = {"timeSlicing" if sharing.strategy == "time-slicing" else "mps": shared}
    return config


def sharing_of(text: str) -> tuple[Any, Any]:
    """What of such a file decides which resources a plugin offers; nothing of a file that no plugin reads."""
    try:
        config = mapping({"": load_yaml(text, "its configuration")}, "")
    except InputError:
        return None, None
    return config.get("sharing"), mapping(config, "flags").get("migStrategy")


def mig_strategy(sharing: SharingSpec) -> str:
    """none where no GPU is cut."""
    return sharing.mig.strategy if cuts(sharing) else "none"


def shared_resources(sharing: SharingSpec) -> tuple[str, ...]:
    """What the shares are shares of; the plugin spells + of a profile as a dot (internal/rm/rm.go)."""
    if mig_strategy(sharing) != "mixed":
        return ("nvidia.com/gpu",)
    return tuple(map(mig_resource, mig_profiles(sharing)))


def mig_resource(profile: str) -> str:
    """
    >>> mig_resource("1g.10gb+me")
    'nvidia.com/mig-1g.10gb.me'
    """
    return f"nvidia.com/mig-{profile.replace('+', '.')}"
