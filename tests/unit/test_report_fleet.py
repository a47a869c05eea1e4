"""Many hosts in a few lines."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.core.errors import Exit
from gpunode.core.model import HostResult, Plan, Problem, Step
from gpunode.core.report.fleet import fleet_text, plans_text, resume_command, run_text, unfinished_text


def result(number: int, exit: int = 0, message: str = "done", **more: Any) -> HostResult:
    return HostResult(host=f"gpu{number:04d}", outcome=Exit(exit).outcome, message=message, **more)


def plan(number: int, *steps: str, problem: str = "") -> Plan:
    made = tuple(Step(role="driver", option=step, title=f"Do {step}", value={}) for step in steps)
    problems = (Problem(what=problem, fix="fix it"),) if problem else ()
    return Plan(
        host=f"gpu{number:04d}", steps=made, problems=problems, reasons=(), warnings=(), facts_hash="", files={}
    )


def test_two_thousand_results_are_a_few_lines() -> None:
    results = [result(n, seconds=n / 10) for n in range(1900)]
    results += [result(n, 1, f"gpu{n:04d}: dpkg is broken") for n in range(1900, 1960)]
    results += [result(n, 4, "no route to host") for n in range(1960, 2000)]
    text = fleet_text(results)
    first, *lines = text.splitlines()
    assert first == "2000 hosts: 1900 done or unchanged, 60 failed, 40 unreachable"
    assert "      60  HOST: dpkg is broken" in lines and "      40  no route to host" in lines
    assert "gpu1900, gpu1901, gpu1902, gpu1903, gpu1904, gpu1905, gpu1906, gpu1907 … (60 in all)" in text
    assert lines[-1].startswith("slowest: gpu1899 3 min, gpu1898 3 min") and len(lines) < 10


@pytest.mark.parametrize(
    ("host", "message", "cause"),
    [
        ("gpu1", "gpu1 fails", "HOST fails"),
        ("gpu1", "gpu1: gpu10 fails", "HOST: gpu10 fails"),
        ("a", "a place of data", "HOST place of data"),
        ("10.0.0.1", "10.0.0.1:22 and 10.0.0.10", "HOST:22 and 10.0.0.10"),
    ],
)
def test_the_same_cause_of_two_hosts_is_one(host: str, message: str, cause: str) -> None:
    assert cause in fleet_text([HostResult(host=host, outcome="failed", message=message)])


def unreachable(n: int) -> dict[str, str]:
    """What gpunode says of a host that cannot be reached, by the way in which; addresses of every kind."""
    address = f"10.{n // 256}.{n % 256}.7"
    return {
        "refused": f"gpu{n:04d}: {address} port {2000 + n} refuses connections\n  do next:  start sshd",
        "IPv6": f"gpu{n:04d}: 2001:db8::{n:x} port 22 did not answer within 10 s",
        "IPv6 in full": f"gpu{n:04d}: 2001:db8:0:0:0:0:0:{n:x} port 22 cannot be reached: No route to host",
        "link-local": f"gpu{n:04d}: fe80::{n:x}%eth0 port 22 did not answer within 10 s",
        "name": f"gpu{n:04d}: node-{n}.dc.example port 22 did not answer within 10 s",
        "unknown name": f"gpu{n:04d}: the name 'node-{n}.dc.example' does not resolve: Name or service not known",
        "authentication": f"gpu{n:04d}: {address} port 22 does not let root in; tried: agent key\n"
        f"  do next:  ssh-copy-id -p {2000 + n} root@{address}",
    }


@pytest.mark.parametrize("kind", unreachable(1))
def test_an_address_in_a_message_makes_no_other_cause_of_it(kind: str) -> None:
    text = fleet_text([result(n, 4, unreachable(n)[kind]) for n in range(2000)])
    assert "    2000  HOST: " in text and "gpu0000, gpu0001" in text
    assert len(text.splitlines()) < 8
    alone = fleet_text([result(7, 4, unreachable(7)[kind])])
    assert unreachable(7)[kind].partition(": ")[2] in alone, "of one host it is said as it is"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("driver 580.95.05 is loaded", "driver 535.95.05 is loaded"),
        ("Xid 79 on 0000:17:00.0", "Xid 48 on 0000:17:00.0"),
        ("did not answer within 10 s", "did not answer within 20 s"),
        ("at 01:02:03", "at 01:02:04"),
    ],
)
def test_what_is_no_address_tells_causes_apart(first: str, second: str) -> None:
    text = fleet_text([result(n, 1, first if n % 2 else second) for n in range(100)])
    assert f"      50  {first}" in text and f"      50  {second}" in text


def test_a_cause_of_any_length_is_cut() -> None:
    assert len(fleet_text([result(n, 1, "x" * 1_000_000) for n in range(50)])) < 2_000


def test_very_many_causes_are_counted() -> None:
    text = fleet_text([result(n, 1, f"reason {n}") for n in range(50)])
    assert "and 40 other causes" in text and len(text.splitlines()) == 22


def test_plans_are_told_once_for_each_kind() -> None:
    plans = [plan(n) for n in range(1000)] + [plan(n, "files", "activate") for n in range(1000, 1900)]
    plans += [plan(n, "files") for n in range(1900, 1990)] + [plan(n, problem="no driver") for n in range(1990, 2000)]
    away = [result(n, 4, f"gpu{n:04d}: no route") for n in range(2000, 2100)]
    text = plans_text(plans, away)
    assert text.startswith("2100 hosts: 1000 need nothing, 990 have steps, 10 refused, 100 without a plan\n")
    assert "100  HOST: no route" in text
    assert "10  no driver (fix: fix it)" in text
    at = [text.index("900 hosts like this one: gpu1000,"), text.index("90 hosts like this one: gpu1900,")]
    assert at == sorted(at) and text.count("Do activate") == 1 and text.count("Do files") == 2
    assert len(text.splitlines()) < 25


def test_a_run_by_its_journal() -> None:
    states = {f"gpu{n}": "done" if n < 90 else "waiting" for n in range(100)} | {"gpu0": "failed"}
    text = run_text(states, [HostResult(host="gpu0", outcome="failed", message="no space", seconds=61.0)])
    assert text.splitlines()[0] == "100 hosts: 89 done, 1 failed, 10 waiting"
    assert "no space" in text and "slowest: gpu0 61 s" in text


def test_a_run_that_stopped_says_what_is_left_and_how_to_go_on() -> None:
    results = [
        result(0, run="r1"),
        result(1, 1, "broken", run="r1"),
        result(2, 3, "not begun", run="r1", started=False),
    ]
    assert unfinished_text(results) == (
        "run r1: 1 succeeded, 1 failed, 1 not started\n"
        "  failed: gpu0001\n  not started: gpu0002\nresume: gpunode runs resume r1"
    )
    assert resume_command(results) == ("r1", "gpunode runs resume r1")


@pytest.mark.parametrize("results", [[result(0, run="r1")], [result(0, 3)], [result(0, 4), result(1)]])
def test_where_there_is_nothing_to_go_on_with_nothing_is_said(results: list[HostResult]) -> None:
    assert unfinished_text(results) == "" and resume_command(results) == ("", "")
