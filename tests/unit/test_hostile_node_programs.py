"""A node whose sudo, shell and tools are somebody's: what they print, how long they take, whose PATH root goes by."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpunode.core.errors import GpunodeError
from gpunode.core.printable import printable
from gpunode.core.remote import parse_outcome, program
from gpunode.edge.ssh import shell
from gpunode.edge.ssh.shell import Target, local_run
from gpunode.node import script

SHELLS = [one for one in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(one[0])]
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it is root's PATH")
TOOLS = ("id", "ls", "find", "readlink", "mktemp", "base64", "stat", "cat", "rm", "sh", "awk", "sed", "date", "tr")


def tool(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


# ---------------------------------------------------------------- whose PATH


@ROOT
@pytest.mark.parametrize("sh", SHELLS, ids=lambda one: one[0])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757, 0o775, "owner", "relative", "link"], ids=str)
def test_root_runs_no_program_that_others_may_write(sh: list[str], mode: int | str, tmp_path: Path) -> None:
    planted, mark = tmp_path / "bin", tmp_path / "ran"
    for name in TOOLS:
        tool(planted, name, f'echo {name} >>{mark}; exec /bin/{name} "$@"')
    first = str(planted)
    if mode == "owner":
        os.chown(planted, 12345, 0)
    elif mode == "relative":
        first = ":.:bin"
    elif mode == "link":
        planted.chmod(0o777)
        (tmp_path / "link").symlink_to(planted)
        first = f"{tmp_path}/link"
    else:
        assert isinstance(mode, int)
        os.chown(planted, 0, 12345)
        planted.chmod(mode)
    sent = f'{script("common.sh")}\nneed_root\nsay note "$(cat $GPUNODE_IN/a)"\nfinish changed done'
    text = program(sent, {"a": b"read\n", "state": f"{tmp_path}\n".encode()})
    # as `program` is run: by a shell that was found by its full path
    where = shutil.which(sh[0])
    assert where
    env = {"PATH": f"{first}:{os.environ['PATH']}"}
    ran = subprocess.run(
        [where, *sh[1:], "-s"], input=text, capture_output=True, text=True, env=env, cwd=tmp_path, check=False
    )
    outcome = parse_outcome(ran.stdout, ran.returncode)
    assert (outcome.status, outcome.notes) == ("changed", ("read",)), ran.stderr
    assert not mark.exists(), mark.read_text()


@ROOT
@pytest.mark.parametrize("sh", SHELLS, ids=lambda one: one[0])
@pytest.mark.parametrize("request_", [{}, None], ids=["with a request", "without"])
def test_folders_of_root_stay_in_their_order(sh: list[str], request_: dict[str, bytes] | None, tmp_path: Path) -> None:
    for name in ("one", "two words"):
        (tmp_path / name).mkdir(mode=0o755)
    wanted = f"{tmp_path}/one:/usr/bin:{tmp_path}/two words:/bin"
    env = {"PATH": f"/nonesuch:{wanted}::/tmp:"}
    where = shutil.which(sh[0])
    assert where
    text = program('echo "$PATH"', request_)
    ran = subprocess.run([where, *sh[1:], "-s"], input=text, capture_output=True, text=True, env=env, check=False)
    assert ran.stdout == f"{wanted}\n", ran.stderr


def test_without_a_path_the_systems_folders_are_taken() -> None:
    text, words = program("id -un >/dev/null && echo there"), ["/bin/sh", "-c", "unset PATH; exec /bin/sh -s"]
    ran = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert ran.stdout == "there\n", ran.stderr


# ---------------------------------------------------------------- what sudo and the shell say

SUDOS = {
    "prints escapes and refuses": ("printf '\\033]52;c;cm0gLXJm\\a\\033[2J\\342\\200\\256' >&2; exit 1", "was refused"),
    "claims success and does nothing": ("exit 0", "was refused"),
    "claims that the password was wrong": ("echo 'Sorry, try again.' >&2; exit 1", "wrong password"),
    "prints results of its own": ("printf 'gpunode\\tstatus\\tchanged\\n'; exit 0", "was refused"),
    "prints without end": ("exec yes", "printed more than"),
    "prints errors without end": ("exec yes >&2", "printed more than|did not end within"),
    "never ends": ("exec sleep 60", "did not end within"),
    "never ends, and forks": ("sleep 60 & sleep 60 & wait", "did not end within"),
    "prints binary": ("head -c 100000 /dev/urandom; exit 7", "was refused"),
}  # fmt: skip


@pytest.mark.parametrize("name", SUDOS)
@pytest.mark.parametrize("password", ["", "pass word"])
def test_a_sudo_that_lies_ends_in_words(
    name: str, password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, says = SUDOS[name]
    tool(tmp_path / "bin", "sudo", text)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(shell, "OUTPUT_LIMIT", 1 << 20)
    target = Target(name="gpu1", connection="local", become=True, become_user="nobody-here", become_password=password)
    began = time.monotonic()
    with pytest.raises(GpunodeError, match=says) as raised:
        local_run("echo reached", target=target, timeout=2)
    assert time.monotonic() - began < 20
    words = f"{raised.value.what} {raised.value.fix}"
    assert len(words) < 2000 and "pass word" not in words
    assert re.search("[\x00-\x08\x0e-\x1f\x7f-\x9f\u202e]", words) is None, printable(words)


def test_a_sudo_that_changes_nothing_gives_no_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs the shell as the user that it was: the scripts look for themselves."""
    tool(tmp_path / "bin", "sudo", 'while [ "$1" != sh ]; do shift; done; exec "$@"')
    tool(tmp_path / "bin", "id", '[ "$1" = -u ] && echo 1000 || echo ops')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    text = program(f"{script('common.sh')}\nneed_root\nfinish changed done")
    rc, out, _ = local_run(text, target=Target(name="gpu1", connection="local", become=True), timeout=20)
    outcome = parse_outcome(out, rc)
    assert (outcome.status, outcome.message) == ("refused", "this needs root, and runs as ops")


@pytest.mark.parametrize("text", ["exit 0", "exit 1", "echo /etc", "printf '\\033[2J'"], ids=str)
def test_a_base64_that_lies_gives_a_script_without_its_request(text: str, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "base64", text)
    sent = f'{script("common.sh")}\n[ "$(word a)" = read ] || finish refused unread\nfinish changed done'
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        ["/bin/sh", "-s"], input=program(sent, {"a": b"read\n"}), capture_output=True, text=True, env=env, check=False
    )
    assert parse_outcome(ran.stdout, ran.returncode).status in ("failed", "refused")


@pytest.mark.parametrize(
    "answer", ["{}", "{}/gpunode.123", "{}/gpunode.1/../..", "{}\ngpunode.123456", "{}/../tmp/gpunode./../.."], ids=str
)
def test_a_folder_that_mktemp_did_not_make_is_neither_written_nor_removed(answer: str, tmp_path: Path) -> None:
    """The program removes its folder at the end.  All folders here are this test's: TMPDIR is one of them."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    said = answer.format(precious)
    tool(tmp_path / "bin", "mktemp", f"printf '%s\\n' '{said}'")
    (tmp_path / "tmp").mkdir()
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp")}
    text = program("echo ran", {"a": b"x"})
    ran = subprocess.run(
        ["/bin/sh", "-s"], input=text, capture_output=True, text=True, env=env, cwd=tmp_path, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert {str(path.relative_to(precious)) for path in precious.rglob("*")} == {"file"}
