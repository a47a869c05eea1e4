"""What one host's step raises is that host's result: an error to show, and for a bug a report that can be sent.

The same bug on many hosts is one report: its id is made of the exception's type and of the places in the code that it
went through, so 2,000 hosts name one file.
"""

from __future__ import annotations

import errno
import logging
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from gpunode import __version__
from gpunode.core.errors import UNEXPECTED, GpunodeError
from gpunode.edge.state import StateError, now, state_dir, state_name, write_private

T = TypeVar("T")
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}  # never a bug, whatever was being written
_PRINTED = 300  # characters of an exception's own words that are shown
_END = 30_000  # characters of either end of a traceback that are kept
LOG = logging.getLogger("gpunode")  # what is in no result; the command line prints it
LOG.addHandler(logging.NullHandler())
_lock = threading.Lock()
_kept: dict[tuple[str, str], str] = {}  # reports of this process, by id and state directory: what to do with each


def isolated(host: str, call: Callable[[], T]) -> T | GpunodeError:
    """What `call` returns; what it raises, as the error that is the result of `host`."""
    try:
        return call()
    except Exception as error:
        return as_error(error, host=host)


def as_error(error: Exception, *, host: str = "", hide: Callable[[str], str] = lambda text: text) -> GpunodeError:
    """An exception as an error for people: known ones as they are, a full disk with what to do, others as a bug.

    What looks like a secret is in neither message nor report; `hide` takes out what is known to be one.
    """
    if isinstance(error, GpunodeError):
        return error
    if isinstance(error, ImportError) and (refused := _not_loaded(error)):
        return refused
    if isinstance(error, OSError):
        name, ours = str(error.filename or ""), state_name()
        inside = name == ours or name.startswith(f"{ours}/")
        if error.errno in _DISK or (inside and error.errno):
            return StateError.of(name, error)
    stated = " ".join(_shown(_words(error)[: 4 * _PRINTED], hide).split())
    stated = stated if len(stated) <= _PRINTED else f"{stated[:_PRINTED]} …"
    what = f"{UNEXPECTED} {type(error).__name__}: {stated}"
    return GpunodeError(f"{host}: {what}" if host else what, fix=_keep(error, host, hide))


def _not_loaded(error: ImportError) -> GpunodeError | None:
    """A package of others that is missing, or whose compiled part is, or cannot be loaded; None: something is wrong."""
    from gpunode.edge.extras import install_command

    package = (error.name or "gpunode").partition(".")[0]
    if package == "gpunode":
        return None
    if isinstance(error, ModuleNotFoundError):
        return GpunodeError(f"the Python package {package} is not installed", fix=f"{install_command()} brings it")
    if error.path and not error.path.endswith(".so"):
        return None
    return GpunodeError(
        f"the Python package {package} cannot be loaded: {error.msg}",
        fix=f"{install_command()} brings one for this machine; if its file lies where programs may not run (noexec), "
        "choose another place (gpunode.pyz: XDG_CACHE_HOME=FOLDER)",
    )


def _words(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # an exception of somebody else's that cannot even say what it is
        return "(without words)"


def _shown(text: str, hide: Callable[[str], str]) -> str:
    """Without secrets, and without what no file or terminal can take."""
    from gpunode.core.mask import mask_quoted
    from gpunode.core.printable import printable

    return printable(mask_quoted(hide(text)))


def _report_id(error: Exception) -> str:
    """Eight digits: the same for the same way through the same code, however often a function called itself."""
    import hashlib
    import traceback

    places = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
    text = "\n".join([__version__, type(error).__name__, *dict.fromkeys(places)])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _keep(error: Exception, host: str, hide: Callable[[str], str]) -> str:
    """Write the traceback, once a process, and say where it is; log it where it cannot be written."""
    report = _report_id(error)
    known = (report, state_name())
    with _lock:
        if known not in _kept:
            _kept[known] = _write(report, error, host, hide)
        return _kept[known]


def _write(report: str, error: Exception, host: str, hide: Callable[[str], str]) -> str:
    import traceback

    from gpunode.core.printable import printable

    head = f"gpunode {__version__}, Python {sys.version.split()[0]}, {now()}"
    # each part is cut at its end alone before it is masked: the name of a secret stands in front of it
    parts = [part if len(part) <= _END else f"{part[:_END]} …\n" for part in traceback.format_exception(error)]
    reported = "".join(_shown(part, hide) for part in parts)
    reported = reported if len(reported) <= 2 * _END else f"{reported[:_END]}\n…\n{reported[-_END:]}"
    text = f"{head}{f', host {printable(host)}' if host else ''}\n{reported}"
    try:
        path = state_dir() / f"traceback-{report}.txt"
        write_private(path, text)
    except (GpunodeError, OSError) as cause:
        why = cause.what if isinstance(cause, GpunodeError) else str(cause)
        LOG.error("%s", text)
        return f"report it as {report}, with the traceback that was logged (it could not be kept: {why})"
    return f"report it as {report}, with {path}"
