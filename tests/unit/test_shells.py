"""Completion in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# programs without the settings of whoever runs the tests
PLAIN = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


def needs(program: str) -> None:
    if not shutil.which(program):
        pytest.skip(f"no {program} here")


@pytest.fixture
def home(tmp_path: Path, run_gpunode: Run) -> Path:
    """A home folder with bin/gpunode, and the completion scripts in it."""
    program = tmp_path / "bin/gpunode"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpunode "$@"\n')
    program.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        (tmp_path / f"gpunode.{shell}").write_text(run_gpunode("completion", shell).stdout)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
    return kept | PLAIN | {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin", "TERM": "dumb", "PS1": "> "}


TYPED = [
    ("gpunode det", "gpunode detect"),
    ("gpunode kube rend", "gpunode kube render"),
    ("gpunode plan --acc", "--accept-new-host-keys"),
]


STARTS = {  # the shell without anybody's settings, and what makes our completion known to it
    "bash": ("--norc --noprofile -i", "source {}/gpunode.bash"),
    "zsh": ("-f -i", "autoload -Uz compinit; compinit -u; source {}/gpunode.zsh"),
}


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize(("typed", "shown"), TYPED)
def test_tab_completes(home: Path, name: str, typed: str, shown: str) -> None:
    needs(name)
    options, known = STARTS[name]
    shell = pexpect.spawn(name, options.split(), env=environment(home), encoding="utf-8", timeout=30)
    shell.sendline(f"{known.format(home)}; echo rea''dy")
    shell.expect("ready\r\n")
    shell.send(f"{typed}\t")
    shell.expect_exact(shown)
    shell.close(force=True)


@pytest.mark.parametrize(("typed", "shown"), TYPED)
def test_fish_completes(home: Path, typed: str, shown: str) -> None:
    needs("fish")
    script = f"source {home}/gpunode.fish; complete -C '{typed}'"
    ran = subprocess.run(["fish", "-c", script], env=environment(home), capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == [shown.split()[-1]]
