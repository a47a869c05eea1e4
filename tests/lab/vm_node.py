"""A node that boots: what its tests ask it, and how long each step took."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
