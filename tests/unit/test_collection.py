"""The collection says everything once: what follows from the table of steps is made from it, the rest agrees."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

import gpunode
from gpunode.cli import docs_collection
from gpunode.cli.docs_collection import argument_shapes, collection_files, documentation, documented
from gpunode.core.items import file
from gpunode.core.plan.steps import STEPS, Row

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
    monkeypatch.setattr(docs_collection, "STEPS", (*STEPS, Row("runtime", "limits", "Set limits", file.STEP)))
    before, after = collected(), docs_collection.collection_files()
    changed = {path for path, text in after.items() if before[path] != text}
    of_role = {"defaults/main.yml", "meta/argument_specs.yml", "tasks/main.yml", "README.md"}
    assert changed == {"roles/node/tasks/main.yml", *(f"roles/runtime/{path}" for path in of_role)}
    assert "| `runtime_limits` | list of dict |" in docs_collection.roles_page().replace("`runtime_limits.", "")


def collected() -> dict[str, str]:
    return {path: (ROOT / path).read_text() for path in collection_files()}


@pytest.mark.parametrize("folder", sorted(ROOT.glob("tests/cases/plans/*/playbook.yml")), ids=lambda p: p.parent.name)
def test_ansible_takes_every_value_of_a_plan_by_the_roles_argument_specs(folder: Path) -> None:
    for play in load_untagged(folder):
        for role in play["roles"]:
            name = role["role"].removeprefix("gpunode.node.")
            found = ArgumentSpecValidator(specs(name)).validate(role.get("vars", {}))
            assert found.error_messages == []


def load_untagged(path: Path) -> Any:
    return yaml.safe_load(path.read_text().replace("!unsafe ", "")) or []


@pytest.mark.parametrize(
    ("role", "values", "words"),
    [
        ("driver", {"driver_packages": {"instal": []}}, "driver_packages.instal"),
        ("driver", {"driver_packages": {"install": [{"nam": "a"}]}}, "driver_packages.install.nam"),
        ("runtime", {"runtime_edits": [{"runtime": "dockr"}]}, "containerd, docker, crio, podman"),
        ("sharing", {"sharing_mig": {"gpus": [{"slot": "0000:17:00.0"}]}}, "mode"),
        ("toolkit", {"toolkit_config": {"mode": "fast"}}, "auto, cdi, jit-cdi"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_misspelt_key_of_a_role_is_refused_before_its_tasks(role: str, values: dict[str, Any], words: str) -> None:
    messages = ArgumentSpecValidator(specs(role)).validate(values).error_messages
    assert any(words in message for message in messages)


@pytest.mark.parametrize("name", ACTIONS)
def test_the_documentation_of_an_action_names_its_arguments(name: str) -> None:
    own = documentation((COLLECTION / f"plugins/modules/{name}.py").read_text())
    shared = {
        key: {**documented(shape), "default": shape.empty} for key, shape in argument_shapes().get(name, {}).items()
    }
    code = (COLLECTION / f"plugins/action/{name}.py").read_text()
    arguments = eval(re.search(r"ARGUMENTS: ClassVar\[dict\] = (\{.*?\n?\})\n\n", code, re.DOTALL)[1])  # type: ignore[index]
    printed = {
        key: {k: v for k, v in spec.items() if k in ("type", "elements", "default")}
        for key, spec in {**shared, **own.get("options", {})}.items()
    }
    assert own["module"] == name
    assert printed == arguments


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
