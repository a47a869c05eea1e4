"""Terminal output of .ci/demo.sh → an SVG for the README: `picture.py OUTPUT SVG`.

The text is the demo's own, shortened: some lines of each command's output, and long lines are broken between words.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100
# Which lines of a command's output stay, so that the picture is read at a glance; a command not named here keeps all.
KEPT = {
    "lab": r"demo-1 ",
    "detect": r"GPUs|driver ",
    "plan": r"demo-1: driver |  [ \d]\d\. |        (installs|removes): nvidia-(open|driver)",
    "provision": r"demo-1: (\S+\] )?(Install the NVIDIA driver|\w+ the (container engines|nvidia runtime)|ok|nothing)",
    "verify": r"demo-1: ok|  ok +(driver.smi|docker.gpus-all) ",
}
COMMAND = "bold #7ee787"  # read on the picture's own dark background, whatever the page has around it
INDENT = " " * 8
FOLDER = re.compile(r"\S*/lab/labs/demo/")


def sections(output: str) -> list[list[str]]:
    """The demo's parts: a comment, a command, and what the command printed."""
    parts: list[list[str]] = []
    for line in output.splitlines():
        if Text.from_ansi(line).plain.startswith("# "):
            parts.append([])
        if parts and line.strip():
            parts[-1].append(FOLDER.sub("", line))
    return parts


def shortened(lines: list[str]) -> list[str]:
    """The command of a section, and those lines of its output that stay."""
    verb = re.findall(r"gpunode (\w+)", lines[1])[0]
    return [lines[1], *(line for line in lines[2:] if re.match(KEPT.get(verb, ""), Text.from_ansi(line).plain))]


def fitted(text: Text, console: Console) -> list[Text]:
    """The line, broken between words where it is too long."""
    if text.cell_len <= WIDTH:
        return [text]
    first, *rest = text.wrap(console, WIDTH - len(INDENT))
    return [first, *(Text(INDENT).append_text(part) for part in rest)]


def main(output: str, svg: str) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for part in sections(Path(output).read_text()):
        for line in shortened(part):
            text = Text.from_ansi(line)
            if text.plain.startswith("$ "):
                text = Text(text.plain, style=COMMAND)
            for part_of_line in fitted(text, console):
                console.print(part_of_line, soft_wrap=True)
    console.print()  # room below the last line
    console.save_svg(svg, title="make demo")


if __name__ == "__main__":
    main(*sys.argv[1:])
