"""Plain data: reading what may have any shape (what is not there, or is something else, is empty), writing YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from gpunode.core.late import regex


def mapping(holder: Any, *path: str) -> Any:
    """The mapping at a path of keys, {} for none."""
    for key in path:
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder if isinstance(holder, Mapping) else {}


def mappings(holder: Any, key: str) -> list[Any]:
    """The mappings in the list at a key, [] for none."""
    found = holder.get(key) if isinstance(holder, Mapping) else None
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


# ---------------------------------------------------------------- YAML


def yaml_documents(objects: Iterable[Any]) -> str:
    """Several documents of one YAML stream."""
    return "".join(f"---\n{yaml_text(found)}" for found in objects)


def yaml_text(data: Any) -> str:
    """YAML as people write it: keys in their order, texts of several lines as blocks.

    >>> print(yaml_text({"gpu": "y", "serial": "1e3"}), end="")
    gpu: 'y'
    serial: '1e3'
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """A SafeDumper that writes texts of several lines as blocks, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Texts that Kubernetes' reader (go-yaml) takes for true, false or numbers, and PyYAML does not; underscores count not
_READ_OTHERWISE = regex(r"[yYnN]|[-+]?(\.[0-9]+|[0-9]+\.?[0-9]*)([eE][-+]?[0-9]+)?|[-+]?0[oO][0-7]+")


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _READ_OTHERWISE.fullmatch(text.replace("_", "")) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
