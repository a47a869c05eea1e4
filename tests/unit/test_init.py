"""gpunode init: a first gpunode.yml and inventory that gpunode itself reads, and nothing lost that was there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sshd import Sshd

from gpunode.cli.init import CHOICES, REBOOT, STRATEGIES, _look
from gpunode.core.errors import InputError
from gpunode.core.model import Distro, Kubernetes, NodeFacts, Runtime
from gpunode.core.spec import parse_spec, starter
from gpunode.core.spec.starter import Answers, parse_instances, spec_data, spec_text, suggested
from gpunode.edge.ansible.inventory import load_inventory
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.load import load_checked_data, load_spec
from gpunode.edge.starter import write_files

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_options_choices_are_those_of_the_answers() -> None:
    from typing import get_args

    assert get_args(starter.Engine) == CHOICES
    assert get_args(starter.Strategy) == STRATEGIES
    assert get_args(starter.Reboot) == REBOOT


ANSWERS = st.builds(
    Answers,
    engine=st.sampled_from(CHOICES),
    cuda=st.lists(st.sampled_from(["12.8", "13.0", "newest", "12.10"]), max_size=3).map(tuple),
    server_version=st.sampled_from(["", "1.25", "1.30", "1.34"]),
    strategy=st.sampled_from(STRATEGIES),
    replicas=st.integers(0, 48),
    mig=st.dictionaries(st.sampled_from(["1g.10gb", "3g.40gb", "1g.10gb+me"]), st.integers(1, 7)),
    reboot=st.sampled_from(REBOOT),
)


@given(answers=ANSWERS)
def test_the_text_with_its_comments_says_what_the_answers_say(answers: Answers) -> None:
    text = spec_text(answers, ["node: Debian, 'quoted': [x] # y"])
    assert yaml.safe_load(text) == spec_data(answers)
    spec = parse_spec(yaml.safe_load(text))
    assert (spec.cuda.versions, spec.sharing.strategy, spec.reboot) == (answers.cuda, answers.strategy, answers.reboot)
    assert spec.kubernetes.server_version == answers.server_version
    assert dict(spec.sharing.mig.profiles) == dict(answers.mig)
    assert max(map(len, text.splitlines())) <= 120


def test_every_key_has_a_comment_above_it() -> None:
    lines = spec_text(Answers(strategy="mig", mig={"3g.40gb": 2}, server_version="1.34")).splitlines()
    keys = [n for n, line in enumerate(lines) if line and not line.lstrip().startswith("#")]
    assert [lines[n] for n in keys if not lines[n - 1].lstrip().startswith("#")] == []


@pytest.mark.parametrize(
    ("nodes", "engine", "version"),
    [
        ([], "auto", ""),
        ([NodeFacts(distro=Distro(id="debian"))], "docker", ""),
        ([NodeFacts(runtimes=(Runtime(name="podman"),))], "auto", ""),
        ([NodeFacts(kubernetes=Kubernetes(kind="kubeadm", kubelet="v1.34.2"))], "auto", "1.34"),
        ([NodeFacts(kubernetes=Kubernetes(kubelet=v)) for v in ("v1.33.1+k3s1", "v1.9.0", "")], "auto", "1.9"),
    ],
)
def test_what_is_suggested_follows_from_the_nodes(nodes: list[NodeFacts], engine: str, version: str) -> None:
    assert (suggested(nodes).engine, suggested(nodes).server_version) == (engine, version)


@pytest.mark.parametrize("text", ["", "3g.40gb", "3g.40gb=0", "3g.40gb=2=1", "=2"])
def test_instances_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="MIG instances"):
        parse_instances(text)


def test_instances_are_read() -> None:
    assert parse_instances("3g.40gb=2, 1g.10gb+me=1") == {"3g.40gb": 2, "1g.10gb+me": 1}


# ---------------------------------------------------------------- the command


def files(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """gpunode.yml and the inventory's hosts with their variables, read by gpunode and by Ansible."""
    found = {h.name: h.target for h in load_inventory([str(folder / "hosts.yml")])}
    spec, data = load_spec(folder / "gpunode.yml"), load_checked_data(folder / "gpunode.yml")
    assert spec
    return data, {
        name: {"connection": t.connection, "user": t.user, "port": t.port, "become": t.become}
        for name, t in found.items()
    }


def test_hosts_and_options_become_two_files_that_gpunode_reads(run_gpunode: Run, tmp_path: Path) -> None:
    run_gpunode(
        *("init", "root@gpu1", "admin@gpu2:2222", "[::1]:22", "-b", "--engine", "containerd", "--cuda", "12.8"),
        *(
            "--cuda",
            "newest",
            "--kubernetes",
            "1.34",
            "--replicas",
            "4",
            "--reboot",
            "never",
            "--yes",
            "-o",
            tmp_path / "n",
        ),
    )
    data, hosts = files(tmp_path / "n")
    assert data == {
        "driver": {"branch": "auto"},
        "cuda": {"versions": ["12.8", "newest"]},
        "runtimes": {"containerd": {"manage": "install"}},
        "reboot": "never",
        "sharing": {"strategy": "time-slicing", "replicas": 4},
        "kubernetes": {"server_version": "1.34"},
    }
    assert hosts == {
        "gpu1": {"connection": "ssh", "user": "root", "port": None, "become": True},
        "gpu2": {"connection": "ssh", "user": "admin", "port": 2222, "become": True},
        "::1": {"connection": "ssh", "user": "", "port": 22, "become": True},
    }


def test_this_machine_is_looked_at_when_asked(run_gpunode: Run, tmp_path: Path) -> None:
    printed = run_gpunode("init", "--local", "--detect", "--yes", "--format", "json", cwd=tmp_path)
    assert json.loads(printed.stdout)["files"] == {"gpunode.yml": "gpunode.yml", "hosts.yml": "hosts.yml"}
    seen = json.loads(run_gpunode("detect", "--local", "--format", "json").stdout)["hosts"][0]["facts"]
    text = (tmp_path / "gpunode.yml").read_text()
    assert f"#   localhost: {seen['distro']['name']}, {seen['arch']}; GPUs: " in text
    assert files(tmp_path)[1]["localhost"]["connection"] == "local"


def test_what_is_there_is_replaced_only_by_force(run_gpunode: Run, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("mine\n")
    refused = run_gpunode("init", "gpu1", "--yes", "-o", tmp_path, exit=5)
    assert "hosts.yml exists" in refused.stderr
    assert "--force" in refused.stderr
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"hosts.yml": "mine\n"}
    run_gpunode("init", "gpu1", "--yes", "-o", tmp_path, "--force")
    assert set(files(tmp_path)[1]) == {"gpu1"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gpunode.yml", "hosts.yml"]


def test_a_file_that_comes_meanwhile_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("somebody else's\n")
    with pytest.raises(Exception, match=r"hosts.yml exist"):
        write_files(tmp_path, {"gpunode.yml": "", "hosts.yml": "ours\n"}, force=False)
    assert (tmp_path / "hosts.yml").read_text() == "somebody else's\n"


def test_a_spec_that_is_none_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown key"):
        write_files(tmp_path, {"gpunode.yml": "drivr: {}\n"}, force=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["gpu1"], "--yes"),  # no terminal
        (["gpu1", "--local", "--yes"], "given together"),
        (["gpu1", "gpu1", "--yes"], "named twice"),
        (["--sharing", "mps", "--yes"], "--replicas"),
        (["--sharing", "none", "--replicas", "3", "--yes"], "for these alone"),
        (["--sharing", "mig", "--yes"], "--mig"),
        (["--sharing", "mps", "--replicas", "2", "--mig", "1g.10gb=7", "--yes"], "for it alone"),
        (["--sharing", "dra", "--yes"], "--kubernetes 1.34"),
        (["--kubernetes", "latest", "--yes"], "MAJOR.MINOR"),
        (["--cuda", "12", "--yes"], "cuda.versions has '12'"),
        (["-o", "/dev/null", "--yes"], "another"),
    ],
)
def test_what_cannot_be_is_one_error_and_writes_nothing(
    run_gpunode: Run, tmp_path: Path, options: list[str], says: str
) -> None:
    assert says in run_gpunode("init", *options, exit=2, cwd=tmp_path).stderr
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_cannot_be_looked_at_ends_it(run_gpunode: Run, tmp_path: Path) -> None:
    ran = run_gpunode("init", "127.0.0.1:1", "--detect", "--yes", exit=4, cwd=tmp_path)
    assert "127.0.0.1" in ran.stderr
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- at a terminal


def at_terminal(folder: Path, *options: str) -> pexpect.spawn:
    return pexpect.spawn(
        sys.executable,
        ["-m", "gpunode", "init", *options],
        cwd=str(folder),
        encoding="utf-8",
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # background jobs ignore it
    )


def test_a_person_is_asked_and_the_answers_are_kept(tmp_path: Path) -> None:
    person = at_terminal(tmp_path)
    for question, answer in [
        ("Nodes", "admin@gpu1 gpu2"),
        ("Become root by sudo", "y"),
        ("Look at the nodes", "n"),
        ("Container engine", "nonsense"),
        ("is not one of", "docker"),
        ("CUDA", "12.8, 13.0"),
        ("Kubernetes", "none"),
        ("share a GPU", "mig"),
        ("MIG instances", "3g.40gb=2"),
        ("reboot a node", ""),
    ]:
        person.expect(question)
        person.sendline(answer)
    person.expect("written: gpunode.yml, hosts.yml")
    person.expect("next: +gpunode plan\r")
    person.expect(pexpect.EOF)
    data, hosts = files(tmp_path)
    assert data["sharing"] == {"strategy": "mig", "mig": {"profiles": {"3g.40gb": 2}}}
    assert data["runtimes"] == {"docker": {"manage": "install"}}
    assert data["cuda"] == {"versions": ["12.8", "13.0"]}
    assert data["reboot"] == "if-needed"
    assert (hosts["gpu1"]["user"], hosts["gpu2"]["become"]) == ("admin", True)


@pytest.mark.parametrize(("answers", "known"), [("y\n", True), ("n\ny\n", False)])
def test_an_unknown_host_key_is_asked_about(tmp_path: Path, answers: str, known: bool) -> None:
    sshd = Sshd(tmp_path)
    sshd.known_hosts.write_text("")
    node = Detected(host="gpu7", target=sshd.target(name="gpu7"))
    try:
        with CliRunner().isolation(input=answers) as (_out, err, _all):
            (looked,) = _look([node], Targets(hosts=("gpu7",)), asking=True)
            shown = err.getvalue().decode()
    finally:
        sshd.stop()
    assert (looked.facts is not None) == known
    assert (sshd.host_public in sshd.known_hosts.read_text()) == known
    assert shown.count("the host key ssh-ed25519 SHA256:") == (1 if known else 2)


def test_what_an_option_says_is_not_asked(tmp_path: Path) -> None:
    person = at_terminal(
        tmp_path, "--local", "--no-detect", "--engine", "docker", "--cuda", "12.8", "--reboot", "never"
    )
    person.expect(r"\A[^?]*Kubernetes version")
    person.sendline("1.34")
    person.expect("share a GPU")
    person.sendline("time-slicing")
    person.expect("Shares of a GPU.*4")
    person.sendline("")
    person.expect("written")
    person.expect(pexpect.EOF)
    data, _ = files(tmp_path)
    assert data["sharing"] == {"strategy": "time-slicing", "replicas": 4}
    assert data["kubernetes"] == {"server_version": "1.34"}


def test_ctrl_c_writes_nothing(tmp_path: Path) -> None:
    person = at_terminal(tmp_path)
    person.expect("Nodes")
    while True:  # Python does not see one that comes between its question and its waiting for the answer
        person.sendintr()
        if person.expect(["interrupted", pexpect.TIMEOUT], timeout=5) == 0:
            break
    person.expect(pexpect.EOF)
    person.close()
    assert person.exitstatus == 130
    assert list(tmp_path.iterdir()) == []
