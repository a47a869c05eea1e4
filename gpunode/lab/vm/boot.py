"""Process 1 of a machine's container: joins it to the lab's network, starts its PCI devices, and then QEMU.

Runs in the container: Python's library alone.  machine.json in /vm, a folder of the node's, says what to start: also
QEMU's `arguments`, of a device those of its `port` and fixed `registers`; NAME.out or NAME.lost: it is not plugged in.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpunode.lab.vm.pci import Device

FOLDER = Path("/vm")


def bridge(mac: str) -> None:
    """Let the guest have the container's hardware address, and so its place on the lab's network."""
    if Path("/sys/class/net/br0").exists():
        return
    other = "06" + mac[2:]
    for line in (
        "addr flush dev eth0",
        "link set eth0 down",
        f"link set eth0 address {other}",
        "link add br0 type bridge",
        "link set eth0 master br0",
        "tuntap add tap0 mode tap",
        "link set tap0 master br0",
        *(f"link set {name} up" for name in ("eth0", "tap0", "br0")),
    ):
        subprocess.run(("ip", *line.split()), check=True)


def arguments(machine: Mapping[str, Any]) -> Iterator[str]:
    """QEMU's."""
    yield from ("-name", machine["name"], "-nodefaults", "-display", "none", "-machine", "q35,smm=on")
    yield from ("-accel", machine["accel"], "-cpu", "max", "-smp", str(machine["cpus"]), "-m", str(machine["memory"]))
    # Secure Boot needs variables that only the firmware can write, in system management mode
    yield from ("-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1")
    yield from ("-drive", "if=pflash,unit=0,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.secboot.fd")
    yield from ("-drive", f"if=pflash,unit=1,format=raw,file={FOLDER}/variables.fd")
    yield from ("-drive", f"if=none,id=disk,format=qcow2,file={FOLDER}/disk.qcow2")
    yield from ("-device", "virtio-blk-pci,drive=disk,bootindex=0", "-device", "virtio-rng-pci")
    if machine["mac"]:
        yield from ("-netdev", "tap,id=net,ifname=tap0,script=no,downscript=no")
        yield from ("-device", f"virtio-net-pci,netdev=net,mac={machine['mac']},romfile=")
    # emulated processors have 40 bits of address, of which the firmware would give devices 32 GiB
    yield from ("-fw_cfg", "name=opt/ovmf/X-PciMmio64Mb,string=524288")
    if (FOLDER / "seed.tar").exists():
        yield from ("-fw_cfg", f"name=opt/gpunode/seed,file={FOLDER}/seed.tar")
    yield from ("-qmp", f"unix:{FOLDER}/qmp,server=on,wait=off")
    yield from ("-chardev", f"socket,id=console,path={FOLDER}/console,server=on,wait=off,logfile={FOLDER}/console.log")
    yield from ("-serial", "chardev:console")
    yield from machine.get("arguments", ())
    for number, device in enumerate(machine["devices"]):
        name, size = device["name"], sum(size for size, _ in device["bars"].values())
        there = not any((FOLDER / f"{name}.{word}").exists() for word in ("out", "lost"))
        room = {} if there else {"pref64-reserve": 1 << size.bit_length()}  # for when it comes
        port = {"driver": "pcie-root-port", "chassis": number + 1, "slot": number + 1} | room | device.get("port", {})
        yield from ("-device", json.dumps(port | {"id": f"port-{name}"}))
        if there:
            yield from ("-device", json.dumps(plugged(name)))


def plugged(name: str) -> dict[str, Any]:
    """QEMU's device for that of ours."""
    address = {"type": "unix", "path": str(FOLDER / name)}
    return {"driver": "vfio-user-pci", "id": name, "bus": f"port-{name}", "socket": address}


def main() -> int:
    machine = json.loads((FOLDER / "machine.json").read_text())
    if machine["mac"]:
        bridge(machine["mac"])
    for device in machine["devices"]:
        Device(FOLDER / device["name"], device).listen()
    if not (FOLDER / "disk.qcow2").exists():
        how = ("-q", "-f", "qcow2", "-b", machine["disk"], "-F", "raw")
        subprocess.run(("qemu-img", "create", *how, FOLDER / "disk.qcow2"), check=True)
    qemu = subprocess.Popen(("qemu-system-x86_64", *arguments(machine)))
    (FOLDER / "pid").write_text(str(qemu.pid))
    signal.signal(signal.SIGTERM, lambda *_: qemu.kill())
    try:
        return abs(qemu.wait(machine["seconds"] or None))
    except subprocess.TimeoutExpired:
        qemu.kill()
        return 124


if __name__ == "__main__":
    sys.exit(main())
