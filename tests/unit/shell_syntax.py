"""A parser of POSIX shell, as far as programs for nodes are written in it: what a static check has to see of them.

`parse` gives a tree of commands with the variables that their words read and set.  Backquotes are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_META = frozenset(" \t\n;&|<>()")
_SPECIAL = frozenset("@*#?$!-0123456789")


class SyntaxProblem(ValueError):
    """The text is no shell program of the kind that this parser knows."""


@dataclass(frozen=True)
class Read:
    """`$name`; `sets` where `${name:=word}` may set it as well."""

    name: str
    sets: bool = False


@dataclass(frozen=True)
class Word:
    """One word; `text` is what it says without quotes, with NUL in place of each expansion."""

    text: str
    parts: tuple[Read | Node, ...] = ()  # what is expanded in it; a Node is a command substitution

    @property
    def literal(self) -> str | None:
        return self.text if "\0" not in self.text else None

    @property
    def all_arguments(self) -> bool:
        return self.text == "\0" and self.parts == (Read("@"),)


@dataclass(frozen=True)
class Simple:
    words: tuple[Word, ...]
    assigns: tuple[tuple[str, Word], ...] = ()
    redirects: Sequence[Word] = ()  # bodies of here-documents among them
    line: int = 0


@dataclass(frozen=True)
class Shell:
    """A list in a shell of its own: ( … ), $( … ), one command of a pipeline, or one in the background."""

    body: Node


@dataclass(frozen=True)
class Group:
    """Commands in order.  Of a `list` all run, of the others the first one does: of `and-or` the rest may, of `if` and
    `case` conditions and branches, one of which runs for sure where it is `whole` (else, the pattern *)."""

    items: tuple[Node, ...]
    kind: Literal["list", "and-or", "if", "case", "loop"] = "list"
    whole: bool = False


@dataclass(frozen=True)
class For:
    name: str
    words: tuple[Word, ...]
    body: Node


@dataclass(frozen=True)
class Function:
    name: str
    body: Node
    line: int
    about: tuple[str, ...] = ()  # the comment above it


Node = Simple | Shell | Group | For | Function


def parse(text: str) -> Group:
    """Raises SyntaxProblem."""
    return _Parser(text).program()


@dataclass
class _Parser:
    text: str
    at: int = 0
    waiting: list[tuple[str, bool, list[Word]]] = field(default_factory=list)  # here-documents of this line
    comments: dict[int, str] = field(default_factory=dict)  # by line

    def program(self) -> Group:
        body = self.list(())
        if self.at < len(self.text):
            raise self.problem(f"unexpected {self.text[self.at : self.at + 20]!r}")
        return body

    def problem(self, what: str) -> SyntaxProblem:
        return SyntaxProblem(f"line {self.line()}: {what}")

    def line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    # ------------------------------------------------------------ between words

    def blanks(self) -> None:
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] in " \t":
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                self.comments[self.line()] = self.text[self.at + 1 : end].strip()
                self.at = end
            else:
                return

    def newlines(self) -> None:
        self.blanks()
        while self.text.startswith("\n", self.at):
            self.at += 1
            self.here_documents()
            self.blanks()

    def here_documents(self) -> None:
        waiting, self.waiting = self.waiting, []
        for end, quoted, words in waiting:
            start = self.at
            while True:
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                if line.strip("\t") == end or self.at >= len(self.text):
                    body = self.text[start : self.at]
                    self.at = stop + 1
                    break
                self.at = stop + 1
            words.append(Word(body) if quoted else _Parser(body).whole())

    def ahead(self, text: str) -> bool:
        self.blanks()
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if not self.ahead(text):
            return False
        self.at += len(text)
        return True

    def key(self) -> str:
        """The unquoted word that comes, where a reserved one can stand."""
        self.blanks()
        found = re.compile(r"[A-Za-z_]+|[{}!]").match(self.text, self.at)
        if not found or (found.end() < len(self.text) and self.text[found.end()] not in _META):
            return ""
        return found.group()

    def expect(self, word: str) -> None:
        self.newlines()
        if self.key() != word:
            raise self.problem(f"{word!r} expected, not {self.text[self.at : self.at + 20]!r}")
        self.at += len(word)

    # ------------------------------------------------------------ commands

    def list(self, ends: Sequence[str]) -> Group:
        items: list[Node] = []
        while True:
            self.newlines()
            if self.at >= len(self.text) or self.text[self.at] == ")" or self.ahead(";;") or self.key() in ends:
                return Group(tuple(items))
            item = self.and_or()
            self.blanks()
            if self.ahead("&") and not self.ahead("&&"):
                self.at += 1
                item = Shell(item)
            elif self.ahead(";") and not self.ahead(";;"):
                self.at += 1
            items.append(item)

    def and_or(self) -> Node:
        items = [self.pipeline()]
        while self.take("&&") or self.take("||"):
            self.newlines()
            items.append(self.pipeline())
        return items[0] if len(items) == 1 else Group(tuple(items), "and-or")

    def pipeline(self) -> Node:
        while self.key() == "!":
            self.at += 1
        items = [self.command()]
        while self.ahead("|") and not self.ahead("||"):
            self.at += 1
            self.newlines()
            items.append(self.command())
        return items[0] if len(items) == 1 else Group(tuple(Shell(item) for item in items))

    def command(self) -> Node:
        if self.take("("):
            return self.redirected(Shell(self.closed()))
        compound: dict[str, Callable[[], Node]] = {
            "{": self.braces,
            "if": self.if_,
            "while": self.loop,
            "until": self.loop,
            "for": self.for_,
            "case": self.case,
        }
        key = self.key()
        if key in compound:
            self.at += len(key)
            return self.redirected(compound[key]())
        return self.simple()

    def closed(self) -> Group:
        body = self.list(())
        if not self.take(")"):
            raise self.problem("')' expected")
        return body

    def braces(self) -> Node:
        body = self.list(("}",))
        self.expect("}")
        return body

    def if_(self) -> Node:
        items: list[Node] = []
        whole, key = False, "if"
        while key != "fi":
            whole = key == "else"
            if not whole:
                items.append(self.list(("then",)))
                self.expect("then")
            items.append(self.list(("elif", "else", "fi")))
            key = self.key()
            self.expect(key)
            if not key:
                raise self.problem("'fi' expected")
        return Group(tuple(items), "if", whole)

    def do(self) -> Node:
        self.newlines()
        self.take(";")
        self.expect("do")
        body = self.list(("done",))
        self.expect("done")
        return body

    def loop(self) -> Node:
        return Group((self.list(("do",)), self.do()), "loop")

    def for_(self) -> Node:
        name = self.word().text
        words: list[Word] = []
        self.newlines()
        if self.key() == "in":
            self.at += 2
            while (word := self.maybe_word()) is not None:
                words.append(word)
        return For(name, tuple(words), self.do())

    def case(self) -> Node:
        items: list[Node] = [Simple((Word("case"), self.word()))]
        whole = False
        self.expect("in")
        self.newlines()
        while self.key() != "esac":
            self.take("(")
            patterns = [self.word()]
            while self.take("|"):
                patterns.append(self.word())
            if not self.take(")"):
                raise self.problem("')' of a pattern expected")
            whole = whole or any(pattern.text == "*" for pattern in patterns)
            items += [Simple((Word("case"), *patterns)), self.list(("esac",))]
            self.take(";;")
            self.newlines()
        self.expect("esac")
        return Group(tuple(items), "case", whole)

    def redirected(self, body: Node) -> Node:
        words: list[Word] = []
        while self.redirect(words):
            pass
        return Group((body, Simple((), redirects=words))) if words else body

    def redirect(self, words: list[Word]) -> bool:
        """Adds to `words`; the body of a here-document when its line has ended."""
        self.blanks()
        found = re.compile(r"[0-9]?(<<-?|>>|[<>]&|<>|>\||[<>])").match(self.text, self.at)
        if not found:
            return False
        self.at = found.end()
        self.blanks()
        start = self.at
        word = self.word()
        if found.group(1).startswith("<<"):
            self.waiting.append((word.text, self.text[start] in "'\"\\", words))
        else:
            words.append(word)
        return True

    def simple(self) -> Node:
        line, words, assigns = self.line(), list[Word](), list[tuple[str, Word]]()
        redirects: list[Word] = []
        while True:
            self.blanks()
            if self.redirect(redirects):
                continue
            found = NAME.match(self.text, self.at)
            if found and not words and self.text.startswith("=", found.end()):
                self.at = found.end() + 1
                assigns.append((found.group(), self.maybe_word(glued=True) or Word("")))
                continue
            word = self.maybe_word()
            if word is None:
                break
            words.append(word)
            if len(words) == 1 and word.literal and self.ahead("("):
                return self.function(word.literal, line)
        if not words and not assigns and not redirects:
            raise self.problem(f"a command expected, not {self.text[self.at : self.at + 20]!r}")
        return Simple(tuple(words), tuple(assigns), redirects, line)

    def function(self, name: str, line: int) -> Function:
        self.take("(")
        if not self.take(")"):
            raise self.problem("'()' expected")
        about: list[str] = []
        while line - len(about) - 1 in self.comments:
            about.insert(0, self.comments[line - len(about) - 1])
        self.newlines()
        return Function(name, self.command(), line, tuple(about))

    # ------------------------------------------------------------ words

    def word(self) -> Word:
        word = self.maybe_word()
        if word is None:
            raise self.problem(f"a word expected, not {self.text[self.at : self.at + 20]!r}")
        return word

    def maybe_word(self, *, glued: bool = False) -> Word | None:
        if not glued:
            self.blanks()
        text: list[str] = []
        parts: list[Read | Node] = []
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in _META:
            self.piece(text, parts, quoted=False)
        return Word("".join(text), tuple(parts)) if self.at > start else None

    def piece(self, text: list[str], parts: list[Read | Node], *, quoted: bool) -> None:
        c = self.text[self.at]
        if c == "\\":
            text.append("" if self.text[self.at + 1 : self.at + 2] == "\n" else self.text[self.at + 1 : self.at + 2])
            self.at += 2
        elif c == "'" and not quoted:
            end = self.text.index("'", self.at + 1)
            text.append(self.text[self.at + 1 : end])
            self.at = end + 1
        elif c == '"' and not quoted:
            self.at += 1
            word = self.inside_quotes()
            text.append(word.text)
            parts += word.parts
        elif c == "$":
            self.expansion(text, parts)
        elif c == "`":
            raise self.problem("backquotes: write $(…)")
        else:
            text.append(c)
            self.at += 1

    def inside_quotes(self) -> Word:
        text: list[str] = []
        parts: list[Read | Node] = []
        while not self.text.startswith('"', self.at):
            if self.at >= len(self.text):
                raise self.problem("a quote is open")
            self.piece(text, parts, quoted=True)
        self.at += 1
        return Word("".join(text), tuple(parts))

    def whole(self) -> Word:
        text: list[str] = []
        parts: list[Read | Node] = []
        while self.at < len(self.text):
            self.piece(text, parts, quoted=True)
        return Word("".join(text), tuple(parts))

    def expansion(self, text: list[str], parts: list[Read | Node]) -> None:
        if self.text.startswith("$((", self.at):
            self.at += 3
            text.append("\0")
            self.arithmetic(parts)
        elif self.text.startswith("$(", self.at):
            self.at += 2
            text.append("\0")
            parts.append(Shell(self.closed()))
        elif self.text.startswith("${", self.at):
            self.at += 2
            text.append("\0")
            self.braced(parts)
        else:
            found = NAME.match(self.text, self.at + 1)
            name = found.group() if found else self.text[self.at + 1 : self.at + 2]
            self.at += 1
            if not found and name not in _SPECIAL:
                text.append("$")
                return
            self.at += len(name)
            text.append("\0")
            parts.append(Read(name))

    def braced(self, parts: list[Read | Node]) -> None:
        length = self.text.startswith("#", self.at) and not self.text.startswith("#}", self.at)
        self.at += length
        found = NAME.match(self.text, self.at)
        name = found.group() if found else self.text[self.at]
        self.at += len(name)
        parts.append(Read(name, sets=self.text.startswith((":=", "="), self.at)))
        while not self.text.startswith("}", self.at):
            if self.at >= len(self.text):
                raise self.problem("'}' expected")
            self.piece([], parts, quoted=False)
        self.at += 1

    def arithmetic(self, parts: list[Read | Node]) -> None:
        depth = 0
        while depth or not self.text.startswith("))", self.at):
            if self.at >= len(self.text):
                raise self.problem("'))' expected")
            number = re.compile(r"[0-9]\w*").match(self.text, self.at)
            found = NAME.match(self.text, self.at)
            if self.text[self.at] == "$":
                self.expansion([], parts)
            elif number:
                self.at = number.end()
            elif found:
                self.at = found.end()
                sets = re.compile(r"\s*([-+*/%&|^]|<<|>>)?=(?!=)").match(self.text, self.at)
                parts.append(Read(found.group(), sets=bool(sets)))
            else:
                depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
                self.at += 1
        self.at += 2


def words_of(node: Simple) -> Iterator[Word]:
    yield from (value for _, value in node.assigns)
    yield from node.words
    yield from node.redirects
