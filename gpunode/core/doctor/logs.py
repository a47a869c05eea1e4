"""Logs → which known messages are in them, in one pass.

Text comes in chunks of whole lines.  One automaton (Aho and Corasick's) finds the texts of all messages at once.  Most
messages are such a text and nothing more; a pattern reads only the part of a line that is around the text, so that a
line of any length costs no more than its length.  Where two messages overlap, the longer text is meant.  Lines that a
terminal or a mail program has broken are read joined as well, for messages that go over a break.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from gpunode.core.doctor.codes import LONGEST, XidSeen, add_code
from gpunode.core.doctor.parts import ANYONE, Part
from gpunode.core.doctor.table import Faults, Found, Message
from gpunode.core.doctor.text import Evidence, joined, places, plain, small, starts, time_of, uncoloured
from gpunode.core.late import dataclass, field, regex, replace

KEPT = 5  # lines of evidence for one fault in one log, the newest
PART = 1000  # characters of a line that are read for a pattern, and half of that on each side
_SHOWN = 400  # characters of a line that are shown
# recipes that make prints, and scripts; containerd, of pods that end; dockerd, of what was run in a container;
# engines, of the containers of `gpunode verify`, which says itself what came of them
_NO_NEWS = regex(
    r"^\s*@?echo\b.*\\\s*$|^\s*echo (?:-\w )?'|\becho >&2 |\bcleanup warnings\b|\bError running exec \w"
    r"|\b(?:id|namespace)=gpunode-smoke\b|\bname:'gpunode-smoke-"
)
_NO_NEWS_WORDS = ("echo", "cleanup warnings", "Error running exec", "gpunode-smoke")
# the beginning of a line that a program has written in one piece: nothing has broken the line before it
_STAMP = regex(r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d-\d\d[ T]|\[ *\d+\.\d+\]|[IWEF]\d{4} \d\d:|\{')", re.M)
_NEAR = 30  # lines of one load of a module, next to its first one
_MANY = 1000  # lines; nobody has pasted so many
_OF_NVIDIA = regex(r"pci ([0-9a-f:.]{7,16}): \[10de:")
_TAIL = 2000  # characters of a chunk that are joined with the next one


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A fault in one log: how often, the line of the first message, and the newest lines, newest first."""

    count: int
    first: int
    evidence: tuple[Evidence, ...]
    broken: bool = False  # seen only where lines were joined
    own: bool = False  # by a message that its own program printed, or that nothing else prints
    earlier: bool = False  # of an earlier boot, or a later line shows that it is over


@dataclass(frozen=True, kw_only=True)
class _Match:
    message: Message
    begin: int
    end: int


@dataclass(kw_only=True)
class _Lines:
    """Lines that show one fault."""

    count: int = 0
    first: int = 0
    newest: deque[Evidence] = field(default_factory=lambda: deque(maxlen=KEPT))
    messages: dict[Message, int] = field(default_factory=dict)  # the line of the last one

    def add(self, evidence: Evidence, message: Message) -> None:
        self.messages[message] = evidence.line
        if self.newest and self.newest[-1].line == evidence.line:
            return
        self.first = self.first or evidence.line
        self.count += 1
        self.newest.append(evidence)


@dataclass(frozen=True, kw_only=True)
class _Start:
    """The last start of a program in a log, by the lines that tell of it."""

    over: int = 0  # the line before which its messages are over
    starting: int = 0  # the same for what it says while it starts
    last: int = 0  # the line with which it began, or the newest with which one came to an end
    begun: int = 0  # the line with which the newest began: nothing is over before it has come to an end

    def at(self, line: int, place: str) -> _Start:
        """As it is behind one more line, which is at this place of a start: first, within, late, or of one in vain."""
        if place == "within":
            return replace(self, begun=line - _NEAR)
        over = self.over if place == "failed" else line
        begun = line if place == "first" else self.begun
        return _Start(over=over, starting=max(self.starting, self.last, begun), last=line, begun=self.begun)


_NEVER = _Start()


@dataclass(kw_only=True)
class Scan:
    """What is known of one log so far; `feed` it, then ask `found` and `xids`."""

    faults: Faults
    source: str
    part: Part = ANYONE
    proofs: dict[str, int] = field(default_factory=dict)  # fact → the line before which what it refutes is over
    versions: Mapping[str, str] = field(default_factory=dict)  # of programs, as far as they are known
    texts: set[str] = field(default_factory=set)  # that some message or cause needs, and that were there
    since: int = 0  # lines with an earlier time (time_of) are of an earlier boot
    _number: int = 0  # of lines
    _starts: dict[str, _Start] = field(default_factory=dict)  # of programs; * of all
    _seen: dict[str, _Lines] = field(default_factory=dict)
    _broken: dict[str, _Lines] = field(default_factory=dict)
    _codes: dict[tuple[int, bool], XidSeen] = field(default_factory=dict)
    _slots: set[str] = field(default_factory=set)  # of NVIDIA's devices
    _tail: str = ""
    _shown_tail: str = ""  # the same as it was in the log

    def feed(self, chunk: str, line: int = 0) -> None:
        """The next whole lines of the log; `line` is the number of the first one, where others were left out."""
        if line and line != self._number + 1:
            self._number, self._tail, self._shown_tail = line - 1, "", ""
        shown = uncoloured(chunk)
        text = plain(shown)
        lower = small(text)
        if "[10de:" in lower:
            self._slots.update(_OF_NVIDIA.findall(lower))
        lines = None if len(shown) == len(text) else shown.split("\n")  # else each letter is where it was
        for number, start, end, hits in self._hits(lower):
            as_it_was = shown[start:end] if lines is None else lines[number - self._number - 1]
            self._read_line(text[start:end], as_it_was, number, [(first - start, found) for first, found in hits])
        if not self.part.report and not _is_log(text):
            self._read_joined(text, shown if lines is None else _aligned(text, lines))
        self._number += text.count("\n") + (not text.endswith("\n"))

    def found(self) -> dict[str, Shown]:
        """Faults by id, once all has been fed; a message that needs another text counts only where that is."""
        broken = {name: lines for name, lines in self._broken.items() if name not in self._seen}
        return {
            name: Shown(
                count=lines.count,
                first=lines.first,
                evidence=tuple(reversed(lines.newest)),
                broken=name in broken,
                own=any(m.plain or (self.part.programs is not None and not m.general) for m in lines.messages),
                earlier=self._is_before(lines.newest[-1])
                or self._is_refuted(name, max(lines.messages.values()))
                or all(m.outdated(self.versions) or self._is_over(m, at) for m, at in lines.messages.items()),
            )
            for name, lines in {**self._seen, **broken}.items()
            if any(not m.needs or self.texts.intersection(m.needs) for m in lines.messages)
        }

    def _is_refuted(self, fault: str, line: int) -> bool:
        row = self.faults.faults[fault]
        return bool(self.proofs) and not row.then and line < self.proofs.get(row.refuted_by, 0)

    def _is_over(self, message: Message, line: int) -> bool:
        start, all_start = self._start(message.until or message.program), self._start("*")
        return self.part.earlier or line < max(start.starting if message.starting else start.over, all_start.over)

    def _start(self, program: str) -> _Start:
        return self._starts.get(program, _NEVER)

    def xids(self) -> tuple[XidSeen, ...]:
        """Codes that the driver and other programs report."""
        over = max(self._start(program).over for program in ("nvidia.ko", "*"))
        return tuple(
            replace(seen, earlier=self.part.earlier or seen.evidence.line < over or self._is_before(seen.evidence))
            for seen in self._codes.values()
        )

    def _is_before(self, evidence: Evidence) -> bool:
        return bool(self.since) and (time_of(evidence.text, self.since) or self.since) < self.since

    def _hits(self, lower: str) -> Iterator[tuple[int, int, int, list[tuple[int, Found]]]]:
        """Lines that have known texts: number, where it starts and ends, the texts with where each begins."""
        number, at, start, end = self._number + 1, 0, 0, -1
        hits: list[tuple[int, Found]] = []
        for last, found in self.faults.finder.iter(lower):
            if found.needs:
                self.texts.add(found.text)
                if not (found.messages or found.ends):
                    continue
            if last > end:
                if hits:
                    yield number, start, end, hits
                number += lower.count("\n", at, last)
                at, hits = last, []
                start, end = lower.rfind("\n", 0, last) + 1, lower.find("\n", last)
                end = end if end >= 0 else len(lower)
            hits.append((last - len(found.text) + 1, found))
        if hits:
            yield number, start, end, hits

    def _read_line(self, line: str, shown: str, number: int, hits: list[tuple[int, Found]]) -> None:
        for _, found in hits:
            for program, where in found.ends:
                self._starts[program] = self._start(program).at(number, where)
        hits = [hit for hit in hits if hit[1].messages or hit[1].reports]
        if not hits or (any(word in line for word in _NO_NEWS_WORDS) and _NO_NEWS.search(line)):
            return

        place = cache(lambda: places(shown) if len(shown) > max(len(line), PART) else int)  # it reads the whole line

        def evidence(first: int) -> Evidence:
            """The beginning of the line as it was; of a long one what is around the message."""
            around = place()(first) - _SHOWN // 2
            begin = max(0, min(around, len(shown) - _SHOWN)) if len(shown) > PART else 0
            return Evidence(source=self.source, line=number, text=shown[begin : begin + _SHOWN].strip())

        for match in _longest(self._matches(line, hits)):
            if match.message.of_gpu and not any(slot in line for slot in self._slots):
                continue
            lines = self._seen.setdefault(match.message.fault, _Lines())
            lines.add(evidence(match.begin), match.message)
        lower = small(line) if self._reports and any(found.reports for _, found in hits) else ""
        for first, found in hits:
            for report in found.reports if lower else ():
                if reported := report.match(line, lower, first):
                    add_code(self._codes, report, reported, evidence(first), self._start("nvidia.ko").starting)

    def _read_joined(self, text: str, shown: str) -> None:
        """Messages that go over the end of a line; those of the end of the last chunk were read with it.

        `shown` is as long as the text: what was in the log, where that has each letter at the same place.
        """
        old, text, shown = self._tail.count("\n"), self._tail + text, self._shown_tail + shown
        number = self._number - old + 1
        for glue in (" ", ""):
            folded = joined(text, glue)
            lower = small(folded)
            found_at = self.faults.finder.iter(lower)
            hits = [(last - len(found.text) + 1, found) for last, found in found_at if found.messages or found.reports]
            if not hits:
                continue
            seen_as = joined(shown, glue)
            breaks = starts(text, glue)
            for match in _longest(self._matches(folded, self._over_breaks(hits, breaks))):
                line = bisect(breaks, match.end - 1)
                if bisect(breaks, match.begin) < line >= old and not match.message.of_gpu:
                    lines = self._broken.setdefault(match.message.fault, _Lines())
                    lines.add(self._joined_evidence(seen_as, number + line, match.begin), match.message)
            for first, found in hits:
                row = bisect(breaks, first)
                if row == len(breaks) or breaks[row] > first + LONGEST:
                    continue
                for report in found.reports if self._reports else ():
                    seen = report.match(folded, lower, first)
                    line = bisect(breaks, seen.end() - 1) if seen else 0
                    if seen and row < line >= old:
                        shows = self._joined_evidence(seen_as, number + line, first)
                        add_code(self._codes, report, seen, shows, self._start("nvidia.ko").starting)
        self._tail, self._shown_tail = (text[-_TAIL:], shown[-_TAIL:]) if text.endswith("\n") else ("", "")

    def _over_breaks(self, hits: Iterable[tuple[int, Found]], breaks: Sequence[int]) -> Iterator[tuple[int, Found]]:
        """Texts that go over a break, and those whose pattern may; of faults that no whole line shows."""
        for first, found in hits:
            over = bisect(breaks, first) < bisect(breaks, first + len(found.text) - 1)
            if new := [m for m in found.messages if m.fault not in self._seen and (over or m.pattern)]:
                yield first, Found(found.text, new)

    @property
    def _reports(self) -> bool:
        return self.part.programs is None or "nvidia.ko" in self.part.programs

    def _matches(self, text: str, hits: Iterable[tuple[int, Found]]) -> Iterator[_Match]:
        """The messages in a text; each is looked for once in a part of it, however often its own text is there."""
        tried: set[tuple[int, int]] = set()
        for first, found in hits:
            place = first // PART
            low, high = place * PART - PART // 2, (place + 1) * PART + PART // 2
            for message in found.messages:
                if (place, id(message)) in tried:
                    continue
                tried.add((place, id(message)))
                if self.part.programs is not None and message.program not in self.part.programs:
                    continue
                if span := message.span(text, first, max(0, low), min(len(text), high)):
                    yield _Match(message=message, begin=span[0], end=span[1])

    def _joined_evidence(self, text: str, number: int, first: int) -> Evidence:
        return Evidence(
            source=self.source, line=number, text=text[max(0, first - _SHOWN // 4) : first + _SHOWN].strip()
        )


def _is_log(text: str) -> bool:
    """Whether the lines are as a program wrote them: many, and nearly all of them begin with a time."""
    lines = text.count("\n")
    return lines > _MANY and len(_STAMP.findall(text)) > lines * 9 // 10


def _aligned(text: str, shown: Sequence[str]) -> str:
    """Lines as they were, where each letter is at its place in the text; the text's own elsewhere."""
    pairs = zip(text.split("\n"), shown, strict=True)
    return "\n".join(old if len(old) == len(line) else line for line, old in pairs)


def _longest(matches: Iterable[_Match]) -> list[_Match]:
    """Of messages of different faults that overlap, the longer ones; general ones where there are no others."""
    known = list(matches)
    special = [match for match in known if not match.message.general]
    ordered = sorted(special or known, key=lambda match: match.begin)
    lost: set[int] = set()
    for place, one in enumerate(ordered):
        for other_place in range(place + 1, len(ordered)):
            other = ordered[other_place]
            if other.begin >= one.end:
                break
            longer = len(one.message.text) - len(other.message.text)
            if one.message.fault != other.message.fault and longer:
                lost.add(other_place if longer > 0 else place)
    return [match for place, match in enumerate(ordered) if place not in lost]


def scan(faults: Faults, source: str, chunks: Iterable[str], part: Part = ANYONE) -> Scan:
    """A log, in chunks of whole lines → what is in it."""
    result = Scan(faults=faults, source=source, part=part)
    for chunk in chunks:
        result.feed(chunk)
    return result
