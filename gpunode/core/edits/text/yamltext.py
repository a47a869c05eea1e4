"""Set or remove one key of a YAML mapping and leave every other byte as it is.

The parser's marks tell where a value stands; the outcome is read again and must say what it said, plus the one key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.composer import ComposerError

from gpunode.core.content import check_size, decode
from gpunode.core.edits.target import Refusal
from gpunode.core.errors import InputError

_BY_HAND = "edit the file by hand, then run again"
_COMMENT = re.compile(r"#[^\r\n]*")
_NULL = "tag:yaml.org,2002:null"


def document(text: str) -> yaml.Node | None:
    """The one document of the text that says something; lines `---` and comments alone make empty ones.

    None where there is none.  Raises yaml.YAMLError for a second one.
    """
    found = [node for node in yaml.compose_all(text, yaml.SafeLoader) if node.tag != _NULL]
    if len(found) > 1:
        first, second = (node.start_mark for node in found[:2])
        raise ComposerError("expected one document", first, "a second document, which nobody reads", second)
    return found[0] if found else None


def load(text: str) -> Any:
    """The plain values of that document.  Raises yaml.YAMLError, ValueError."""
    node = document(text)
    return None if node is None else yaml.SafeLoader("").construct_document(node)


def parse(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Text and plain values of a YAML mapping ({} for an empty file); InputError carries path:line:column."""
    check_size(path, data)
    text = decode(path, data)
    try:
        found = load(text)
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
    stated = _loaded(text)
    if stated.get(key) == value:
        return text
    for after in _candidates(text, key, value):
        if _says(after, {**stated, key: value}):
            return after
    raise Refusal(f"{key} cannot be changed without rewriting this YAML", _BY_HAND)


def _candidates(text: str, key: str, value: str) -> Iterator[str]:
    """The places where the key can stand: its own, else the end, else the beginning."""
    root = _root(text)
    if root is None:
        yield _appended(text, f"{key}: {value}")
    elif found := _pair(root, key):
        name, old = found
        start = old.start_mark.index
        if start < name.end_mark.index:  # the place of the anchor
            raise Refusal(f"{key} is an alias in this YAML", _BY_HAND)
        gap = "" if text[start - 1 : start].isspace() else " "
        yield f"{text[:start]}{gap}{value}{text[old.end_mark.index :]}"
    elif root.flow_style:
        end = root.end_mark.index - 1
        inner = text[:end].rstrip()
        tail = text[len(inner) : end]  # a brace on a line of its own: so is the key
        gap = f"{_newline(text)}{' ' * root.value[-1][0].start_mark.column}" if "\n" in tail and root.value else " "
        comma = "," if root.value and not inner.endswith(",") else ""
        yield f"{inner}{comma}{gap if root.value else ''}{key}: {value}{tail}{text[end:]}"
    else:
        line = f"{' ' * root.start_mark.column}{key}: {value}"
        end = root.end_mark.index  # of the document, with the comments at its end
        yield _appended(text[:end], line) + text[end:]
        at = text.rfind("\n", 0, root.start_mark.index) + 1  # a block that ends without a new line stays the last one
        yield f"{text[:at]}{line}{_newline(text)}{text[at:]}"


def remove_key(text: str, key: str) -> str:
    """The text without the lines of the top-level `key`."""
    wanted = {name: value for name, value in _loaded(text).items() if name != key}
    root, after = _root(text), text
    while root is not None and (found := _pair(root, key)):
        start, end = found[0].start_mark.index, found[1].end_mark.index
        at = root.value.index(found)
        if not root.flow_style:  # its lines
            start = after.rfind("\n", 0, start) + 1
            end = after.find("\n", end) + 1 or len(after)
        elif at:  # with the comma before it
            start = root.value[at - 1][1].end_mark.index
        elif root.value[1:]:
            end = root.value[1][0].start_mark.index
        after = without(after, start, end)
        root = _root(after)
    if not _says(after, wanted):
        raise Refusal(f"{key} cannot be removed without rewriting this YAML", _BY_HAND)
    return after


def without(text: str, start: int, end: int, *, behind: bool = True) -> str:
    """The text without a span, but for the comments in it: on lines of their own, as a person wrote them.

    Those `behind` what goes, on its lines, may go along.
    """
    found = [(at, stop) for at, stop in _comments(text) if start <= at < end]
    kept = [_own_line(text, at, stop) for at, stop in found if behind or not _before(text, at).strip()]
    if not kept:
        return text[:start] + text[end:]
    newline = _newline(text)
    lines = newline.join(kept)
    blank = not _before(text, start).strip()
    start -= len(_before(text, start)) if blank else 0
    head = "" if blank else newline
    tail = text[end:]
    line = _before(text, end)
    gap = newline + line[: len(line) - len(line.lstrip(" "))] if text[end - 1] != "\n" else newline
    return f"{text[:start]}{head}{lines}{'' if tail.startswith(newline) and gap != newline else gap}{tail}"


def _comments(text: str) -> Iterator[tuple[int, int]]:
    """Where the comments stand: between the tokens of the parser."""
    at = 0
    for token in yaml.scan(text, yaml.SafeLoader):
        between = text[at : token.start_mark.index]
        yield from ((at + found.start(), at + found.end()) for found in _COMMENT.finditer(between))
        at = max(at, token.end_mark.index)


def _own_line(text: str, at: int, stop: int) -> str:
    line = _before(text, at)
    return line[: len(line) - len(line.lstrip(" \t"))] + text[at:stop]


def _before(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 : at]


def _loaded(text: str) -> dict[str, Any]:
    found: dict[str, Any] | None = load(text)
    return found or {}


def _root(text: str) -> yaml.MappingNode | None:
    found = document(text)
    return found if isinstance(found, yaml.MappingNode) else None


def _pair(root: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """The key's node and its value's; of a key that stands twice the last one, which counts."""
    pairs: list[tuple[yaml.Node, yaml.Node]] = root.value
    return next((pair for pair in reversed(pairs) if pair[0].value == key), None)


def _appended(text: str, line: str) -> str:
    """The line at the end of the text: before a closing `...`."""
    newline = _newline(text)
    lines = text.splitlines(keepends=True)
    at = next((i for i in reversed(range(len(lines))) if lines[i].rstrip() == "..."), len(lines))
    head = "".join(lines[:at])
    gap = newline if head.lstrip("\ufeff") and not head.endswith("\n") else ""
    return f"{head}{gap}{line}{newline}{''.join(lines[at:])}"


def _newline(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _says(text: str, wanted: dict[str, Any]) -> bool:
    try:
        stated = _loaded(text)
    except (yaml.YAMLError, ValueError):
        return False
    return repr(stated) == repr(wanted) or stated == wanted
