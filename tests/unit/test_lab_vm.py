"""The devices of machines that boot, as lspci and a client read them; the machines are in tests/lab/test_vm.py."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from gpunode.core.errors import GpunodeError, InputError
from gpunode.lab.images import Variant
from gpunode.lab.vm import kernels
from gpunode.lab.vm.devices import MIB, WIDE, describe
from gpunode.lab.vm.pci import CONFIG, HEADER, REGION_INFO, REGION_READ, REGION_WRITE, VERSION, Device


def device(word: str, folder: Path) -> Device:
    [data] = describe([word])
    return Device(folder / data["name"], json.loads(json.dumps(data | {"registers": {0x44: 7}})))  # as machine.json is


def lspci(some: Device, tmp_path: Path) -> str:
    data = some.config
    lines = (f"{i:02x}: {data[i : i + 16].hex(' ')}" for i in range(0, 256, 16))
    (tmp_path / "dump").write_text("17:00.0 x\n" + "\n".join(lines) + "\n")
    return subprocess.run(("lspci", "-F", tmp_path / "dump", "-nvv"), capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not shutil.which("lspci"), reason="needs lspci: apt-get install pciutils")
@pytest.mark.parametrize(
    ("word", "head"),
    [
        ("h100", "17:00.0 0302: 10de:2330 (rev a1)"),
        ("10de:1b80", "17:00.0 0300: 10de:1b80 (rev a1)"),
        ("10de:22a3:0680", "17:00.0 0680: 10de:22a3 (rev a1)"),
        ("15b3:1021:0200", "17:00.0 0200: 15b3:1021 (rev a1)"),
    ],
)
def test_lspci_reads_a_device_on_a_link_of_sixteen_lanes(word: str, head: str, tmp_path: Path) -> None:
    text = lspci(device(word, tmp_path), tmp_path)
    assert head in text and "Express (v2) Endpoint" in text and "Power Management version 3" in text
    assert "LnkSta:\tSpeed 16GT/s, Width x16" in text and "pin A" in text


def test_memory_has_the_size_that_such_a_gpu_has() -> None:
    bars = {word: describe([word])[0]["bars"] for word in ("h100", "a10", "t4", "rtx3090")}
    assert bars["h100"] == {0: (16 * MIB, WIDE), 2: (128 << 30, WIDE), 4: (32 * MIB, WIDE)}
    assert bars["a10"] == {0: (16 * MIB, 0), 1: (32 << 30, WIDE), 3: (32 * MIB, WIDE)}
    assert bars["t4"][1] == bars["rtx3090"][1] == (256 * MIB, WIDE)
    assert len(describe(["hgx-h100"])) == 12 and describe(["none"]) == []


def test_what_is_no_device_is_refused() -> None:
    with pytest.raises(InputError, match="h1000"):
        describe(["h1000"])
    for distro in ("rocky:9", "debian:12+arm64", "debian:13+forky"):
        with pytest.raises(InputError, match="a machine that boots"):
            Variant(distro=distro, machine="vm")


def test_a_device_answers_until_it_falls_off_the_bus(tmp_path: Path) -> None:
    some = device("h100", tmp_path)
    some.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(some.path))

        def ask(command: int, body: bytes) -> bytes:
            client.sendall(HEADER.pack(7, command, HEADER.size + len(body), 0, 0) + body)
            number, echoed, size, flags, error = HEADER.unpack(client.recv(HEADER.size, socket.MSG_WAITALL))
            assert (number, echoed, flags, error) == (7, command, 1, 0)
            return client.recv(size - HEADER.size, socket.MSG_WAITALL)

        def register(offset: int, region: int = 0) -> int:
            answer = ask(REGION_READ, struct.pack("<QII", offset, region, 4))
            return int.from_bytes(answer[16:], "little")

        assert b"max_data_xfer_size" in ask(VERSION, b"\0\0\1\0")
        assert struct.unpack("<IIIIQQ", ask(REGION_INFO, struct.pack("<IIIIQQ", 32, 0, 2, 0, 0, 0)))[4] == 128 << 30
        assert register(0, CONFIG) == 0x233010DE and register(0) == 0x180000A1
        ask(REGION_WRITE, struct.pack("<QII", 0x40, 0, 4) + b"\1\2\3\4")
        ask(REGION_WRITE, struct.pack("<QII", 0x44, 0, 4) + b"\1\2\3\4")
        assert (register(0x40), register(0x44)) == (0x04030201, 7)
        some.lost.touch()
        assert register(0, CONFIG) == register(0x40) == 0xFFFFFFFF


def index(*kernels: str) -> dict[str, dict[str, str]]:
    """As Ubuntu's: `meta` names the newest kernel, and each has its modules of two branches and their signatures."""
    names = [
        f"linux-{kind}-{kernel}-generic"
        for kernel in kernels
        for kind in ("modules-nvidia-580-server-open", "objects-nvidia-580-server-open", "signatures-nvidia")
    ]
    newest = next(kernel for kernel in kernels if kernel.startswith("6.8"))
    meta = {
        "linux-image-generic": {
            "Depends": f"linux-image-{newest}-generic, linux-modules-extra-{newest}-generic",
            "Filename": "",
        }
    }
    return meta | {name: {"Filename": f"pool/{name}.deb"} for name in names}


def test_a_machine_gets_the_newest_kernel_of_its_line_whose_modules_the_archive_has() -> None:
    some = index("6.8.0-151", "6.8.0-99", "6.8.0-149", "6.17.0-42")
    assert kernels.choose(some, lambda _: True) == ("6.8.0-151-generic", [])
    assert kernels.choose(some, lambda name: "objects-nvidia-580-server-open-6.8.0-151" not in name) == (
        "6.8.0-149-generic",
        ["6.8.0-151"],
    )
    with pytest.raises(GpunodeError, match="no kernel"):
        kernels.choose(some, lambda _: False)


def test_apt_passes_by_the_kernels_whose_modules_are_not_there() -> None:
    assert kernels.preferences([]) == ""
    assert "Package: linux-*\nPin: version 6.8.0-151.*\nPin-Priority: -1\n" in kernels.preferences(["6.8.0-151"])
