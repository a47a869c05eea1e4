"""Logs → what of them is a known fault, in one pass.

Text comes in chunks of whole lines.  One automaton (Aho and Corasick's) finds the texts of all signs at once; only
lines that have one are looked at, and of a long line only what is around it: a container may write lines of any length,
and no pattern is given more than WINDOW characters.  What people paste into forums is broken into
lines, quoted and decorated: of a short log the lines are also joined, and read again for what was not found before.
"""

from __future__ import annotations

import html
import re
import string
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from gpunode.core.doctor.table import DRIVER_WORDS, Fault, Faults, Sign

# NVRM: Xid (PCI:0000:01:00): 79, …; with MIG (PCI:0000:01:00 GPU-I:05)
XID = re.compile(r"\bXid \((?P<gpu>[^) ]{1,60})[^)]{0,60}\): ?(?P<code>\d{1,3})\b", re.IGNORECASE)
_BEFORE = re.compile(
    r"\bXid \((?P<gpu>[^) ]{1,60})[^)]{0,60}\):.{0,200} caused by previous Xid (?P<code>\d{1,3})\b", re.IGNORECASE
)
_PLUGIN = re.compile(r"XidCriticalError: Xid=(?P<code>\d{1,3}) on *Device=(?P<gpu>[\w-]+)", re.IGNORECASE)
SWITCH = re.compile(r"SXid \(PCI:(?P<gpu>[^)]{0,60})\): (?P<code>\d{4,5})", re.IGNORECASE)
FABRIC = re.compile(  # the fabric manager's log
    r"detected NVSwitch (?:non-)?fatal error (?P<code>\d{5}) on .{0,20}NVSwitch pci bus id (?P<gpu>[0-9a-f:.]+)",
    re.IGNORECASE,
)
REPORTS = (XID, _BEFORE, _PLUGIN, SWITCH, FABRIC)
# newer drivers leave out the code
LOST = re.compile(r"(?:NVRM:.{0,200}\bhas |NVRM: |GPU has )fallen off (?:of )?the bus", re.IGNORECASE)

# «Xid error code 79», «XID 错误：79», «Xid-Fehler 79», «GPU Xid errors detected: 79»
_WORD = (
    r"[-_ :]{0,2}(?:errors?|codes?|with code|numbers?|messages?|events?|event\(s\)"
    r"|fehler|エラー|错误码?|報錯|报错|오류|에러|(?:detected|found)(?=:))"
)
_END = r"(?:(?![0-9A-Za-z_])|(?=Error|Warning))"
_UNIT = r"(?! ?(?:x|times?|nodes?|gpus?|cards?|more|others?|hours?|min\w*|days?|%)\b)"
_TOLD = re.compile(
    # «Xids 13, 31 and 43»
    rf"\bXids{_WORD}?[ :(]{{1,2}}(?P<list>\d{{1,3}}(?:(?:, ?(?:and )?| and |/)\d{{1,3}}\b)+)"
    # metrics of DCGM
    r"|XID_ERRORS\{[^}]*\} *(?P<metric>\d{1,3})\b|XID_ERRORS\{[^}]*err_code='(?P<label>\d{1,3})'"
    # conditions of nodes: NVSentinel's, GKE's
    r"|XIDError.{0,200}?ErrorCode\W{1,5}(?P<sentinel>\d{1,3})\b"
    r"|XidCriticalError +True\b.{0,200}\{'(?P<condition>\d{1,3})':true"
    r"|(?P<before>\d{1,3}) ?号 ?Xid|\bSXid(?: errors?)?[ :=]{1,2}(?P<switch>\d{5})\b"
    # «Xid 79», «Xid 48 / 171», «Xid 79 and 154», «NvidiaXID79Error», «'xid': 79»
    rf"|(?:(?<![A-Za-z])|Nvidia)Xids?(?:{_WORD})*(?:[ _=:：#({{*`'-]{{0,3}}| is |为|是)"
    rf"(?P<codes>\d{{1,3}}{_END}(?:/\d{{1,3}}{_END})?(?!/)(?:(?: / | and | & | \+ )\d{{1,3}}{_END}{_UNIT})*)",
    re.IGNORECASE,
)
_PLAN = re.compile(  # a code that is worked on, looked for or explained, not met
    r"\[feature\]|\bignore\b|\bsupport for\b|\bshould be\b|\bsimulat|xid\w* ?== ?\d|\bcase \d+:"
    r"|\b(detect|treat|mark(ed)?|classify|map|ignored?)\b.{0,60} as\b"
    r"|\bgrep( -\w+)* (for )?'?(NVRM: )?Xid \d|\b(watch|look|search|check)( \w+){0,2} for Xid \d"
    r"|^\W*auto[- ]?detect|\b(address(es)?|handles?|catch(es)?) Xid \d|\bcauses (are|include)\b"
    r"|XID\w*\{[^}]*\} *0(\.0)?$|^[-*•] *Xid \d+: [A-Z][a-z]",
    re.IGNORECASE,
)
_STAGED = re.compile(r"\binject|\btrigger(s|ed|ing)? (an? )?Xid", re.IGNORECASE)
_DENIED = re.compile(
    r"(\b(no|not|never|unlike|without|than|such as|like|e\.g\.,?|for example,?|the driver (logs|reports|prints))"
    r"|没有|不是|并非|[会没未]报)( an?| any| the)? ?$",
    re.IGNORECASE,
)
_NONE = re.compile(
    r"\b(logs|logged|has|shows?|prints|printed) no Xids?\b|\(no Xids?\b|\bno Xids? of any kind", re.IGNORECASE
)
_EXPLAINED = re.compile(
    r"( errors?| codes?| ?号?错误)?( (means|indicates|refers to|stands for|is (logged|raised|emitted) (when|if|by))"
    r"|是指|是由|是通用|表示|意味着|:? ?此事件)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Told:
    """Codes that a line tells of; unmet: it says that somebody brings them about; none: it says that there is none."""

    codes: tuple[int, ...] = ()
    unmet: tuple[int, ...] = ()
    none: bool = False


def read_told(text: str) -> Told:
    """A line, its quotation marks all ' → codes of GPUs and of NVSwitches, whether there are such or not."""
    codes = [
        int(code)
        for match in _TOLD.finditer(text)
        if not _DENIED.search(text, max(0, match.start() - 60), match.start())
        and not _EXPLAINED.match(text, match.end())
        for code in re.findall(r"\d+", next(filter(None, match.groups())))
    ]
    if _STAGED.search(text):
        return Told(unmet=tuple(codes))
    if _PLAN.search(text):
        return Told()
    lost = LOST.search(text) and not _EXPLAINED.search(text)
    return Told(codes=(*codes, *[79] * bool(lost)), none=bool(_NONE.search(text)))


KEPT = 5  # lines of evidence for one fault in one log; later ones are not looked for
SHORT = 2_000_000  # characters: longer logs come from machines, which break no lines and tell nothing
WINDOW = 4096  # characters of a line that a pattern is given at most
_STEP = WINDOW // 2
_REPORT = 400  # characters that a driver's report of a code has at most
_AROUND = 300  # characters on either side of a sign in joined text
_NEAR = 100  # characters: a sign that comes again so soon is seen with the one before
_LINE = 400  # characters of a line that are shown
_QUOTES = str.maketrans(dict.fromkeys('"’‘`´“”„″′', "'") | {"\u00a0": " ", "\t": " "})
_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_ESCAPED = re.compile(r"""(?<!\\)\\+["']""")  # once, or as often as one log quotes another
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
_FOLD = re.compile(r"(?<!\s)\s*\n[\s>|]*")


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
        number, at, start, end = self._lines + 1, 0, 0, -1
        window = _Window()
        for last, signs in self.faults.finder.iter(lower):
            if last > end:  # a line that was not looked at before
                number += chunk.count("\n", at, last)
                at, end = last, chunk.find("\n", last)
                end = end if end >= 0 else len(chunk)
                start = chunk.rfind("\n", 0, last) + 1
                window = _Window()
                line = lower[start:end]
                if any(word in line for word in DRIVER_WORDS):
                    for piece in _pieces(chunk[start:end]):
                        self._read_xids(plain(piece), number)
            first, stop = _around(last, start, end)
            if window.first != first:
                window = _Window(first=first, raw=chunk[first:stop], cut=stop - first < end - start)
            self._try(window, number, signs, last)
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

    def _try(self, window: _Window, number: int, signs: Iterable[tuple[Fault, Sign]], last: int) -> bool:
        """Whether a fault shows in the window; each pattern is tried once, however often its sign is there."""
        new = False
        for fault, sign in signs:
            seen = self._seen[fault.id]
            if len(seen) >= KEPT or (seen and seen[-1].line == number) or (sign.told and self._short is None):
                continue
            if window.is_new(fault, sign) and _shows(window.text, fault, sign, window.is_work):
                seen.append(Evidence(source=self.source, line=number, text=window.shown(last)))
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
            looked: dict[str, int] = {}  # texts of signs → where they were last looked at
            for last, signs in self.faults.finder.iter(_lower(folded)):
                missing = [(fault, sign) for fault, sign in signs if not self._seen[fault.id]]
                sign_text = signs[0][1].text if signs else ""
                if not missing or last - looked.get(sign_text, -_NEAR) < _NEAR:
                    continue
                looked[sign_text] = last
                first = max(0, last - _AROUND)
                near = _Window(first=first, raw=folded[first : last + _AROUND])
                for fault, sign in missing:
                    if not self._seen[fault.id] and self._try(near, 0, [(fault, sign)], last):
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


@dataclass(kw_only=True)
class _Window:
    """A line, or what is around a sign in a long one, as the patterns see it."""

    first: int = -1  # where it begins in the chunk
    raw: str = ""
    cut: bool = False  # out of a longer line
    _tried: set[tuple[str, str | None, bool]] = field(default_factory=set)

    @cached_property
    def text(self) -> str:
        return plain(self.raw)

    @cached_property
    def is_work(self) -> bool:
        return bool(_WORK.match(self.text))

    def is_new(self, fault: Fault, sign: Sign) -> bool:
        """Whether the pattern was not tried here yet, by another place or another text of its sign."""
        key = (fault.id, sign.pattern and sign.pattern.pattern, sign.told)
        new = key not in self._tried
        self._tried.add(key)
        return new

    def shown(self, last: int) -> str:
        """The beginning of the line; of a long one the place of the sign whose last letter is at `last`."""
        if not self.cut:
            return self.text[:_LINE]
        begin = max(0, min(last - self.first - _LINE // 2, len(self.raw) - _LINE))
        return plain(self.raw[begin : begin + _LINE])


def _around(last: int, start: int, end: int) -> tuple[int, int]:
    """The part of the line start..end that has the place `last` well within it; places near each other share one."""
    if end - start <= WINDOW:
        return start, end
    first = start + max(0, last - start - _STEP // 2) // _STEP * _STEP
    return first, min(end, first + WINDOW)


def _pieces(line: str) -> Iterator[str]:
    """A line in pieces that no pattern is too slow on; a driver's report of a code is in one of them, whole."""
    at = 0
    while len(line) - at > WINDOW:
        end = at + WINDOW
        tail = _lower(line[end - _REPORT : end])
        cut = min((place for word in ("nvrm", *DRIVER_WORDS) if (place := tail.find(word)) >= 0), default=_REPORT)
        yield line[at : end - _REPORT + cut]
        at = end - _REPORT + cut
    yield line[at:]


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


def _shows(text: str, fault: Fault, sign: Sign, is_work: bool) -> bool:
    if sign.pattern and not sign.pattern.search(text):
        return False
    excluded = (fault.unless and fault.unless.search(text)) or (sign.told and _CONDITION.search(text))
    return not excluded and not is_work
