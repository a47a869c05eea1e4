"""The report of a fleet: the state of a host, the summary, and the forms it is written in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped
from report_fleet import fleet

from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.report.html import html_text
from gpunode.core.report.junit import junit_text
from gpunode.core.report.model import (
    STATES,
    HostRun,
    ProbeSummary,
    Report,
    ReportFinding,
    ReportHost,
    ReportRun,
    Versions,
    between,
    duration,
)
from gpunode.core.report.schema import report_data, schema_of, seen_from
from gpunode.core.report.seen import see
from gpunode.core.report.summary import headline, left_title, make_host, make_report
from gpunode.edge.load import load_knowledge
from gpunode.edge.report import load_page

ROOT = Path(__file__).parents[2]
STEP = {"id": "driver.packages", "role": "driver", "title": "Install the driver", "disruptive": "restarts docker"}
AROUND = {"id": "verify.smoke", "role": "verify", "title": "Use the GPU", "disruptive": ""}
RUN = HostRun(wave=0, state="done", exit=0)
SCHEMA = jsonschema.Draft202012Validator(schema_of())


def seen(*checks: ReportFinding, kind: str = "debian:12/x86_64/1x10de:2330", **versions: Any) -> ProbeSummary:
    return ProbeSummary(kind=kind, versions=Versions(**versions), checks=checks)


def finding(id: str, status: Any = "failed", message: str = "it is so", fix: str = "") -> ReportFinding:
    return ReportFinding(id=id, status=status, message=message, fix=fix)


def check(id: str, status: str = "failed", message: str = "it is so") -> dict[str, str]:
    return {"id": id, "status": status, "message": message, "fix": ""}


def report(*hosts: ReportHost, run: ReportRun | None = None) -> Report:
    return make_report(hosts, title="t", made="2026-11-22T10:00:00Z", version="1", source="folder x", run=run)


# ---------------------------------------------------------------- one host

STATES_OF: list[tuple[str, dict[str, Any], list[str]]] = [
    ("ok", {}, []),
    ("ok", {"probe": seen(finding("gpu.count", "passed"))}, []),
    ("ok", {"probe": seen(finding("dcgm.diag", "skipped"))}, []),
    ("failed", {"probe": seen(finding("gpu.count"))}, ["gpu.count"]),
    ("warning", {"probe": seen(finding("boot.modules", "warning"))}, ["boot.modules"]),
    ("not-proven", {"result": {"exit": 0, "checks": [check("cri-pod", "not-proven")]}}, ["cri-pod"]),
    ("unreachable", {"plan": {"error": {"what": "no route", "exit": 4}}}, ["host.unreachable"]),
    ("failed", {"plan": {"error": {"what": "no facts", "exit": 1}}}, ["host.failed"]),
    ("ok", {"plan": {"steps": [], "problems": []}}, []),
    ("ok", {"plan": {"steps": [AROUND]}}, []),
    ("pending", {"plan": {"steps": [STEP, AROUND]}}, ["plan.driver.packages"]),
    ("refused", {"plan": {"problems": [{"what": "WSL", "fix": "none"}]}}, ["plan.problem"]),
    # a plan that brings the driver says already that it is not loaded
    ("pending", {"probe": seen(finding("driver.loaded")), "plan": {"steps": [STEP]}}, ["plan.driver.packages"]),
    ("failed", {"probe": seen(finding("gpu.xid")), "plan": {"steps": [STEP]}}, ["gpu.xid", "plan.driver.packages"]),
    # a check of verify stands above that of the probe, and a plan that is not empty is no failure
    ("ok", {"probe": seen(finding("gpu.xid")), "result": {"exit": 0, "checks": [check("gpu.xid", "passed")]}}, []),
    ("pending", {"result": {"exit": 3, "checks": [check("plan.tuning.tcp", "pending")]}}, ["plan.tuning.tcp"]),
    ("refused", {"result": {"exit": 5, "checks": [check("plan.problem", "refused")]}}, ["plan.problem"]),
    # verify has planned again
    ("ok", {"plan": {"steps": [STEP]}, "result": {"exit": 0, "checks": [check("plan.empty", "passed")]}}, []),
    ("failed", {"probe": seen(finding("repository.twice"), finding("repository.twice"))}, ["repository.twice"] * 2),
    ("ok", {"run": RUN, "plan": {"steps": [STEP]}}, []),
    ("waiting", {"run": replace(RUN, state="waiting", exit=None), "plan": {"steps": [STEP]}}, ["plan.driver.packages"]),
    ("running", {"run": replace(RUN, state="running", exit=None)}, []),
    ("failed", {"run": replace(RUN, state="failed", exit=1), "result": {"message": "dkms"}}, ["host.failed"]),
    ("pending", {"run": replace(RUN, state="failed", exit=3), "result": {"message": "still to do"}}, ["plan.left"]),
    ("unreachable", {"run": replace(RUN, state="failed", exit=4)}, ["host.unreachable"]),
    ("failed", {"run": replace(RUN, state="failed", exit=1), "result": {"checks": [check("a")]}}, ["a"]),
]


@pytest.mark.parametrize(("state", "known", "ids"), STATES_OF)
def test_the_state_of_a_host_is_the_worst_that_is_known(state: str, known: dict[str, Any], ids: list[str]) -> None:
    host = make_host("gpu1", **known)
    assert (host.state, [f.id for f in host.findings]) == (state, ids)


def test_a_host_says_the_worst_in_a_sentence_and_how_much_more_there_is() -> None:
    known = seen(finding("boot.modules", "warning", "no module"), finding("gpu.xid", message="Xid 79"))
    assert make_host("a", probe=known).message == "Xid 79 (and 1 more)"
    assert make_host("a", run=replace(RUN, state="running", step="Install")).message == "Install"
    assert make_host("a", plan={"steps": [STEP]}).message == "Install the driver (restarts docker)"
    assert make_host("a").message == "as it should be"


def test_what_a_probe_says_of_versions_and_gpus() -> None:
    text = (ROOT / "tests/cases/probes/ubuntu2404-two-models/probe.txt").read_text()
    found = see(parse_probe(text), load_knowledge())
    assert found.versions == Versions(
        distro="ubuntu:24.04", arch="x86_64", kernel="6.8.0-87-generic", driver="575.64.03", flavour="proprietary"
    )
    assert [(g.index, g.model, g.memory_mib, g.ecc_errors, g.xids) for g in found.gpus] == [
        (0, "GeForce RTX 3090", 24576, None, (31,)),
        (1, "A10", 23028, 2, (63,)),
    ]
    assert {c.id for c in found.checks if c.status == "failed"} == {
        "gpu.ecc",
        "gpu.recovery",
        "gpu.remap-pending",
    }
    assert seen_from(json.loads(json.dumps(asdict(found)))) == found


def test_data_that_is_no_host_is_refused() -> None:
    with pytest.raises(InputError, match="not what gpunode has found out"):
        seen_from({"kind": "x", "versions": 3})


# ---------------------------------------------------------------- the fleet


def test_hosts_with_the_same_trouble_are_one_issue_with_their_names_taken_out() -> None:
    hosts = [
        make_host(n, plan={"error": {"what": f"{n}: no route to {n}x", "fix": f"ping {n}", "exit": 4}})
        for n in ("b", "a")
    ]
    [issue] = report(*hosts, make_host("c")).problems
    assert (issue.id, issue.status, issue.hosts) == ("host.unreachable", "unreachable", 2)
    assert [(v.message, v.fix, v.hosts) for v in issue.variants] == [
        ("HOST: no route to ax", "ping HOST", ("a",)),
        ("HOST: no route to bx", "ping HOST", ("b",)),
    ]


def test_problems_come_first_by_status_then_by_how_many_they_concern() -> None:
    made = report(
        make_host("a", probe=seen(finding("one"), finding("late", "warning"))),
        make_host("b", probe=seen(finding("two"))),
        make_host("c", probe=seen(finding("two"), finding("late", "warning"))),
    )
    assert [(i.id, i.hosts) for i in made.problems] == [("two", 2), ("one", 1), ("late", 2)]


def test_what_moved_without_harm_is_drift() -> None:
    known = seen(finding("boot.modules", "warning"), finding("gpu.xid", "warning"), finding("driver.held", "warning"))
    made = report(make_host("a", probe=known, plan={"steps": [STEP]}))
    assert {i.id for i in made.drift} == {"boot.modules", "driver.held", "plan.driver.packages"}
    assert {i.id for i in made.problems} == {"gpu.xid"}


def test_a_pool_says_how_far_its_hosts_got() -> None:
    [pool] = report(
        make_host("a", probe=seen()),
        make_host("b", probe=seen(finding("gpu.xid"))),
        make_host("c", probe=seen(), plan={"steps": [STEP]}),
        make_host("d", probe=seen(), plan={"problems": [{"what": "WSL", "fix": ""}]}),
        make_host("e", plan={"error": {"what": "no route", "exit": 4}}),
    ).pools
    assert (pool.hosts, pool.reached, pool.accepted, pool.provisioned, pool.healthy) == (5, 4, 3, 2, 1)
    assert pool.states == {"failed": 1, "unreachable": 1, "refused": 1, "pending": 1, "ok": 1}
    assert pool.steps == {"driver": 1}


@pytest.mark.parametrize(
    ("check", "healthy"), [("gpu.xid", 0), ("fabric.state", 0), ("containerd.cri-nvidia", 1), ("cdi.fresh", 1)]
)
def test_a_host_of_whose_gpus_something_is_not_proven_is_not_counted_as_healthy(check: str, healthy: int) -> None:
    checks = [{"id": check, "status": "not-proven", "message": "not read", "fix": ""}]
    host = make_host("a", result={"exit": 0, "message": "", "checks": checks})
    assert (host.state, host.passed) == ("not-proven", ())
    [pool] = make_report([host], title="", made="", version="", source="").pools
    assert (pool.provisioned, pool.healthy) == (1, healthy)


def test_versions_of_a_class_the_most_frequent_first() -> None:
    made = report(
        *(make_host(n, probe=seen(kernel="6.1", driver="580", flavour="open")) for n in ("a", "b")),
        make_host("c", probe=seen(kernel="6.1", driver="575")),
        make_host("d", probe=seen(kernel="5.4", kind="other")),
    )
    assert [(c.kind, c.hosts) for c in made.classes] == [("debian:12/x86_64/1x10de:2330", 3), ("other", 1)]
    versions = made.classes[0].versions
    assert [(v.version, v.hosts) for v in versions["driver"]] == [("580 open", ("a", "b")), ("575", ("c",))]
    assert [v.version for v in versions["kernel"]] == ["6.1"]


def test_the_waves_of_a_run() -> None:
    at = "2026-11-22T08:0{}:00Z".format
    run = ReportRun(name="r", verb="provision", status="failed", started=at(0), ended="", controller="c")
    parts = [("a", 0, "done", at(0), at(2)), ("b", 0, "failed", at(1), at(3)), ("c", 1, "running", at(4), "")]
    hosts = [
        make_host(n, pool="p", run=HostRun(wave=w, state=s, exit=int(s == "failed"), started=b, ended=e))  # type: ignore[arg-type]
        for n, w, s, b, e in parts
    ]
    made = report(*hosts, run=run).run
    assert made
    assert [(w.number, w.hosts, w.done, w.failed, w.started, w.ended) for w in made.waves] == [
        (1, 2, 1, 1, at(0), at(3)),
        (2, 1, 0, 0, at(4), ""),
    ]


@pytest.fixture(scope="module")
def fleet_of_200() -> Report:
    return fleet(200)


def test_numbers_of_a_fleet_agree_with_its_hosts(fleet_of_200: Report) -> None:
    made = fleet_of_200
    assert [h.state for h in made.hosts] == sorted((h.state for h in made.hosts), key=STATES.index)
    assert sum(made.states.values()) == sum(p.hosts for p in made.pools) == 200
    assert sum(g.gpus for g in made.gpus) == sum(p.gpus for p in made.pools)
    assert sum(c.hosts for c in made.classes) == sum(h.seen is not None for h in made.hosts)
    assert made.run and sum(w.hosts for w in made.run.waves) == sum(h.run is not None for h in made.hosts)
    for pool in made.pools:
        assert pool.hosts >= pool.reached >= pool.accepted >= pool.provisioned >= pool.healthy


# ---------------------------------------------------------------- JSON, JUnit

TEXT = st.text(max_size=30)
FINDINGS = st.builds(
    ReportFinding,
    id=TEXT,
    status=st.sampled_from(["failed", "warning", "passed", "skipped", "not-proven"]),
    message=TEXT,
)
REPORTS = st.lists(st.tuples(TEXT, st.lists(FINDINGS, max_size=3)), max_size=3).map(
    lambda hosts: report(*(make_host(name, pool="p", probe=seen(*found)) for name, found in hosts))
)


def test_json_is_valid_by_the_published_schema(fleet_of_200: Report) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA.schema)
    SCHEMA.validate(json.loads(json.dumps(report_data(fleet_of_200))))
    bad = report_data(fleet_of_200)
    bad["hosts"][0]["state"] = "fine"
    assert [e.json_path for e in SCHEMA.iter_errors(json.loads(json.dumps(bad)))] == ["$.hosts[0].state"]


@given(REPORTS)
def test_any_report_is_valid_json_and_junit(made: Report) -> None:
    SCHEMA.validate(json.loads(json.dumps(report_data(made))))
    assert junit_counts(made)[0] == len(made.hosts)


def junit_counts(made: Report) -> list[int]:
    """Suites, cases, failures, errors, skipped: as junitparser reads and counts them, and as they are written."""
    read = JUnitXml.fromstring(junit_text(made).encode())
    written = (read.tests, read.failures, read.errors)
    suites = list(read)
    for suite in suites:
        own = (suite.tests, suite.failures, suite.errors, suite.skipped)
        assert None not in (suite.name, suite.hostname, suite.time, suite.timestamp)
        assert all(None not in (case.name, case.classname, case.time) for case in suite)
        assert {type(one) for case in suite for one in case.result} <= {Failure, Error, Skipped}
        suite.update_statistics()
        assert (suite.tests, suite.failures, suite.errors, suite.skipped) == own
    read.update_statistics()
    assert (read.tests, read.failures, read.errors) == written
    return [len(suites), *written, read.skipped]


def test_junit_of_a_fleet_counts_what_it_holds(fleet_of_200: Report) -> None:
    suites, cases, failures, errors, skipped = junit_counts(fleet_of_200)
    assert suites == 200 and cases > failures + errors + skipped and failures and errors


def test_junit_says_of_a_host_what_failed_what_passed_and_what_only_warns() -> None:
    known = seen(
        finding("gpu.xid", message="Xid 79", fix="reset"), finding("gpu.count", "passed"), finding("gpu.ecc", "warning")
    )
    run = HostRun(wave=0, state="done", exit=0, started="2026-11-22T08:00:00Z", ended="2026-11-22T08:01:30Z")
    [suite] = ElementTree.fromstring(junit_text(report(make_host("gpu1", pool="a", probe=known, run=run))))
    assert (suite.get("time"), suite.get("timestamp")) == ("90", "2026-11-22T08:00:00")
    failed, warned, passed = suite.findall("testcase")
    [failure] = failed
    assert (failed.get("name"), failure.get("message"), failure.text) == ("gpu.xid", "Xid 79", "do next: reset")
    assert (warned.get("name"), [e.tag for e in warned]) == ("gpu.ecc", ["system-out"])
    assert (passed.get("name"), list(passed)) == ("gpu.count", [])


# ---------------------------------------------------------------- HTML


class Page(HTMLParser):
    """The elements of a page with their attributes, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)> \" ' & \u2028"


def test_nothing_that_a_host_says_becomes_markup() -> None:
    known = seen(finding(EVIL, message=EVIL, fix=EVIL), kernel=EVIL, kind=EVIL)
    plain = Page(html_text(report(make_host("a", probe=seen(finding("x")))), load_page()))
    made = Page(html_text(replace(report(make_host(EVIL, pool=EVIL, probe=known)), title=EVIL), load_page()))
    tags = [tag for tag, _ in made.elements]
    assert tags.count("script") == 2 and "img" not in tags
    assert {name for _, attributes in made.elements for name in attributes if name.startswith("on")} == set()
    assert set(tags) - {tag for tag, _ in plain.elements} <= {"p"}
    data = json.loads(made.scripts[0])
    assert data["hosts"][0]["n"] == EVIL and data["findings"] == [[EVIL, "failed", EVIL, EVIL]]


def test_the_page_asks_nobody_for_anything(fleet_of_200: Report) -> None:
    text = html_text(fleet_of_200, load_page())
    page = Page(text)
    links = [v for _, a in page.elements for k, v in a.items() if k in ("src", "href", "action", "srcset", "data")]
    assert links == ["#hosts"]
    assert re.findall(r"url\(|@import|fetch\(|XMLHttp|WebSocket|https?://", text) == []
    [policy] = [a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a]
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert policy and "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy


def test_every_column_has_a_header_and_every_row_as_many_cells(fleet_of_200: Report) -> None:
    text = html_text(fleet_of_200, load_page())
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        rows = [len(re.findall(r"<t[hd][ >]", row)) for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)]
        assert len(set(rows)) == 1
        assert table.count('scope="col"') == rows[0]


def test_the_timeline_has_a_bar_for_each_host_and_those_that_failed_on_top(fleet_of_200: Report) -> None:
    text = html_text(fleet_of_200, load_page())
    lanes = [re.findall(r'<path class="(\w+)" style="stroke-width:([\d.]+)" d="([^"]+)"', lane)
             for lane in re.findall(r"<svg.*?</svg>", text)]  # fmt: skip
    begun = [host.run for host in fleet_of_200.hosts if host.run and host.run.started]
    assert sum(path.count("M") for lane in lanes for _, _, path in lane) == len(begun)
    failed = [lane for lane in lanes if "failed" in dict.fromkeys(state for state, _, _ in lane)]
    assert failed and all(lane[-1][0] == "failed" and float(lane[-1][1]) >= 2.5 for lane in failed)


def test_a_host_found_without_a_gpu_has_a_bar_of_its_own(fleet_of_200: Report) -> None:
    states = ("done", "pending", "running", "failed")
    begun = [host for host in fleet_of_200.hosts if host.run and host.run.started][: len(states)]
    hosts = tuple(
        replace(host, run=replace(host.run, state=state)) for host, state in zip(begun, states, strict=True) if host.run
    )
    text = html_text(replace(fleet_of_200, hosts=hosts), load_page())
    assert set(re.findall(r'<path class="(\w+)"', text)) == {"ok", "pending", "running", "failed"}


def test_a_report_of_no_host_is_a_page_all_the_same() -> None:
    assert "Nothing is known to be wrong" in html_text(report(), load_page())


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (0, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")]
)
def test_durations_are_read_at_a_glance(seconds: int | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [
        ("", "2026-11-22T10:00:00Z", None),
        ("2026-11-22T10:00:00Z", "", None),
        ("2026-11-22T23:59:30Z", "2026-11-23T00:01:00Z", 90),
        ("2026-11-22T10:00:01Z", "2026-11-22T10:00:00Z", 0),  # a clock that was set back
    ],
)
def test_how_long_something_took(start: str, end: str, seconds: int | None) -> None:
    assert between(start, end) == seconds


def test_the_title_of_a_run_says_what_happened() -> None:
    run = ReportRun(name="r1", verb="provision", status="failed", started="", ended="", controller="")
    bad = make_host("gpu2", result={"exit": 1, "message": "no space", "fix": "df /var"})
    assert headline(report(make_host("gpu1"), bad, run=run)) == "provision: 2 hosts: 1 failed, 1 ok"
    assert headline(report(bad, run=run)) == "provision: gpu2 failed"
    assert headline(report(make_host("gpu1"), make_host("gpu3"), run=run)) == "provision: 2 hosts ok"
    [finding] = bad.findings
    assert (finding.message, finding.fix) == ("no space", "df /var")


def test_steps_of_a_first_installation_are_pending_and_no_drift() -> None:
    fresh = report(make_host("gpu1", plan={"steps": [STEP]}))
    assert left_title(fresh) == "Pending" and ">Pending <" in html_text(fresh, load_page())
