"""What all tests share: how long hypothesis may search, and lab nodes for the tests marked `lab`."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from gpunode.lab import Lab

hypothesis.settings.register_profile("check", max_examples=20, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("ci", max_examples=150, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("long", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))
gc.set_threshold(200_000, 50)  # as the command does, and for the same reason

# how a test says what it lacks: a program, a package, an account
_LACKING = re.compile(r"(?:names no |needs )(?P<what>[^:(;]+)")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was skipped because something is missing on this machine, and how many tests each thing would let run."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        found = _LACKING.search(reason)
        counts[found["what"].strip() if found else ""] += 1
    others = counts.pop("", 0)
    if counts:
        listed = ", ".join(f"{what} ({count})" for what, count in counts.most_common())
        terminalreporter.write_line(f"not run for lack of: {listed}; {counts.total()} tests in all")
    if others:
        terminalreporter.write_line(f"not run for other reasons: {others} tests")


LabUp = Callable[..., "Lab"]
RunGpunode = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def lab_up(request: pytest.FixtureRequest) -> Iterator[LabUp]:
    """`gpunode.lab.up`, for nodes that go away when the module's tests are over.

    Where no lab can run the test is skipped, unless GPUNODE_REQUIRE_LAB is set, as in the tiers.
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
def controller(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a controller with a state folder of its own: it knows of the runs that it began."""
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state")), "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def run_gpunode(controller: dict[str, str]) -> RunGpunode:
    """`run_gpunode("plan", "-i", PATH, …, exit=3)`: the command as a user of that controller calls it.

    Fails, showing all output, when the exit code is another one than `exit` (None: any).
    """

    def run(*args: object, exit: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = controller | options.pop("env", {})
        command = [sys.executable, "-m", "gpunode", *map(str, args)]
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options
        )
        assert exit is None or done.returncode == exit, f"{command}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
