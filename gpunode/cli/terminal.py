"""A person's terminal: lines on stderr, and rich consoles, both without control characters in what they are given."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from gpunode.core.printable import printable

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str) -> None:
    """A line on stderr, at once."""
    print(printable(text), file=sys.stderr, flush=True)


def show_log() -> None:
    """What the package logs goes to stderr as well: a bug's traceback that cannot be kept, warnings of Ansible."""
    import logging

    class Stderr(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with contextlib.suppress(OSError, ValueError):  # nobody may be listening
                say(record.getMessage())

    log = logging.getLogger("gpunode")
    if not any(type(handler).__name__ == Stderr.__name__ for handler in log.handlers):
        log.addHandler(Stderr())
        log.propagate = False


def screen(*, stderr: bool = False) -> Console:
    """A rich console.  The controls that rich itself makes stay: colours, and the moves of a live display."""
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
    from rich.segment import Segment

    class Shown:
        def __init__(self, inner: ConsoleRenderable) -> None:
            self._inner = inner

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for text, style, control in console.render(self._inner, options):
                yield Segment(text if control else printable(text), style, control)

    class Shows(RenderHook):
        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [Shown(one) for one in renderables]

    stream = sys.stderr if stderr else sys.stdout
    # without a terminal rich would cut tables at 80 columns: a log or a grep wants whole lines
    made = Console(stderr=stderr, highlight=False, soft_wrap=False, width=None if stream.isatty() else 1000)
    made.push_render_hook(Shows())
    return made
