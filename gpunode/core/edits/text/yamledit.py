"""Edit any place of a YAML document and leave every other byte as it is.

A place is a path: keys of mappings and indices of sequences, `("spec", "containers", 0, "command")`.  The parser's
marks tell where things stand; what was written is read again and must say exactly what was meant, or it is refused.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml

from gpunode.core.edits.target import Refusal
from gpunode.core.edits.text.yamltext import document, load, without

Path = Sequence[str | int]
_BY_HAND = "edit the file by hand, then run again"
_PLAIN = re.compile(r"(--)?[A-Za-z0-9/_.][A-Za-z0-9/_.:=@+-]*\Z")


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
    if not isinstance(document(text), yaml.CollectionNode):
        raise Refusal("this YAML holds no mapping and no list", _BY_HAND)
    *above, last = path
    holder = node_at(text, above)
    if holder is None or (isinstance(holder, yaml.ScalarNode) and above):
        return set_value(text, above, {last: value} if isinstance(last, str) else [value])
    there = _child(holder, last)

    def meant(data: Any) -> Any:
        return _with(data, path, value)

    if there is not None:
        return _proved(text, meant, _replaced(text, holder, there, last, value), path)
    return _proved(text, meant, _added(text, holder, last, value), path)


def append(text: str, path: Path, value: Any) -> str:
    """The text with one more item at the end of the sequence at the path."""
    found = value_at(load(text), path)
    return set_value(text, (*path, len(found) if isinstance(found, list) else 0), value)


def remove(text: str, path: Path) -> str:
    """The text without the key or item at the path; a comment on its own line stays, one behind it goes along."""
    *above, last = path
    holder = node_at(text, above)
    there = _child(holder, last) if holder is not None else None
    if holder is None or there is None:
        return text

    def meant(data: Any) -> Any:
        data = copy.deepcopy(data)
        del value_at(data, above)[last]
        return data

    return _proved(text, meant, _removed(text, holder, there, last), path)


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
        if quote == "'" and isinstance(value, str):
            yield f"{text[:start]}{gap}'{value.replace(chr(39), chr(39) * 2)}'{text[end:]}"
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
        yield without(text, start, end, behind=False)
        return
    begin = heads[index]
    if not pairs:
        begin = text.rindex("-", 0, begin + 1) if text[begin : begin + 1] != "-" else text.rindex("-", 0, begin)
    end = _end(text, old)
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
    yield without(text, start, end, behind=False)


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
        if repr(stated) == repr(wanted) or stated == wanted:
            return after
    raise Refusal(f"{_name(path)} cannot be changed without rewriting this YAML", _BY_HAND)


def _name(path: Path) -> str:
    return ".".join(map(str, path))
