"""What `lab up` writes for other programs: inventory, known_hosts, ssh_config and spec, as pure text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

NOTE = "# written by `gpunode lab`; rewritten by each up, reset and down\n"


def inventory(nodes: Mapping[str, Mapping[str, str]], specs: Mapping[str, Any], *, key: Path, known_hosts: Path) -> str:
    """hosts.yml: `nodes` is {lab: {node: address}}, `specs` {node: what only this node's gpunode_spec says}."""
    common = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": " ".join(f"-o {name}={value}" for name, value in _options(known_hosts).items()),
    }
    children = {
        lab.replace("-", "_"): {
            "hosts": {
                node: {"ansible_host": address} | ({"gpunode_spec": specs[node]} if node in specs else {})
                for node, address in members.items()
            }
        }
        for lab, members in nodes.items()
    }
    return NOTE + yaml.safe_dump({"all": {"vars": common, "children": children}}, sort_keys=False)


def _options(known_hosts: Path) -> dict[str, str]:
    return {"UserKnownHostsFile": str(known_hosts), "GlobalKnownHostsFile": "/dev/null", "IdentitiesOnly": "yes"}


def known_hosts(nodes: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """known_hosts of (name, address, public host keys) each."""
    return "".join(f"{name},{address} {host_key}\n" for name, address, keys in nodes for host_key in keys)


def ssh_config(addresses: Mapping[str, str], *, key: Path, known_hosts: Path) -> str:
    """ssh_config of {name: address}, for `ssh -F`."""
    options = {"User": "root", "IdentityFile": str(key), "StrictHostKeyChecking": "yes", **_options(known_hosts)}
    lines = "".join(f"    {name} {value}\n" for name, value in options.items())
    return NOTE + "".join(f"Host {name}\n    HostName {address}\n{lines}" for name, address in addresses.items())


def spec(sources: Mapping[str, Mapping[str, str]]) -> str:
    """gpunode.yml that points at the lab's repository."""
    return NOTE + yaml.safe_dump({"sources": {name: dict(source) for name, source in sources.items()}}, sort_keys=False)
