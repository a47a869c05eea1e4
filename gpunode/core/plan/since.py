"""What is other on a node than it was: two states of one node → sentences.

A state is what a plan rests on (facts.stable_facts), as small as it can be kept for thousands of hosts: long texts,
such as an engine's whole configuration, only by their hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.facts import stable_facts
from gpunode.core.mask import mask
from gpunode.core.model import Check, NodeFacts
from gpunode.core.printable import with_texts

_LONG = 120  # characters from which on a text is kept by its hash
_NAMES = ("name", "release", "slot", "path", "index")  # by which an item of a list is known
_REPORTED = 20  # differences of a host
_FILE = ("mode", "owner", "size")  # of a file whose hash changed


def state_of(facts: NodeFacts) -> dict[str, Any]:
    """Plain data for JSON; nothing secret: files are in it by their hashes."""
    data = stable_facts(facts)
    modes = {path: f"{file.mode:04o}" for path, file in facts.files.items()}
    data["files"] = {path: {**file, "mode": modes[path]} for path, file in data["files"].items()}
    return {key: with_texts(value, _short) for key, value in data.items()}


def differences(before: Any, after: Any, at: tuple[str, ...] = ()) -> Iterator[str]:
    """What changed, a line each: WHERE: OLD → NEW.

    >>> list(differences({"toolkit": "1.17.0", "cuda": ["12.8"]}, {"toolkit": "1.18.1", "cuda": ["12.8"]}))
    ['toolkit: 1.17.0 → 1.18.1']
    """
    if before == after:
        return
    old, new = _by_name(before), _by_name(after)
    if len(at) == 1:  # a section that is not there is an empty one
        old, new = ({} if one is None and not bare else one for one, bare in ((old, before), (new, after)))
    if old is None or new is None:
        yield f"{' '.join(at)}: {_word(before)} → {_word(after)}"
        return
    if at[:1] == ("files",) and old.get("sha256") != new.get("sha256"):
        yield f"{' '.join(at)}: other content"
        old, new = ({key: value for key, value in one.items() if key in _FILE[:2]} for one in (old, new))
    for key in sorted(old.keys() | new.keys()):
        yield from differences(old.get(key), new.get(key), (*at, key))


def since_checks(before: Mapping[str, Any], after: Mapping[str, Any], run: str) -> list[Check]:
    """The differences as warnings: whether one is wrong, the plan says."""
    lines = list(differences(before, after))
    if len(lines) > _REPORTED:
        lines = [*lines[:_REPORTED], f"and {len(lines) - _REPORTED} more"]
    return [Check(id="since.drift", status="warning", message=f"since {run}: {line}") for line in lines]


def _short(value: str) -> str:
    value = mask(value) if len(value) > _LONG or "://" in value else value  # no hash is one of a password
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:16]}" if len(value) > _LONG else value


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """A mapping, or a list of mappings that have names; None for what has no parts to compare."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(item, Mapping) for item in value):
        return None
    key = next((name for name in _NAMES if all(name in item for item in value)), None)
    return {str(item[key]): item for item in value} if key else None


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return str(value.get("version") or value.get("active") or "there")
    if isinstance(value, list):
        return ", ".join(map(_word, value)) or "none"
    return str(value) or "none"
