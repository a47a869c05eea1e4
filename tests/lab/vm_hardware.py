"""Hardware of a node that boots, for what only a server has: no sign of a virtual machine, a PCIe switch, P-states.

And a GPU that nouveau takes.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

FREQUENCIES = (2400, 1800, 1200)  # MHz
PORT = 0x1600  # of the I/O space, where nothing is: what the kernel writes there is lost
FIRMWARE = "/usr/share/OVMF/OVMF_VARS_4M.fd"  # variables without keys: no Secure Boot


def bare(folder: Path) -> list[str]:
    """QEMU's arguments of a machine that looks as one of metal does (systemd-detect-virt: none)."""
    words = b"Example\0001.0\00001/02/2026\0\0"
    extended = 0x0C  # of the BIOS: UEFI, and not the bit that says virtual machine
    table = struct.pack("<BBHBBHBBQBB4B", 0, 24, 0, 1, 2, 0, 3, 0, 8, 0, extended, 1, 0, 255, 255) + words
    (folder / "bios.bin").write_bytes(table)
    return [
        *("-cpu", "max,-hypervisor", "-smbios", "file=/vm/bios.bin"),
        *("-smbios", "type=1,manufacturer=Example,product=Server,version=1"),
    ]


def switch() -> list[str]:
    """A PCIe switch without its ports below, and an IOMMU, for which the kernel turns ACS redirect on."""
    iommu, root = "intel-iommu,caching-mode=on", "pcie-root-port,id=root,chassis=90,slot=90"
    return ["-device", iommu, "-device", root, "-device", "x3130-upstream,id=switch,bus=root"]


def below(device: dict[str, Any]) -> None:
    """Put a device behind the switch, by QEMU's root port: its port of a switch has no ACS."""
    device["port"] = {"bus": "switch"}


# ---------------------------------------------------------------- P-states, in ACPI's byte code (AML)


def p_states(folder: Path, cpus: int) -> list[str]:
    """QEMU's arguments of an ACPI table that gives each CPU P-states, and with them cpufreq's acpi-cpufreq."""
    code = b"".join(_scope(number) for number in range(cpus))
    (folder / "ssdt.aml").write_bytes(code)
    return ["-acpitable", "sig=SSDT,rev=2,oem_id=GPUNOD,oem_table_id=PSTATES,data=/vm/ssdt.aml"]


def _scope(number: int) -> bytes:
    register = b"\x82" + struct.pack("<HBBBBQ", 12, 1, 16, 0, 2, PORT) + b"\x79\x00"  # of 16 bits, in the I/O space
    buffer = _sized(b"\x11", _integer(len(register)) + register)
    states = [
        _package([_integer(word) for word in (megahertz, megahertz * 20, 10, 10, at, at)])
        for at, megahertz in enumerate(FREQUENCIES)
    ]
    names = {b"_PCT": _package([buffer, buffer]), b"_PSS": _package(states), b"_PPC": _integer(0)}
    body = b"".join(b"\x08" + name + value for name, value in names.items())
    return _sized(b"\x10", b"\\\x2f\x03_SB_CPUS" + b"C%03X" % number + body)


def _integer(value: int) -> bytes:
    return b"\x0c" + struct.pack("<I", value)


def _package(values: list[bytes]) -> bytes:
    return _sized(b"\x12", bytes([len(values)]) + b"".join(values))


def _sized(code: bytes, body: bytes) -> bytes:
    """With the length of all after `code`, itself included, in two bytes."""
    size = len(body) + 2
    return code + bytes([0x40 | size & 0xF, size >> 4]) + body


# ---------------------------------------------------------------- a GPU that nouveau takes

BIOS = 0x300000  # where the BIOS is in the registers


def for_nouveau(device: dict[str, Any]) -> None:
    """Registers of a P40 with which nouveau of Linux 6.8 starts: it has memory, and a BIOS that has set it up.

    nvkm/subdev: devinit/gm200.c, fb/gp102.c, fault/gp100.c, mmu/vmmgf100.c.  Newer chips need firmware.
    """
    registers = {
        0x02240C: 2,  # it is set up
        0x100CE0: 12 << 4 | 11,  # 24 GiB
        0x021C04: 1,  # no display
        0x002A78: 64,  # entries of the list of faults
        0x100C80: 0x00FF8000,  # what is written to the page tables is there at once
        0x100CD0: 0,  # no memory is protected
    }
    words = struct.unpack("<1024I", _bios(device["ids"]["device"]))
    device["registers"] = registers | {BIOS + 4 * number: word for number, word in enumerate(words)}


def _bios(device: int) -> bytes:
    image = bytearray(4096)
    struct.pack_into("<HB", image, 0, 0xAA55, len(image) // 512)
    struct.pack_into("<H", image, 0x18, 0x40)
    pci = b"PCIR", 0x10DE, device, 0, 24, 0, b"\0\2\3", len(image) // 512, 0, 0, 0x80
    struct.pack_into("<4sHHHHB3sHHBB", image, 0x40, *pci)
    zeros, memory, programs = 0x200, 0x240, 0x280
    tables = b"i", 1, 15, zeros, b"I", 1, 28, zeros, b"P", 2, 8, memory, b"p", 2, 4, programs
    struct.pack_into("<6sHBBBB", image, 0x80, b"\xff\xb8BIT\0", 0x0100, 12, 6, len(tables) // 4, 0)
    struct.pack_into("<" + "cBHH" * (len(tables) // 4), image, 0x8C, *tables)
    struct.pack_into("<IBB", image, memory + 4, memory + 8, 0x11, 0x15)  # of memory there is nothing to set
    struct.pack_into("<I4B", image, programs, programs + 4, 1, 4, 6, 1)  # the one that sets up is there
    struct.pack_into("<BxI", image, programs + 8, 4, 0x300)
    image[-1] = -sum(image) & 0xFF
    return bytes(image)
