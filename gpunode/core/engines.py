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
    arguments that name its root config.
    """

    daemon: str
    unit: str
    sockets: tuple[str, ...]
    packages: tuple[str, ...]
    config_flags: tuple[str, ...] = ()


ROWS: Mapping[RuntimeName, EngineRow] = {
    "containerd": EngineRow(
        daemon="containerd",
        unit="containerd",
        sockets=("/run/containerd/containerd.sock",),
        packages=("containerd", "containerd.io"),
        config_flags=("--config", "-c"),
    ),
    "docker": EngineRow(
        daemon="dockerd",
        unit="docker",
        sockets=("/run/docker.sock", "/var/run/docker.sock"),
        packages=("docker.io", "docker-ce", "moby-engine"),
        config_flags=("--config-file",),
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
    ),
}
ENGINES: tuple[RuntimeName, ...] = tuple(ROWS)
DAEMONLESS: tuple[RuntimeName, ...] = tuple(name for name, row in ROWS.items() if not row.daemon)
