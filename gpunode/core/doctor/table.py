"""Faults and codes of drivers as values, from knowledge/faults.toml, xids.toml and sxids.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpunode.core.errors import InputError

LAYERS = ("package", "driver", "cuda", "mig", "container", "kubernetes")  # what is lower brings down what is above
# every line that has, or means, a code of the driver has one of these
DRIVER_WORDS = ("xid", "fallen off ", "detected nvswitch ")
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, kw_only=True)
class Sign:
    """How a fault shows in a line: `text` (lower case, no quotation marks) is in it, and `pattern` matches it."""

    text: str
    pattern: re.Pattern[str] | None = None
    told: bool = False  # words of people: no sign where a condition is made


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong on GPU nodes."""

    id: str
    layer: str
    severity: Literal["error", "warning"]
    signs: tuple[Sign, ...] = ()  # none: seen in the state of a node only
    within: tuple[str, ...] = ()  # lower-case texts, one of which is somewhere in the same log
    unless: re.Pattern[str] | None = None
    said_by: tuple[str, ...] = ()  # ids of faults with the same message in their train: where one is found, this is not
    cause: str
    fix: str
    command: str = ""  # what of gpunode mends it or says more
    causes: tuple[str, ...] = ()  # ids of its consequences
    confidence: Confidence = "high"
    source: str


@dataclass(frozen=True, kw_only=True)
class Xid:
    """A code of the driver of GPUs (Xid) or of NVSwitches (SXid), and what NVIDIA says to do about it."""

    code: int
    mnemonic: str = ""  # of an Xid
    severity: str = ""  # of an SXid: corrected, non-fatal, fatal, always fatal
    description: str
    immediate: str = ""
    investigatory: str = ""
    plain: str = ""
    ignored: bool = False  # by the device plugin: the GPU stays allocatable


@dataclass(frozen=True, kw_only=True)
class Faults:
    """All of them, in the order of the file; `finder` says where in a lower-case text which signs may be."""

    faults: Mapping[str, Fault]
    xids: Mapping[int, Xid]
    sxids: Mapping[int, Xid]
    xid_source: str
    sxid_source: str
    finder: Any  # ahocorasick.Automaton; iter(text) → (place of the last letter, [(fault, sign)])


def parse_faults(faults: Mapping[str, Any], xids: Mapping[str, Any], sxids: Mapping[str, Any]) -> Faults:
    """The parsed files → value.  Raises InputError for a row that cannot be used."""
    rows = {row["id"]: _fault(row) for row in faults["fault"]}
    for fault in rows.values():
        unknown = {*fault.causes, *fault.said_by} - rows.keys()
        if unknown:
            raise InputError(f"faults.toml: {fault.id} names {', '.join(sorted(unknown))}", expected="known ids")
    return Faults(
        faults=rows,
        xids={row["code"]: Xid(**row) for row in xids["xid"]},
        sxids={row["code"]: _sxid(row, sxids["class"]) for row in sxids["sxid"]},
        xid_source=str(xids["source"]),
        sxid_source=str(sxids["source"]),
        finder=_finder(rows.values()),
    )


def _sxid(row: Mapping[str, Any], classes: Mapping[str, Mapping[str, str]]) -> Xid:
    """What the row does not say, its class does."""
    known = classes[row["class"]]
    return Xid(
        code=row["code"],
        severity=row["class"],
        description=row["description"],
        immediate=row.get("immediate", known.get("immediate", "")),
        plain=row.get("plain", known["plain"]),
    )


def _finder(faults: Iterable[Fault]) -> Any:
    import ahocorasick

    by_text: dict[str, list[tuple[Fault, Sign]]] = {word: [] for word in DRIVER_WORDS}
    for fault in faults:
        for sign in fault.signs:
            by_text.setdefault(sign.text, []).append((fault, sign))
    finder = ahocorasick.Automaton()
    for text, signs in by_text.items():
        finder.add_word(text, signs)
    finder.make_automaton()
    return finder


def _fault(row: Mapping[str, Any]) -> Fault:
    try:
        return Fault(
            id=row["id"],
            layer=row["layer"],
            severity=row["severity"],
            signs=tuple(sign for match in row.get("match", ()) for sign in _signs(match)),
            within=tuple(row.get("within", ())),
            unless=_compiled(row["unless"]) if "unless" in row else None,
            said_by=tuple(row.get("said_by", ())),
            cause=row["cause"],
            fix=row["fix"],
            command=row.get("command", ""),
            causes=tuple(row.get("causes", ())),
            confidence=row.get("confidence", "high"),
            source=row["source"],
        )
    except (KeyError, re.error) as error:
        raise InputError(f"faults.toml: {row.get('id', row)!r}: {error}", expected="a complete row") from error


def _signs(match: str | list[Any]) -> Iterable[Sign]:
    """A text; or [text or texts, pattern], and "told" as third."""
    texts, pattern, *told = match if isinstance(match, list) else (match, "")
    for text in [texts] if isinstance(texts, str) else texts:
        if text != text.lower() or "'" in text or '"' in text:
            raise InputError(f"faults.toml: {text!r}", expected="lower case without quotation marks")
        yield Sign(text=text, pattern=_compiled(pattern) if pattern else None, told=bool(told))


# «the rest of this word, then a few letters»: by itself it is tried at each letter of the word
_REST = re.compile(r"(?<!\\)\\(?P<kind>[Sw])\*(?=\.\{0,\d+\})")


def _compiled(pattern: str) -> re.Pattern[str]:
    r"""The pattern, with the rest of a word taken as a whole or not at all, so that no line costs more than its square.

    >>> _compiled(r"(nvidia|cuda)\S*.{0,80}timeout").pattern
    '(nvidia|cuda)(?:\\S*+(?=\\s))?.{0,80}timeout'
    """
    whole = _REST.sub(lambda m: rf"(?:\{m['kind']}*+(?=\{_NEXT[m['kind']]}))?", pattern)
    return re.compile(whole, re.IGNORECASE)


_NEXT = {"S": "s", "w": "W"}
