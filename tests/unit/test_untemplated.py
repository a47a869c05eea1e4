"""What gpunode writes for Ansible holds no template, whatever a node says: each value arrives as it is.

The facts are changed after they were read, so that this holds without the grammars of facts.
"""

from __future__ import annotations

import ast
import random
import re
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

import gpunode
from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts, PciDevice
from gpunode.core.plan.playbook import HEADER, NO_TEMPLATE, TEMPLATE_MARKERS, dump, make_inventory
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet.workflow import INVENTORY, PLAN, PLAYBOOK, HostPlan, plan_one, write_plan
from gpunode.edge.report_data import FOUND
from gpunode.edge.ssh.shell import Target

CASES = Path(__file__).parents[1] / "cases"
PROBES = sorted(p.name for p in (CASES / "probes").iterdir())
PACKAGE = Path(gpunode.__file__).parent
COMMAND = "lookup('pipe','id>CANARY')"
OURS = ("{{ gpunode_expect }}", "{{ gpunode_done_driver_packages }}", "{{ gpunode_done_driver_files }}")  # all of them
HOSTILE = (f"{{{{{COMMAND}}}}}", f"{{%set\tx={COMMAND}%}}", "{#", f"{{%\n{{{{ {COMMAND} }}}}")


def untagged(text: str) -> list[str]:
    """Keys and values with a marker that Ansible would take as a template."""

    def scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
        if isinstance(node, yaml.ScalarNode):
            yield node
        for child in getattr(node, "value", ()) if isinstance(node, yaml.CollectionNode) else ():
            for one in child if isinstance(child, tuple) else (child,):
                yield from scalars(one)

    found = [n for n in scalars(yaml.compose(text)) if n.value not in OURS]
    return [n.value for n in found if n.tag != NO_TEMPLATE and any(m in n.value for m in TEMPLATE_MARKERS)]


def untagged_in(folder: Path) -> dict[str, list[str]]:
    """The same of all files of a plan folder, but for those that gpunode itself reads as JSON."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name not in (PLAN, FOUND)]
    texts = {p: p.read_text(encoding="utf-8") for p in files}
    found = {p.name: untagged(t) for p, t in texts.items() if p.suffix == ".yml"}
    rest = [p for p, t in texts.items() if p.name not in found and any(m in t for m in TEMPLATE_MARKERS)]
    return {name: words for name, words in found.items() if words} | {p.name: ["a marker"] for p in rest}


# ---------------------------------------------------------------- dump

PARTS = (*TEMPLATE_MARKERS, "}}", "\n", "\r", "\x85", "\u2028", "\ufeff", " ", "#", ": ", "- ", "---")
TEXTS = st.one_of(
    st.text(),
    st.lists(st.one_of(st.sampled_from(PARTS), st.text())).map("".join),
)
VALUES = st.recursive(
    st.one_of(TEXTS, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@given(value=VALUES)
@example(value={"{{ 7 * 7 }}": ["{% if true %}x", "{#", "a\n{{ b }}\n", " \n{{"]})
@example(value="one\x85two\n{{ three }}")
@example(value={"kernel": f"6.1.0{{{{{COMMAND}}}}}"})
def test_ansible_reads_and_templates_what_was_dumped_as_what_it_was(value: Any) -> None:
    import ansible.cli  # noqa: F401  sets Ansible's controller side up
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template

    text = dump({"value": value})
    loader = DataLoader()
    read = loader.load(trust_as_template(text))
    assert untagged(text) == []
    assert read == {"value": value}
    assert Templar(loader=loader, variables={}).template(read) == {"value": value}


def test_without_the_tag_the_same_text_would_run_a_command(tmp_path: Path) -> None:
    import ansible.cli  # noqa: F401
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template

    canary = tmp_path / "canary"
    text = dump({"kernel": f"6.1{{{{ lookup('pipe', 'touch {canary}') }}}}"})
    for written, ran in ((text, False), (text.replace(NO_TEMPLATE, ""), True)):
        loader = DataLoader()
        Templar(loader=loader, variables={}).template(loader.load(trust_as_template(written)))
        assert canary.exists() is ran


def test_connection_variables_host_names_and_groups_are_literals_too() -> None:
    host, command = "web{{1}}", f"-o ProxyCommand={{{{{COMMAND}}}}}"
    planned = plan_one(
        Detected(host=host, facts=facts_of("debian12-h100-fresh")), DesiredState({}, to_run=False)
    ).planned
    assert planned
    text = dump(make_inventory([planned.plan], {host: {"ansible_ssh_common_args": command}}))
    assert f"{NO_TEMPLATE} '{host}'" in text and f"{NO_TEMPLATE} " in text.partition("ansible_ssh_common_args: ")[2]
    assert untagged(text) == []


# The modules below core, edge and lab that write YAML by other means than dump(), and who reads it: Ansible never does.
OTHER_WRITERS = {
    "scheduler_config.py": "kube-scheduler",
    "yamltext.py": "k3s, k0s, the kubelet",
    "yaml_text.py": "Kubernetes, and gpunode.yml",
    "mig.py": "NVIDIA's MIG manager",
    "device_plugin.py": "the device plugin",
    "starter.py": "gpunode.yml",
    "sharing.py": "nvidia-mig-parted",
    "extras.py": "skopeo",
    "files.py": "the lab: no text of a node",
    "molecule.py": "the lab: no text of a node",
    "pki.py": "kubeconfigs of the lab",
    "seeds.py": "kubelets of the lab",
}


def test_nobody_writes_yaml_for_ansible_past_dump() -> None:
    writers = {
        path.name
        for folder in ("core", "edge", "kube", "lab")
        for path in (PACKAGE / folder).rglob("*.py")
        if "yaml" in (text := path.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Attribute) and call.attr in ("dump", "safe_dump", "dump_all", "safe_dump_all")
        if isinstance(call.value, ast.Name) and call.value.id == "yaml"
    }
    assert writers == {*OTHER_WRITERS, "playbook.py"}


def test_what_ansible_runs_on_is_written_by_dump() -> None:
    """In every module that starts Ansible or writes for it: no playbook, inventory or variables from elsewhere."""
    texts = [path.read_text(encoding="utf-8") for path in (PACKAGE / "edge").rglob("*.py")]
    calls = re.compile(r"^ *(.*write_(?:private|text)\(.*\))$", re.MULTILINE)
    ours = [text for text in texts if re.search(r"run_playbook\(|run\.play\(|python_module", text)]
    lines = [call[1] for text in ours for call in calls.finditer(text) if "ANSIBLE_CFG" not in call[1]]
    ansible = [line for line in lines if re.search(r"INVENTORY|PLAYBOOK|playbook\)|inventory\.|extra\.|\.ya?ml", line)]
    assert len(ansible) >= 4
    assert [line for line in ansible if "dump(" not in line or "json.dump" in line] == []


# ---------------------------------------------------------------- plans of hostile nodes


@cache
def facts_of(name: str) -> NodeFacts:
    return parse_probe(probe_text(name))


@cache
def desired() -> DesiredState:
    return DesiredState({"proxy": "http://proxy:3128"}, to_run=False)


@pytest.fixture(autouse=True)
def _without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"(a key)\n")


def written(facts: NodeFacts, folder: Path) -> HostPlan:
    """Plan a host with these facts, and write its plan folder."""
    host = plan_one(Detected(host="bad", facts=facts, target=Target(name="bad", address="192.0.2.1")), desired())
    write_plan(folder, [host], Targets(hosts=("bad",)), desired())
    return host


def hostile(value: Any, word: str, only: tuple[type, str] | None = None) -> Any:
    """The same data with `word` in each text: of one field of a class, or, within that field, of everything."""
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: hostile(getattr(value, field.name), word, None if only == (type(value), field.name) else only)
            for field in fields(value)
        }
        return replace(value, **changed)
    if isinstance(value, dict):
        return {hostile(k, word, only): hostile(v, word, only) for k, v in value.items()}
    if isinstance(value, tuple | list | frozenset | set):
        return type(value)(hostile(v, word, only) for v in value)
    if only is None and isinstance(value, str):
        return f"{value}{word}"
    return value + word.encode() if only is None and isinstance(value, bytes) else value


def text_fields(kind: type) -> Iterator[tuple[type, str]]:
    """(class, field) of each field with text or bytes in it, of NodeFacts and all that it is made of."""
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        leaves = set(_leaves(hints[field.name]))
        if {str, bytes} & leaves or any(isinstance(leaf, str) for leaf in leaves):
            yield kind, field.name
        for leaf in leaves:
            if is_dataclass(leaf):
                yield from text_fields(typing.cast(type, leaf))


def _leaves(hint: Any) -> Iterator[Any]:
    inner = typing.get_args(hint)
    for one in inner:
        yield from _leaves(one)
    if not inner:
        yield hint


FIELDS = sorted(set(text_fields(NodeFacts)), key=str)


def some(items: list[Any], count: int) -> list[Any]:
    """`count` of the items, the same ones in each run."""
    return random.Random(0).sample(items, count)


OFTEN_PLANNED = ("rocky9-h100-fresh", "debian12-kubeadm-two-engines", "ubuntu2404-k3s")  # with any kernel


@pytest.mark.slow
def test_no_text_of_a_nodes_facts_becomes_a_template(tmp_path: Path) -> None:
    """Each field of the facts, on a recorded node that has it, and all of them at once.

    What becomes a value of a step, as a kernel does in the names of packages, has the plan refused.
    """
    tagged = set()
    surely = {(PciDevice, "slot")}
    for number, field in enumerate(sorted({*surely, *some(FIELDS, 60)}, key=str)):
        word = HOSTILE[number % len(HOSTILE)]
        names = (*OFTEN_PLANNED, *PROBES)
        name = next((n for n in names if hostile(facts_of(n), word, field) != facts_of(n)), names[0])
        written(hostile(facts_of(name), word, field), tmp_path)
        assert untagged_in(tmp_path) == {}, field
        if any(NO_TEMPLATE in body_of(tmp_path / file) for file in (PLAYBOOK, INVENTORY)):
            tagged.add(field)
    assert surely <= tagged, "some of what a node says does reach the playbook"
    for name in some(PROBES, 3):
        written(hostile(facts_of(name), HOSTILE[0]), tmp_path)
        assert untagged_in(tmp_path) == {}, name


def body_of(path: Path) -> str:
    return path.read_text(encoding="utf-8").removeprefix(HEADER)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBES)
def test_no_text_of_any_recorded_nodes_facts_becomes_a_template(name: str, tmp_path: Path) -> None:
    for number, field in enumerate(FIELDS):
        facts = hostile(facts_of(name), HOSTILE[number % len(HOSTILE)], field)
        if facts != facts_of(name):
            written(facts, tmp_path)
            assert untagged_in(tmp_path) == {}, field


def probe_text(name: str) -> str:
    return (CASES / "probes" / name / "probe.txt").read_text(encoding="utf-8")
