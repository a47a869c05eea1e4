"""What a newcomer's first commands say: not found is not absent, and every file that counts is named."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import fleet_world
import jinja2
import pytest
import yaml
from click.testing import CliRunner, Result
from fleet_world import World

from gpunode.cli.common import Duration
from gpunode.cli.main import cli
from gpunode.cli.runs import _say_changed
from gpunode.core.doctor import scan
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.facts import ALWAYS, WHOLE, parse_probe
from gpunode.core.items.engine import requests
from gpunode.core.model import NO_GPU, ConfigFile, HostResult, NodeFacts, Plan, Runtime, Service, Step
from gpunode.core.report.fleet import unfinished_text
from gpunode.core.report.text import plan_data
from gpunode.core.spec import parse_spec
from gpunode.edge import detect as edge_detect
from gpunode.edge.accept.run import _measurable
from gpunode.edge.ansible.runner import check_arguments
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, one_name_each
from gpunode.edge.doctor import _examined, load_faults
from gpunode.edge.fleet import driver, undo, workflow
from gpunode.edge.fleet.runs import RunRow
from gpunode.edge.report import of_run
from gpunode.edge.ssh.shell import Target
from gpunode.edge.state import state_path

PROBES = Path(__file__).parents[1] / "cases" / "probes"
HEADERS = "#: gpunode-probe 1\n#: system\n#: os_release\n#: pci\n#: packages\n#: end\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)


def typed(*words: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, where nobody is at the keyboard."""
    command = [sys.executable, "-m", "gpunode", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


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


@pytest.mark.parametrize("section", ["os_release", "system", *ALWAYS])
def test_each_section_without_which_steps_would_be_planned_is_asked_for(section: str) -> None:
    text = (PROBES / "debian12-h100-fresh/probe.txt").read_text()
    start = text.index(f"#: {section}\n")
    with pytest.raises(RefusedError):
        parse_probe(text[:start] + text[text.index("\n#: ", start) + 1 :], of_node=True)
    assert parse_probe(text, of_node=True).gpus


@pytest.mark.parametrize("section", WHOLE)
def test_a_list_that_was_cut_off_is_not_taken_for_all_that_there_is(section: str) -> None:
    text = (PROBES / "debian12-h100-provisioned/probe.txt").read_text()
    start = text.index(f"#: {section}\n")
    end = text.index("\n#: ", start)
    with pytest.raises(RefusedError, match=rf"no whole section {section} \(it took over 20 s\)"):
        parse_probe(f"{text[:end]}\n| cut 20{text[end:]}", of_node=True)


@pytest.mark.parametrize(
    ("there", "named", "verb"),
    [
        ("gpunode.yaml", "-c gpunode.yaml", "plan"),
        ("gpu-node.yml", "-c gpu-node.yml", "verify"),
        ("gpunode.json", "-c gpunode.json", "plan"),
        ("gpunode.yml.txt", "-c gpunode.yml.txt", "report --from ."),
        ("../gpunode.yml", "-c ../gpunode.yml", "provision"),
        ("../../gpunode.yml", "-c ../../gpunode.yml", "plan"),
        ("../../../hosts.yml", "-i ../../../hosts.yml", "uninstall"),
        ("hosts.yaml", "-i hosts.yaml", "detect"),
        ("host.yml", "-i host.yml", "detect"),
        ("inventory.ini", "-i inventory.ini", "plan"),
        ("hosts.json", "-i hosts.json", "plan"),
        ("hosts.yml.txt", "-i hosts.yml.txt", "plan"),
        ("inventory/hosts.yml", "-i inventory", "uninstall"),
        ("../hosts.yml", "-i ../hosts.yml", "doctor"),
    ],
)
def test_a_file_of_a_near_name_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, named: str, verb: str
) -> None:
    """A spec that is passed over would be another driver, and `--local` another machine."""
    (tmp_path / "a/b/site/inventory").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b/site")
    Path("inventory").rmdir() if not there.startswith("inventory/") else None
    Path(there).write_text("driver: {branch: '580'}\n")
    done = run(*verb.split())
    assert done.return_value == 2 and f"do next:  {named}" in done.output and "--local\n  do" not in done.output


@pytest.mark.parametrize("named", ["-c gpunod.yml", "-i host.yml", "-i ./host.yml"])
def test_a_named_file_that_is_not_there_is_answered_with_the_one_beside_it(named: str) -> None:
    for name in ("gpunode.yml", "hosts.yml", "notes.txt"):
        Path(name).write_text("{}\n")
    done = run("plan", *named.split())
    meant = "gpunode.yml" if "gpunod.yml" in named else named.removeprefix("-i ").replace("host.", "hosts.")
    assert done.return_value == 2 and f"do next:  did you mean {meant!r}?" in done.output, done.output


def test_for_a_file_that_cannot_be_read_no_other_is_offered() -> None:
    Path("gpunode.yaml").mkdir()
    Path("gpunode.yml").write_text("{}\n")
    done = run("plan", "-c", "gpunode.yaml")
    assert done.return_value == 2 and "did you mean" not in done.output, done.output


STEP = Step(role="driver", option="packages", title="t", value={})


@pytest.mark.parametrize(("plan", "good"), [({}, True), ({"no_gpu": True}, False), ({"steps": (STEP,)}, False)])
def test_the_playbook_verify_fails_where_the_command_does(plan: dict[str, Any], good: bool) -> None:
    playbook = files("gpunode") / "collection/ansible_collections/gpunode/node/playbooks/verify.yml"
    [play] = yaml.safe_load(playbook.read_text())
    [that] = [task["ansible.builtin.assert"]["that"] for task in play["tasks"] if "ansible.builtin.assert" in task]
    data = {"plan": plan_data(replace(Plan(host="h"), **plan))}
    assert jinja2.Environment().compile_expression(that)(verify_plan=data) is good


def test_a_site_ends_with_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = PROBES / "debian12-h100-fresh/probe.txt"
    (tmp_path / "a/b").mkdir(parents=True)
    Path("gpunode.yml").touch()
    monkeypatch.chdir(tmp_path / "a/b")
    assert run("plan", "--probe", probe).return_value == 2
    (tmp_path / "a/.git").touch()  # of a work tree it is a file
    assert run("plan", "--probe", probe).stderr.startswith("spec: none, defaults\n")
    (tmp_path / "a/gpunode.yml").touch()
    assert "do next:  -c ../gpunode.yml\n" in run("plan", "--probe", probe).stderr


def test_the_first_line_names_the_files_that_count() -> None:
    probe = PROBES / "debian12-h100-fresh/probe.txt"
    assert run("plan", "--probe", probe).stderr.splitlines()[0] == "spec: none, defaults"
    Path("gpunode.yml").write_text("driver: {branch: '580'}\n")
    Path("hosts.yml").write_text("all: {hosts: {gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    assert run("plan", "--probe", probe).stderr.splitlines()[0] == "spec: gpunode.yml"
    done = run("verify", "--connect-timeout", "1")
    assert done.stderr.splitlines()[0] == "spec: gpunode.yml · inventory: hosts.yml" and done.return_value == 4
    assert "spec:" not in run("plan", "--probe", probe, "--format", "json").output


ROLLOUT = "inventory: hosts.yml\nrollout: gpunode.yml"
NAMED = [  # a command that reads gpunode.yml: its first lines with one, and without any
    ("solve --gpu 10de:2330 --distro debian:12", "spec: gpunode.yml", "spec: none, defaults"),
    ("bundle create -o x", "spec: gpunode.yml", "spec: none, defaults"),
    ("kube render --server-version 1.34", "spec: gpunode.yml", "spec: none, defaults"),
    ("kube render -i h, --server-version 1.34", "spec: gpunode.yml · inventory: h,", "spec: none, defaults · inv"),
    ("kube apply --kubeconfig none", "spec: gpunode.yml", "spec: none, defaults"),
    ("kube remove --kubeconfig none", "spec: gpunode.yml", "spec: none, defaults"),
    ("kube status --kubeconfig none", "spec: gpunode.yml", "spec: none\n"),
    ("report --from x", "spec: gpunode.yml", "error: "),
    ("report", "error: ", "error: "),  # of a run, which has its own
    ("uninstall --yes", ROLLOUT, "inventory: hosts.yml\n"),
    ("rollback --yes", ROLLOUT, "inventory: hosts.yml\n"),
    ("rollback --check", "inventory: hosts.yml\n", "inventory: hosts.yml\n"),
    ("provision x", "error: ", "error: "),  # a plan's folder, which has its own
]


@pytest.mark.parametrize(("words", "there", "none"), NAMED, ids=[words for words, *_ in NAMED])
def test_each_command_names_the_gpunode_yml_that_it_reads(words: str, there: str, none: str) -> None:
    Path("x").mkdir()
    Path("hosts.yml").write_text("all: {hosts: {gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    without = run(*words.split()).stderr
    Path("gpunode.yml").write_text("rollout: {max_failures: 1}\n")
    named = run(*words.split()).stderr
    assert named.startswith(there) and without.startswith(none), (named, without)
    assert named.count("gpunode.yml") == ("gpunode.yml" in there)


SPECS = [  # a mistake in gpunode.yml: text, where, what to do
    ("driver: {branch: '580.178'}", "1:18", "a whole version is driver.version"),
    ("driver: {branch: latest}", "1:18", "did you mean 'auto'?"),
    ("driver: {branch: “580”}", "1:18", "write '\"' in place of '“' in line 1"),
    ("# 显卡：驱动\ndriver：\n  branch: '580'", "3:9", "write ':' in place of '：' in line 2"),
    ("driver: {branch: {{ b }} }", "1:19", "templates are read in gpunode_spec of an inventory"),
    ("driver: {branch: '{{ b }}'}", "1:18", "templates are read in gpunode_spec of an inventory"),
    ("driver: {}\n---\ndriver: {}", "2:1: expected a single document in the stream, but", "remove this line"),
    ('{"driver": {"branch": "580"} // mine\n}', "1:30", "a comment begins with #"),
    ("driver: {}\ncuda: {}\ndriver: {}", "3:1: the key 'driver' stands here and in line 1", "put both under one"),
    ("container-toolkit: {version: '1.17'}", "1:1", "did you mean 'toolkit'?"),
    ("driver: {open: true}", "1:16", "did you mean 'driver.flavour'?"),
    ("docker: install", "1:9", "did you mean runtimes.docker?"),
    ("mig: {profiles: [1g.10gb]}", "1:1", "did you mean sharing.mig?"),
    ("driver_version: 580.1.2", "1:17", "did you mean driver.version?"),
    ("cuda: {version: '12.8'}", "1:17", "did you mean 'cuda.versions'?"),
    ("gpunode: {driver: {branch: '580'}}", "1:1", "write what is in it without 'gpunode' around it"),
    ("all: {hosts: {gpu1: }}", "1:1", "this is an inventory: give it by -i"),
    ("rollout: {waves: [100%, 1]}", "1:11: rollout.waves are 100%, 1", "waves: [1, 100%], or --waves 1,100%"),
    ("rollout: {waves: [50%, 10%]}", "1:11: rollout.waves are 50%, 10%", "each larger than before"),
    ("rollout: {waves: [one, all]}", "1:11: rollout.waves has 'one'", "--waves 1,10%,100%"),
    ("driver: {version: '580'}", "1:19", "a number such as 580 is driver.branch"),
    ("driver: {branch: nvidia-driver-580-open}", "1:18", "did you mean '580'?"),
    ("driver: {branch: $BRANCH}", "1:18", "variables of the shell are not read"),
    ("driver: !vault x", "1:9", "a vaulted value belongs into gpunode_spec of an inventory"),
    ("driver: {hold: true, branch: 580", "1:9", "close what begins there"),
    ("driver:\n  branch: '580", "2:11", "close what begins there"),
    ("driver:\n  branch: '580'\n toolkit:\n  version: x", "3:2: this line is indented otherwise", "in their column"),
    ("gpunode_cuda_versions: ['12.8']", "1:1", "did you mean cuda.versions?"),
    ("gpunode_mig_profiles: {}", "1:1", "did you mean sharing.mig.profiles?"),
    ("driver:\n\tbranch: '580'", "2:1", "indent by spaces"),
    ("driver:{branch: '580'}", "1:22", "write a blank behind the colon"),
    ("runtimes: [docker]", "1:1", "write it as runtimes: {docker: …}"),
    ("cuda: {versions: [latest]}", "1:8", "did you mean 'newest'?"),
    ("cuda: {versions: ['12']}", "1:8", "write both numbers, such as '12.8'"),
    ("reboot: no", "1:9: reboot is False", "choose one of these: YAML reads no and off as false"),
    ("runtimes: {docker: {manage: yes}}", "1:29", "choose one of these: YAML reads no and off as false"),
    ("cuda: {versions: [12.8.1]}", "1:8", "leave out what is behind MAJOR.MINOR"),
    ("proxy: 10.0.0.1:3128", "1:8", "http://10.0.0.1:3128"),
    ("reboot_timeout: 15m", "1:17", "write 15 alone, in the unit of the key; see: gpunode explain reboot_timeout"),
    ("rollout: {waves: '1,10%,100%'}", "1:18", "a list: waves: [1, 10%, 100%]"),
]


@pytest.mark.parametrize(("text", "where", "fix"), SPECS, ids=[text.replace("\n", " ")[:40] for text, *_ in SPECS])
def test_a_mistake_in_gpunode_yml_is_answered_with_the_key_that_is_meant(text: str, where: str, fix: str) -> None:
    Path("gpunode.yml").write_text(text + "\n")
    done = run("plan", "--probe", PROBES / "debian12-h100-fresh/probe.txt")
    assert f"gpunode.yml:{where}" in done.output and fix in done.output and done.return_value == 2


INVENTORIES = [  # a mistake in hosts.yml: text, what is said
    (
        "all:\n  hosts:\n    - gpu1\n",
        "hosts.yml:3:5: hosts of the group all is a list",
        "`gpu1:` in place of `- gpu1`",
    ),
    ("- gpu1\n- gpu2\n", "hosts.yml:1:1: the top level is a list", "write hosts as `all: {hosts: {NAME: }}`"),
    ("", "hosts.yml is empty", "gpunode init writes hosts.yml"),
    ("driver: {branch: '580'}\n", "the group driver has the key 'branch'", "That is given by -c hosts.yml"),
]


@pytest.mark.parametrize(("text", "what", "fix"), INVENTORIES, ids=["list", "top", "empty", "spec"])
def test_a_mistake_in_an_inventory_is_said_in_our_words(text: str, what: str, fix: str) -> None:
    Path("hosts.yml").write_text(text)
    done = run("detect")
    assert (
        what in done.output and fix in done.output and "Completely failed" not in done.output and done.return_value == 2
    )


def test_a_folder_as_inventory_is_answered_with_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/.gitkeep").touch()
    assert "the folder site is empty" in run("detect", "-i", "site").output
    (tmp_path / "site/Containerfile").write_text("FROM scratch\n")
    assert "Containerfile of the folder site is no inventory" in run("detect", "-i", "site").output


def test_a_misspelt_variable_of_the_connection_is_named() -> None:
    """Ansible takes any variable, and the port stays 22; other plugins' variables are no mistakes."""
    known = "ansible_host: 127.0.0.1, ansible_port: 1, ansible_python_interpreter: x, ansible_su_pass: x"
    Path("hosts.yml").write_text(f"all: {{hosts: {{gpu1: {{{known}, ansible_prot: 9}}}}}}\n")
    done = typed("detect")
    said = [line for line in done.stderr.splitlines() if "no variable" in line]
    assert said == ["gpu1: ansible_prot is no variable of Ansible: did you mean ansible_port?"]
    assert done.returncode == 4


WORDS = [  # a mistake on the command line, and what to do instead
    ("apply", "Did you mean 'provision'?"),
    ("remove", "Did you mean 'uninstall'?"),
    ("status", "Did you mean 'verify'?"),
    ("rollback last", "leave it out: the last run is undone by default"),
    ("rollback 20261122T013821Z-1f2e3d --list --local", "given together"),
    ("rollback 20261122T013821Z-1f2e3d", "--to 20261122T013821Z-1f2e3d"),
    ("detect gpu1 -i gpu1,gpu2", "--limit gpu1"),
    ("solve --gpu 0000:01:00.0 --distro ubuntu:24.04", "lspci -nn -s 0000:01:00.0"),
    ("explain docker", "did you mean runtimes.docker?"),
    ("doctor --log a.journal", "journalctl --file"),
    ("doctor --log program", "this is a program"),
    ("doctor program.log", "a log to the doctor by --log"),
    ("solve --gpu 10de:2330 --distro debian:12 --arch arm64", "did you mean 'aarch64'?"),
    ("uninstall --part drivers", "did you mean 'driver'?"),
    ("provision --dry-run", "did you mean '--check'?"),
    ("plan --spec gpunode.yml", "did you mean '--config'?"),
    ("plan --host gpu1", "did you mean '--limit'?"),
    ("plan -local", "did you mean '--local'?"),
    ("--log-file absent/log detect", "choose another --log-file"),
    ("plan --config", "do next:  gpunode plan --help"),
    ("kube apply --context", "do next:  gpunode kube apply --help"),
    ("verify nw-1,nw-2", "separate hosts by spaces: nw-1 nw-2"),
    ("--versio", "did you mean '--version'?"),
    ("-V", "did you mean '--version'?"),
    ("--local", "--local belongs to gpunode init, gpunode detect"),
    ("--local detect", "Options follow it: gpunode detect --local"),
    ("plan –limit gpu1", "write -- in place of –"),
    ("plan --inventory=", "inventory '' does not exist"),
    ("detect root:secret@127.0.0.1", "leave the password out"),
    ("detect 127.0.0.1:99999", "a port of at most 65535"),
    ("detect @127.0.0.1", "leave @ out"),
    ("plan -s gpunode.yml", "its short options: -i, -b, -K, -c"),
    ("doctor --log noise", "this is no UTF-8: name the log itself"),
    ("doctor --log short", "this is no UTF-8: name the log itself"),
    ("detect", "-i site/hosts.yml"),
    ("verify --yes", "--yes belongs to gpunode init, gpunode provision"),
    ("provision --smoke", "--smoke belongs to gpunode verify, gpunode kube verify"),
    ("lab up ws", "'ws' is not a number"),
    ("lab up --gpu RTX-3090", "did you mean 'rtx3090'?"),
    ("lab up --distro ubuntu:24.4", "did you mean 'ubuntu:24.04'?"),
    ("lab up --engine docker", "did you mean '--engines'?"),
    ("doctor install.log", "a log to the doctor by --log"),
    ("provision h --waves 1,50 --yes", "--waves 1,50,100%"),
    ("detect --local -K", "give ansible_become_password in the inventory"),
    ("detect -i gpu1,gpu2 --limit gpu11", "did you mean 'gpu1'?"),
    ("provision -i a,b --yes --limit a,b -- --limit a", "use gpunode's --limit"),
    ("provision --local --yes -- -la", "use gpunode's --limit"),
    ("provision --local --yes -- -vC", "use gpunode's --check"),
    ("provision --local --yes -- --inventory=x", "use gpunode's -i"),
    ("provision --local --yes -- -f 5", "use gpunode's --forks"),
    ("provision --local --yes -- --list-tasks", "use gpunode's command plan"),
    ("provision --local --yes -- --chekc", "before --"),
    ("provision --local --yes -- check", "before --"),
    ("provision --yes -- --tags gpunode_driver", "-i site/hosts.yml"),
    ("uninstall --local --part driver --yes -- --check", "options stand before --"),
    ("verify review/", "review/ is a plan's folder: gpunode provision review/"),
    ("provision review/plan.json --yes", "review is a plan's folder: gpunode provision review"),
    ("provision --local --yes program.log", "gpunode.yml by -c"),
    ("plan --local -o program/x", "choose another place"),
    ("report -o program/x/y", "choose another place"),
    ("report -o absent/x", "mkdir -p absent"),
    ("provision h --waves 100%,1 --yes", "--waves 1,100%"),
    ("detect --local --timeout 5x", "'5x' is no time: write 90s, 30m or 2h"),
    ("detect --local --timeout 0s", "0.0 is not in the range"),
    ("plan --probe x --limit gpu1", "leave out the hosts (also --limit)"),
    ("plan --local --lock-file site/gpunode.yml", "site/gpunode.yml is no lock file"),
    ("report site/gpunode.yml", "name a run, a plan's folder, or --from DIR"),
]


@pytest.mark.parametrize(("words", "fix"), WORDS, ids=[words for words, _ in WORDS])
def test_a_mistake_on_the_command_line_is_answered_with_what_is_meant(words: str, fix: str) -> None:
    Path("a.journal").write_bytes(b"LPKSHHRH\0\0")
    Path("program").write_bytes(b"\x7fELF\0\0")
    Path("program.log").write_bytes(b"")
    Path("noise").write_bytes(bytes(range(255, -1, -1)) * 99)
    Path("short").write_bytes(random.Random(1).randbytes(300))
    Path("site").mkdir()
    Path("site/hosts.yml").touch()
    Path("site/gpunode.yml").write_text("driver: {}\n")
    Path("review").mkdir()
    Path("review/plan.json").touch()
    done = typed(*words.split())
    assert done.returncode == 2 and fix in done.stderr and "secret" not in done.stderr, done.stderr
    assert done.stderr.count("do next:") < 2


def test_a_host_that_does_not_resolve_may_be_this_machine_or_a_folder_here() -> None:
    Path("review").mkdir()
    assert "did you mean 'review'?" in typed("provision", "reveiw", "--yes").stderr
    assert "for this machine itself: --local" in typed("plan", "local").stderr
    Path("review/plan.json").touch()
    assert "review is a plan's folder: gpunode provision review" in typed("plan", "review").stderr


def test_arguments_of_ansible_playbook_leave_the_folders_inventory_in_force() -> None:
    Path("hosts.yml").write_text("all: {hosts: {gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    done = typed("provision", "--yes", "--", "--tags", "gpunode_driver")
    assert done.returncode == 4 and "inventory: hosts.yml" in done.stderr, done.stderr
    done = typed("provision", "--yes", "--", "--chekc")
    assert "goes to ansible-playbook: unrecognized arguments: --chekc" in done.stderr and "inv" not in done.stderr
    for asks, instead in (("-k", "inventory"), ("-K", "-K"), ("-J", "--vault-pass"), ("--step", "question")):
        with pytest.raises(InputError, match="this gpunode says itself") as refused:
            check_arguments([asks])
        assert f"use gpunode's {instead}" in refused.value.fix, asks


def test_a_relative_state_home_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, folder in ((str(tmp_path / "x"), tmp_path / "x"), ("rel", tmp_path / ".local/state")):
        monkeypatch.setenv("XDG_STATE_HOME", named)
        assert state_path() == folder / "gpunode"


@pytest.mark.parametrize(("words", "begins"), [("x.json", "{"), ("x.xml", "<?xml"), ("x", "<!"), ("x.html", "<!"),
                                               ("x.json --format html", "<!")])  # fmt: skip
def test_a_report_has_the_format_of_its_ending(words: str, begins: str) -> None:
    Path("gpu1.probe").write_text((PROBES / "debian12-no-gpu/probe.txt").read_text())
    assert run("report", "--from", ".", "-o", *words.split()).return_value == 0
    assert Path(words.split()[0]).read_text().startswith(begins)


def test_a_time_limit_has_the_grammar_of_all_times() -> None:
    found = [Duration(0.1).convert(text, None, None) for text in ("90", "0.5", "90s", "5m", "2h", 10.0)]
    assert found == [90, 0.5, 90, 300, 7200, 10]


def test_gpunode_alone_shows_its_help_and_no_error() -> None:
    done = typed()
    assert done.stderr.startswith("Usage: gpunode") and "error:" not in done.stderr and done.returncode == 2


def test_a_full_disk_behind_the_output_is_named_as_the_output() -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "gpunode", "explain"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert "cannot write stdout: No space left" in done.stderr and "state directory" not in done.stderr


def test_lines_of_explain_are_as_narrow_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, run("explain", "driver.branch").output.splitlines())) <= 50


@pytest.mark.parametrize("words", ["uninstall --yes", "rollback --check", "provision --yes", "detect"])
def test_one_fault_of_the_connection_has_one_wording_and_is_said_once(words: str) -> None:
    Path("hosts.yml").write_text("all: {hosts: {gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    done = run(*words.split())
    assert done.output.count("127.0.0.1 port 1 refuses connections\n") == 1 and "Task failed" not in done.output
    assert done.output.count("name the right port") == 1 and done.return_value == 4


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


@pytest.mark.parametrize("words", ["uninstall --yes", "rollback --yes"])
def test_an_undo_refuses_one_machine_under_two_names(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(parse_probe((PROBES / "debian12-no-gpu/probe.txt").read_text()), boot_id="b1", hostname="train2")
    found = [Detected(host=name, facts=facts) for name in ("train2", "train2b")]
    monkeypatch.setattr(undo, "probe", lambda hosts, where: found)
    monkeypatch.setattr(driver, "run_playbook", lambda *_, **__: pytest.fail("it was begun"))
    done = run(*words.split(), "train2", "train2b")
    assert "train2 and train2b are one machine" in done.output and done.return_value == 5


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


WITHOUT_GPU = parse_probe((PROBES / "debian12-no-gpu/probe.txt").read_text())


@pytest.mark.parametrize("allowed", [False, True])
def test_commands_agree_about_a_node_without_a_gpu(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    found = [Detected(host="gpu1", facts=WITHOUT_GPU)]
    monkeypatch.setattr(workflow, "detect", lambda where, **_: found)
    monkeypatch.setattr(edge_detect, "probe", lambda hosts, where, **_: found)
    monkeypatch.setattr(edge_detect, "detect", lambda where, **_: found)
    Path("gpunode.yml").write_text(f"verify: {{allow_no_gpu: {str(allowed).lower()}}}\n")
    for words in (["plan"], ["verify", "--no-smoke"], ["provision", "--yes"], ["doctor"]):
        done = run(*words, "gpu1")
        assert done.return_value == (0 if allowed else 1 if words == ["doctor"] else 3), words
        assert any(word in done.output for word in ("pending", "PENDING", "exit 3", "root cause")) != allowed, words
        assert allowed or (NO_GPU in done.output and "nothing to do" not in done.output), done.output
        assert "FAILED" not in done.output, words
    log = "=== gpunode log kernel\nNov 30 10:00:00 n1 kernel: NVRM: No NVIDIA GPU found.\n"
    diagnosis = _examined("gpu1", WITHOUT_GPU, log, (), allowed=allowed).diagnosis
    assert diagnosis and (diagnosis.sound, len(diagnosis.earlier)) == (allowed, int(allowed))


@pytest.mark.parametrize("allowed", [False, True])
def test_a_node_without_a_gpu_is_not_measured_and_good_where_that_is_allowed(allowed: bool) -> None:
    desired = DesiredState({"verify": {"allow_no_gpu": allowed}})
    found = Detected(host="gpu1", facts=WITHOUT_GPU, target=Target(name="gpu1"))
    hosts, errors = _measurable([workflow.plan_one(found, desired)], {"gpu1": HostResult(host="gpu1")})
    assert hosts == [] and errors["gpu1"].outcome == ("ok" if allowed else "pending")


def test_plan_accepts_a_node_without_a_gpu_as_provision_and_verify_do() -> None:
    probe = PROBES / "debian12-no-gpu/probe.txt"
    codes = [run("plan", "--probe", probe, *words).return_value for words in ([], ["--allow-no-gpu"])]
    assert codes == [3, 0]


def test_the_last_line_of_many_plans_counts_the_hosts_that_nothing_can_be_done_on() -> None:
    for name in ("debian12-h100-fresh", "debian12-no-gpu"):
        Path(f"{name}.probe").write_text((PROBES / name / "probe.txt").read_text())
    last = run("plan", "--probe", ".").stdout.splitlines()[-1]
    assert last.startswith("Plan: 1 host, ") and last.endswith(" · 1 pending without a GPU")


@pytest.mark.parametrize(("spec", "state"), [("{reboot: never}", "pending"), ("{verify: {allow_no_gpu: true}}", "ok")])
def test_a_report_of_a_node_without_a_gpu_says_what_plan_says(spec: str, state: str) -> None:
    Path("gpunode.yml").write_text(spec)
    Path("gpu1.probe").write_text((PROBES / "debian12-no-gpu/probe.txt").read_text())
    [host] = json.loads(run("report", "--from", ".", "--format", "json").stdout)["hosts"]
    assert host["state"] == state


def test_a_node_without_a_gpu_is_pending_for_its_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be done on it, so that no resume is asked for; journal, report and exit code 3 say the same."""
    monkeypatch.setitem(fleet_world.KINDS, "no GPU", WITHOUT_GPU)
    world = World(["fresh", "no GPU"])
    assert world.provision({}, tmp_path) == {"gpu0000": 0, "gpu0001": 3}
    [row] = world.journal(tmp_path).latest(1)
    ends = {"gpu0000": "done", "gpu0001": "pending"}
    assert {h.host: h.state for h in world.journal(tmp_path).hosts(row.name)} == ends
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


def test_output_that_does_not_block_is_made_to() -> None:
    """An ssh on the same terminal leaves it so, and Ansible refuses it."""
    Path("hosts.yml").write_text("all: {hosts: {gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    read, write = os.pipe()
    os.set_blocking(write, False)
    command = [sys.executable, "-m", "gpunode", "detect", "--connect-timeout", "1"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(read)
    os.close(write)
    assert done.returncode == 4 and "locking" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("text", "said", "name"),
    [
        (b"{,}", "invalid character ','", "docker-daemon-json"),
        (b"{}", "timeout", "docker-daemon-json"),
        (b"{}", "the following directives don't match any configuration option: x", "docker-key-unknown"),
        (b"{}", "the following directives are specified both as a flag and in the configuration file: x: (from …",
         "docker-key-twice"),
    ],
)  # fmt: skip
def test_each_cause_of_a_refused_daemon_json_is_the_root_with_its_own_fix(text: bytes, said: str, name: str) -> None:
    """Of the engine that does not run nothing is named that plan refuses until the file is correct."""
    path, line = (
        "/etc/docker/daemon.json",
        f"dockerd: unable to configure the Docker daemon with file /etc/d.json: {said}",
    )
    docker = Runtime(name="docker", config=path, effective_error=said, unit="docker.service", enabled=True)
    units = {"docker": Service(name="docker", active="failed", enabled="enabled")}
    facts = NodeFacts(runtimes=(docker,), files={path: ConfigFile(path=path, data=text)}, services=units)
    found = _examined("node", facts, "", ()).diagnosis
    assert found
    root, follows = found.findings
    assert (root.fault.id, root.command, follows.fault.id, follows.command) == (name, "", "engine-stopped", "")
    assert path in root.evidence[0].text and follows.fault.command == "gpunode provision" and not found.ours
    faults = load_faults()
    assert [*scan(faults, "log", [line]).found()] == [name]
    assert (
        len({faults.faults[one].fix for one in ("docker-daemon-json", "docker-key-unknown", "docker-key-twice")}) == 3
    )
