"""Set or remove one key of a YAML mapping and leave every other byte as it is.

The parser's marks tell where a value stands; the outcome is read again and must say what it said, plus the one key.
"""

from __future__ import annotations

from typing import Any

import yaml

from gpunode.core.edits.request import Refusal, check_size, decode
from gpunode.core.errors import InputError

_BY_HAND = "edit the file by hand, then run again"


def parse(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Text and plain values of a YAML mapping ({} for an empty file); InputError carries path:line:column."""
    check_size(path, data)
    text = decode(path, data)
    try:
        found = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InputError(f"{path}{where}: {error.problem or error.context}", expected="valid YAML") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {str(error)[:200]}", expected="valid YAML") from None
    if not isinstance(found, dict | None):
        raise InputError(f"{path} holds {type(found).__name__}", expected="a mapping, KEY: VALUE on each line")
    return text, found or {}


def set_key(text: str, key: str, value: str) -> str:
    """The text with the top-level `key` set to a plain string; Refusal where it is written in a way without place."""
    if _loaded(text).get(key) == value:
        return text
    root = _root(text)
    if root is None:
        after = _appended(text, f"{key}: {value}")
    elif found := _pair(root, key):
        name, old = found
        start = old.start_mark.index
        if start < name.end_mark.index or (old.end_mark.index > start and text[start] == "*"):
            raise Refusal(f"{key} is an alias in this YAML", _BY_HAND)
        gap = "" if text[start - 1 : start].isspace() else " "
        after = f"{text[:start]}{gap}{value}{text[old.end_mark.index :]}"
    elif root.flow_style:
        end = root.end_mark.index - 1
        after = f"{text[:end].rstrip()}{', ' if root.value else ''}{key}: {value}{text[end:]}"
    else:
        indent = " " * root.start_mark.column
        after = _appended(text, f"{indent}{key}: {value}")
    return _proven(text, after, {**_loaded(text), key: value}, key)


def remove_key(text: str, key: str) -> str:
    """The text without the lines of the top-level `key`."""
    wanted = {name: value for name, value in _loaded(text).items() if name != key}
    root, after = _root(text), text
    while root is not None and (found := _pair(root, key)):
        start, end = found[0].start_mark.index, found[1].end_mark.index
        at = root.value.index(found)
        if not root.flow_style:  # its lines, with a comment at the end
            start = after.rfind("\n", 0, start) + 1
            end = after.find("\n", end) + 1 or len(after)
        elif at:  # with the comma before it
            start = root.value[at - 1][1].end_mark.index
        elif root.value[1:]:
            end = root.value[1][0].start_mark.index
        after = after[:start] + after[end:]
        root = _root(after)
    return _proven(text, after, wanted, key)


def _loaded(text: str) -> dict[str, Any]:
    found: dict[str, Any] | None = yaml.safe_load(text)
    return found or {}


def _root(text: str) -> yaml.MappingNode | None:
    found = yaml.compose(text, yaml.SafeLoader)
    return found if isinstance(found, yaml.MappingNode) else None


def _pair(root: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """The key's node and its value's; of a key that stands twice the last one, which counts."""
    pairs: list[tuple[yaml.Node, yaml.Node]] = root.value
    return next((pair for pair in reversed(pairs) if pair[0].value == key), None)


def _appended(text: str, line: str) -> str:
    """The line at the end of the document: before a closing `...`."""
    first = text.find("\n")
    newline = "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"
    lines = text.splitlines(keepends=True)
    at = next((i for i in reversed(range(len(lines))) if lines[i].rstrip() == "..."), len(lines))
    head = "".join(lines[:at])
    gap = newline if head.lstrip("\ufeff") and not head.endswith("\n") else ""
    return f"{head}{gap}{line}{newline}{''.join(lines[at:])}"


def _proven(before: str, after: str, wanted: dict[str, Any], key: str) -> str:
    try:
        said = _loaded(after)
    except (yaml.YAMLError, ValueError):
        said = {}
    if repr(said) != repr(wanted) and said != wanted:
        raise Refusal(f"{key} cannot be changed without rewriting this YAML", _BY_HAND)
    return before if said == _loaded(before) else after
