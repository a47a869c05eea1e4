"""A node that boots: what its tests ask it, and how long each step took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from test_provision import Node

from gpunode.lab.vm import nodes as vm

UP = 900  # seconds of a boot that is emulated on a busy machine


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

    def cut_power(self) -> None:
        before = self.boot_id()
        with self.timed("power cut, and up again"):
            vm.cut_power(self.node)
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

    def signer(self, module: str) -> str:
        return self.sh(f"modinfo -F signer {module}").strip()
