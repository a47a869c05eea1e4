"""Logs → what of them is a known fault, in one pass.

Text comes in chunks of whole lines.  One automaton (Aho and Corasick's) finds the texts of all signs at once; only
lines that have one are looked at.  What people paste into forums is broken into
lines, quoted and decorated: of a short log the lines are also joined, and read again for what was not found before.
"""

from __future__ import annotations

import html
import re
import string
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpunode.core.doctor.codes import FABRIC, LOST, REPORTS, SWITCH, XID, read_told
from gpunode.core.doctor.table import DRIVER_WORDS, Fault, Faults, Sign

KEPT = 5  # lines of evidence for one fault in one log; later ones are not looked for
SHORT = 2_000_000  # characters: longer logs come from machines, which break no lines and tell nothing
_AROUND = 300  # characters on either side of a sign in joined text
_LINE = 400  # characters of a line that are shown
_QUOTES = str.maketrans(dict.fromkeys('"’‘`´“”„″′', "'") | {"\u00a0": " ", "\t": " "})
_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_ESCAPED = re.compile(r"""\\+["']""")  # once, or as often as one log quotes another
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SXID_MORE = re.compile(r": \d{4,5}, (?:Data|Severity) ")  # lines that belong to one before
_WORK = re.compile(  # titles of changes, lines that a change adds to a document, entries of release notes
    r"^\W{0,4}(feat|docs|test|chore|refactor|ci)(\([^)]*\))?!?: "
    r"|^\W{0,4}(add|update|improve|extend)s? .{0,40}\b(docs?|documentation|guide)\b"
    r"|^\W{0,4}(handle|prevent|avoid|catch)s? (?!0x)"
    r"|^\+(\t|  )|^\+ ?(#|\||[-*] |[A-Z][a-z]+ [a-z])|^[-*] .*\[#\d+\]\(https?://\S+/(pull|issues)/\d+\)",
    re.IGNORECASE,
)
_CATALOGUE = 6  # codes that are only spoken of, from which on a text explains codes and reports none
# words that make of what is told a condition, an example or a plan
_CONDITION = re.compile(
    r"\b(if|when (the |your )?nvidia|unless|until|whether|ensure|make sure|errors? (such as|like)|would"
    r"|will (result|fail)|could (cause|lead)|\w*detect(s|ion)? (of|when)|support for|feature request)\b"
    r"|\[feature\]|如果|(将|会|可能)导致",
    re.IGNORECASE,
)
_FOLD = re.compile(r"\s*\n[\s>|]*")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A line of a log, or a thing in a node's state; `line` counts from 1, 0 where there is none."""

    source: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class XidSeen:
    """A code in a log: how often, on which GPUs (PCI addresses), and the first line; told: only spoken of."""

    code: int
    count: int
    gpus: tuple[str, ...]
    evidence: Evidence
    told: bool = False
    nvswitch: bool = False  # an SXid


@dataclass(kw_only=True)
class Scan:
    """What is known of one log so far; `feed` it, then ask `found` and `xids`."""

    faults: Faults
    source: str
    _lines: int = 0
    _seen: dict[str, list[Evidence]] = field(default_factory=lambda: defaultdict(list))
    _folded: set[str] = field(default_factory=set)
    _xids: dict[tuple[int, bool], XidSeen] = field(default_factory=dict)
    _told: dict[int, XidSeen] = field(default_factory=dict)
    _unmet: set[int] = field(default_factory=set)  # codes that the text says were staged
    _none: bool = False  # the text says that there is no code
    _texts: set[str] = field(default_factory=set)  # of `within`, that were there
    _short: list[str] | None = field(default_factory=list)
    _length: int = 0

    def feed(self, chunk: str) -> None:
        """The next whole lines of the log."""
        lower = _lower(chunk)
        wanted = {text for fault in self.faults.faults.values() for text in fault.within} - self._texts
        self._texts.update(text for text in wanted if text in lower)
        number, at, end, shown = self._lines + 1, 0, -1, ""
        for last, signs in self.faults.finder.iter(lower):
            if last > end:  # a line that was not looked at before
                number += chunk.count("\n", at, last)
                at, end = last, chunk.find("\n", last)
                end = end if end >= 0 else len(chunk)
                shown = chunk[chunk.rfind("\n", 0, last) + 1 : end]
                if any(word in shown.lower() for word in DRIVER_WORDS):
                    self._read_xids(plain(shown), number)
            self._try(shown, number, signs)
        self._lines += chunk.count("\n") + (not chunk.endswith("\n"))
        self._keep(chunk)

    def found(self) -> dict[str, tuple[Evidence, ...]]:
        """Evidence by fault id, once all has been fed; a fault that needs another text near it only where that is."""
        self._finish()
        faults = self.faults.faults
        return {
            name: tuple(evidence)
            for name, evidence in self._seen.items()
            if evidence
            and (not faults[name].within or any(t in self._texts for t in faults[name].within))
            and not any(self._seen.get(other) for other in faults[name].said_by)
        }

    def folded(self) -> frozenset[str]:
        """Ids that were found only in lines joined anew: less certain."""
        return frozenset(self._folded)

    def xids(self) -> tuple[XidSeen, ...]:
        """Codes of the driver's own lines; where there are none, the few that the text speaks of."""
        self._finish()
        told = tuple(seen for code, seen in self._told.items() if code not in self._unmet)
        return tuple(self._xids.values()) or (told if len(told) < _CATALOGUE and not self._none else ())

    def _try(self, line: str, number: int, signs: Iterable[tuple[Fault, Sign]]) -> bool:
        new, text = False, ""
        for fault, sign in signs:
            seen = self._seen[fault.id]
            if len(seen) >= KEPT or (seen and seen[-1].line == number) or (sign.told and self._short is None):
                continue
            text = text or plain(line)
            if _shows(text, fault, sign):
                seen.append(Evidence(source=self.source, line=number, text=text[:_LINE]))
                new = True
        return new

    def _read_xids(self, text: str, number: int) -> None:
        evidence = Evidence(source=self.source, line=number, text=text[:_LINE])
        for pattern in REPORTS:
            for match in pattern.finditer(text):
                self._add_xid(match, evidence, pattern in (SWITCH, FABRIC))
        if _WORK.match(text):
            return
        told = read_told(text)
        self._unmet.update(told.unmet)
        self._none = self._none or told.none
        for code in told.codes:
            switch = code in self.faults.sxids
            if code not in self._told and (switch or code in self.faults.xids):
                self._told[code] = XidSeen(code=code, count=1, gpus=(), evidence=evidence, told=True, nvswitch=switch)

    def _add_xid(self, match: re.Match[str], evidence: Evidence, switch: bool) -> None:
        code, gpu = int(match["code"]), match["gpu"].lower().removeprefix("pci:")
        old = self._xids.get((code, switch))
        if old and switch and _SXID_MORE.match(evidence.text, match.start("code") - 2):
            return
        self._xids[code, switch] = XidSeen(
            code=code,
            count=old.count + 1 if old else 1,
            gpus=tuple(dict.fromkeys([*(old.gpus if old else ()), gpu])),
            evidence=old.evidence if old else evidence,
            nvswitch=switch,
        )

    def _keep(self, chunk: str) -> None:
        if self._short is None:
            return
        self._length += len(chunk)
        self._short = [*self._short, chunk.rstrip("\n")] if self._length <= SHORT else None

    def _finish(self) -> None:
        if self._short:
            lines = "\n".join(self._short).splitlines()
            self._read_folded("\n".join(line for line in lines if not _WORK.match(line)))
            self._short = None

    def _read_folded(self, text: str) -> None:
        for folded in (_FOLD.sub(" ", text), _FOLD.sub("", text)):
            for last, signs in self.faults.finder.iter(_lower(folded)):
                missing = [(fault, sign) for fault, sign in signs if not self._seen[fault.id]]
                near = folded[max(0, last - _AROUND) : last + _AROUND]
                for fault, sign in missing:
                    if not self._seen[fault.id] and self._try(near, 0, [(fault, sign)]):
                        self._folded.add(fault.id)
            lost = None if LOST.search(text) else LOST.search(folded)  # in one line it was read as it stands
            if not self._xids and (match := XID.search(folded) or lost):
                self._read_xids(plain(folded[match.start() : match.end() + _AROUND]), 0)


def scan(faults: Faults, source: str, chunks: Iterable[str]) -> Scan:
    """A log, in chunks of whole lines → what is in it."""
    result = Scan(faults=faults, source=source)
    for chunk in chunks:
        result.feed(chunk)
    return result


def plain(line: str) -> str:
    """A line without colours, HTML's and JSON's ways of writing, and with one kind of quotation mark."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if "&" in line:
        line = html.unescape(line)
    if "\\" in line:
        line = _ESCAPED.sub("'", line).replace("\\x0a", " ")
    return line.translate(_QUOTES).strip()


def _lower(text: str) -> str:
    """Small letters, each where its capital stood: Unicode's own lower case can be longer."""
    return text.lower() if text.isascii() else text.translate(_SMALL)


def _shows(text: str, fault: Fault, sign: Sign) -> bool:
    if sign.pattern and not sign.pattern.search(text):
        return False
    excluded = (fault.unless and fault.unless.search(text)) or (sign.told and _CONDITION.search(text))
    return not excluded and not _WORK.match(text)
