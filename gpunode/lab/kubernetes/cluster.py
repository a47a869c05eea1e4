"""A lab's cluster: starts its control plane, makes nodes join it, says when it is ready."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpunode.core.errors import GpunodeError
from gpunode.lab import machine, nodes
from gpunode.lab.kubernetes import images, pki, seeds
from gpunode.lab.kubernetes.binaries import find, folder_of
from gpunode.lab.machine import Log, podman
from gpunode.lab.nodes import Node
from gpunode.lab.packages import RepositorySource

SECONDS = 120  # until a machine that may be busy with other things has done its part


def control_of(lab: str) -> str:
    return f"{lab}-control"


def programs(word: str, *, log: Log) -> Path:
    """The folder of programs that `--kubernetes WORD` means, fetched where it is a version."""
    return find(word, log=log).folder


def describe(asked: Node) -> Node:
    """The control plane's machine of a lab of such nodes."""
    return dataclasses.replace(asked, control=True, gpus=(), name=control_of(asked.lab))


# ---------------------------------------------------------------- control plane


def start_control_plane(control: Node, own: Sequence[RepositorySource], url: str) -> Node:
    """Start etcd, the API server and the controller manager, and wait until the API answers."""
    nodes.prepare(control, own, url, machine.places().repositories)
    seeds.seed_control_plane(control.hardware / "seed")
    started = nodes.start(control)
    shared = _shared(control)
    authority = pki.make(shared / "pki", started.address)
    machine.write(shared / "controller-manager.conf", authority.kubeconfig("system:kube-controller-manager"))
    machine.write(kubeconfig(control), authority.kubeconfig("kubernetes-admin", ["system:masters"]))
    (shared / "ready").touch()
    nodes.wait_until_up(started)
    _wait(lambda: _kubectl(control, "get", "--raw=/readyz"), f"the API server of {control.lab}")
    busybox = shared / "busybox"
    podman("cp", f"{control.container}:/bin/busybox", str(busybox))
    images.make_images(folder_of(control.kubernetes), busybox, shared / "images")
    return dataclasses.replace(started, maker=0, host_keys=nodes.read_host_keys(started))


def kubeconfig(control: Node) -> Path:
    """The administrator's kubeconfig."""
    return control.directory / "kubeconfig"


# ---------------------------------------------------------------- nodes


def prepare(node: Node) -> None:
    """Lay out what a node of a cluster gets at first boot; after nodes.prepare, before it starts."""
    control = _control(node)
    binaries = folder_of(node.kubernetes)
    authority = pki.Authority(folder=_shared(control) / "pki", server=f"https://{control.address}:6443")
    shared = _shared(node)
    (shared / "images").mkdir(parents=True, exist_ok=True)
    for archive in (_shared(control) / "images").glob("*.tar"):
        if node.number == 1 or not archive.name.startswith("kube-scheduler"):
            (shared / "images" / archive.name).unlink(missing_ok=True)
            os.link(archive, shared / "images" / archive.name)
    seeds.seed_node(node.hardware / "seed", node.number, node.name, authority, binaries)


def join(node: Node) -> None:
    """Give a node that is up its images, and the first one its scheduler, as a static pod by kubeadm."""
    archives = f"{seeds.SHARED}/images/*.tar {seeds.PROGRAMS}/images/*.tar"
    _run(node, f"for a in {archives}; do [ ! -e $a ] || ctr -n k8s.io images import $a >/dev/null || exit 1; done")
    control = _control(node)
    _wait(lambda: _kubectl(control, "get", f"node/{node.name}"), f"{node.name} to register")
    if node.number == 1:
        label = ("label", "--overwrite", f"node/{node.name}", "node-role.kubernetes.io/control-plane=")
        _wait(lambda: _kubectl(control, *label), f"the label of {node.name}")
    ready = _kubectl(control, "wait", "--for=condition=Ready", f"node/{node.name}", f"--timeout={SECONDS}s")
    if ready:
        raise GpunodeError(f"{node.name} did not become Ready: {ready}; {_last_words(node)}")
    if node.number == 1:
        version = folder_of(node.kubernetes).version
        # another --cert-dir: with a certificate but no key of the authority kubeadm asks for all the others
        phase = f"kubeadm init phase control-plane scheduler --kubernetes-version {version} --cert-dir /run/none"
        _run(node, f"{phase} >/dev/null")


def connect(members: Iterable[Node]) -> None:
    """Give every machine of a cluster its routes to the pods of the nodes."""
    some = list(members)
    addresses = {node.number: node.address for node in some if not node.control}
    for node in some:
        own = 0 if node.control else node.number
        machine.write(_shared(node) / "routes", seeds.routes(addresses, but=own))
        _run(node, "/usr/local/lib/gpunode-lab/routes")


# ---------------------------------------------------------------- commands


def _control(node: Node) -> Node:
    found = [one for one in nodes.load_nodes() if one.name == control_of(node.lab)]
    if not found or not found[0].address:
        raise GpunodeError(
            f"the control plane of {node.lab} is not there", fix=f"gpunode lab down {node.lab}, and up again"
        )
    return found[0]


def _shared(node: Node) -> Path:
    """What the machine sees as seeds.SHARED."""
    return node.hardware / "kubernetes"


def _kubectl(control: Node, *arguments: str) -> str:
    """Run kubectl as the cluster's administrator; what it complained of, empty when it went well."""
    program = str(Path(control.kubernetes) / "kubectl")
    done = machine.run(program, f"--kubeconfig={kubeconfig(control)}", *arguments, check=False)
    return (done.stderr.strip() or f"status {done.returncode}") if done.returncode else ""


def _run(node: Node, script: str) -> None:
    podman("exec", node.container, "sh", "-c", script)


def _wait(complaint: Callable[[], str], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while words := complaint():
        if time.monotonic() > deadline:
            raise GpunodeError(f"{what}: not after {SECONDS} s: {words[-300:]}")
        time.sleep(0.3)


def _last_words(node: Node) -> str:
    said = podman("exec", node.container, "journalctl", "-u", "kubelet", "-n", "5", "-o", "cat", check=False)
    return "; ".join(said.stdout.strip().splitlines())
