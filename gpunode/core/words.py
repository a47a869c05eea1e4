"""What a name, a label, a toleration may look like: the API server's own rules, which no JSON schema holds.

https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ and …/labels/; apimachinery's util/validation.
Every function says what is wrong, "" for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.late import regex

_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_LABEL = regex(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_IMAGE = regex(
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


def labels(given: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with labels."""
    for key, value in given.items():
        yield from filter(None, (label_key(key), label_value(value)))


def toleration(fields: Mapping[str, Any]) -> Iterator[str]:
    operator = fields.get("operator", "Equal")
    at = f"[{fields['key']}]" if fields.get("key") else ""
    if fields.get("effect", "") not in _EFFECTS:
        yield f"{at}.effect is {fields['effect']!r}: one of {', '.join(_EFFECTS[1:])}"
    if operator not in ("Exists", "Equal", "Lt", "Gt"):
        yield f"{at}.operator is {operator!r}: Exists or Equal"
    if operator == "Exists" and fields.get("value"):
        yield f"{at} has a value with the operator Exists"
    if not fields.get("key") and operator != "Exists":
        yield f"{at} has no key: only the operator Exists goes without"
    if fields.get("key") and (reported := label_key(fields["key"])):
        yield f"{at}.key: {reported}"
    if "tolerationSeconds" in fields and fields.get("effect") != "NoExecute":
        yield f"{at}.tolerationSeconds goes with the effect NoExecute only"
