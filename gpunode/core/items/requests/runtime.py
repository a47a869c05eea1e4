"""One entry of the role option `runtime_edits` as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from gpunode.core.errors import InputError
from gpunode.core.model import NodeFacts, RuntimeName, RuntimeWish
from gpunode.core.validation import check_keys

_WISH = ("runtime", "default_runtime", "cdi", "cgroup_driver", "nvidia_runtime_path")
_KEYS = (*_WISH, "restart", "expect")
_CHOICES = {
    "runtime": get_args(RuntimeName),
    "default_runtime": ("nvidia", "runc", "keep"),
    "cdi": (None, True, False),
    "cgroup_driver": ("", "systemd", "cgroupfs"),
}


def runtime_wish(value: Mapping[str, Any]) -> RuntimeWish:
    """{runtime, default_runtime, cdi, cgroup_driver, nvidia_runtime_path, restart, expect} → RuntimeWish.

    `restart` and `expect` are the transaction's affair.  Raises InputError.
    """
    check_keys("runtime edit", value, _KEYS)
    for key, choices in _CHOICES.items():
        if (key in value or key == "runtime") and value.get(key) not in choices:
            words = ", ".join(map(str, choices))
            raise InputError(f"runtime edit: {key} is {value.get(key)!r}", expected=f"one of {words}")
    return RuntimeWish(**{key: value[key] for key in _WISH if key in value})


def changed_files(expect: Mapping[str, str], facts: NodeFacts) -> list[str]:
    """The paths whose sha256 is not the expected one ("" = absent)."""
    return [
        path for path, wanted in expect.items() if (facts.files[path].sha256 if path in facts.files else "") != wanted
    ]
