"""A node that boots: QEMU in a container of the lab's, so that it is started, listed and removed as every other node.

Its folder `vm` is the machine: the disk, the firmware's variables, the serial console, and a socket for each device.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any, Protocol

from gpunode.core.errors import GpunodeError
from gpunode.lab import machine
from gpunode.lab.machine import podman
from gpunode.lab.vm import boot, devices, images

OPTIONS = ("--restart=always", "--stop-timeout=0")
BASE = "base.raw"  # a link to the disk that its own is an overlay on: it goes with the node, whoever clears the cache
UP_SECONDS = 600  # emulated, on a busy machine; 90 when it has nothing else to do


class Node(Protocol):
    """What a machine needs of its node."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def disk(self) -> str: ...
    @property
    def gpus(self) -> tuple[str, ...]: ...
    @property
    def container(self) -> str: ...
    @property
    def directory(self) -> Path: ...


def prepare(node: Node, network: ipaddress.IPv4Network, mac: str) -> None:
    """Lay out the machine's folder; it gets its name, keys and address at its first boot."""
    folder = node.directory / "vm"
    folder.mkdir(parents=True, exist_ok=True)
    disk = Path(node.disk)
    images.copy_code(folder)
    if machine.run("cp", "--force", "--link", node.disk, f"{folder}/{BASE}", check=False).returncode:
        machine.run("cp", "--sparse=always", node.disk, f"{folder}/{BASE}")  # another file system
    accel = disk.with_suffix(".accel").read_text()
    images.write_machine(folder, node.name, f"/vm/{BASE}", accel, mac=mac, devices=devices.describe(node.gpus))
    shutil.copy(disk.with_suffix(".fd"), folder / "variables.fd")
    _seed(folder, node, network)


def _seed(folder: Path, node: Node, network: ipaddress.IPv4Network) -> None:
    seed = folder / "seed"
    public_key = machine.places().key.with_suffix(".pub").read_text()
    gateway = network[1]
    texts = {
        "etc/hostname": (f"{node.name}\n", 0o644),
        "etc/hosts": (f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n", 0o644),
        "etc/systemd/network/10-lab.network": (
            f"[Match]\nType=ether\n[Network]\nAddress={node.address}/{network.prefixlen}\n"
            f"Gateway={gateway}\nDNS={gateway}\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n",
            0o644,
        ),
        "root/.ssh/authorized_keys": (public_key, 0o600),
    }
    for name, (text, mode) in texts.items():
        machine.write(seed / name, text, mode=mode)
    (seed / "etc/ssh").mkdir()
    for kind in ("ed25519", "ecdsa"):
        machine.run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", f"{seed}/etc/ssh/ssh_host_{kind}_key")
    for path in seed.rglob("*"):
        if path.is_dir():
            path.chmod(0o700 if path.name in (".ssh", "root") else 0o755)
    names = sorted(path.name for path in seed.iterdir())
    machine.run("tar", "--owner=0", "--group=0", "-C", str(seed), "-cf", str(folder / "seed.tar"), *names)


def host_keys(node: Node) -> tuple[str, ...]:
    """The public host keys that it was given."""
    found = sorted((node.directory / "vm/seed/etc/ssh").glob("ssh_host_*_key.pub"))
    return tuple(" ".join(path.read_text().split()[:2]) for path in found)


# ---------------------------------------------------------------- what can happen to it


def cut_power(node: Node) -> None:
    """End QEMU at once; podman starts it again, as a machine starts when the power is back."""
    pid = (node.directory / "vm/pid").read_text()
    podman("exec", node.container, "busybox", "kill", "-9", pid, check=False)  # the container may end before it says so


def lose(node: Node, device: str) -> None:
    """Let a device (`pci0`) fall off the bus: all that it answers is ones; at the next boot it is not there."""
    (node.directory / f"vm/{device}.lost").touch()


def unplug(node: Node, device: str) -> None:
    """Take a device out of its slot, also for later starts."""
    (node.directory / f"vm/{device}.out").touch()
    command(node, "device_del", id=device)


def plug(node: Node, device: str) -> None:
    """Put it into its slot again, as it was new."""
    for suffix in ("out", "lost"):
        (node.directory / f"vm/{device}.{suffix}").unlink(missing_ok=True)
    command(node, "device_add", **boot.plugged(device))


def command(node: Node, name: str, **arguments: Any) -> Any:
    """A command of QEMU's machine protocol, and its answer."""
    folder = os.open(node.directory / "vm", os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"/proc/self/fd/{folder}/qmp")  # a socket's path has at most 107 bytes
        os.close(folder)
        lines = connection.makefile("rw")
        for request in ({"execute": "qmp_capabilities"}, {"execute": name, "arguments": arguments}):
            lines.write(json.dumps(request) + "\n")
            lines.flush()
            while "return" not in (answer := json.loads(lines.readline())):
                if "error" in answer:
                    raise GpunodeError(f"QEMU refuses {name}: {answer['error']['desc']}")
    return answer["return"]
