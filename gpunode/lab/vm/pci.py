"""A PCI device for QEMU by the protocol vfio-user: its configuration space, and registers that answer next to nothing.

https://www.qemu.org/docs/master/interop/vfio-user.html.  Runs in the node's container: Python's library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEADER = struct.Struct("<HHIII")  # id, command, size with this header, flags, error
REPLY, NO_REPLY = 1, 0x10
VERSION, DMA_MAP, DMA_UNMAP, DEVICE_INFO, REGION_INFO, IRQ_INFO = 1, 2, 3, 4, 5, 7
SET_IRQS, REGION_READ, REGION_WRITE, RESET = 8, 9, 10, 13
REGIONS, IRQS, CONFIG, INTX = 9, 5, 7, 0
READ_WRITE = 3
WIDE = 0x0C  # of a memory region: 64 bits, prefetchable
POWER, EXPRESS = 0x60, 0x78  # where the capabilities are


def config_space(device: Mapping[str, int], bars: Mapping[int, tuple[int, int]]) -> bytearray:
    """4096 bytes: a type 0 header, power management, and PCI Express (16 GT/s, 16 lanes)."""
    config = bytearray(4096)
    struct.pack_into("<HHHH", config, 0x00, device["vendor"], device["device"], 0, 0x0010)
    struct.pack_into("<I", config, 0x08, device["class"] << 8 | 0xA1)
    for number, (_, flags) in bars.items():
        struct.pack_into("<I", config, 0x10 + 4 * number, flags)
    struct.pack_into("<HH", config, 0x2C, device["subsystem_vendor"], device["subsystem_device"])
    config[0x34], config[0x3D] = POWER, 1  # the first capability; interrupt INTA
    struct.pack_into("<BBHHH", config, POWER, 0x01, EXPRESS, 0x0003, 0, 0)
    struct.pack_into("<BBHI", config, EXPRESS, 0x10, 0, 0x0002, 0x8FC0)
    struct.pack_into("<HHIHH", config, EXPRESS + 8, 0x2810, 0, 0x00400104 | 0x0C00, 0, 0x1104)
    return config


class Device:
    """One device at one socket.  While SOCKET.lost is there it has fallen off the bus: all bits are set."""

    def __init__(self, path: Path, device: Mapping[str, Any]) -> None:
        self.path, self.lost, chip = path, path.with_suffix(".lost"), device["ids"]["chip"] << 20
        self.bars = {int(number): tuple(bar) for number, bar in device["bars"].items()}
        own = {int(offset): value for offset, value in device.get("registers", {}).items()}
        self.registers, self.written = {0x0: chip | 0xA1, 0xA00: chip, **own}, dict[int, int]()
        self.config = config_space(device["ids"], self.bars)

    def listen(self) -> None:
        """Answer at the socket from now on, in a thread."""
        self.path.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(self.path))
        server.listen(1)
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(EOFError, ConnectionError):
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        while True:
            number, command, size, flags, _ = HEADER.unpack(_receive(connection, HEADER.size))
            answer = self.answer(command, _receive(connection, size - HEADER.size))
            if not flags & NO_REPLY:
                connection.sendall(HEADER.pack(number, command, HEADER.size + len(answer), REPLY, 0) + answer)

    def answer(self, command: int, body: bytes) -> bytes:
        """The body of the reply to a message."""
        if command == VERSION:
            limits = {"max_msg_fds": 8, "max_data_xfer_size": 1 << 20, "write_multiple": False}
            return body[:4] + json.dumps({"capabilities": limits}).encode() + b"\0"
        if command in (DMA_MAP, DMA_UNMAP):
            return body
        if command == DEVICE_INFO:
            return struct.pack("<IIII", 16, 3, REGIONS, IRQS)  # a PCI device that can be reset
        if command == REGION_INFO:
            index = struct.unpack_from("<I", body, 8)[0]
            size = len(self.config) if index == CONFIG else self.bars.get(index, (0, 0))[0]
            return struct.pack("<IIIIQQ", 32, READ_WRITE if size else 0, index, 0, size, 0)
        if command == IRQ_INFO:
            index = struct.unpack_from("<I", body, 8)[0]
            return struct.pack("<IIII", 16, 7, index, 1 if index == INTX else 0)
        if command in (REGION_READ, REGION_WRITE):
            offset, region, count = struct.unpack_from("<QII", body)
            if command == REGION_READ:
                return body[:16] + self.read(region, offset, count)
            self.write(region, offset, body[16:])
            return body[:16]
        if command == RESET:
            self.written.clear()
        return b""

    def read(self, region: int, offset: int, count: int) -> bytes:
        if self.lost.exists():
            return b"\xff" * count
        if region == CONFIG:
            return bytes(self.config[offset : offset + count]).ljust(count, b"\0")
        value = self.registers.get(offset, self.written.get(offset, 0)) if region == 0 else 0
        return (value & (1 << 8 * count) - 1).to_bytes(count, "little")

    def write(self, region: int, offset: int, data: bytes) -> None:
        if region == CONFIG and (offset in (0x04, 0x06) or POWER <= offset < len(self.config)):
            self.config[offset : offset + len(data)] = data
        elif region == 0:
            self.written[offset] = int.from_bytes(data, "little")


def _receive(connection: socket.socket, count: int) -> bytes:
    """So many bytes; file descriptors that come with them (of memory, of interrupts) are not used."""
    data = b""
    while len(data) < count:
        more, files, _, _ = socket.recv_fds(connection, count - len(data), 8)
        for file in files:
            os.close(file)
        if not more:
            raise EOFError
        data += more
    return data
