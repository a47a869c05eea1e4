"""What stays on the screen of a playbook run."""

from __future__ import annotations

import pytest

from gpunode.cli.progress import fleet, probing, running
from gpunode.edge.ansible.runner import Event
from gpunode.edge.detect import Detected


def event(kind: str, role: str = "driver", task: str = "Load the NVIDIA driver", message: str = "") -> Event:
    return Event(host="node1", kind=kind, role=role, task=task, seconds=1.25, message=message)


CHECK = "Validating arguments against arg spec 'main' - Load the driver"


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
        (event("ok", role="verify", task="Prove it"), "text", "node1: Prove it: ok (1.2 s)\n"),
        (event("ok", role="verify", task=CHECK), "text", ""),
        (event("failed", task=CHECK), "text", f"node1: {CHECK}: failed (1.2 s)\n"),
    ],
)
def test_only_changes_failures_and_proofs_get_a_line(
    seen: Event, output_format: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(output_format) as on_event:
        on_event(seen)
    assert capsys.readouterr().err == line


def test_of_many_hosts_the_first_failures_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with fleet("text", [f"gpu{n}" for n in range(100)]) as callbacks:
        for number in range(60):
            callbacks.event(
                Event(host=f"gpu{number}", kind="failed", role="driver", task="Load it", message="no module")
            )
            callbacks.event(Event(host=f"gpu{number}", kind="changed", role="driver", task="Load it"))
    lines = [line for line in capsys.readouterr().err.splitlines() if " running" not in line]
    assert len(lines) == 21 and lines[0].startswith("gpu0: Load it: failed") and "more fail" in lines[-1]


@pytest.mark.parametrize(("count", "lines"), [(3, 3), (40, 40), (2000, 41)])
def test_of_many_hosts_probes_are_counted(count: int, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    with probing("text") as on_done:
        for number in range(count):
            on_done(Detected(host=f"gpu{number}"))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == lines and told[-1] == (
        "2000 hosts probed, 0 failed" if count > 40 else f"gpu{count - 1}: probed"
    )
