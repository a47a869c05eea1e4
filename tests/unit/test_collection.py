"""The collection says everything once: roles, actions, their documentation and the plan agree."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpunode
from gpunode.core.items.requests.plan import ROLE_OPTIONS
from gpunode.core.plan import TITLES

ROOT = Path(__file__).resolve().parent.parent.parent
COLLECTION = ROOT / "gpunode/collection/ansible_collections/gpunode/node"
ACTIONS = sorted(path.stem for path in (COLLECTION / "plugins/action").glob("*.py"))
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def options(role: str) -> dict[str, Any]:
    return dict(load(ROOT / f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"])


@pytest.mark.parametrize("role", ROLE_OPTIONS)
def test_a_role_does_nothing_by_default_and_documents_every_option(role: str) -> None:
    expected = {f"{role}_{name}": value for name, value in ROLE_OPTIONS[role].items()}
    assert load(ROOT / f"roles/{role}/defaults/main.yml") == expected
    assert {name: spec["default"] for name, spec in options(role).items()} == expected
    assert all(name in (ROOT / f"roles/{role}/README.md").read_text() for name in expected)


@pytest.mark.parametrize("role", ROLE_OPTIONS)
def test_a_role_is_one_action_per_option_in_their_order_and_decides_nothing(role: str) -> None:
    tasks = load(ROOT / f"roles/{role}/tasks/main.yml")
    used = []
    for task in tasks:
        [action] = set(task) - {"name", "register"}
        assert action.startswith("gpunode.node.")
        arguments = {key: value for key, value in task[action].items() if key != "after"}  # results of tasks before
        used += [re.fullmatch(r"\{\{ (\w+) \}\}", str(value))[1] for value in arguments.values()]  # type: ignore[index]
    assert used == [f"{role}_{name}" for name in ROLE_OPTIONS[role]]


def test_the_tasks_have_the_titles_of_the_plan() -> None:
    for (role, option), title in TITLES.items():
        position = list(ROLE_OPTIONS[role]).index(option)
        assert load(ROOT / f"roles/{role}/tasks/main.yml")[position]["name"] == title


def test_the_role_node_hands_every_variable_of_the_plan_on() -> None:
    tasks = [task for name in ("plan", "main") for task in load(ROOT / f"roles/node/tasks/{name}.yml")]
    handed = {name: text for task in tasks for name, text in task.get("vars", {}).items()}
    wanted = [f"{role}_{name}" for role, names in ROLE_OPTIONS.items() for name in names]
    assert handed == {name: f"{{{{ node_plan.variables.{name} }}}}" for name in wanted}


def test_each_part_of_the_role_node_has_its_tag_and_validates_nothing() -> None:
    first, left, *tasks = load(ROOT / "roles/node/tasks/main.yml")
    parts = [f"gpunode_{role}" for role in ROLE_OPTIONS]
    assert first["tags"] == load(ROOT / "roles/node/vars/main.yml")["node_parts"] == parts
    assert left["tags"] == left["ansible.builtin.include_tasks"]["apply"]["tags"] == ["always"]
    assert [task["tags"] for task in tasks] == [[part] for part in parts[1:]]
    roles = [task for task in (*tasks, *load(ROOT / "roles/node/tasks/plan.yml")) if "vars" in task]
    assert len(roles) == len(ROLE_OPTIONS)
    assert {task["ansible.builtin.import_role"]["rolespec_validate"] for task in roles} == {False}


@pytest.mark.parametrize("name", ACTIONS)
def test_the_documentation_of_an_action_names_its_arguments(name: str) -> None:
    text = (COLLECTION / f"plugins/modules/{name}.py").read_text()
    documented = yaml.safe_load(text.split('DOCUMENTATION = r"""')[1].split('"""')[0])
    code = (COLLECTION / f"plugins/action/{name}.py").read_text()
    arguments = eval(re.search(r"ARGUMENTS: ClassVar\[dict\] = (\{.*?\n?\})\n\n", code, re.DOTALL)[1])  # type: ignore[index]
    said = {key: {k: v for k, v in spec.items() if k != "description"} for key, spec in documented["options"].items()}
    assert documented["module"] == name
    assert said == arguments


def test_versions_agree_with_the_package() -> None:
    assert load(COLLECTION / "galaxy.yml")["version"] == gpunode.__version__
    assert f'VERSION = "{gpunode.__version__}"' in (COLLECTION / "plugins/plugin_utils/node.py").read_text()
    assert load(COLLECTION / "meta/runtime.yml")["action_groups"]["node"] == ACTIONS


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda path: path.stem)
def test_a_playbook_passes_ansibles_syntax_check_with_the_example_inventory(playbook: Path) -> None:
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "--syntax-check"]
    done = subprocess.run(
        [*command, "-i", "inventory/example/hosts.yml", str(playbook)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_nothing_in_the_collection_gathers_facts_or_needs_python_on_the_node() -> None:
    for playbook in PLAYBOOKS:
        assert all(play["gather_facts"] is False for play in load(playbook))
    for name in ACTIONS:
        assert "_execute_module" not in (COLLECTION / f"plugins/action/{name}.py").read_text()
