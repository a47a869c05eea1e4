"""What a cluster's machines get at first boot: units, configuration and kubeconfigs, in the places kubeadm has them.

control/, node/ and both/ mirror the machine's file tree; what depends on the cluster is made here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path

import yaml

from gpunode.lab.kubernetes.binaries import Binaries
from gpunode.lab.kubernetes.pki import Authority

SHARED = "/lab/kubernetes"  # of each machine: what the lab still changes when it is up
PROGRAMS = "/opt/kubernetes"  # the folder of programs, in each machine
RUNTIME = "unix:///run/containerd/containerd.sock"


def pods_of(number: int) -> str:
    """The pods' addresses on the node of that number.

    >>> pods_of(2)
    '10.244.2.0/24'
    """
    return f"10.244.{number}.0/24"


def routes(addresses: Mapping[int, str], *, but: int) -> str:
    """Lines `PODS ADDRESS`: how a machine reaches the pods of each node but its own.

    >>> routes({1: "10.89.0.3", 2: "10.89.0.4"}, but=1)
    '10.244.2.0/24 10.89.0.4\\n'
    """
    return "".join(f"{pods_of(number)} {address}\n" for number, address in addresses.items() if number != but)


# ---------------------------------------------------------------- what each machine gets


def seed_control_plane(seed: Path) -> None:
    """Lay out the machine of etcd, the API server and the controller manager."""
    _mirror("both", seed)
    _mirror("control", seed)
    _link_programs(seed, "etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
    for unit in ("containerd.service", "docker.service", "docker.socket"):
        _link(seed / "etc/systemd/system" / unit, "/dev/null")
    _enable(seed)


def seed_node(seed: Path, number: int, name: str, authority: Authority, binaries: Binaries) -> None:
    """Lay out a node: containerd for Kubernetes, kubelet, kube-proxy, the pods' network."""
    _mirror("both", seed)
    _mirror("node", seed)
    _link_programs(seed, "kubeadm", "kubectl", "kubelet", "kube-proxy")
    _enable(seed)
    made = {
        "etc/kubernetes/pki/ca.crt": (authority.folder / "ca.crt").read_text(),
        "etc/kubernetes/kubelet.conf": authority.kubeconfig(f"system:node:{name}", ["system:nodes"]),
        "etc/kubernetes/kube-proxy.conf": authority.kubeconfig("system:kube-proxy"),
        "etc/kubernetes/scheduler.conf": authority.kubeconfig("system:kube-scheduler"),
        "var/lib/kubelet/config.yaml": yaml.safe_dump(kubelet_configuration(binaries.minor), sort_keys=False),
        "var/lib/kubelet/kubeadm-flags.env": f'KUBELET_KUBEADM_ARGS="{kubelet_flags(binaries.minor)}"\n',
        "etc/cni/net.d/10-gpunode-lab.conflist": json.dumps(pods_network(number), indent=2) + "\n",
    }
    for path, text in made.items():
        (seed / path).parent.mkdir(parents=True, exist_ok=True)
        (seed / path).write_text(text)
        (seed / path).chmod(0o600 if path.endswith(".conf") else 0o644)


def kubelet_configuration(minor: int) -> dict[str, object]:
    """KubeletConfiguration as kubeadm writes it, with what a container as a node needs besides."""
    known: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "systemd",
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "failSwapOn": False,  # this machine's swap is not the node's affair
        "imageGCHighThresholdPercent": 100,  # images that no registry has must stay on a full disk, too
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "staticPodPath": "/etc/kubernetes/manifests",
    }
    if minor >= 27:
        known["containerRuntimeEndpoint"] = RUNTIME
    if minor >= 31:
        known["failCgroupV1"] = False
    return known


def kubelet_flags(minor: int) -> str:
    """What older kubelets do not take from their configuration."""
    remote = [] if minor >= 24 else ["--container-runtime=remote"]  # else Docker
    endpoint = [] if minor >= 27 else [f"--container-runtime-endpoint={RUNTIME}"]
    return " ".join([*remote, *endpoint])


def pods_network(number: int) -> dict[str, object]:
    """The CNI configuration of a node: a bridge, addresses of its own range, and ports of the host."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": pods_of(number)}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "gpunode-lab", "plugins": [{**bridge, "ipam": addresses}, ports]}


# ---------------------------------------------------------------- files


def _mirror(folder: str, seed: Path) -> None:
    with as_file(files("gpunode.lab.kubernetes") / folder) as source:
        shutil.copytree(source, seed, dirs_exist_ok=True)
        for path in source.rglob("*"):
            if path.is_file():  # a wheel does not keep who may run a file
                (seed / path.relative_to(source)).chmod(0o755 if path.read_bytes()[:2] == b"#!" else 0o644)


def _link_programs(seed: Path, *names: str) -> None:
    for name in names:
        _link(seed / "usr/bin" / name, f"{PROGRAMS}/{name}")


def _enable(seed: Path) -> None:
    """Have systemd start each unit that there is by now."""
    for unit in (seed / "etc/systemd/system").glob("*.service"):
        if not unit.is_symlink():
            _link(unit.parent / "multi-user.target.wants" / unit.name, f"../{unit.name}")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
