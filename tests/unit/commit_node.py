"""A root for node/commit/commit.sh: one config file, one unit, a state folder, and shims in front of PATH."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.edits import Activation
from gpunode.core.edits.commit import FileChange, commit_request, settling_of
from gpunode.core.model import Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.node import script

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
# On a node whose shell is busybox, the commands are its applets too.
APPLETS = (
    "awk basename base64 cat chmod chown cp cut date dd dirname grep head mkdir mktemp mv readlink rm rmdir sed "
    "sha256sum stat sync tail timeout touch tr wc"
)

# A systemd of one unit: `restart` takes up the config like a daemon that refuses lines with "broken".
SYSTEMCTL = """#!/bin/sh
cd "$NODE" || exit 9
case $1 in
  is-active) cat active; [ "$(cat active)" = active ] ;;
  show) echo "MainPID=$(cat pid)" ;;
  reset-failed) : ;;
  restart | reload)
    echo "$1" >>told
    if grep -q broken etc/config; then echo failed >active; exit 1; fi
    /bin/cp etc/config running
    echo $(($(cat pid) + 1)) >pid
    echo active >active
    if grep -q crashes etc/config; then echo failed >active; fi ;;
  *) echo "systemctl $*: not prepared" >&2; exit 9 ;;
esac
"""
JOURNALCTL = """#!/bin/sh
echo 'Starting engine.service'
echo 'level=info msg="no error yet"'
echo 'level=error msg="cannot read plugin"'
echo 'level=fatal msg="bad config"'
echo 'engine.service: Failed with result exit-code.'
"""


class Node:
    """A root with one config file, one unit, and the state folder of commit.sh."""

    def __init__(self, root: Path, shell: str = "dash", state: Path | None = None) -> None:
        if not shutil.which(SHELLS[shell][0]):
            pytest.skip(f"no {shell} here")
        self.root = root
        self.shell = shell
        self.bin = root / "bin"
        self.config = root / "etc/config"
        self.state = state or root / "state"
        self.user: int | None = None  # who runs it; None: who runs the tests
        for folder in (self.bin, self.config.parent):
            folder.mkdir(parents=True)
        for name, text in {"active": "active\n", "pid": "100\n", "running": "old\n"}.items():
            (root / name).write_text(text)
        self.config.write_text("old\n")
        self.config.chmod(0o640)
        for name in APPLETS.split() if shell == "busybox" else ():
            (self.bin / name).symlink_to(str(shutil.which("busybox")))
        self.shim("systemctl", SYSTEMCTL)
        self.shim("journalctl", JOURNALCTL)
        self.shim("sleep", "#!/bin/sh\nexit 0\n")

    def shim(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, request: dict[str, bytes]) -> subprocess.Popen[bytes]:
        # the script appends the usual folders to PATH; the shims stay in front
        env = {"PATH": f"{self.bin}:/usr/bin:/bin", "NODE": str(self.root), "TMPDIR": str(self.root)}
        process = subprocess.Popen(
            [*SHELLS[self.shell], "-s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            user=self.user,
            group=self.user,
        )
        assert process.stdin
        text = program(script("commit.sh"), {"state": f"{self.state}\n".encode(), **request}).encode()
        # one that is killed early leaves the rest of a full pipe unread
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(text)
        return process

    def finish(self, process: subprocess.Popen[bytes]) -> Outcome:
        assert process.stdout
        text = process.stdout.read().decode()
        process.stdout.close()
        return parse_outcome(text, process.wait())

    def ask(self, request: dict[str, bytes]) -> Outcome:
        return self.finish(self.start(request))

    def start_and_read(self, request: dict[str, bytes]) -> list[str]:
        """The ids of the transactions that it leaves to be proven."""
        process = self.start(request)
        assert process.stdout
        with process.stdout:
            text = process.stdout.read().decode()
        assert process.wait() == 0, text
        return settling_of(text)

    def run(self, *changes: FileChange, after: Activation | None = None, check: bool = False) -> Outcome:
        return self.ask(commit_request(changes, after=after and replace(after, settle=0), check=check))

    def write(self, text: str, after: Activation | None = None) -> Outcome:
        """The root config alone gets another text."""
        return self.run(FileChange(path=str(self.config), data=text.encode()), after=after)

    @property
    def journal(self) -> list[dict[str, object]]:
        path = self.state / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def unfinished(self) -> set[object]:
        phases = {line["id"]: line["phase"] for line in self.journal}
        return {key for key, phase in phases.items() if phase == "intent"}

    @property
    def leftovers(self) -> list[str]:
        return [str(p) for p in (self.root / "etc").rglob("*") if ".gpunode" in p.name]

    def notified(self) -> list[str]:
        path = self.root / "told"
        return path.read_text().split() if path.exists() else []

    def backups(self, name: str) -> list[str]:
        """Ids of the transactions whose backup has a file of that name, oldest first."""
        return sorted(path.parent.name for path in self.state.glob(f"backup/*/{name}"))


def unit(node: Node, **options: object) -> Activation:
    return Activation(**{"unit": "engine.service", "verb": "restart", "config": str(node.config), **options})  # type: ignore[arg-type]


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
