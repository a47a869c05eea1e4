"""Five hundred hosts, of each fault one in twenty: the others have their results, and each that has none a reason."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.errors import UnreachableError
from gpunode.edge import share
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets, probe
from gpunode.edge.fleet import workflow
from gpunode.edge.fleet.workflow import plan_all
from gpunode.edge.side_by_side import OUTPUT, Deadline
from gpunode.edge.ssh import many
from gpunode.edge.ssh.shell import OUTPUT_LIMIT, Target, shell_started, too_much

PROBE = (Path(__file__).parents[1] / "cases/probes/arch-h100-provisioned/probe.txt").read_text()
SECRET = "correct-horse-7"
# what comes of a host, and what its error has
FAULTS = {
    "unreachable": "no route to host",
    "silent": "did not end within 1 s",
    "echo": "no shell could be started: ********",
    "endless": f"more than {OUTPUT_LIMIT >> 20} MiB",
    "garbage": "answer cannot be used",
    "cut off": "answer cannot be used",
    "killed": "the probe was killed there",
    "a bug": "unexpected ZeroDivisionError",
    "costly": "seconds of processor time",
}
COUNT = 500


def fault(name: str) -> str:
    """Of the first nine of each twenty, by the name of the host."""
    return [*FAULTS, *[""] * (20 - len(FAULTS))][int(name.removeprefix("gpu")) % 20]


class Host:
    def __init__(self, target: Target) -> None:
        self.target = target

    def run(self, program: str, *, deadline: Deadline) -> tuple[int, str, str]:
        kind, name = fault(self.target.name), self.target.name
        text = PROBE.replace("arch-h100", name)
        if kind == "silent":
            deadline.part, ended = OUTPUT, threading.Event()
            with deadline.closes(ended.set):
                ended.wait(60)
        if kind == "endless":
            raise too_much(self.target)
        if kind == "echo":
            shell_started(self.target, 0, SECRET, "")
        if kind == "a bug":
            raise ZeroDivisionError
        answers = {"garbage": (0, "\0\x1b[2J" * 1000, ""), "cut off": (0, text[: len(text) // 2], "")}
        answers["killed"] = (137, "", "")
        return answers.get(kind, (0, text, ""))


@contextlib.contextmanager
def connect(target: Target, **_: object) -> Iterator[Host]:
    if fault(target.name) == "unreachable":
        raise UnreachableError(f"{target.name}: no route to host")
    yield Host(target)


@pytest.mark.slow
def test_of_five_hundred_hosts_those_without_a_fault_have_their_plans_and_the_others_their_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(many, "connect", connect)
    real = DesiredState.plan

    def plan(self: DesiredState, host: str, *more: object, **others: object) -> object:
        while fault(host) == "costly":
            pass
        return real(self, host, *more, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(DesiredState, "plan", plan)
    monkeypatch.setattr(workflow, "in_its_share", lambda host, call: share.in_its_share(host, call, seconds=0.2))
    targets = Targets(hosts=("x",), forks=50, timeout=1)
    hosts = [
        Detected(host=name, target=Target(name=name, become_password=SECRET))
        for name in (f"gpu{number}" for number in range(COUNT))
    ]
    seen: list[str] = []
    found = probe(hosts, targets, on_done=lambda one: seen.append(one.host))
    assert sorted(seen) == sorted(one.host for one in hosts)
    planned = plan_all([replace(one, target=None) for one in found], targets, DesiredState({}))
    said = {one.host: str(one.error) if one.error else "" for one in planned}
    assert Counter(fault(host) for host, text in said.items() if text) == dict.fromkeys(FAULTS, COUNT // 20)
    for host, text in said.items():
        assert FAULTS.get(fault(host), "") in text and SECRET not in text
        assert not text or fault(host) == "costly" or host in text
