"""Nodes that are provisioned already, from an image of one that was, for tests of what comes afterwards.

The first of a kind is provisioned, checked and committed to an image, which is named by a hash of all that went into it
(the package gpunode, the spec, the lab's repositories and network).  Every test has a node of its own, which starts as
after a reboot: with its own host keys, machine id and hardware, and engines that have stored nothing yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import gpunode
from gpunode.lab import Lab, machine, network
from gpunode.lab.images import Variant
from gpunode.lab.machine import podman
from gpunode.lab.sources import image_of

# what the first boot makes for each node, see gpunode/lab/node/boot.sh
FORGET = "rm -rf /etc/ssh/ssh_host_* /var/log/journal/* /var/lib/systemd/random-seed; : >/etc/machine-id; sync"


class Provisioned:
    """`up(spec, …)`: a lab of one node as `lab_up` gives it, on which `gpunode provision` has nothing left to do."""

    def __init__(self, lab_up: Callable[..., Lab], run_gpunode: Callable[..., Any], folder: Path) -> None:
        self._lab_up, self._run, self._folder = lab_up, run_gpunode, folder

    def up(self, spec: Mapping[str, Any] | None = None, *, like: Sequence[str] = (), **shape: Any) -> Lab:
        """A node of that shape; `like` are the GPUs of the one that is provisioned, where these are others.

        They have to get the same driver: the plan of the node has to be empty.
        """
        spec = dict(spec or {})
        kind = {key: value for key, value in shape.items() if key != "name"} | ({"gpus": like} if like else {})
        name, digest = _name(kind, spec), _digest(kind, spec)
        image = f"localhost/gpunode-lab/{name}:{digest}"
        with machine.lock(f"image-{name}", log=print):
            if podman("image", "exists", image, check=False).returncode:
                self._make(image, spec, {"name": f"first-{digest}", **kind})
        lab = self._lab_up(1, image=image, **shape)
        self._run("plan", "-i", lab.inventory, "-c", self._spec(lab, spec))  # fails where something is left to do
        return lab

    def _make(self, image: str, spec: Mapping[str, Any], shape: Mapping[str, Any]) -> None:
        with self._lab_up(1, **shape) as lab:
            self._run("provision", "-i", lab.inventory, "-c", self._spec(lab, spec), "--yes")
            container = lab.nodes[0].container
            podman("exec", container, "sh", "-c", FORGET)
            podman("stop", container)
            podman("commit", "--quiet", container, image)
        name = image.partition(":")[0]
        listed = podman("images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference={name}").stdout
        for old in {*listed.split()} - {image}:
            podman("rmi", old, check=False)

    def _spec(self, lab: Lab, spec: Mapping[str, Any]) -> Path:
        path = self._folder / f"{lab.name}.yml"
        path.write_text(yaml.safe_dump(yaml.safe_load(lab.spec.read_text()) | spec))
        return path


def _name(*kind: Mapping[str, Any]) -> str:
    """One for each kind of node and each state folder: a newer image of the name replaces an older one."""
    return f"provisioned{machine.places().suffix}-{hashlib.sha256(json.dumps(kind).encode()).hexdigest()[:6]}"


def _digest(*kind: Mapping[str, Any]) -> str:
    """Of that, of every file of the package, and of what a node's gpunode.yml and sources name."""
    _, info = image_of(
        Variant(**{key: value for key, value in kind[0].items() if key in Variant.__dataclass_fields__}), print
    )
    hashed = hashlib.sha256(f"{json.dumps(kind)} {network.ensure_network()} {info.sources}".encode())
    package = Path(gpunode.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            hashed.update(f"{path}\0".encode() + path.read_bytes())
    return hashed.hexdigest()[:12]
