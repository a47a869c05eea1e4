"""What a saved plan consists of: so that it is applied as it was reviewed, or refused with the difference.

A manifest is plain data: the hash of each file of the plan's folder, and for each host the hash of each of its steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpunode.core.grouped import grouped
from gpunode.core.model import Plan
from gpunode.core.printable import names

MANIFEST_FORMAT = 1
_NAMED = 8  # differences of connections that are named, before they are counted

Steps = Mapping[str, tuple[str, str]]  # id → title, hash


def make_manifest(
    plans: Iterable[Plan],
    errors: Iterable[str],
    files: Mapping[str, str],
    *,
    gpunode: str,
    limit: str,
    lock: str | None,
    connections: Mapping[str, Mapping[str, Any]] = {},
) -> dict[str, Any]:
    """`files` are texts by name, `errors` hosts that were asked for and could not be planned.

    `connections` say of each host of the user's inventory how it was reached, by Ansible's variables.

    `gpunode` is the version that made the plan; `limit` and `lock` are what the hosts and versions were chosen by.
    """
    return {
        "format": MANIFEST_FORMAT,
        "gpunode": gpunode,
        "limit": limit,
        "lock": lock,
        "hosts": {
            plan.host: [{"id": id, "title": title, "hash": value} for id, (title, value) in steps_of(plan).items()]
            for plan in plans
        },
        "errors": list(errors),
        "connections": {host: dict(values) for host, values in connections.items()},
        "files": {name: hash_of(text) for name, text in files.items()},
    }


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def steps_of(plan: Plan) -> Steps:
    """The steps as far as they are done: the words and diffs beside them are for readers."""
    return {s.id: (s.title, hash_of(json.dumps(s.value, sort_keys=True, default=str))) for s in plan.steps}


def changed_files(manifest: Mapping[str, Any], texts: Mapping[str, str]) -> list[str]:
    """The files of the folder that are not as they were written; `texts` by name."""
    found = []
    for name, recorded in manifest["files"].items():
        if name not in texts:
            found.append(f"{name}: is missing")
        elif hash_of(texts[name]) != recorded:
            found.append(f"{name}: was edited after the plan was made")
    return found


def changed_hosts(manifest: Mapping[str, Any], hosts: Iterable[str]) -> list[str]:
    """Which `hosts` the inventory has now that it had not when the plan was made, and which it has no more."""
    now, planned = list(hosts), manifest["hosts"]
    added = [host for host in now if host not in planned and host not in manifest["errors"]]
    gone = [host for host in planned if host not in now]
    found = [f"added to the inventory after the plan was made: {names(added)}"] if added else []
    return found + ([f"not in the inventory any more: {names(gone)}"] if gone else [])


def changed_connections(
    planned: Mapping[str, Mapping[str, Any]], connections: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Which planned hosts are reached in another way by now: the same name may be another machine."""
    found = []
    for host, old in planned.items():
        new = connections.get(host, old)
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                found.append(f"{host}: {name} was {_shown(old.get(name))}, is {_shown(new.get(name))}")
    more = len(found) - _NAMED
    return [*found[:_NAMED], f"{more} more differences of how hosts are reached"] if more > 0 else found


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def changed_steps(manifest: Mapping[str, Any], plans: Iterable[Plan]) -> list[str]:
    """Which steps are others than those of the plan, each difference once with the hosts that it is on."""
    hosts = manifest["hosts"]
    recorded = {h: {step["id"]: (step["title"], step["hash"]) for step in steps} for h, steps in hosts.items()}
    found = ((_differences(recorded[plan.host], steps_of(plan)), plan.host) for plan in plans)
    alike = grouped((text, host) for texts, host in found for text in texts)
    return [f"{names(hosts)}: {text}" for text, hosts in alike.items()]


def _differences(old: Steps, new: Steps) -> Iterator[str]:
    for id, (title, _) in old.items():
        if id not in new:
            yield f"step removed: {title} ({id})"
    for id, (title, value) in new.items():
        if id not in old:
            yield f"step added: {title} ({id})"
        elif old[id][1] != value:
            yield f"step changed: {title} ({id})"
    if list(old) != list(new) and old.keys() == new.keys():
        yield "the steps have another order"
