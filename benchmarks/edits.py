"""Edits of engines' files in CPU time, against nvidia-ctk where it is on PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import tomllib
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import log, row
from gpunode.core.edits import RuntimeRequest, configure_runtime
from tests.edit_cases import case

DEFAULT = case("containerd", "upstream-1.7-default").before["/etc/containerd/config.toml"]
LINES = 10_000
PLACE = '[plugins."io.containerd.grpc.v1.cri".registry.configs]\n'
REGISTRY = """
        [plugins."io.containerd.grpc.v1.cri".registry.configs."registry{n}.example.com".auth]
          username = "user{n}"
          password = 'secret'

        [plugins."io.containerd.grpc.v1.cri".registry.configs."registry{n}.example.com".tls]
          # of registry {n}
          ca_file = "/etc/ssl/certs/registry{n}.pem"
          insecure_skip_verify = false
          names = ["registry{n}.example.com", "mirror{n}.example.com"]
          retries = {n}
"""
CONTAINERD = RuntimeRequest(runtime="containerd", version="1.7.34")
DOCKER = RuntimeRequest(runtime="docker", version="28.5.2")


def large_config() -> str:
    """The default file, with so many registries that it has 10,000 lines."""
    text = DEFAULT.decode()
    count = (LINES - text.count("\n")) // REGISTRY.count("\n")
    return text.replace(PLACE, PLACE + "".join(REGISTRY.format(n=n) for n in range(count)))


def large_daemon_json(runtimes: int) -> str:
    """10,000 lines: so many runtimes of four lines each, the rest a list of registries."""
    rest = LINES - 4 * runtimes
    settings = {
        "runtimes": {f"r{n}": {"path": f"/usr/bin/r{n}", "runtimeArgs": []} for n in range(runtimes)},
        "insecure-registries": [f"registry{n}.example.com:5000" for n in range(rest)],
    }
    return json.dumps(settings, indent=4) + "\n"


def cpu(act: Callable[[], object], times: int) -> float:
    """CPU milliseconds of the quickest run."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        act()
        best = min(best, time.process_time() - start)
    return best * 1000


def cpu_of_peer(runtime: str, text: str) -> tuple[float, float]:
    """CPU milliseconds and peak memory in MiB of nvidia-ctk on a file, edited in place, nothing written."""
    best, memory = float("inf"), 0.0
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config")
        config.write_text(text)
        options = [f"--runtime={runtime}", f"--config={config}", "--drop-in-config=", "--set-as-default", "--dry-run"]
        for _ in range(10):
            command = ["nvidia-ctk", "runtime", "configure", *options]
            peer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            printed = peer.stderr.read() if peer.stderr else b""
            _, status, usage = os.wait4(peer.pid, 0)
            assert status == 0, printed.decode()
            best, memory = min(best, usage.ru_utime + usage.ru_stime), usage.ru_maxrss / 1024
    return best * 1000, memory


def measure(what: str, path: str, text: str, request: RuntimeRequest, goal: str, times: int) -> None:
    """Rows for one file."""
    files = {path: text.encode()}
    edit = configure_runtime(files, request)
    assert edit.changes, edit.problems
    ours = cpu(lambda: configure_runtime(files, request), times)
    tracemalloc.start()
    configure_runtime(files, request)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    row(f"{what}: CPU, and peak memory it takes", f"{ours:.1f} ms, {peak:.1f} MiB", goal)
    reader = json.loads if request.runtime == "docker" else tomllib.loads
    read = cpu(lambda: reader(text), times)
    row(f"the same against the standard library's reader alone ({read:.1f} ms)", f"{ours / read:.2f} ×")
    if shutil.which("nvidia-ctk"):
        peer, memory = cpu_of_peer(request.runtime, text)
        row(f"the same against a call of nvidia-ctk ({peer:.0f} ms, {memory:.0f} MiB)", f"{ours / peer:.2f} ×")


def main() -> None:
    if not shutil.which("nvidia-ctk"):
        log("edits: nvidia-ctk is not on PATH, so it is not compared")
    config, daemon = "/etc/containerd/config.toml", "/etc/docker/daemon.json"
    measure("edit of containerd's default file", config, DEFAULT.decode(), CONTAINERD, "≤ 30 ms", 20)
    measure("edit of 10,000 lines of config.toml", config, large_config(), CONTAINERD, "", 3)
    measure("edit of 10,000 lines of daemon.json", daemon, large_daemon_json(20), DOCKER, "≤ 24 ms", 20)
    measure("edit of daemon.json with 2,000 runtimes", daemon, large_daemon_json(2000), DOCKER, "≤ 24 ms", 20)


if __name__ == "__main__":
    main()
