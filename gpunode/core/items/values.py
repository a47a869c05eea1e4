"""The shape of a node's state, {Key: Want}, and the wants that all parts share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpunode.core.items.sources import SourceFile
from gpunode.core.model import Edit, PackageWant, Problem, Reason
from gpunode.core.spec import Spec

ABSENT = "absent"
PRESENT = "present"
FRESH = "fresh"
IN_FORCE = "in force"
NOT_HELD = ", not held"
BROKEN_OFF = ", of a transaction that was interrupted"  # rpm may have two versions of it then


class Key(NamedTuple):
    role: str
    option: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Want:
    """The wanted value of one key, the plain data that brings it about, and why."""

    value: str
    data: Any = None
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The whole wanted state of a node.  `edits` are the engines' config edits, worked out on the files as they are."""

    items: Mapping[Key, Want]
    edits: Mapping[str, Edit]
    problems: tuple[Problem, ...] = ()


def package_want(package: PackageWant) -> Want:
    """A package that is to be there; any version where none is asked for."""
    return Want(value=package.version or "*", data=package)


def file_want(path: str, text: str, mode: str = "0644") -> Want:
    """A file that is to have these bytes and this mode."""
    file = SourceFile(path=path, text=text, mode=mode)
    return Want(value=file_value(file), data=file)


def no_file(path: str, *reasons: Reason) -> Want:
    """A file that is to go."""
    return Want(value=ABSENT, data=SourceFile(path=path, text=None), reasons=reasons)


def file_value(file: SourceFile) -> str:
    """What stands for a file in a comparison: its key's fingerprint, or the hash and mode of its text."""
    if file.text is None and not file.repository:
        return ABSENT
    if file.repository:
        return f"key {file.repository.fingerprint}"
    return f"{hashlib.sha256((file.text or '').encode()).hexdigest()[:16]} {file.mode}"


def reboots(spec: Spec) -> dict[str, Any]:
    """What the spec says of reboots, as a role's value has it."""
    return {"reboot": spec.reboot, **({"reboot_controller": True} if spec.reboot_controller else {})}
