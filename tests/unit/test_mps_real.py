"""NVIDIA's real MPS control daemons of many drivers: the rows of knowledge/questions.toml, and what mps.sh sends them.

Up to 550 they answer without a GPU.  From 580 on they first initialize CUDA and end: of those only their text is read.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.core.errors import GpunodeError
from gpunode.core.remote import program
from gpunode.edge.load import load_questions
from gpunode.lab import vendor
from gpunode.node import script

ROWS = [one for one in load_questions().commands if one.program == "nvidia-cuda-mps-control" and one.words != ("-f",)]
VALUES = {"SHARE": "25", "DEVICE": "0", "LIMIT": "2048M"}
FEW = ("470", "550", "580")  # what `.ci/run` runs
REFUSED = "Unknown command"


def branches(first: int, last: int) -> list[object]:
    extended = (pytest.mark.extended, pytest.mark.slow)
    some = [one for one in vendor.MPS if first <= int(one) <= last]
    return [pytest.param(one, marks=() if one in FEW else extended) for one in some]


@dataclass(frozen=True)
class Daemon:
    branch: int
    program: Path
    environment: dict[str, str]

    def ask(self, *lines: str) -> str:
        text = "".join(f"{line}\n" for line in lines)
        done = subprocess.run(
            [self.program], input=text, env=self.environment, capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout + done.stderr


def fetched(branch: str) -> vendor.Program:
    try:
        return vendor.mps_control(branch)
    except GpunodeError as error:
        pytest.skip(f"needs NVIDIA's nvidia-cuda-mps-control: {error}")


@pytest.fixture
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A control daemon that runs, with folders of its own."""
    own = fetched(request.param)
    folder = tmp_path_factory.mktemp("m")
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen([own.path, "-f"], env=environment, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        some = Daemon(int(request.param), own.path, environment)
        try:
            _wait(folder / "control")
            yield some
            some.ask("quit")
            assert process.wait(10) == 0, "quit ends it"
        finally:
            process.kill()


def _wait(path: Path) -> None:
    for _ in range(100):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"no {path.name} after 5 s")


@pytest.mark.parametrize("daemon", branches(390, 550), indirect=True)
def test_every_command_of_the_table_is_known_from_its_first_branch_on(daemon: Daemon) -> None:
    for row in ROWS:
        if row.words == ("quit",):  # the fixture's
            continue
        said = daemon.ask(" ".join(VALUES.get(word, word) for word in row.words))
        assert (REFUSED in said) == (daemon.branch < int(row.since)), (row.words, said)
    assert daemon.ask("get_default_active_thread_percentage").startswith("25.0")


@pytest.mark.parametrize("daemon", branches(390, 550), indirect=True)
def test_the_daemon_takes_all_that_is_written_for_it(daemon: Daemon, tmp_path: Path) -> None:
    """Finding: the limit of memory was sent to every daemon, and those before 510 answer «Unknown command»."""
    (tmp_path / "version").write_text(f"{daemon.branch}.1.2\n")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 0, 81559; echo 1, 46068\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    text = script("mps.sh").replace("/sys/module/nvidia/version", str(tmp_path / "version"))
    functions = text[: text.index("\nneed_root\n")]
    text = f"{functions}\nsettings\ncat $GPUNODE_IN/settings\n"
    done = subprocess.run(
        ["sh", "-s"],
        input=program(text.replace("PATH=$PATH:", f"PATH={tmp_path}:$PATH:"), {"replicas": b"4"}),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "set_default_active_thread_percentage 25"
    assert ("set_default_device_pinned_mem_limit 1 11517M" in lines) == (daemon.branch >= 510)
    assert REFUSED not in daemon.ask(*lines)
    assert daemon.ask("get_default_active_thread_percentage").startswith("25.0")


@pytest.mark.parametrize("branch", branches(580, 999))
def test_daemons_that_want_a_gpu_have_the_commands_in_their_text(branch: str, tmp_path: Path) -> None:
    own = fetched(branch)
    text = own.path.read_bytes()
    assert [row.words[0] for row in ROWS if row.words[0].encode() not in text] == []
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path)}
    assert subprocess.run([own.path, "-f"], env=environment, timeout=30, check=False, capture_output=True).returncode
