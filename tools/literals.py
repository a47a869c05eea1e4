"""Which messages of the doctor's knowledge are in the sources of the programs that print them.

    python -m tools.literals nvidia.ko=~/src/open-gpu-kernel-modules containerd=~/src/containerd

A message is found where its words are in the source, but for what a format (%s, %d, {}) puts in between.  What is not
found is printed: it may come from another release, another program or a library, or nobody prints it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from gpunode.core.doctor.text import plain, small
from gpunode.edge.doctor import load_faults

_SOURCES = {".c", ".h", ".cc", ".cpp", ".hpp", ".go", ".py", ".sh", ".in", ".yaml", ".yml", ".service", ".po", ""}
_LONGEST = 4 << 20  # bytes of a file
_PIECE = 7  # letters that say something
_JOINED = re.compile(r"""['"]\s*\+?\s*\\?\n\s*['"]""")  # a text in two halves
_FORMAT = re.compile(r"%[-+#0 ]*[\d*]*(?:\.[\d*]+)?(?:hh|h|ll|l|z|t|j)?[a-z]|\{[^{}\n]{0,30}\}|\$\{?\w+\}?|\\[nt]")
_ENOUGH = 0.75  # of the letters


def source_text(folder: Path) -> str:
    """All of a source's text as messages have it, with a mark where a format puts something."""
    return "\n".join(_texts(path for path in sorted(folder.rglob("*")) if path.suffix in _SOURCES))


def _texts(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _LONGEST:
            text = path.read_text(encoding="utf-8", errors="replace")
            yield _FORMAT.sub("\0", small(plain(_JOINED.sub("", text.replace('\\"', "'")))))


def found(message: str, source: str) -> bool:
    """Whether the source has the message, in pieces where it has values."""
    if message in source:
        return True
    covered, at = 0, 0
    while at < len(message):
        length = _longest(message, at, source)
        if length >= _PIECE:
            covered += length
        at += max(length, 1)
    return covered >= _ENOUGH * len(message)


def _longest(message: str, at: int, source: str) -> int:
    """How many letters from there are in the source in one piece."""
    low, high = 0, len(message) - at
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if message[at : at + middle] in source else (low, middle - 1)
    return low


@click.command()
@click.argument("places", metavar="PROGRAM=FOLDER...", nargs=-1, required=True)
def main(places: tuple[str, ...]) -> None:
    """Print the messages of PROGRAM that FOLDER, its unpacked source, does not have."""
    messages = load_faults().messages
    for program, folder in (place.split("=", 1) for place in places):
        source = source_text(Path(folder).expanduser())
        mine = [message for message in messages if message.program == program]
        absent = [message for message in mine if not found(message.text, source)]
        for message in absent:
            click.echo(f"{program}: {message.fault}: {message.text!r}")
        click.echo(f"{program}: {len(mine) - len(absent)} of {len(mine)} are in {folder}", err=True)


if __name__ == "__main__":
    sys.exit(main())
