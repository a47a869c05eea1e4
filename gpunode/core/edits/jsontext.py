"""Set single keys in JSON text and leave every other byte as it is: order, indentation, the spelling of numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from gpunode.core.edits.request import place
from gpunode.core.errors import InputError

Path = tuple[str, ...]
_SPACE = re.compile(r"[ \t\r\n]*")


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_constant, parse_int=str, parse_float=str)  # spans only: keep digits


@dataclass(frozen=True)
class Member:
    key: str
    start: int  # of the key
    value: int
    end: int


def parse(path: str, text: str) -> Any:
    """The plain values; InputError carries path:line:column."""
    try:
        return json.loads(text, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{place(text, error.pos)}: {error.msg}",
            expected="valid JSON",
            fix="mend the file: the daemon does not start with it either",
        ) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: {str(error)[:200]}", expected="valid JSON", fix="mend the file") from None


def edit(text: str, sets: Mapping[Path, Any] | None = None, removes: Collection[Path] = ()) -> str:
    """The text of an object without the members at `removes`, then with those of `sets`, all else as it was.

    Objects on the way to a key of `sets` are made where they are missing or null.  A list that is there loses and
    gains only the elements that differ.  Paths of `removes` that are not there are passed over.
    """
    for path in removes:
        text = _remove(text, path)
    for path, value in (sets or {}).items():
        text = set_key(text, path, value)
    return text


def _remove(text: str, path: Path) -> str:
    at = _space(text, 0)
    for depth, key in enumerate(path):
        members = _members(text, at)
        index = next((i for i in reversed(range(len(members))) if members[i].key == key), None)
        if index is None:
            return text
        if depth + 1 < len(path):
            at = members[index].value
            if text[at] != "{":
                return text
            continue
        if index:
            return text[: members[index - 1].end] + text[members[index].end :]
        if len(members) > 1:
            return text[: members[0].start] + text[members[1].start :]
        return text[: at + 1] + text[_space(text, members[0].end) :]
    return text


def set_key(text: str, path: Path, value: Any) -> str:
    """The text of an object with the key at `path` set; objects on the way are made where they are missing or null."""
    at = _space(text, 0)
    for depth, key in enumerate(path):
        members = _members(text, at)
        found = next((m for m in reversed(members) if m.key == key), None)  # of twice the same key the last counts
        rest = path[depth + 1 :]
        if found is None:
            return _insert(text, at, members, key, _nest(rest, value), depth)
        if not rest or text.startswith("null", found.value):
            return text[: found.value] + _dump(_nest(rest, value), text, depth + 1) + text[found.end :]
        at = found.value
    return text


def _nest(path: Path, value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _members(text: str, at: int) -> list[Member]:
    found = []
    at = _space(text, at + 1)
    while text[at] == '"':
        key, end = _DECODER.raw_decode(text, at)
        value = _space(text, _space(text, end) + 1)
        _, stop = _DECODER.raw_decode(text, value)
        found.append(Member(key, at, value, stop))
        at = _space(text, stop)
        if text[at] == ",":
            at = _space(text, at + 1)
    return found


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _insert(text: str, at: int, members: list[Member], key: str, value: Any, depth: int) -> str:
    if members:
        last = members[-1]
        before = text[: members[0].start]
        gap = before[len(before.rstrip(" \t\r\n")) :]  # white space before the first member: its line and indentation
        colon = text[last.start + 1 : last.value].rpartition('"')[2]
        member = f"{json.dumps(key, ensure_ascii=False)}{colon}{_dump(value, text, depth + 1)}"
        return f"{text[: last.end]},{gap}{member}{text[last.end :]}"
    end = _space(text, at + 1)
    newline, indent = _style(text)
    member = f"{json.dumps(key, ensure_ascii=False)}: {_dump(value, text, depth + 1)}"
    if not indent:
        return text[: at + 1] + member + text[end:]
    return f"{text[: at + 1]}{newline}{indent * (depth + 1)}{member}{newline}{indent * depth}{text[end:]}"


def _style(text: str) -> tuple[str, str]:
    """Line end and one step of indentation of the text; "" for a text on one line that has members."""
    newline = "\r\n" if "\r\n" in text else "\n"
    found = re.search(r"\n([ \t]+)\S", text)
    if found:
        return newline, found[1]
    one_line = "\n" not in text.strip() and text.strip() not in ("{}", "")
    return newline, "" if one_line else "    "


def _dump(value: Any, text: str, depth: int) -> str:
    newline, indent = _style(text)
    if not isinstance(value, Mapping | list) or not indent or not value:
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, ensure_ascii=False, indent=indent).split("\n")
    return (newline + indent * depth).join(lines)


def plain(value: Any) -> Any:
    """A copy that shares nothing with the value."""
    return json.loads(json.dumps(value))
