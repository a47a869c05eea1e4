"""What is other on a node than a run left it: two probes, and verify --since by the journal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.core.errors import GpunodeError
from gpunode.core.facts import parse_probe
from gpunode.core.model import ConfigFile, HostResult, InstalledPackage, Kernel, NodeFacts, Service
from gpunode.core.plan.since import differences, since_checks, state_of
from gpunode.edge import detect as edge_detect
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import since, workflow
from gpunode.edge.fleet.runs import HostRow, Runs

PROBE = Path(__file__).parents[1] / "cases/probes/debian12-h100-provisioned/probe.txt"
FACTS = parse_probe(PROBE.read_text())


def package(version: str) -> dict[str, InstalledPackage]:
    return {"nvidia-open": InstalledPackage(name="nvidia-open", version=version)}


def file(text: str, mode: int = 0o644) -> dict[str, ConfigFile]:
    data = text.encode()
    return {"/etc/x": ConfigFile(path="/etc/x", data=data, sha256=text, mode=mode)}


DIFFERENCES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {}, []),
    ({"hostname": "a", "boot_id": "1"}, {"hostname": "b", "boot_id": "2"}, []),
    ({"toolkit": "1.17.0"}, {"toolkit": "1.18.1"}, ["toolkit: 1.17.0 → 1.18.1"]),
    ({"packages": package("1")}, {"packages": package("2")}, ["packages nvidia-open version: 1 → 2"]),
    ({}, {"packages": package("2")}, ["packages nvidia-open: none → 2"]),
    ({"packages": package("1")}, {}, ["packages nvidia-open: 1 → none"]),
    ({"files": file("one")}, {"files": file("two")}, ["files /etc/x: other content"]),
    ({"files": file("one")}, {"files": file("one", 0o600)}, ["files /etc/x mode: 0644 → 0600"]),
    (
        {"kernels": (Kernel(release="6.1", running=True),)},
        {"kernels": (Kernel(release="6.1"), Kernel(release="6.2", running=True))},
        ["kernels 6.1 running: True → none", "kernels 6.2: none → there"],
    ),
    (
        {"services": {"docker": Service(name="docker", active="active")}},
        {"services": {"docker": Service(name="docker", active="failed")}},
        ["services docker active: active → failed"],
    ),
    ({"cuda": ("12.8",)}, {"cuda": ("12.8", "13.0")}, ["cuda: 12.8 → 12.8, 13.0"]),
]


@pytest.mark.parametrize(("before", "after", "reported"), DIFFERENCES)
def test_what_changed_is_reported_in_words(before: dict[str, Any], after: dict[str, Any], reported: list[str]) -> None:
    states = [json.loads(json.dumps(state_of(NodeFacts(**facts)))) for facts in (before, after)]
    assert list(differences(*states)) == reported


def test_a_state_holds_no_file_and_no_long_text() -> None:
    text = json.dumps(state_of(FACTS))
    assert not any(len(word) > 120 for word in text.split('"'))
    assert '"data"' not in text and len(text) < len(PROBE.read_text())


def test_very_many_differences_are_counted() -> None:
    many = {f"p{n}": InstalledPackage(name=f"p{n}", version="1") for n in range(50)}
    checks = since_checks(state_of(NodeFacts()), state_of(NodeFacts(packages=many)), "r1")
    assert len(checks) == 21 and checks[-1].message.endswith("and 30 more")


# ---------------------------------------------------------------- verify --since


@pytest.fixture
def journal(tmp_path: Path) -> Runs:
    """A run that left gpu1 as it is, gpu2 with another toolkit, gpu3 half done, gpu4 with nothing written down."""
    runs = Runs(tmp_path / "runs.sqlite")
    older = replace(FACTS, toolkit="1.0.0")
    runs.keep({"now": FACTS, "old": older})
    row = HostRow(run="r1", host="", pool="all", wave=0, plan="p", state="waiting")
    runs.begin("r1", "provision", {}, "ctl:1", [replace(row, host=f"gpu{n}") for n in (1, 2, 3, 4)])
    done = [HostResult(host=f"gpu{n}") for n in (1, 2, 4)]
    runs.ended(
        "r1", [*done, HostResult(host="gpu3", outcome="failed", message="no space")], {"gpu1": "now", "gpu2": "old"}
    )
    return runs


def test_only_hosts_that_are_other_than_then_use_their_gpus(journal: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Detected(host=f"gpu{n}", facts=replace(FACTS, boot_id=f"of {n}")) for n in range(1, 6)]
    found.append(Detected(host="gpu6", error=GpunodeError("away")))
    smoked: list[str] = []

    def verified(hosts: list[Detected], where: Targets, desired: DesiredState, *, smoke: bool) -> list[HostResult]:
        smoked.extend(one.host for one in hosts if smoke)
        return [HostResult(host=one.host, outcome="failed" if one.error else "ok", message="verified") for one in hosts]

    monkeypatch.setattr(since, "detect", lambda where, on_done: found)
    monkeypatch.setattr(since, "verify_found", verified)
    results = since.verify_since(Targets(), DesiredState(), journal, "r1")
    reported = {r.host: (r.unchanged_since, [check.message for check in r.checks]) for r in results}
    assert reported == {
        "gpu1": (True, []),
        "gpu2": (False, [f"since r1: toolkit: 1.0.0 → {FACTS.toolkit}"]),
        "gpu3": (False, ["run r1 did not bring it to an end: no space"]),
        "gpu4": (False, ["run r1 did not write down what it was like"]),
        "gpu5": (False, ["this host was not in run r1"]),
        "gpu6": (False, ["this host was not in run r1"]),
    }
    assert smoked == ["gpu2", "gpu3", "gpu4", "gpu5", "gpu6"]
    assert results[0].message == "as run r1 left it" and results[1].message == "verified"


def test_the_command_tells_the_hosts_that_changed_and_counts_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = Runs()
    runs.keep({"now": FACTS})
    row = HostRow(run="r1", host="", pool="", wave=0, plan="", state="done", exit=0, found="now")
    runs.begin("r1", "provision", {}, "ctl:1", [replace(row, host=f"gpu{n}") for n in (1, 2)])
    found = [Detected(host="gpu1", facts=FACTS), Detected(host="gpu2", facts=replace(FACTS, toolkit="1.0.0"))]
    monkeypatch.setattr(since, "detect", lambda where, on_done: found)
    monkeypatch.setattr(
        since, "verify_found", lambda hosts, *_, smoke: [HostResult(host=h.host, message="proven") for h in hosts]
    )

    def verify(*words: str) -> tuple[Any, str]:
        done = CliRunner().invoke(cli, ["verify", "gpu1", "gpu2", *words], standalone_mode=False)
        return done.exception or done.return_value, done.output

    runs.begin("r2", "uninstall", {}, "ctl:1", [row])  # which wrote down no state
    code, text = verify("--since", "last")
    assert code == 0 and "gpu2: ok: proven" in text and "gpu1: " not in text
    assert f"toolkit: {FACTS.toolkit} → 1.0.0" in text and "1 of 2 hosts are as run r1 left them" in text
    data = json.loads(verify("--since", "r1", "--format", "json")[1])["hosts"]
    assert [(h["host"], h["extra"]["same"]) for h in data] == [("gpu1", True), ("gpu2", False)]
    code, text = verify("--since", "r9")
    assert code == 2 and "not known" in text


# ---------------------------------------------------------------- GPUs that are gone

NO_GPU = parse_probe((PROBE.parents[1] / "debian12-no-gpu/probe.txt").read_text())
OTHER = replace(FACTS.gpus[0], slot="0000:65:00.0")


@pytest.mark.parametrize("verb", [["verify", "--no-smoke"], ["provision", "--yes"]], ids=["verify", "provision"])
def test_a_machine_without_a_gpu_is_said_and_accepted_only_when_asked(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = [Detected(host="gpu1", facts=NO_GPU)]
    monkeypatch.setattr(workflow, "detect", lambda where, **_: found)
    monkeypatch.setattr(edge_detect, "probe", lambda hosts, where, **_: found)
    run = CliRunner().invoke
    done = run(cli, [*verb, "gpu1"], standalone_mode=False)
    assert done.return_value == 3 and "no NVIDIA GPU on PCI" in done.output
    assert "verify.allow_no_gpu: true in gpunode.yml" in done.output and "--allow-no-gpu" not in done.output
    assert run(cli, [*verb, "gpu1", "--allow-no-gpu"], standalone_mode=False).return_value == 0
    done = run(cli, [*verb, "gpu1", "--expect-gpus", "8"], standalone_mode=False)
    assert done.return_value == 1 and "0 GPUs on PCI, and 8 expected" in done.output
    assert "allow_no_gpu" not in done.output


def test_a_gpu_that_the_journal_knows_is_missed_until_its_absence_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = Runs()
    runs.keep({"two": replace(FACTS, gpus=(*FACTS.gpus, OTHER)), "one": FACTS})
    row = HostRow(run="r1", host="gpu1", pool="", wave=0, plan="", state="done", exit=0, found="two")
    runs.begin("r1", "provision", {}, "ctl:1", [row])
    runs.begin("r2", "provision", {}, "ctl:1", [replace(row, run="r2", state="failed", exit=1, found="one")])
    runs.close()
    monkeypatch.setattr(workflow, "detect", lambda where, **_: [Detected(host="gpu1", facts=FACTS)])

    def checks(*words: str) -> dict[str, str]:
        done = CliRunner().invoke(cli, ["verify", "gpu1", "--no-smoke", "--format", "json", *words])
        [host] = json.loads(done.output)["hosts"]
        return {c["id"]: c["message"] for c in host["checks"] if c["status"] in ("failed", "not-proven")}

    assert checks()["gpu.gone"] == "1 GPU gone since run r1: 0000:65:00.0"
    assert "gpu.gone" not in checks("--expect-gpus", "1")
    (tmp_path / "gpunode/runs.sqlite").write_bytes(b"no database" * 100)
    assert "is damaged" in checks()["gpu.gone"]
