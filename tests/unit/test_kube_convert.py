"""Old manifests in today's form: tests/cases/kube_convert/CASE/{server,before.yml,after.yml,said.txt}.

GPUNODE_WRITE_CASES=1 writes after.yml and said.txt again, to be read before they are committed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from kube_cases import KNOWN, SERVERS, complaint

from gpunode.cli.kube.convert import convert as command
from gpunode.core.errors import Exit, InputError
from gpunode.core.kube.cluster import parse_server
from gpunode.core.kube.convert import Converted, Old, convert
from gpunode.edge.load import load_old_forms, load_scheduler_rules

FOLDERS = sorted(p.parent for p in (Path(__file__).parents[1] / "cases/kube_convert").glob("*/before.yml"))
by_name = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def old_of(server: str) -> Old:
    return Old(
        server=parse_server(server, KNOWN), forms=load_old_forms(), knowledge=KNOWN, rules=load_scheduler_rules()
    )


def run(folder: Path, text: str = "") -> Converted:
    server = (folder / "server").read_text().strip()
    return convert(text or (folder / "before.yml").read_text(encoding="utf-8"), old_of(server))


def printed(found: Converted) -> str:
    changes = [f"{change.object}: {change.what} ({change.why})\n" for change in found.changes]
    return "".join([*changes, *(f"left: {problem.what}\n  {problem.fix}\n" for problem in found.problems)])


@by_name
def test_a_case_gives_the_recorded_manifest(folder: Path) -> None:
    found = run(folder)
    if os.environ.get("GPUNODE_WRITE_CASES"):
        (folder / "after.yml").write_text(found.text, encoding="utf-8")
        (folder / "said.txt").write_text(printed(found), encoding="utf-8")
    assert found.text == (folder / "after.yml").read_text(encoding="utf-8")
    assert printed(found) == (folder / "said.txt").read_text(encoding="utf-8")


@by_name
def test_converting_twice_is_converting_once(folder: Path) -> None:
    first = run(folder)
    again = run(folder, first.text)
    assert (again.text, again.changes) == (first.text, ())


@by_name
def test_what_is_converted_is_what_the_server_takes(folder: Path) -> None:
    """All but what is left to a person, and the files of components, which have schemas of their own."""
    server = (folder / "server").read_text().strip()
    found = run(folder)
    documents = [item for item in yaml.safe_load_all(found.text) if item]
    objects = [one for item in documents for one in (item["items"] if item["kind"] == "List" else [item])]
    left = str(found.problems)
    for item in objects:
        name = item.get("metadata", {}).get("name", "")
        if "metadata" in item and f"{item['kind']} {name}" not in left and server in SERVERS:
            assert complaint(item, server) == ""


def test_comments_quotes_and_indentation_stay() -> None:
    text = run(next(folder for folder in FOLDERS if folder.name == "gpushare-without-binding")).text
    for kept in (
        "# The extender on the masters",
        '"12345"',
        "# the control plane",
        "# here too",
        '  - apiGroups: [""]',
    ):
        assert kept in text


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("a: [", "the manifest is no YAML: "),
        ("- 1\n- 2\n", "the manifest holds '[1, 2]'"),
        ("", "the manifest holds no object"),
        ("a: 1\na: 2\n", "the manifest is no YAML: "),
    ],
)
def test_what_is_no_manifest_is_refused(text: str, reported: str) -> None:
    with pytest.raises(InputError) as error:
        convert(text, old_of("1.36"))
    assert error.value.what.startswith(reported)


def test_an_object_without_a_kind_is_left_to_a_person() -> None:
    found = convert("a: 1\n", old_of("1.36"))
    assert found.problems[0].what == "\"{'a': 1}\" is no object"
    assert found.text == "a: 1\n"


MANIFESTS = [item for folder in FOLDERS for item in yaml.safe_load_all((folder / "before.yml").read_text())]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def bent(draw: st.DrawFn) -> Any:
    """A manifest in which one value, anywhere, is something else."""
    manifest = json.loads(json.dumps(draw(st.sampled_from(MANIFESTS))))
    holder, key = {"": manifest}, ""
    while isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 4)):
        inner = holder[key]
        holder, key = inner, draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))  # type: ignore[assignment]
    holder[key] = draw(ANYTHING)
    return manifest


@given(bent(), st.sampled_from(["1.16", "1.20", "1.25", "1.33", "1.37"]))
def test_a_manifest_of_any_shape_is_converted_or_refused(manifest: Any, server: str) -> None:
    text = yaml.safe_dump(manifest, allow_unicode=True)
    try:
        found = convert(text, old_of(server))
    except InputError:
        return
    assert found.text == text or found.changes


def test_the_command_writes_the_manifest_and_says_what_changed(tmp_path: Path) -> None:
    file = tmp_path / "old.yml"
    file.write_text((FOLDERS[1] / "before.yml").read_text())
    assert FOLDERS[1].name == "binpack"
    run = CliRunner().invoke(
        command, [str(file), "--server-version", "v1.36.1", "-o", str(file)], standalone_mode=False
    )
    assert (run.return_value, run.stdout) == (Exit.OK, "")
    assert file.read_text() == (FOLDERS[1] / "after.yml").read_text()
    assert "StatefulSet binpack-1: apiVersion apps/v1beta1 → apps/v1 (gone since 1.16)" in run.stderr
    again = CliRunner().invoke(command, [str(file)], standalone_mode=False)
    assert again.stdout == file.read_text()
    assert again.stderr == f"{file} needs no change for Kubernetes {KNOWN.newest}\n"


def test_the_command_answers_in_json(tmp_path: Path) -> None:
    file = tmp_path / "old.yml"
    file.write_text("apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: A}\nspec: {}\n")
    run = CliRunner().invoke(command, [str(file), "--format", "json"], standalone_mode=False)
    assert run.return_value == Exit.PENDING
    data = json.loads(run.stdout)
    assert data["changes"] == [
        {
            "object": "PodDisruptionBudget A",
            "what": "apiVersion policy/v1beta1 → policy/v1",
            "why": "gone since 1.25",
        }
    ]
    assert [problem["what"] for problem in data["problems"]] == [
        "PodDisruptionBudget A: metadata.name: 'A' is no name of small letters, digits, - and ."
    ]
    assert yaml.safe_load(data["manifest"])["apiVersion"] == "policy/v1"
