"""The state directory of the controller: full, read-only, damaged; one sentence with what to do, and nothing lost."""

from __future__ import annotations

import errno
import os
import random
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fleet_world import World

from gpunode.cli.main import cli
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.model import HostResult
from gpunode.edge import report, state
from gpunode.edge.fleet import driver, events
from gpunode.edge.fleet import runs as runs_module
from gpunode.edge.fleet.runs import HostRow, Runs, this_process
from gpunode.edge.isolate import as_error
from gpunode.edge.state import StateError, controller_name, state_dir, write_private

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def filled(path: Path) -> Path:
    """A journal of two runs with 100 hosts each, and the paths of its files."""
    journal = Runs(path)
    for name in ("20260101", "20260102"):
        rows = [HostRow(run=name, host=f"gpu{n}", pool="all", wave=0, plan="a", state="waiting") for n in range(100)]
        journal.begin(name, "provision", {"where": {}, "spec": {}}, this_process(), rows)
        journal.ended(
            name,
            [HostResult(host=f"gpu{n}", outcome="failed" if n % 2 else "ok", message="x" * 100) for n in range(100)],
        )
        journal.finish(name, "failed")
    journal._db.execute("pragma wal_checkpoint(truncate)")
    journal.close()
    return path


# ---------------------------------------------------------------- a folder that cannot be written


@pytest.mark.parametrize(
    "args",
    [("runs", "list"), ("runs", "show"), ("report",), ("detect", "--local"), ("provision", "--local", "--yes")],
    ids=" ".join,
)
def test_a_file_in_place_of_the_state_directory_is_one_sentence(run_gpunode: Run, tmp_path: Path, args: Any) -> None:
    (tmp_path / "state").write_text("mine")
    done = run_gpunode(*args, "--format", "json", exit=None, env={"XDG_STATE_HOME": str(tmp_path / "state")})
    assert "Traceback" not in done.stdout + done.stderr and "unexpected" not in done.stdout
    assert (tmp_path / "state").read_text() == "mine"
    if args[0] in ("runs", "report"):
        assert done.returncode == 1
        assert f"cannot write to the state directory {tmp_path}/state/gpunode: Not a directory" in done.stdout
        assert "XDG_STATE_HOME=DIR" in done.stdout


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_state_directory_that_others_can_write_to_is_refused(mode: int, run_gpunode: Run, tmp_path: Path) -> None:
    folder = tmp_path / "gpunode"
    folder.mkdir()
    folder.chmod(mode)
    done = run_gpunode("runs", "list", exit=1, env={"XDG_STATE_HOME": str(tmp_path)})
    assert f"others can write to the state directory {folder}" in done.stderr
    assert f"chmod go-w {folder}" in done.stderr
    folder.chmod(mode & ~0o022)
    run_gpunode("runs", "list", env={"XDG_STATE_HOME": str(tmp_path)})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_state_directory_of_another_user_is_refused(run_gpunode: Run, tmp_path: Path) -> None:
    (tmp_path / "gpunode").mkdir()
    os.chown(tmp_path / "gpunode", 12345, 12345)
    refused = run_gpunode("provision", "--local", "--yes", exit=None, env={"XDG_STATE_HOME": str(tmp_path)})
    assert "others can write to the state directory" in refused.stdout + refused.stderr


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_what_cannot_be_written_there_is_no_bug(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = state_dir() / "controller"
    real = os.open

    def refuse(name: Any, flags: int, *more: Any, **others: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code), str(name))
        return real(name, flags, *more, **others)

    monkeypatch.setattr(state.os, "open", refuse)
    with pytest.raises(OSError) as raised:
        controller_name()
    error = as_error(raised.value)
    assert isinstance(error, StateError) and error.exit == 1
    assert error.what == f"cannot write {path}: {os.strerror(code)}"
    assert ("make room" in error.fix) == (code in (errno.ENOSPC, errno.EDQUOT)) and str(tmp_path) in error.fix
    assert list(path.parent.iterdir()) == []


def test_a_full_disk_leaves_the_old_file_and_no_scraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_private(path, "old")

    class Full:
        def __init__(self, descriptor: int, *_: Any, **__: Any) -> None:
            self.descriptor = descriptor

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            os.close(self.descriptor)

        def write(self, _: str) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state.os, "fdopen", Full)
    with pytest.raises(OSError) as raised:
        write_private(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["file"]
    assert as_error(raised.value).what == f"cannot write {path}: No space left on device"


def test_without_a_home_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(state.Path, "expanduser", lambda _: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(StateError, match="no home"):
        state_dir()


@pytest.mark.parametrize("left", [b"", b"\0\0\0\0\n", b"\xff\xfe", b"$(reboot)\n"])
def test_a_controllers_name_that_a_power_cut_took_is_made_again(
    left: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (state_dir() / "controller").write_bytes(left)
    name = controller_name()
    assert name and name == controller_name() and (state_dir() / "controller").read_text() == f"{name}\n"


def test_events_that_cannot_be_written_end_no_run() -> None:
    notices: list[str] = []
    log = events.EventLog(Path("/dev/full"), notices.append)
    for _ in range(3):
        log.wave("all", 0, "begins")
    log.close()
    assert notices == ["no more events to /dev/full: No space left on device"]


# ---------------------------------------------------------------- runs.sqlite


def garbage(data: bytes) -> bytes:
    return random.Random(1).randbytes(len(data))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda data: b"this is no database\n" * 100,
    "garbage": garbage,
    "zeros": lambda data: bytes(len(data)),
    "cut": lambda data: data[: len(data) // 2],
    "head only": lambda data: data[:4096],
    "garbage behind the head": lambda data: data[:4096] + garbage(data[4096:]),
    "another database": lambda data: b"",
}


def damaged(path: Path, kind: str) -> bytes:
    filled(path)
    path.write_bytes(DAMAGE[kind](path.read_bytes()))
    if kind == "another database":
        with sqlite3.connect(path) as other:
            other.execute("create table runs (name)")
            other.execute("create table hosts (name)")
        other.close()
    return path.read_bytes()


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_journal_is_one_sentence_and_what_it_says_to_do_works(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "my state"
    (home / "gpunode").mkdir(parents=True)
    path = home / "gpunode/runs.sqlite"
    before = damaged(path, kind)
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    for command in (("runs", "list"), ("runs", "show", "20260101"), ("report", "last", "--format", "junit")):
        done = CliRunner().invoke(cli, command, standalone_mode=False)
        assert done.return_value == 2 and done.stderr.startswith(f"error: {path} is damaged: "), done.stderr
        assert len(done.stderr.splitlines()) == 3 and "Traceback" not in done.stderr
    assert path.read_bytes() == before, "what is left of it is not lost"
    command = done.stderr.partition("move it away: ")[2].partition(" (")[0]
    assert shlex.split(command)[0] == "mkdir"
    subprocess.run(["sh", "-ec", command], check=True)
    assert (path.parent / "damaged-runs/runs.sqlite").read_bytes() == before
    assert "no run yet" in CliRunner().invoke(cli, ("runs", "list"), standalone_mode=False).stdout


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
@pytest.mark.parametrize("kind", ["garbage", "zeros", "text"])
def test_garbage_next_to_the_journal_takes_nothing_from_it(kind: str, suffix: str, tmp_path: Path) -> None:
    path = filled(tmp_path / "runs.sqlite")
    Path(f"{path}{suffix}").write_bytes(DAMAGE[kind](bytes(100_000)))
    journal = Runs(path)
    assert [run.name for run in journal.latest()] == ["20260102", "20260101"]
    assert len(journal.hosts("20260101")) == 100


@pytest.mark.parametrize("seed", range(60))
def test_any_bytes_that_change_are_an_answer_or_a_sentence(seed: int, tmp_path: Path) -> None:
    path = filled(tmp_path / "runs.sqlite")
    draw = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 5, 50])):
        at = draw.randrange(100 if seed % 3 == 0 else len(data))
        data[at : at + 8] = draw.randbytes(8)
    path.write_bytes(data)
    try:
        journal = Runs(path)
        for run in journal.latest():
            journal.hosts(run.name)
            assert run.outcome
        journal.all_unfinished()
        journal.at_work(["gpu1"])
    except GpunodeError as error:
        assert str(path) in error.what and error.fix


@pytest.mark.parametrize("row", ["not json", "[]", "7", "null", "[" * 100_000])
def test_a_request_that_is_none_is_damage(row: str, tmp_path: Path) -> None:
    journal = Runs(filled(tmp_path / "runs.sqlite"))
    journal._db.execute("update runs set request = ?", (row,))
    with pytest.raises(InputError, match="is damaged"):
        journal.latest()


def test_a_full_disk_under_the_journal_is_said_and_undone(tmp_path: Path) -> None:
    journal = Runs(filled(tmp_path / "runs.sqlite"))
    journal._db.execute(f"pragma max_page_count = {journal._db.execute('pragma page_count').fetchone()[0]}")
    rows = [HostRow(run="new", host=f"h{n}", pool="all", wave=0, plan="a" * 500, state="waiting") for n in range(2_000)]
    with pytest.raises(StateError) as raised:
        journal.begin("new", "provision", {}, this_process(), rows)
    assert raised.value.what == f"cannot write {journal.path}: database or disk is full"
    assert "make room" in raised.value.fix
    assert [run.name for run in journal.latest()] == ["20260102", "20260101"]


def test_a_journal_that_another_process_holds_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "runs.sqlite")
    real = sqlite3.connect
    monkeypatch.setattr(runs_module.sqlite3, "connect", lambda *a, timeout, **m: real(*a, timeout=0.1, **m))
    other = real(path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StateError, match="is in use by another process: database is locked"):
        Runs(path).finish("20260101", "done")
    other.close()


def test_lines_of_results_that_are_torn_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_bytes(b'{"host": "gpu1"}\n[]\n{"host": 7}\n{}\n\xff\n' + b"[" * 100_000 + b'\n{"host": "gpu2"}\n{"ho')
    assert set(report._lines(file)) == {"gpu1", "gpu2"}


# ---------------------------------------------------------------- in the middle of a run


@pytest.mark.parametrize("method", ["ended", "finish", "step", "keep", "begin"])
def test_a_disk_that_fills_up_in_a_run_loses_no_result(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What ran goes to its end and is told; nothing further is begun with."""
    world = World(["fresh", "fresh", "fresh"])
    full = StateError("cannot write runs.sqlite: database or disk is full", fix="make room")

    def refuse(*_: Any, **__: Any) -> None:
        raise full

    calls: list[int] = []
    keep = Runs.keep

    def keep_once(journal: Runs, found: Any) -> None:
        calls.append(len(calls))
        return keep(journal, found) if len(calls) == 1 else refuse()

    monkeypatch.setattr(Runs, method, keep_once if method == "keep" else refuse)
    options = {"rollout": {"waves": ["1", "100%"], "max_failures": "100%"}}
    if method == "begin":
        with pytest.raises(StateError):
            world.provision({}, tmp_path, **options)
        assert not world.played, "nothing was touched"
        return
    exits = world.provision({}, tmp_path, **options)
    assert exits is not None
    messages = {result.host: result.message for result in world.results}
    if method == "step":
        assert set(exits.values()) == {0}
    elif method == "finish":
        assert set(exits.values()) == {0} and "is not recorded: cannot write runs.sqlite" in capsys.readouterr().err
    elif method == "ended":
        assert sorted(exits.values()) == [1, 3, 3] and len(world.played) == 1
        [done] = world.played
        assert "not recorded: cannot write runs.sqlite" in messages[done]
        assert all("not started: cannot write" in text for host, text in messages.items() if host != done)
    else:
        assert 1 in exits.values() and any("cannot write runs.sqlite" in text for text in messages.values())


def test_a_log_of_a_host_that_cannot_be_written_ends_no_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(["fresh"])
    heard = driver.Run._heard

    def without_folder(run: Any, event: Any) -> None:
        shutil.rmtree(run.folder / "hosts", ignore_errors=True)
        heard(run, driver.Event(host=event.host, kind="changed", task="x"))

    monkeypatch.setattr(driver.Run, "_heard", without_folder)
    assert world.provision({}, tmp_path) == {world.hosts[0]: 0}


# ---------------------------------------------------------------- the process of a run


def test_a_zombie_runs_nothing(tmp_path: Path) -> None:
    """A killed controller whose parent does not wait for it, as in a container without an init."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = this_process().replace(this_process().rpartition(":")[2], f"{child.pid}@{runs_module._began(child.pid)}")
    journal = Runs(tmp_path / "runs.sqlite")
    row = HostRow(run="r", host="gpu1", pool="all", wave=0, plan="a", state="waiting")
    journal.begin("r", "provision", {}, name, [row])
    assert journal.get("r").outcome == "running" and journal.at_work(["gpu1"])
    child.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert journal.get("r").outcome == "killed" and not journal.at_work(["gpu1"])
    child.wait()
    child.stdin.close() if child.stdin else None


@pytest.mark.parametrize("process", ["", "x", "99999999999999999999@1", "-1@1"])
def test_a_controller_that_is_no_process_is_no_exception(process: str, tmp_path: Path) -> None:
    host = this_process().rpartition(":")[0]
    row = runs_module.RunRow(
        name="r", verb="v", started="", ended="", status="running", request={}, controller=f"{host}:{process}"
    )
    assert row.outcome in ("running", "killed")
