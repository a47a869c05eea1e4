"""Set and remove keys in TOML text and leave every other byte as it is.

The text is divided here into pieces (headers, pairs, comments, blank lines), so that comments stay where a person wrote
them and untouched pieces are carried over as they are.  tomlkit edits the values of pairs that change: lists, inline
tables.  It does not get the rest, as it cannot read every valid file.  Then a second TOML reader proves that the
outcome says exactly what was there, less what was to go and with what was to come.

That reader is tomli: tomllib's own code, compiled.  Below 2.4, as 2.4 reads TOML 1.1 and no container engine does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tomli

from gpunode.core.content import decode
from gpunode.core.edits.refusal import Refusal
from gpunode.core.edits.text.jsontext import gone_and_left, leaves, with_value
from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, regex, replace

if TYPE_CHECKING:
    from tomlkit.container import Container
    from tomlkit.items import InlineTable, Item, Key

Path = tuple[str, ...]

_LONG = regex(r"[0-9_]{19}|0[xob][0-9A-Fa-f_]{16}")  # in a text without it all integers have 64 bits
_NAN = math.nan  # one for all, so that documents with it can be compared
_STRING = r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\''
_COMMENT = regex(rf"(?:{_STRING})|(?P<comment>#[^\r\n]*)", re.DOTALL)
_VALUE = regex(rf"{_STRING}|#[^\n]*|[\[\]{{}}\n]", re.DOTALL)  # what decides where a value ends
_PART = r"(?:\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[A-Za-z0-9_-]+)"
_NAME = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_KEY = regex(rf"[ \t]*(?:(?P<header>\[\[?[ \t]*(?P<name>{_NAME})[ \t]*\]\]?)|(?P<key>{_NAME})(?P<sign>[ \t]*=[ \t]*))")


# ---------------------------------------------------------------- reading


def load(path: str, data: bytes) -> TomlDocument:
    """A TOML file; InputError carries path:line:column."""
    return TomlDocument(*parse(path, data))


def parse(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Text and plain values of a TOML file; InputError carries path:line:column."""
    text = decode(path, data)
    try:
        plain = _read(text)
        if _LONG.search(text) and not _fits(plain):
            raise ValueError("a number of more than 64 bits")
        return text, plain
    except tomli.TOMLDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}:{error.colno}: {error.msg}",
            expected="valid TOML",
            fix="fix the file; what reads it may accept it, gpunode edits TOML 1.0 alone",
        ) from None
    except (RecursionError, ValueError) as error:  # ValueError: a date such as 2020-02-31, a number of 5,000 digits
        raise InputError(f"{path}: {str(error)[:200]}", expected="valid TOML", fix="fix the file") from None


def _fits(value: Any) -> bool:
    """Whether all integers have 64 bits, as TOML has them: no daemon reads longer ones, and Python cannot print all."""
    if isinstance(value, dict):
        return all(map(_fits, value.values()))
    if isinstance(value, list):
        return all(map(_fits, value))
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _read(text: str) -> dict[str, Any]:
    return tomli.loads(text, parse_float=lambda number: _NAN if "nan" in number else float(number))


def lookup(doc: Any, path: Path) -> Any:
    """The value at a path of plain data, None when it is not there; Refusal where a table should be and is not."""
    for depth, name in enumerate(path):
        if not isinstance(doc, dict):
            raise Refusal(
                f"{'.'.join(path[:depth])} is {_kind(doc)}, not a table",
                "make it a table: the daemon expects one there",
            )
        if name not in doc:
            return None
        doc = doc[name]
    return doc


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean"}.get(type(value), "a single value")


def literal(value: Any) -> str:
    """A string, boolean, integer, float, list or (inline) table as TOML."""
    return _item(value).as_string()


# ---------------------------------------------------------------- editing


def edit(text: str, sets: Mapping[Path, Any] | None = None, removes: Collection[Path] = ()) -> str:
    """The text without the keys and tables at `removes`, then with those of `sets`, all else as it was, to the byte.

    Values are strings, booleans, integers, floats, lists of those, and mappings: of a mapping each key is set below
    the path, {} makes an empty table.  A list that is there loses and gains only the elements that differ.  Paths of
    `removes` that are not there are passed over; a parent that only its now removed children implied goes with them.
    A table that is not there yet is written after its nearest relatives.  Raises Refusal where a value stands in the
    way of a table or the other way round, TOMLDecodeError for text that is no TOML.
    """
    return TomlDocument(text, _read(text)).edit(sets, removes).text


@dataclass(frozen=True)
class TomlDocument:
    """A TOML file that was read: its text, and what it says as plain values (shared: never change them)."""

    text: str
    doc: dict[str, Any]

    @cached_property
    def pieces(self) -> tuple[TomlPiece, ...]:
        """The text in pieces, in order."""
        return tuple(_pieces(self.text))

    def places(self) -> Iterator[tuple[int, str, Path]]:
        """Every header, key and key in an inline table: where it stands, how it is spelled, the path that it means."""
        at = 0
        for piece in self.pieces:
            if piece.path:
                yield at + len(piece.indent), piece.key.rstrip(" \t="), piece.path
            if piece.pair:
                yield from _members(piece, at)
            at += len(piece.text)

    def edit(self, sets: Mapping[Path, Any] | None = None, removes: Collection[Path] = ()) -> TomlDocument:
        """What `edit` makes of it, proven; the document itself when nothing is to change."""
        gone = [path for path in removes if path and _depth(self.doc, path) == len(path)]
        if not gone and all(_states(self.doc, path, value) for path, value in leaves(sets or {})):
            return self
        end = "\r\n" if re.match(r"[^\n]*\r\n", self.text) else "\n"
        ended = self.text.endswith("\n") or not self.text
        try:
            made = _Edit(list(_pieces(self.text if ended else self.text + end)), self.doc, end)
            for path in gone:
                made.remove(path)
            for path, value in leaves(sets or {}):
                made.set(path, value)
            text = "".join(piece.text for piece in made.pieces)
            text = text if ended else text.removesuffix(end)
            proven = _read(text) == made.doc
        except tomli.TOMLDecodeError:
            proven = False
        if not proven:
            raise Refusal(
                f"{', '.join('.'.join(path) for path in [*(sets or ()), *removes])}: {_UNEDITABLE}", _AS_TABLES
            )
        return TomlDocument(text, made.doc)


_UNEDITABLE = "this part of the file is written in a way that gpunode cannot edit"
_AS_TABLES = "write that part of the file as [tables], then run again"


def _states(doc: dict[str, Any], path: Path, value: Any) -> bool:
    """Whether the document has that value; Refusal where something else stands in the way."""
    have = lookup(doc, path)
    if repr(have) == repr(value) or (value == {} and isinstance(have, dict)):  # repr: 1 is neither true nor 1.0
        return True
    if isinstance(have, dict) or (have is not None and value == {}):
        raise Refusal(f"{'.'.join(path)} is {'a table' if isinstance(have, dict) else _kind(have)}", "remove it")
    return False


def _depth(doc: Any, path: Path) -> int:
    """How many parts of a path are there."""
    for depth, name in enumerate(path):
        if not isinstance(doc, dict) or name not in doc:
            return depth
        doc = doc[name]
    return len(path)


def _below(path: Path, above: Path) -> bool:
    return path[: len(above)] == above


def _common(one: Path, other: Path) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# ---------------------------------------------------------------- the text in pieces


@dataclass(frozen=True)
class TomlPiece:
    """A header, a pair, a comment line or a blank one, with its line end.

    `path` is what a header opens or a pair sets, () of other lines.  `table` is the path of the table that a pair or a
    line stands in.  `key` is how the key is spelled, of a pair with the sign behind it.
    """

    text: str
    path: Path = ()
    table: Path = ()
    key: str = ""
    header: bool = False

    @cached_property
    def pair(self) -> bool:
        return bool(self.path) and not self.header

    @property
    def blank(self) -> bool:
        return not self.text.strip()

    @property
    def comment(self) -> bool:
        return not self.path and not self.blank

    @property
    def indent(self) -> str:
        return self.text[: len(self.text) - len(self.text.lstrip(" \t"))]

    @cached_property
    def item(self) -> Item:
        """A pair's value as tomlkit has it.  It reads no more of a file than the pairs that are edited."""
        import tomlkit

        _, _, item = _pair(*tomlkit.parse(self.text).body[0])
        return item


def _pieces(text: str) -> Iterator[TomlPiece]:
    """The pieces of a valid text."""
    at, table = 0, Path()
    while at < len(text):
        start = _KEY.match(text, at)
        if start is None:  # blank, or a comment
            end = text.find("\n", at) + 1 or len(text)
            yield TomlPiece(text[at:end], table=table)
        elif start["header"]:
            end = text.find("\n", start.end()) + 1 or len(text)
            table = _path(start["name"])
            yield TomlPiece(text[at:end], table, table, start["header"], header=True)
        else:
            end = _value_end(text, start.end())
            yield TomlPiece(text[at:end], (*table, *_path(start["key"])), table, f"{start['key']}{start['sign']}")
        at = end


def _path(key: str) -> Path:
    """What a key means, dotted or not."""
    doc, path = _read(f"{key} = 0"), Path()
    while isinstance(doc, dict):
        [(name, doc)] = doc.items()
        path = (*path, name)
    return path


def _value_end(text: str, at: int) -> int:
    """Behind the line on which a value ends."""
    depth = 0
    for token in _VALUE.finditer(text, at):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if token[0] == "\n" and not depth:
            return token.end()
    return len(text)


def _pair(key: Key | None, item: Item) -> tuple[Path, str, Item]:
    """Path, spelled key and value of a pair."""
    assert key is not None
    path: Path = (key.key,)
    spelled = key.as_string()
    while key.is_dotted():
        [(inner, item)] = item.value.body
        assert inner is not None
        spelled = f"{spelled}.{inner.as_string()}"
        path, key = (*path, inner.key), inner
    return path, f"{spelled}{key.sep}", item


def _entries(container: Container) -> list[tuple[int, Path, str, Any]]:
    """The pairs of an inline table: number in its body, path below it, spelled key, value."""
    found = []
    for number, (key, item) in enumerate(container.body):
        if key is not None:
            found.append((number, *_pair(key, item)))
    return found


def _members(pair: TomlPiece, start: int = 0) -> Iterator[tuple[int, str, Path]]:
    """The keys of the inline tables that a pair's value is made of, in order."""
    at = len(pair.indent) + len(pair.key)
    for path, key in _inner(pair.path, pair.item) if "{" in pair.text else ():
        at = pair.text.find(key, at)
        yield start + at, key.rstrip(" \t="), path
        at += len(key)


def _inner(path: Path, item: Any) -> Iterator[tuple[Path, str]]:
    from tomlkit.items import InlineTable

    for _, below, key, value in _entries(item.value) if isinstance(item, InlineTable) else ():
        yield (*path, *below), key
        yield from _inner((*path, *below), value)


def _item(value: Any) -> Item:
    """A value as tomlkit writes it; tables inline."""
    import tomlkit

    if not isinstance(value, Mapping):
        made: Item = tomlkit.item(value)
        return made
    table = tomlkit.inline_table()
    for key, inner in value.items():
        table.append(key, _item(inner))
    return table


def _key(path: Path) -> str:
    import tomlkit

    return ".".join(tomlkit.key(part).as_string() for part in path)


# ---------------------------------------------------------------- what an edit does to them


class _Edit:
    """The pieces of a text, changed one path at a time, and the plain values that they are to say."""

    def __init__(self, pieces: list[TomlPiece], doc: dict[str, Any], end: str) -> None:
        self.pieces = pieces
        self.doc = doc
        self.end = end

    # ------------------------------------------------------------ out

    def remove(self, path: Path) -> None:
        """Take out a key or a table; comments stay, in lines of their own."""
        if _depth(self.doc, path) < len(path):
            return
        self.doc = _without(self.doc, path, self._implied(path))
        inline = self._inline(path)
        if inline is not None:
            self._changed(inline, _member_removed, path[len(self.pieces[inline].path) :])
            return
        kept: list[TomlPiece] = []
        blanks: list[TomlPiece] = []  # of the table that goes, as long as it is open whether it ends before them
        going = False
        for piece in self.pieces:
            if not piece.path or not _below(piece.path, path):
                going = going and not piece.header
                if going and piece.blank:
                    blanks.append(piece)
                    kept.append(piece)
                else:
                    kept.append(piece)
                continue
            if going:
                kept = [one for one in kept if not any(one is blank for blank in blanks)]
            elif piece.header and kept and kept[-1].blank:
                kept.pop()
            blanks = []
            going = going or piece.header
            kept += self._comments(piece)
        self.pieces = kept

    def _implied(self, path: Path) -> Path:
        """The topmost table that is there by nothing but this path and what is below it, else the path itself."""
        stated = [piece.path for piece in self.pieces if piece.path]
        stated += [way for piece in self.pieces if piece.pair for _, _, way in _members(piece)]
        left = [way for way in stated if not _below(way, path)]
        ways = (path[:depth] for depth in range(1, len(path)))
        return next((way for way in ways if not any(_below(one, way) for one in left)), path)

    def _comments(self, piece: TomlPiece) -> list[TomlPiece]:
        """The comments of a piece that goes, as lines."""
        found = []
        for match in _COMMENT.finditer(piece.text):
            if match["comment"]:
                line = piece.text[piece.text.rfind("\n", 0, match.start()) + 1 :]
                indent = line[: len(line) - len(line.lstrip(" \t"))]
                found.append(TomlPiece(f"{indent}{match['comment'].rstrip()}{self.end}", table=piece.table))
        return found

    # ------------------------------------------------------------ in

    def set(self, path: Path, value: Any) -> None:
        """Write a value at a path that has another one, or none."""
        if _states(self.doc, path, value):
            return
        have = lookup(self.doc, path)
        self.doc, before = with_value(self.doc, path, value), self.doc
        at = next((n for n, piece in enumerate(self.pieces) if piece.path == path and piece.pair), None)
        inline = self._inline(path)
        if at is not None:
            self._changed(at, _value_changed, have, value)
        elif inline is not None:
            self._changed(inline, _member_set, path[len(self.pieces[inline].path) :], value)
        elif not self._dotted(before, path, value) and not self._into_table(path, value):
            self._new_table(before, path, value)

    def _inline(self, path: Path) -> int | None:
        """The pair whose inline table a path leads into."""
        for n, piece in enumerate(self.pieces):
            if piece.pair and len(piece.path) < len(path) and _below(path, piece.path):
                return n
        return None

    def _changed(self, at: int, change: Any, *of: Any) -> None:
        """Another value of a pair; comments that its text loses come before it."""
        old = self.pieces[at]
        item = change(old.item, *of)
        value, trivia = re.sub(r"(?<!\r)\n", self.end, item.as_string()), item.trivia
        text = f"{old.indent}{old.key}{value}{trivia.comment_ws}{trivia.comment}{trivia.trail}"
        new = replace(old, text=text)
        left = [piece.text.strip() for piece in self._comments(new)]
        lost = []
        for comment in self._comments(old):
            if comment.text.strip() in left:
                left.remove(comment.text.strip())
            else:
                lost.append(replace(comment, text=f"{old.indent}{comment.text.lstrip()}"))
        self.pieces[at : at + 1] = [*lost, new]

    def _dotted(self, doc: dict[str, Any], path: Path, value: Any) -> bool:
        """A dotted key behind others of the same table, where that is written with dotted keys."""
        above = path[: min(_depth(doc, path), len(path) - 1)]
        near = [
            n
            for n, piece in enumerate(self.pieces)
            if piece.pair and len(piece.table) < len(above) < len(piece.path) and _below(piece.path, above)
        ]
        if near:
            self._insert(near[-1] + 1, path, value, self.pieces[near[-1]])
        return bool(near)

    def _into_table(self, path: Path, value: Any) -> bool:
        """A new line after the last pair of the table that [header] opens, or at the top of the file."""
        table = path[:-1]
        opened = next((n for n, piece in enumerate(self.pieces) if piece.header and piece.path == table), None)
        if value == {} or (table and opened is None):
            return False
        first = 0 if opened is None else opened + 1
        body = self._body(first)
        pairs = [n for n in body if self.pieces[n].pair]
        if pairs:
            self._insert(pairs[-1] + 1, path, value, self.pieces[pairs[-1]])
        elif opened is not None:
            self._insert(first, path, value, _deeper(self.pieces[opened]))
        else:
            self._insert(body.stop if body.stop < len(self.pieces) else 0, path, value, TomlPiece(""))
        return True

    def _body(self, first: int) -> range:
        """The pieces of a table, from the one behind its header to the next header."""
        ends = (n for n in range(first, len(self.pieces)) if self.pieces[n].header)
        return range(first, next(ends, len(self.pieces)))

    def _insert(self, at: int, path: Path, value: Any, like: TomlPiece) -> None:
        key = f"{_key(path[len(like.table) :])} = "
        self.pieces.insert(at, TomlPiece(f"{like.indent}{key}{literal(value)}{self.end}", path, like.table, key))

    def _new_table(self, doc: dict[str, Any], path: Path, value: Any) -> None:
        """A table that is not there yet, after those that share the longest beginning with it."""
        table = path if value == {} else path[:-1]
        known = table[: _depth(doc, table)]
        near = [n for n, piece in enumerate(self.pieces) if known and piece.header and _below(piece.path, known)]
        at, indent = len(self.pieces), ""
        if near:
            last = self.pieces[near[-1]]
            brothers = [
                self.pieces[n]
                for n in near
                if len(self.pieces[n].path) == len(table) and _common(self.pieces[n].path, table) == len(known)
            ]
            indent = (brothers or [last])[-1].indent
            if not brothers and last.path == known:
                indent = _deeper(last).indent
            at = self._body_end(near[-1])
        separate = bool(self.pieces) and (at == len(self.pieces) or self.pieces[at].blank)
        name = _key(table)
        header = TomlPiece(f"{indent}[{name}]{self.end}", table, table, name, header=True)
        self.pieces[at:at] = [*([TomlPiece(self.end)] if separate else []), header]
        if value != {}:
            self._insert(at + separate + 1, path, value, _deeper(header))

    def _body_end(self, header: int) -> int:
        """Behind the last line of a table: its last pair, and comments right below it that no other line follows."""
        body = self._body(header + 1)
        end = at = max((n + 1 for n in body if self.pieces[n].pair), default=header + 1)
        while at < len(self.pieces) and self.pieces[at].comment:
            at += 1
        return at if at == len(self.pieces) or self.pieces[at].blank else end


def _deeper(piece: TomlPiece) -> TomlPiece:
    """A piece indented one step more, where there is any indentation."""
    step = "\t" if piece.indent.endswith("\t") else "  " if piece.indent else ""
    return replace(piece, text=f"{piece.indent}{step}.")


def _without(doc: dict[str, Any], path: Path, implied: Path) -> dict[str, Any]:
    """A copy, as far as it differs, without the path; and without the tables that only the path implied."""
    rest = dict(doc)
    if len(implied) == 1:
        del rest[path[0]]
    else:
        rest[path[0]] = _without(doc[path[0]], path[1:], implied[1:])
    return rest


# ---------------------------------------------------------------- values, by tomlkit


def _member_removed(table: InlineTable, path: Path) -> Item:
    """An inline table without a member, and without what stood between it and the one before or behind it."""
    entries, body = _entries(table.value), table.value.body
    for number, way, _, inner in reversed(entries):
        if _below(path, way) and len(way) < len(path):
            _member_removed(inner, path[len(way) :])
        elif _below(way, path):
            before = max((n for n, *_ in _entries(table.value) if n < number), default=-1)
            behind = min((n for n, *_ in _entries(table.value) if n > number), default=number + 2)
            del body[number if before < 0 else before + 1 : behind if before < 0 else number + 1]
    return table


def _member_set(table: InlineTable, path: Path, value: Any) -> Item:
    """An inline table with a member; what lies deeper and is not there yet becomes inline tables in it."""
    import tomlkit
    from tomlkit.items import SingleKey, Whitespace

    entries, body = _entries(table.value), table.value.body
    for number, way, _, inner in entries:
        if way == path:
            key, _ = body[number]
            if key is not None and key.is_dotted():
                return _member_set(_member_removed(table, path), path, value)  # type: ignore[arg-type]
            body[number] = (key, _like(inner, value))
            return table
        if _below(path, way):
            _member_set(inner, path[len(way) :], value)
            return table
    if any(way[0] == path[0] for _, way, _, _ in entries):
        name = _key(path)
    else:
        for part in reversed(path[1:]):
            value = {part: value}
        name = tomlkit.key(path[0]).as_string()
    item = _item(value)
    key = SingleKey(path[0], sep=" = ", original=name)
    if entries:
        last = entries[-1][0] + 1
        body[last:last] = [(None, Whitespace(", ")), (key, item)]
    else:
        body[len(body) :] = [(key, item), *body]
    return table


def _value_changed(item: Item, have: Any, value: Any) -> Item:
    """Another value; of a list only the elements that differ."""
    from tomlkit.items import Array

    if not isinstance(item, Array) or not isinstance(value, list):
        return _like(item, value)
    if len(have) == len(value):
        for number, (old, new) in enumerate(zip(have, value, strict=True)):
            if repr(old) != repr(new):
                item[number] = new
        return item
    gone, left = gone_and_left(have, value, lambda one, other: repr(one) == repr(other))
    if gone and left:
        return _like(item, value)
    comma = _ends_with_comma(item)
    for number in reversed(gone):
        del item[number]
    if gone and comma and value:
        item.add_line(indent="", newline=False)  # tomlkit has dropped the last comma
    lines = re.findall(r"\n([ \t]*)[^ \t\r\n\]]", item.as_string())
    for new in left:
        if lines:
            item.add_line(new, indent=lines[-1], add_comma=comma)
        else:
            item.append(new)
    return item


def _ends_with_comma(array: Item) -> bool:
    """Whether a comma follows the last element."""
    text = array.as_string()
    return _COMMENT.sub(lambda match: "" if match["comment"] else "''", text)[:-1].rstrip().endswith(",")


def _like(item: Item, value: Any) -> Item:
    """A new value with the white space and comment of the old one."""
    new = _item(value)
    for part in ("indent", "comment_ws", "comment", "trail"):
        setattr(new.trivia, part, getattr(item.trivia, part))
    return new
