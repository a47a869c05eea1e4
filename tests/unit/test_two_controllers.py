"""Two controllers and one node: a lease that ran out while its run slept, one that is forged, a lock that holds."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_lease import act, at_work, lease, release
from test_lease import script as leased
from test_node_action import KINDS, task

from gpunode.core.remote import program
from gpunode.node import script


def run_out(state: Path) -> None:
    """The lease ends, as after three minutes without a command."""
    rest = (state / "lease").read_text().partition(" ")[2]
    (state / "lease").write_text(f"{int(time.time()) - 1} {rest}")


WORK = "journal packages intent; journal packages done"


@pytest.mark.parametrize("other_ends", ["runs out", "is given back"])
def test_a_run_that_slept_while_another_controller_worked_is_refused(other_ends: str, tmp_path: Path) -> None:
    """A laptop that was closed: its plan is of a node that is another one by now."""
    assert act(tmp_path, controller="one", run="r1", generation="100", work=WORK) == "done"
    run_out(tmp_path)
    assert act(tmp_path, controller="two", run="r2", generation="50", work=WORK) == "done"
    assert "controller two is at work" in act(tmp_path, controller="one", run="r1", generation="100", work=WORK)
    if other_ends == "runs out":
        run_out(tmp_path)
    else:
        release(tmp_path, controller="two", run="r2", generation="50")
    before = (tmp_path / "journal.jsonl").read_text()
    printed = act(tmp_path, controller="one", run="r1", generation="100", work=WORK)
    assert "the controller two has worked on this node since (run r2)" in printed
    assert (tmp_path / "journal.jsonl").read_text() == before
    assert act(tmp_path, controller="one", run="r3", generation="101", work=WORK) == "done", "a new run is a new plan"
    assert act(tmp_path, controller="one", run="r3", generation="101", work=WORK) == "done"
    assert lease(tmp_path)[1:3] == ["one", "r3"]


def test_a_run_that_slept_alone_goes_on(tmp_path: Path) -> None:
    assert act(tmp_path, controller="one", run="r1", work=WORK) == "done"
    run_out(tmp_path)
    assert act(tmp_path, controller="one", run="r1", work=WORK) == "done"


def test_a_run_goes_on_where_the_other_one_was_refused(tmp_path: Path) -> None:
    assert act(tmp_path, controller="one", run="r1", work=WORK) == "done"
    assert "is at work" in act(tmp_path, controller="two", run="r2", work=WORK)
    assert act(tmp_path, controller="one", run="r1", work=WORK) == "done"


def test_a_run_that_is_told_to_break_the_lock_goes_on(tmp_path: Path) -> None:
    act(tmp_path, controller="one", run="r1", work=WORK)
    run_out(tmp_path)
    act(tmp_path, controller="two", run="r2", work=WORK)
    run_out(tmp_path)
    assert act(tmp_path, controller="one", run="r1", work=WORK, break_lock=True) == "done"


def test_of_two_controllers_that_begin_at_once_one_works(tmp_path: Path) -> None:
    with at_work(tmp_path, controller="one", run="r1") as end:
        assert "controller one is at work" in act(tmp_path, controller="two", run="r2")
        run_out(tmp_path)  # its lease is over while its script still works: the lock holds
        with pytest.raises(TimeoutError):
            _within(2, tmp_path)
        assert end() == "done"


def test_the_smoke_test_of_another_controller_is_refused_while_a_run_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps found done what the other run had done a moment before: none of them asked the node for the lease."""
    kind = KINDS["smoke"]
    asked = {"state": f"{tmp_path}\n".encode()}

    def send(_: object, name: str, request: dict[str, bytes]) -> tuple[str, int]:
        ran = subprocess.run(["sh"], input=program(script(name), request | asked), capture_output=True, text=True)
        return ran.stdout, ran.returncode

    monkeypatch.setattr(kind, "send", send)
    smokes = {}
    for name in ("one", "two", ""):
        smokes[name] = task(kind, check_mode=False, tags=())
        smokes[name]._vars |= {"gpunode_run": "r1", "gpunode_controller": name}
    with at_work(tmp_path, controller="one", run="r1") as end:
        two = kind.act(smokes["two"], {"smoke": {"gpus": 0}})
        assert two["gpunode_exit"] == 5 and "the controller one is at work" in two["msg"] and "checks" not in two
        assert "checks" in kind.act(smokes[""], {"smoke": {"gpus": 0}}), "a role has no controller"
        assert end() == "done"
    run_out(tmp_path)
    assert kind.act(smokes["one"], {"smoke": {"gpus": 0}})["checks"] == []
    assert int(lease(tmp_path)[0]) > time.time(), "the node stays its own"


def _within(seconds: float, state: Path) -> None:
    text = leased(state, "lock\nfinish changed done", run="r2", controller="two")
    try:
        subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None


@pytest.mark.parametrize(
    "text",
    ["9" * 400 + " two r2 5\n", "-5 two r2\n", "\x1b[2J $(touch X) r2 5\n", "1 two r2 5\n" * 100_000, "\0\0\0\n",
     "1e9 two r2 5\n", f"{2**70} two r2 {2**70}\n"],
    ids=["long", "negative", "escapes", "lines", "NUL", "float", "large"],
)  # fmt: skip
def test_a_lease_that_somebody_forged_keeps_nobody_out_and_runs_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "lease").write_text(text)
    assert act(tmp_path, controller="one", run="r1", generation="7") == "done"
    assert {path.name for path in tmp_path.iterdir()} <= {"lease", "lock", "released"}


def test_two_controllers_that_go_through_one_fleet_from_both_ends_share_no_node(tmp_path: Path) -> None:
    nodes = [tmp_path / f"gpu{n}" for n in range(8)]
    for node in nodes:
        node.mkdir()

    def through(name: str, fleet: list[Path]) -> dict[str, str]:
        work = f"mkdir NODE/at || exit 9; sleep 0.1; rmdir NODE/at; echo {name} >>NODE/worked"
        return {
            node.name: act(node, controller=name, run=f"r{name}", work=work.replace("NODE", str(node)))
            for node in fleet
        }

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(through, ("one", "two"), (nodes, nodes[::-1]))
    for node in nodes:
        said = {"one": one[node.name], "two": two[node.name]}
        [done] = [name for name, text in said.items() if text == "done"]
        assert all("is at work" in text for name, text in said.items() if name != done)
        assert (node / "worked").read_text() == f"{done}\n"
