"""The sections `toolkit` and `fabric` of gpunode.yml."""

from __future__ import annotations

import dataclasses
from typing import Literal

from gpunode.core.errors import InputError
from gpunode.core.late import dataclass
from gpunode.core.spec.option import check_text, option


@dataclass(frozen=True, kw_only=True)
class ToolkitConfigSpec:
    """Settings in /etc/nvidia-container-runtime/config.toml; null leaves what is there."""

    no_cgroups: bool | None = option(None, "leave device cgroups to the engine; true for rootless engines")
    mode: Literal["auto", "cdi", "jit-cdi", "legacy", "csv"] | None = option(
        None, "how the nvidia runtime gives GPUs: auto, cdi, jit-cdi, legacy, or csv (Tegra)"
    )
    debug: bool | None = option(None, "true writes logs to /var/log/nvidia-container-{toolkit,runtime}.log")
    log_level: Literal["trace", "debug", "info", "warning", "error"] | None = option(
        None, "of the runtime's log: trace, debug, info, warning, error"
    )
    accept_nvidia_visible_devices_envvar_when_unprivileged: bool | None = option(
        None, "whether NVIDIA_VISIBLE_DEVICES counts in unprivileged containers; false where tenants are not trusted"
    )
    accept_nvidia_visible_devices_as_volume_mounts: bool | None = option(
        None, "whether mounts below /var/run/nvidia-container-devices name GPUs (DEVICE_LIST_STRATEGY volume-mounts)"
    )
    ldconfig: str | None = option(None, "ldconfig of the host, with @ in front: '@/sbin/ldconfig.real'")
    user: str | None = option(None, "user and group of nvidia-container-cli; SUSE needs root:video")
    load_kmods: bool | None = option(None, "load the NVIDIA modules when a container starts")
    swarm_resource: str | None = option(None, "variable by which Docker Swarm names GPUs: DOCKER_RESOURCE_GPU")
    supported_driver_capabilities: str | None = option(None, "what containers may ask for: compute,utility,…")
    disable_require: bool | None = option(None, "ignore an image's NVIDIA_REQUIRE_… constraints")
    ignore_imex_channel_requests: bool | None = option(None, "ignore NVIDIA_IMEX_CHANNELS of containers")
    cuda_compat_mode: Literal["ldconfig", "hook", "mount", "disabled"] | None = option(
        None, "forward compatibility of CUDA in images: ldconfig, hook, mount or disabled"
    )

    @property
    def settings(self) -> dict[str, bool | str]:
        """What is asked for, by the names of these keys."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ToolkitSpec:
    """NVIDIA Container Toolkit."""

    version: str = option("auto", "auto (the newest known), an exact version such as 1.18.1, or none")
    config: ToolkitConfigSpec = option(ToolkitConfigSpec(), "settings of the toolkit itself")


@dataclass(frozen=True, kw_only=True)
class FabricSpec:
    """What belongs to many GPUs in one node or rack."""

    imex_nodes: tuple[str, ...] = option(
        (), "addresses of the nodes of an NVLink domain (GB200 NVL…): written for IMEX, and its service enabled"
    )
    imex: Literal["auto", "static", "dra", "off"] = option(
        "auto",
        "who runs IMEX: static (the host's service, for imex_nodes), dra (NVIDIA's DRA driver for ComputeDomains: the "
        "service is masked), off (no service: masked), or auto (static where imex_nodes has nodes, else as it is)",
    )
    dcgm: str = option("none", "NVIDIA DCGM: none, auto (the newest in the repository), or a version such as 4.6.0")


_CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")


def check_toolkit(toolkit: ToolkitSpec, fabric: FabricSpec) -> None:
    """Raise InputError for values that NVIDIA's tools refuse."""
    config = toolkit.config
    # api/config/v1/cli.go: a path without @ is the container's, which is refused since 1.16.2 (CVE-2024-0132)
    check_text("toolkit.config.ldconfig", config.ldconfig, r"@/\S+", "a path of the host with @: '@/sbin/ldconfig'")
    check_text("toolkit.config.user", config.user, r"([\w.-]+(:[\w.-]+)?)?", "USER or USER:GROUP, such as root:video")
    one = "|".join(_CAPABILITIES)
    expected = f"names out of {', '.join(_CAPABILITIES)} with commas between them"
    capabilities = config.supported_driver_capabilities
    check_text("toolkit.config.supported_driver_capabilities", capabilities, rf"({one})(,({one}))*", expected)
    check_text("toolkit.config.swarm_resource", config.swarm_resource, r"\w*(,\w+)*", "names of variables")
    expected = "none, auto, or a version of three numbers such as 4.6.0 (DCGM 4 or later)"
    check_text("fabric.dcgm", fabric.dcgm, r"none|auto|([4-9]|\d\d)\.\d+\.\d+", expected)
    if (fabric.imex == "static" and not fabric.imex_nodes) or (fabric.imex in ("dra", "off") and fabric.imex_nodes):
        raise InputError.of(
            "fabric.imex",
            f"is {fabric.imex}, and fabric.imex_nodes has {len(fabric.imex_nodes)} nodes",
            expected="imex_nodes with static (or auto), and none with dra and off",
        )
    for number, node in enumerate(fabric.imex_nodes):
        check_text(f"fabric.imex_nodes[{number}]", node, r"[\w.:%-]+", "an IP address or host name")
