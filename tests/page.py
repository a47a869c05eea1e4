"""Pages of the documentation, followed as a person would: files written, commands typed into a shell, answers read.

In a page, a block ```yaml title="NAME"``` is a file, and ```console``` holds commands behind `$ ` with what they print.
A comment `# exit code N` behind a command says how it ends, 0 where nothing says it.  Of what is shown each line has to
be printed, in this order; «…» stands for anything.  A question that ends in `[y/N]: y` is answered so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pexpect

_BLOCK = re.compile(r'^```(console|\w+ title="([^"]+)")\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"@@(\d+)@@ $")


@dataclass(frozen=True)
class File:
    """A file that the reader is told to write."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command line, what the page shows of its output, and its exit status."""

    line: str
    shown: tuple[str, ...] = ()
    exit: int = 0


def section(page: str, title: str) -> str:
    """The part of a page below a heading, up to the next heading of the same or a higher level."""
    found: list[str] = []
    level, code = 0, False
    for line in page.splitlines(keepends=True):
        code ^= line.startswith("```")
        hashes, _, words = line.rstrip().partition(" ")
        heading = not code and bool(words) and set(hashes) == {"#"}
        if heading and level and len(hashes) <= level:
            break
        if level:
            found.append(line)
        elif heading and words == title:
            level = len(hashes)
    assert level, f"no heading {title!r}"
    return "".join(found)


def steps(page: str) -> list[File | Command]:
    """What a page tells the reader to do, in its order."""
    found: list[File | Command] = []
    for kind, name, body in _BLOCK.findall(page):
        found += _commands(body) if kind == "console" else [File(name, body)]
    return found


def _commands(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        first, *shown = part.rstrip("\n").replace("\\\n", "").split("\n")
        line, _, remark = first.partition("   # ")
        code = re.search(r"exit code (\d+)", remark)
        yield Command(line.strip(), tuple(shown), int(code[1]) if code else 0)


def missing(shown: tuple[str, ...], printed: str) -> str | None:
    """The first shown line that was not printed after the ones before it; None when all were."""
    lines = iter(printed.splitlines())
    for wanted in shown:
        pattern = ".*".join(re.escape(" ".join(part.split())) for part in wanted.split("…"))
        if not any(re.search(pattern, " ".join(line.split())) for line in lines):
            return wanted
    return None


class Reader:
    """Somebody at a terminal in `folder`, who does what a page says.

    `instead`: words that mean the reader's own machine → what stands for them here.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], *, instead: Mapping[str, str] = {}, timeout: float = 400
    ) -> None:
        self.folder, self.instead = folder, instead
        quiet = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "250", "LINES": "50", "LC_ALL": "C.UTF-8"}
        quiet |= {"PS1": "@@$?@@ ", "PS2": "", "VIRTUAL_ENV_DISABLE_PROMPT": "1"}
        self.shell = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile"],
            cwd=str(folder),
            env={**environment, **quiet},
            encoding="utf-8",
            dimensions=(50, 250),
            echo=False,
            timeout=timeout,
        )
        self.shell.expect(_MARK)

    def follow(self, page: str) -> int:
        """Do all of a page; how many commands that were.  AssertionError tells of the first that did otherwise."""
        count = 0
        for step in steps(page):
            if isinstance(step, File):
                (self.folder / step.name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / step.name).write_text(step.text, encoding="utf-8")
            else:
                self.do(step)
                count += 1
        return count

    def do(self, command: Command) -> str:
        """Type a command; what it printed."""
        line = command.line
        for words, others in self.instead.items():
            line = line.replace(words, others)
        self.shell.sendline(line)
        printed = ""
        while self.shell.expect([_MARK, r"\[y/N\]: $"]):
            printed += self.shell.before + self.shell.after + "y\n"
            assert "[y/N]: y" in "".join(command.shown), f"{command.line}\nasks what the page does not show:\n{printed}"
            self.shell.sendline("y")
        printed = (printed + self.shell.before).replace("\r", "")
        assert int(self.shell.match[1]) == command.exit, f"{command}\nended with {self.shell.match[1]}:\n{printed}"
        lost = missing(command.shown, printed)
        assert lost is None, f"{command.line}\ndid not print «{lost}»:\n{printed}"
        return printed

    def close(self) -> None:
        self.shell.close(force=True)
