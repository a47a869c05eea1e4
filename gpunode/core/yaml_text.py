"""YAML as people write it, in which Kubernetes' reader finds the same data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from gpunode.core.late import regex


def yaml_documents(objects: Iterable[Any]) -> str:
    """Several documents of one YAML stream."""
    return "".join(f"---\n{yaml_text(found)}" for found in objects)


def yaml_text(data: Any) -> str:
    """YAML as people write it: keys in their order, texts of several lines as blocks.

    >>> print(yaml_text({"gpu": "y", "serial": "1e3"}), end="")
    gpu: 'y'
    serial: '1e3'
    """
    return yaml.dump(data, Dumper=PlainDumper, sort_keys=False, allow_unicode=True, width=120)


class PlainDumper(yaml.SafeDumper):
    """A SafeDumper that writes texts of several lines as blocks, and no anchors (`ignore_aliases`)."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Texts that Kubernetes' reader (go-yaml) takes for true, false or numbers, and PyYAML does not; underscores count not
_READ_OTHERWISE = regex(r"[yYnN]|[-+]?(\.[0-9]+|[0-9]+\.?[0-9]*)([eE][-+]?[0-9]+)?|[-+]?0[oO][0-7]+")


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _READ_OTHERWISE.fullmatch(text.replace("_", "")) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


PlainDumper.add_representer(str, _text)
