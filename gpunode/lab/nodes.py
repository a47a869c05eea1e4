"""One lab node: its record on this machine, and its container."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cattrs

from gpunode.core.errors import GpunodeError
from gpunode.core.late import dataclass, field
from gpunode.lab import emulation, families, hardware, machine
from gpunode.lab.images import ENGINES, RELEASES, Variant
from gpunode.lab.machine import Log, podman
from gpunode.lab.network import LABEL, address_of, ensure_network, network_name
from gpunode.lab.packages import RepositorySource
from gpunode.lab.vm import nodes as vm
from gpunode.lab.vm.images import COMMAND

BOOT = "/usr/local/lib/gpunode-lab/boot"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node as node.json has it.  `maker` is the process that is still making it, 0 when it is ready."""

    name: str
    lab: str
    address: str
    image: str = ""
    distro: str = "debian:12"
    engines: tuple[str, ...] = ENGINES
    python: bool = True
    real_driver: bool = False
    gpus: tuple[str, ...] = ()
    nouveau: bool = False
    kubernetes: str = ""  # the folder of its programs, when it belongs to a cluster
    machine: str = "container"  # vm: it boots by itself, from an overlay on `disk`
    disk: str = ""
    vendor: str = ""  # the folder with NVIDIA's own programs of the container toolkit, when it has them
    control: bool = False  # it runs the cluster's control plane and is no node of it
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # what its gpunode.yml says of repositories
    host_keys: tuple[str, ...] = ()  # "ssh-ed25519 AAAA…"
    maker: int = 0

    @property
    def container(self) -> str:
        """Its name for podman: that of the node, and what sets this state folder apart."""
        return self.name + machine.places().suffix

    @property
    def number(self) -> int:
        """The number at the end of its name; 0 for one without."""
        last = self.name.rpartition("-")[2]
        return int(last) if last.isdigit() else 0

    @property
    def directory(self) -> Path:
        return machine.places().nodes / self.name

    @property
    def hardware(self) -> Path:
        """The folder that is /lab in the node: remove sys/bus/pci/devices/SLOT, and that GPU is off the bus."""
        return self.directory / "lab"

    @property
    def variant(self) -> Variant:
        return Variant(
            distro=self.distro,
            engines=self.engines,
            python=self.python,
            real_driver=self.real_driver,
            kubernetes=bool(self.kubernetes),
            machine=self.machine,
        )

    @property
    def abandoned(self) -> bool:
        """Whether the process that was making it is gone."""
        return self.maker != 0 and not Path(f"/proc/{self.maker}").exists()


def load_nodes() -> list[Node]:
    """Every node this machine has, ready or not, in the order of their names' numbers."""
    nodes = [
        cattrs.structure(json.loads(path.read_text()), Node) for path in machine.places().nodes.glob("[!.]*/node.json")
    ]
    return sorted(nodes, key=lambda node: (node.lab, len(node.name), node.name))


def release_emulation(*, log: Log) -> None:
    """Without a node that needs it this machine emulates nothing."""
    if not any(RELEASES[node.distro].arch != "amd64" for node in load_nodes()):
        emulation.release(log=log)


def save(node: Node) -> None:
    machine.write(node.directory / "node.json", json.dumps(dataclasses.asdict(node), indent=2) + "\n")


# ---------------------------------------------------------------- making


def prepare(node: Node, own: Sequence[RepositorySource], url: str, repository: Path) -> None:
    """Lay out the node's folder: its hardware, and what it gets at first boot, with its distribution's own sources."""
    if node.machine == "vm":
        vm.prepare(node, ensure_network(), _mac(node.container))
        return
    for folder in ("lab/seed", "lab/proc", "containerd", "docker"):
        (node.directory / folder).mkdir(parents=True, exist_ok=True)
    hardware.write_hardware(node.hardware, node.gpus, nouveau=node.nouveau, node=node.name)
    seed = node.hardware / "seed"
    public_key = machine.places().key.with_suffix(".pub").read_text()
    machine.write(seed / "root/.ssh/authorized_keys", public_key)
    machine.write(seed / "home/admin/.ssh/authorized_keys", public_key)
    family = RELEASES[node.distro].family
    if RELEASES[node.distro].arch != "amd64":
        emulation.register()
    if family:
        some = families.seed(family, own, url, (repository / own[0].key).read_text())
        for name, text in some.items():
            machine.write(seed / name, text, mode=0o644)
    elif not node.real_driver:
        _seed_sources(seed, own, url, repository)
    for path in (seed, *seed.rglob("*")):
        if path.is_dir():
            path.chmod(0o700 if path.name in (".ssh", "root") else 0o755)


def _seed_sources(seed: Path, own: Sequence[RepositorySource], url: str, repository: Path) -> None:
    """The node's «distribution» offers the lab's kernels; pinned above Debian's, which no lab node could run."""
    for source in own:
        key = f"/usr/share/keyrings/{source.name}.asc"
        machine.write(seed / key.lstrip("/"), (repository / source.key).read_text(), mode=0o644)
        text = f"Types: deb\nURIs: {url}/{source.path}\nSuites: {source.suite}\nSigned-By: {key}\n"
        if source.components:
            text += f"Components: {' '.join(source.components)}\n"
        machine.write(seed / f"etc/apt/sources.list.d/{source.name}.sources", text, mode=0o644)
    pin = "Package: *\nPin: release o=gpunode-lab\nPin-Priority: 1000\n"
    machine.write(seed / "etc/apt/preferences.d/kernels", pin, mode=0o644)


def volumes(node: Node) -> list[str]:
    """The node's bind mounts.  Overlay cannot lie on overlay, so the engines' folders are this machine's, too."""
    folders = {"lab": "/lab", "containerd": "/var/lib/containerd", "docker": "/var/lib/docker"}
    own = [f"{node.directory / name}:{path}" for name, path in folders.items()]
    if node.vendor:
        own.append(f"{node.vendor}:/opt/nvidia:ro")
    return [*own, f"{node.kubernetes}:/opt/kubernetes:ro"] if node.kubernetes else own


ENVIRONMENT = {"container": "podman", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE": "1"}
# Not --systemd=always: it misleads here (nodes share a cgroup, or nested containers fail).
# --restart: `systemctl reboot` ends the container, and podman starts it again.
OPTIONS = (
    "--systemd=false",
    "--cgroupns=private",
    "--stop-signal=SIGRTMIN+3",
    "--stop-timeout=1",
    "--restart=always",
    "--tmpfs=/run",
    "--tmpfs=/run/lock",
    "--tmpfs=/tmp:exec",
)


def mounted(some: Sequence[str]) -> list[str]:
    return [f"--volume={volume}" for volume in some]


def start(node: Node) -> Node:
    """Start the node's container, which boots from there by itself; gives back the node with its address.

    Podman chooses the address of one that has none yet (Molecule's).
    """
    named = ("--name", node.container, "--hostname", node.name, "--label", f"{LABEL}={node.lab}")
    network = [f"--network={network_name()}", f"--mac-address={_mac(node.container)}"]
    if node.address:
        network.append(f"--ip={node.address}")
    environment = (f"--env={name}={value}" for name, value in ENVIRONMENT.items())
    if node.machine == "vm":
        how = [*vm.OPTIONS, f"--volume={node.directory / 'vm'}:/vm", node.image, *COMMAND]
    else:
        how = [*OPTIONS, *environment, *mounted(volumes(node)), node.image, BOOT]
    podman("run", "-d", *named, *network, "--privileged", *how)
    return dataclasses.replace(node, address=address_of(node.container))


def _mac(container: str) -> str:
    """A hardware address that a reset node has again: this machine would ask the old one for 30 s."""
    return ":".join(f"{byte:02x}" for byte in (0x02, 0x67, *hashlib.sha256(container.encode()).digest()[:4]))


def platform(node: Node) -> dict[str, Any]:
    """How Molecule's podman driver starts this node: an entry of molecule.yml's `platforms`."""
    return {
        "name": node.name,
        "image": node.image,
        "pre_build_image": True,
        "pull": False,
        "command": BOOT,
        "systemd": "false",
        "privileged": True,
        "env": ENVIRONMENT,
        "volumes": volumes(node),
        "extra_opts": [
            *(option for option in OPTIONS if not option.startswith("--systemd")),
            f"--label={LABEL}={node.lab}",
            # not as `network`: Molecule would take the lab's network for its own, and remove it
            f"--network={network_name()}",
        ],
    }


def wait_until_up(node: Node, *, seconds: float = 120, given_up: Callable[[], bool] = lambda: False) -> None:
    """Wait for sshd, and then for systemd to have started everything; or until `given_up` says so."""
    deadline = time.monotonic() + (vm.UP_SECONDS if node.machine == "vm" else seconds)
    while not _ssh_answers(node.address):
        if time.monotonic() > deadline:
            stated = podman("logs", "--tail=10", node.container, check=False)
            raise GpunodeError(
                f"{node.name} does not answer by ssh after {seconds:.0f} s: {stated.stdout}{stated.stderr}"
            )
        if given_up():
            return
        time.sleep(0.1)
    # `degraded` ends with status 1 and is as good: some unit that has no place in a container failed.
    if node.machine == "container":
        podman("exec", node.container, "timeout", "60", "systemctl", "is-system-running", "--wait", check=False)


def _ssh_answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def read_host_keys(node: Node) -> tuple[str, ...]:
    """The node's public host keys, read inside it: nobody on the network is asked."""
    if node.machine == "vm":
        return vm.host_keys(node)
    text = podman("exec", node.container, "sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub").stdout
    return tuple(" ".join(line.split()[:2]) for line in text.splitlines())


# ---------------------------------------------------------------- ending


def remove(names: Sequence[str]) -> None:
    """Take nodes away, whole or half made."""
    if not names:
        return
    suffix = machine.places().suffix
    containers = {name + end for name in names for end in ("", suffix)}  # Molecule's have no suffix
    mine = containers & set(_containers())
    if mine:
        podman("rm", "--force", "--ignore", "--volumes", "--time=0", *sorted(mine))
    for name in names:
        directory = machine.places().nodes / name
        # Gone from the records at once; deleting what the engines left takes a while.
        doomed = directory.with_name(f".{name}.{os.getpid()}")
        if directory.exists():
            directory.rename(doomed)
            shutil.rmtree(doomed)


def _containers() -> dict[str, str]:
    """State by podman's word (running, exited …) of each container on this state folder's network, by name."""
    ours = ("--filter", f"label={LABEL}", "--filter", f"network={network_name()}")
    listed = podman("ps", "--all", *ours, "--format", "json", check=False).stdout
    return {container["Names"][0]: container["State"] for container in json.loads(listed or "[]")}


def running() -> dict[str, str]:
    """State by podman's word (running, exited …) of each node that has a container."""
    suffix = machine.places().suffix
    return {name.removesuffix(suffix): state for name, state in _containers().items()}
