"""commit.sh interrupted: killed before any command it runs, taking turns with others, read while it writes."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from commit_node import SHELLS, SYSTEMCTL, Node, sha, unit

from gpunode.core.edits.commit import TRIES, FileChange, commit_request
from gpunode.core.model import Outcome

# The external commands of the script; each of their calls is a place to be killed at.
COMMANDS = (
    "awk basename cat chmod chown cp cut date dd dirname flock grep head mkdir mv readlink rm rmdir sed sha256sum stat "
    "sync tail timeout touch tr wc"
)
# Numbers the calls, also those of a pipeline, by creating a file for each; kills the whole session at the one that is
# asked for: `timeout` has a process group of its own.
COUNT = """n=1
set -C
until { true >"$NODE/calls/$n"; } 2>/dev/null; do n=$((n + 1)); done
set +C
read -r at <"$NODE/kill"
if [ "$n" = "$at" ]; then
  read -r _ _ _ _ _ session _ </proc/self/stat
  kill -9 "-$session"
  kill -9 0
fi
"""


def shims_that_kill(node: Node) -> None:
    for name in COMMANDS.split():
        node.shim(name, f'#!/bin/sh\n{COUNT}exec {shutil.which(name)} "$@"\n')
    node.shim("systemctl", SYSTEMCTL.replace("cd ", f"{COUNT}cd ", 1))
    node.shim("daemon", f"#!/bin/sh\n{COUNT}echo root = 1\n")


def set_kill(node: Node, at: int) -> None:
    shutil.rmtree(node.root / "calls", ignore_errors=True)
    (node.root / "calls").mkdir()
    (node.root / "kill").write_text(f"{at}\n")


def killed_at(node: Node, at: int, text: str) -> bool:
    """Run an edit of two files that uses up an undo record, killed at its call number `at`; false when it has fewer."""
    shims_that_kill(node)
    set_kill(node, at)
    old = node.state / "backup/20260101T000000Z-files-000000"
    old.mkdir(parents=True)
    (old / "undo.json").write_text("{}\n")
    changes = (
        FileChange(path=str(node.root / "etc/conf.d/x"), data=b"drop-in\n", expect="", like=str(node.config)),
        FileChange(path=str(node.config), data=text.encode(), expect=sha("old\n")),
    )
    after = unit(node, validate=("daemon", "config", "dump"))
    request = commit_request(changes, after=replace(after, settle=0))
    request |= {"undo": b'{"label": "engine"}\n', "used": f"{old.name}\n".encode()}
    process = node.start(request)
    node.finish(process)
    set_kill(node, 0)
    return process.returncode == -signal.SIGKILL


def settled(node: Node, at: int, text: str) -> str:
    """The config after the next run of any kind has recovered; all that belongs together agrees with it."""
    assert node.config.read_text() in ("old\n", text), "no file is ever half written"
    recovered = node.run()
    assert recovered.status in ("changed", "unchanged", "rolled_back"), (at, recovered)
    config = node.config.read_text()
    assert (node.root / "etc/conf.d/x").exists() == (config == text != "old\n"), (at, recovered)
    assert (node.root / "running").read_text() == config, (at, recovered)
    assert (node.leftovers, node.unfinished, (node.root / "active").read_text()) == ([], set(), "active\n"), at
    new, done = node.backups("undo.json"), config == text
    assert (len(new) == 1 and new != ["20260101T000000Z-files-000000"]) == done, (at, recovered, new)
    assert node.backups("undo.used.json") == (["20260101T000000Z-files-000000"] if done else []), at
    assert node.run().status == "unchanged"
    return config


def kill_at_every(step: int, tmp_path: Path, text: str, shell: str) -> None:
    at, outcomes = 1, set()
    while killed_at(node := Node(tmp_path / str(at), shell), at, text):
        outcomes.add(settled(node, at, text))
        shutil.rmtree(node.root)
        at += step
    assert node.config.read_text() == (text if text == "new\n" else "old\n")
    assert at > 100, "the loop went through the whole transaction"
    assert outcomes == ({"old\n", "new\n"} if text == "new\n" else {"old\n"})


@pytest.mark.parametrize("text", ["new\n", "broken\n"])
def test_kill_at_some_commands_loses_nothing(tmp_path: Path, text: str) -> None:
    kill_at_every(16, tmp_path, text, "dash")


@pytest.mark.extended
@pytest.mark.parametrize(("shell", "step"), [("dash", 1), ("bash", 4), ("busybox", 4)])
@pytest.mark.parametrize("text", ["new\n", "broken\n"])
def test_kill_at_any_command_loses_nothing(tmp_path: Path, text: str, shell: str, step: int) -> None:
    kill_at_every(step, tmp_path, text, shell)


def test_recovery_leaves_what_somebody_else_wrote_since(tmp_path: Path) -> None:
    node, at = Node(tmp_path / "1"), 1
    while killed_at(node, at, "new\n") and node.config.read_text() == "old\n":
        at += 10
        node = Node(tmp_path / str(at))
    node.config.write_text("by hand\n")
    outcome = node.run()
    assert node.config.read_text() == "by hand\n"
    assert any("another program changed" in note for note in outcome.notes)
    assert node.unfinished == set()


def test_a_journal_that_was_torn_off_does_not_spoil_the_next_line(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    node.write("1\n")
    with (node.state / "journal.jsonl").open("a") as journal:
        journal.write('{"v":1,"id":"20260101T000000Z-files-1","op":"files","phase":"int')
    assert node.write("2\n").status == "changed"
    lines = (node.state / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["phase"] for line in lines if line.endswith("}")] == ["intent", "done"] * 2


# ---------------------------------------------------------------- others at the same time


def test_writers_take_turns(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    changes = [FileChange(path=str(node.root / f"etc/{i}"), data=b"x") for i in range(4)]
    requests = [commit_request((change,), after=replace(unit(node), settle=0)) for change in changes]
    outcomes = [node.finish(process) for process in [node.start(request) for request in requests]]
    assert [o.status for o in outcomes] == ["changed"] * 4
    assert [line["phase"] for line in node.journal] == ["intent", "done"] * 4, "never one inside another"


def add_line(node: Node, line: str) -> Outcome:
    """Read, edit, commit; again when somebody else was faster."""
    for _ in range(TRIES):
        text = node.config.read_text()
        if line in text.splitlines():
            return Outcome(status="unchanged")
        change = FileChange(path=str(node.config), data=f"{text}{line}\n".encode(), expect=sha(text))
        outcome = node.run(change)
        if not outcome.stale:
            break
    return outcome


def two_writers(node: Node, rounds: int) -> None:
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.add(node.config.read_text())

    with ThreadPoolExecutor(3) as pool:
        watching = pool.submit(watch)
        for _ in range(rounds):
            (node.root / "reset").write_text("old\n")
            (node.root / "reset").replace(node.config)
            both = [pool.submit(add_line, node, line) for line in ("one", "two")]
            assert [one.result().status for one in both] == ["changed", "changed"]
            assert sorted(node.config.read_text().split()) == ["old", "one", "two"], "nothing is lost"
            assert [add_line(node, line).status for line in ("one", "two")] == ["unchanged"] * 2
        over.set()
        watching.result()
    whole = {"old\n", "old\none\n", "old\ntwo\n", "old\none\ntwo\n", "old\ntwo\none\n"}
    assert seen <= whole, "no reader sees an empty or a half file"
    assert node.leftovers == []


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    two_writers(Node(tmp_path / "node"), 6)


@pytest.mark.extended
@pytest.mark.parametrize("shell", SHELLS)
def test_two_writers_lose_nothing_in_sixty_rounds(tmp_path: Path, shell: str) -> None:
    two_writers(Node(tmp_path / "node", shell), 60)


@pytest.mark.parametrize("shell", SHELLS)
def test_many_writers_take_turns(tmp_path: Path, shell: str) -> None:
    node = Node(tmp_path / "node", shell)
    changes = [FileChange(path=str(node.root / f"etc/{i}"), data=b"x") for i in range(5)]
    processes = [node.start(commit_request((change,))) for change in changes]
    assert [node.finish(process).status for process in processes] == ["changed"] * 5
    assert [line["phase"] for line in node.journal] == ["intent", "done"] * 5, "never one inside another"
