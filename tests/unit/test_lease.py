"""A node is one controller's at a time: lib/common.sh by the shell of this machine, on a state folder of its own."""

from __future__ import annotations

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpunode.core.errors import InputError
from gpunode.core.remote import parse_outcome, program
from gpunode.core.undo.journal import signature
from gpunode.edge.state import controller_name
from gpunode.node import part

COMMON = part("common.sh").read_text(encoding="utf-8")
LEASE = 180


def act(state: Path, *, controller: str = "", run: str = "r1", break_lock: bool = False, work: str = ":") -> str:
    """A script that takes the lock, does its work and ends well → its message, or what it was refused for."""
    request = signature(run=run, controller=controller, break_lock=break_lock) | {"state": f"{state}\n".encode()}
    text = program(f"{COMMON}\nlock\n{work}\nfinish changed done", request)
    ran = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=False)
    outcome = parse_outcome(ran.stdout, ran.returncode)
    assert outcome.status in ("changed", "refused"), ran.stderr
    return outcome.message + outcome.fix


def lease(state: Path) -> list[str]:
    return (state / "lease").read_text().split()


def test_a_controller_keeps_its_node_and_another_is_refused(tmp_path: Path) -> None:
    assert act(tmp_path, controller="one", run="r1") == "done"
    assert lease(tmp_path)[1:] == ["one", "r1"]
    assert act(tmp_path, controller="one", run="r2") == "done"
    said = act(tmp_path, controller="two")
    assert "controller one is at work" in said and "run r2" in said and "--break-lock" in said
    assert lease(tmp_path)[1] == "one"


def test_without_a_controller_there_is_no_lease(tmp_path: Path) -> None:
    assert act(tmp_path) == "done" and not (tmp_path / "lease").exists()


@pytest.mark.parametrize(
    ("until", "taken"),
    [(-1, True), (-10_000, True), (60, False), (LEASE, False), (LEASE + 100_000, True)],
    ids=["just over", "long over", "in force", "just taken", "from a clock that was wrong"],
)
def test_a_lease_ends_by_the_nodes_clock(until: int, taken: bool, tmp_path: Path) -> None:
    (tmp_path / "lease").write_text(f"{int(time.time()) + until} one r1\n")
    assert (act(tmp_path, controller="two") == "done") is taken


@pytest.mark.parametrize("text", ["", "\n", "soon one r1\n", "99999999999999 \n", "torn"])
def test_a_damaged_lease_keeps_nobody_out(text: str, tmp_path: Path) -> None:
    (tmp_path / "lease").write_text(text)
    assert act(tmp_path, controller="two") == "done"


@pytest.mark.parametrize(("controller", "seconds"), [("one", "900"), ("two", "60"), ("", "60")])
def test_what_an_earlier_run_of_the_same_controller_still_does_is_waited_for_longer(
    controller: str, seconds: str, tmp_path: Path
) -> None:
    act(tmp_path, controller="one")
    request = signature(controller=controller) | {"state": f"{tmp_path}\n".encode()}
    text = program(f"{COMMON}\nlock_seconds", request)
    ran = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == seconds


def test_a_lock_can_be_broken(tmp_path: Path) -> None:
    act(tmp_path, controller="one")
    assert act(tmp_path, controller="two", break_lock=True) == "done"
    assert lease(tmp_path)[1] == "two"


def test_the_lease_is_counted_from_the_end_of_the_last_command(tmp_path: Path) -> None:
    act(tmp_path, controller="one", work=f"echo '0 one r1' >{tmp_path}/lease")
    assert int(lease(tmp_path)[0]) > time.time() + LEASE - 30


def test_a_lease_that_cannot_be_renewed_is_reported(tmp_path: Path) -> None:
    """A full disk leaves the file in front of it empty: here a directory stands in its place."""
    request = signature(run="r1", controller="one") | {"state": f"{tmp_path}\n".encode()}
    text = program(f'{COMMON}\nlock\nmkdir "$GPUNODE_STATE/.lease"\nfinish changed done', request)
    ran = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=False)
    outcome = parse_outcome(ran.stdout, ran.returncode)
    assert outcome.status == "changed"
    assert [note for note in outcome.notes if "lease of this node could not be renewed" in note]
    assert lease(tmp_path)[1] == "one"


def test_a_name_that_no_shell_should_see_is_refused() -> None:
    with pytest.raises(InputError):
        signature(controller="$(reboot)")


def test_a_controllers_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    name = controller_name()
    assert name == controller_name() and signature(controller=name)


def test_threads_that_ask_for_the_first_time_get_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt in range(20):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / str(attempt)))
        together = threading.Barrier(8)

        def ask(_: int, together: threading.Barrier = together) -> str:
            together.wait()
            return controller_name()

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(ask, range(8)))) == 1
        assert [p.name for p in (tmp_path / str(attempt) / "gpunode").iterdir()] == ["controller"]
