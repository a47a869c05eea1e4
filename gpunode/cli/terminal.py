"""A person's terminal: lines on stderr, and rich consoles, both without control characters in what they are given."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from gpunode import __version__
from gpunode.core.late import dataclass
from gpunode.core.printable import printable

if TYPE_CHECKING:
    from rich.console import Console


LOG = logging.getLogger("gpunode")
LOG.addHandler(logging.NullHandler())  # without any, Python writes errors to stderr, where they are already
_SHOWN = {"shown": True}  # of a record that is on the screen already


@dataclass(kw_only=True)
class _Verbosity:
    """How much a person wants to hear."""

    level: int = logging.WARNING  # of messages that are shown on stderr
    quiet: bool = False
    file: str = ""


_asked = _Verbosity()


def listen(*, verbose: int = 0, quiet: bool = False, log_file: str = "") -> None:
    """What -v, -q and --log-file ask for.  Raises InputError for a file that cannot be written."""
    if verbose:
        _asked.level, _asked.quiet = (logging.INFO if verbose == 1 else logging.DEBUG), False
    if quiet:
        _asked.level, _asked.quiet = logging.ERROR, True
    if log_file and log_file != _asked.file:
        LOG.addHandler(_file_handler(log_file))
        _asked.file = log_file
        LOG.setLevel(logging.DEBUG)
        keep(f"gpunode {__version__}: {' '.join(sys.argv[1:])}", logging.INFO)
    LOG.setLevel(logging.DEBUG if _asked.file else min(_asked.level, logging.WARNING))
    if _asked.level == logging.DEBUG or _asked.file:
        _hear_ssh()


def verbosity() -> int:
    """How much more than usual a person asked for: 1 of -v, 2 of -vv, else 0."""
    return {logging.INFO: 1, logging.DEBUG: 2}.get(_asked.level, 0)


def forget() -> None:
    """Back to the beginning: for several commands in one process."""
    for handler in [one for one in LOG.handlers if isinstance(one, logging.FileHandler)]:
        LOG.removeHandler(handler)
        handler.close()
    _asked.level, _asked.quiet, _asked.file = logging.WARNING, False, ""
    LOG.setLevel(logging.WARNING)


def say(text: str) -> None:
    """A line of progress on stderr, at once; -q has none."""
    LOG.info("%s", text, extra=_SHOWN)
    if not _asked.quiet:
        print(printable(text), file=sys.stderr, flush=True)


def keep(text: str, level: int = logging.ERROR) -> None:
    """What is shown otherwise, for --log-file."""
    LOG.log(level, "%s", text, extra=_SHOWN)


def show_log() -> None:
    """What the package logs goes to stderr as well: a bug's traceback that cannot be kept, warnings of Ansible."""

    class Stderr(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno < _asked.level or getattr(record, "shown", False):
                return
            with contextlib.suppress(OSError, ValueError):  # nobody may be listening
                print(printable(record.getMessage()), file=sys.stderr, flush=True)

    if not any(type(handler).__name__ == Stderr.__name__ for handler in LOG.handlers):
        LOG.addHandler(Stderr())
        LOG.propagate = False


def _file_handler(path: str) -> logging.Handler:
    """Appends to a file that its owner alone may read; what looks like a secret is masked."""
    from gpunode.core.mask import mask_quoted
    from gpunode.edge.state import writing_to

    class Masked(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return printable(mask_quoted(super().format(record)))

    with writing_to(path, "choose another --log-file"):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(Masked("%(asctime)s %(levelname)s %(message)s"))
    return handler


def _hear_ssh() -> None:
    """What paramiko says of connections, as messages of ours."""

    class Passed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            LOG.debug("ssh: %s", record.getMessage())

    ssh = logging.getLogger("paramiko")
    if not any(type(handler).__name__ == Passed.__name__ for handler in ssh.handlers):
        ssh.addHandler(Passed())
        ssh.setLevel(logging.INFO)
        ssh.propagate = False


def screen(*, stderr: bool = False) -> Console:
    """A rich console: colours on a terminal unless NO_COLOR, and plain lines that never wrap elsewhere.

    The controls that rich itself makes stay: colours, and the moves of a live display.
    """
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

    class Screen(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError(errno.EPIPE, "the reader went away")  # rich's own would exit with 1

    stream = sys.stderr if stderr else sys.stdout
    # without a terminal rich would cut tables at 80 columns: a log or a grep wants whole lines
    made = Screen(
        stderr=stderr,
        highlight=False,
        soft_wrap=False,
        width=None if stream.isatty() else 1000,
        quiet=stderr and _asked.quiet,
    )
    made.push_render_hook(Shows())
    return made
