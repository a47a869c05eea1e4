"""The container engines, one row each: what every part of gpunode has to know of one.

What is particular to an engine is in its module of `core/edits/engines/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

RuntimeName = Literal["containerd", "docker", "crio", "podman"]


class EngineRow(NamedTuple):
    """An engine as it is found.

    `daemon` is its process, "" for an engine without one: nothing restarts then, and no cgroup loses devices.  `unit`
    is systemd's, `sockets` are where it answers, `packages` whose version is the engine's, `config_flags` the daemon's
    arguments that name its root config.  `cdi_0_7` is the first version that reads specifications of CDI 0.7.0 (known
    issues of NVIDIA Container Toolkit 1.19.1 in its release notes), "" where that is not known.
    """

    daemon: str
    unit: str
    sockets: tuple[str, ...]
    packages: tuple[str, ...]
    config_flags: tuple[str, ...] = ()
    cdi_0_7: str = ""


ROWS: Mapping[RuntimeName, EngineRow] = {
    "containerd": EngineRow(
        daemon="containerd",
        unit="containerd",
        sockets=("/run/containerd/containerd.sock",),
        packages=("containerd", "containerd.io"),
        config_flags=("--config", "-c"),
        cdi_0_7="1.7.16",
    ),
    "docker": EngineRow(
        daemon="dockerd",
        unit="docker",
        sockets=("/run/docker.sock", "/var/run/docker.sock"),
        packages=("docker.io", "docker-ce", "moby-engine"),
        config_flags=("--config-file",),
        cdi_0_7="26.1",
    ),
    "crio": EngineRow(
        daemon="crio",
        unit="crio",
        sockets=("/run/crio/crio.sock",),
        packages=("cri-o",),
        config_flags=("--config", "-c"),
    ),
    "podman": EngineRow(
        daemon="",
        unit="podman.socket",
        sockets=("/run/podman/podman.sock",),
        packages=("podman",),
        cdi_0_7="5.1",
    ),
}
ENGINES: tuple[RuntimeName, ...] = tuple(ROWS)
DAEMONLESS: tuple[RuntimeName, ...] = tuple(name for name, row in ROWS.items() if not row.daemon)
