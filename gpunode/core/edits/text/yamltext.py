"""Edit any place of a YAML document and leave every other byte as it is.

A place is a path: keys of mappings and indices of sequences, `("spec", "containers", 0, "command")`.  The parser's
marks say where things are; what was written is read again and must say exactly what was meant, or it is refused.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import yaml
from yaml.composer import ComposerError

from gpunode.core.content import decode
from gpunode.core.edits.refusal import Refusal
from gpunode.core.errors import InputError
from gpunode.core.late import regex
from gpunode.core.untrusted import check_aliases, yaml_errors

Path = Sequence[str | int]
_BY_HAND = "edit the file by hand, then run again"
_PLAIN = regex(r"(--)?[A-Za-z0-9/_.][A-Za-z0-9/_.:=@+-]*\Z")
_COMMENT = regex(r"#[^\r\n]*")
_NULL = "tag:yaml.org,2002:null"


# An edit asks many times for the same few texts.  Nodes that are kept are only read.
@lru_cache(maxsize=16)
def document(text: str) -> yaml.Node | None:
    """The one document of the text that says something; lines `---` and comments alone make empty ones.

    None where there is none.  Raises yaml.YAMLError for a second one, InputError for aliases that stand for too much.
    """
    check_aliases(text, "the text")
    found = [node for node in yaml.compose_all(text, yaml.SafeLoader) if node.tag != _NULL]
    if len(found) > 1:
        first, second = (node.start_mark for node in found[:2])
        raise ComposerError("expected one document", first, "a second document, which no program reads", second)
    return found[0] if found else None


def load(text: str) -> Any:
    """The plain values of that document.  Raises yaml.YAMLError, ValueError."""
    return copy.deepcopy(_values(text))


@lru_cache(maxsize=16)
def _values(text: str) -> Any:
    node = document.__wrapped__(text)  # its own: what constructs values may change the nodes
    return None if node is None else yaml.SafeLoader("").construct_document(node)


def parse(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Text and plain values of a YAML mapping ({} for an empty file); InputError carries path:line:column."""
    text = decode(path, data)
    with yaml_errors(path):
        found = load(text)
    if not isinstance(found, dict | None):
        raise InputError(f"{path} holds {type(found).__name__}", expected="a mapping, KEY: VALUE on each line")
    return text, found or {}


def node_at(text: str, path: Path) -> yaml.Node | None:
    """The node at a path, None where the document has none."""
    node = document(text)
    for part in path:
        node = _child(node, part)
    return node


def value_at(data: Any, path: Path) -> Any:
    """The plain value at a path, None where there is none."""
    for part in path:
        if isinstance(part, int):
            data = data[part] if isinstance(data, list) and part < len(data) else None
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return data


def set_value(text: str, path: Path, value: Any) -> str:
    """The text with `value` at the path: put in place of what is there, or added to the mapping or sequence."""
    if value_at(load(text), path) == value and node_at(text, path) is not None:
        return text
    *above, last = path
    root = document(text)
    if root is not None and not isinstance(root, yaml.CollectionNode):
        raise Refusal("this YAML holds no mapping and no list", _BY_HAND)
    if root is None:
        if above:
            return set_value(text, above, {last: value} if isinstance(last, str) else [value])
        line = _pair_text(str(last), value, 0, _newline(text))
        return _proved(text, lambda _: {last: value}, iter((_appended(text, line),)), path)
    holder = node_at(text, above)
    if holder is None or (isinstance(holder, yaml.ScalarNode) and above):
        return set_value(text, above, {last: value} if isinstance(last, str) else [value])
    there = _child(holder, last)

    def meant(data: Any) -> Any:
        return _with(data, path, value)

    if there is not None and there.start_mark.index < _key_mark(holder, last):  # the place of the anchor
        raise Refusal(f"{_name(path)} is an alias in this YAML", _BY_HAND)
    if there is not None:
        return _proved(text, meant, _replaced(text, holder, there, last, value), path)
    return _proved(text, meant, _added(text, holder, last, value), path)


def append(text: str, path: Path, value: Any) -> str:
    """The text with one more item at the end of the sequence at the path."""
    found = value_at(load(text), path)
    return set_value(text, (*path, len(found) if isinstance(found, list) else 0), value)


def remove(text: str, path: Path) -> str:
    """The text without the key or item at the path; of a key that is there twice, without both.

    Comments stay, but for one behind an item of a sequence that goes.
    """
    *above, last = path
    wanted = load(text)
    while (holder := node_at(text, above)) is not None and (there := _child(holder, last)) is not None:
        if _count(holder, last) == 1:
            del value_at(wanted, above)[last]
            return _proved(text, lambda _: wanted, _removed(text, holder, there, last), path)
        text = next(_removed(text, holder, there, last))
    return text


def in_scalar(text: str, path: Path, edit: Callable[[str], str]) -> str:
    """The text with an edit made inside the scalar at the path, both in what is written and in what it says.

    Refusal where the two differ: an escape or a fold in the middle of it.
    """
    node = node_at(text, path)
    if not isinstance(node, yaml.ScalarNode):
        raise Refusal(f"{_name(path)} is no text in this YAML", _BY_HAND)
    start, end = node.start_mark.index, node.end_mark.index
    if node.style in ("'", '"'):
        start, end = start + 1, end - 1
    elif node.style:  # of a block scalar what is below its first line
        start = text.index("\n", start) + 1

    def meant(data: Any) -> Any:
        return _with(data, path, edit(str(node.value)))

    def candidates() -> Iterator[str]:
        yield text[:start] + edit(text[start:end]) + text[end:]

    return _proved(text, meant, candidates(), path)


# ---------------------------------------------------------------- where


def _count(node: yaml.Node, key: str | int) -> int:
    """How often a key stands in a mapping; 1 for an item of a sequence."""
    return sum(name.value == key for name, _ in node.value) if isinstance(node, yaml.MappingNode) else 1


def _child(node: yaml.Node | None, part: str | int) -> yaml.Node | None:
    if isinstance(part, int):
        items = node.value if isinstance(node, yaml.SequenceNode) else []
        return items[part] if part < len(items) else None
    pair = _pair(node, part)
    return pair[1] if pair else None


def _pair(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """A mapping's key and value; of a key that stands twice the last one, which counts."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((pair for pair in reversed(pairs) if pair[0].value == key), None)


def _key_mark(node: yaml.Node, part: str | int) -> int:
    """Where the key of a value ends; 0 for an item of a sequence."""
    pair = _pair(node, part) if isinstance(part, str) else None
    return pair[0].end_mark.index if pair else 0


def _is_root(text: str, node: yaml.Node) -> bool:
    root = document(text)
    return root is not None and root.start_mark.index == node.start_mark.index and type(root) is type(node)


def _end(text: str, node: yaml.Node) -> int:
    """Where the last line of a block node ends, with the comment on it: its end mark is at the next token."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    at: int = node.end_mark.index
    if at and text[at - 1] == "\n":  # of a block scalar
        return at
    return text.find("\n", at) + 1 or len(text)


def _line(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _newline(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


# ---------------------------------------------------------------- how it is written


def _flow(value: Any) -> str:
    """As JSON, which is YAML too; plain words without quotes."""
    if isinstance(value, str) and _PLAIN.match(value) and load(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _block(value: Any, indent: int, newline: str) -> str:
    """A value in block style behind a dash or below a key; the first line without indent, the end without newline."""
    if not isinstance(value, dict | list) or not value:
        return _flow(value)
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000).rstrip("\n")
    return text.replace("\n", f"{newline}{' ' * indent}")


def _pair_text(key: str, value: Any, indent: int, newline: str) -> str:
    if isinstance(value, dict) and value:
        return f"{key}:{newline}{' ' * (indent + 2)}{_block(value, indent + 2, newline)}"
    if isinstance(value, list) and value:
        return f"{key}:{newline}{' ' * indent}{_block(value, indent, newline)}"
    return f"{key}: {_flow(value)}"


def _added(text: str, holder: yaml.Node, last: str | int, value: Any) -> Iterator[str]:
    """The text with a new key or item at the end of a mapping or sequence."""
    newline = _newline(text)
    if isinstance(holder, yaml.CollectionNode) and holder.value and not holder.flow_style:
        first = holder.value[0][0] if isinstance(holder, yaml.MappingNode) else holder.value[0]
        at = _end(text, holder)
        if isinstance(holder, yaml.MappingNode):
            indent = holder.start_mark.column
            line = _pair_text(str(last), value, indent, newline)
        else:
            indent = holder.start_mark.column
            gap = first.start_mark.column - indent - 1
            line = f"-{' ' * gap}{_block(value, indent + 1 + gap, newline)}"
        if _is_root(text, holder):  # behind the comments at its end
            yield _appended(text[: holder.end_mark.index], f"{' ' * indent}{line}") + text[holder.end_mark.index :]
        gap_before = "" if not at or text[at - 1] == "\n" else newline
        yield f"{text[:at]}{gap_before}{' ' * indent}{line}{newline}{text[at:]}"
        at = _line(text, holder.start_mark.index)  # a block scalar without an end keeps the last place
        yield f"{text[:at]}{' ' * indent}{line}{newline}{text[at:]}"
        return
    if isinstance(holder, yaml.CollectionNode) and holder.flow_style:
        yield from _added_in_flow(text, holder, last, value, newline)


def _added_in_flow(text: str, holder: yaml.CollectionNode, last: str | int, value: Any, newline: str) -> Iterator[str]:
    end = holder.end_mark.index - 1
    inner = text[:end].rstrip()
    tail = text[len(inner) : end]
    comma = "," if holder.value and not inner.endswith(",") else ""
    column = 0
    if holder.value:
        first = holder.value[-1][0] if isinstance(holder, yaml.MappingNode) else holder.value[-1]
        column = first.start_mark.column
    gap = f"{newline}{' ' * column}" if "\n" in tail and holder.value else " " if holder.value else ""
    quoted = text[holder.start_mark.index : end].lstrip("[{ \r\n\t").startswith('"')
    for form in (json.dumps, _flow) if quoted else (_flow, json.dumps):
        entry = f"{form(last)}: {form(value)}" if isinstance(holder, yaml.MappingNode) else form(value)
        yield f"{inner}{comma}{gap}{entry}{tail}{text[end:]}"


def _replaced(text: str, holder: yaml.Node, old: yaml.Node, last: str | int, value: Any) -> Iterator[str]:
    """The text with another value where the old one stands."""
    newline = _newline(text)
    start, end = old.start_mark.index, old.end_mark.index
    scalar = isinstance(old, yaml.ScalarNode) and old.style not in ("|", ">")
    flow = isinstance(holder, yaml.CollectionNode) and bool(holder.flow_style)
    if isinstance(old, yaml.CollectionNode) and old.flow_style:
        scalar = True
    if scalar and (flow or not isinstance(value, dict | list) or not value):
        quote = text[start : start + 1] if isinstance(value, str) else ""
        gap = "" if start and text[start - 1] in " \t\n[{,-" else " "
        if quote == '"' or flow:
            yield f"{text[:start]}{gap}{json.dumps(value, ensure_ascii=False)}{text[end:]}"
        yield f"{text[:start]}{gap}{_flow(value)}{text[end:]}"
        return
    if isinstance(last, str):  # the whole pair again
        pair = _pair(holder, last)
        if pair is None or flow:
            return
        at, stop = pair[0].start_mark.index, _end(text, pair[1])
        indent = pair[0].start_mark.column
        end_of_line = newline if stop > at and text[stop - 1] == "\n" else ""
        yield f"{text[:at]}{_pair_text(last, value, indent, newline)}{end_of_line}{text[stop:]}"
        return
    stop, indent = _end(text, old), old.start_mark.column
    yield f"{text[:start]}{_block(value, indent, newline)}{newline}{text[stop:]}"


def _removed(text: str, holder: yaml.Node, old: yaml.Node, last: str | int) -> Iterator[str]:
    if not isinstance(holder, yaml.CollectionNode):
        return
    pairs = isinstance(holder, yaml.MappingNode)
    index = holder.value.index(_pair(holder, str(last))) if pairs else int(last)
    heads: list[int] = [(item[0] if pairs else item).start_mark.index for item in holder.value]
    if holder.flow_style:
        start, end = heads[index], old.end_mark.index
        if index:
            before = holder.value[index - 1]
            start = (before[1] if pairs else before).end_mark.index
        elif len(heads) > 1:
            end = heads[1]
        yield without(text, start, end, behind=pairs)
        return
    begin = heads[index]
    if not pairs:
        begin = text.rindex("-", 0, begin + 1) if text[begin : begin + 1] != "-" else text.rindex("-", 0, begin)
    end = _end(text, old)
    if len(holder.value) == 1 and _is_root(text, holder):
        yield without(text, _line(text, begin), end)
    if len(holder.value) == 1:  # an empty block is written as what it is
        first = holder.start_mark.index if pairs else begin
        empty = "{}" if pairs else "[]"
        gap = "" if text[first - 1 : first].isspace() else " "
        yield f"{text[: _line(text, first)].rstrip()} {empty}{_newline(text)}{text[end:]}"
        yield f"{text[:first]}{gap}{empty}{_newline(text)}{text[end:]}"
        return
    start = _line(text, begin)
    if text[start:begin].strip():  # the first key of an item of a sequence: `- name: x`
        yield text[:begin] + text[heads[index + 1] :]
        return
    yield without(text, start, end, behind=pairs)


# ---------------------------------------------------------------- spans and comments


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


def _appended(text: str, line: str) -> str:
    """The line at the end of the text: before a closing `...`."""
    newline = _newline(text)
    lines = text.splitlines(keepends=True)
    at = next((i for i in reversed(range(len(lines))) if lines[i].rstrip() == "..."), len(lines))
    head = "".join(lines[:at])
    gap = newline if head.lstrip("\ufeff") and not head.endswith("\n") else ""
    return f"{head}{gap}{line}{newline}{''.join(lines[at:])}"


# ---------------------------------------------------------------- proof


def _with(data: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    data = copy.deepcopy(data)
    *above, last = path
    holder = value_at(data, above)
    if isinstance(last, int) and isinstance(holder, list):
        holder[last : last + 1] = [value]
    else:
        holder[last] = value
    return data


def _proved(text: str, meant: Callable[[Any], Any], candidates: Iterator[str], path: Path) -> str:
    wanted = meant(load(text))
    for after in candidates:
        try:
            stated = load(after)
        except (yaml.YAMLError, ValueError):
            continue
        if repr(stated) == repr(wanted) or stated == wanted or (stated is None and wanted == {}):
            return after
    raise Refusal(f"{_name(path)} cannot be changed without rewriting this YAML", _BY_HAND)


def _name(path: Path) -> str:
    return ".".join(map(str, path))
