"""What a cluster gets: recorded files, objects that every supported server takes, and what is refused.

GPUNODE_WRITE_CASES=1 writes tests/cases/kube/CASE/expected/ anew, to be read before it is committed.
"""

from __future__ import annotations

import os

import pytest
import yaml
from kube_cases import CASES, Case, complaint

from gpunode.core.kube.render import ORDER
from gpunode.core.kube.render.files import files_of

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder.name)


@by_name
def test_a_case_gives_the_recorded_files(case: Case) -> None:
    files = files_of(case.render())
    folder = case.folder / "expected"
    if os.environ.get("GPUNODE_WRITE_CASES"):
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            path.unlink()
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    recorded = {str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in folder.rglob("*") if p.is_file()}
    assert files == recorded


@by_name
def test_every_object_fits_the_schema_of_every_server(case: Case) -> None:
    wrong = []
    for server in case.servers:
        rendered = case.render(server)
        assert rendered.problems == ()
        wrong += [told for item in (*rendered.objects, *rendered.examples) if (told := complaint(item, server))]
    assert wrong == []


@by_name
def test_objects_come_after_what_they_need_and_say_whose_they_are(case: Case) -> None:
    objects = case.render().objects
    kinds = [ORDER.index(item["kind"]) for item in objects]
    assert kinds == sorted(kinds)
    assert {item["metadata"]["labels"]["app.kubernetes.io/managed-by"] for item in objects} == {"gpunode"}
    keys = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(keys) == len(set(keys))


@by_name
def test_files_hold_the_objects_and_nothing_else(case: Case) -> None:
    rendered = case.render()
    texts = {name: text for name, text in files_of(rendered).items() if "/" not in name and name.endswith(".yml")}
    read = [item for name in sorted(texts) for item in yaml.safe_load_all(texts[name])]
    key = str
    assert sorted(read, key=key) == sorted(rendered.objects, key=key)
