"""One host's answer costs the controller its share: over it that host has an error, and the others go on."""

from __future__ import annotations

import re
import resource
import signal
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.core.errors import GpunodeError
from gpunode.edge import share
from gpunode.edge.fleet import workflow
from gpunode.edge.share import in_its_share

CASES = Path(__file__).parents[1] / "cases/probes"


def words(found: object) -> str:
    assert isinstance(found, GpunodeError)
    return str(found)


def endless() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    "call",
    [
        endless,
        lambda: re.compile("(a*)*b").match("a" * 40),
        lambda: "x" * (1 << 20) in [str([["lol"] * 100] * 100) for _ in range(100_000)],
    ],
    ids=["a loop", "a pattern", "texts of lists"],
)
def test_time_is_bounded(call: object) -> None:
    found = in_its_share("gpu1", call, seconds=0.2)  # type: ignore[arg-type]
    assert "took more than 0.2 seconds of processor time" in words(found)


def test_memory_is_bounded() -> None:
    found = in_its_share("gpu1", lambda: [bytearray(10 << 20) for _ in range(1000)], memory=200 << 20)
    assert "took more than 200 MiB of memory" in words(found)


def test_what_was_set_before_is_set_again() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA), signal.getsignal(signal.SIGVTALRM)
    assert in_its_share("gpu1", lambda: 7) == 7
    assert isinstance(in_its_share("gpu1", endless, seconds=0.1), GpunodeError)
    assert (resource.getrlimit(resource.RLIMIT_DATA), signal.getsignal(signal.SIGVTALRM)) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0


def test_an_exception_that_somebody_catches_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "_AGAIN", 0.1)

    def stubborn() -> None:
        try:
            endless()
        except GpunodeError:
            endless()

    assert "processor time" in words(in_its_share("gpu1", stubborn, seconds=0.1))


def test_threads_start_while_a_host_is_read() -> None:
    """Fifty hosts are asked side by side: their threads reserve more than they use."""

    def ask() -> None:
        bytearray(1 << 20)

    def start() -> int:
        threads = [threading.Thread(target=ask) for _ in range(50)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return len(threads)

    assert in_its_share("gpu1", start) == 50


def test_in_another_thread_a_call_is_as_before() -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(in_its_share("gpu1", lambda: 7)))
    thread.start()
    thread.join()
    assert found == [7]


def test_of_a_fleet_the_other_hosts_are_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "probe.txt").write_text((CASES / "debian12-h100-fresh/probe.txt").read_text())
    real = workflow.DesiredState.plan

    def plan(self: workflow.DesiredState, host: str, *more: object) -> object:
        return real(self, host, *more) if host == "good" else endless()  # type: ignore[arg-type,func-returns-value]

    monkeypatch.setattr(workflow.DesiredState, "plan", plan)
    monkeypatch.setattr(workflow, "in_its_share", lambda host, call: in_its_share(host, call, seconds=0.5))
    ran = CliRunner().invoke(cli, ["plan", "--probe", str(tmp_path)])
    assert "bad" in ran.output and "0.5 seconds of processor time" in ran.output and "good" in ran.output
