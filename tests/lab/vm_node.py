"""A node that boots: what its tests ask it, and how long each step took."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from test_provision import Node

from gpunode.lab.vm import nodes as vm

MARKS = [
    pytest.mark.lab,
    pytest.mark.vm,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not shutil.which("podman"), reason="needs podman: QEMU is in an image of the lab's"),
]
UP = 900  # seconds of a boot that is emulated on a busy machine


def driver_alone(branch: str = "580") -> dict[str, Any]:
    """A spec of Canonical's signed driver and nothing else."""
    return {
        "driver": {"branch": branch, "modules": "precompiled"},
        "toolkit": {"version": "none"},
        "runtimes": {"containerd": {"manage": "ignore"}},
    }


class Machine(Node):
    """One machine and gpunode on it."""

    @property
    def node(self) -> Any:
        return self.lab.nodes[0]

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        print(f"\n{self.node.name}: {what}: {time.monotonic() - began:.0f} s", flush=True)

    def reboot(self, seconds: float = UP) -> None:
        with self.timed("reboot"):
            super().reboot(seconds)

    @contextmanager
    def during(self, process: str, command: str, then: Callable[[], None] = lambda: None) -> Iterator[threading.Event]:
        """Within, the first process on the machine whose command line fits has something happen; whether it came."""
        came, over = threading.Event(), threading.Event()

        def watch() -> None:
            while not over.is_set():
                look = (
                    f"for n in 1 2 3 4 5 6 7 8; do pgrep -f '{process}' >/dev/null && exec echo there; sleep 0.3; done"
                )
                if self.lab.run(self.node, look).stdout == "there\n":
                    came.set()
                    over.set()
                    self.lab.run(self.node, command)
                    then()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield came
        finally:
            over.set()
            thread.join()

    def cut(self) -> None:
        vm.cut_power(self.node)

    def cut_power(self) -> None:
        before = self.boot_id()
        with self.timed("power cut, and up again"):
            self.cut()
            self.wait_for_boot(before, UP)

    def alter(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Start with another machine.json, which gpunode/lab/vm/boot.py describes."""
        path, before = self.node.directory / "vm/machine.json", self.boot_id()
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))
        with self.timed("power cut, and up again as another machine"):
            self.cut()
            self.wait_for_boot(before, UP)

    def console(self) -> str:
        return (self.node.directory / "vm/console.log").read_text(errors="replace")

    def bound(self) -> dict[str, str]:
        """The kernel driver of each NVIDIA device, by its address."""
        text = self.sh("lspci -Dnk -d 10de:")
        found: dict[str, str] = {}
        for line in text.splitlines():
            if not line.startswith("\t"):
                slot = line.split()[0]
                found[slot] = ""
            elif line.strip().startswith("Kernel driver in use:"):
                found[slot] = line.rpartition(": ")[2]
        return found

    @staticmethod
    def failed(done: dict[str, Any]) -> list[str]:
        """The checks that failed; of a GPU whose firmware does not start, `driver.smi` does."""
        return [check["id"] for check in done["checks"] if check["status"] == "failed"]

    def signer(self, module: str) -> str:
        return self.sh(f"modinfo -F signer {module}").strip()


class MokManager:
    """shim's blue screen on the serial console, used as a person does: one key, then a look at what it did.

    QEMU drops what a reader of the console does not take at once, so the screen is read in its log, where lines of it
    may lack too; a key has each menu drawn again.
    """

    KEYS: ClassVar[dict[str, str]] = {"up": "\x1b[A", "down": "\x1b[B", "enter": "\r"}
    CHOSEN = re.compile(r"\x1b\[40m\x1b\[\d+;\d+H\u2502 *([^\u2502\x1b]*?) *\u2502")  # on black, of a menu

    def __init__(self, machine: Machine) -> None:
        self.folder = machine.node.directory / "vm"
        self.mark = self._size()

    def _size(self) -> int:
        return (self.folder / "console.log").stat().st_size

    def said(self) -> str:
        """What the console has shown since the last choice."""
        with (self.folder / "console.log").open("rb") as log:
            log.seek(self.mark)
            return log.read().decode(errors="replace")

    def wait(self, text: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.said():
            assert time.monotonic() < deadline, f"the console never says {text}: {self.said()[-2000:]}"
            time.sleep(0.2)

    def press(self, key: str) -> None:
        """And wait until the screen is quiet."""
        folder = os.open(self.folder, os.O_DIRECTORY)
        with socket.socket(socket.AF_UNIX) as console:
            console.connect(f"/proc/self/fd/{folder}/console")  # a socket's path has at most 107 bytes
            console.settimeout(0.2)
            console.sendall(self.KEYS.get(key, key).encode())
            until = time.monotonic() + 0.7
            while time.monotonic() < until:
                with contextlib.suppress(TimeoutError):
                    console.recv(1 << 16)
        os.close(folder)
        size = -1
        while size != (size := self._size()):
            time.sleep(1)

    def choose(self, item: str) -> None:
        """Go to that line of a menu, whichever is chosen, and press Enter."""
        for key in ("down",) * 6 + ("up",) * 6:
            chosen = self.CHOSEN.findall(self.said())
            if chosen and chosen[-1] == item:
                self.mark = self._size()
                self.press("enter")
                if self.said():  # else the key was lost
                    return
            self.press(key)
        raise AssertionError(f"there is no {item} to choose: {self.said()[-2000:]}")

    def enroll(self, password: str, seconds: float = UP) -> None:
        """From the prompt that a boot shows for ten seconds, to the reboot."""
        self.wait("ooting in", seconds)  # its first letter may be lost
        self.press("enter")
        for item in ("Enroll MOK", "Continue", "Yes"):
            self.choose(item)
        for letter in password:
            self.press(letter)
        self.press("enter")
        self.choose("Reboot")
