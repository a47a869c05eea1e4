"""What was run when, on which hosts, and what came of it: runs.sqlite in the state directory.

Every change of a host's state is on disk before the next thing happens, so a killed controller knows where it was.
What a host is doing within its run (`step`) is for people, and may be a second behind.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from gpunode.core.errors import Exit, InputError, RefusedError
from gpunode.core.late import dataclass
from gpunode.core.model import HostResult, NodeFacts
from gpunode.core.plan.since import state_of
from gpunode.core.rollout import State as RunState
from gpunode.edge.state import StateError, now, state_dir, state_path
from gpunode.edge.supervise import lives

T = TypeVar("T")
Purpose = Literal["show", "resume", "compare"]  # what a run is looked up for
JOURNAL = "runs.sqlite"
VERSION = 5
_TABLES = """
create table if not exists runs (
  name text primary key, verb text not null, started text not null, ended text, status text not null,
  request text not null, controller text not null
);
create table if not exists hosts (
  run text not null references runs (name), host text not null, pool text not null, wave integer not null,
  plan text not null, state text not null, exit integer, step text not null default '',
  message text not null default '', started text, ended text, log text not null default '',
  found text not null default '', touched integer not null default 1, fix text not null default '',
  notes text not null default '', primary key (run, host)
);
create table if not exists states (hash text primary key, state text not null);
"""
_HOSTS = """
select run, host, pool, wave, plan, state, exit, step, message, started, ended, log, found, touched, fix, notes
from hosts where run = ? order by pool = '', pool, wave, rowid
"""
_NEWEST = """
select * from runs where verb like ?
order by case when json_valid(request) then json_extract(request, '$.folder') end is ? desc, rowid desc limit 3
"""
_OPEN = ("waiting", "running")  # states of hosts that a run has still to do with
_COLUMNS = ["name", "verb", "started", "ended", "status", "request", "controller"]
_LAG = 1.0  # seconds that `step` may be behind
# names of SQLite's codes: of a fault in this program, and of what the machine does not let it do
_BUG = ("SQLITE_MISUSE", "SQLITE_CONSTRAINT", "SQLITE_RANGE", "SQLITE_INTERRUPT")
_MACHINE = (
    "SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM", "SQLITE_NOMEM", "SQLITE_NOLFS",
)  # fmt: skip
_WAIT = 30.0  # seconds for another process that writes
_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")
_UNREADABLE = (ValueError, TypeError, RecursionError)  # of rows that this program has not written so
_PAGE = 4096  # bytes, the least that SQLite writes


def this_process() -> str:
    """HOST:PID@BEGAN: BEGAN tells it from one that gets its number later, "" where the system does not tell."""
    return f"{socket.gethostname()}:{os.getpid()}@{_began(os.getpid())}"


def _began(pid: int) -> str:
    """Clock ticks from the boot to the process's start: proc(5), /proc/PID/stat, field 22; "gone" for a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "gone" if fields[0] in "ZXx" else fields[19]


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run: `status` is running, done, stopped (a budget), failed or interrupted; `request` is what was asked for."""

    name: str
    verb: str
    started: str
    ended: str
    status: str
    request: Mapping[str, Any]
    controller: str  # the process that ran it, as `this_process` names it

    @property
    def alive(self) -> bool:
        """Whether the process that runs it is still there; of another host nobody can tell, so yes."""
        host, pid, began = self._process
        if self.status != "running" or host != socket.gethostname() or not pid.isdecimal():
            return self.status == "running"
        return lives(int(pid)) and began == _began(int(pid))  # the number may be another process's by now

    @property
    def _process(self) -> tuple[str, str, str]:
        """(host, PID, when it began)."""
        host, _, process = self.controller.rpartition(":")
        pid, _, began = process.partition("@")
        return host, pid, began

    @property
    def process(self) -> str:
        """Its process, in words."""
        host, pid, _ = self._process
        return f"process {pid} on {host}"

    @property
    def ways_out(self) -> str:
        """What to do where it is in the way."""
        host, pid, _ = self._process
        return f"wait for it (gpunode runs show {self.name}), or end it: kill {pid} on {host}"

    @property
    def resumes(self) -> str:
        """The run that it continues, "" for none."""
        return str(self.request.get("resumes") or "")

    @property
    def place(self) -> str:
        """Whose hosts it was for: its inventories, else the folder of who started it; "" for a record without."""
        sources = self.request.get("where", {}).get("inventory", ())
        return ", ".join(sources) or str(self.request.get("folder", ""))

    @property
    def outcome(self) -> str:
        """What became of it; one whose process is gone without a last word was killed."""
        return self.status if self.status != "running" or self.alive else "killed"


@dataclass(frozen=True, kw_only=True)
class HostRow:
    """A host in a run; `plan` is the hash of what was to be done (its class), `log` a path.

    A host that nothing was to be done on has no pool; `found` is the state that it was last seen in.
    """

    run: str
    host: str
    pool: str
    wave: int
    plan: str
    state: RunState
    exit: int | None = None
    step: str = ""
    message: str = ""
    started: str = ""
    ended: str = ""
    log: str = ""
    found: str = ""  # a key of `Runs.state`
    touched: bool = True  # False: it failed before anything was done on it
    fix: str = ""  # with the message: what to do next
    notes: tuple[str, ...] = ()  # what stays as it is, and why


class Runs:
    """The journal of this controller.  Safe for threads of one process, and for processes beside each other."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_dir() / JOURNAL
        self._lock = threading.Lock()
        self._steps: dict[tuple[str, str], str] = {}
        self._flushed = time.monotonic()
        with self._readable():
            self._open()

    def _open(self) -> None:
        self.path.touch(mode=0o600)
        self._db = sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
        columns = [row[1] for row in self._db.execute("pragma table_info(runs)")]
        if columns and columns != _COLUMNS:
            raise sqlite3.DatabaseError(f"its table of runs has the columns {', '.join(columns)}")
        self._use_wal()
        self._db.execute("pragma synchronous = full")
        found = self._db.execute("pragma user_version").fetchone()[0]
        if found not in (0, VERSION):  # 0: a new file
            raise InputError(
                f"{self.path} has format {found}, this gpunode knows {VERSION}",
                fix="use the gpunode that wrote it, or move the file away",
            )
        self._db.executescript(_TABLES)
        if not found:
            self._db.execute(f"pragma user_version = {VERSION}")

    def _use_wal(self) -> None:
        """Only the first opening of a file switches it, and the switch does not wait for others as statements do."""
        until = time.monotonic() + _WAIT
        while True:
            try:
                self._db.execute("pragma journal_mode = wal")
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith(_BUSY) or time.monotonic() > until:
                    raise
                time.sleep(0.02)
            else:
                return

    def begin(
        self,
        name: str,
        verb: str,
        request: Mapping[str, Any],
        controller: str,
        hosts: Iterable[HostRow],
        beside: Iterable[str] = (),
    ) -> None:
        """A new run with its hosts, all or nothing.

        Raises RefusedError when another run has one of them in work, or one of `beside`, which have part in their
        budget: looked up in the same transaction, so of two that are started at once on the same hosts one is refused.
        """
        rows = list(hosts)
        text = json.dumps(request, default=str)
        with self._changes() as db:
            todo = [row.host for row in rows if row.state in _OPEN]
            self.refuse_busy(todo)
            for host, other in self.at_work(beside).items():
                raise RefusedError(
                    f"{host}, of the same pool, is used by run {other.name}: rollout.max_unavailable counts both runs",
                    fix=f"wait for it (gpunode runs show {other.name}), or name pools that have nothing in common",
                )
            db.execute(
                "insert into runs values (?, ?, ?, null, 'running', ?, ?)", (name, verb, now(), text, controller)
            )
            db.executemany(
                "insert into hosts (run, host, pool, wave, plan, state, exit, message, fix, found, touched) "
                "values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (name, h.host, h.pool, h.wave, h.plan, h.state, h.exit, h.message, h.fix, h.found, h.touched)
                    for h in rows
                ],
            )

    def keep(self, found: Mapping[str, NodeFacts]) -> None:
        """Write down states of hosts, by the hashes of their facts, those that are not known yet."""
        known = {row[0] for row in self._rows("select hash from states")}
        new = [(key, json.dumps(state_of(facts))) for key, facts in found.items() if key not in known]
        with self._changes() as db:
            db.executemany("insert or ignore into states values (?, ?)", new)

    def state(self, key: str) -> dict[str, Any]:
        """A state that `keep` wrote down; {} for none."""
        found = self._read(lambda row: dict(json.loads(row[0])), "select state from states where hash = ?", key)
        return found[0] if found else {}

    def at_work(self, hosts: Iterable[str]) -> dict[str, RunRow]:
        """Those of `hosts` that a run of this controller has in work now, with that run."""
        found: dict[str, RunRow] = {}
        asked = set(hosts)
        for row in self._db.execute("select * from runs where status = 'running' order by rowid desc").fetchall():
            run = _run(row)
            if run.alive:
                busy = {host.host for host in self.hosts(run.name) if host.state in _OPEN}
                found |= dict.fromkeys(busy & asked, run)
        return found

    def refuse_busy(self, hosts: Iterable[str]) -> None:
        """Raises RefusedError when a run of this controller has one of `hosts` in work."""
        for host, other in self.at_work(hosts).items():
            raise RefusedError(f"{host} is used by run {other.name} of gpunode ({other.process})", fix=other.ways_out)

    def all_unfinished(self, *, begun: bool = False) -> dict[str, str]:
        """Every host that the newest run that began with it is at work on, or did not bring to a good end; with it.

        `begun`: the newest run that may have changed it.
        """
        rows = self._rows(
            "select host, state, run, max(rowid) from hosts where pool != '' and state != 'waiting' "
            "and (? or state != 'failed' or touched) group by host",
            not begun,
        )
        return {host: run for host, state, run, _ in rows if state in ("running", "failed")}

    def last_good(self, hosts: Iterable[str]) -> dict[str, tuple[str, dict[str, Any]]]:
        """The newest run that ended well for each of `hosts`, with the state that it found; not every host has one."""
        rows = self._rows(
            "select host, run, found, max(rowid) from hosts where state = 'done' and found != '' group by host"
        )
        found = {host: (run, key) for host, run, key, _ in rows}
        return {host: (found[host][0], self.state(found[host][1])) for host in hosts if host in found}

    def started(self, run: str, hosts: Iterable[str], log: str) -> None:
        with self._changes() as db:
            db.executemany(
                "update hosts set state = 'running', started = ?, log = ? where run = ? and host = ?",
                [(now(), log, run, host) for host in hosts],
            )

    def ended(self, run: str, results: Iterable[HostResult], found: Mapping[str, str] | None = None) -> None:
        """What came of hosts: done, pending or failed; `found`: in which state they are."""
        ends = list(results)
        states = found or {}
        with self._changes() as db:
            for result in ends:
                self._steps.pop((run, result.host), None)
            db.executemany(
                "update hosts set state = ?, exit = ?, message = ?, fix = ?, notes = ?, touched = ?, ended = ? "
                "where run = ? and host = ?",
                [
                    (r.state, Exit.of(r.outcome), r.message, r.fix, "\n".join(r.notes), r.touched, now(), run, r.host)
                    for r in ends
                ],
            )
            db.executemany(
                "update hosts set found = ? where run = ? and host = ?",
                [(states[r.host], run, r.host) for r in ends if r.host in states],
            )

    def step(self, run: str, host: str, text: str, *, now: bool = False) -> None:
        """What a host is doing; written with the next change, or by `flush` after a second, or `now`."""
        with self._lock:
            self._steps[run, host] = text
        self.flush(0 if now else _LAG)

    def flush(self, after: float = _LAG) -> None:
        """Write what hosts are doing, where that was last written `after` seconds ago."""
        with self._lock:
            late = bool(self._steps) and time.monotonic() - self._flushed >= after
        if late:
            with self._changes():
                pass

    def finish(self, run: str, status: str) -> None:
        with self._changes() as db:
            db.execute("update runs set status = ?, ended = ? where name = ?", (status, now(), run))

    def latest(self, limit: int = 50) -> list[RunRow]:
        """The newest runs first."""
        return self._runs("select * from runs order by rowid desc limit ?", limit)

    def get(self, name: str, purpose: Purpose = "show") -> RunRow:
        """A run by its name, by the beginning of one, or "last", of this folder before others.  Raises InputError.

        For "compare", last is the newest provision: an undo writes down no state of its hosts.  Otherwise it is the
        newest run, so that nobody resumes what was undone since.
        """
        verbs, kind = ("provision", "run of provision") if purpose == "compare" else ("%", "run")
        newest = self._runs(_NEWEST, verbs, current_folder())
        named = self._runs("select * from runs where substr(name, 1, ?) = ?", len(name), name)
        found = newest[:1] if name == "last" else named
        if len(found) != 1:
            known = f"({', '.join(run.name for run in newest)} …), or last" if newest else "(there is none yet)"
            raise InputError(
                f"run {name!r}: {'several begin so' if found else 'not known'}",
                expected=f"a {kind} of this controller {known}",
                fix="gpunode runs list" if newest else "gpunode provision makes one where it has something to do",
            )
        [run] = found
        if run.verb != "provision" and purpose in ("compare", "resume"):
            again = f"gpunode {run.verb} again: it continues where it was on each host"
            fix = again if purpose == "resume" else "name a run of provision: gpunode runs list"
            raise InputError(f"run {run.name} is a run of {run.verb}", expected="a run of provision", fix=fix)
        return run

    def parts(self, run: RunRow) -> list[RunRow]:
        """The run that `run` continues, the other runs that do so, and `run` itself, the oldest first."""
        if not run.resumes:
            return [run]
        first = self._runs("select * from runs where name = ?", run.resumes)
        later = self.resumed_by(first[0]) if first else []
        return [*first, *takewhile(lambda one: one.name != run.name, later), run]

    def resumed_by(self, run: RunRow) -> list[RunRow]:
        """The runs that continue `run`, the oldest first."""
        later = self._runs(
            "select * from runs where rowid > (select rowid from runs where name = ?) order by rowid", run.name
        )
        return [one for one in later if one.resumes == run.name]

    def hosts(self, run: str) -> list[HostRow]:
        """The hosts of a run, in the order in which they were to be done."""
        return self._read(_host, _HOSTS, run)

    def close(self) -> None:
        with self._changes():
            pass
        self._db.close()

    def _runs(self, query: str, *values: object) -> list[RunRow]:
        return self._read(_run, query, *values)

    def _read(self, make: Callable[[tuple[Any, ...]], T], query: str, *values: object) -> list[T]:
        rows = self._rows(query, *values)
        try:
            return [make(row) for row in rows]
        except _UNREADABLE as error:
            raise self._damaged(error) from error

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._readable():
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """What SQLite says of a file that cannot be used: StateError, or InputError where the file is damaged."""
        try:
            yield
        except OSError as error:
            raise StateError.of(self.path, error) from error
        except sqlite3.Error as error:
            kind = getattr(error, "sqlite_errorname", "")
            if kind.startswith(_BUG) or isinstance(error, (sqlite3.ProgrammingError, sqlite3.InterfaceError)):
                raise
            if kind.startswith(_BUSY):
                fix = "see what holds it (fuser, lsof), and run the same command again"
                raise StateError(f"{self.path} is in use by another process: {error}", fix=fix) from error
            if kind.startswith(_MACHINE):
                full = kind == "SQLITE_FULL" or (kind.startswith("SQLITE_IOERR") and self._is_full())
                raise StateError.of(self.path, OSError(errno.ENOSPC if full else 0, str(error))) from error
            raise self._damaged(error) from error
        except UnicodeDecodeError as error:
            raise self._damaged(error) from error

    def _is_full(self) -> bool:
        """Whether there is no room where SQLite has just failed: for its smaller files it says «disk I/O error»."""
        with suppress(OSError):
            found = os.statvfs(self.path.parent)
            return found.f_bavail * found.f_frsize < _PAGE
        return False

    def _damaged(self, error: Exception) -> InputError:
        folder = shlex.quote(str(self.path.with_name("damaged-runs")))
        return InputError(
            f"{self.path} is damaged: {error}",
            expected="the journal of this controller's runs, a SQLite database",
            fix=f"move it away: mkdir -p {folder} && mv {shlex.quote(str(self.path))}* {folder}/ (gpunode then makes a "
            "new one; the nodes keep their own journals, but earlier runs can no longer be listed or resumed)",
        )

    @contextmanager
    def _changes(self) -> Iterator[sqlite3.Connection]:
        """One transaction, with the steps that were not written yet."""
        with self._lock, self._readable():
            self._db.execute("begin immediate")
            try:
                self._db.executemany(
                    "update hosts set step = ? where run = ? and host = ?",
                    [(text, run, host) for (run, host), text in self._steps.items()],
                )
                yield self._db
                self._db.execute("commit")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has ended the transaction already
                    self._db.execute("rollback")
                raise
            self._steps.clear()
            self._flushed = time.monotonic()


def all_unfinished() -> dict[str, str]:
    """`Runs.all_unfinished` of this controller."""
    return asked(Runs.all_unfinished, {})


def last_good(hosts: Iterable[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """`Runs.last_good` likewise."""
    return asked(lambda journal: journal.last_good(hosts), {})


def current_folder() -> str:
    """As a run notes whence it was started; "" where the folder is gone."""
    with suppress(OSError):
        return str(Path.cwd())
    return ""


def asked(what: Callable[[Runs], T], otherwise: T) -> T:
    """`what` of this controller's journal; `otherwise` where there is none yet, which is not begun by asking."""
    if not (state_path() / JOURNAL).exists():
        return otherwise
    journal = Runs()
    try:
        return what(journal)
    finally:
        journal.close()


def _run(row: tuple[Any, ...]) -> RunRow:
    name, verb, started, ended, status, text, controller = row
    request = json.loads(text)
    if not isinstance(request, dict):
        raise TypeError("the request of a run is no object")
    return RunRow(
        name=str(name), verb=str(verb), started=_time(started), ended=_time(ended), status=str(status),
        request=request, controller=str(controller),
    )  # fmt: skip


def _host(row: tuple[Any, ...]) -> HostRow:
    run, host, pool, wave, plan, state, code, step, message, started, ended, log, found, touched, fix, notes = row
    if state not in get_args(RunState):
        raise ValueError(f"a host is in state {state!r}")
    return HostRow(
        run=str(run), host=str(host), pool=str(pool), wave=int(wave), plan=str(plan), state=state,
        exit=None if code is None else int(code), step=str(step), message=str(message), started=_time(started),
        ended=_time(ended), log=str(log), found=str(found), touched=bool(touched),
        fix=str(fix), notes=tuple(str(notes).splitlines()),
    )  # fmt: skip


def _time(text: str | None) -> str:
    """A time as `now` writes it, "" for none yet."""
    if text:
        datetime.fromisoformat(text)
    return text or ""
