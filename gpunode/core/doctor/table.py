"""Faults, the messages that show them, and codes of drivers, from knowledge/faults/, xids.toml and sxids.toml."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Literal

from gpunode.core.doctor.checks import Checks
from gpunode.core.doctor.codes import CodeReport
from gpunode.core.doctor.parts import Parts
from gpunode.core.doctor.text import plain, small
from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, field, regex
from gpunode.core.numbers import version_tuple

# a fault of a lower layer brings about faults of higher ones
LAYERS = ("package", "kernel", "driver", "fabric", "cuda", "container", "kubernetes")
Confidence = Literal["high", "medium", "low"]
_WORDS = regex(r"[\w :/-]+")  # of a pattern
_TELLING = 16  # letters that no other program prints by chance


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a program prints where a fault is."""

    fault: str
    program: str
    text: str  # in the line; lower case, every quotation mark is '
    pattern: str = ""  # matches the line, where the text is common
    line: str  # as the program prints it
    source: str
    needs: tuple[str, ...] = ()  # texts of which one must be somewhere in the same log
    general: bool = False  # counts where nothing else of its line is known
    of_gpu: bool = False  # the line names a slot that the kernel says is one of NVIDIA's
    also: tuple[str, ...] = ()  # other faults that the line shows
    below: str = ""  # a program and the first of its versions that prints this no more: docker 23
    starting: bool = False  # its program can print it before the line that tells of the same start
    until: str = ""  # the program whose start ends it, where that is another one

    def outdated(self, versions: Mapping[str, str]) -> bool:
        """Whether the program, in the version that is known of it, does not print this any more."""
        program, _, version = self.below.partition(" ")
        return bool(version) and version_tuple(versions.get(program, "0")) >= version_tuple(version)

    @property
    def plain(self) -> bool:
        """Whether the line alone shows the fault: no beginning of many messages, no words that others print, too."""
        words = max(map(len, [self.text, *_WORDS.findall(self.pattern)]))
        return not (self.needs or self.general) and words >= _TELLING

    def span(self, line: str, first: int, start: int, end: int) -> tuple[int, int] | None:
        """Where the message is, given where its text begins and the part of the line that may be read."""
        last = first + len(self.text)
        if not self.pattern:
            return first, last
        match = compiled(self.pattern).search(line, start, end)
        return (min(first, match.start()), max(last, match.end())) if match else None


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Action:
    """A kind of fix: what it disturbs, and the check that shows that it worked."""

    id: str
    disturbs: str
    check: str


@dataclass(frozen=True, kw_only=True)
class When:
    """What the fix is where a program is of these versions."""

    of: str  # driver, toolkit, docker, kubernetes
    since: str = ""
    below: str = ""
    fix: str

    def holds(self, versions: Mapping[str, str]) -> bool:
        if not (version := version_tuple(versions.get(self.of, ""))):
            return False
        return version >= version_tuple(self.since) and not (self.below and version >= version_tuple(self.below))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong on GPU nodes."""

    id: str
    layer: str
    severity: Literal["error", "warning"]
    cause: str
    fix: str
    action: Action  # what kind of thing the fix is
    command: str = ""  # what of gpunode fixes it or says more
    causes: tuple[str, ...] = ()  # ids of its consequences
    refuted_by: str = ""  # a fact of the same machine by which it is not, or not any more
    then: str = ""  # the fault that its messages show where that fact is known
    unit: str = ""  # systemd's unit that does not start by it: where that is active, what a log says of it is over
    when: tuple[When, ...] = ()
    source: str


@dataclass(frozen=True, kw_only=True)
class XidRow:
    """A code of the driver of GPUs (Xid) or of NVSwitches (SXid), and what NVIDIA says to do about it."""

    code: int
    mnemonic: str = ""  # of an Xid
    severity: str = ""  # of an SXid: corrected, non-fatal, fatal, always fatal
    description: str
    immediate: str = ""
    investigatory: str = ""
    plain: str = ""
    application: bool = False  # NVIDIA's catalogue: an error of the program, the GPU is sound
    cleanup: bool = False  # says nothing by itself
    ignored: bool = False  # by the device plugin: the GPU stays allocatable
    fault: str = ""  # that it shows by itself

    @property
    def sound(self) -> bool:
        """Whether the GPU needs nothing: the program is to blame, or the code only tells of something."""
        return self.application or self.immediate == "IGNORE"


@dataclass(frozen=True, kw_only=True)
class Codes:
    """NVIDIA's catalogues of Xids and SXids."""

    xids: Mapping[int, XidRow]
    sxids: Mapping[int, XidRow]
    xid_source: str
    sxid_source: str


@dataclass(frozen=True)
class Found:
    """What the finder has for a text: messages that have it, reports of codes that begin with it, and what it ends."""

    text: str
    messages: list[Message] = field(default_factory=list)
    reports: list[CodeReport] = field(default_factory=list)
    ends: list[tuple[str, str]] = field(default_factory=list)  # programs that start, the place of the line in that
    needs: list[str] = field(default_factory=list)  # the text, where some message needs it in its log


@dataclass(frozen=True)
class Faults:
    """The messages, and what they mean: faults and codes are read when something was found."""

    messages: tuple[Message, ...]
    read_faults: Callable[[], Mapping[str, Fault]]
    read_codes: Callable[[], Codes]
    read_checks: Callable[[], Checks] = Checks
    parts: Parts = Parts({"marks": [], "headings": ["(?!)"], "earlier": "(?!)", "programs": {}, "part": [], "over": []})
    reports: tuple[CodeReport, ...] = ()

    @cached_property
    def faults(self) -> Mapping[str, Fault]:
        return self.read_faults()

    @cached_property
    def checks(self) -> Checks:
        return self.read_checks()

    @cached_property
    def codes(self) -> Codes:
        return self.read_codes()

    @cached_property
    def finder(self) -> Any:
        """ahocorasick.Automaton over lower-case text; iter(text) → (place of the last letter, Found)."""
        by_text: dict[str, Found] = {}
        for message in self.messages:
            by_text.setdefault(message.text, Found(message.text)).messages.append(message)
        for report in self.reports:
            by_text.setdefault(report.text, Found(report.text)).reports.append(report)
        authors = [word for cause in self.checks.symptoms.get("", ()) for word in cause.words]
        for text in {*authors, *(text for one in self.messages for text in one.needs)}:
            by_text.setdefault(text, Found(text)).needs.append(text)
        for text, programs, place in self.parts.ends():
            by_text.setdefault(text, Found(text)).ends.extend((program, place) for program in programs)
        return _automaton(by_text)


def _automaton(words: Mapping[str, object]) -> Any:
    """All words in one pass over a text; where that library has no build for this Python, one search for each word."""
    try:
        import ahocorasick
    except ImportError:
        return _Searches(words)
    finder = ahocorasick.Automaton()
    for word, value in (words or {"\0": ""}).items():  # one without words cannot be asked
        finder.add_word(word, value)
    finder.make_automaton()
    return finder


@dataclass(frozen=True)
class _Searches:
    """What ahocorasick.Automaton does, by str.find: the same hits in the same order, but slower."""

    words: Mapping[str, object]

    def iter(self, text: str) -> Iterator[tuple[int, object]]:
        hits = []
        for word, value in self.words.items():
            at = text.find(word)
            while at >= 0:
                hits.append((at + len(word) - 1, at, value))
                at = text.find(word, at + 1)
        hits.sort(key=lambda hit: hit[:2])  # of those that end at one place the longest first
        return ((last, value) for last, _, value in hits)


def parse_messages(files: Mapping[str, Mapping[str, Any]]) -> tuple[Message, ...]:
    """The parsed files of messages by program.  Raises InputError for a message that cannot be used."""
    return tuple(
        _message(one, program, source["from"])
        for program, data in files.items()
        for source in data["source"]
        for row in source["message"]
        for one in _each(row, data.get("codes", {}))
    )


def _each(row: Mapping[str, Any], codes: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """A row, or where it has no fault one for each fault that has numbers, which are at {code} (messages/cuda.toml)."""
    if "fault" in row or not codes:
        yield row
        return
    for fault, numbers in codes.items():
        line = row["line"].replace("{code}", numbers.rpartition("|")[2])
        yield {**row, "fault": fault, "pattern": row["pattern"].replace("{code}", numbers), "line": line}


def _message(row: Mapping[str, Any], program: str, source: str) -> Message:
    try:
        lists = {key: tuple(row[key]) for key in ("needs", "also") if key in row}
        message = Message(program=program, source=source, **{**row, **lists})
    except TypeError as error:
        raise InputError(f"faults/messages/{program}.toml: {row}: {error}", expected="fault, text and line") from error
    if message.text != small(plain(message.text)) or message.text not in small(plain(message.line)):
        raise InputError(
            f"faults/messages/{program}.toml: {message.text!r}", expected="a part of its line, lower case, with '"
        )
    return message


def parse_faults(files: Mapping[str, Mapping[str, Any]], actions: Mapping[str, Any]) -> dict[str, Fault]:
    """The parsed files of faults by layer, and actions.toml.  Raises InputError for a row that cannot be used."""
    kinds = {row["id"]: Action(**row) for row in actions["action"]}
    rows = {
        row["id"]: _fault({"action": actions["default"][layer], **row}, layer, kinds)
        for layer, data in files.items()
        for row in data["fault"]
    }
    for fault in rows.values():
        unknown = {*fault.causes, *filter(None, [fault.then])} - rows.keys()
        if unknown:
            raise InputError(f"faults: {fault.id} names {', '.join(sorted(unknown))}", expected="known ids")
    return rows


def _fault(row: Mapping[str, Any], layer: str, actions: Mapping[str, Action]) -> Fault:
    try:
        action, causes = actions[row["action"]], tuple(row.get("causes", ()))
        when = tuple(When(**one) for one in row.get("when", ()))
        return Fault(layer=layer, **{**row, "causes": causes, "action": action, "when": when})
    except (KeyError, TypeError) as error:
        raise InputError(f"faults/{layer}.toml: {row.get('id', row)!r}: {error}", expected="a complete row") from error


def parse_codes(xids: Mapping[str, Any], sxids: Mapping[str, Any]) -> Codes:
    return Codes(
        xids={row["code"]: XidRow(**row) for row in xids["xid"]},
        sxids={row["code"]: XidRow(**{**sxids["class"][row["severity"]], **row}) for row in sxids["sxid"]},
        xid_source=str(xids["source"]),
        sxid_source=str(sxids["source"]),
    )
