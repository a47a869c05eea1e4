"""The collection says everything once: what follows from the table of steps is made from it, the rest agrees."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from test_plan import PLANS, plan_case

import gpunode
from gpunode.core.items import file
from gpunode.core.plan.playbook import dump, make_playbook
from gpunode.core.plan.steps import STEPS, StepRow
from gpunode.core.spec import Spec, parse_spec
from gpunode.core.spec.flat import flat_spec, flat_variables
from gpunode.core.spec.reference import reference
from gpunode.node import script
from tools.docs import collection
from tools.docs.collection import argument_shapes, collection_files, documentation, documented

ROOT = Path(__file__).resolve().parent.parent.parent
COLLECTION = ROOT / "gpunode/collection/ansible_collections/gpunode/node"
ACTIONS = sorted(path.stem for path in (COLLECTION / "plugins/action").glob("*.py"))
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def specs(role: str) -> dict[str, Any]:
    return dict(load(ROOT / f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"])


def test_the_collection_is_what_make_docs_would_write() -> None:
    stale = [path for path, text in collection_files().items() if (ROOT / path).read_text() != text]
    assert stale == [], "make docs"


def test_a_row_of_the_table_is_enough_for_all_that_names_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "STEPS", (*STEPS, StepRow("runtime", "limits", "Set limits", file.STEP)))
    before, after = collected(), collection.collection_files()
    assert {path for path, text in after.items() if before[path] != text} == {"roles/plan/tasks/runtime.yml"}


def collected() -> dict[str, str]:
    return {path: (ROOT / path).read_text() for path in collection_files()}


@pytest.mark.parametrize("folder", PLANS, ids=lambda p: p.name)
def test_ansible_takes_every_value_of_a_plan_by_the_documentation_of_its_action(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for play in untagged(dump(make_playbook([plan_case(folder, monkeypatch).plan]))):
        assert play["tasks"][0]["tags"] == ["always", "gpunode_preflight"]
        for task in play["tasks"]:
            [action] = [key for key in task if key.startswith("gpunode.node.")]
            shapes = argument_shapes()[action.removeprefix("gpunode.node.")]
            options = {name: documented(shape) for name, shape in shapes.items()}
            given = {name: value for name, value in task[action].items() if name in options and "{{" not in str(value)}
            assert ArgumentSpecValidator(options).validate(given).error_messages == []


def untagged(playbook: str) -> Any:
    return yaml.safe_load(playbook.replace("!unsafe ", "")) or []


@pytest.mark.parametrize("role", ["node", *collection.PARTS])
def test_ansible_takes_the_defaults_and_the_example_of_a_role(role: str) -> None:
    options = specs(role)
    given = {name: one["default"] for name, one in options.items() if "default" in one}
    readme = (ROOT / f"roles/{role}/README.md").read_text()
    [play] = yaml.safe_load(re.findall(r"(?:^    .*\n)+", readme, re.MULTILINE)[0])
    [example] = play["roles"]
    assert example.pop("role") == f"gpunode.node.{role}" and example and play["become"] is True
    assert set(example) <= set(options)
    assert ArgumentSpecValidator(options).validate(given | example).error_messages == []
    parse_spec(flat_spec(given | example))


def test_every_key_of_a_part_has_a_variable_and_a_line_in_the_documentation_of_its_role() -> None:
    documented = {name: set(specs(name)) for name in ("node", *collection.PARTS)}
    assert set(flat_variables()) < documented["node"]
    assert set().union(*(documented[name] for name in collection.PARTS)) == documented["node"]
    set_by = tuple(one.key for one in flat_variables().values())
    keys = [key.path for key in reference(Spec) if key.default]
    left = [key for key in keys if key not in set_by and not key.startswith(tuple(f"{one}." for one in set_by))]
    assert {key.partition(".")[0] for key in left} == {"accept", "kubernetes", "rollout"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gpunode_spec": {"driver": {"brnach": "580"}}}, "gpunode_spec.driver.brnach"),
        ({"gpunode_docker_manage": "instal"}, "auto, install, configure, ignore"),
        ({"gpunode_driver_hold": "perhaps"}, "gpunode_driver_hold"),
    ],
)
def test_a_wrong_value_is_refused_before_the_tasks_of_a_role(values: dict[str, Any], words: str) -> None:
    messages = ArgumentSpecValidator(specs("node")).validate(values).error_messages
    assert any(words in message for message in messages)


@pytest.mark.parametrize("name", ACTIONS)
def test_the_documentation_of_an_action_names_its_arguments(name: str) -> None:
    own = documentation((COLLECTION / f"plugins/modules/{name}.py").read_text())
    shared = {
        key: {**documented(shape), "default": shape.empty} for key, shape in argument_shapes().get(name, {}).items()
    }
    action = import_module(f"ansible_collections.gpunode.node.plugins.action.{name}")
    kept = ("type", "elements", "default", "choices")
    arguments = {
        key: {k: v for k, v in spec.items() if k in kept} for key, spec in action.ActionModule.ARGUMENTS.items()
    }
    printed = {
        key: {k: v for k, v in spec.items() if k in ("type", "elements", "default", "choices")}
        for key, spec in {**shared, **own.get("options", {})}.items()
    }
    assert own["module"] == name
    assert printed == arguments


def test_the_sections_of_facts_are_those_of_the_probe() -> None:
    from ansible_collections.gpunode.node.plugins.action.facts import SECTIONS

    [printed] = re.findall(r'^SECTIONS="([^"]*)"', script("probe.sh"), re.MULTILINE)
    assert printed.split() == SECTIONS


@pytest.mark.parametrize("name", ACTIONS)
def test_ansible_finds_the_fragments_of_an_actions_documentation(name: str) -> None:
    fragments = documentation((COLLECTION / f"plugins/modules/{name}.py").read_text())["extends_documentation_fragment"]
    assert fragments == ["gpunode.node.node", *([f"gpunode.node.values.{name}"] if name in argument_shapes() else [])]


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


def test_without_the_python_package_an_action_names_it() -> None:
    name = "ansible_collections.gpunode.node.plugins.plugin_utils.node"
    program = f"import sys; sys.modules['gpunode'] = None; import {name} as node; print(node._needs_gpunode(1)['msg'])"
    environment = {"PYTHONPATH": str(ROOT / "gpunode/collection")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert f"pip install gpunode=={gpunode.__version__}" in done.stdout, done.stderr
