"""The shape of a role option's value, declared once: what a request accepts, and what Ansible's documentation says.

Types have Ansible's names.  A shape is checked before anything of a value reaches a shell.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, field
from gpunode.core.meant import meant

Kind = Literal["str", "bool", "int", "dict", "list", "raw", "path"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A value: its type, what it may hold, and what a reader has to know of it.

    `keys` are those of a dict, or of each dict in a list; `elements` is the type in a list.  An empty value always
    fits: it asks for nothing.
    """

    type: Kind
    doc: str
    keys: Mapping[str, Shape] = field(default_factory=dict)
    elements: Kind | Literal[""] = ""
    choices: tuple[Any, ...] = ()
    pattern: str = ""  # of a text, or of each text in a list, whole
    pair: tuple[str, str] = ("", "")  # of the names and values of a dict with free names
    required: bool = False

    @property
    def empty(self) -> Any:
        """The value that asks for nothing."""
        return {"bool": False, "dict": {}, "list": []}.get(self.type)


def text(doc: str, pattern: str = "", *, choices: tuple[Any, ...] = (), required: bool = False) -> Shape:
    """A text that fits the pattern, or is one of the choices."""
    return Shape(type="str", doc=doc, pattern=pattern, choices=choices, required=required)


def flag(doc: str) -> Shape:
    """True or false."""
    return Shape(type="bool", doc=doc)


def number(doc: str) -> Shape:
    """A whole number."""
    return Shape(type="int", doc=doc)


def texts(doc: str, pattern: str = "", *, choices: tuple[Any, ...] = ()) -> Shape:
    """A list of texts, each of which fits."""
    return Shape(type="list", elements="str", doc=doc, pattern=pattern, choices=choices)


def pairs(doc: str, names: str, values: str) -> Shape:
    """A dict with free names."""
    return Shape(type="dict", doc=doc, pair=(names, values))


def mapping(doc: str, **keys: Shape) -> Shape:
    """A dict with these keys; without any, one that something else checks."""
    return Shape(type="dict", doc=doc, keys=keys)


def rows(doc: str, **keys: Shape) -> Shape:
    """A list of dicts with these keys."""
    return Shape(type="list", elements="dict", doc=doc, keys=keys)


def check_value(where: str, value: Any, shape: Shape) -> None:
    """Raises InputError where the value has an unknown key, or holds what a shell or a tool could misread."""
    if value is None or value in ("", [], {}, False):
        return
    if shape.type == "list":
        if isinstance(value, str | Mapping):
            raise InputError(f"{where} is {value!r}", expected="a list")
        for one in value:
            check_one(where, one, shape)
    else:
        check_one(where, value, shape)


def check_one(where: str, value: Any, shape: Shape) -> None:
    """The same of one element of a list, or of a dict that may not be empty."""
    if shape.choices and value not in shape.choices:
        raise InputError(f"{where} is {value!r}", expected=f"one of {', '.join(map(str, shape.choices))}")
    if shape.pattern:
        checked(where, shape.pattern, value)
    elif "str" in (shape.type, shape.elements) and not isinstance(value, str):
        raise InputError(f"{where} is {value!r}", expected="a text")
    if shape.keys or any(shape.pair):
        if not isinstance(value, Mapping):
            raise InputError(f"{where} is {value!r}", expected="a mapping")
        for name, inner in value.items() if any(shape.pair) else ():
            checked(f"{where}: name", shape.pair[0], name)
            checked(f"{where}: {name}", shape.pair[1], inner)
    if shape.keys:
        check_keys(where, value, shape.keys)
        for name, key in shape.keys.items():
            if key.required and not value.get(name):
                raise InputError(f"{where}: no {name}", expected=key.doc)
            check_value(f"{where}: {name}", value.get(name), key)


def check_keys(where: str, value: Mapping[str, Any], known: Mapping[str, Shape] | Collection[str]) -> None:
    """Raises InputError for a key that is none of the known ones; those that nobody documents are not listed."""
    listed = [key for key in known if not isinstance(known, Mapping) or known[key].doc]
    for key in value:
        if key not in known:
            raise InputError(
                f"{where}: unknown key {key!r}",
                expected=f"one of {', '.join(listed)}",
                fix=meant(str(key), known, "remove it"),
            )


def checked(where: str, pattern: str, value: Any) -> str:
    """The text, which fits whole.  Raises InputError for what a shell or a tool could read as something else."""
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise InputError(f"{where} {value!r}", expected=f"text like {pattern}")
    return value
