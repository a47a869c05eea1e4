"""The runner of the tiers: what counts as passed, what stops, and what a time budget leaves out."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("tiers", ROOT / ".ci/tiers.py")
assert SPEC and SPEC.loader
tiers = sys.modules["tiers"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tiers)


def shell(text: str, name: str = "part") -> object:
    return tiers.Part(name, ("sh", "-c", text))


@pytest.mark.parametrize(
    ("text", "passed", "failed"),
    [
        ("true", 1, 0),
        ("exit 3", 0, 1),
        ("echo '12 passed, 3 skipped, 2 warnings in 4.05s'", 12, 0),
        ("echo '2 failed, 12 passed, 1 error in 64.05s (0:01:04)'; exit 1", 12, 3),
        ("echo '= 1 passed in 4.05s ='; echo '5 passed, 1 failed'; exit 1", 5, 1),
        ("echo '12 passed in 1.0s'; exit 2", 12, 1),
        ("echo 'no tests ran in 0.1s'; exit 5", 0, 1),
        ("echo 'what 7 failed said'", 1, 0),
    ],
)
def test_a_part_counts_as_its_closing_line_and_its_status_say(text: str, passed: int, failed: int) -> None:
    run = tiers.Run()
    run.part(shell(text))
    assert (run.passed, run.failed) == (passed, failed)
    assert run.close() == (1 if failed else 0)


def test_a_failed_part_does_not_stop_the_next_and_the_last_line_sums_up(capfd: pytest.CaptureFixture[str]) -> None:
    run = tiers.Run()
    for part in (shell("exit 1", "first"), shell("echo '4 passed in 0.1s'", "second")):
        run.part(part)
    assert run.close() == 1
    assert capfd.readouterr().out.splitlines()[-2:] == ["=== failed: first", "4 passed, 1 failed"]


def test_a_part_that_takes_too_long_is_stopped_with_all_that_it_started_and_has_failed() -> None:
    run, before = tiers.Run(), time.monotonic()
    run.part(shell("sleep 60 & sleep 60"), limit=0.2)
    assert time.monotonic() - before < 30
    assert (run.passed, run.failures) == (0, ["part"])


def test_what_runs_ends_with_the_runner() -> None:
    text = f"import sys; sys.path.insert(0, {str(ROOT / '.ci')!r}); import tiers; tiers.nodes = set\n"
    text += "tiers.os.geteuid = lambda: 0; tiers.FIRST = tiers.Part('test', ('sh', '-c', 'echo on; exec sleep 60'))\n"
    text += "sys.exit(tiers.main('ci'))"
    runner = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert runner.stdout and [runner.stdout.readline() for _ in range(2)] == ["=== test\n", "on\n"]
    runner.terminate()
    assert runner.wait(20) == 128 + signal.SIGTERM


def test_what_no_longer_fits_is_named_and_not_begun(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiers, "PROMISED", (shell("sleep 1", "long"), shell("true", "promised")))
    monkeypatch.setattr(tiers, "others", lambda: [shell("exit 1", "late")])
    monkeypatch.setattr(tiers, "rotated", list)
    monkeypatch.setattr(tiers, "install", lambda _: None)
    monkeypatch.setattr(tiers, "FIRST", shell("true", "test"))
    monkeypatch.setattr(tiers, "LAST_START", 0.5)
    run = tiers.Run()
    tiers.as_far_as_it_fits(run)
    assert (run.passed, run.failed) == (3, 0)
    assert re.search(r"^=== not run after \d+ minutes: late$", capfd.readouterr().out, re.M)


COLLECT = """
import sys, pytest
class Markers:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("ITEM", item.nodeid.partition("::")[0], *{mark.name for mark in item.iter_markers()})
sys.exit(pytest.main(["--collect-only", "-qq", "tests/unit", "tests/lab"], plugins=[Markers()]))
"""


@pytest.mark.slow
def test_every_test_runs_once_in_what_ci_draws_its_parts_from() -> None:
    """Each by its file and markers; lab tests of `all` are those marked `lab`.  Machines that boot take too long."""
    done = subprocess.run([sys.executable, "-c", COLLECT], cwd=ROOT, capture_output=True, text=True, check=False)
    items = {tuple(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("ITEM ")}
    slowest = {item for item in items if "vm" in item[1:]}
    assert slowest
    parts = [
        part.command
        for part in (*tiers.CHECK, *tiers.TEST, *tiers.PROMISED, *tiers.others())
        if "pytest" in part.command
    ]

    def has(command: tuple[str, ...], file: str, *markers: str) -> bool:
        names = ("slow", "extended", "lab", "real_driver", "vm", "hypothesis")
        asked = command[command.index("-m", 3) + 1] if "-m" in command[3:] else "True"
        paths = [word for word in command if word.startswith("tests/")]
        return (
            any(file == path or file.startswith(f"{path}/") for path in paths)
            and f"--ignore={file}" not in command
            and bool(eval(asked, {name: name in markers for name in names}))
        )

    taken = {part: {item for item in items if has(part, *item)} for part in parts}
    assert [part for part, some in taken.items() if not some] == []
    once = Counter(item for part, some in taken.items() if f"hypothesis and {tiers.QUICK}" not in part for item in some)
    assert len(items) > 400
    assert [item for item in items if once[item] != (item not in slowest)] == []
