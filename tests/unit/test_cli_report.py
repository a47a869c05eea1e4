"""gpunode report: what it is made from, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.core.errors import Exit
from gpunode.core.facts import parse_probe
from gpunode.core.model import Changed, Check, HostResult
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected
from gpunode.edge.fleet.runs import HostRow, Runs
from gpunode.edge.fleet.workflow import plan_one
from gpunode.edge.report_data import keep_results

PROBES = Path(__file__).parents[1] / "cases/probes"
NOTHING = {  # a spec that READY needs no step for
    "driver": {"branch": "none"},
    "toolkit": {"version": "none"},
    "runtimes": {engine: {"manage": "ignore"} for engine in ("containerd", "docker")},
}
FRESH, READY = "debian12-h100-fresh", "debian12-h100-provisioned"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def run(*args: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [*map(str, args)], standalone_mode=False)
    return (result.return_value or 0) if result.exception is None else 99, result.output


def made(*args: str | Path) -> dict[str, Any]:
    code, text = run("report", *args, "--format", "json")
    assert code == 0, text
    data: dict[str, Any] = json.loads(text)
    return data


def states(data: dict[str, Any]) -> dict[str, str]:
    return {host["name"]: host["state"] for host in data["hosts"]}


def planned(name: str, probe: str, desired: DesiredState) -> Any:
    text = (PROBES / probe / "probe.txt").read_text()
    return plan_one(Detected(host=name, probe=text, facts=parse_probe(text)), desired)


# ---------------------------------------------------------------- a folder


def test_a_folder_of_probes_with_pools(tmp_path: Path) -> None:
    for pool, name, host in (("a", FRESH, "gpu1"), ("a", READY, "gpu2"), ("b", READY, "gpu2")):
        (tmp_path / "probes" / pool).mkdir(parents=True, exist_ok=True)
        shutil.copy(PROBES / name / "probe.txt", tmp_path / "probes" / pool / f"{host}.probe")
    data = made("--from", "probes")
    assert states(data) == {"gpu1": "failed", "gpu2": "ok", "b/gpu2": "ok"}
    assert [(p["name"], p["hosts"]) for p in data["pools"]] == [("a", 2), ("b", 1)]
    assert data["source"] == "folder probes" and data["title"] == "probes"


def test_no_page_is_printed_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probes").mkdir()
    shutil.copy(PROBES / READY / "probe.txt", tmp_path / "probes/gpu1.probe")
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr("gpunode.cli.report.sys", SimpleNamespace(stdout=terminal))
    code, text = run("report", "--from", "probes")
    assert code == 2 and "-o report.html" in text and "<html" not in text
    assert "<html" in run("report", "--from", "probes", "-o", "page.html")[1] + (tmp_path / "page.html").read_text()


def test_probes_in_folders_of_their_hosts(tmp_path: Path) -> None:
    for host in ("gpu1", "train/gpu2"):
        (tmp_path / "probes" / host).mkdir(parents=True)
        shutil.copy(PROBES / READY / "probe.txt", tmp_path / "probes" / host / "probe.txt")
    assert {(h["name"], h["pool"]) for h in made("--from", "probes")["hosts"]} == {("gpu1", ""), ("gpu2", "train")}


def test_a_probe_that_was_cut_off_is_one_host_in_error(tmp_path: Path) -> None:
    (tmp_path / "gpu1.probe").write_text("#: gpunode-probe 1\n#: system\n")
    shutil.copy(PROBES / READY / "probe.txt", tmp_path / "gpu2.probe")
    assert states(made("--from", tmp_path)) == {"gpu1": "failed", "gpu2": "ok"}


def test_probes_are_compared_with_a_gpunode_yml(tmp_path: Path) -> None:
    shutil.copy(PROBES / READY / "probe.txt", tmp_path / "gpu1.probe")
    (tmp_path / "spec.yml").write_text("driver: {branch: none}\ntoolkit: {version: 1.17.8}\n")
    data = made("--from", tmp_path, "-c", tmp_path / "spec.yml")
    assert states(data) == {"gpu1": "pending"}
    assert "plan.toolkit.packages" in {issue["id"] for issue in data["drift"]}


def test_results_of_verify_stand_above_the_probes(tmp_path: Path) -> None:
    shutil.copy(PROBES / READY / "probe.txt", tmp_path / "gpu1.probe")
    checks = [{"id": "containerd.cri-nvidia", "status": "failed", "message": "no pod", "fix": ""}]
    hosts = [{"host": "gpu1", "exit": 1, "message": "1 failed", "checks": checks, "changed": []}]
    hosts.append({"host": "gpu9", "exit": 4, "message": "no route to host", "checks": [], "changed": []})
    (tmp_path / "verify.json").write_text(json.dumps({"hosts": hosts}))
    data = made("--from", tmp_path)
    assert states(data) == {"gpu1": "failed", "gpu9": "unreachable"}
    assert data["hosts"][0]["seen"]["versions"]["driver"] == "580.95.05"
    assert data["hosts"][0]["message"] == "no pod"


def test_what_detect_prints_is_as_good_as_a_probe(tmp_path: Path) -> None:
    code, text = run("detect", "--probe", PROBES / READY / "probe.txt", "--format", "json")
    (tmp_path / "facts.json").write_text(text)
    [host] = made("--from", tmp_path)["hosts"]
    assert (code, host["name"], host["state"]) == (0, READY, "ok")
    assert host["seen"]["gpus"][0]["model"] == "H100 80GB HBM3"


# ---------------------------------------------------------------- a plan


@pytest.mark.parametrize("form", ["folder", "file", "json"])
def test_a_plan(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DesiredState, "_key", lambda *_: b"a key")
    for name, host in ((FRESH, "gpu1"), (READY, "gpu2")):
        shutil.copy(PROBES / name / "probe.txt", tmp_path / f"{host}.probe")
    code, text = run(
        "plan", "--probe", tmp_path / "gpu1.probe", tmp_path / "gpu2.probe", "-o", "review", "--format", "json"
    )
    assert code == Exit.PENDING
    (tmp_path / "plan.out").write_text(text)
    data = made({"folder": "review", "file": "review/plan.json", "json": "plan.out"}[form])
    assert states(data)["gpu1"] == "pending"
    assert data["gpus"][0]["gpus"] == 2
    assert {p["name"] for p in data["pools"]} == {"all"}
    assert {h["name"]: h["seen"] for h in data["hosts"]} == {h["name"]: h["seen"] for h in made("--from", ".")["hosts"]}
    assert data["title"] == ("Plan plan" if form == "json" else "Plan review")


# ---------------------------------------------------------------- a run


def begin(*, results: bool = True) -> None:
    """A run: gpu1 done, gpu2 failed, gpu3 not started, gpu4 converged before."""
    desired = DesiredState(NOTHING, to_run=False)
    plans = [planned(name, READY, desired) for name in ("gpu1", "gpu2", "gpu3", "gpu4")]
    runs = Runs()
    name = "20261122T080000Z-abcdef"
    rows = [HostRow(run=name, host=f"gpu{i}", pool="a", wave=i // 3, plan="x", state="waiting") for i in (1, 2, 3)]
    row = HostRow(run=name, host="", pool="", wave=0, plan="", state="done")
    rows += [replace(row, host="gpu4", exit=0, message="nothing to do")]
    rows += [replace(row, host="gpu5", state="failed", exit=4, message="no route")]
    runs.begin(name, "provision", {}, f"{socket.gethostname()}:{os.getpid()}", rows)
    runs.started(name, ["gpu1", "gpu2"], "logs")
    ended = [
        HostResult(
            host="gpu1",
            message="done",
            changed=(Changed(text="driver"),),
            checks=(Check(id="x", status="passed", message=""),),
        ),
        HostResult(host="gpu2", outcome="failed", message="dkms failed"),
    ]
    runs.ended(name, ended)
    runs.finish(name, "failed")
    folder = runs.path.parent / "runs" / name
    folder.mkdir(parents=True)
    if results:
        from gpunode.edge.report_data import plans_data

        recorded = {
            "format": 1,
            "hosts": plans_data(plans, desired),
            "errors": [{"host": "gpu5", "error": {"what": "no route", "exit": 4}}],
        }
        (folder / "plan.json").write_text(json.dumps(recorded))
        keep_results(folder, ended, {plans[0].host: plans[0]}, desired)
        with (folder / "results.jsonl").open("a") as file:
            file.write('{"host": "gpu2", "cut o')


def test_a_run_with_the_hosts_that_it_had_nothing_to_do_on() -> None:
    begin()
    data = made("last")
    assert states(data) == {"gpu1": "ok", "gpu2": "failed", "gpu3": "waiting", "gpu4": "ok", "gpu5": "unreachable"}
    gpu1 = next(h for h in data["hosts"] if h["name"] == "gpu1")
    assert gpu1["run"]["changed"] == ["driver"] and "x" in gpu1["passed"]
    assert gpu1["seen"]["gpus"][0]["id"] == "10de:2330"
    assert [(w["number"], w["hosts"], w["done"], w["failed"]) for w in data["run"]["waves"]] == [
        (1, 2, 1, 1),
        (2, 1, 0, 0),
    ]
    assert data["problems"][0]["variants"][0]["message"] == "dkms failed"


def test_a_run_of_which_only_the_journal_is_left() -> None:
    begin(results=False)
    assert states(made("20261122")) == {
        **{"gpu1": "ok", "gpu2": "failed", "gpu3": "waiting", "gpu4": "ok", "gpu5": "unreachable"}
    }


def test_results_are_for_nobody_else_to_read() -> None:
    begin()
    path = next((Runs().path.parent / "runs").glob("*/results.jsonl"))
    assert path.stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------- output, and what is refused


@pytest.mark.parametrize(
    ("form", "start"),
    [("html", "<!doctype html>"), ("json", "{"), ("junit", "<?xml")],
)
def test_each_format_to_a_file(tmp_path: Path, form: str, start: str) -> None:
    shutil.copy(PROBES / READY / "probe.txt", tmp_path / "gpu1.probe")
    code, printed = run("report", "--from", tmp_path, "--format", form, "--title", "Mine", "-o", "out")
    assert (code, printed) == (0, "written: out, 1 host\n")
    text = (tmp_path / "out").read_text()
    assert text.startswith(start) and "Mine" in text


def test_the_schema_is_printed() -> None:
    code, text = run("report", "--schema")
    assert code == 0 and json.loads(text)["$ref"] == "#/$defs/Report"


@pytest.mark.parametrize(
    ("args", "printed"),
    [
        (["last"], "there is none yet"),
        (["no-such-run"], "not known"),
        (["plans/x.json"], "no such plan"),
        (["--from", "nowhere"], "no such folder"),
        (["--from", "empty"], "neither a probe nor *.json"),
        (["last", "--from", "empty", "-c", "nowhere.yml"], "nowhere.yml"),
        (["20261122", "--from", "empty"], "given together"),
        (["list.json"], "names no hosts"),
        (["broken.json"], "Expecting"),
        (["--from", "strange"], "nothing is known of gpu1"),
    ],
)
def test_what_is_no_source_is_refused(tmp_path: Path, args: list[str], printed: str) -> None:
    for name in ("empty", "strange"):
        (tmp_path / name).mkdir()
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "strange/x.json").write_text('{"hosts": [{"host": "gpu1"}]}')
    code, text = run("report", *args)
    assert code == 2 and printed in text


@pytest.mark.parametrize(
    "command",
    ["report", "lock --local", "selftest", "bundle sources b --url http://d"],
    ids=lambda words: words.split()[0],
)
def test_a_folder_that_is_not_there_is_named_before_the_work(command: str) -> None:
    code, out = run(*command.split(), "-o", "no/x.html")
    assert (code, out) == (
        2,
        "error: -o no/x.html: there is no folder no\n  do next:  mkdir -p no, or name another file\n",
    )


def test_a_result_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    shutil.copy(PROBES / READY / "probe.txt", tmp_path / "gpu1.probe")
    code, text = run("report", "--from", tmp_path, "-o", "/proc/out.html")
    assert code == 2 and "cannot write" in text


def test_a_found_host_is_the_same_after_a_way_through_json() -> None:
    from gpunode.core.report.schema import seen_from
    from gpunode.core.report.seen import see
    from gpunode.edge.load import load_knowledge

    for path in sorted(PROBES.glob("*/probe.txt")):
        found = see(parse_probe(path.read_text()), load_knowledge())
        assert seen_from(json.loads(json.dumps(asdict(found)))) == found, path
