"""A connection that breaks while a script changes a node: the script goes on, and its own outcome is reported."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.gpunode.node.plugins.plugin_utils import node
from test_node_action import task

from gpunode.core.remote import CALL, FOLLOWS, STARTED, parse_outcome, program
from gpunode.node import part, script

CHANGES = "".join(part(name).read_text(encoding="utf-8") for name in ("base.sh", "common.sh", "lock.sh"))


def work(go: Path, end: str) -> str:
    """A script that waits for a file while it has the lock."""
    return f"{CHANGES}lock\nsay note before\nuntil [ -e {go} ]; do nap; done\nsay note after\n{end}\n"


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program with that request in a shell, on a node whose state is in a folder."""
    started = []

    def send(text: str, **request: str) -> subprocess.Popen[str]:
        files = {name: f"{value}\n".encode() for name, value in request.items()}
        files["state"] = f"{tmp_path}/state".encode()
        process = subprocess.Popen(
            ["sh", "-s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdin
        process.stdin.write(program(text, files))
        process.stdin.close()
        started.append(process)
        return process

    yield send
    for process in started:
        process.kill()
        process.wait()


def cut_off(process: subprocess.Popen[str]) -> None:
    """Nobody reads any more what it prints."""
    assert process.stdout and process.stderr
    assert process.stderr.readline() == f"{STARTED}\n"
    process.stdout.close()
    process.stderr.close()


def read(process: subprocess.Popen[str]) -> Any:
    assert process.stdout
    return parse_outcome(process.stdout.read(), process.wait(60))


def test_a_script_outlives_its_connection_and_its_outcome_is_told_to_who_follows_it(sent: Any, tmp_path: Path) -> None:
    cut_off(sent(work(tmp_path / "go", 'finish changed "packages are up to date"'), call="c1"))
    follower = sent(script("follow.sh"), follows="c1")
    with pytest.raises(subprocess.TimeoutExpired):
        follower.wait(1)
    (tmp_path / "go").touch()
    outcome = read(follower)
    assert (outcome.status, outcome.message) == ("changed", "packages are up to date")
    assert outcome.notes == ("the connection broke while this ran on the node, and was made again", "before", "after")
    again = read(sent(script("follow.sh"), follows="c1"))
    assert again == outcome, "until the next script changes the node"


@pytest.mark.parametrize("end", ["kill -9 $(sh -c 'echo $PPID')", 'locked="" && finish changed done'])
def test_a_script_that_left_no_outcome_has_failed(end: str, sent: Any, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    sent(work(tmp_path / "go", 'finish changed "another one"'), call="c0").wait(60)
    sent(work(tmp_path / "go", end), call="c1").wait(60)
    outcome = read(sent(script("follow.sh"), follows="c1"))
    assert (outcome.status, "ended without an outcome" in outcome.message) == ("failed", True)


def connection(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> tuple[Any, list[str]]:
    """A task whose connection gives these answers in turn, and the programs that went over it."""
    went: list[str] = []
    left = list(answers)

    def execute(text: str) -> Any:
        went.append(text)
        answer = left.pop(0)
        if isinstance(answer, str):
            raise AnsibleConnectionFailure(answer)
        return answer

    made = task(check_mode=False, tags=[])
    made._connection = type("Local", (), {"transport": "local"})()
    monkeypatch.setattr(made, "_execute", execute, raising=False)
    monkeypatch.setattr(node, "say", lambda _: None)
    monkeypatch.setattr(node.time, "sleep", lambda _: None)
    return made, went


BROKE = f"Failed to connect to the host via ssh: {STARTED}\nShared connection to n-1 closed."
DONE = {"stdout": "gpunode\tstatus\tchanged\ngpunode\tmessage\tdone\n", "stderr": "", "rc": 0}


def test_an_action_asks_again_for_the_script_that_its_connection_was_cut_off_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, went = connection(monkeypatch, BROKE, "ssh: connect to host n-1: timed out", BROKE, DONE)
    outcome, _ = made.node("packages.sh", {})
    assert (outcome.status, outcome.message) == ("changed", "done")
    assert [CALL in text.partition("gpunode_script")[0] for text in went] == [True, False, False, False]
    assert [f"/{FOLLOWS}" in text.partition("gpunode_script")[0] for text in went] == [False, True, True, True]


def test_where_no_shell_ran_or_nothing_is_changed_the_host_is_unreachable_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, went = connection(monkeypatch, "ssh: connect to host n-1: Connection refused", BROKE)
    with pytest.raises(AnsibleConnectionFailure, match="refused"):
        made.node("packages.sh", {})
    made._task.check_mode = True
    with pytest.raises(AnsibleConnectionFailure, match="closed"):
        made.node("packages.sh", {})
    assert len(went) == 2


def test_a_node_that_stays_away_is_unreachable_and_its_script_is_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    made, went = connection(monkeypatch, BROKE, *["ssh: connect to host n-1: timed out"] * 3)
    monkeypatch.setattr(node, "RECONNECT", -1)
    with pytest.raises(AnsibleConnectionFailure, match="the next run waits for it"):
        made.node("packages.sh", {})
    assert len(went) == 2
