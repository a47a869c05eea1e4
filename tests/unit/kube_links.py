"""What config-manager links, and whether the containers that read the link can follow it.

config-manager reads CONFIG_FILE_SRCDIR in its own container and makes CONFIG_FILE_DST a symbolic link to a file there.
The link's text is a path of config-manager's container: it leads somewhere in another container only where the same
volume is mounted at the same path.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

Object = dict[str, Any]


def pods_in(item: Any) -> Iterator[Object]:
    """Every pod specification inside an object, whatever kind holds it."""
    if isinstance(item, dict):
        if isinstance(item.get("containers"), list):
            yield item
        for value in item.values():
            yield from pods_in(value)
    elif isinstance(item, list):
        for value in item:
            yield from pods_in(value)


def dangling_links(pod: Object) -> list[str]:
    """The containers of a pod that see a link of config-manager's and not what it points to, in words."""
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    wrong = []
    for manager in containers:
        variables = {one["name"]: one.get("value", "") for one in manager.get("env", [])}
        if not {"CONFIG_FILE_SRCDIR", "CONFIG_FILE_DST"} <= set(variables):
            continue
        source, link = variables["CONFIG_FILE_SRCDIR"], variables["CONFIG_FILE_DST"]
        target, holder = _volume_at(manager, source), _volume_at(manager, link)
        if not target or not holder:
            wrong.append(f"{manager['name']} itself lacks a volume at {source} or {link}")
        for reader in containers:
            sees_link = any(mounted["name"] == holder for mounted in reader.get("volumeMounts", []))
            if sees_link and _volume_at(reader, source) != target:
                wrong.append(f"{reader['name']} reads {link}, a link into {source}, and does not mount {target} there")
    return wrong


def unfed_readers(pod: Object) -> list[str]:
    """The containers whose CONFIG_FILE lies on no volume of the pod."""
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    return [
        f"{reader['name']} reads {one['value']}, which is on no volume"
        for reader in containers
        for one in reader.get("env", [])
        if one["name"] == "CONFIG_FILE" and not _volume_at(reader, one["value"])
    ]


def _volume_at(one: Object, path: str) -> str:
    """The name of the volume that a path of the container lies on, "" for the image's own files."""
    mounts = {mounted["mountPath"]: mounted["name"] for mounted in one.get("volumeMounts", [])}
    above = [path, *map(str, PurePosixPath(path).parents)]
    return next((mounts[folder] for folder in above if folder in mounts), "")
