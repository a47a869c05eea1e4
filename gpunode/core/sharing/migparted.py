"""A layout of MIG instances as NVIDIA mig-parted's configuration file, `version: v1`.

Format: github NVIDIA/mig-parted api/spec/v1/spec.go @bd7160f (2026-08-21).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ALL_DISABLED = "all-disabled"


@dataclass(frozen=True, kw_only=True)
class Group:
    """GPUs of a node that are cut alike.  `devices` None: all of them; `wish` None: MIG off."""

    wish: Mapping[str, int] | None
    devices: tuple[int, ...] | None = None
    ids: tuple[str, ...] = ()  # only GPUs with these PCI ids (10de:20b2); () any


def mig_parted(configs: Mapping[str, Sequence[Group]]) -> dict[str, Any]:
    """Named layouts → the file as plain data; `all-disabled` is always among them, so that there is a way back."""
    named = {ALL_DISABLED: (Group(wish=None),), **configs}
    return {"version": "v1", "mig-configs": {name: [_entry(g) for g in groups] for name, groups in named.items()}}


def _entry(group: Group) -> dict[str, Any]:
    filters = [f"0x{one.removeprefix('10de:').upper()}10DE" for one in group.ids]
    return {
        **({"device-filter": filters} if filters else {}),
        "devices": "all" if group.devices is None else list(group.devices),
        "mig-enabled": group.wish is not None,
        **({"mig-devices": dict(group.wish)} if group.wish is not None else {}),
    }
