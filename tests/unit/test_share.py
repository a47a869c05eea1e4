"""One host's answer costs the controller its share: over it that host has an error, and the others go on."""

from __future__ import annotations

import re
import resource
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from ansible_collections.gpunode.node.plugins.plugin_utils import node
from click.testing import CliRunner
from test_node_action import run, task

from gpunode.cli.main import cli
from gpunode.core.errors import GpunodeError
from gpunode.core.facts import parse_probe
from gpunode.edge import ask, share
from gpunode.edge.ask import Talk, settle
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Targets
from gpunode.edge.fleet import standing, workflow
from gpunode.edge.load import load_knowledge
from gpunode.edge.share import in_its_share
from gpunode.edge.ssh.many import Ran
from gpunode.edge.ssh.shell import Target

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


def test_while_a_host_is_waited_for_nothing_is_bounded_and_one_share_within_another_is_the_outer_one() -> None:
    free = resource.getrlimit(resource.RLIMIT_DATA)
    with share.share(0.2) as lifted:
        assert resource.getrlimit(resource.RLIMIT_DATA) != free
        with lifted():
            assert resource.getrlimit(resource.RLIMIT_DATA) == free
            assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0
        assert "took more than 0.2 seconds" in words(in_its_share("gpu1", endless, seconds=9))


def test_what_an_action_makes_of_an_answer_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    made = task()
    monkeypatch.setattr(node, "share", lambda: share.share(0.2))
    run(made, {}, monkeypatch)  # what it needs of Ansible
    monkeypatch.setattr(made, "act", lambda _: endless(), raising=False)
    found = made.run(task_vars={"inventory_hostname": "n-1"})
    assert found["failed"] and "0.2 seconds of processor time" in found["msg"]


def test_a_package_managers_answer_that_cannot_be_used_is_no_answer_of_its_host_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hear(self: Talk, stdout: str, rc: int) -> bool:
        return Talk.end(self, self.planned.plan) if stdout == "good" else bool(endless())

    monkeypatch.setattr(ask, "in_its_share", lambda host, call: in_its_share(host, call, seconds=0.2))
    monkeypatch.setattr(Talk, "hear", hear)
    monkeypatch.setattr(Talk, "request", lambda self: None if self._rounds else {})
    made = DesiredState({}, to_run=False).plan(
        "gpu1", parse_probe((CASES / "debian12-h100-fresh/probe.txt").read_text())
    )
    good, bad = (Talk(planned=made, knowledge=load_knowledge(), replan=lambda _: made) for _ in range(2))

    def answers(requests: Mapping[int, object]) -> dict[int, tuple[str, int]]:
        good._rounds = bad._rounds = 1
        return {0: ("good", 0), 1: ("bad", 0)}

    settle([good, bad], answers)
    assert good.planned == made
    assert "the answer of the package manager cannot be used" in " ".join(bad.planned.plan.warnings)


def test_runs_that_take_too_long_to_list_are_an_error_of_their_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_many(programs: list[tuple[Target, str]], *, on_done: Callable[[Ran], None], **_: object) -> None:
        for target, _text in programs:
            on_done(Ran(target=target))

    monkeypatch.setattr(standing, "run_many", run_many)
    monkeypatch.setattr(standing, "in_its_share", lambda host, call: in_its_share(host, call, seconds=0.2))
    monkeypatch.setattr(standing, "_standing", lambda host, _: endless() if host == "bad" else [])
    found = {one.host: listed for one, listed in standing.list_runs(Targets(hosts=("bad", "good")))}
    assert found["good"] == [] and "0.2 seconds of processor time" in words(found["bad"])


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
