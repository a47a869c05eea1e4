"""commit.sh on machines that fail: system calls, full and read-only disks, immutable files, no permission."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commit_node import Node, unit

from gpunode.core.edits.commit import FileChange, commit_request
from gpunode.core.model import Outcome

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, owners and attributes need root")
NOBODY = 65534


def edit(node: Node, new: str = "new\n") -> Outcome:
    """Two files, one of them new."""
    changes = (
        FileChange(path=str(node.root / "etc/conf.d/x"), data=b"drop-in\n", like=str(node.config)),
        FileChange(path=str(node.config), data=new.encode()),
    )
    return node.ask(commit_request(changes, after=replace(unit(node), settle=0)) | {"undo": b"{}\n"})


def check_whole(node: Node, outcome: Outcome, new: str = "new\n") -> None:
    """All is new when it says so, and old when it says that it failed; nothing lies about."""
    expected = (True, new) if outcome.status == "changed" else (False, "old\n")
    assert ((node.root / "etc/conf.d/x").exists(), node.config.read_text()) == expected, outcome
    assert outcome.message
    assert outcome.fix or outcome.status == "changed", outcome
    assert node.leftovers == []


def check_converges(node: Node, new: str = "new\n") -> None:
    outcome = edit(node, new)
    assert outcome.status in ("changed", "unchanged"), outcome
    assert ((node.root / "etc/conf.d/x").exists(), node.config.read_text()) == (True, new)
    assert (node.leftovers, node.unfinished, (node.root / "running").read_text()) == ([], set(), new)


# ---------------------------------------------------------------- system calls

# Numbers the calls of one command by creating files, and lets the system calls of one of them fail.
FAIL = """#!/bin/sh
n=1
set -C
until {{ true >"$NODE/calls/$n"; }} 2>/dev/null; do n=$((n + 1)); done
[ "$n" != "{at}" ] || exec strace -qq -o /dev/null -e inject={calls}:error={error} {real} "$@"
exec {real} "$@"
"""
RENAME = "rename,renameat,renameat2"
FAULTS = [
    ("mv", RENAME, "EIO", "Input/output error"),
    ("mv", RENAME, "EACCES", "Permission denied"),
    ("dd", "fsync", "EIO", "Input/output error"),
    ("dd", "write", "ENOSPC", ""),  # and of its message
    ("sync", "fsync,fdatasync", "EIO", "Input/output error"),
    ("cp", "write,copy_file_range,sendfile", "ENOSPC", ""),
    ("cp", "openat", "EACCES", ""),  # the loader is refused its libraries too
    pytest.param(("sha256sum", "read", "EIO", ""), marks=pytest.mark.slow),
    ("mkdir", "mkdir,mkdirat", "EROFS", "Read-only file system"),
    ("chmod", "fchmodat,chmod", "EPERM", "not permitted"),
]


def can_inject() -> bool:
    if not shutil.which("strace"):
        return False
    command = ["strace", "-qq", "-o", "/dev/null", "-e", "inject=fsync:error=EIO", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def fail_at(tmp_path: Path, fault: tuple[str, str, str, str], at: int) -> Outcome | None:
    """What comes of a run in which one command's call number `at` fails; None when it has fewer calls."""
    name, calls, error, _ = fault
    node = Node(tmp_path / str(at))
    (node.root / "calls").mkdir()
    node.shim(name, FAIL.format(at=at, calls=calls, error=error, real=shutil.which(name)))
    outcome = edit(node)
    done = len(list((node.root / "calls").iterdir())) >= at
    (node.bin / name).unlink()
    if done and outcome.status == "failed" and node.unfinished:
        assert node.config.read_text() in ("old\n", "new\n")
    else:
        check_whole(node, outcome)
    check_converges(node)
    shutil.rmtree(node.root)
    return outcome if done else None


@pytest.mark.skipif(not can_inject(), reason="needs strace")
@pytest.mark.parametrize("fault", FAULTS, ids="-".join)
def test_a_failing_system_call_leaves_all_old_or_all_new(tmp_path: Path, fault: tuple[str, str, str, str]) -> None:
    at, printed = 1, []
    while outcome := fail_at(tmp_path, fault, at):
        printed.append(outcome.message)
        at += 1
    assert len(printed) > 0
    assert any(fault[3] in text for text in printed), "the error's own words are passed on"


# ---------------------------------------------------------------- disks


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "small", place], check=False).returncode:
        pytest.skip("cannot mount a tmpfs")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(place: Path, left: int) -> Path:
    """Take all room but `left` KiB."""
    ballast = place / "ballast"
    stat = os.statvfs(place)
    ballast.write_bytes(b"x" * (stat.f_bavail * stat.f_frsize - left * 1024))
    return ballast


@ROOT
@pytest.mark.parametrize("where", ["etc", "state"])
@pytest.mark.parametrize("left", [0, 8, 32, 44])
def test_a_full_disk_leaves_all_old_or_all_new(tmp_path: Path, small: Path, where: str, left: int) -> None:
    node = Node(tmp_path / "node", state=small / "state" if where == "state" else None)
    if where == "etc":
        shutil.move(node.root / "etc", small / "etc")
        (node.root / "etc").symlink_to(small / "etc")
    big = "new\n" * 5000
    ballast = fill(small, left)
    outcome = edit(node, big)
    assert outcome.status != "unchanged"
    if outcome.status != "changed":
        assert "No space left on device" in outcome.message + outcome.log, outcome
    if not node_unfinished(node):
        check_whole(node, outcome, big)
    ballast.unlink()
    check_converges(node, big)


def node_unfinished(node: Node) -> bool:
    """Whether the journal, whose last line may be torn off, has an intent without outcome."""
    journal = node.state / "journal.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return bool(lines) and '"phase":"intent"' in lines[-1]


@ROOT
def test_a_read_only_disk_is_named(tmp_path: Path, small: Path) -> None:
    node = Node(tmp_path / "node")
    shutil.move(node.root / "etc", small / "etc")
    (node.root / "etc").symlink_to(small / "etc")
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    outcome = edit(node)
    assert (outcome.status, node.config.read_text()) == ("rolled_back", "old\n")
    assert "Read-only file system" in outcome.message
    assert outcome.log.count("Read-only file system") == 1, "and not once for each try"
    assert "writable" in outcome.fix
    subprocess.run(["mount", "-o", "remount,rw", small], check=True)
    check_converges(node)


@ROOT
@pytest.mark.parametrize("what", ["etc/config", "etc"])
def test_an_immutable_file_or_folder_is_named(tmp_path: Path, what: str) -> None:
    node = Node(tmp_path / "node")
    if not shutil.which("chattr") or subprocess.run(["chattr", "+i", node.root / what], check=False).returncode:
        pytest.skip("no immutable files here")
    try:
        outcome = node.write("new\n", unit(node))
    finally:
        subprocess.run(["chattr", "-i", node.root / what], check=True)
    assert outcome.status == "rolled_back"
    assert "Operation not permitted" in outcome.message
    assert "chattr -i" in outcome.fix
    assert (node.config.read_text(), node.notified(), node.leftovers) == ("old\n", [], [])


@ROOT
def test_a_file_that_is_a_mount_of_its_own_is_named(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    if subprocess.run(["mount", "--bind", node.config, node.config], check=False).returncode:
        pytest.skip("cannot mount")
    try:
        outcome = node.write("new\n", unit(node))
    finally:
        subprocess.run(["umount", node.config], check=True)
    assert (outcome.status, node.config.read_text(), node.notified(), node.leftovers) == (
        "rolled_back",
        "old\n",
        [],
        [],
    )
    assert outcome.fix == "it is a mount of its own: edit what is mounted there"


# ---------------------------------------------------------------- a user who is not root


@pytest.fixture
def users() -> Iterator[Node]:
    """The node of a user: its own state, and a config in the user's own folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        node = Node(Path(folder) / "node")
        node.user = NOBODY
        for path in (node.root, node.config.parent, node.config):
            os.chown(path, NOBODY, NOBODY)
        for path in (node.root / name for name in ("active", "pid", "running")):
            os.chown(path, NOBODY, NOBODY)
        yield node


@ROOT
def test_a_user_may_edit_own_files(users: Node) -> None:
    assert users.write("new\n").status == "changed"
    assert users.state.stat().st_uid == NOBODY


@ROOT
def test_a_file_that_may_not_be_read_or_written_is_named(users: Node) -> None:
    os.chown(users.config, 0, 0)
    users.config.chmod(0o600)
    outcome = users.write("new\n")
    assert (outcome.status, outcome.message) == ("failed", f"{users.config} cannot be read")
    users.config.chmod(0o644)
    outcome = users.write("new\n")
    assert outcome.status == "failed"
    assert "the owner and mode" in outcome.message, "it would become the user's"
    os.chown(users.config, NOBODY, NOBODY)
    os.chown(users.config.parent, 0, 0)
    outcome = users.write("new\n")
    assert outcome.status == "rolled_back"
    assert "Permission denied" in outcome.message
    assert users.config.read_text() == "old\n"


@ROOT
def test_a_state_that_may_not_be_written_is_named(users: Node) -> None:
    users.state.mkdir()
    outcome = users.write("new\n")
    assert (outcome.status, users.config.read_text()) == ("failed", "old\n")
    assert outcome.message.startswith(f"cannot write {users.state}/lock: ")
    assert "ermission denied" in outcome.message
    assert outcome.fix
