"""The one way out: everything that a command prints goes through `echo`, `print_json`, `print_yaml` or a `screen`.

What nodes, logs, files and API objects say may hold control characters that a terminal obeys.  They become visible
escapes here, whatever was done before; only what a command itself styles has colours (tests/unit/test_printable.py
finds every other way out).
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click

from gpunode.core.late import dataclass, regex
from gpunode.core.printable import json_text, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLUMN = regex(r"^ +|(?<=\S)  +")  # what stands before a column


@dataclass(frozen=True)
class Styled:
    """A part of a line in a colour."""

    text: str
    color: str
    bold: bool = False


def echo(*parts: str | Styled, err: bool = False, nl: bool = True, over: bool = False) -> None:
    """Print a line of these parts; with `over` it takes the place of the terminal's last line."""
    text = "".join(map(_shown, parts))
    try:
        click.echo(f"\r\033[K{text}" if over else text, err=err, nl=nl)
    except OSError as error:
        from gpunode.edge.state import OUTPUT

        error.filename = OUTPUT
        raise


def fitted(text: str, width: int) -> str:
    """Text whose longer lines are broken between words, each part under the column that it belongs to.

    >>> print(fitted("  ok   driver.smi   nvidia-smi sees all GPUs", 36))
      ok   driver.smi   nvidia-smi sees
                        all GPUs
    """
    lines = []
    for line in text.split("\n"):
        columns = [found.end() for found in _COLUMN.finditer(line) if found.end() <= width * 2 // 3]
        lines += (
            textwrap.wrap(
                line,
                width,
                subsequent_indent=" " * max(columns, default=2),
                break_long_words=False,
                break_on_hyphens=False,
                drop_whitespace=True,
                replace_whitespace=False,
            )
            if len(line) > width
            else [line]
        )
    return "\n".join(lines)


def terminal_width() -> int:
    """Columns of the terminal that results are printed to; where there is none, no line is too long."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 16


def _shown(part: str | Styled) -> str:
    if isinstance(part, Styled):
        return click.style(printable(part.text), fg=part.color, bold=part.bold or None)
    return printable(part)


def print_json(data: Any) -> None:
    """Plain data to stdout as JSON."""
    echo(json_text(data, indent=2))


def print_yaml(data: Any) -> None:
    """Plain data to stdout as YAML."""
    import yaml

    echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120), nl=False)


def print_drawn(drawing: RenderableType) -> None:
    """A table or grid on stdout, without the blanks that rich fills its last column with."""
    from gpunode.cli.terminal import screen

    made = screen()
    with made.capture() as drawn:
        made.print(drawing)
    click.echo("\n".join(line.rstrip() for line in drawn.get().splitlines()))
