"""What a name, a label, a quantity may look like: the API server's own rules, which no JSON schema holds.

https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ and …/labels/; apimachinery's util/validation.
Every function says what is wrong, "" for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)([EPTGMk]i?|Ki|m|u|n|[eE][+-]?\d{1,2})?")
_SCALE = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15"}
_BINARY = {unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_IMAGE = re.compile(
    r"([a-zA-Z0-9.-]+(:\d+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)


def label_name(value: Any) -> str:
    """A DNS label (RFC 1123): names of containers, volumes, namespaces, handlers of runtimes."""
    right = isinstance(value, str) and len(value) <= 63 and _LABEL.fullmatch(value)
    return "" if right else f"{value!r} is no name of small letters, digits and - (63 at most)"


def subdomain(value: Any) -> str:
    """Labels with dots between: names of most objects."""
    right = isinstance(value, str) and len(value) <= 253 and all(_LABEL.fullmatch(part) for part in value.split("."))
    return "" if right else f"{value!r} is no name of small letters, digits, - and ."


def label_key(value: Any) -> str:
    """[PREFIX/]NAME"""
    prefix, slash, name = value.rpartition("/") if isinstance(value, str) else ("", "", "")
    right = len(name) <= 63 and _QUALIFIED.fullmatch(name) and (not slash or not subdomain(prefix))
    return "" if right else f"{value!r} is no label's key, such as nvidia.com/gpu.present"


def label_value(value: Any) -> str:
    if not isinstance(value, str):
        return f"{value!r} is no text: quote it"
    right = not value or (len(value) <= 63 and _QUALIFIED.fullmatch(value))
    return "" if right else f"{value!r} is no label's value: letters, digits, -, _ and . (63 at most)"


def image(value: Any) -> str:
    right = isinstance(value, str) and _IMAGE.fullmatch(value)
    return "" if right else f"{value!r} is no image, such as registry.lan:5000/gpu/plugin:v1"


def amount(value: Any) -> Decimal | None:
    """A quantity as a number, None for none: 100m is 0.1, 1Gi is 1073741824."""
    found = _QUANTITY.fullmatch(str(value)) if not isinstance(value, bool) else None
    if not found:
        return None
    unit = found[2] or ""
    if unit in _BINARY:
        return Decimal(found[1]) * _BINARY[unit]
    return Decimal(found[1]) * Decimal("1e18" if unit == "E" else _SCALE.get(unit, f"1{unit}"))


def labels(found: Any, where: str, *, values: bool = True) -> Iterator[str]:
    """What is wrong with a mapping of labels (or annotations, whose values are free)."""
    if not isinstance(found, Mapping):
        return
    for key, value in found.items():
        wrong = (label_key(key), label_value(value) if values else "")
        yield from (f"{where}: {reported}" for reported in wrong if reported)
