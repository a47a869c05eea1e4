"""Terminal output of .ci/demo.sh → an SVG for the README: `picture.py OUTPUT SVG`.

The text is the demo's own.  It is shortened, and says where: long lines are cut, lines are left out.
"""

from __future__ import annotations

import io
import re
import sys
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 118
# Which lines of a command's output stay; a command that is not named here stays whole.
KEPT = {
    "lab": r"demo-1 ",
    "detect": r"(?!kind|Secure|seen|.*(dkms|nvidia_smi):)",
    "plan": r"demo-1|  because|    (GPU|branch|flavour|toolkit): | +\d+\. |        (nvidia-open|module n|disturbs)",
    "provision": r"demo-1",
    "verify": r"demo-1|  ok +(plan|driver|toolkit|\S+(binary|cri-default|gpus-all) )",
}
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
    """A section without the lines that its command does not need here: «…» says how many went."""
    verb = re.findall(r"gpunode (\w+)", lines[1])[0]
    short = lines[:2]
    for kept, run in groupby(lines[2:], key=lambda line: bool(re.match(KEPT.get(verb, ""), line))):
        group = list(run)
        short += group if kept or len(group) == 1 else [f"\033[2m  … {len(group)} more\033[0m"]
    return short


def main(output: str, svg: str) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for number, part in enumerate(sections(Path(output).read_text())):
        if number:
            console.print()
        for line in shortened(part):
            text = Text.from_ansi(line)
            text.truncate(WIDTH, overflow="ellipsis")
            console.print(text, soft_wrap=True)
    console.save_svg(svg, title="make demo")


if __name__ == "__main__":
    main(*sys.argv[1:])
