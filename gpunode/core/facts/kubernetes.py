"""What of Kubernetes is on the node, and the containerd that a distribution of it brings."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from typing import Any, get_args

from gpunode.core.engines import CRI_DOCKERD, DISTRIBUTIONS, KUBELET_CONFIGS, KUBELET_FLAGS
from gpunode.core.errors import InputError
from gpunode.core.facts.engines import DOTTED, Units, programs, text_of
from gpunode.core.facts.flags import flag_value
from gpunode.core.facts.text import Probe
from gpunode.core.late import regex
from gpunode.core.model import ConfigFile, Distribution, Kubernetes, Runtime, Service
from gpunode.core.untrusted import load_yaml

_CGROUP_ARG = regex(r"\bcgroup-driver=(systemd|cgroupfs)\b")
_FROM_CRI = regex(r"\bKubeletCgroupDriverFromCRI=(true|false)\b")
_RANCHER_ENDPOINT = regex(r"^ *[\"']?container-runtime-endpoint[\"']? *: *[\"']?([^\s\"'#]+)", re.MULTILINE)
_RANCHER_DOCKER = regex(r"^ *[\"']?docker[\"']? *: *[\"']?true\b", re.MULTILINE)
_DRIVER_CONTAINER = "/run/nvidia/validations/.driver-ctr-ready"


def read_kubernetes(probe: Probe, units: Units, files: Mapping[str, ConfigFile]) -> Kubernetes:
    """What of Kubernetes is on the node, by its folders, units and the kubelet's command line."""
    marks = probe.values("kubernetes", "exists")
    operator = any(m in marks for m in ("/run/nvidia/validations", "/run/nvidia/driver", "/usr/local/nvidia/toolkit"))
    container = _DRIVER_CONTAINER in marks or "false" in probe.values("kubernetes", "host_driver")
    kind = _kind(marks)
    kubelet = DOTTED.search("\n".join(line for line in probe.lines("kubernetes") if not line.startswith("exists ")))
    if not kind and not kubelet:
        return Kubernetes(gpu_operator=operator, driver_container=container)
    flags = _kubelet_flags(kind, units, files)
    # where there is none of its own, a file of a former kubelet does not count
    own = DISTRIBUTIONS[kind].kubelet if kind in DISTRIBUTIONS else KUBELET_CONFIGS
    paths = [path for path in own if path in files][:1]
    folder = flag_value(flags, "--config-dir").rstrip("/")
    paths += sorted(path for path in files if folder and posixpath.dirname(path) == folder and path.endswith(".conf"))
    config: dict[str, Any] = {}
    for path in paths:
        config |= _kubelet_config(files, path)
    driver, source = _cgroup_driver(kind, flags, units, files)
    if not driver and config.get("cgroupDriver") in ("systemd", "cgroupfs"):
        driver = config["cgroupDriver"]
        source = next(path for path in reversed(paths) if "cgroupDriver" in _kubelet_config(files, path))
    gates, flag = config.get("featureGates"), _FROM_CRI.search("\n".join(flags))
    gate = gates.get("KubeletCgroupDriverFromCRI") if isinstance(gates, dict) else None
    return Kubernetes(
        kind=kind,
        role=_role(kind, marks, units),
        kubelet=kubelet[1] if kubelet else "",
        cri_socket=_socket(kind, flags, config, units, files).removeprefix("remote:").removeprefix("unix://"),
        cgroup_driver=driver,
        cgroup_source=source,
        cgroup_from_cri=flag[1] == "true" if flag else gate if isinstance(gate, bool) else None,
        gpu_operator=operator,
        driver_container=container,
    )


def _kubelet_config(files: Mapping[str, ConfigFile], path: str) -> dict[str, Any]:
    """The KubeletConfiguration in a file, {} where it is none: then the kubelet does not start either."""
    try:
        found = load_yaml(text_of(files, path), path)
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}


def _kubelet_flags(kind: str, units: Units, files: Mapping[str, ConfigFile]) -> tuple[str, ...]:
    """Arguments in the files that the kubelet's unit takes some from, and of its process: the last ones count."""
    lines = [line for path in KUBELET_FLAGS for line in text_of(files, path).splitlines()]
    written = [word for line in lines if not line.lstrip().startswith("#") for word in line.split()]
    words = (*written, *(units.commands.get("kubelet", ())[1:] if kind not in DISTRIBUTIONS else ()))
    return tuple(re.sub(r"\A[\"']?(?:KUBELET_[A-Z_]+=)?[\"']?|[\"']\Z", "", word) for word in words)


def _cgroup_driver(kind: str, flags: tuple[str, ...], units: Units, files: Mapping[str, ConfigFile]) -> tuple[str, str]:
    """The cgroup driver that the kubelet's arguments give it, and what says so; ("", "") when nothing does."""
    if driver := flag_value(flags, "--cgroup-driver"):
        return driver, "--cgroup-driver"
    if kind in ("k3s", "rke2"):  # kubelet-arg: cgroup-driver=…
        for path in (*reversed(_rancher_configs(kind, units, files)), ""):
            text = text_of(files, path) if path else " ".join(_start(kind, units))
            if found := _CGROUP_ARG.search(text):
                return found[1], f"kubelet-arg in {path}" if path else "--kubelet-arg"
    return "", ""


def _socket(
    kind: str, flags: tuple[str, ...], config: Mapping[str, Any], units: Units, files: Mapping[str, ConfigFile]
) -> str:
    usual = DISTRIBUTIONS[kind].socket if kind in DISTRIBUTIONS else ""
    if kind in ("k3s", "rke2"):
        start = _start(kind, units)
        text = "\n".join(text_of(files, path) for path in _rancher_configs(kind, units, files))
        if "--docker" in start or _RANCHER_DOCKER.search(text):
            return CRI_DOCKERD[1]
        stated = _RANCHER_ENDPOINT.search(text)
        return flag_value(start, "--container-runtime-endpoint") or (stated[1] if stated else usual)
    if kind == "k0s":
        return flag_value(_start(kind, units), "--cri-socket") or usual
    stated = config.get("containerRuntimeEndpoint")
    asked = flag_value(flags, "--container-runtime-endpoint").replace("${SNAP_COMMON}", "/var/snap/microk8s/common")
    return asked or (stated if isinstance(stated, str) and stated else usual)


def _kind(marks: list[str]) -> str:
    for kind, prefix in (
        ("rke2", "/var/lib/rancher/rke2/"),
        ("k3s", "/var/lib/rancher/k3s/"),
        ("k0s", "/var/lib/k0s"),
        ("microk8s", "/var/snap/microk8s/"),
    ):
        if any(mark.startswith(prefix) for mark in marks):
            return kind
    return "kubeadm" if "/etc/kubernetes/kubelet.conf" in marks or "/var/lib/kubelet/kubeadm-flags.env" in marks else ""


def _role(kind: str, marks: list[str], units: Units) -> str:
    if not kind:
        return ""
    signs = {
        "kubeadm": "/etc/kubernetes/manifests/kube-apiserver.yaml",
        "k3s": "/var/lib/rancher/k3s/server",
        "rke2": "/var/lib/rancher/rke2/server",
        "k0s": "/var/lib/k0s/pki/ca.key",
    }
    if kind in signs:
        return "control-plane" if signs[kind] in marks else "worker"
    return "control-plane" if "snap.microk8s.daemon-kubelite" in units.services else ""


# ---------------------------------------------------------------- the engine that a distribution brings


def read_bundled(probe: Probe, units: Units, kubernetes: Kubernetes) -> tuple[Runtime, ...]:
    """The containerd of each distribution on the node: its version, else that of the distribution itself."""
    found = {kind: (path, version) for kind, path, version in programs(probe, "bundled") if kind in DISTRIBUTIONS}
    row = DISTRIBUTIONS.get(kubernetes.kind)
    if row and kubernetes.kind not in found and kubernetes.cri_socket == row.socket:
        found[kubernetes.kind] = ("", "")
    return tuple(
        _bundled(kind, path, version or (kubernetes.kubelet if kind == kubernetes.kind else ""), probe, units)
        for kind, (path, version) in found.items()
    )


def _bundled(kind: str, path: str, version: str, probe: Probe, units: Units) -> Runtime:
    row, unit = DISTRIBUTIONS[kind], _unit(kind, units)
    service = units.services.get(unit, Service(name=unit))
    rancher = kind in ("k3s", "rke2")
    flags = _start(kind, units)[2:] if rancher else ()
    config = flag_value(flags, "--config", "-c") or row.config
    return Runtime(
        name="containerd",
        distribution=next(name for name in get_args(Distribution) if name == kind),
        version=version,
        binary=path,
        unit=f"{unit}.service" if service.active else "",
        active=service.runs,
        enabled=service.at_boot,
        flags=flags,
        socket=row.socket if row.socket in probe.values("runtimes", "socket") else "",
        config=config,
        rendered=kind in probe.values("runtimes", "rendered"),
    )


def _unit(kind: str, units: Units) -> str:
    there = [name for name in DISTRIBUTIONS[kind].units if name in units.services]
    return next(iter([*(name for name in there if units.services[name].runs), *there, ""]))


def _start(kind: str, units: Units) -> tuple[str, ...]:
    """The distribution's command line as its unit has it: PROGRAM, COMMAND, arguments."""
    return units.starts.get(_unit(kind, units), ())


def _rancher_configs(kind: str, units: Units, files: Mapping[str, ConfigFile]) -> list[str]:
    return rancher_files(flag_value(_start(kind, units), "--config", "-c") or DISTRIBUTIONS[kind].config, files)


def rancher_files(config: str, files: Collection[str]) -> list[str]:
    """Those of the files that k3s and RKE2 read with that config.yaml, in their order."""
    dropped = (p for p in files if posixpath.dirname(p) == f"{config}.d" and p.endswith((".yaml", ".yml")))
    return [*([config] if config in files else []), *sorted(dropped)]
