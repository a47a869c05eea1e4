"""A lab cluster of two nodes with two GPUs each, provisioned by gpunode: what the tests on a real Kubernetes share."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpunode.lab import Lab

FOLDER = os.environ.get("GPUNODE_KUBERNETES", "")
OTHERS = [one for one in os.environ.get("GPUNODE_KUBERNETES_OTHERS", "").split(":") if one]  # of other releases
REASON = "GPUNODE_KUBERNETES names no folder with the programs of Kubernetes"

GPU = "nvidia.com/gpu"
SAMPLE = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    lab: Lab
    folder: Path
    run_gpunode: Callable[..., subprocess.CompletedProcess[str]]
    controller: Mapping[str, str]  # the environment of run_gpunode

    # ------------------------------------------------------------ gpunode

    def spec(self, spec: Mapping[str, Any], name: str = "gpunode.yml") -> Path:
        """gpunode.yml: the lab's sources, and what the test says."""
        path = self.folder / name
        own = yaml.safe_load(self.lab.spec.read_text())
        path.write_text(yaml.safe_dump(own | dict(spec)))
        return path

    def gpunode(self, *words: object, exit: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run_gpunode(*words, exit=exit, env={"KUBECONFIG": str(self.lab.kubeconfig)}, **options)

    @contextlib.contextmanager
    def killed(self, *words: object) -> Iterator[None]:
        """Run gpunode while the block runs, then kill it and all that it started, as a lost controller would be."""
        command = [sys.executable, "-m", "gpunode", *map(str, words)]
        environment = {**self.controller, "KUBECONFIG": str(self.lab.kubeconfig)}
        quiet = subprocess.DEVNULL
        with subprocess.Popen(
            command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        ) as process:
            try:
                yield
                assert process.poll() is None, "it ended before it was killed"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def kube(self, command: str, spec: Path, *words: object, exit: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self.gpunode("kube", command, "-c", spec, *words, exit=exit)

    def kube_text(self, command: str) -> str:
        return self.gpunode("kube", command, exit=None).stdout

    def checks(self, command: str, spec: Path, *words: object) -> dict[str, list[tuple[str, str, str]]]:
        """(id, status, message) of each check of `kube verify`, by pool (or `cluster`)."""
        done = self.kube(command, spec, "--format", "json", *words, exit=None)
        hosts = json.loads(done.stdout)["hosts"]
        return {
            host["host"]: [(one["id"], one["status"], one.get("message", "")) for one in host["checks"]]
            for host in hosts
        }

    def play(self, playbook: object, *words: object) -> str:
        """A playbook on the lab's nodes."""
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        command = [program, "-i", str(self.lab.inventory), str(playbook), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    # ------------------------------------------------------------ Kubernetes

    def kubectl(self, *words: object, stdin: str = "", check: bool = True) -> str:
        command = [f"{FOLDER}/kubectl", f"--kubeconfig={self.lab.kubeconfig}", *map(str, words)]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + ("" if check else done.stderr)

    def get(self, *words: object) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def allocatable(self, resource: str) -> dict[str, str]:
        return {
            node["metadata"]["name"]: node["status"]["allocatable"].get(resource, "0")
            for node in self.get("nodes")["items"]
        }

    def ready(self) -> dict[str, str]:
        """The Ready condition of each node."""
        return {
            node["metadata"]["name"]: next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready")
            for node in self.get("nodes")["items"]
        }

    def apply(self, *objects: Mapping[str, Any]) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(items))  # JSON: kubectl takes an unquoted y for true


def wait_for(what: Callable[[], object], seconds: float = 90) -> None:
    """Until `what` gives something that is true; AssertionErrors count as not yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = what()
            assert found, f"{found!r}"
            return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def failed(found: Mapping[str, list[tuple[str, str, str]]]) -> list[tuple[str, str, str]]:
    """The checks of `Cluster.checks` that did not pass."""
    return [check for checks in found.values() for check in checks if check[1] != "passed"]


def pod(name: str, limits: Mapping[str, int], **metadata: object) -> dict[str, Any]:
    """A pod that sleeps."""
    container = {
        "name": "c",
        "image": SAMPLE,
        "command": ["sh", "-c", "exec sleep 3600"],
        "resources": {"limits": dict(limits)},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }
