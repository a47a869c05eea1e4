"""Work begun early in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from gpunode.cli.terminal import show_log
from gpunode.core.errors import InputError
from gpunode.edge.ansible.ahead import begin
from gpunode.edge.detect import Targets
from gpunode.edge.fleet.provision import _repeatable


def calls(log: Path) -> list[int]:
    """The processes in which the work was done."""
    return [int(pid) for pid in log.read_text().split()]


def note(log: Path) -> None:
    with log.open("a") as out:
        out.write(f"{os.getpid()}\n")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # others may have left some behind
    return tmp_path / "log"


def test_the_work_is_done_once_elsewhere_and_its_warnings_are_reported(
    log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def act() -> tuple[str, ...]:
        note(log)
        print("a warning", file=sys.stderr)
        os.write(2, b"another\n")
        return ("h1", "h2")

    show_log()  # as the command line does
    value = begin(act)
    assert value() == ("h1", "h2")
    assert value() == ("h1", "h2")
    [pid] = calls(log)
    assert pid != os.getpid()
    assert sorted(capfd.readouterr().err.splitlines()) == ["a warning", "another"]


def test_an_error_is_that_of_the_work_itself(log: Path) -> None:
    def act() -> None:
        note(log)
        raise InputError("inventory x", fix="fix it")

    value = begin(act)
    with pytest.raises(InputError) as met:
        value()
    assert met.value.fix == "fix it"
    assert calls(log)[-1] == os.getpid()


def test_what_a_killed_child_began_is_done_here(log: Path) -> None:
    here = os.getpid()

    def act() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return 3

    assert begin(act)() == 3


def test_what_cannot_be_sent_is_made_here(log: Path) -> None:
    made = begin(lambda: lambda: 5)()
    assert made() == 5


def test_no_process_is_made_next_to_other_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    begin(lambda: note(tmp_path / "log"))()
    assert calls(tmp_path / "log") == [os.getpid()]


def test_a_run_that_is_gone_on_with_reads_its_inventory_itself() -> None:
    where = Targets(inventory=("hosts.yml",), limit="a", become_password="secret", listing=tuple)
    asked = json.dumps(_repeatable(where))
    assert "secret" not in asked
    assert Targets(**json.loads(asked) | {"inventory": ("hosts.yml",)}).listing is None
