"""A node is one controller's at a time: lib/lock.sh by the shell of this machine, on a state folder of its own."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts
from gpunode.core.remote import parse_outcome, program, signature
from gpunode.edge.detect import Detected
from gpunode.edge.lease import without_leased
from gpunode.edge.state import controller_name, next_generation
from gpunode.node import part
from gpunode.node import script as probe_script

COMMON = "".join(part(name).read_text(encoding="utf-8") for name in ("base.sh", "common.sh", "lock.sh"))
RELEASE = part("release.sh").read_text(encoding="utf-8")
LEASE = 180


def script(state: Path, text: str, **signed: Any) -> str:
    request = signature(**{"run": "r1", **signed}) | {"state": f"{state}\n".encode()}
    return program(f"{COMMON}\n{text}", request)


def act(state: Path, *, before: str = "", work: str = ":", **signed: Any) -> str:
    """A script that takes the lock, does its work and ends well → its message, or what it was refused for."""
    text = script(state, f"{before}\nlock\n{work}\nfinish changed done", **signed)
    ran = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=False)
    outcome = parse_outcome(ran.stdout, ran.returncode)
    assert outcome.status in ("changed", "refused", "failed"), ran.stderr
    return outcome.message + outcome.fix


def release(state: Path, **signed: Any) -> None:
    """What the end of a run does on a node."""
    text = script(state, RELEASE, **signed)
    ran = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=False)
    assert parse_outcome(ran.stdout, ran.returncode).status == "unchanged", ran.stderr


@contextmanager
def at_work(state: Path, *, before: str = "", **signed: Any) -> Iterator[Callable[[], str]]:
    """A script that holds the lock until it is asked for its message."""
    (state / "go").unlink(missing_ok=True)
    hold = f"{before}\nlock\ntouch {state}/locked\nuntil [ -e {state}/go ]; do sleep 0.1; done\nfinish changed done"
    text = script(state, hold, **signed)
    process = subprocess.Popen(["sh", "-s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    process.stdin.write(text)
    process.stdin.close()

    def end() -> str:
        (state / "go").touch()
        assert process.stdout
        return parse_outcome(process.stdout.read(), process.wait()).message

    try:
        until = time.monotonic() + 20
        while not (state / "locked").exists() and time.monotonic() < until:
            time.sleep(0.05)
        yield end
    finally:
        end()
        (state / "locked").unlink(missing_ok=True)


def lease(state: Path) -> list[str]:
    return (state / "lease").read_text().split()


def test_a_controller_keeps_its_node_and_another_is_refused(tmp_path: Path) -> None:
    assert act(tmp_path, controller="one", run="r1") == "done"
    assert lease(tmp_path)[1:] == ["one", "r1"]
    assert act(tmp_path, controller="one", run="r2") == "done"
    printed = act(tmp_path, controller="two")
    assert "controller one is at work" in printed and "run r2" in printed and "--break-lock" in printed
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


# ---------------------------------------------------------------- runs of one controller


def test_a_script_of_an_earlier_run_is_refused_once_a_later_run_was_there(tmp_path: Path) -> None:
    assert act(tmp_path, controller="one", run="r1", generation="7") == "done"
    assert act(tmp_path, controller="one", run="r2", generation="8") == "done"
    assert lease(tmp_path)[1:] == ["one", "r2", "8"]
    printed = act(tmp_path, controller="one", run="r1", generation="7")
    assert "run r2 of the same controller was started after this one" in printed
    assert lease(tmp_path)[1:] == ["one", "r2", "8"]
    assert act(tmp_path, controller="one", run="r2", generation="8") == "done", "the later run goes on"


@pytest.mark.parametrize("end", ["released", "run out"])
def test_an_earlier_run_stays_refused_when_the_later_one_is_over(end: str, tmp_path: Path) -> None:
    act(tmp_path, controller="one", run="r2", generation="8")
    if end == "released":
        release(tmp_path, controller="one", run="r2", generation="8")
    else:
        (tmp_path / "lease").write_text(f"{int(time.time()) - 500} one r2 8\n")
    assert "run r2" in act(tmp_path, controller="one", run="r1", generation="7")
    assert act(tmp_path, controller="one", run="r3", generation="9") == "done"


def test_breaking_the_lock_does_not_let_an_earlier_run_pass_one_that_is_at_work(tmp_path: Path) -> None:
    act(tmp_path, controller="one", run="r2", generation="8")
    earlier = {"controller": "one", "run": "r1", "generation": "7", "break_lock": True}
    assert "run r2" in act(tmp_path, **earlier)
    release(tmp_path, controller="one", run="r2", generation="8")
    assert act(tmp_path, **earlier) == "done"


@pytest.mark.parametrize(("theirs", "mine"), [("", "7"), (" 8", ""), (" x", "7"), (" 8 more", "9")])
def test_a_lease_or_a_run_without_a_number_is_not_compared(theirs: str, mine: str, tmp_path: Path) -> None:
    """Playbooks and leases of a gpunode that did not know generations."""
    (tmp_path / "lease").write_text(f"{int(time.time()) + 60} one r2{theirs}\n")
    assert act(tmp_path, controller="one", run="r1", generation=mine) == "done"


def test_a_gpunode_that_knows_no_generations_still_reads_the_lease(tmp_path: Path) -> None:
    act(tmp_path, controller="one", run="r2", generation="8")
    read = f'read -r until other their_run <"{tmp_path}/lease"; echo "$until $other"'
    until, other = subprocess.run(["sh", "-c", read], capture_output=True, text=True, check=True).stdout.split()
    assert int(until) > time.time() and other == "one"


# ---------------------------------------------------------------- given back


def test_a_node_that_was_given_back_is_free_at_once(tmp_path: Path) -> None:
    act(tmp_path, controller="one", generation="7")
    assert "controller one" in act(tmp_path, controller="two", generation="1")
    release(tmp_path, controller="one", generation="7")
    assert act(tmp_path, controller="two", generation="1") == "done"


@pytest.mark.parametrize(
    "other",
    [{"controller": "two", "generation": "7"}, {"controller": "one", "generation": "8", "run": "r2"}],
    ids=["another controller", "a later run"],
)
def test_a_run_gives_back_no_lease_but_its_own(other: dict[str, str], tmp_path: Path) -> None:
    act(tmp_path, **other)
    release(tmp_path, controller="one", generation="7")
    assert "controller" in act(tmp_path, controller="three", generation="1")
    assert not (tmp_path / "released").exists()


def test_a_script_that_ends_after_its_run_does_not_take_the_node_again(tmp_path: Path) -> None:
    with at_work(tmp_path, controller="one", generation="7") as end:
        release(tmp_path, controller="one", generation="7")
        assert end() == "done"
    assert lease(tmp_path) == ["0", "one", "r1", "7"]
    assert act(tmp_path, controller="two", generation="1") == "done"


def test_a_node_that_gpunode_never_worked_on_is_left_as_it_is(tmp_path: Path) -> None:
    release(tmp_path / "nothing", controller="one", generation="7")
    assert not (tmp_path / "nothing").exists()


# ---------------------------------------------------------------- who waits, and for whom


@pytest.mark.timeout(120)
def test_another_controller_is_refused_by_name_before_it_waits_for_the_lock(tmp_path: Path) -> None:
    before = "\nlock_seconds() { echo 1000; }"
    with at_work(tmp_path, before=before, controller="one", generation="7"):
        printed = act(tmp_path, before=before, controller="two", generation="1")
    assert "the controller one is at work on this node (run r1" in printed


@pytest.mark.parametrize(
    ("signed", "who"),
    [({"controller": "one", "generation": "7"}, "the controller one (run r1)"), ({}, "another gpunode")],
    ids=["a controller", "a command on the node"],
)
def test_whoever_waits_in_vain_is_reported_for_whom(signed: dict[str, str], who: str, tmp_path: Path) -> None:
    """Also where the lease ran out, in the middle of a step that takes long."""
    act(tmp_path, controller="three", generation="1")
    (tmp_path / "lease").unlink()
    with at_work(tmp_path, **signed):
        (tmp_path / "lease").unlink(missing_ok=True)
        printed = act(tmp_path, before="\nlock_seconds() { echo 1; }", controller="two", generation="1")
    assert printed.startswith(f"{who} is at work on this node")


def test_a_node_without_flock_is_refused(tmp_path: Path) -> None:
    hidden = "have() { [ $1 != flock ] && command -v $1 >/dev/null 2>&1; }"
    assert act(tmp_path, before=hidden).startswith("this node has no flock")


# ---------------------------------------------------------------- numbers and names


def test_each_run_of_a_controller_has_a_greater_number_than_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: next_generation(), range(100)))
    assert len(set(numbers)) == 100 and min(numbers) >= time.time() - 60
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)  # somebody set the clock back
    assert next_generation() == max(numbers) + 1
    (tmp_path / "gpunode/generation").write_text("torn\0")
    assert next_generation() == 1_000_000_000


def test_a_generation_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="generation"):
        signature(controller="one", generation="1; reboot")


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


# ---------------------------------------------------------------- before anything is planned


def of_the_probe(state: Path) -> str:
    """What the probe says of the lease of that folder."""
    text = probe_script("probe.sh").replace("/var/lib/gpunode", str(state))
    ran = subprocess.run(["sh", "-s"], input=program(text, {"sections": b"locks\n"}), capture_output=True, text=True)
    return parse_probe(ran.stdout).lease


def test_the_probe_tells_whose_the_node_is_until_it_is_given_back(tmp_path: Path) -> None:
    assert of_the_probe(tmp_path) == ""
    act(tmp_path, controller="one", generation="7")
    assert of_the_probe(tmp_path) == "one r1"
    release(tmp_path, controller="one", generation="7")
    assert of_the_probe(tmp_path) == ""
    for seconds, known in ((-5, False), (LEASE - 5, True), (LEASE + 60, False)):
        (tmp_path / "lease").write_text(f"{int(time.time()) + seconds} one r2 8\n")
        assert bool(of_the_probe(tmp_path)) is known, seconds


def test_a_node_of_another_controller_is_refused_before_it_is_planned() -> None:
    hosts = [
        Detected(host="mine", facts=NodeFacts(lease=f"{controller_name()} r1")),
        Detected(host="nobodys", facts=NodeFacts()),
        Detected(host="theirs", facts=NodeFacts(lease="two r2")),
    ]
    errors = [host.error for host in without_leased(hosts)]
    assert errors[:2] == [None, None] and "the controller two is at work on this node (run r2)" in str(errors[2])
