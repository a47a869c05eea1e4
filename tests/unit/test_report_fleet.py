"""Many hosts in a few lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.diff import changed_lines, unified
from gpunode.core.errors import Exit
from gpunode.core.items.package import PackageItem
from gpunode.core.model import (
    CudaChoice,
    DriverChoice,
    DriverState,
    HostResult,
    NodeFacts,
    PackageWant,
    Plan,
    Problem,
    Reason,
    Solution,
    Step,
    ToolkitChoice,
)
from gpunode.core.report.fleet import fleet_text, plan_classes, plans_text, resume_command, run_text, unfinished_text
from gpunode.core.report.text import Detail, chosen_text, class_text, plan_text, summary_text


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
    assert lines[-1].startswith("slowest: gpu1899 3 min 09 s, gpu1898 3 min 09 s") and len(lines) < 10


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
        "unknown name": f"gpu{n:04d}: node-{n}.dc.example port 22: the name does not resolve: Name not known",
        "authentication": f"gpu{n:04d}: {address} port 22 does not let root in; tried: agent key\n"
        f"  do next:  ssh-copy-id -p {2000 + n} root@{address}",
    }


@pytest.mark.parametrize("kind", unreachable(1))
def test_an_address_in_a_message_makes_no_other_cause_of_it(kind: str) -> None:
    text = fleet_text([result(n, 4, unreachable(n)[kind]) for n in range(300)])
    assert "     300  HOST: " in text and "gpu0000, gpu0001" in text
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


def test_plans_are_reported_once_for_each_kind() -> None:
    plans = [plan(n) for n in range(1000)] + [plan(n, "files", "activate") for n in range(1000, 1900)]
    plans += [plan(n, "files") for n in range(1900, 1990)] + [plan(n, problem="no driver") for n in range(1990, 2000)]
    away = [result(n, 4, f"gpu{n:04d}: no route") for n in range(2000, 2100)]
    text = plans_text(plans, away)
    assert text.startswith("2100 hosts: 1000 need nothing, 990 have steps, 10 refused, 100 without a plan\n")
    assert "100  HOST: no route" in text
    assert "10  no driver (fix: fix it)" in text
    at = [text.index("(900 in all): 2 steps"), text.index("(90 in all): 1 step")]
    assert at == sorted(at) and text.count("Do activate") == 1 and text.count("Do files") == 2
    assert len(text.splitlines()) < 25


def disturbing(host: str, disruptive: str, **value: object) -> Plan:
    one = Step(role="driver", option="packages", title="Install it", value={}, reasons=(WHY,))
    two = Step(role="runtime", option="edits", title="Edit it", value=value, disruptive=disruptive)
    return Plan(host=host, steps=(one, two), reasons=(Reason(what="branch", why="the newest", source="x; y"),))


WHY = Reason(what="nvidia-open", why="not installed")
STOPS = "restarts containerd.service: containers run on; restarts docker.service: {} containers stop"


def test_hosts_with_the_same_steps_are_shown_once_and_name_what_is_their_own() -> None:
    plans = [disturbing("gpu1", STOPS.format(7)), disturbing("gpu2", STOPS.format(2)), disturbing("gpu3", "")]
    [alike] = plan_classes(plans, {})
    assert class_text(alike, chosen="driver 595.91.07 open, toolkit 1.20.1").splitlines() == [
        "gpu1, gpu2, gpu3: driver 595.91.07 open, toolkit 1.20.1 · 2 steps · restarts containerd, docker · no reboot",
        "   1. Install it  (driver.packages)",
        "   2. Edit it  (runtime.edits)",
        f"        disturbs: {STOPS.format(7)} (gpu1)",
        f"        disturbs: {STOPS.format(2)} (gpu2)",
    ]


@pytest.mark.parametrize(
    ("detail", "shown", "hidden"),
    [
        (Detail(), ["2 steps"], ["because", "not installed", "the newest", "[1]", "sources"]),
        (Detail(why=True), ["nvidia-open: not installed", "because:", "branch: the newest"], ["[1]", "sources:"]),
        (Detail(sources=True), ["not installed", "branch: the newest [1, 2]", "sources:", "[2] y"], []),
    ],
)
def test_reasons_and_sources_are_shown_where_they_are_asked_for(
    detail: Detail, shown: list[str], hidden: list[str]
) -> None:
    text = plan_text(disturbing("gpu1", ""), detail=detail)
    assert all(words in text for words in shown) and not any(words in text for words in hidden)
    assert text.index("Install it") < text.index(shown[0]) or shown == ["2 steps"]


def test_versions_part_classes_and_a_host_without_steps_is_in_none_of_them() -> None:
    plans = [disturbing("gpu1", ""), disturbing("gpu2", ""), plan(3), plan(4)]
    found = plan_classes(plans, {"gpu1": "driver 580", "gpu2": "driver 595", "gpu0003": "driver 580"})
    assert [[p.host for p in alike] for alike in found] == [["gpu1"], ["gpu2"], ["gpu0003", "gpu0004"]]
    assert class_text(found[2]) == "gpu0003, gpu0004: nothing to do"


def test_hosts_without_a_gpu_are_pending_and_not_among_those_that_need_nothing() -> None:
    bare = replace(plan(3), no_gpu=True, warnings=("no NVIDIA GPU on PCI",))
    plans = [disturbing("gpu1", ""), bare, plan(4)]
    assert [[p.host for p in alike] for alike in plan_classes(plans, {})] == [["gpu1"], ["gpu0003"], ["gpu0004"]]
    assert class_text([bare]) == "gpu0003: pending\n  warning: no NVIDIA GPU on PCI"
    line = plans_text(plans).splitlines()[0]
    assert line == "3 hosts: 1 need nothing, 1 have steps, 1 pending without a GPU"


@pytest.mark.parametrize(
    ("policies", "says"),
    [(("never",), "no reboot"), (("never", "if-needed"), "reboots if needed"), (("always", "never"), "reboots")],
)
def test_the_summary_is_of_all_hosts_that_have_steps(policies: tuple[str, ...], says: str) -> None:
    plans = [disturbing(f"gpu{n}", STOPS.format(n), reboot=policy) for n, policy in enumerate(policies)]
    versions = {"gpu0": "driver 595.91.07 open"}
    text = summary_text([*plans, plan(7)], {**versions, "gpu1": versions["gpu0"], "gpu7": "driver 1"})
    count = "1 host, 2 steps" if len(plans) == 1 else f"{len(plans)} hosts, 2 steps each"
    assert text == f"Plan: {count} · driver 595.91.07 open · restarts containerd, docker · {says}"


def test_the_versions_that_were_chosen_in_a_few_words() -> None:
    assert chosen_text(Solution()) == ""
    driver = DriverChoice(
        branch=595, flavour="open", version="595.91.07", method="packages", packages=(), repository=""
    )
    cuda = CudaChoice(version="13.0", versions=("12.8", "13.0"), method="packages", packages=(), repository="")
    toolkit = ToolkitChoice(version="1.20.1", method="packages", packages=(), repository="")
    every = Solution(driver=driver, cuda=cuda, toolkit=toolkit)
    assert chosen_text(every) == "driver 595.91.07 open, CUDA 12.8 and 13.0, toolkit 1.20.1"
    there = Solution(driver=replace(driver, method="preinstalled"))
    assert chosen_text(there) == "driver as installed"


def test_a_run_by_its_journal() -> None:
    states = {f"gpu{n}": "done" if n < 90 else "waiting" for n in range(100)} | {"gpu0": "failed"}
    text = run_text(states, [HostResult(host="gpu0", outcome="failed", message="no space", seconds=61.0)])
    assert text.splitlines()[0] == "100 hosts: 89 done, 1 failed, 10 waiting"
    assert "no space" in text and "slowest: gpu0 1 min 01 s" in text


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


def test_what_is_there_in_another_version_stands_before_an_arrow() -> None:
    driver = DriverChoice(branch=595, flavour="open", version="", method="packages", packages=(), repository="")
    toolkit = ToolkitChoice(version="1.20.1", method="packages", packages=(), repository="")
    solution = Solution(driver=driver, toolkit=toolkit)
    facts = NodeFacts(driver=DriverState(loaded="580.95.05"), toolkit="1.18.1")
    assert chosen_text(solution, facts) == "driver 580.95.05 → 595 open, toolkit 1.18.1 → 1.20.1"
    same = NodeFacts(driver=DriverState(loaded="595.45.04"), toolkit="1.20.1")
    assert chosen_text(solution, same) == "driver 595.45.04 open, toolkit 1.20.1"


def test_a_step_names_its_packages_and_counts_the_lines_of_its_files() -> None:
    names = [{"name": "headers"}, *({"name": f"p{n}", "version": "1"} for n in range(4))]
    steps = (
        Step(
            role="driver",
            option="packages",
            title="Install",
            value={"install": names, "remove": ["old-driver"]},
            reasons=tuple(Reason(what=one["name"], why="not installed", source="") for one in names),
        ),
        Step(role="driver", option="files", title="Write", value=[], diff=unified(b"a\nb\n", b"a\nc\nd\n", "/etc/x")),
        Step(role="verify", option="smoke", title="Prove", value={}),
    )
    whole_plan = replace(plan(1), steps=steps)
    text = plan_text(whole_plan)
    assert "installs: p0 1, p1 1, p2 1 and 2 more" in text
    assert "removes: old-driver" in text
    assert "/etc/x +2 -1" in text
    assert "2 steps" in text and "verify.smoke" not in text
    whole = plan_text(whole_plan, detail=Detail(diff=True))
    assert "installs: headers, p0 1, p1 1, p2 1, p3 1" in whole
    assert "+++ /etc/x" in whole and "/etc/x +2 -1" not in whole


def test_a_step_that_only_holds_packages_installs_none() -> None:
    item = PackageItem(role="driver", package=PackageWant(name="nvidia-open", version="580.*", hold=True))
    why = item.difference("580.95.05-1, not held")
    assert why == "580.95.05-1, not held; wanted held"
    assert item.difference("575.1-1, not held") == "575.1-1, not held; wanted 580.*, held"
    value = {"install": [{"name": "nvidia-open", "version": "580.*", "hold": True}]}
    step = Step(
        role="driver", option="packages", title="Install", value=value, reasons=(Reason(what="nvidia-open", why=why),)
    )
    text = plan_text(replace(plan(1), steps=(step,)))
    assert "holds: nvidia-open" in text and "installs:" not in text


@given(st.lists(st.sampled_from(["a", "-- b", "++ /etc/z", "@@ -1 +1 @@", ""]), max_size=9), st.data())
def test_lines_of_a_diff_are_counted_whatever_they_look_like(before: list[str], data: st.DataObject) -> None:
    after = data.draw(st.lists(st.sampled_from(before or ["x"]), max_size=9))
    old, new = ("".join(f"{line}\n" for line in lines).encode() for lines in (before, after))
    for _path, added, gone in changed_lines(unified(old, new, "/etc/x")):
        assert added - gone == len(after) - len(before)
