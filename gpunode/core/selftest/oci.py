"""A CDI specification of our own, and the OCI configuration of a container that it is applied to.

For machines without nvidia-ctk: what a program needs to ask the driver is the device files, the driver's libraries and
nvidia-smi.  Sources: the CDI specification (github cncf-tags/container-device-interface SPEC.md) and the OCI runtime
specification (github opencontainers/runtime-spec config.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A character device of this machine."""

    path: str
    major: int
    minor: int


def own_specification(gpus: Mapping[str, int], nodes: Iterable[Node], files: Mapping[str, str]) -> dict[str, Any]:
    """A CDI specification with a device for each GPU (UUID → N of its /dev/nvidiaN) and one called `all`.

    `files` are the driver's libraries and programs of this machine and where the container gets them, read-only.
    """
    by_path = {node.path: node for node in nodes}
    devices = {uuid: [f"/dev/nvidia{minor}"] for uuid, minor in gpus.items()}
    devices["all"] = [path for paths in devices.values() for path in paths]
    shared = [path for path in CONTROL if path in by_path]
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": [_node(by_path[p]) for p in paths if p in by_path]}}
            for name, paths in devices.items()
        ],
        "containerEdits": {
            "deviceNodes": [_node(by_path[path]) for path in shared],
            "mounts": [
                {"hostPath": path, "containerPath": to, "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]}
                for path, to in files.items()
            ],
        },
    }


def _node(node: Node) -> dict[str, Any]:
    return {"path": node.path, "type": "c", "major": node.major, "minor": node.minor}


def container(specification: Mapping[str, Any], device: str, command: Sequence[str]) -> dict[str, Any]:
    """config.json of a container in ./rootfs that has that device of the specification, "" for none."""
    edits = [specification["containerEdits"]] if device else []
    edits += [one["containerEdits"] for one in specification["devices"] if one["name"] == device]
    nodes = [node for edit in edits for node in edit.get("deviceNodes", ())]
    mounts = [mount for edit in edits for mount in edit.get("mounts", ())]
    libraries = [mount["containerPath"] for mount in mounts if ".so" in mount["containerPath"]]
    folders = dict.fromkeys(path.rpartition("/")[0] for path in libraries)
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "env": ["PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=void", f"LD_LIBRARY_PATH={':'.join(folders)}"],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "hostname": "gpunode-selftest",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            *(
                {"destination": m["containerPath"], "type": "bind", "source": m["hostPath"], "options": m["options"]}
                for m in mounts
            ),
        ],
        "linux": {
            "devices": [{**node, "fileMode": 0o666, "uid": 0, "gid": 0} for node in nodes],
            "resources": {
                "devices": [
                    {"allow": False, "access": "rwm"},
                    *(
                        {"allow": True, "type": "c", "major": n["major"], "minor": n["minor"], "access": "rw"}
                        for n in nodes
                    ),
                ]
            },
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
        },
    }
