"""gpunode runs: what it says of a journal, and what it refuses."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.core.errors import Exit, GpunodeError, RefusedError
from gpunode.core.facts import parse_probe
from gpunode.core.model import NO_GPU, HostResult
from gpunode.edge import detect
from gpunode.edge.fleet import driver, runs, workflow
from gpunode.edge.fleet import provision as provisioning
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.runs import HostRow, Runs, current_folder, this_process
from gpunode.edge.report import of_run

PROBES = Path(__file__).parents[1] / "cases/probes"
DEAD = f"{socket.gethostname()}:999999999@1"
REUSED = f"{socket.gethostname()}:{os.getpid()}@1"  # another process has the number since
ALIVE = this_process()


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Runs()


def begin(journal: Runs, name: str, controller: str = DEAD, plan: str = "aaaa", **states: str) -> None:
    rows = [HostRow(run=name, host=h, pool="all", wave=0, plan=plan, state="waiting") for h in states]
    journal.begin(name, "provision", {"where": {}, "spec": {}, "arguments": [], "rollout": {}}, controller, rows)
    for host, state in states.items():
        if state in ("done", "failed"):
            journal.ended(
                name, [HostResult(host=host, outcome="failed" if state == "failed" else "ok", message=f"{state} it is")]
            )


def test_last_is_the_newest_run_of_this_folder_and_each_names_its_inventory(
    journal: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, folder, sources in (("20260101", "a", ["/a/hosts.yml"]), ("20260102", "b", []), ("20260103", "", [])):
        request = {"where": {"inventory": sources}, **({"folder": str(tmp_path / folder)} if folder else {})}
        journal.begin(name, "provision", request, DEAD, [])
    lines = [line.split("  ")[-1].strip() for line in run("list")[1].splitlines()]
    assert lines == ["", f"({tmp_path}/b)", "(/a/hosts.yml)"]
    for folder, last in (("a", "20260101"), ("b", "20260102"), ("c", "20260103")):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert journal.get("last").name == journal.get("last", "compare").name == last
    assert "\nof /a/hosts.yml\n" in run("show", "20260101")[1]


def test_neither_a_folder_that_is_gone_nor_an_old_damaged_row_hides_the_last_run(
    journal: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(1, 5):
        begin(journal, f"2026010{day}", gpu1="done")
    with sqlite3.connect(journal.path) as db:
        db.execute("update runs set request = '{' where name = '20260101'")
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert current_folder() == ""
    assert [journal.get(name).name for name in ("last", "20260104", "20260102")] == ["20260104", "20260104", "20260102"]


@pytest.mark.parametrize(
    ("controller", "outcome"),
    [(ALIVE, "running"), (DEAD, "killed"), (REUSED, "killed"), ("another-host:1@1", "running")],
    ids=["alive", "dead", "number of another", "of another host"],
)
def test_a_process_that_got_the_number_of_another_is_not_taken_for_it(
    controller: str, outcome: str, journal: Runs
) -> None:
    begin(journal, "20260101", controller, gpu1="running")
    assert journal.get("20260101").outcome == outcome
    assert bool(journal.at_work(["gpu1"])) == (outcome == "running")


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["runs", *args], standalone_mode=False)
    return (result.return_value if result.exception is None else 99), result.output


def test_without_a_run_it_says_how_to_make_one(journal: Runs) -> None:
    assert run("list") == (0, "no run yet: gpunode provision makes one where it has something to do\n")
    assert run("show")[0] == 2


def test_a_run_whose_process_is_gone_was_killed(journal: Runs) -> None:
    begin(journal, "20260101", gpu1="done", gpu2="waiting")
    code, out = run("list")
    assert code == 0 and "killed" in out and "1 done, 1 waiting" in out
    code, out = run("show", "last")
    assert "gpu1" in out and "done it is" in out and "gpunode runs resume 20260101" in out


def test_a_run_of_very_many_hosts_is_counted(journal: Runs) -> None:
    begin(journal, "20260101", **{f"gpu{n:04d}": "failed" if n % 100 == 7 else "done" for n in range(500)})
    out = run("show", "last")[1]
    assert "500 hosts: 495 done, 5 failed" in out and "5  failed it is" in out
    assert "gpu0007, gpu0107, gpu0207, gpu0307, gpu0407" in out and len(out.splitlines()) < 10
    assert len(run("show", "last", "--hosts")[1].splitlines()) > 500


def test_data_for_machines(journal: Runs) -> None:
    begin(journal, "20260101", gpu1="failed")
    listed = json.loads(run("list", "--format", "json")[1])["runs"]
    assert listed[0]["counts"] == {"failed": 1} and "request" not in listed[0]
    shown = json.loads(run("show", "2026", "--format", "json")[1])
    assert shown["hosts"][0]["message"] == "failed it is" and shown["request"]["spec"] == {}


def test_two_runs_are_compared_host_by_host(journal: Runs) -> None:
    begin(journal, "20260101", gpu1="done", gpu2="done", gpu3="done")
    begin(journal, "20260102", plan="bbbb", gpu1="done", gpu2="failed")
    begin(journal, "20260103", gpu1="done", gpu2="done", gpu3="done")
    hosts = json.loads(run("diff", "20260101", "20260102", "--format", "json")[1])["hosts"]
    assert [h["host"] for h in hosts] == ["gpu1", "gpu2", "gpu3"] and hosts[2]["second"] is None
    assert "0 hosts differ" in run("diff", "20260101", "last")[1]


def test_a_run_that_is_at_work_is_not_resumed(journal: Runs) -> None:
    begin(journal, "20260101", ALIVE, gpu1="running")
    where = f"process {os.getpid()} on {socket.gethostname()}"
    code, out = run("resume")
    assert code == 5 and f"still at work ({where})" in out
    with pytest.raises(RefusedError) as error:
        journal.refuse_busy(["gpu1"])
    assert str(error.value.what) == f"gpu1 is used by run 20260101 of gpunode ({where})"
    fix = f"kill {os.getpid()} on {socket.gethostname()}"
    assert error.value.fix == f"wait for it (gpunode runs show 20260101), or end it: {fix}"


def test_an_undo_is_listed_and_continued_by_its_own_command(journal: Runs) -> None:
    row = HostRow(run="u1", host="gpu1", pool="all", wave=0, plan="", state="failed")
    journal.begin("u1", "uninstall", {"what": {"verb": "uninstall"}}, DEAD, [row])
    journal.finish("u1", "failed")
    assert run("list")[1].split()[:3] == ["u1", "uninstall", "failed"]
    assert "runs resume" not in run("show", "u1")[1]
    result = CliRunner().invoke(cli, ["runs", "resume", "u1"], standalone_mode=False)
    assert result.return_value == 2 and "gpunode uninstall again" in result.output


def test_what_stays_after_an_undo_can_be_read_later(journal: Runs) -> None:
    row = HostRow(run="u1", host="gpu1", pool="all", wave=0, plan="", state="running")
    journal.begin("u1", "uninstall", {}, DEAD, [row])
    journal.ended("u1", [HostResult(host="gpu1", notes=("/etc/x: it stays as it is", "/etc/y: another one"))])
    assert run("show", "u1")[1].splitlines()[2:4] == [
        "    note: /etc/x: it stays as it is",
        "    note: /etc/y: another one",
    ]


def test_a_run_that_is_done_needs_no_resuming(journal: Runs) -> None:
    begin(journal, "20260101", gpu1="done")
    assert run("resume") == (0, "20260101: every host is done\n")


def test_hosts_in_work_are_known(journal: Runs) -> None:
    begin(journal, "20260101", ALIVE, gpu1="running", gpu2="done")
    begin(journal, "20260102", DEAD, gpu3="running")
    assert {h: r.name for h, r in journal.at_work(["gpu1", "gpu2", "gpu3"]).items()} == {"gpu1": "20260101"}


STARTER = """\
import sys, time
from dataclasses import replace
from pathlib import Path
from gpunode.core.errors import RefusedError
from gpunode.edge.fleet.runs import HostRow, Runs, this_process

folder, name, hosts, rounds = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), int(sys.argv[4])
for number in range(rounds):
    journal = Runs(folder / f"{number}.sqlite")
    (folder / f"{number}.{name}").touch()
    until = time.monotonic() + 60
    while len(list(folder.glob(f"{number}.[ab]"))) < 2 and time.monotonic() < until:
        pass
    rows = [HostRow(run=name, host=h, pool="all", wave=0, plan="", state="waiting") for h in hosts]
    try:
        journal.begin(name, "provision", {}, this_process(), rows)
        print(number, "began", flush=True)
    except RefusedError as error:
        print(number, error.what, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_of_two_runs_that_are_started_at_once_on_a_host_one_is_refused(tmp_path: Path) -> None:
    rounds = 60
    started = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, str(tmp_path), name, hosts, str(rounds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name, hosts in (("a", "gpu1,gpu2"), ("b", "gpu2,gpu3"))
    ]  # fmt: skip
    printed: dict[int, list[str]] = {}
    try:
        for process in started:
            assert process.stdout
            for _ in range(rounds):
                line = process.stdout.readline()
                assert line, "it ended before its last round: its standard error says why"
                number, words = line.strip().split(" ", 1)
                printed.setdefault(int(number), []).append(words)
    finally:
        for process in started:
            process.kill()  # one that waits for the other goes on for ever
            process.communicate()
    assert len(printed) == rounds
    for words in printed.values():
        began, refused = sorted(words, key=lambda text: text != "began")
        assert began == "began" and "gpu2 is used by run" in refused, words


def test_a_run_that_ended_but_was_not_buried_is_not_at_work(journal: Runs) -> None:
    child = subprocess.Popen(["sleep", "3456"])
    name = f"{socket.gethostname()}:{child.pid}@{runs._began(child.pid)}"
    begin(journal, "20260101", name, gpu1="running")
    assert journal.get("20260101").outcome == "running"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
    assert journal.get("20260101").outcome == "killed"
    child.wait()


LOCK = (
    'format = 1\n[class."debian:12/x86_64/1x10de:2330"]\ndriver = "580.95.05"\nkernel = ""\ncuda = []\ntoolkit = ""\n'
)


@pytest.mark.parametrize(
    ("lock", "there", "code", "says"),
    [
        (None, ["gpu1", "gpu2"], 0, "gpu2: ok: nothing to do"),
        (None, ["gpu2", "gpu9"], 0, "left as they are: gpu1"),
        (None, ["gpu9"], 5, "in its inventory any more"),
        (LOCK, ["gpu1", "gpu2"], 5, "has no class arch"),
    ],
)
def test_what_is_left_of_a_run_is_asked_for_as_the_run_did(
    lock: str | None,
    there: list[str],
    code: int,
    says: str,
    journal: Runs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpunode.yml").write_text("driver: [580")  # the run has its own spec, and no secret to look up
    facts = parse_probe((PROBES / "arch-h100-provisioned/probe.txt").read_text())
    rows = [HostRow(run="20260101", host=h, pool="all", wave=0, plan="a", state="waiting") for h in ("gpu1", "gpu2")]
    where = {"hosts": [], "inventory": ["hosts.yml"], "probes": [], "vault_password_files": []}
    request = {"where": where, "spec": {}, "arguments": [], "rollout": {}, "lock": lock}
    journal.begin("20260101", "provision", request, DEAD, rows)
    monkeypatch.setattr(detect, "find_hosts", lambda where: [detect.Detected(host=host) for host in there])
    monkeypatch.setattr(
        detect,
        "probe",
        lambda hosts, where, on_done: [replace(h, facts=replace(facts, hostname=h.host)) for h in hosts],
    )
    found, out = run("resume", "last", "--yes")
    assert found == code and says in out
    done = {row.host for row in journal.hosts("20260101") if row.state == "done"}
    assert done == ({"gpu1", "gpu2"} & set(there) if not code else set())
    if not code:
        assert journal.state(next(r.found for r in journal.hosts("20260101") if r.host == "gpu2"))["arch"] == "x86_64"


def recorded(journal: Runs, name: str, ends: dict[str, tuple[str, int]], **more: str) -> None:
    where = {"hosts": [], "inventory": ["hosts.yml"], "probes": [], "vault_password_files": []}
    request = {"where": where, "spec": {}, "arguments": [], "rollout": {"waves": ["100%"]}, "lock": None, **more}
    rows = [HostRow(run=name, host=h, pool="all", wave=0, plan="a", state="waiting") for h in ends]
    journal.begin(name, "provision", request, DEAD, rows)
    results = [HostResult(host=h, outcome=Exit(end).outcome) for h, (state, end) in ends.items() if state != "waiting"]
    journal.ended(name, results)
    journal.finish(name, "stopped")


@pytest.mark.parametrize("name", ["20260101", "last"])
def test_a_resumed_run_stands_for_the_first_one_and_hosts_that_failed_go_last(
    name: str, journal: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(
        journal,
        "20260101",
        {"gpu1": ("failed", 1), "gpu2": ("failed", 130), "gpu3": ("waiting", 0), "gpu4": ("done", 0)},
    )
    recorded(journal, "20260102", {"gpu3": ("failed", 1)}, resumes="20260101")
    limits: list[str | None] = []

    def find_hosts(targets: Any) -> list[detect.Detected]:
        limits.append(targets.limit)
        return [detect.Detected(host=f"gpu{n}") for n in range(1, 5)]

    asked: list[Any] = []

    def provision(hosts: Any, *words: Any, options: Any, **more: Any) -> list[HostResult]:
        asked.append(([host.host for host in hosts], options))
        return []

    monkeypatch.setattr(detect, "find_hosts", find_hosts)
    monkeypatch.setattr(detect, "probe", lambda hosts, where, on_done: hosts)
    monkeypatch.setattr(workflow, "plan_one", lambda found, desired: HostPlan(detected=found, error=GpunodeError("x")))
    monkeypatch.setattr(provisioning, "provision", provision)
    run("resume", name, "--yes", "--max-failures", "2", "--limit", "gpu*")
    [(hosts, options)] = asked
    assert hosts == ["gpu1", "gpu2", "gpu3"] and limits == ["gpu*"]
    assert (options.resumes, options.last) == ("20260101", {"gpu1", "gpu3"})
    assert options.rollout == {"waves": ["100%"], "max_failures": "2"}


def test_a_host_that_waits_for_its_gpu_is_looked_at_again(journal: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(journal, "20260101", {"gpu1": ("done", 0), "gpu2": ("done", 0)})
    journal.ended("20260101", [HostResult(host="gpu2", outcome="pending", message=NO_GPU, no_gpu=True)])
    assert f"gpu2                     all/1    pending  {NO_GPU}" in run("show")[1]
    facts = parse_probe((PROBES / "debian12-no-gpu/probe.txt").read_text())
    monkeypatch.setattr(detect, "find_hosts", lambda targets: [detect.Detected(host=f"gpu{n}") for n in (1, 2)])
    monkeypatch.setattr(detect, "probe", lambda hosts, where, on_done: [replace(h, facts=facts) for h in hosts])
    code, said = run("resume", "--yes")
    assert code == 3 and "gpu2: pending" in said and "gpu1" not in said


def test_one_machine_under_two_names_is_not_resumed(journal: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(journal, "20260101", {"gpu1": ("failed", 1), "gpu2": ("waiting", 0)})
    facts = replace(parse_probe((PROBES / "debian12-h100-fresh/probe.txt").read_text()), boot_id="b", hostname="gpu1")
    found = [detect.Detected(host=name, facts=facts) for name in ("gpu1", "gpu2")]
    monkeypatch.setattr(detect, "find_hosts", lambda targets: found)
    monkeypatch.setattr(detect, "probe", lambda hosts, where, on_done: found)
    monkeypatch.setattr(driver, "run_playbook", lambda *_, **__: pytest.fail("it was begun"))
    code, said = run("resume", "--yes")
    assert code == 5 and "gpu1 and gpu2 are one machine, which calls itself gpu1" in said


def test_a_limit_that_names_no_host_that_is_left_is_a_mistake(journal: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(journal, "20260101", {"gpu1": ("failed", 1)})
    monkeypatch.setattr(detect, "find_hosts", lambda targets: [detect.Detected(host="gpu9")])
    result = CliRunner().invoke(cli, ["runs", "resume", "--limit", "gpu9"], standalone_mode=False)
    assert result.return_value == 2 and "none of the hosts that run 20260101 left" in result.output


def test_the_report_of_a_resumed_run_is_of_the_whole_run(journal: Runs) -> None:
    recorded(journal, "20260101", {"gpu1": ("failed", 1), "gpu2": ("waiting", 0), "gpu3": ("done", 0)})
    recorded(journal, "20260102", {"gpu2": ("done", 0), "gpu1": ("failed", 1)}, resumes="20260101")
    recorded(journal, "20260103", {"other": ("done", 0)})
    recorded(journal, "20260104", {"gpu1": ("done", 0)}, resumes="20260101")
    states = {part: {h.name: h.run.state for h in of_run(part).hosts if h.run} for part in ("20260102", "20260104")}
    assert states["20260102"] == {"gpu1": "failed", "gpu2": "done", "gpu3": "done"}
    assert states["20260104"] == {"gpu1": "done", "gpu2": "done", "gpu3": "done"}
    assert {h.name for h in of_run("20260103").hosts} == {"other"}
    assert of_run("20260104").run.started == journal.get("20260101").started  # type: ignore[union-attr]


def test_plan_names_the_runs_at_work_before_its_plans(journal: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(journal, "20260101", ALIVE, gpu1="running")
    facts = parse_probe((PROBES / "debian12-h100-fresh/probe.txt").read_text())
    leases = {"gpu1": "", "gpu2": "two r2", "gpu3": ""}
    found = [
        detect.Detected(host=host, facts=replace(facts, hostname=host, lease=lease)) for host, lease in leases.items()
    ]
    monkeypatch.setattr(workflow, "detect", lambda targets, on_done: found)
    ran = CliRunner().invoke(cli, ["plan", *leases, "-v"])
    named = [line.split("; ")[0] for line in ran.stderr.splitlines() if " is at work " in line]
    assert named == [
        "gpu1: warning: run 20260101 of this controller is at work on this node",
        "gpu2: warning: the controller two is at work on this node (run r2)",
    ]
    assert "\n  because:\n" in ran.stdout and "\n  sources:\n" not in ran.stdout  # those by -vv
