"""The container engines and the Kubernetes that brings one, a row each: what every part of gpunode has to know of it.

What is particular to an engine is in its module of `core/edits/engines/`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Literal, NamedTuple

FILE = "@FILE@"  # stands for the root config in a command
RuntimeName = Literal["containerd", "docker", "crio", "podman"]


class EngineRow(NamedTuple):
    """An engine as it is found."""

    unit: str  # systemd's, "" for none
    packages: tuple[str, ...]  # whose version is the engine's
    config: str  # its root config
    snap: str = ""  # the unit of its snap
    daemon: str = ""  # its process; without one nothing restarts, and no cgroup loses devices
    sockets: tuple[str, ...] = ()  # where it answers
    cri: bool = False  # they are a kubelet's, below /run/NAME
    installs: tuple[str, ...] = ()  # packages that gpunode installs
    brings: tuple[str, ...] = ()  # engines that these depend on
    recommends: tuple[tuple[str, str], ...] = ()  # (distribution, package) that comes with them there
    config_flags: tuple[str, ...] = ()  # the daemon's arguments that name another root config
    drop_ins: str = ""  # pattern of the files that it reads on top of it; {config} stands for the root config
    folder_flags: tuple[str, ...] = ()  # arguments that name another folder of these
    files: tuple[str, ...] = ()  # patterns of what the probe reads besides
    by_cdi: bool = False  # gets GPUs by a CDI specification, and needs no runtime for it
    # the first version that reads specifications of CDI 0.7.0 (known issues of NVIDIA Container Toolkit 1.19.1 in its
    # release notes), "" where that is not known
    cdi_0_7: str = ""
    smoke: bool = False  # smoke.sh can start a container with it
    judge: tuple[str, ...] = ()  # arguments with which the daemon checks its root config, FILE, and starts nothing

    def below(self, config: str, folder: str = "") -> str:
        """The pattern of the drop-ins of that root config, in `folder` where an argument names one."""
        usual, _, names = self.drop_ins.format(config=config).rpartition("/")
        return f"{folder or usual}/{names}" if names else ""


ROWS: Mapping[RuntimeName, EngineRow] = {
    "containerd": EngineRow(
        daemon="containerd",
        unit="containerd",
        sockets=("/run/containerd/containerd.sock",),
        cri=True,
        packages=("containerd", "containerd.io"),
        installs=("containerd",),  # this and Docker's: Debian's and Ubuntu's own packages
        config="/etc/containerd/config.toml",
        config_flags=("--config", "-c"),
        files=("/etc/containerd/conf.d/*.toml", "/etc/containerd/config.d/*.toml"),
        cdi_0_7="1.7.16",
        smoke=True,
        judge=("-c", FILE, "config", "dump"),
    ),
    "docker": EngineRow(
        daemon="dockerd",
        unit="docker",
        snap="snap.docker.dockerd",
        sockets=("/run/docker.sock", "/var/run/docker.sock"),
        packages=("docker.io", "docker-ce", "moby-engine"),
        installs=("docker.io",),
        brings=("containerd",),
        recommends=(("debian:13", "docker-cli"),),  # since trixie the client is a package of its own
        config="/etc/docker/daemon.json",
        config_flags=("--config-file",),
        cdi_0_7="26.1",
        smoke=True,
        judge=("--validate", "--config-file", FILE),
    ),
    "crio": EngineRow(
        daemon="crio",
        unit="crio",
        sockets=("/run/crio/crio.sock",),
        cri=True,
        packages=("cri-o",),
        config="/etc/crio/crio.conf",
        config_flags=("--config", "-c"),
        drop_ins="/etc/crio/crio.conf.d/*",
        folder_flags=("--config-dir", "-d"),
        files=("/etc/crio/conf.d/*",),
    ),
    "podman": EngineRow(
        unit="podman.socket",
        sockets=("/run/podman/podman.sock",),
        packages=("podman",),
        config="/etc/containers/containers.conf",
        drop_ins="{config}.d/*.conf",
        files=("/usr/share/containers/containers.conf",),
        by_cdi=True,
        cdi_0_7="5.1",
    ),
}
ENGINES: tuple[RuntimeName, ...] = tuple(ROWS)
DAEMONS: tuple[RuntimeName, ...] = tuple(name for name, row in ROWS.items() if row.daemon)
BY_CDI: tuple[RuntimeName, ...] = tuple(name for name, row in ROWS.items() if row.by_cdi)


class DistributionRow(NamedTuple):
    """A Kubernetes that brings its own containerd: units that may run it, where it answers, and the file to edit.

    `kubelet` is where its kubelet's own configuration is: the first that is there counts.
    """

    units: tuple[str, ...]
    socket: str
    config: str
    kubelet: tuple[str, ...] = ()
    containerd: tuple[str, str] = ("", "")  # its versions up to Kubernetes 1.35, and from 1.36 on


DISTRIBUTIONS: Mapping[str, DistributionRow] = {
    "k3s": DistributionRow(("k3s", "k3s-agent"), "/run/k3s/containerd/containerd.sock", "/etc/rancher/k3s/config.yaml"),
    "rke2": DistributionRow(
        ("rke2-server", "rke2-agent"), "/run/k3s/containerd/containerd.sock", "/etc/rancher/rke2/config.yaml"
    ),
    "k0s": DistributionRow(
        units=("k0sworker", "k0scontroller"),
        socket="/run/k0s/containerd.sock",
        config="/etc/k0s/containerd.toml",
        kubelet=("/run/k0s/kubelet/config.yaml", "/var/lib/k0s/kubelet-config.yaml"),
        containerd=("1.7", "2.3"),
    ),
    "microk8s": DistributionRow(
        units=("snap.microk8s.daemon-containerd",),
        socket="/var/snap/microk8s/common/run/containerd.sock",
        config="/var/snap/microk8s/current/args/containerd-template.toml",
        containerd=("1.6", "2.2"),
    ),
}
OTHER_UNITS = (
    *(f"{name}.service" for row in DISTRIBUTIONS.values() for name in row.units),
    *(f"{row.snap}.service" for row in ROWS.values() if row.snap),
)
# a kubelet of no distribution's: kubeadm's configuration, and that of Amazon EKS
KUBELET_CONFIGS = ("/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet/config.json")
# files of its arguments, the last one of MicroK8s
KUBELET_FLAGS = (
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
    "/var/snap/microk8s/current/args/kubelet",
)
CRI_DOCKERD = ("/run/cri-dockerd.sock", "/run/k3s/cri-dockerd/cri-dockerd.sock")  # the second one: k3s and RKE2


PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")  # of daemons, by systemd
NVIDIA_RUNTIME = "/usr/bin/nvidia-container-runtime"
TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
# NVIDIA's own services that keep GPUs open: stopped before the driver goes, and started again afterwards
GPU_UNITS = "nvidia-persistenced nvidia-fabricmanager nvidia-imex nvidia-dcgm dcgm dcgm-exporter nvsm".split()


def _root_words(row: EngineRow) -> str:
    """A line: program, unit, root config, two arguments that name it, folder and pattern of drop-ins, two arguments."""
    flags = [(*some, "-", "-")[:2] for some in (row.config_flags, row.folder_flags)]
    return " ".join((row.daemon, row.unit, row.config, *flags[0], *posixpath.split(row.below(row.config)), *flags[1]))


def shell_variables() -> dict[str, str]:
    """The rows and units as node scripts know them: lists of words."""
    rows = ROWS.items()
    units = [row.unit if "." in row.unit else f"{row.unit}.service" for row in ROWS.values() if row.unit]
    brought = DISTRIBUTIONS.values()
    kubernetes = [*KUBELET_CONFIGS, *KUBELET_FLAGS, *(path for row in brought for path in (row.config, *row.kubelet))]
    # a root that no argument moves is read by its name, and those of the first two by ways of their own
    files = [(*row.files, *([] if row.config_flags else [row.config, row.below(row.config)])) for row in ROWS.values()]
    roots = [row for name, row in rows if row.config_flags and name not in ("containerd", "docker")]
    return {
        "ENGINE_DAEMONS": " ".join(row.daemon for row in ROWS.values() if row.daemon),
        "ENGINE_PROGRAMS": " ".join(f"{name}={row.daemon or name}" for name, row in rows),
        "ENGINE_UNITS": " ".join(units),
        "OTHER_UNITS": " ".join(OTHER_UNITS),
        "DOCKER_UNITS": f"{ROWS['docker'].unit} {ROWS['docker'].snap}",
        "ENGINE_SOCKETS": " ".join(socket for row in ROWS.values() for socket in row.sockets),
        "CRI_SOCKETS": " ".join(socket for row in ROWS.values() if row.cri for socket in row.sockets),
        "OTHER_SOCKETS": " ".join(dict.fromkeys(row.socket for row in brought)),
        "KUBERNETES_FILES": " ".join(kubernetes),
        "ENGINE_FILES": " ".join(pattern for patterns in files for pattern in patterns),
        "ENGINE_ROOTS": "\n".join(map(_root_words, roots)),
        "ENGINE_FOLDERS": " ".join(posixpath.dirname(row.config) for row in ROWS.values()),
        "ENGINE_PACKAGES": "|".join([*ROWS, *(package for row in ROWS.values() for package in row.packages)]),
        "GPU_UNITS": " ".join(GPU_UNITS),
        "NVIDIA_RUNTIME": NVIDIA_RUNTIME,
        "TOOLKIT_CONFIG": TOOLKIT_CONFIG,
        **{f"{name.upper()}_JUDGE": " ".join(row.judge).replace(FILE, '"$0"') for name, row in rows if row.judge},
    }
