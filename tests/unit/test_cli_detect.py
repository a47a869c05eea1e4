"""gpunode detect, over a real sshd, on this machine, and from saved probes."""

from __future__ import annotations

import getpass
import json
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from sshd import Sshd, free_port

from gpunode.cli.detect import _problems as problems
from gpunode.cli.main import main
from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.edge.detect import Targets, detect, find_hosts
from gpunode.edge.ssh.shell import Target
from gpunode.node import script

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PROBES = Path(__file__).parents[1] / "cases/probes"
H100 = PROBES / "debian12-h100-provisioned/probe.txt"

SCRIPT = script("probe.sh")


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An inventory of two nodes: one that answers, and one whose port is closed."""
    sshd = Sshd(tmp_path_factory.mktemp("sshd"))
    args = " ".join(sshd.target().ssh_args)
    path = sshd.folder / "hosts.yml"
    hosts = {
        "alive": {"ansible_host": "127.0.0.1", "ansible_port": sshd.port, "gpunode_spec": {"reboot": "never"}},
        "gone": {"ansible_host": "127.0.0.1", "ansible_port": free_port()},
    }
    common = {"ansible_user": getpass.getuser(), "ansible_ssh_common_args": args}
    path.write_text(yaml.safe_dump({"all": {"children": {"pool": {"hosts": hosts, "vars": common}}}}))
    yield path
    sshd.stop()


def test_hosts_of_an_inventory_are_probed_and_a_dead_one_does_not_hide_the_others(
    run_gpunode: Run, inventory: Path
) -> None:
    ran = run_gpunode("detect", "-i", inventory, "--format", "json", exit=4)
    alive, gone = json.loads(ran.stdout)["hosts"]
    assert (alive["host"], alive["groups"]) == ("alive", ["pool"])
    assert alive["facts"]["user"] == getpass.getuser()
    assert alive["facts"]["distro"]["id"]
    assert gone["host"] == "gone"
    assert "refuses connections" in gone["error"]["what"]
    assert ran.stderr == ""


def test_text_shows_a_table_on_stdout_and_errors_on_stderr(run_gpunode: Run, inventory: Path) -> None:
    ran = run_gpunode("detect", "-i", inventory, exit=4)
    lines = ran.stdout.splitlines()
    assert lines[0].split() == "HOST DISTRIBUTION KERNEL GPUS DRIVER ENGINES KUBERNETES PROBLEMS".split()
    assert [line.split()[0] for line in lines[1:]] == ["alive"]
    assert "\x1b" not in ran.stdout + ran.stderr
    assert "error: gone: 127.0.0.1 port" in ran.stderr


def test_the_spec_of_the_inventory_comes_with_the_host(inventory: Path) -> None:
    [found] = detect(Targets(inventory=(str(inventory),), limit="alive"))
    assert found.facts is not None
    assert found.probe.startswith("#: gpunode-probe 1\n")
    assert (found.host, found.groups, found.spec) == ("alive", ("pool",), {"reboot": "never"})


def test_only_asks_just_the_hosts_named(inventory: Path) -> None:
    assert [found.host for found in detect(Targets(inventory=(str(inventory),)), only={"alive"})] == ["alive"]


def test_saved_probes_are_private_and_give_the_same_facts_again(
    run_gpunode: Run, inventory: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "probes"
    first = run_gpunode("detect", "-i", inventory, "--limit", "alive", "--save", folder, "--format", "json")
    [file] = folder.iterdir()
    assert file.name == "alive.probe"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    again = run_gpunode("detect", "--probe", folder, "--format", "json")
    assert json.loads(again.stdout)["hosts"][0]["facts"] == json.loads(first.stdout)["hosts"][0]["facts"]


def test_this_machine_is_read_without_ssh(run_gpunode: Run) -> None:
    ran = run_gpunode("detect", "--local", "--format", "yaml", env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    [host] = yaml.safe_load(ran.stdout)["hosts"]
    assert host["host"] == "localhost"
    assert host["facts"]["kernels"]


def test_one_host_is_shown_as_a_card(run_gpunode: Run) -> None:
    ran = run_gpunode("detect", "--probe", H100)
    facts = json.loads((H100.parent / "facts.json").read_text())
    for gpu in facts["gpus"]:
        assert gpu["slot"] in ran.stdout
    for kernel in facts["kernels"]:
        assert kernel["release"] in ran.stdout
    assert facts["driver"]["loaded"] in ran.stdout
    assert "nvidia, ECC on, MIG off, persistence on" in ran.stdout
    assert not any(line != line.rstrip() for line in ran.stdout.splitlines())


def test_every_recorded_node_can_be_shown_and_printed(run_gpunode: Run) -> None:
    files = sorted(PROBES.glob("*/probe.txt"))
    table = run_gpunode("detect", "--probe", *files).stdout
    assert all(path.parent.name in table for path in files)
    hosts = json.loads(run_gpunode("detect", "--probe", *files, "--format", "json").stdout)["hosts"]
    assert [h["host"] for h in hosts] == [f.parent.name for f in files]


def test_the_contents_of_configuration_files_are_not_printed(run_gpunode: Run) -> None:
    hosts = json.loads(run_gpunode("detect", "--probe", H100, "--format", "json").stdout)["hosts"]
    files = hosts[0]["facts"]["files"]
    assert files
    assert {file["data"] for file in files.values()} == {None}


def test_redact_takes_the_hosts_name_out_of_what_is_shown_and_saved(run_gpunode: Run, tmp_path: Path) -> None:
    name = json.loads((H100.parent / "facts.json").read_text())["hostname"]
    assert name
    ran = run_gpunode("detect", "--probe", H100, "--redact", "--save", tmp_path / "report", "--format", "json")
    saved = (tmp_path / "report/node1.probe").read_text()
    facts = json.loads(ran.stdout)["hosts"][0]["facts"]
    assert facts["hostname"] != name
    assert f"| hostname {name}\n" not in saved


# ---------------------------------------------------------------- which hosts are meant


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (Targets(), "no host given"),
        (Targets(local=True, hosts=("a",)), "hosts and local given together"),
        (Targets(hosts=("a",), limit="b"), "--limit without an inventory"),
        (Targets(hosts=("a", "b", "a")), "host a is named twice"),
        (Targets(hosts=("a", "root@a:22")), "host a is named twice"),
        (Targets(hosts=("a:b:c d",)), "host 'a:b:c d'"),
    ],
)
def test_what_is_not_clear_is_refused_before_any_host_is_asked(where: Targets, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        find_hosts(where)
    assert caught.value.exit == 2


def test_two_nodes_behind_one_address_are_distinguished_by_their_ports() -> None:
    assert [h.host for h in find_hosts(Targets(hosts=("127.0.0.1:2201", "root@127.0.0.1:2202")))] == [
        "127.0.0.1-2201",
        "127.0.0.1-2202",
    ]


def test_become_is_laid_over_the_hosts() -> None:
    [host] = find_hosts(Targets(hosts=("a",), become=True, become_password="pw"))
    assert host.target == Target(name="a", address="a", become=True, become_password="pw")


@pytest.mark.parametrize("text", ["", "not a probe\n", "#: gpunode-probe 1\n#: system\n| hostname a\n"])
def test_a_file_that_is_no_whole_probe_is_an_input_error(run_gpunode: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "x.probe").write_text(text)
    ran = run_gpunode("detect", "--probe", tmp_path / "x.probe", exit=2)
    assert str(tmp_path / "x.probe") in ran.stderr


def test_a_node_whose_answer_is_no_probe_fails_with_what_it_said(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpunode.node.script", lambda name: "echo no space left >&2; exit 2\n")
    [found] = detect(Targets(inventory=(str(inventory),), limit="alive"))
    assert found.error is not None
    assert found.error.exit == 1
    assert "no space left" in found.error.what


def test_a_node_that_kills_the_probe_is_as_one_that_is_down(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that shuts down ends what runs on it, before it ends the connection."""
    killed = SCRIPT.replace("\nprobe_journal() {\n", "\nprobe_journal() {\n  kill -TERM 0\n")
    assert killed != SCRIPT
    monkeypatch.setattr("gpunode.node.script", lambda name: killed)
    [found] = detect(Targets(inventory=(str(inventory),), limit="alive"))
    assert found.error is not None
    assert found.error.exit == 4, found.error


# ---------------------------------------------------------------- by Ansible's connection


def test_a_host_with_a_connection_of_its_own_is_taken_there_by_detect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own plugin, named in ansible.cfg, which only Ansible can load."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/mine.py").write_text(
        "from ansible.plugins.connection.local import Connection as Local\n"
        "DOCUMENTATION = 'name: mine\\nshort_description: local by another name\\ndescription: for a test\\n"
        "author: test\\noptions: {}\\n'\n"
        "class Connection(Local):\n    transport = 'mine'\n"
    )
    monkeypatch.setenv("ANSIBLE_CONNECTION_PLUGINS", str(tmp_path / "plugins"))
    (tmp_path / "hosts.ini").write_text("odd ansible_connection=mine\nplain ansible_connection=local\n")
    found = detect(Targets(inventory=(str(tmp_path / "hosts.ini"),)))
    assert [(f.host, f.error) for f in found] == [("odd", None), ("plain", None)]
    assert all(f.facts and f.facts.kernels for f in found)


def test_what_is_not_visible_without_root_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["detect", "--probe", str(PROBES / "debian12-no-root")])
    assert (
        "without root: processes of others, the kernel's log, gpunode's journal, /etc/containerd/config.toml; "
        "add --become to see all"
    ) in capsys.readouterr().out


def test_hosts_that_are_alike_are_one_row_and_problems_have_names(run_gpunode: Run, tmp_path: Path) -> None:
    text = (PROBES / "debian12-h100-fresh" / "probe.txt").read_text()
    for number in range(6):
        (tmp_path / f"gpu{number}.probe").write_text(text)
    lines = run_gpunode("detect", "--probe", str(tmp_path)).stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("gpu0, gpu1, gpu2, gpu3 … (6 in all)") and lines[1].endswith("driver.loaded")


@pytest.mark.parametrize(
    ("probe", "named"),
    [
        ("debian12-h100-fresh", ["driver.loaded"]),  # that no driver's programs are there is said by that
        ("container-no-gpu", ["gpu.present", "units"]),
        ("sles15-h100-provisioned", []),  # precompiled modules need no dkms
    ],
)
def test_a_problem_has_a_name_and_what_nobody_misses_is_none(probe: str, named: list[str]) -> None:
    facts = parse_probe((PROBES / probe / "probe.txt").read_text())
    assert [name for name, _ in problems(facts)] == named
