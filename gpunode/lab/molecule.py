"""Molecule's configuration of lab nodes, which its podman driver starts from the lab's images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpunode.core.errors import InputError
from gpunode.lab.labs import platform
from gpunode.lab.machine import Log, containers_conf, write
from gpunode.lab.nodes import load_nodes

KEYS = ("name", "distro", "gpus", "nouveau", "engines", "python", "real_driver")


def read_nodes(path: Path) -> list[dict[str, Any]]:
    """The nodes that a nodes.yml describes: a list of mappings, each with a name and what differs from the defaults.

    Raises InputError for what is no such list.
    """
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", expected="a file that lists nodes") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {error}", expected="a list of nodes") from error
    if not isinstance(data, list) or not data or not all(isinstance(node, dict) and node.get("name") for node in data):
        raise InputError(f"{path} lists no nodes", expected="[{name: NAME, distro: debian:12, gpus: [h100]}, …]")
    for node in data:
        if unknown := sorted(node.keys() - set(KEYS)):
            raise InputError(f"{path}: unknown key {unknown[0]!r}", expected=f"one of {', '.join(KEYS)}")
    return data


def write_base(nodes: Sequence[Mapping[str, Any]], output: Path, *, log: Log) -> dict[str, str]:
    """Prepare the nodes and write a base configuration for `molecule -c`; gives back the environment that it needs.

    Beside `output` goes a NODE.gpunode.yml each, which names the lab's package repository.  `down(names)` removes what
    was prepared, after Molecule has destroyed the containers.
    """
    platforms = [platform(log=log, **node) for node in nodes]
    sources = {node.name: node.sources for node in load_nodes()}
    host_vars = {}
    for entry in platforms:
        config = output.resolve().with_name(f"{entry['name']}.gpunode.yml")
        write(config, yaml.safe_dump({"sources": dict(sources[entry["name"]])}))
        host_vars[entry["name"]] = {"gpunode_config": str(config)}
    base = {
        "driver": {"name": "podman"},
        "platforms": platforms,
        "provisioner": {"inventory": {"host_vars": host_vars}},
    }
    write(output, yaml.safe_dump(base, sort_keys=False))
    return {"CONTAINERS_CONF": str(containers_conf())}
