"""What each key of gpunode.yml means: its values, its default and its line of documentation, from the types alone."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from gpunode.core.errors import InputError
from gpunode.core.late import dataclass
from gpunode.core.meant import nearest

NAMED = "NAME"  # in a path: any name, such as that of a repository


@dataclass(frozen=True, kw_only=True)
class SpecKey:
    """One key: `driver.branch`, `sources.NAME.url`; `values` and `default` are "" of a key that has keys of its own."""

    path: str
    doc: str
    values: str = ""
    default: str = ""


def reference(spec: type) -> tuple[SpecKey, ...]:
    """All keys of the type Spec, in the order of gpunode.yml, each behind the one that it is in."""
    return tuple(_keys(spec, ""))


def find_keys(path: str, spec: type) -> tuple[SpecKey, ...]:
    """The key of that path and those in it.  Raises InputError for one that there is not."""
    every = reference(spec)
    wanted = path.strip(".")
    found = tuple(key for key in every if _is_in(key.path.split("."), wanted.split(".")))
    if not found:
        fix = meant_key(wanted, every) or "gpunode explain lists all keys"
        raise InputError(f"gpunode.yml has no key {path!r}", expected="a key such as driver.branch", fix=fix)
    return found


def meant_key(path: str, every: Iterable[SpecKey], *, near: bool = True) -> str:
    """The question whether keys are meant that have this name elsewhere, or with `near` nearly this path; or ""."""
    paths = [key.path for key in every]
    last = path.rpartition(".")[2]
    tail = "_" + last.removeprefix("gpunode_")  # as the variables of Ansible have it
    found = [one for one in paths if one.rpartition(".")[2] == last]
    found = found or [one for one in paths if "_" in last and f"_{one}".replace(".", "_").endswith(tail)]
    found = found or (nearest(path, paths, count=3) if near else [])
    return f"did you mean {' or '.join(found[:3])}?" if found else ""


def _is_in(path: list[str], wanted: list[str]) -> bool:
    return len(path) >= len(wanted) and all(a in (b, NAMED) for a, b in zip(path, wanted, strict=False))


def _keys(kind: type, prefix: str) -> Iterator[SpecKey]:
    hints = typing.get_type_hints(kind)
    default = kind()
    for field in dataclasses.fields(kind):
        hint, doc = hints[field.name], field.metadata["doc"]
        path, text = f"{prefix}{field.name}", f"{doc[0].upper()}{doc[1:]}."
        inner = _mapped_dataclass(hint)
        record = hint if dataclasses.is_dataclass(hint) and isinstance(hint, type) else inner
        if record is None:
            shown = json.dumps(getattr(default, field.name), ensure_ascii=False)
            yield SpecKey(path=path, doc=text, values=_values(hint), default=shown)
        else:
            yield SpecKey(path=path, doc=text)
            yield from _keys(record, f"{path}.{NAMED}." if inner else f"{path}.")


def _mapped_dataclass(hint: Any) -> type | None:
    args = typing.get_args(hint)
    last = args[-1] if len(args) == 2 else None
    return last if isinstance(last, type) and dataclasses.is_dataclass(last) else None


def _values(hint: Any) -> str:
    """The type as a reader of YAML would say it; what is typed as it stands is between backquotes."""
    args = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{a}`" for a in args)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return ", ".join("`null`" if a is type(None) else _values(a) for a in args)
    if typing.get_origin(hint) is tuple:
        return f"list of {_values(args[0])}"
    if dataclasses.is_dataclass(hint):
        return f"{{{', '.join(field.name for field in dataclasses.fields(hint))}}}"
    if len(args) == 2:
        return f"mapping to {_values(args[1])}"
    return {str: "text", bool: "`true`, `false`", int: "number"}.get(hint, str(hint))
