"""What stays on the screen of a playbook run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpunode.cli import progress
from gpunode.cli.output import fitted
from gpunode.cli.progress import Board, fleet, probing, showing
from gpunode.cli.provision import show_results
from gpunode.cli.terminal import forget, listen
from gpunode.core.errors import UnreachableError
from gpunode.core.model import Check, HostResult
from gpunode.edge.ansible.runner import Event
from gpunode.edge.detect import Detected

NONE_SEEN = {"id": "docker.gpus", "status": "failed", "message": "none seen", "fix": ""}


def event(kind: str, task: str = "Load the NVIDIA driver", message: str = "", **result: Any) -> Event:
    return Event(host="node1", kind=kind, task=task, seconds=1.25, message=message, result=result)


@pytest.mark.parametrize(
    ("seen", "output_format", "line"),
    [
        (event("changed"), "text", "node1: Load the NVIDIA driver: changed (1.2 s)\n"),
        (event("failed", message="no module"), "text", "node1: Load the NVIDIA driver: failed (1.2 s): no module\n"),
        (event("failed", message="no module"), "json", "node1: Load the NVIDIA driver: failed (1.2 s): no module\n"),
        (event("unreachable"), "json", "node1: Load the NVIDIA driver: unreachable (1.2 s)\n"),
        (event("changed"), "json", ""),
        (event("ok"), "text", ""),
        (event("started"), "text", ""),
        (event("skipped"), "text", ""),
        (event("ok", task="Prove it", checks=[]), "text", "node1: Prove it: ok (1.2 s)\n"),
        (
            event("failed", "Prove it", "docker.gpus: none seen", checks=[NONE_SEEN]),
            "text",
            "node1: Prove it: failed (1.2 s): 1 check failed: docker.gpus\n",
        ),
    ],
)
def test_only_changes_failures_and_proofs_get_a_line(
    seen: Event, output_format: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with showing(Board(), output_format) as shown:
        shown.event(seen)
    assert capsys.readouterr().err == line


def test_of_many_hosts_the_first_failures_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with fleet("text", {f"gpu{n}": ["Load it"] for n in range(100)}) as callbacks:
        for number in range(60):
            callbacks.event(Event(host=f"gpu{number}", kind="failed", task="Load it", message="no module"))
            callbacks.event(Event(host=f"gpu{number}", kind="changed", task="Load it"))
    lines = [line for line in capsys.readouterr().err.splitlines() if " running" not in line]
    assert len(lines) == 21 and lines[0].startswith("gpu0: Load it: failed") and "more fail" in lines[-1]


@pytest.mark.parametrize(("count", "lines"), [(3, 3), (40, 40), (2000, 41)])
def test_of_many_hosts_probes_are_counted(count: int, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    with probing("text") as on_done:
        for number in range(count):
            on_done(Detected(host=f"gpu{number}"))
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == lines and reported[-1] == (
        "2000 hosts probed, 0 failed" if count > 40 else f"gpu{count - 1}: probed"
    )


def test_a_host_that_is_unreachable_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    with probing("text") as on_done:
        on_done(Detected(host="gpu1", error=UnreachableError("gpu1: no route")))
    assert capsys.readouterr().err == "gpu1: unreachable\n"


STEPS = ["Set up the repository", "Install the driver", "Load the driver", "Run GPU smoke tests"]


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def at(host: str, kind: str, step: int, message: str = "", **result: str) -> Event:
    return Event(host=host, kind=kind, task=STEPS[step], message=message, result=dict(result))


def test_a_host_has_one_line_with_its_step_and_its_own_time() -> None:
    clock = Clock()
    board = Board(dict.fromkeys(("gpu1", "gpu10", "gpu2"), STEPS), clock)
    board.wave = "pool all, wave 1"
    board.event(at("gpu1", "started", 0))
    clock.seconds += 60
    board.event(at("gpu10", "started", 1))
    board.event(Event(host="gpu10", kind="waiting", task="waiting for the package manager: apt (PID 7)"))
    clock.seconds += 5
    assert [line[2:] for line in board.lines()] == [
        "gpu1   1/4   1 min 05 s  Set up the repository",
        "gpu10  2/4          5 s  Install the driver · waiting for the package manager: apt (PID 7)",
        "pool all, wave 1 · 2 running · 1 waiting · 1 min 05 s",
    ]
    assert board.beat() == "running: gpu1 1/4 Set up the repository (1 min 05 s); gpu10 2/4 Install the driver (5 s)"


def test_the_line_of_a_host_that_ended_is_printed_once_and_its_time_stands_still() -> None:
    clock = Clock()
    board = Board(dict.fromkeys(("gpu1", "gpu2"), STEPS), clock)
    assert not board.event(at("gpu1", "changed", 1, installed="nvidia-open 595.91.07-1 installed (43 packages)"))
    clock.seconds += 7
    failed = board.event(at("gpu2", "failed", 1, "no route to host"))
    assert failed == "✗ gpu2  2/4          0 s  Install the driver: no route to host"
    board.event(at("gpu1", "ok", 3))
    clock.seconds += 100
    assert board.lines()[0] == "· gpu1  4/4          7 s  checking again"
    done = board.end(HostResult(host="gpu1", message="4 steps applied, nothing pending"))
    assert done == (
        "✓ gpu1  4/4          7 s  4 steps applied, nothing pending · nvidia-open 595.91.07-1 installed (43 packages)"
    )
    assert board.end(HostResult(host="gpu2", outcome="failed", message="no route to host")) == ""
    assert board.lines() == ["  1 done · 1 failed · 1 min 47 s"] and board.beat() == ""


def test_without_a_terminal_lines_have_the_number_of_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    with fleet("text", {"gpu1": STEPS}) as callbacks:
        callbacks.event(at("gpu1", "changed", 1, "nvidia-open 595.91.07-1 installed"))
        callbacks.result(HostResult(host="gpu1", message="not here: the results follow"))
    output = capsys.readouterr().err
    assert output == "gpu1: [2/4] Install the driver: changed (0.0 s): nvidia-open 595.91.07-1 installed\n"


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_without_a_terminal_a_long_run_says_that_it_goes_on(
    output_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    twice = threading.Event()

    def say(text: str) -> None:
        printed.append(text)
        if len(printed) == 2:
            twice.set()

    monkeypatch.setattr(progress, "_BEAT", 0.001)
    monkeypatch.setattr(progress, "say", say)
    with showing(Board(), output_format):
        assert twice.wait(30 if output_format == "text" else 0.2) == (output_format == "text")
    assert set(printed) == ({"waiting for the first host (0 s)"} if output_format == "text" else set())


def test_without_a_terminal_a_silent_run_of_many_hosts_says_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = threading.Event()

    def say(text: str) -> None:
        if text.startswith("0 of 100 done, 0 failed, 1 running ("):
            counted.set()

    monkeypatch.setattr(progress, "_BEAT", 0.001)
    monkeypatch.setattr(progress, "say", say)
    with fleet("text", {f"gpu{n}": ["Load it"] for n in range(100)}) as callbacks:
        callbacks.event(Event(host="gpu1", kind="started", task="Load it"))
        assert counted.wait(30)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_word_is_cut_at_the_edge_of_a_terminal(width: int) -> None:
    text = (
        "gpu1: driver 595.91.07 open, toolkit 1.20.1 · 9 steps · restarts containerd, docker · reboots if needed\n"
        "  ok         containerd.cri-nvidia        the CRI (nvidia handler, /usr/bin/nvidia-runtime) ran a container\n"
        "      disturbs: restarts containerd.service: running containers keep running; restarts docker.service: none"
    )
    shown = fitted(text, width)
    assert shown.split() == text.split() and fitted(text, 200) == text
    assert max(map(len, shown.split("\n"))) <= max(width, 34 + len("/usr/bin/nvidia-runtime)"))
    after = [line for line in shown.split("\n")[1:] if line.startswith(" " * 41)]
    assert all(line.strip() for line in after)


def test_what_a_failed_check_found_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a node whose three checks failed for a long reason each, provision's end had it three times."""
    found = {"docker.gpus": "no GPU in the container", "driver.smi": "no devices were found"}
    checks = tuple(Check(id=name, status="failed", message=text, fix="look") for name, text in found.items())
    text = "Prove it: " + "; ".join(f"{name}: {text}" for name, text in found.items())
    text += " (node n stays cordoned)"
    show_results([HostResult(host="n", outcome="failed", message=text, fix="look", checks=checks)], "text")
    shown = capsys.readouterr().out
    assert shown.startswith("n: exit 1: Prove it: 2 checks failed: docker.gpus, driver.smi (node n stays cordoned)\n")
    assert all(shown.count(text) == 1 for text in found.values())


def test_of_several_hosts_what_passed_is_counted_and_the_rest_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    checks = (
        Check(id="driver.smi", status="passed", message="seen"),
        Check(id="docker.gpus", status="not-proven", message="not seen", fix="look"),
    )
    hosts = [HostResult(host=name, message="done", checks=checks) for name in ("a", "b")]
    show_results(hosts, "text")
    several = capsys.readouterr().out
    assert several.count("1 check passed") == 2 and several.count("docker.gpus") == 2 and "driver.smi" not in several
    show_results(hosts[:1], "text")
    assert "driver.smi" in capsys.readouterr().out
    show_results(hosts[:1], "text", brief=True)
    assert "driver.smi" not in capsys.readouterr().out
    listen(verbose=1)
    try:
        show_results(hosts, "text", brief=True)
    finally:
        forget()
    assert capsys.readouterr().out.count("driver.smi") == 2
