"""systemd units as they start a program: what its words are, in which file each stands, and how they are changed.

A unit is the file, its drop-ins, and the environment files they name; `$NAME` in ExecStart stands for the words of a
variable, wherever that is set.  systemd.service(5), systemd.exec(5), systemd.unit(5).
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpunode.core.content import decode
from gpunode.core.edits.refusal import Refusal
from gpunode.core.facts.flags import Word, WordChange, apply_words, words_in
from gpunode.core.late import dataclass, regex, replace

# where units stand, the place that counts first; /run, what is made again at every boot, is nobody's to edit
FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_VARIABLE = regex(r"\$(?:\{(\w+)\}|(\w+))\Z")
_SETTING = regex(r"^[ \t]*(?P<key>\w+)[ \t]*=[ \t]*", re.MULTILINE)
_ASSIGNMENT = regex(r"^[ \t]*(?:export[ \t]+)?(?P<name>\w+)=", re.MULTILINE)
_CONTAINERS = ("docker", "podman", "nerdctl", "ctr")


@dataclass(frozen=True)
class Segment:
    """Some of a program's words in one place: the file, the span of text, and the words with their places in it."""

    path: str
    start: int
    end: int
    words: tuple[Word, ...]
    variable: str = ""  # "" for ExecStart itself


@dataclass(frozen=True, kw_only=True)
class UnitProgram:
    """What a unit starts: all words in order, each with the segment and its number there."""

    segments: tuple[Segment, ...]
    order: tuple[tuple[int, int], ...]  # of all words: (segment, word)
    environment_files: tuple[str, ...] = ()  # that the unit names, there or not
    variables: tuple[str, ...] = ()  # that ExecStart takes words from

    @property
    def words(self) -> list[str]:
        return [self.segments[segment].words[word].text for segment, word in self.order]


def drop_in_folders(unit: str) -> tuple[str, ...]:
    """Where drop-ins of a unit are looked for, the later over the earlier."""
    name = posixpath.basename(unit)
    tops = ("/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/system", "/etc/systemd/system")
    folders = [f"{top}/{name}.d" for top in tops]
    own = f"{posixpath.dirname(unit)}/{name}.d"
    return tuple(folders if own in folders else [own, *folders])


def unit_patterns(files: Mapping[str, bytes], unit: str) -> tuple[str, ...]:
    """The files that make up a unit: itself, its drop-ins, and the environment files that those name."""
    named: list[str] = []
    for path in _parts(files, unit):
        named += _environment_files(decode(path, files[path]))
    return (unit, *(f"{folder}/*.conf" for folder in drop_in_folders(unit)), *dict.fromkeys(named))


def program_of(files: Mapping[str, bytes], unit: str, name: str) -> UnitProgram:
    """What the unit starts.  Refusal where that is no plain command line of the program `name`."""
    texts = {path: decode(path, data) for path, data in files.items()}
    start: tuple[str, int, int] | None = None
    variables: dict[str, Segment] = {}
    environment: list[str] = []
    for path in _parts(files, unit):
        environment += _environment_files(texts[path])
        for key, begin, end in _settings(texts[path]):
            if key == "ExecStart":
                start = (path, begin, end) if texts[path][begin:end].strip() else None
            elif key == "Environment":
                variables |= _assigned(path, texts[path], begin, end)
    for pattern in environment:  # they come behind every Environment=
        for path in sorted(fnmatch.filter(texts, pattern)):
            variables |= _file_variables(path, texts[path])
    if start is None:
        raise Refusal(f"{unit} has no ExecStart=", f"name the unit of {name}: --unit PATH")
    main = _inner(_segment(*start, texts[start[0]]), texts[start[0]], name)
    return _joined(main, variables, tuple(environment), unit, name)


def _joined(
    main: Segment, variables: Mapping[str, Segment], environment: tuple[str, ...], unit: str, name: str
) -> UnitProgram:
    segments, order, used = [main], list[tuple[int, int]](), list[str]()
    for number, word in enumerate(main.words):
        found = _VARIABLE.match(word.text)
        if not found:
            order.append((0, number))
            continue
        used.append(found[1] or found[2])
        if segment := variables.get(used[-1]):
            segments.append(segment)
            order += [(len(segments) - 1, at) for at in range(len(segment.words))]
    texts = [segments[segment].words[word].text for segment, word in order]
    plain = [text.lstrip("-@:+!") if at == 0 else text for at, text in enumerate(texts)]
    runner = posixpath.basename(plain[0]) if plain else ""
    if runner in _CONTAINERS:
        raise Refusal(
            f"{unit} runs {name} in a container of {runner}: its files are not the host's",
            "mount the file and give the flag by hand",
        )
    if not any(posixpath.basename(text) == name for text in plain):
        raise Refusal(f"{unit} does not start {name}", f"name the unit of {name}: --unit PATH")
    return UnitProgram(
        segments=tuple(segments),
        order=tuple(order),
        environment_files=tuple(dict.fromkeys(environment)),
        variables=tuple(used),
    )


def change_program(files: Mapping[str, bytes], program: UnitProgram, change: WordChange) -> dict[str, bytes]:
    """The files with a change of the program's words, each word where it stands."""
    after = dict(files)
    parts = change.apart(program.order)
    if change.more:
        number, word = _place(program, change)
        parts[number] = replace(parts.get(number, WordChange()), more=change.more, after=word)
    for number in sorted(parts, key=lambda at: program.segments[at].start, reverse=True):
        segment = program.segments[number]
        after[segment.path] = _applied(after[segment.path].decode(), segment, parts[number]).encode()
    return after


def append_word(files: Mapping[str, bytes], segment: Segment, word: str) -> dict[str, bytes]:
    """The files with one more word at the end of a segment, which may have none yet."""
    text, change = files[segment.path].decode(), WordChange(more=(word,), after=len(segment.words) - 1)
    return {**files, segment.path: _applied(text, segment, change).encode()}


def _place(program: UnitProgram, change: WordChange) -> tuple[int, int]:
    """Behind which word new ones come: not in a package's unit where it takes words from a file of /etc."""
    segment, word = program.order[max(change.after, 0)]
    if program.segments[segment].path.startswith(("/usr/lib/", "/lib/")):
        own = [at for at, one in enumerate(program.segments) if one.variable and one.path.startswith("/etc/")]
        if own:
            return own[-1], len(program.segments[own[-1]].words) - 1
    return segment, word


def _applied(text: str, segment: Segment, change: WordChange) -> str:
    if segment.words:
        return apply_words(text, segment.words, change, _quoted)
    return f"{text[: segment.start]}{' '.join(map(_quoted, change.more))}{text[segment.start :]}"


def _quoted(word: str) -> str:
    if re.search(r"[\s\"'\\$]", word):
        raise Refusal(f"the flag {word!r} needs quotes in a unit", "choose a value without blanks and quotes")
    return word


# ---------------------------------------------------------------- reading


def _parts(files: Mapping[str, bytes], unit: str) -> list[str]:
    """The unit and its drop-ins."""
    return [path for path in (unit, *in_order(files, drop_in_folders(unit))) if path in files]


def in_order(files: Iterable[str], folders: Iterable[str]) -> list[str]:
    """The *.conf of some folders as systemd's programs read them: by name, of one name that of the last folder."""
    conf = [path for path in files if path.endswith(".conf")]
    by_name = {posixpath.basename(p): p for folder in folders for p in conf if posixpath.dirname(p) == folder}
    return [by_name[name] for name in sorted(by_name)]


def _settings(text: str) -> Iterator[tuple[str, int, int]]:
    """KEY and the span of its value, over lines that a backslash continues; comments and other sections too."""
    at = 0
    while found := _SETTING.search(text, at):
        end = _line_end(text, found.end())
        yield found["key"], found.end(), end
        at = end


def _line_end(text: str, at: int) -> int:
    """The end of a line that backslashes continue; a comment in between does not end it."""
    while True:
        end = text.find("\n", at)
        if end < 0:
            return len(text)
        line = text[at:end].rstrip("\r")
        following = text[end + 1 :].lstrip(" \t")
        if not line.endswith("\\") and not (line.lstrip().startswith(("#", ";")) and following):
            return end
        at = end + 1


def _segment(path: str, start: int, end: int, text: str, variable: str = "") -> Segment:
    return Segment(path, start, end, tuple(words_in(text, start, end)), variable)


def _inner(segment: Segment, text: str, name: str) -> Segment:
    """Of `sh -c "exec kube-scheduler …"` the words inside the quotes."""
    for word in segment.words:
        if name in word.text and re.search(r"\s", word.text) and text[word.start] in "\"'":
            words = words_in(text, word.start + 1, word.end - 1, sh=True)
            return Segment(segment.path, word.start + 1, word.end - 1, tuple(words))
    return segment


def _assigned(path: str, text: str, start: int, end: int) -> dict[str, Segment]:
    """`Environment=NAME=word "NAME=word word"`: the words of each variable."""
    found = {}
    for word in words_in(text, start, end):
        name, equals, _ = word.text.partition("=")
        if not equals:
            continue
        first = text.index("=", word.start) + 1
        last = word.end
        if text[word.start] in "\"'":
            last -= 1
        elif text[first : first + 1] in ("'", '"') and last - first >= 2:
            first, last = first + 1, last - 1
        found[name] = _segment(path, first, last, text, name)
    return found


def _file_variables(path: str, text: str) -> dict[str, Segment]:
    """The variables of an environment file: `NAME=value`, quotes around it or not, over several lines if escaped."""
    found: dict[str, Segment] = {}
    at = 0
    while match := _ASSIGNMENT.search(text, at):
        quote = next((mark for mark in "\"'" if text.startswith(mark, match.end())), "")
        start = match.end() + len(quote)
        end = _closing(text, start, quote) if quote else _line_end(text, start)
        found[match["name"]] = _segment(path, start, end, text, match["name"])
        at = end + len(quote)
    return found


def _closing(text: str, at: int, mark: str) -> int:
    while at < len(text) and text[at] != mark:
        at += 2 if text[at] == "\\" and mark == '"' else 1
    return min(at, len(text))


def _environment_files(text: str) -> Sequence[str]:
    values = (text[start:end].strip() for key, start, end in _settings(text) if key == "EnvironmentFile")
    return [value.lstrip("-").strip("\"'") for value in values if value.strip("-\"' ")]
