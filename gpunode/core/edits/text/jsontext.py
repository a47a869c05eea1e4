"""Set and remove members in JSON text and leave every other byte as it is: order, indentation, spelling of numbers.

Of a key that stands twice in an object the last one is read and set, as by most readers, and all of them are removed.
(Go merges objects that stand twice: an entry that is only in an earlier one is in force there, and not seen here.)
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from gpunode.core.edits.refusal import Refusal
from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, regex
from gpunode.core.plain import mapping
from gpunode.core.untrusted import load_json

Path = tuple[str, ...]
Span = tuple[int, int, str]  # from, to, what comes there instead
_SPACE = regex(r"[ \t\r\n]*")


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# numbers as they are spelled, and as bytes: 5 is not "5"
_DECODER = json.JSONDecoder(parse_constant=_constant, parse_int=str.encode, parse_float=str.encode)


class Member(NamedTuple):
    """`"key": value`, or an element of an array, whose key is "" and starts where its value does."""

    key: str
    start: int
    value: int
    end: int


def parse(path: str, text: str) -> Any:
    """The plain values; InputError carries path:line:column."""
    try:
        return load_json(text, path, parse_constant=_constant)
    except InputError as error:
        raise InputError(error.what, expected=error.expected, fix="fix the file") from None


def edit(text: str, sets: Mapping[Path, Any] | None = None, removes: Collection[Path] = ()) -> str:
    """The text of an object without the members at `removes`, then with those of `sets`, all else as it was.

    Of a mapping each key is set below the path, {} makes an empty object.  Objects on the way are made where they are
    missing or null; a list that is there loses and gains only the elements that differ.  Paths of `removes` that are
    not there are passed over.  The outcome is read again and says what the text said, but for these.  Raises Refusal
    where something else stands in the way of an object, ValueError for text that is no JSON.
    """
    wanted, after = _DECODER.decode(text), text
    wanted_leaves = dict(leaves(sets or {}))
    for path in removes:
        mapping(wanted, *path[:-1]).pop(path[-1], None)
    if removes:
        after = _applied(after, _Text(after).removals(removes))
    for path, value in wanted_leaves.items():
        wanted = with_value(wanted, path, _DECODER.decode(json.dumps(value)))
    if wanted_leaves:
        after = _applied(after, _Text(after).additions(wanted_leaves))
    if after != text and _DECODER.decode(after) != wanted:
        raise Refusal("this JSON is written in a way that gpunode cannot edit", "simplify the file, or edit it by hand")
    return after


def leaves(sets: Mapping[Path, Any]) -> Iterator[tuple[Path, Any]]:
    """Of a mapping each key below its path; an empty one stays."""
    for path, value in sets.items():
        if isinstance(value, Mapping) and value:
            yield from leaves({(*path, key): item for key, item in value.items()})
        else:
            yield path, value


def gone_and_left(have: list[Any], value: list[Any], same: Callable[[Any, Any], bool]) -> tuple[list[int], list[Any]]:
    """Of a list that changes: the places of elements that go, and the elements that are to follow those that stay."""
    left, gone = list(value), []
    for number, old in enumerate(have):
        if left and same(left[0], old):
            left.pop(0)
        else:
            gone.append(number)
    return gone, left


def with_value(table: Any, path: Path, value: Any, above: Path = ()) -> Any:
    """A copy, as far as it differs, with the value at the path."""
    if not path:
        return value
    if table is not None and not isinstance(table, dict):
        raise Refusal(f"{'.'.join(above) or 'the file'} is no object", f"make it one: it has to hold {path[0]}")
    table = table or {}
    return {**table, path[0]: with_value(table.get(path[0]), path[1:], value, (*above, path[0]))}


def _applied(text: str, spans: Collection[Span]) -> str:
    parts, at = [], 0
    for start, end, new in sorted(spans):
        if start >= at:  # else it lies within what went already
            parts += [text[at:start], new]
            at = end
    return "".join([*parts, text[at:]])


@dataclass
class _Text:
    """A JSON text, and the members of those of its objects and arrays that were looked into, by their offsets."""

    text: str

    def __post_init__(self) -> None:
        self.seen: dict[int, list[Member]] = {}
        self.root = self.space(0)
        self.newline = "\r\n" if "\r\n" in self.text else "\n"
        found = re.search(r"\n([ \t]+)\S", self.text)
        one_line = "\n" not in self.text.strip() and self.text.strip() not in ("{}", "")
        self.comma, self.colon = (
            (",", ":") if one_line and '":' in self.text and '": ' not in self.text else (", ", ": ")
        )
        self.step = found[1] if found else "" if one_line else "    "

    def space(self, at: int) -> int:
        """Past white space."""
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def members(self, at: int) -> list[Member]:
        """Those of the object, or the elements of the array, that begins at `at`."""
        if at not in self.seen:
            self.seen[at] = list(self._members(at))
        return self.seen[at]

    def _members(self, opening: int) -> Iterator[Member]:
        text, scan = self.text, _DECODER.raw_decode
        at = self.space(opening + 1)
        while text[at] not in "]}":
            key, value = "", at
            if text[opening] == "{":
                key, end = scan(text, at)
                value = self.space(self.space(end) + 1)
            _, end = scan(text, value)
            yield Member(key, at, value, end)
            at = self.space(end)
            if text[at] == ",":
                at = self.space(at + 1)

    # ------------------------------------------------------------ taking out

    def removals(self, removes: Collection[Path]) -> list[Span]:
        """The spans that go."""
        gone: dict[int, set[int]] = {}
        for path in removes:
            if self.text[self.root] == "{":
                self._find(self.root, path, gone)
        return [span for at, numbers in gone.items() for span in self._dropped(at, numbers)]

    def _find(self, at: int, path: Path, gone: dict[int, set[int]]) -> None:
        for number, member in enumerate(self.members(at)):
            if member.key != path[0]:
                continue
            if len(path) == 1:
                gone.setdefault(at, set()).add(number)
            elif self.text[member.value] == "{":
                self._find(member.value, path[1:], gone)

    def _dropped(self, at: int, gone: Collection[int]) -> Iterator[Span]:
        members = self.members(at)
        if len(gone) == len(members):
            yield at + 1, self.space(members[-1].end), ""
            return
        for number in gone:
            if number - 1 in gone:
                continue
            last = next(n for n in range(number, len(members)) if n + 1 not in gone)
            if last + 1 < len(members):
                yield members[number].start, members[last + 1].start, ""
            else:
                yield members[number - 1].end, members[last].end, ""

    # ------------------------------------------------------------ putting in

    def additions(self, sets: Mapping[Path, Any]) -> list[Span]:
        """The spans that change and come."""
        spans: list[Span] = []
        new: dict[int, dict[str, Any]] = {}
        instead: dict[Member, Any] = {}
        for path, value in sets.items():
            at, member = self.root, None
            for depth, key in enumerate(path):
                member = next((m for m in reversed(self.members(at)) if m.key == key), None)
                if member is None:
                    new[at] = with_value(new.get(at), path[depth:], value)
                    break
                if self.text.startswith("null", member.value) and depth + 1 < len(path):
                    instead[member] = with_value(instead.get(member), path[depth + 1 :], value)
                    break
                at = member.value
            else:
                spans += self._changed(member, value) if member else []
        spans += [(m.value, m.end, self.dump(value, self.indent(m.value))) for m, value in instead.items()]
        return spans + [self._added(at, values) for at, values in new.items()]

    def _changed(self, member: Member, value: Any) -> Iterator[Span]:
        """Another value; of a list only the elements that differ."""
        old, _ = _DECODER.raw_decode(self.text, member.value)
        wanted = _DECODER.decode(json.dumps(value))
        if old == wanted:
            return
        if not isinstance(old, list) or not isinstance(wanted, list) or not old or not wanted:
            yield member.value, member.end, self.dump(value, self.indent(member.value))
            return
        items = self.members(member.value)
        gone, left = gone_and_left(old, wanted, operator.eq)
        if len(old) == len(wanted):
            both = zip(items, old, wanted, value, strict=True)
            yield from ((i.start, i.end, self.dump(new, self.indent(i.start))) for i, a, b, new in both if a != b)
        elif not left:
            yield from self._dropped(member.value, gone)
        elif not gone:
            yield self._behind(items, [self.dump(item, self.indent(items[0].start)) for item in value[len(old) :]])
        else:
            yield member.value, member.end, self.dump(value, self.indent(member.value))

    def _added(self, at: int, values: Mapping[str, Any]) -> Span:
        """New members of an object, written as those that it has."""
        members = self.members(at)
        if not members:
            return at + 1, self.space(at + 1), self.dump(values, self.indent(at))[1:-1]
        last = members[-1]
        colon = self.text[last.start + 1 : last.value].rpartition('"')[2]
        indent = self.indent(last.start) if "\n" in self._gap(members) else None
        return self._behind(members, [f"{_quoted(k)}{colon}{self.dump(v, indent)}" for k, v in values.items()])

    def _behind(self, members: Sequence[Member], new: Sequence[str]) -> Span:
        gap = self._gap(members[:1])
        if "\n" not in gap:
            gap = self._gap(members[-1:]) if len(members) > 1 else self.comma[1:]
        return members[-1].end, members[-1].end, "".join(f",{gap}{item}" for item in new)

    def _gap(self, members: Sequence[Member]) -> str:
        """The white space before the first of these members: its line and indentation."""
        before = self.text[: members[0].start]
        return before[len(before.rstrip(" \t\r\n")) :]

    def indent(self, at: int) -> str:
        """The indentation of the line that `at` lies in."""
        line = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def dump(self, value: Any, indent: str | None) -> str:
        """A value as text, on lines of this indentation; None: on one line."""
        if indent is None or not self.step or not value or not isinstance(value, Mapping | list):
            return json.dumps(value, ensure_ascii=False, separators=(self.comma, self.colon))
        lines = json.dumps(value, ensure_ascii=False, indent=self.step).split("\n")
        return (self.newline + indent).join(lines)


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)
