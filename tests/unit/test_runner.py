"""ansible-runner around a playbook: what it is given of the environment, and what comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpunode.core.errors import Exit, GpunodeError
from gpunode.core.model import HostResult
from gpunode.edge.ansible.runner import Event, HostRun, PlayOptions, _read, _waiting, run_playbook
from gpunode.edge.ssh.shell import Target

SECRET = "{{ lookup('ansible.builtin.env', 'A_SECRET', default='gone') }}"
TIMEOUT = "{{ lookup('ansible.builtin.config', 'TASK_TIMEOUT') }}"
CHECKED = "{{ lookup('ansible.builtin.config', 'HOST_KEY_CHECKING') }}"
PLAY = {
    "name": "Local",
    "hosts": "all",
    "gather_facts": False,
    "connection": "local",
    "tasks": [
        {"name": "Keys", "ansible.builtin.debug": {"msg": CHECKED}},
        {"name": "End", "ansible.builtin.debug": {"msg": TIMEOUT}},
        {"name": "Env", "ansible.builtin.debug": {"msg": SECRET}},
        {"name": "Fails", "ansible.builtin.fail": {"msg": "token: abcdef123"}, "when": "inventory_hostname == 'bad'"},
    ],
}


def write(folder: Path, play: dict[str, object]) -> None:
    (folder / "playbook.yml").write_text(yaml.safe_dump([play]))


def test_host_keys_stay_checked_the_environment_is_cut_and_hosts_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "s3cret")
    write(tmp_path, PLAY)
    events: list[Event] = []
    hosts = run_playbook(tmp_path, "playbook.yml", inventory=["good,bad,"], on_event=events.append)
    printed = {(e.host, e.task): e.message for e in events if e.kind in ("ok", "failed")}
    assert printed["good", "Keys"] == "True"
    assert printed["good", "End"] == "21600"
    assert printed["good", "Env"] == "gone"
    assert hosts["good"].exit == Exit.OK
    assert hosts["bad"].exit == Exit.FAILED
    assert "abcdef123" not in hosts["bad"].message


def test_the_users_own_choice_about_host_keys_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_HOST_KEY_CHECKING", "False")
    write(tmp_path, PLAY)
    events: list[Event] = []
    run_playbook(tmp_path, "playbook.yml", inventory=["good,"], on_event=events.append)
    assert [e.message for e in events if e.task == "Keys" and e.kind == "ok"] == ["False"]


def test_a_password_that_a_node_sends_back_is_in_no_event_and_no_artifact(tmp_path: Path) -> None:
    fails = {"name": "Fails", "ansible.builtin.fail": {"msg": "sudo: {{ ['SudoPass', 'w0rd'] | join('-') }}"}}
    write(tmp_path, PLAY | {"tasks": [fails]})
    secret, events = "SudoPass-w0rd", list[Event]()
    target = Target(name="good", address="good", become_password=secret)
    options = PlayOptions(targets=(target,))
    (run,) = run_playbook(
        tmp_path, "playbook.yml", inventory=["good,"], options=options, on_event=events.append
    ).values()
    assert run.exit == Exit.FAILED and run.message.endswith("sudo: ********")
    assert not any(secret in repr(event) for event in events)
    kept = [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if secret.encode() in path.read_bytes()]


def test_a_playbook_that_ansible_cannot_read_is_one_error(tmp_path: Path) -> None:
    write(tmp_path, {"name": "No", "hosts": "all", "tasks": [{"no.such.module": {}}]})
    with pytest.raises(GpunodeError, match="ansible-playbook ended"):
        run_playbook(tmp_path, "playbook.yml", inventory=["good,"])


def test_plugins_import_the_gpunode_that_runs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/caller")
    reported = {"name": "Tell", "ansible.builtin.fail": {"msg": "{{ lookup('env', 'PYTHONPATH') }}"}}
    write(tmp_path, {"name": "Say", "hosts": "all", "connection": "local", "gather_facts": False, "tasks": [reported]})
    assert "/of/the/caller" in run_playbook(tmp_path, "playbook.yml", inventory=["good,"])["good"].message


@pytest.mark.parametrize(
    ("data", "reported"),
    [
        (
            {"event": "verbose", "stdout": "node1: waiting for the package manager: apt-get (PID 7)\r\n"},
            ("node1", "waiting for the package manager: apt-get (PID 7)"),
        ),
        ({"event": "verbose", "stdout": "PLAY RECAP"}, None),
        ({"event": "verbose", "stdout": "META: ran handlers"}, None),
        ({"event": "runner_on_ok", "stdout": "ok: [node1]"}, None),
    ],
)
def test_a_wait_for_the_package_manager_is_reported(data: dict[str, str], reported: tuple[str, str] | None) -> None:
    event = _waiting(data, {"node1": HostRun()})
    assert (event and (event.host, event.task)) == reported


@pytest.mark.parametrize(
    "odd",
    [
        {"res": "no mapping"},
        {"res": {"gpunode_exit": 99, "msg": "x"}},
        {"res": {"gpunode_exit": []}},
        {"res": {"changes": 3, "changed": True}, "event": "runner_on_ok"},
        {"res": {"notes": 7}},
        {"res": {"checks": 7}},
        {"duration": "long"},
        {"task": ["x"], "res": {"diff": 3, "notes": 1}},
    ],
    ids=str,
)
def test_a_result_that_cannot_be_read_is_a_failure_of_its_host(
    odd: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    hosts: dict[str, HostRun] = {"good": HostRun()}
    kind = odd.pop("event", "runner_on_failed")
    event = _read({"event": kind, "event_data": {"host": "bad", **odd}}, hosts)
    assert event and (event.host, event.kind) == ("bad", "failed")
    assert hosts["bad"].exit == Exit.FAILED and "unexpected" in event.message
    assert hosts["good"] == HostRun()


def test_a_sudo_whose_question_ansible_does_not_know_has_a_way_out() -> None:
    """As ansible-core 2.19 says of sudo-rs 0.2.13."""
    hosts: dict[str, HostRun] = {}
    said = {"msg": "Task failed: Timeout (12s) waiting for privilege escalation prompt: "}
    _read({"event": "runner_on_unreachable", "event_data": {"host": "gpu1", "task": "x", "res": said}}, hosts)
    assert hosts["gpu1"].exit == Exit.UNREACHABLE and "ansible_become_exe: sudo.ws" in hosts["gpu1"].fix


@pytest.mark.parametrize("odd", [{"event_data": []}, {"event_data": {"host": 3}}, {"event": []}, {}])
def test_an_event_of_no_host_is_passed_over(
    odd: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    hosts: dict[str, HostRun] = {}
    _read({"event": "runner_on_ok", **odd}, hosts)
    assert all(run.exit == Exit.FAILED for run in hosts.values())


@pytest.mark.parametrize(
    ("message", "fix", "said"),
    [("a", "", "a"), ("a", "b", "a (fix: b)"), ("a\n  do next:  b", "b", "a\n  do next:  b")],
)
def test_what_to_do_next_is_said_once(message: str, fix: str, said: str) -> None:
    assert HostResult(host="n", message=message, fix=fix).sentence == said
