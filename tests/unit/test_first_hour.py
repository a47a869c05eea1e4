"""What a newcomer's first commands say: not found is not absent, and every file that counts is named."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleet_world
import pytest
from click.testing import CliRunner, Result
from fleet_world import World

from gpunode.cli.main import cli
from gpunode.cli.runs import _say_changed
from gpunode.core.doctor import Evidence, diagnose
from gpunode.core.errors import RefusedError
from gpunode.core.facts import parse_probe
from gpunode.core.items.engine import requests
from gpunode.core.report.fleet import unfinished_text
from gpunode.core.spec import parse_spec
from gpunode.edge import detect as edge_detect
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, one_name_each
from gpunode.edge.doctor import load_faults
from gpunode.edge.fleet import workflow
from gpunode.edge.fleet.runs import RunRow
from gpunode.edge.report import of_run

PROBES = Path(__file__).parents[1] / "cases" / "probes"
HEADERS = "#: gpunode-probe 1\n#: system\n#: os_release\n#: pci\n#: packages\n#: end\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)


@pytest.mark.parametrize(
    ("node", "none"), [("debian12-h100-fresh", False), ("debian12-no-gpu", True)], ids=["a GPU", "none"]
)
def test_this_machine_has_no_gpu_where_its_probe_says_so_and_not_where_a_plan_failed(
    monkeypatch: pytest.MonkeyPatch, node: str, none: bool
) -> None:
    """Without a network the repository's key cannot be fetched, and there is no plan."""
    found = [Detected(host="localhost", facts=parse_probe((PROBES / node / "probe.txt").read_text()))]
    monkeypatch.setattr(edge_detect, "probe", lambda hosts, where, **_: found)
    Path("gpunode.yml").write_text("proxy: http://127.0.0.1:1\n")
    done = run("provision", "--local", "--yes")
    assert ("This machine has no NVIDIA GPU" in done.output) == none
    assert ("cannot fetch" in done.output) == (not none) and done.return_value == (3 if none else 1)


@pytest.mark.parametrize("verb", ["plan", "lock", "detect"])
def test_a_probe_without_content_is_no_answer(verb: str) -> None:
    """As probe.sh prints it where its library is missing: every section, and nothing in them."""
    Path("gpu1.probe").write_text(HEADERS)
    done = run(verb, "--probe", "gpu1.probe")
    assert done.return_value == 5 and "no os-release, no kernel" in done.output and "nothing to do" not in done.output


@pytest.mark.parametrize("section", ["os_release", "pci", "system"])
def test_each_section_that_every_linux_has_is_asked_for(section: str) -> None:
    text = (PROBES / "debian12-h100-fresh/probe.txt").read_text()
    start = text.index(f"#: {section}\n")
    with pytest.raises(RefusedError):
        parse_probe(text[:start] + text[text.index("\n#: ", start) + 1 :], of_node=True)
    assert parse_probe(text, of_node=True).gpus


@pytest.mark.parametrize(
    ("there", "named", "verb"),
    [
        ("gpunode.yaml", "-c gpunode.yaml", "plan"),
        ("gpu-node.yml", "-c gpu-node.yml", "verify"),
        ("../gpunode.yml", "-c ../gpunode.yml", "provision"),
        ("hosts.yaml", "-i hosts.yaml", "detect"),
        ("inventory.ini", "-i inventory.ini", "plan"),
        ("inventory/hosts.yml", "-i inventory", "uninstall"),
        ("../hosts.yml", "-i ../hosts.yml", "doctor"),
    ],
)
def test_a_file_of_a_near_name_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, named: str, verb: str
) -> None:
    """A spec that is passed over would be another driver, and `--local` another machine."""
    (tmp_path / "site/inventory").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "site")
    Path("inventory").rmdir() if not there.startswith("inventory/") else None
    Path(there).write_text("driver: {branch: '580'}\n")
    done = run(verb)
    assert done.return_value == 2 and f"do next:  {named}" in done.output and "--local\n  do" not in done.output


def test_the_first_line_names_the_files_that_count() -> None:
    probe = PROBES / "debian12-h100-fresh/probe.txt"
    assert run("plan", "--probe", probe).stderr.splitlines()[0] == "spec: none, defaults"
    Path("gpunode.yml").write_text("driver: {branch: '580'}\n")
    Path("hosts.yml").write_text("all: {hosts: {gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    assert run("plan", "--probe", probe).stderr.splitlines()[0] == "spec: gpunode.yml"
    done = run("verify", "--connect-timeout", "1")
    assert done.stderr.splitlines()[0] == "spec: gpunode.yml · inventory: hosts.yml" and done.return_value == 4
    assert "spec:" not in run("plan", "--probe", probe, "--format", "json").output


def test_one_machine_under_two_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same boot and host name; a clone has another boot, a container of the same host another name."""
    facts = replace(parse_probe((PROBES / "debian12-no-gpu/probe.txt").read_text()), boot_id="b1", hostname="train2")
    found = [
        Detected(host="train1", facts=replace(facts, boot_id="b0")),
        Detected(host="train2", facts=facts),
        Detected(host="train2b", facts=facts),
        Detected(host="inside", facts=replace(facts, hostname="inside")),
    ]
    errors = {host.host: host.error for host in one_name_each(found)}
    assert [name for name, error in errors.items() if error] == ["train2", "train2b"]
    monkeypatch.setattr(edge_detect, "probe", lambda hosts, where, **_: found)
    done = run("provision", "train1", "train2", "train2b", "inside", "--yes")
    assert "train2 and train2b are one machine, which calls itself train2" in done.output and done.return_value == 5


OLD = {"driver": {"branch": "580"}, "proxy": "http://me:secret@proxy:3128"}


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (OLD, ""),
        (OLD | {"proxy": "http://me:other@proxy:3128"}, ""),  # a secret is no part of what was recorded
        (OLD | {"verify": {"allow_no_gpu": True}}, ""),  # options of the run have set these
        ({}, ""),  # no file
        (OLD | {"driver": {"branch": "595"}}, "driver"),
        ({"proxy": OLD["proxy"], "reboot": "never"}, "driver, reboot"),
    ],
)
def test_resume_says_that_gpunode_yml_has_changed(
    capsys: pytest.CaptureFixture[str], now: dict[str, Any], changed: str
) -> None:
    row = RunRow(name="r1", verb="provision", started="", ended="", status="failed", request={}, controller="c")
    _say_changed(row, DesiredState(OLD), lambda: now)
    said = capsys.readouterr().err
    assert (f"has changed since run r1 began ({changed})" in said) == bool(changed) and bool(said) == bool(changed)


NO_GPU = parse_probe((PROBES / "debian12-no-gpu/probe.txt").read_text())


@pytest.mark.parametrize("allowed", [False, True])
def test_commands_agree_about_a_node_without_a_gpu(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    found = [Detected(host="gpu1", facts=NO_GPU)]
    monkeypatch.setattr(workflow, "detect", lambda where, **_: found)
    monkeypatch.setattr(edge_detect, "probe", lambda hosts, where, **_: found)
    Path("gpunode.yml").write_text(f"verify: {{allow_no_gpu: {str(allowed).lower()}}}\n")
    for words in (["plan"], ["verify", "--no-smoke"], ["provision", "--yes"]):
        done = run(*words, "gpu1")
        assert done.return_value == (0 if allowed else 3), words
        assert any(word in done.output for word in ("warning", "FAILED", "exit 3")) != allowed, words


def test_a_run_is_done_with_a_node_that_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be done on it, so there is nothing to resume; the report says pending, as the exit code 3 does."""
    monkeypatch.setitem(fleet_world.KINDS, "no GPU", NO_GPU)
    world = World(["fresh", "no GPU"])
    assert world.provision({}, tmp_path) == {"gpu0000": 0, "gpu0001": 3}
    [row] = world.journal(tmp_path).latest(1)
    assert {h.host: h.state for h in world.journal(tmp_path).hosts(row.name)} == dict.fromkeys(world.hosts, "done")
    assert unfinished_text(world.results) == "" and row.status == "done"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    report = of_run("last")
    assert {host.name: host.state for host in report.hosts} == {"gpu0000": "ok", "gpu0001": "pending"}
    assert sum(pool.provisioned for pool in report.pools) == 1


@pytest.mark.parametrize(
    ("text", "docker", "manage", "taken"),
    [
        (b'disabled_plugins = ["cri"]\n', True, "auto", False),  # as Docker's package containerd.io has it
        (b'disabled_plugins = ["cri"]\n', True, "configure", True),
        (b'disabled_plugins = ["cri"]\n', False, "auto", True),
        (b'# disabled_plugins = ["cri"]\n', True, "auto", True),
        (b'disabled_plugins = ["cri"', True, "auto", True),  # broken: the plan says so
    ],
)
def test_dockers_containerd_without_cri_is_left_alone(text: bytes, docker: bool, manage: str, taken: bool) -> None:
    facts = parse_probe((PROBES / "debian12-h100-fresh/probe.txt").read_text())
    path = "/etc/containerd/config.toml"
    runtimes = tuple(one for one in facts.runtimes if docker or one.name != "docker")
    facts = replace(facts, runtimes=runtimes, files={**facts.files, path: replace(facts.files[path], data=text)})
    spec = parse_spec({"runtimes": {"containerd": {"manage": manage}}})
    assert ("containerd" in [request.runtime for request, _ in requests(facts, spec)]) == taken


@pytest.mark.parametrize(("text", "key"), [("driver: {branch: no}", "driver.branch"), ("reboot: no", "reboot")])
def test_a_word_that_yaml_reads_as_false_is_explained(text: str, key: str) -> None:
    Path("gpunode.yml").write_text(text)
    done = run("plan", "--local")
    assert done.return_value == 2 and f"{key} is False" in done.output and "YAML reads no" in done.output


def test_a_locale_that_is_not_installed_is_replaced() -> None:
    """In a process of its own: Ansible asks for it once, when it is imported."""
    Path("hosts.yml").write_text("all: {hosts: {gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    command = [sys.executable, "-m", "gpunode", "detect", "--connect-timeout", "1"]
    environment = {**os.environ, "LANG": "xx_XX.UTF-8", "PYTHONPATH": str(PROBES.parents[2])}
    environment = {name: value for name, value in environment.items() if not name.startswith("LC_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 4 and "locale" not in done.stderr, done.stderr


def test_a_broken_daemon_json_is_the_root_of_a_stopped_engine() -> None:
    faults = load_faults()
    signs = {"docker-daemon-json": ["/etc/docker/daemon.json: 3:17"], "engine-stopped": ["docker.service"]}
    state = {name: [Evidence(source="state", line=0, text=t) for t in found] for name, found in signs.items()}
    roots = [one.fault.id for one in diagnose(faults, [], state).findings if one.root]
    assert roots == ["docker-daemon-json"]
