"""Probe text → sections: the outer grammar, see docs/probe.md."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.core.errors import InputError
from gpunode.core.grouped import grouped
from gpunode.core.late import dataclass, field
from gpunode.core.numbers import whole

FIRST = "#: gpunode-probe 1"
NOT_UNDERSTOOD = "not understood"
_END = "#: end"


@dataclass
class Probe:
    """A probe text cut into sections.  `notes` grows while the sections are read."""

    sections: dict[str, list[str]] = field(default_factory=dict)  # name → content lines without their "| "
    files: dict[str, list[str]] = field(default_factory=dict)  # path → content lines
    remarks: dict[str, list[str]] = field(default_factory=dict)  # "file PATH" or section name → remarks
    denied: list[str] = field(default_factory=list)  # those of them that root reads more of
    notes: list[str] = field(default_factory=list)
    _by_word: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # made once per section: values() is hot

    def lines(self, name: str) -> list[str]:
        """Content lines of a section, without empty ones."""
        return [line for line in self.sections.get(name, ()) if line.strip()]

    def pairs(self, name: str) -> Iterator[tuple[str, str]]:
        """Content lines of a section as (first word, rest)."""
        for line in self.sections.get(name, ()):
            key, _, rest = line.strip().partition(" ")
            if key:
                yield key, rest.strip()

    def values(self, name: str, key: str) -> list[str]:
        """The rests of all lines of a section that begin with the word `key`."""
        if name not in self._by_word:
            self._by_word[name] = grouped(self.pairs(name))
        return self._by_word[name].get(key, [])

    def value(self, name: str, key: str) -> str:
        """The rest of the last such line, "" when there is none."""
        return next(reversed(self.values(name, key)), "")

    def answer(self, name: str) -> tuple[list[str], str]:
        """Output lines of a command that fills a whole section, and how it failed ("" when it did not)."""
        lines = self.lines(name)
        if lines and lines[-1].startswith("exit: "):
            return lines[:-1], lines[-1].removeprefix("exit: ")
        return lines, ""

    def answered(self, name: str) -> bool:
        """Whether a section was asked and nothing kept it from saying all: no remark, no command that failed."""
        lines = self.sections.get(name)
        return lines is not None and name not in self.remarks and not any(line.startswith("exit: ") for line in lines)

    def unreadable(self, name: str, line: str) -> None:
        """Notes a content line that is not what the section promises."""
        self.notes.append(f"{name}: {NOT_UNDERSTOOD}: {line[:120]!r}")


def stated(text: str) -> str:
    """The value; "" where NVIDIA's driver has question marks in its place, of a GPU that it has not started.

    >>> stated("GPU-????????-????-????-????-????????????"), stated("??.??.??.??.??"), stated("96.00.5E.00.01")
    ('', '', '96.00.5E.00.01')
    """
    return "" if "??" in text else text


def digits(text: str) -> int | None:
    """The number that ASCII digits make, as many as real ones have; None for anything else."""
    return whole(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def split_probe(text: str) -> Probe:
    """Cut a probe text into its sections.

    Lines before the first `#: gpunode-probe` are skipped: banners that a login shell prints.
    Raises InputError when there is no such line, or no `#: end`.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    start = 0 if text.startswith("#: gpunode-probe ") else text.find("\n#: gpunode-probe ") + 1
    if not text.startswith("#: gpunode-probe ", start):
        raise InputError(
            f"not a probe: line 1 is {text.partition(chr(10))[0][:80]!r}",
            expected=f"a line {FIRST!r}",
            fix="pass a text that gpunode detect --save wrote, or that a node printed for the probe",
        )
    first, _, body = text[start:].partition("\n")
    if first.rstrip() != FIRST:
        raise InputError(
            f"probe of another format: line {text.count(chr(10), 0, start) + 1} is {first[:80]!r}",
            expected=repr(FIRST),
            fix="probe again with this version of gpunode",
        )
    chunks = ("\n" + body).split("\n#: ")
    names = [chunk.partition("\n")[0].strip() for chunk in chunks]
    if "end" not in names[1:]:
        raise InputError(
            f"the probe is cut off at line {len(text.splitlines())}, in section {names[-1][:80]!r}",
            expected=f"{_END!r} as the last line",
            fix="probe again; if it happens again, see what gpunode detect --save keeps of it last",
        )
    probe = Probe()
    for name, chunk in zip(names[1:], chunks[1:], strict=True):
        if name == "end":
            break
        _add(probe, name, chunk)
    return probe


def _add(probe: Probe, name: str, chunk: str) -> None:
    lines = chunk.split("\n")[1:]
    content = [line[2:] for line in lines if line[:2] == "| " or line == "|"]
    if name.startswith("file "):
        probe.files[name[5:]] = content
    else:
        probe.sections.setdefault(name, []).extend(content)
    for line in lines:
        mark, _, remark = line.partition(" ")
        if mark in ("!", "!!"):
            probe.remarks.setdefault(name, []).append(remark)
            probe.notes.append(f"{name}: {remark}")
            probe.denied += [name] if mark == "!!" else []
        elif line and line[:1] != "|":
            probe.unreadable(name, line)
