"""What node/lib/common.sh writes into the journal of a node, and what becomes of the variables of its callers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpunode.core.items.activation import activate_request
from gpunode.core.remote import parse_outcome, program
from gpunode.node import script

SHELLS = [shell for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(shell[0])]
SYSTEMCTL = """#!/bin/sh
case $1 in is-active) echo active ;; is-enabled) echo disabled && exit 1 ;; show) echo NeedDaemonReload=no ;; esac
"""


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


def fakes(folder: Path, **bodies: str) -> str:
    """A PATH that has these commands first."""
    folder.mkdir(exist_ok=True)
    for name, body in bodies.items():
        (folder / name).write_text(body if body.startswith("#!") else f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def records(state: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (state / "journal.jsonl").read_text().splitlines()]


READ_ONLY = (  # as mktemp, cp, dash, bash, apt and busybox have it of a mounted one
    "mktemp: failed to create file via template '/etc/apt/sources.list.d/aXXXX': Read-only file system",
    "cp: cannot create regular file '/etc/apt/sources.list.d/a': Read-only file system",
    "sh: 1: cannot create /etc/apt/preferences.d/a: Read-only file system",
    "sh: line 1: /etc/apt/preferences.d/a: Read-only file system",
    "Could not open file /var/lib/apt/lists/partial/Release - open (30: Read-only file system)",
    "sh: can't create /etc/apt/preferences.d/a: Read-only file system",
)
FULL = (  # as apt, dpkg, libdnf, rpm and libalpm have it
    "E: You don't have enough free space in /var/cache/apt/archives/.",
    "cannot copy extracted data for './usr/a' to '/usr/a.dpkg-new': failed to write (No space left on device)",
    "Not enough free space in /var/cache/dnf: needed 90 MB, available 3 MB",
    "installing package nvidia-open-595.71.05 needs 3 more inodes on the / filesystem",
    "installing package nvidia-open-595.71.05 needs 12MB more space on the / filesystem",
    "error: Partition /usr too full: 900 blocks needed, 3 blocks free",
    "error: failed to commit transaction (not enough free disk space)",
)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        *((words, "make room on that file system (df -h, df -i), then run again") for words in FULL),
        *((words, "make the file system writable, then run again") for words in READ_ONLY),
    ],
)
def test_a_failure_of_a_full_or_read_only_disk_is_answered_with_that_and_no_other(
    shell: list[str], words: str, fix: str
) -> None:
    text = program(f"{script('common.sh')}\nneed_root\nfinish failed \"{words}\" 'check the network'")
    done = subprocess.run([*shell, "-s"], input=text, capture_output=True, text=True, check=False)
    assert parse_outcome(done.stdout, done.returncode).fix == fix, done
    other = text.replace(words, "connection refused")
    done = subprocess.run([*shell, "-s"], input=other, capture_output=True, text=True, check=False)
    assert parse_outcome(done.stdout, done.returncode).fix == "check the network"


def test_a_unit_that_ran_before_is_not_recorded_as_stopped(shell: list[str], tmp_path: Path) -> None:
    """One that was started by hand, and is enabled now: a rollback would stop it."""
    request = activate_request({"services": ["nvidia-persistenced.service"]}) | {
        "state": f"{tmp_path}/state\n".encode()
    }
    path = fakes(tmp_path / "bin", systemctl=SYSTEMCTL)
    text = program(script("activate.sh"), request)
    done = subprocess.run([*shell, "-s"], input=text, capture_output=True, text=True, env={"PATH": path}, check=False)
    assert parse_outcome(done.stdout, done.returncode).status == "changed", done
    found = [(r["kind"], r["from"], r["to"]) for r in records(tmp_path / "state") if r["op"] == "state"]
    assert found == [("enabled", "disabled", "enabled")]


def functions(shell: list[str], commands: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Functions of packages.sh, whose state is below the folder, with what they read in it."""
    text = script("packages.sh").rpartition("\nmain\n")[0].replace("/var/lib/gpunode", f"{folder}/lib")
    env = {"PATH": os.environ["PATH"], "GPUNODE_IN": str(folder)} | environment
    return subprocess.run(
        [*shell, "-s"], input=f"{text}\n{commands}\n", text=True, capture_output=True, env=env, check=False
    )


@pytest.mark.parametrize("last", ["", '{"v":1,"id":"u","op":"uninstall","phase":"done"}\n'], ids=["no journal", "over"])
def test_a_file_that_its_package_takes_along_is_put_back_though_the_journal_begins_there(
    last: str, shell: list[str], tmp_path: Path
) -> None:
    mine = tmp_path / "daemon.json"
    mine.write_text("precious\n")
    (tmp_path / "keep").write_text(f"{mine}\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/journal.jsonl").write_text(last)
    for name in ("before", "marks", "would", "to_remove", "log"):
        (tmp_path / f".{name}").write_text("")
    path = fakes(
        tmp_path / "bin",
        **{
            "dpkg-query": "echo make 1 ii",
            "systemctl": "exit 1",
            "apt-get": f'case $* in *install*) rm "{mine}" ;; esac',
        },
    )
    steps = (
        "manager=apt\nmanager_() { case $1 in commit) apt-get install ;; esac; }\nrefuse_surprises() { :; }\n"
        'refuse_full_disk() { :; }\nlist_side_effects() { : >"$1"; }\ntransaction\necho now $(cat "$KEPT")'
    )
    done = functions(shell, steps, tmp_path, PATH=path, KEPT=str(mine))
    assert "now precious" in done.stdout, done
    assert "was put back" in done.stdout
    assert mine.read_text() == "precious\n"
