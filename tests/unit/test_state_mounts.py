"""The state directory on mounts as people have them: noexec, read-only, full; real ones, of tmpfs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_state import filled

from gpunode.core.errors import GpunodeError
from gpunode.edge.fleet.runs import HostRow, Runs, this_process
from gpunode.edge.isolate import as_error
from gpunode.edge.state import StateError, controller_name, new_run, next_generation

Mount = Callable[[str], Path]


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    """A folder mounted with these options as XDG_STATE_HOME; again: remounted with others."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))

    def mount(options: str) -> Path:
        words = ["mount", "-o", options, *(("-t", "tmpfs", "none") if "remount" not in options else ()), str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs a machine where root may mount: {done.stderr.strip()}")
        return folder / "gpunode"

    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root, who may mount")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", folder], capture_output=True, check=False)


def begin(journal: Runs, name: str) -> None:
    rows = [HostRow(run=name, host="gpu1", pool="all", wave=0, plan="a", state="waiting")]
    journal.begin(name, "provision", {"where": {}, "spec": {}}, this_process(), rows)


def test_nothing_of_it_has_to_be_executable(mounted: Mount, run_gpunode: Any) -> None:
    folder = mounted("noexec,nosuid,nodev,size=20m")
    journal = Runs()
    begin(journal, "20260103")
    journal.finish("20260103", "done")
    journal.close()
    assert controller_name() and next_generation() and new_run().is_dir()
    env = {"XDG_STATE_HOME": str(folder.parent)}
    assert "20260103" in run_gpunode("runs", "list", env=env).stdout
    done = run_gpunode("detect", "--local", exit=None, env=env)
    assert "noexec" not in done.stderr and "Permission denied" not in done.stderr


def test_one_that_is_mounted_read_only_is_said_and_what_is_there_is_read(mounted: Mount, run_gpunode: Any) -> None:
    folder = mounted("size=20m")
    folder.mkdir()
    filled(folder / "runs.sqlite")
    mounted("remount,ro")
    env = {"XDG_STATE_HOME": str(folder.parent)}
    done = run_gpunode("runs", "list", exit=None, env=env)
    assert "unexpected" not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert (done.returncode == 0 and "20260102" in done.stdout) or "ead-only" in done.stdout + done.stderr
    for call in (controller_name, next_generation, new_run, lambda: begin(Runs(), "20260103")):
        with pytest.raises((GpunodeError, OSError)) as raised:
            call()
        error = as_error(raised.value)
        assert isinstance(error, StateError), error
        assert "XDG_STATE_HOME=DIR" in error.fix
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run_gpunode("provision", "--local", "--yes", exit=None, env=env).returncode != 0
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_one_that_is_full_is_said_and_loses_nothing(mounted: Mount) -> None:
    folder = mounted("size=1m")
    folder.mkdir()
    filled(folder / "runs.sqlite")
    with pytest.raises(OSError):
        (folder / "filler").write_bytes(bytes(2 << 20))
    with pytest.raises((GpunodeError, OSError)) as raised:
        for number in range(2000):
            begin(Runs(), f"2026{number:04}" + "x" * 4000)
    error = as_error(raised.value)
    assert isinstance(error, StateError) and "make room" in error.fix
    (folder / "filler").unlink()
    assert {"20260101", "20260102"} <= {run.name for run in Runs().latest(5000)}
