"""What all actions share, without a node: nothing to do, --diff, a long task, a plan for another machine."""

from __future__ import annotations

import stat
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpunode.node.plugins.action.plan import ActionModule as PlanAction
from ansible_collections.gpunode.node.plugins.action.result import ActionModule as ResultAction
from ansible_collections.gpunode.node.plugins.plugin_utils import node
from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction

from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts, Outcome, Problem

ACTIONS = "ansible_collections.gpunode.node.plugins.action"
# imported now: a test that starts Ansible's own loader of collections changes how, for all that follow in its process
KINDS = {
    name: import_module(f"{ACTIONS}.{name}").ActionModule
    for name in ("packages", "activate", "edit_file", "cdi", "first_boot", "runfile", "sharing", "smoke", "preflight")
}
PACKAGES = {"changed": True, "changes": [{"text": "install nvidia-open 595.91.07-1"}, {"text": "hold nvidia-open"}]}


def task(kind: type[NodeAction] = NodeAction, **attributes: Any) -> Any:
    made = kind.__new__(kind)
    made._task = SimpleNamespace(
        **{
            "diff": False,
            "delegate_to": None,
            "run_once": False,
            "name": "Install",
            "action": "packages",
            "_role": None,
        }
        | attributes,
        get_dep_chain=list,
        get_variable_manager=lambda: SimpleNamespace(
            extra_vars={},
            _inventory=SimpleNamespace(get_host=lambda _: SimpleNamespace(get_groups=list, get_vars=dict, name="n-1")),
        ),
    )
    made._vars = {"inventory_hostname": "n-1"}
    return made


def run(made: Any, result: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **variables: Any) -> dict[str, Any]:
    monkeypatch.setattr(node.ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(made, "validate_argument_spec", lambda **_: (None, {}), raising=False)
    monkeypatch.setattr(made, "act", lambda args: result, raising=False)
    return dict(made.run(task_vars={"inventory_hostname": "n-1"} | variables))


def test_a_task_with_nothing_to_do_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(task(), {}, monkeypatch) == {"changed": False, "skipped": True, "skip_reason": "nothing to do"}
    assert "skipped" not in run(task(), {"changes": []}, monkeypatch)


@pytest.mark.parametrize("how", [{}, {"runtimes": ["docker"]}])
def test_smoke_checks_that_did_not_run_are_skipped_and_not_ok(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS["smoke"]
    made = task(kind, check_mode=True)
    monkeypatch.setattr(kind, "send", lambda *_: pytest.fail("the node was asked"))
    done = run(made, kind.act(made, {"smoke": how}), monkeypatch)
    assert done["skipped"] and "checks" not in done and ("in check mode" in done["skip_reason"]) == bool(how)


@pytest.mark.parametrize(
    ("diff", "result", "variables", "shown"),
    [
        (True, PACKAGES, {}, [{"prepared": "install nvidia-open 595.91.07-1\nhold nvidia-open\n"}]),
        (False, PACKAGES, {}, None),
        (True, PACKAGES, {"gpunode_run": "20261123"}, None),
        (True, PACKAGES | {"diff": [{"prepared": "-a\n+b\n"}]}, {}, [{"prepared": "-a\n+b\n"}]),
        (True, {"changes": []}, {}, None),
    ],
)
def test_diff_shows_the_changes_of_what_is_no_file(
    diff: bool, result: Any, variables: Any, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(task(diff=diff), result, monkeypatch, **variables).get("diff") == shown


def test_the_log_of_a_failure_is_kept_whole_in_the_folder_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    outcome = Outcome(
        status="failed",
        message="DKMS could not build nvidia",
        fix="see the log; often the compiler",
        log="\n".join(["http://user:secret@mirror/", *(f"line {n}" for n in range(100))]),
        rollback="Removing nvidia",
    )
    run_folder = tmp_path / "gpunode" / "runs" / "20261123T081500Z-1f2e3d"
    made = task(action="gpunode.node.packages")
    none = run(made, node.result_of(outcome), monkeypatch, gpunode_run=run_folder.name)
    assert "log_file" not in none and none["log"][-1] == "line 99" and len(none["log"]) == 40, (
        "there is no such run here"
    )
    run_folder.mkdir(parents=True)
    got = run(made, node.result_of(outcome), monkeypatch, gpunode_run=run_folder.name)
    path = run_folder / "hosts" / "n-1.packages.log"
    assert got["log_file"] == str(path) and got["log"] == none["log"] and "rollback" not in got
    assert got["msg"] == f"DKMS could not build nvidia (log: {path})" and got["fix"] == outcome.fix
    lines = path.read_text().splitlines()
    assert len(lines) == 103 and lines[-2:] == ["--- rollback ---", "Removing nvidia"] and "secret" not in lines[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "log_file" not in run(made, node.result_of(outcome), monkeypatch, gpunode_run="..")


def test_a_long_task_says_that_it_runs_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    twice = threading.Event()

    def display(line: str, *, stderr: bool) -> None:
        assert stderr, "standard output belongs to callbacks"
        printed.append(line)
        if len(printed) == 2:
            twice.set()

    monkeypatch.setattr(node, "Display", lambda: SimpleNamespace(display=display))
    monkeypatch.setattr(node, "HEARTBEAT", 0.001)
    with task()._heartbeat():
        assert twice.wait(30)
    count = len(printed)
    assert printed[0] == "n-1: Install: running for 0 min"
    assert len(printed) == count, "nothing after the end"


@pytest.mark.parametrize(("keyword", "value"), [("delegate_to", "n-2"), ("run_once", True)])
def test_a_plan_is_not_made_for_another_machine(keyword: str, value: object) -> None:
    made = task(PlanAction, **{keyword: value})
    made._vars["ansible_play_batch"] = ["n-1", "n-2"]
    with pytest.raises(InputError, match=f"{keyword}: {value}"):
        made.act({"spec": {}, "config": ""})


def test_run_once_among_batches_of_one_host_is_that_hosts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = task(PlanAction, run_once=True)
    made._vars["ansible_play_batch"] = ["n-1"]
    monkeypatch.setattr(made, "inventory_spec", lambda: {"nonsense": 1}, raising=False)
    monkeypatch.setattr(made, "_located", lambda error: error, raising=False)
    monkeypatch.setattr(made, "_templar", SimpleNamespace(template=lambda value: value), raising=False)
    with pytest.raises(InputError, match="nonsense"):  # it got to the spec
        made.act({"spec": {}, "config": ""})


def test_the_result_of_tags_says_which_parts_of_the_plan_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = task(ResultAction, check_mode=True)
    parts = ["preflight", "driver", "toolkit", "runtime"]
    monkeypatch.setattr(made, "own_plan", lambda plan: {"parts": parts}, raising=False)
    monkeypatch.setattr(made, "probe", lambda *sections: ("", NodeFacts()), raising=False)
    made._vars |= {f"gpunode_done_{name}": {} for name in ("preflight_expect", "driver_packages", "toolkit_packages")}
    done = made.act({})
    assert done["left_out"] == ["runtime"] and done["msg"] == "no driver loaded; no change; left out: runtime"


def test_the_plan_of_a_playbook_names_the_variable_of_the_roles_and_no_gpunode_yml(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = Path(__file__).parents[1] / "cases/probes/debian12-no-gpu/probe.txt"
    made = task(PlanAction, tags=["always"])
    monkeypatch.setattr(made, "inventory_spec", dict, raising=False)
    monkeypatch.setattr(made, "clashes", [], raising=False)
    monkeypatch.setattr(made, "probe", lambda: ("", parse_probe(probe.read_text())), raising=False)
    monkeypatch.setattr(made, "_templar", SimpleNamespace(template=lambda value: value), raising=False)
    done = made.act({"spec": {}, "config": ""})
    advice = "no NVIDIA GPU on PCI; if that is right: gpunode_verify_allow_no_gpu: true, and plan again"
    assert done["msg"] == advice and advice in done["warnings"]


@pytest.mark.parametrize("host", ["n-1", "n-2"])
def test_a_result_of_another_host_is_refused_and_run_once_named(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(task(), {"changes": []}, monkeypatch, gpunode_plan={"plan": {"host": host}})
    assert ("gpunode_plan is the plan of n-2" in done.get("msg", "")) == (host == "n-2")
    assert ("run_once" in done.get("msg", "")) == bool(done.get("failed")) == (host == "n-2")


@pytest.mark.parametrize(
    ("action", "args"),
    [
        ("packages", {"packages": {"instal": [{"name": "a"}]}}),
        ("packages", {"packages": {"install": [{"name": "a", "holt": True}]}}),
        ("activate", {"activate": {"lod": ["nvidia"]}}),
        ("edit_file", {"files": [{"path": "/etc/a", "contnt": "x"}]}),
        ("cdi", {"cdi": {"outputt": "/etc/cdi/nvidia.yaml"}}),
        ("first_boot", {"first_boot": {"activat": {"load": ["nvidia"]}}}),
        ("runfile", {"install": [{"knd": "driver"}]}),
        ("sharing", {"mps": {"gpu": ["0"]}}),
        ("smoke", {"smoke": {"runtime": ["docker"]}}),
    ],
)
def test_a_misspelt_key_of_an_actions_value_is_refused_before_the_node_is_asked(
    action: str, args: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[action]
    made = task(kind, check_mode=False)
    monkeypatch.setattr(kind, "send", lambda *_: pytest.fail("the node was asked"))
    defaults = {name: spec.get("default") for name, spec in kind.ARGUMENTS.items()}
    with pytest.raises(InputError, match="unknown key"):
        made.act(defaults | args)


@pytest.mark.parametrize(
    ("fix", "shown"),
    [
        ("look at -c, --config", "look at gpunode_config"),
        ("name the unit of kubelet: --unit PATH", "name the unit of kubelet: unit"),
        ("give it: --server-version 1.34", "give it: server_version 1.34"),
        ("dnf config-manager --set-enabled crb", "dnf config-manager --set-enabled crb"),
        ("dockerd --config-file /etc/x", "dockerd --config-file /etc/x"),
    ],
)
def test_a_failure_in_a_play_names_keys_and_no_options_of_the_command_line(
    fix: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(args: object) -> None:
        raise InputError("wrong", fix=fix)

    for variables, wanted in (({}, shown), ({"gpunode_run": "20261123"}, fix)):
        made = task()
        monkeypatch.setattr(node.ActionBase, "run", lambda *_: {})
        monkeypatch.setattr(made, "validate_argument_spec", lambda **_: (None, {}), raising=False)
        monkeypatch.setattr(made, "act", act, raising=False)
        failed = made.run(task_vars={"inventory_hostname": "n-1"} | variables)
        assert failed["fix"] == wanted and failed["msg"].endswith(wanted)


def test_an_older_ansible_is_named_with_the_least_one_and_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "ansible_version", "2.18.19")
    failed = run(task(), {}, monkeypatch)
    assert failed["failed"] and "needs ansible-core 2.19 or newer; this is 2.18.19 of /" in failed["msg"]
    assert "environment of its own" in failed["fix"]


@pytest.mark.parametrize(
    ("role", "path", "part"),
    [
        ("gpunode.node.plan", "/c/roles/plan/tasks/toolkit.yml:3", "toolkit"),
        ("gpunode.node.undo", "/c/roles/undo/tasks/main.yml:2", "undo"),
    ],
)
def test_the_part_is_known_by_the_file_of_its_tasks(role: str, path: str, part: str) -> None:
    """What a task registers is a mapping in ansible-core 2.21."""
    made = task(ResultAction)
    made._task._role = SimpleNamespace(get_name=lambda: role)
    made._task.get_path = lambda: path
    assert made._part() == part


def test_a_role_that_is_refused_says_why_and_what_to_do_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Ansible's own output has both somewhere in the plan's data; a run of gpunode says it itself."""
    action = object.__new__(PlanAction)
    problem = Problem(what="tuning.acs: no", fix="image.load: false in gpunode.yml")
    for run, said in (("", "n1: refused: tuning.acs: no; do next: gpunode_image_load: false\n"), ("r1", "")):
        action._vars = {"inventory_hostname": "n1", "gpunode_run": run}
        assert action._refused([problem])["gpunode_exit"] == 5
        assert capsys.readouterr().err == said
