"""The question to a node's apt before a plan is shown, against the one simulation that it cannot do without.

On the real archive of Ubuntu 24.04, in a root of its own with all of its lists; skipped where that cannot be reached.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import log, row
from gpunode.core.remote import program
from gpunode.node import script

sys.path.append(str(Path(__file__).parents[1] / "tests/unit"))
KERNELS = ("6.8.0-149-generic",)


def cpu(act: Callable[[], object]) -> float:
    """Seconds of processor that its children took."""
    before = os.times()
    act()
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    import pytest
    from apt_roots import Root, root
    from asked_nodes import answer, node, planned

    try:
        there = root("ubuntu:24.04", whole=True)
    except pytest.skip.Exception as missing:
        log(f"passed over: {missing}")
        return
    requests: list[dict[str, bytes]] = []

    def ask(one: Root, request: dict[str, bytes]) -> tuple[str, int]:
        requests.append(request)
        said: tuple[str, int] = answer(one, request)
        return said

    planned(there, node("ubuntu:24.04", "10de:2330", KERNELS, secure_boot=True), ask)
    request = requests[-1]
    environment = {**os.environ, "APT_CONFIG": str(there.home / "apt.conf"), "DPKG_ADMINDIR": str(there.home / "dpkg")}

    def run(command: Sequence[str], text: str = "") -> None:
        subprocess.run(command, input=text.encode(), env=environment, capture_output=True)

    with tempfile.TemporaryDirectory() as folder:
        coming = {**request, **to_come(Path(folder))}
        words = [line.split()[0] for line in request["install"].decode().splitlines()]
        questions = [program(script("packages.sh"), one) for one in (request, coming)]
        simulate = ["apt-get", "-s", "-o", "APT::Install-Recommends=false"]
        new_lists = ["-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
        times = [
            (
                cpu(lambda: run(["sh", "-s"], questions[0])),
                cpu(lambda: run([*simulate, "install", *words])),
                cpu(lambda: run(["sh", "-s"], questions[1])),
                cpu(lambda: run([*simulate, *new_lists, "install", *words])),
            )
            for _ in range(5)
        ]
    asked, floor, asked_new, floor_new = (min(column) for column in zip(*times, strict=True))
    what = "a node's apt asked about a plan"
    row(f"{what}, CPU of the node, more than `apt-get -s`", f"{asked - floor:.2f} s ({floor:.2f} s)", "≤ 1 s")
    what = "the same with a repository to come, more than `apt-get -s` with new lists"
    row(what, f"{asked_new - floor_new:.2f} s ({floor_new:.2f} s)", "≤ 1 s")


def to_come(folder: Path) -> dict[str, bytes]:
    """A request's files for a repository that the plan sets up: an empty one."""
    (folder / "Packages").touch()
    path = "/etc/apt/sources.list.d/gpunode-to-come.list"
    source = f"deb [trusted=yes] file:{folder} ./\n"
    return {"coming": f"coming.0 {path}\n".encode(), "coming.0": source.encode(), "refresh": f"{path}\n".encode()}


if __name__ == "__main__":
    main()
