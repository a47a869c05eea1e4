"""Flags of programs in Go: read from words, and edited in them or in the text that holds them.

`words_in` splits a text as a shell and systemd do and says where each word is; `flags_in` reads flags as Go's flag
libraries do; `change_flags` says which words go, change and come, and `apply_words` does that to a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from gpunode.core.late import dataclass, field, regex, replace

# pflag takes the word behind a flag as its value, unless the flag is a switch: those of kube-scheduler and kubelet
_SWITCHES = frozenset(
    "leader-elect profiling contention-profiling use-legacy-policy-config logtostderr alsologtostderr one-output help "
    "version permit-address-sharing permit-port-sharing authentication-skip-lookup skip-headers skip-log-headers "
    "add-dir-header fail-swap-on register-node rotate-certificates rotate-server-certificates anonymous-auth "
    "authentication-token-webhook allow-privileged cgroups-per-qos cpu-cfs-quota enable-server "
    "enable-debugging-handlers protect-kernel-defaults serialize-image-pulls make-iptables-util-chains "
    "enable-controller-attach-detach runonce kernel-memcg-notification seccomp-default".split()
)
K = TypeVar("K")
_OPERATORS = regex(r"\d*[<>|;&]")


@dataclass(frozen=True)
class Word:
    """A word of a text: what it says without quotes, and where it stands, quotes included."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Flag:
    """A flag: its name, its value (None of a switch without one), its first and last word."""

    name: str
    value: str | None
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class WordChange:
    """What becomes of words: those that go, those that become another, and those that come behind the word `after`."""

    gone: frozenset[int] = frozenset()
    rewritten: Mapping[int, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    after: int = -1

    @property
    def nothing(self) -> bool:
        return not self.gone and not self.rewritten and not self.more

    def apart(self, places: Sequence[tuple[K, int]]) -> dict[K, WordChange]:
        """What goes and changes in each text that words stand in: `places` has of each word its text and number."""
        parts: dict[K, WordChange] = {}
        for at, (text, number) in enumerate(places):
            part = parts.get(text, WordChange())
            if at in self.gone:
                parts[text] = replace(part, gone=part.gone | {number})
            elif at in self.rewritten:
                parts[text] = replace(part, rewritten={**part.rewritten, number: self.rewritten[at]})
        return parts


def words_in(text: str, start: int = 0, end: int | None = None, *, sh: bool = False) -> list[Word]:
    """The words of a span: split at blanks, line ends and escaped line ends; quotes hold them together.

    For `sh` it ends at the first operator (`|`, `>`, `;`, `&`) outside of quotes; systemd knows none.
    """
    end = len(text) if end is None else end
    words, at = [], start
    while at < end:
        if text[at].isspace() or (text[at] == "\\" and text[at + 1 : at + 2] in ("\n", "\r")):
            at += 1
            continue
        if sh and _OPERATORS.match(text, at, end):
            break
        stated, stop = _word(text, at, end, "|;&<>" if sh else "")
        words.append(Word(stated, at, stop))
        at = stop
    return words


def _word(text: str, at: int, end: int, ends: str) -> tuple[str, int]:
    stated, quote = "", ""
    while at < end:
        char = text[at]
        if char == "\\" and quote != "'" and at + 1 < end:
            if text[at + 1] in "\r\n":
                if not quote:
                    break
                at += 2
                continue
            stated += text[at + 1]
            at += 2
            continue
        if not quote and (char.isspace() or char in ends):
            break
        if char in "\"'" and quote in ("", char):
            quote = "" if quote else char
        else:
            stated += char
        at += 1
    return stated, at


def flags_in(words: Sequence[str], names: Collection[str] | None = None) -> list[Flag]:
    """The flags among words, in order; `--name=value`, `--name value` and switches; underscores count as dashes.

    Without `names` they are a Kubernetes component's, and called without the dashes in front.  Of a program whose
    switches are not known the flags `names` alone are read (`--config`, `-c`); each of them has a value.
    """
    found: list[Flag] = []
    at = 0
    while at < len(words) and words[at] != "--":
        given, equals, value = words[at].partition("=")
        first, name = at, given if names is not None else given[2:].replace("_", "-")
        if given.startswith("--") if names is None else given in names:
            if not equals and name not in _SWITCHES and at + 1 < len(words):
                at += 1
            found.append(Flag(name, words[at] if at > first else value if equals else None, first, at))
        at += 1
    return found


def flag_values(words: Sequence[str], *names: str) -> list[str]:
    """The values of a flag that has these names, in order.

    >>> flag_values(["--config=/a", "-c", "/b", "--debug"], "--config", "-c")
    ['/a', '/b']
    """
    return [flag.value or "" for flag in flags_in(words, names)]


def flag_value(words: Sequence[str], *names: str) -> str:
    """The value that counts, which is the last one; "" when the flag is not given."""
    return next(reversed(flag_values(words, *names)), "")


def last_value(flags: Sequence[Flag], name: str) -> str | None:
    """The value that counts, of the last flag of that name; "true" for a switch; None where it is not given."""
    found = [flag for flag in flags if flag.name == name]
    return None if not found else found[-1].value if found[-1].value is not None else "true"


def change_flags(words: Sequence[str], *, drop: Collection[str] = (), want: Mapping[str, str] = {}) -> WordChange:
    """What to do to words so that the flags `drop` are gone and those of `want` have their values.

    A flag that is there keeps its place and form (`--config=FILE` or `--config FILE`), of one that stands several times
    the last counts; a new one comes behind the last flag, else behind the program.
    """
    flags = flags_in(words)
    gone = {at for flag in flags if flag.name in drop for at in range(flag.first, flag.last + 1)}
    changed: dict[int, str] = {}
    more: list[str] = []
    for name, value in want.items():
        same = [flag for flag in flags if flag.name == name]
        if not same:
            more.append(f"--{name}={value}")
        elif same[-1].value != value:
            flag = same[-1]
            head, equals, _ = words[flag.last].partition("=")
            changed[flag.last] = f"{head}={value}" if flag.first == flag.last and equals else value
    after = max((flag.last for flag in flags if flag.last not in gone), default=_program(words))
    return WordChange(gone=frozenset(gone), rewritten=changed, more=tuple(more), after=after)


def _program(words: Sequence[str]) -> int:
    named = (at for at, word in enumerate(words) if re.search(r"(\A|/)(kube-scheduler|kubelet)\Z", word))
    return next(named, 0 if words else -1)


def quoted(word: str) -> str:
    """A word as a shell and systemd take it."""
    return word if re.fullmatch(r"[\w@%+=:,./${}<>!~-]*", word) and not re.search("[<>]", word) else f'"{word}"'


def apply_words(text: str, words: Sequence[Word], change: WordChange, quote: Callable[[str], str] = quoted) -> str:
    """The text with a change of its words: a new word goes on a line of its own where the others do."""
    edits = [(start, stop, "") for start, stop in _runs(words, change.gone)]
    for at, value in change.rewritten.items():
        word = words[at]
        mark = text[word.start]
        same = mark in "\"'" and text[word.end - 1] == mark and mark not in value
        edits.append((word.start, word.end, f"{mark}{value}{mark}" if same else quote(value)))
    if change.more and change.after >= 0:
        at, gap = words[change.after].end, _gap(text, words, change.after)
        edits.append((at, at, "".join(gap + quote(word) for word in change.more)))
    elif change.more:
        at = words[0].start if words else len(text)
        rest = " " * (len(change.gone) < len(words))
        edits.append((at, at, " ".join(map(quote, change.more)) + rest))
    for start, stop, stated in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        text = text[:start] + stated + text[stop:]
    return text


def _runs(words: Sequence[Word], gone: Collection[int]) -> Iterator[tuple[int, int]]:
    """The spans of words that go, each with the gap before it; at the beginning with the one behind."""
    for first in sorted(at for at in gone if at - 1 not in gone):
        last = next(at for at in range(first, len(words)) if at + 1 not in gone)
        if first:
            yield words[first - 1].end, words[last].end
        else:
            yield words[0].start, words[last + 1].start if last + 1 < len(words) else words[last].end


def _gap(text: str, words: Sequence[Word], at: int) -> str:
    """What stands between this word and its neighbour: a blank, or a line's end with its backslash."""
    if at and "\n" in (gap := text[words[at - 1].end : words[at].start]):
        return gap
    if at + 1 < len(words) and "\n" in (gap := text[words[at].end : words[at + 1].start]):
        return gap
    return " "
