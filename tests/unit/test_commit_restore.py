"""node/commit/commit.sh puts files back from the copies of earlier transactions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commit_node import Node, sha

from gpunode.core.edits.commit import FileChange, commit_request
from gpunode.core.errors import InputError


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def held(node: Node, n: int = 0) -> str:
    """The copy that the oldest transaction has kept."""
    return f"{node.backups('plan')[0]}/{n}.old"


def test_a_file_comes_back_with_bytes_and_times_after_many_changes_and_the_mode_that_it_was_given_since(
    node: Node,
) -> None:
    os.utime(node.config, (1_000_000, 1_000_000))
    for text in ("one\n", "two\n"):
        node.write(text)
    node.config.chmod(0o600)
    outcome = node.run(FileChange(path=str(node.config), expect=sha("two\n"), held=held(node)))
    assert outcome.texts == (f"rewrites {node.config}",)
    found = node.config.stat()
    assert (node.config.read_text(), found.st_mode & 0o777, found.st_mtime) == ("old\n", 0o600, 1_000_000)
    again = node.run(FileChange(path=str(node.config), expect=sha("old\n"), held=held(node)))
    assert again.status == "unchanged"


def test_a_file_that_was_removed_comes_back(node: Node) -> None:
    node.run(FileChange(path=str(node.config)))
    node.run(FileChange(path=str(node.config), expect="", held=held(node)))
    assert (node.config.read_text(), node.config.stat().st_mode & 0o777) == ("old\n", 0o640)


def test_a_copy_that_is_gone_is_refused(node: Node) -> None:
    node.write("new\n")
    (node.state / "backup" / held(node)).unlink()
    outcome = node.run(FileChange(path=str(node.config), held=f"{node.backups('plan')[0]}/0.old"))
    assert outcome.status == "refused" and "is gone" in outcome.message
    assert node.config.read_text() == "new\n"


def test_folders_that_an_earlier_transaction_made_go_with_their_last_file(node: Node) -> None:
    path = node.root / "etc/made/by/us/file"
    node.run(FileChange(path=str(path), data=b"x"))
    [id] = node.backups("plan")
    node.ask(commit_request([FileChange(path=str(path))]) | {"used": f"{id}\n".encode()})
    assert not (node.root / "etc/made").exists()


def test_the_copy_from_before_outlives_twenty_later_transactions(node: Node) -> None:
    for number in range(23):
        node.write(f"{number}\n")
    node.run(FileChange(path=str(node.config), held=held(node)))
    assert node.config.read_text() == "old\n"


@pytest.mark.parametrize("name", ["../../etc/shadow", "/etc/shadow", "id/../x.old", "id"])
def test_only_copies_of_the_journal_are_put_back(name: str) -> None:
    with pytest.raises(InputError):
        commit_request([FileChange(path="/etc/x", held=name)])
