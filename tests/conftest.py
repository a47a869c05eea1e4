"""What all tests share: how long hypothesis may search, and lab nodes for the tests marked `lab`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from gpunode.lab import Lab

hypothesis.settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("long", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

LabUp = Callable[..., "Lab"]
RunGpunode = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def lab_up(request: pytest.FixtureRequest) -> Iterator[LabUp]:
    """`gpunode.lab.up`, for nodes that go away when the module's tests are over.

    Where no lab can run the test is skipped, unless GPUNODE_REQUIRE_LAB is set, as `make test` does.
    """
    from gpunode import lab
    from gpunode.core.errors import RefusedError
    from gpunode.lab import machine

    try:
        machine.refuse_unfit_machine(nodes=1)
    except RefusedError as refusal:
        if os.environ.get("GPUNODE_REQUIRE_LAB"):
            raise
        pytest.skip(f"no lab: {refusal.what} ({refusal.expected})")
    made: list[Lab] = []
    stem = "test-" + request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")

    def up(count: int = 1, **options: Any) -> Lab:
        name = options.pop("name", f"{stem}-{len(made)}" if made else stem)
        made.append(lab.up(count, name=name, **options))
        return made[-1]

    yield up
    for one in made:
        one.down()


@pytest.fixture(scope="session")
def run_gpunode(tmp_path_factory: pytest.TempPathFactory) -> RunGpunode:
    """`run_gpunode("plan", "-i", PATH, …, exit=3)`: the command as a user calls it, with a state folder of its own.

    Fails, showing all output, when the exit code is another one than `exit` (None: any).
    """
    state = tmp_path_factory.mktemp("state")

    def run(*args: object, exit: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_STATE_HOME": str(state), "NO_COLOR": "1"} | options.pop("env", {})
        command = [sys.executable, "-m", "gpunode", *map(str, args)]
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options
        )
        assert exit is None or done.returncode == exit, f"{command}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
