"""A bundle brought to a host by SFTP, over as many connections as it takes; the host itself compares every file."""

from __future__ import annotations

import contextlib
import posixpath
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import paramiko

from gpunode.core.bundle.manifest import (
    MANIFEST,
    PLAIN_PATH,
    SIGNATURE,
    Manifest,
    Stored,
    digest,
    parse_manifest,
    sums_line,
)
from gpunode.core.errors import GpunodeError, InputError, UnreachableError
from gpunode.core.late import dataclass
from gpunode.edge.bundle.store import PIECE, TRIES
from gpunode.edge.ssh.connection import Connection, closing, connect
from gpunode.edge.ssh.shell import parse_host

PARTS = ".parts"  # below the destination: files that are half there, each named by its SHA-256
BROUGHT = f"{PARTS}/brought"  # a path a line: what bundles brought there, or began to, until a push is at its end
SILENCE = 60  # seconds without an answer after which a connection counts as broken
COMPARE = 3600  # seconds that a host may take to read all files
Notify = Callable[[int, int, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """How many files went over, and which were taken away: those of older bundles that this one has not."""

    copied: int
    removed: tuple[str, ...]


def parse_destination(text: str) -> tuple[str, str]:
    """[user@]host:/folder → host and folder.  Raises InputError."""
    host, colon, folder = text.rpartition(":")
    if not colon or not host or not folder.startswith("/") or not folder.strip("/"):
        raise InputError(f"destination {text!r}", expected="[user@]host:/folder", fix="the folder begins with a slash")
    return host, folder.rstrip("/")


def push(folder: Path, manifest: Manifest, destination: str, *, accept_new: bool, notify: Notify) -> Pushed:
    """Copy what the host lacks, have it compare all of it, put the manifest, then remove what only older bundles had.

    A connection that breaks is made again, and a file that was half there goes on; so does the next push after a kill.
    `on_progress(files, of, bytes, of)` hears of progress.  Raises GpunodeError, UnreachableError.
    """
    host, target = parse_destination(destination)
    journey = _Journey(folder, manifest, target, notify)
    failed = 0
    while True:
        before = journey.came
        try:
            with connect(parse_host(host), accept_new=accept_new) as connection:
                return journey.go_on(connection)
        except (UnreachableError, _Broken) as error:
            failed = 1 if journey.came > before else failed + 1
            if not journey.started or failed == TRIES:
                stated = error.what if isinstance(error, UnreachableError) else f"{host}: the connection broke: {error}"
                raise UnreachableError(stated, fix="push again: it continues where it stopped") from error
            time.sleep(failed)


class _Broken(Exception):
    """A connection that answers no more."""


class _Journey:
    """What has come to a host so far."""

    def __init__(self, folder: Path, manifest: Manifest, target: str, notify: Notify) -> None:
        self._folder, self._target, self._reported = folder, target, notify
        self._files = manifest.files
        self._last = {path: digest((folder / path).read_bytes()) for path in (SIGNATURE, MANIFEST)}
        self._rest: Mapping[str, Stored] | None = None  # what the host lacks, once it was asked
        self._sent: set[str] = set()  # SHA-256 of what went over whole
        self.came = 0  # bytes that went over

    @property
    def started(self) -> bool:
        """Whether the host has answered before."""
        return self._rest is not None

    def go_on(self, connection: Connection) -> Pushed:
        """As far as this connection lasts.

        Raises _Broken, UnreachableError, GpunodeError.
        """
        if self._rest is None:
            rest = _wrong(connection, self._target, self._files)
            if rest or _wrong(connection, self._target, self._last):
                self._begin(connection)
            self._rest = rest
        with _sftp(connection) as sftp:
            self._send_all(connection, sftp, self._rest)
        if damaged := _wrong(connection, self._target, self._rest):
            raise GpunodeError(
                f"{connection.target.name}: {self._target}/{next(iter(damaged))} is not what was sent",
                expected="the bytes that the manifest names",
                fix="look at the host's disk and its log, then push again",
            )
        with _sftp(connection) as sftp:
            self._send_all(connection, sftp, self._last)
        removed = self._remove_older(connection)
        _sh(connection, self._target, f"rm -rf {PARTS}")
        return Pushed(copied=len(self._rest), removed=removed)

    def _begin(self, connection: Connection) -> None:
        """Note what the bundle there has and what this one brings; no manifest is there until this one is whole."""
        paths = set(self._files)
        with contextlib.suppress(InputError):  # no bundle, or one of another format: nothing of it is touched
            there = _sh(connection, self._target, f"cat {MANIFEST} 2>/dev/null || :")
            paths |= set(parse_manifest(there.encode(), MANIFEST).files)
        program = f"mkdir -p {PARTS}\ncat >>{BROUGHT} <<'END'\n{_lines(paths)}END\nrm -f {MANIFEST}"
        _sh(connection, self._target, program)

    def _remove_older(self, connection: Connection) -> tuple[str, ...]:
        """Take away what bundles brought there and this one has not, with the folders that are empty then."""
        brought = _sh(connection, self._target, f"cat {BROUGHT} 2>/dev/null || :").splitlines()
        older = {line.removeprefix("./") for line in brought} - {*self._files, *self._last}
        program = _REMOVE.format(paths=_lines(path for path in older if PLAIN_PATH.fullmatch(path)))
        return tuple(line.removeprefix("./") for line in _sh(connection, self._target, program).splitlines())

    def _send_all(self, connection: Connection, sftp: Any, files: Mapping[str, Stored]) -> None:
        """Each content once; a second file of the same bytes is a link to the first."""
        first: dict[str, str] = {}
        twins = {path: first[s.sha256] for path, s in files.items() if first.setdefault(s.sha256, path) != path}
        folders = {posixpath.dirname(path) or "." for path in files} | {PARTS}
        _sh(connection, self._target, f"mkdir -p {' '.join(map(shlex.quote, sorted(folders)))}")
        total, done = sum(files[path].size for path in first.values()), 0
        for at, (sha256, path) in enumerate(first.items()):
            if sha256 not in self._sent:
                for now in self._send(sftp, path, files[path]):
                    self._reported(at, len(first), done + now, total)
                self._sent.add(sha256)
            done += files[path].size
            self._reported(at + 1, len(first), done, total)
        if twins:
            _sh(connection, self._target, "\n".join(_link(old, new) for new, old in twins.items()))

    def _send(self, sftp: Any, path: str, stored: Stored) -> Iterator[int]:
        """One file, from where an earlier attempt left it; how many bytes are there, again and again."""
        part = f"{self._target}/{PARTS}/{stored.sha256}"
        with _watched(sftp, f"{self._target}/{path}"):
            there = 0
            with contextlib.suppress(FileNotFoundError):
                there = sftp.stat(part).st_size
            there = there if there <= stored.size else 0
            with (self._folder / path).open("rb") as data, sftp.open(part, "r+b" if there else "wb") as out:
                out.set_pipelined(True)
                data.seek(there)
                out.seek(there)
                while piece := data.read(PIECE):
                    out.write(piece)
                    self.came += len(piece)
                    yield data.tell()
            if sftp.stat(part).st_size != stored.size:
                raise EOFError(f"{path} ended early")
            sftp.chmod(part, 0o644)
            sftp.posix_rename(part, f"{self._target}/{path}")


_REMOVE = """while IFS= read -r path; do
  [ -f "$path" ] || [ -L "$path" ] || continue
  rm -f "$path" && echo "$path" || exit 1
  rmdir -p "${{path%/*}}" 2>/dev/null || :
done <<'END'
{paths}END"""


def _lines(paths: Iterable[str]) -> str:
    return "".join(f"./{path}\n" for path in sorted(paths))


def _link(old: str, new: str) -> str:
    a, b = shlex.quote(old), shlex.quote(new)
    return f"ln -f {a} {b} 2>/dev/null || cp -p {a} {b}"


def _sftp(connection: Connection) -> contextlib.AbstractContextManager[Any]:
    sftp: Any = None
    try:
        sftp = connection.transport.open_sftp_client()
    except (paramiko.SSHException, OSError, EOFError) as error:
        if not connection.transport.is_active():
            raise _Broken(error) from error
    if sftp is None:
        raise GpunodeError(
            f"{connection.target.name} offers no SFTP",
            fix="copy the folder by other means: every file is in SHA256SUMS",
        )
    sftp.get_channel().settimeout(SILENCE)
    return closing(sftp)


@contextlib.contextmanager
def _watched(sftp: Any, path: str) -> Iterator[None]:
    """What goes wrong is either the connection's affair (_Broken) or the host's answer (GpunodeError)."""
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        if isinstance(error, OSError) and not isinstance(error, TimeoutError) and _alive(sftp):
            raise GpunodeError(
                f"{path} cannot be written there: {error}", fix="look at its rights and its space (df), then push again"
            ) from error
        raise _Broken(str(error) or type(error).__name__) from error


def _alive(sftp: Any) -> bool:
    channel = sftp.get_channel()
    return bool(not channel.closed and channel.get_transport().is_active())


def _wrong(connection: Connection, target: str, files: Mapping[str, Stored]) -> dict[str, Stored]:
    """Those of the files that are not there, or with other bytes; coreutils' and busybox's sha256sum say so alike."""
    sums = "".join(sums_line(path, stored) for path, stored in files.items())
    program = f"sha256sum -c /dev/stdin 2>/dev/null <<'END' | sed -n 's/: OK$//p'\n{sums}END"
    good = set(_sh(connection, target, program).splitlines())
    return {path: stored for path, stored in files.items() if path not in good}


def _sh(connection: Connection, target: str, program: str) -> str:
    """What a program says that runs in the destination's folder.  Raises GpunodeError, UnreachableError."""
    folder = shlex.quote(target)
    start = f"export LC_ALL=C; umask 022; mkdir -p {folder} && cd {folder} || exit 1\n"
    rc, out, printed = connection.run(f"{start}{program}\n", timeout=COMPARE)
    if rc < 0:
        raise _Broken("no exit status came")
    if rc:
        raise GpunodeError(
            f"{connection.target.name}: {(printed.strip() or f'exit status {rc}').splitlines()[-1]}",
            fix=f"the account needs to write {target}, sha256sum and room",
        )
    return out
