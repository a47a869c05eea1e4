"""Undoing an edit by value: which settings of a file it changed, and what each was before.

A setting that still says what the edit wrote gets its former value; what somebody has set since stays.  Bytes are
core/edits/undo.py's.
"""

from __future__ import annotations

import copy
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from gpunode.core.content import decode
from gpunode.core.edits.refusal import Refusal
from gpunode.core.engines import ROWS
from gpunode.core.errors import InputError
from gpunode.core.late import regex
from gpunode.core.mask import shown
from gpunode.core.plain import mapping

Path = tuple[str, ...]
Values = dict[str, Any]
MISSING: Any = type("Missing", (), {"__repr__": lambda _: "not set"})()
_JSON = regex(rb"\s*\{")
_MANIFEST = regex(rb"(?m)^apiVersion:")  # a kubelet's *.conf is YAML
_FOLDERS = "|".join(row.config.split("/")[-2] for row in ROWS.values() if not row.config.endswith(".json"))
_TOML = regex(rf"\.toml\Z|/({_FOLDERS})(\.conf)?(\.d)?/[^/]*\Z")  # CRI-O reads every file, whatever its suffix
_VERSION = ("version",)  # of a TOML file: it says how all the others are read, and goes with the last of them


class Lost(NamedTuple):
    """What an undo has left in a file: in words; `theirs` where it is a value of somebody else's, which is to stay."""

    text: str
    theirs: bool = False


class _Format(NamedTuple):
    parse: Callable[[str, bytes], tuple[str, Values]]
    edit: Callable[[str, Mapping[Path, Any], Sequence[Path]], str]


@cache
def _formats() -> tuple[_Format, _Format, _Format]:
    from gpunode.core.edits.text import jsontext, toml, yamltext  # slow to import, and seldom needed

    def json_parsed(path: str, data: bytes) -> tuple[str, Values]:
        return (text := decode(path, data)), jsontext.parse(path, text)

    def yaml_edited(text: str, sets: Mapping[Path, Any], removes: Sequence[Path]) -> str:
        for one in removes:
            text = yamltext.remove(text, one)
        for one, value in sets.items():
            text = yamltext.set_value(text, one, value)
        return text

    return _Format(json_parsed, jsontext.edit), _Format(toml.parse, toml.edit), _Format(yamltext.parse, yaml_edited)


def _format(path: str, data: bytes) -> _Format | None:
    json, toml, yaml = _formats()
    if _JSON.match(data):
        return json
    if _TOML.search(path):
        return toml
    return yaml if path.endswith((".yaml", ".yml")) or _MANIFEST.search(data) else None


def values(path: str, data: bytes) -> Values | None:
    """What a file says, {} where it is empty; None for one of another format, or one that cannot be read."""
    data = data.removeprefix(BOM_UTF8)
    if not data.strip():
        return {}
    kind = _format(path, data)
    try:
        found = kind.parse(path, data)[1] if kind else None
    except InputError:
        return None
    return found if isinstance(found, dict) and _is_plain(found) else None


def _is_plain(value: Any, levels: int = 100) -> bool:
    """Whether a value is not nested deeper than that, and its keys are texts: a node's files may have any."""
    if isinstance(value, dict):
        return levels > 0 and all(isinstance(key, str) and _is_plain(one, levels - 1) for key, one in value.items())
    return not isinstance(value, list) or (levels > 0 and all(_is_plain(one, levels - 1) for one in value))


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same: 1 is neither true nor 1.0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return repr(one) == repr(other)


def differences(old: Any, new: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Each setting that differs: its path, the old and the new value.  A new entry of `runtimes` is one setting."""
    entry = old is MISSING and path[-2:-1] == ("runtimes",)
    if isinstance(new, dict) and (isinstance(old, dict) or (old is MISSING and new and not entry)):
        before = {} if old is MISSING else old
        for key in {**before, **new}:
            yield from differences(before.get(key, MISSING), new.get(key, MISSING), (*path, key))
    elif not same(old, new):
        yield path, old, new


def undone(now: Values, before: Values, after: Values) -> tuple[Values, list[Lost]]:
    """What a file that says `now` is to say without the edit that made `after` of `before`, and what stays of it."""
    wanted, lost = copy.deepcopy(now), []
    for path, old, new in differences(before, after):
        there, holder = _at(now, path), path[:-1]
        if same(there, old) or (path == _VERSION and old is MISSING):
            continue
        ours = same(there, new)
        value = old if ours else _list_back(old, new, there)
        held = value is MISSING or _at(now, holder) is not MISSING or _at(after, holder) is MISSING
        if held and (ours or value is not None):
            _put(wanted, path, value, before)
            continue
        name, now_is = ".".join(path), _said(there, path)
        if path[-2:-1] == ("runtimes",) and isinstance(there, dict) and not _is_theirs(there, new):
            _put(wanted, path, old, before)
            lost.append(Lost(f"{name} was {now_is} and goes, as its program does", theirs=True))
            continue
        words = f"{name} is {now_is}, and was {_said(old, path)} before gpunode"
        lost.append(Lost(words, theirs=_is_theirs(there, new)))
    for path, value, why in [*_bound(wanted, before, after)]:
        lost.append(Lost(f"{'.'.join(path)} is {_said(value, path)}{why}", theirs=True))
        _put(wanted, path, value, before)
    if wanted.keys() == {"version"} and "version" not in before and same(wanted["version"], after.get("version")):
        del wanted["version"]
    return wanted, lost


def _bound(wanted: Values, before: Values, after: Values) -> Iterator[tuple[Path, Any, str]]:
    """What goes or stays with runtimes: each setting with its value, and why.

    A default that a person has set to a runtime that goes is as before.  The runtime without a program that the edit
    wrote into a table of its own stays while others' are there: containerd 1.x has runc built in as long as no file has
    a table of runtimes, and does not load its CRI plugin without.
    """
    for path, _, new in differences(before, after):
        at, name = path[:-1], path[-1]
        if at[-1:] != ("runtimes",) or _at(wanted, path) is not MISSING:
            continue
        if _programs(new):
            for key, value in mapping(wanted, *at[:-1]).items():
                former = _at(before, (*at[:-1], key))
                if value == name != former:
                    yield (*at[:-1], key), former, f" again, because the runtime {name} goes"
            continue
        theirs = any(_is_theirs(one, _at(after, (*at, other))) for other, one in mapping(wanted, *at).items())
        if theirs and _at(before, at) is MISSING and "runtime_type" in mapping(after, *path):
            yield path, new, " and stays for the runtimes next to it"


def _is_theirs(now: Any, wrote: Any) -> bool:
    """Whether a value that was changed since is somebody else's; not an entry whose program is still the edit's own."""
    if isinstance(now, list) and any(isinstance(one, dict) for one in now):
        return False  # which of them is
    return not isinstance(now, dict) or not _programs(now) & _programs(wrote)


def _said(value: Any, path: Path) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_said(one, (*path, key))}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_said(one, path) for one in value)}]"
    return repr(value) if value is MISSING else shown(value, *path)


def _programs(value: Any) -> set[str]:
    """The absolute paths in a value."""
    if isinstance(value, dict):
        return {path for one in value.values() for path in _programs(one)}
    return {value} if isinstance(value, str) and value.startswith("/") else set()


def _list_back(old: Any, new: Any, now: Any) -> Any:
    """A list that was changed since, less what the edit added, with what it took out; None for what is no list."""
    was = [] if old is MISSING else old
    if not all(isinstance(one, list) for one in (was, new, now)):
        return None
    came, went = ([one for one in ones if one not in others] for ones, others in ((new, was), (was, new)))
    if not all(one in now for one in came) or any(one in now for one in went):
        return None
    at = min((now.index(one) for one in came), default=len(now))
    left = [*(one for one in now[:at]), *went, *(one for one in now[at:] if one not in came)]
    return left or (MISSING if old is MISSING else [])


def _at(found: Any, path: Path) -> Any:
    for key in path:
        found = found.get(key, MISSING) if isinstance(found, dict) else MISSING
    return found


def _put(into: Values, path: Path, value: Any, before: Values) -> None:
    """The value at the path; without one, tables that are empty then and were not there before go as well."""
    for depth in range(1, len(path)):
        holder = _at(into, path[: depth - 1])
        if not isinstance(holder.get(path[depth - 1]), dict):
            holder[path[depth - 1]] = {}
    holder = _at(into, path[:-1])
    if value is not MISSING:
        holder[path[-1]] = copy.deepcopy(value)
        return
    holder.pop(path[-1], None)
    for depth in range(len(path) - 1, 0, -1):
        if _at(into, path[:depth]) or _at(before, path[:depth]) is not MISSING:
            return
        del _at(into, path[: depth - 1])[path[depth - 1]]


def written(path: str, data: bytes, now: Values, wanted: Values) -> bytes | None:
    """The file that says what is wanted in place of `now`, all other bytes kept; None where that cannot be written."""
    mark = BOM_UTF8 if data.startswith(BOM_UTF8) else b""
    kind = _format(path, data.removeprefix(mark))
    changes = list(differences(now, wanted))
    sets = {one: value for one, _, value in changes if value is not MISSING}
    removes = [one for one, _, value in changes if value is MISSING]
    try:
        text = kind.edit(data.removeprefix(mark).decode(), sets, removes) if kind else ""
    except (Refusal, InputError, ValueError):
        return None
    found = mark + text.encode()
    return found if same(values(path, found), wanted) else None
