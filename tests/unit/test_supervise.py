"""ansible-playbook lives no longer than the controller that started it, and takes all that it started along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from gpunode.core.errors import InterruptedByUser
from gpunode.edge import supervise
from gpunode.edge.ansible.runner import run_playbook

SOON = 15.0  # seconds, on a machine that is busy
PLAY = {
    "name": "Long",
    "hosts": "all",
    "gather_facts": False,
    "connection": "local",
    "tasks": [{"name": "Sleep", "ansible.builtin.raw": "exec sleep 3456"}],
}
CONTROLLER = """\
import sys, threading
from pathlib import Path
from gpunode.edge.ansible.runner import run_playbook

def play(folder):
    run_playbook(Path(folder), "playbook.yml", inventory=["one,two,"])

if len(sys.argv) == 2:
    play(sys.argv[1])
for folder in sys.argv[1:]:
    threading.Thread(target=play, args=[folder]).start()
"""


def until(what: Callable[[], object], seconds: float = SOON) -> bool:
    end = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(found)


def parents() -> dict[int, int]:
    return dict(supervise.processes())


def below(process: int) -> set[int]:
    """All that descends from a process, zombies left out."""
    known = parents()
    found = {process}
    while more := {pid for pid, parent in known.items() if parent in found} - found:
        found |= more
    return found - {process}


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def sleeping(pids: set[int]) -> set[int]:
    return {pid for pid in pids if command(pid).startswith("sleep ")}


def living(pids: set[int]) -> list[str]:
    return [f"{pid} {command(pid)}" for pid in pids & set(parents())]


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[Path]]:
    """Three run folders, each with a playbook that runs on two hosts for an hour."""
    found = [tmp_path / name for name in ("a", "b", "c")]
    for folder in found:
        folder.mkdir()
        (folder / "playbook.yml").write_text(yaml.safe_dump([PLAY]))
    yield found


@pytest.mark.parametrize("count", [1, 3], ids=["in the main thread", "in threads, as a fleet does"])
def test_a_controller_that_is_killed_takes_its_playbooks_with_it(count: int, folders: list[Path]) -> None:
    used = folders[:count]
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, *map(str, used)])
    try:
        assert until(lambda: len(sleeping(below(controller.pid))) == 2 * count, 60)
        started = below(controller.pid)
        assert sum("ansible-playbook" in command(pid) for pid in started) > 2 * count, "the workers are among them"
    finally:
        controller.kill()
        controller.wait()
    assert until(lambda: not living(started)), living(started)
    assert until(lambda: not [path for folder in used for path in folder.glob(".leash-*")]), "the pipe is left over"


def test_an_interrupt_ends_the_workers_too_and_comes_back_when_all_are_gone(folders: list[Path]) -> None:
    stop = threading.Event()
    ended: list[BaseException] = []

    def play() -> None:
        try:
            run_playbook(folders[0], "playbook.yml", inventory=["one,two,"], cancelled=stop.is_set)
        except InterruptedByUser as error:
            ended.append(error)

    thread = threading.Thread(target=play)
    thread.start()
    assert until(lambda: len(sleeping(below(os.getpid()))) == 2, 60)
    started = below(os.getpid())
    stop.set()
    thread.join(60)
    assert ended and not living(started)
    assert not list(folders[0].glob(".leash-*"))


class Supervised:
    """supervise.py over a command, with the writing end of its pipe in this test's hands."""

    def __init__(self, folder: Path, *command: str, grace: float = supervise.GRACE, adopts: bool = True) -> None:
        self.fifo = folder / "leash"
        os.mkfifo(self.fifo)
        self.reader = os.open(self.fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.writer = os.open(self.fifo, os.O_WRONLY)
        run = "import sys; sys.path.insert(0, sys.argv[1]); import supervise as s; s.GRACE = float(sys.argv[2]);"
        run += "" if adopts else "s.prctl = lambda *words: False; s.processes = s.processes_by_ps;"
        run += "sys.exit(s.main(sys.argv[3], sys.argv[4:]))"
        source = str(Path(supervise.__file__).parent)
        words = [sys.executable, "-I", "-S", "-c", run, source, str(grace), str(self.fifo), *command]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def let_go(self) -> None:
        os.close(self.writer)
        os.close(self.reader)

    def wait(self) -> int:
        return self.process.wait(SOON)


@pytest.mark.parametrize(
    ("shell", "status"), [("exit 0", 0), ("exit 4", 4), ("kill -KILL $$", 137), ("exec no-such-command", 127)]
)
def test_the_status_of_the_command_is_that_of_the_supervisor(shell: str, status: int, tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "sh", "-c", shell)
    assert supervised.wait() == status
    supervised.let_go()


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "/no/such/command")
    assert supervised.wait() == 127
    assert supervised.process.communicate()[1] == "/no/such/command: No such file or directory\n"
    supervised.let_go()


ORPHANS = {
    "a child": "sleep 3456 & wait",
    "in a session of its own": "setsid sleep 3456 & wait",
    "an orphan in a session of its own": "(setsid sleep 3456 &) ; sleep 3457",
    "a command that ignores the signal": "trap '' TERM; sleep 3456 & wait; wait",
}


@pytest.mark.parametrize("shell", ORPHANS.values(), ids=ORPHANS.keys())
def test_nothing_that_the_command_started_is_left(shell: str, tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "sh", "-c", shell, grace=1)
    assert until(lambda: sleeping(below(supervised.process.pid)))
    started = below(supervised.process.pid)
    supervised.let_go()
    assert supervised.wait() == 130
    assert not living(started) and not supervised.fifo.exists()


def test_workers_of_a_command_that_was_killed_go_with_it(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "sh", "-c", "setsid sleep 3456 & kill -KILL $$", grace=1)
    assert supervised.wait() == 137
    supervised.let_go()
    assert not [pid for pid in sleeping(set(parents())) if "3456" in command(pid)]


def test_without_a_subreaper_the_processes_that_were_there_are_remembered(tmp_path: Path) -> None:
    """The way on a system without prctl: orphans are no longer below this process, and ps lists who is."""
    supervised = Supervised(tmp_path, "sh", "-c", "sh -c 'trap \"\" TERM; sleep 3456; :' & wait", grace=1, adopts=False)
    assert until(lambda: sleeping(below(supervised.process.pid)))
    started = below(supervised.process.pid)
    supervised.let_go()
    assert supervised.wait() == 130
    assert not living(started)


def test_a_command_whose_controller_is_gone_before_the_start_is_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "leash")
    words = [sys.executable, "-I", "-S", supervise.__file__, str(tmp_path / "leash"), "sleep", "3456"]
    assert subprocess.run(words, check=False, timeout=SOON).returncode == 130


def test_a_supervisor_that_is_killed_itself_takes_the_command_with_it(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "sleep", "3456")
    assert until(lambda: sleeping(below(supervised.process.pid)))
    started = below(supervised.process.pid)
    supervised.process.send_signal(signal.SIGKILL)
    supervised.wait()
    supervised.let_go()
    assert until(lambda: not living(started)), living(started)


def test_ps_and_proc_tell_the_same() -> None:
    me = os.getpid()
    assert dict(supervise.processes_by_ps())[me] == dict(supervise.processes())[me] == os.getppid()
