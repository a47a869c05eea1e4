"""gpunode uninstall and rollback: what is asked of Ansible, and what is shown of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible_collections.gpunode.node.plugins.action.undo import _message
from click.testing import CliRunner, Result
from journal_text import recall_text, wrote

from gpunode.cli import undo as undo_command
from gpunode.cli.undo import rollback, uninstall
from gpunode.core.errors import Exit, GpunodeError, InputError
from gpunode.core.model import Changed, HostResult
from gpunode.core.undo.journal import Run
from gpunode.edge.ansible.runner import Event, HostRun
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import driver, standing, undo
from gpunode.edge.ssh.many import Ran
from gpunode.edge.ssh.shell import Target


class Ansible:
    """In place of ansible-runner: remembers plays, answers with `runs`."""

    def __init__(self, **runs: HostRun) -> None:
        self.runs = runs
        self.asked: list[dict[str, Any]] = []
        self.heard: Callable[[str], None] = lambda host: None

    def __call__(self, folder: Path, playbook: str, **options: Any) -> dict[str, HostRun]:
        [play] = yaml.safe_load((folder / playbook).read_text())
        assert "ServerAliveInterval=20" in (folder / "ansible.cfg").read_text(), "as in other runs"
        hosts = yaml.safe_load((folder / "inventory.yml").read_text())["all"]["children"][play["hosts"]]["hosts"]
        self.asked.append(
            {
                "what": play["tasks"][0]["gpunode.node.undo"]["what"],
                "hosts": sorted(hosts),
                "check": options["options"].check,
                "diff": options["options"].diff,
                "run": [w for w in options["arguments"] if w.startswith("gpunode_run=")]
                == [f"gpunode_run={folder.name}"],
            }
        )
        for host, run in self.runs.items():
            kind = "changed" if run.changed else "ok"
            found = {"changes": [asdict(one) for one in run.changed], "notes": run.notes}
            found["diff"] = [{"prepared": text} for text in run.diffs]
            if not run.exit:
                options["on_event"](Event(host=host, kind=kind, task=undo.TASK, message="as it was", result=found))
            self.heard(host)
        return self.runs


@pytest.fixture(autouse=True)
def each_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several hosts can be probed, and each is a machine of its own."""
    probe = undo.probe
    monkeypatch.setattr(undo, "probe", lambda hosts, where: list(hosts) if len(hosts) > 1 else probe(hosts, where))


def call(
    command: Any, *words: str, monkeypatch: pytest.MonkeyPatch, tmp: Path, **runs: HostRun
) -> tuple[Result, Ansible]:
    ansible = Ansible(**runs)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp))
    monkeypatch.setattr(driver, "run_playbook", ansible)
    result = CliRunner().invoke(command, [*words, "--format", "json"], standalone_mode=False)
    return result, ansible


DONE = HostRun(
    changed=[Changed(kind="file", name="/etc/x", text="removes /etc/x")],
    notes=["/etc/y: changed since, not by gpunode; it stays as it is"],
)


def test_a_check_shows_what_is_good_of_a_host_before_the_last_one_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ansible, there = Ansible(n1=DONE, n2=HostRun(exit=Exit.UNREACHABLE), n3=HostRun()), list[tuple[str, str]]()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(driver, "run_playbook", ansible)
    show = undo_command._show_host

    def shown(one: HostResult, **how: bool) -> None:
        there.append(("shown", one.host))
        show(one, **how)

    monkeypatch.setattr(undo_command, "_show_host", shown)
    ansible.heard = lambda host: there.append(("heard", host))
    result = CliRunner().invoke(uninstall, ["n1", "n2", "n3", "--check"], standalone_mode=False)
    assert there == [
        ("shown", "n1"), ("heard", "n1"), ("heard", "n2"), ("shown", "n3"), ("heard", "n3"), ("shown", "n2"),
    ]  # fmt: skip
    assert result.output.count("n1: ") == 1 and "would remove /etc/x" in result.output


def test_check_says_what_it_would_be_and_exits_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, ansible = call(uninstall, "n1", "--check", monkeypatch=monkeypatch, tmp=tmp_path, n1=DONE)
    assert result.return_value == Exit.PENDING
    assert ansible.asked == [
        {"what": {"verb": "uninstall"}, "hosts": ["n1"], "check": True, "diff": False, "run": True}
    ]
    [host] = json.loads(result.output)["hosts"]
    assert host["message"] == "would undo 1 change"
    assert host["extra"]["notes"] == DONE.notes


MUCH = [
    Changed(kind="unit", text="stop nvidia-persistenced.service"),
    Changed(kind="file", text="rewrites /etc/docker/daemon.json"),
    Changed(kind="module", text="unloaded nvidia_uvm"),
    Changed(kind="module", text="rebuild the initramfs (6.1)"),
    *(Changed(kind="package", text=f"removed lib{number} 1.0-{number}") for number in range(9)),
    Changed(kind="group", text="remove the group nvidia"),
    Changed(kind="package", text="unheld nvidia-open"),
]


def test_much_is_shown_by_kind_and_counted_in_the_question(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(driver, "run_playbook", Ansible(n1=HostRun(changed=MUCH)))
    monkeypatch.setattr("gpunode.cli.common.is_terminal", lambda: True)
    result = CliRunner().invoke(uninstall, ["n1"], input="y\n", standalone_mode=False)
    lines = result.output.splitlines()
    headings = [line for line in lines if line.startswith("  ") and line.endswith(")") and not line.startswith("   ")]
    assert headings[:5] == ["  services (1)", "  modules (2)", "  files (1)", "  packages (10)", "  settings (1)"]
    asked = next(number for number, line in enumerate(lines) if line.startswith("Undo this on 1 host"))
    before, after = lines[:asked], lines[asked:]
    assert before[before.index("  settings (1)") + 1] == "    would remove the group nvidia"
    assert after[after.index("  settings (1)") + 1] == "    removed the group nvidia"
    inner = [line for line in lines if line.startswith("    ")]
    assert len(inner) == 2 * len(MUCH)
    verbs = ("would ", "stopped ", "rewrote ", "unloaded ", "rebuilt ", "removed ", "unheld ")
    assert all(line.strip().startswith(verbs) for line in inner), inner
    assert not any("would" in line for line in after)
    assert "Undo this on 1 host (1 service, 2 modules, 1 file, 10 packages, 1 setting)? [y/N]: y" in result.output
    assert lines[-1] == "next: gpunode detect shows these hosts as they are now"


def test_why_a_host_failed_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reason = "ssh: connect to host n1 port 22: it is asked again in our words"

    def unreachable(folder: Path, playbook: str, **options: Any) -> dict[str, HostRun]:
        options["on_event"](Event(host="n1", kind="unreachable", task=undo.TASK, message=reason))
        return {"n1": HostRun(exit=Exit.UNREACHABLE, message=reason)}

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(driver, "run_playbook", unreachable)
    result = CliRunner().invoke(uninstall, ["n1", "--yes"], standalone_mode=False)
    assert result.return_value == Exit.UNREACHABLE
    assert f"n1: {undo.TASK}: unreachable" in result.stderr
    assert (result.stdout + result.stderr).count("the name does not resolve") == 1


def test_diffs_of_files_are_shown_when_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = HostRun(changed=DONE.changed, diffs=["--- /etc/x\n+++ /dev/null\n"])
    result, ansible = call(uninstall, "n1", "--check", "--diff", monkeypatch=monkeypatch, tmp=tmp_path, n1=done)
    assert ansible.asked[0]["diff"]
    [host] = json.loads(result.output)["hosts"]
    assert host["extra"]["diffs"] == done.diffs


def test_yes_does_it_at_once_with_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ("n1", "n2", "--part", "toolkit", "--part", "runtime", "--yes")
    result, ansible = call(uninstall, *words, monkeypatch=monkeypatch, tmp=tmp_path, n1=DONE, n2=HostRun())
    assert result.return_value == Exit.OK
    assert ansible.asked == [
        {
            "what": {"verb": "uninstall", "parts": ["toolkit", "runtime"]},
            "hosts": ["n1", "n2"],
            "check": False,
            "diff": False,
            "run": True,
        }
    ]
    assert [host["message"] for host in json.loads(result.output)["hosts"]] == ["as it was", "as it was"]


def test_without_a_terminal_nothing_is_done_unless_yes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, ansible = call(rollback, "n1", "--to", "r1", monkeypatch=monkeypatch, tmp=tmp_path, n1=DONE)
    assert "there is no terminal to ask on" in str(result.exception)
    assert [(asked["what"], asked["check"]) for asked in ansible.asked] == [({"verb": "rollback", "to": "r1"}, True)]


def test_a_journal_that_cannot_be_read_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = {"n1": recall_text(wrote("1", run="r1")), "n2": recall_text([], more=[("undo", "1", "?")]), "n3": ""}

    def run_many(programs: Sequence[tuple[Target, str]], *, on_done: Callable[[Ran], None], **_: Any) -> None:
        for target, _text in programs:
            on_done(Ran(target=target, stdout=printed[target.name]))

    monkeypatch.setattr(standing, "run_many", run_many)
    first, second, third = (runs for _, runs in standing.list_runs(Targets(hosts=("n1", "n2", "n3"))))
    assert isinstance(first, list) and [run.name for run in first] == ["r1"]
    shown = CliRunner().invoke(rollback, ["n1", "--list", "--format", "json"], standalone_mode=False)
    assert [run["counts"] for run in json.loads(shown.output)["hosts"][0]["runs"]] == [{"files": 1}], shown.output
    assert isinstance(second, GpunodeError) and second.exit == Exit.FAILED and "cannot be read" in second.what
    assert isinstance(third, GpunodeError) and "ended early" in third.what


def test_a_host_that_ansible_never_reached_and_one_that_refused_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = HostRun(exit=Exit.REFUSED, message="the copy of /etc/x is gone", fix="fix it by hand")
    result, _ = call(uninstall, "n1", "n2", "--yes", monkeypatch=monkeypatch, tmp=tmp_path, n1=refused)
    assert result.return_value == Exit.FAILED
    assert {
        host["host"]: (host["exit"], host["message"], host["fix"]) for host in json.loads(result.output)["hosts"]
    } == {
        "n1": (5, "the copy of /etc/x is gone", "fix it by hand"),
        "n2": (1, "Ansible never got to this host", ""),
    }


def test_hosts_that_a_budget_leaves_out_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = HostRun(exit=Exit.FAILED, message="the GPU is in use")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(driver, "run_playbook", Ansible(n1=failed, n2=DONE))
    words = ["n1", "n2", "--waves", "1,100%", "--yes"]
    result = CliRunner().invoke(uninstall, words, standalone_mode=False)
    assert result.return_value == Exit.FAILED
    assert "n2: exit 3: not started: pool all: 1 failed, 0 may (rollout.max_failures)" in result.output


def test_events_say_how_each_host_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = HostRun(exit=Exit.FAILED, message="the GPU is in use")
    words = ("n1", "n2", "--yes", "--events", str(tmp_path / "events"))
    call(uninstall, *words, monkeypatch=monkeypatch, tmp=tmp_path, n1=failed, n2=DONE)
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    ends = {event["host"]: (event["exit"], event["message"]) for event in events if event["type"] == "host"}
    assert ends == {"n1": (1, "the GPU is in use"), "n2": (0, "as it was")}


@pytest.mark.parametrize(
    ("words", "runs", "last"),
    [
        (("--check",), {"n1": DONE}, "next: gpunode uninstall without --check"),
        (
            ("--part", "toolkit,fabric", "--part", "cuda", "--check"),
            {"n1": DONE},
            "next: gpunode uninstall --part toolkit --part fabric --part cuda without --check",
        ),
        (("--check",), {"n1": HostRun()}, "n1: ok: as it was"),
        (("--yes",), {"n1": DONE}, "next: gpunode detect"),
        (("--yes",), {"n1": HostRun(exit=Exit.FAILED, message="m")}, "next: gpunode doctor"),
        (("--yes",), {"n1": HostRun(exit=Exit.UNREACHABLE, message="m")}, "next: gpunode uninstall again when"),
    ],
)
def test_the_next_command_is_named(
    words: tuple[str, ...], runs: dict[str, HostRun], last: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(driver, "run_playbook", Ansible(**runs))
    result = CliRunner().invoke(uninstall, ["n1", *words], standalone_mode=False)
    assert result.output.splitlines()[-1].startswith(last)


def test_the_next_command_goes_back_to_the_same_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(driver, "run_playbook", Ansible(n1=DONE))
    result = CliRunner().invoke(rollback, ["n1", "--to", "r1", "--check"], standalone_mode=False)
    assert result.output.splitlines()[-1].startswith("next: gpunode rollback --to r1 without --check")


def test_the_list_says_when_a_run_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(name: str, state: str, what: str) -> Run:
        return Run(name=name, first=0, last=0, at="2026-11-20T10:00:00Z", parts=("driver",), state=state, what=what)

    listed = [runs("r1", "done", "driver 580.1 → 595.2, 20 packages"), runs("r2", "interrupted", "")]

    def list_runs(targets: Targets, on_done: Any) -> Any:
        on_done("n1", listed)
        return [(Detected(host="n1"), listed)]

    monkeypatch.setattr(standing, "list_runs", list_runs)
    done = CliRunner().invoke(rollback, ["n1", "--list"], standalone_mode=False)
    assert done.exception is None, done.exception
    assert done.output.splitlines() == [
        "n1: 2 runs",
        "  r1  2026-11-20T10:00:00Z  driver 580.1 → 595.2, 20 packages",
        "  r2  2026-11-20T10:00:00Z  driver · interrupted",
    ]


RECORD = object()
MESSAGES = [
    ((), "", (), [], "nothing to undo: gpunode has changed nothing here since its last uninstall"),
    ((), "r1", (), [], "nothing to undo: gpunode has changed nothing here since run r1"),
    (
        ("toolkit", "runtime"),
        "",
        (),
        [],
        "nothing to undo: gpunode has changed nothing in toolkit, runtime since its last uninstall",
    ),
    (("toolkit",), "", (RECORD,), ["removed x"], "toolkit: as it was before gpunode"),
    ((), "r1", (RECORD,), ["removed x"], "as it was after run r1"),
    ((), "", (RECORD,), [], "nothing to undo: as it was before gpunode"),
]


@pytest.mark.parametrize(("parts", "to", "records", "changes", "message"), MESSAGES)
@pytest.mark.parametrize("stays", [False, True])
def test_the_message_says_what_is_so(
    parts: tuple[str, ...], to: str, records: tuple[object, ...], changes: list[str], message: str, stays: bool
) -> None:
    journal = SimpleNamespace(damage=SimpleNamespace(partial=False), records=(RECORD,))
    scope, result = SimpleNamespace(records=records, to=to), {"changes": changes, "stays": stays}
    left = ", but for what the notes name" if stays and records else ""
    assert _message(journal, SimpleNamespace(parts=parts), scope, result) == message + left
    if not records:
        fresh = SimpleNamespace(damage=SimpleNamespace(partial=False), records=())
        assert "last uninstall" not in _message(fresh, SimpleNamespace(parts=parts), scope, result)


@pytest.mark.parametrize(
    "text", ["driver: [580", "driverr: {}\n", "rollout: {max_unavailable: nonsense}\n"], ids=["YAML", "key", "value"]
)
def test_what_only_looks_at_a_node_needs_no_valid_gpunode_yml(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gpunode.yml").write_text(text)
    monkeypatch.chdir(tmp_path)
    words = ("n1", "--check")
    for command in (uninstall, rollback):
        result, _ = call(command, *words, monkeypatch=monkeypatch, tmp=tmp_path / "state", n1=DONE)
        assert result.return_value == Exit.PENDING, result.output
        refused, ansible = call(command, "n1", "--yes", monkeypatch=monkeypatch, tmp=tmp_path / "state", n1=DONE)
        assert isinstance(refused.exception, InputError) and not ansible.asked, "its budgets would be ignored"
    ran = Ran(target=Target(name="n1"), stdout="gpunode\tstatus\tunchanged\n")
    monkeypatch.setattr(standing, "run_many", lambda _pairs, *, on_done, **_: on_done(ran))
    result, _ = call(rollback, "n1", "--list", monkeypatch=monkeypatch, tmp=tmp_path / "state")
    assert not isinstance(result.exception, InputError), result.exception
    assert [host["host"] for host in json.loads(result.output)["hosts"]] == ["n1"]


def test_a_node_that_refuses_to_list_its_runs_has_the_exit_code_of_a_refusal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "gpunode\tstatus\trefused\ngpunode\tmessage\tthis needs root, and runs as admin\n"
    ran = Ran(target=Target(name="n1"), stdout=said)
    monkeypatch.setattr(standing, "run_many", lambda _pairs, *, on_done, **_: on_done(ran))
    result, _ = call(rollback, "n1", "--list", monkeypatch=monkeypatch, tmp=tmp_path / "state")
    assert result.return_value == Exit.REFUSED and "this needs root" in result.output, result.output
