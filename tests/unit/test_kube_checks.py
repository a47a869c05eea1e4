"""What is wrong with objects: one mistake at a time, found by the servers' schemas, by our own checks, or by both."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kube_cases import CASES, KNOWN, Case, complaint

from gpunode.core.kube.checks.objects import cel, check_objects
from gpunode.core.kube.checks.words import amount, label_key, label_value
from gpunode.core.kube.convert import missing_rights

BROKEN = yaml.safe_load((Path(__file__).parents[1] / "cases/kube_broken.yml").read_text(encoding="utf-8"))
RIGHT = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
MAIN = {"containers": [{"name": "c", "image": "x:1"}]}


def object_of(row: dict[str, Any]) -> dict[str, Any]:
    return row.get("object") or {**RIGHT, "spec": {**MAIN, **row["pod"]}}


@pytest.mark.parametrize("row", BROKEN, ids=lambda row: row["about"])
def test_a_mistake_is_found(row: dict[str, Any]) -> None:
    reported = complaint(object_of(row), "1.36")
    assert reported.endswith(row["schema"]) if "schema" in row else reported == ""
    ours = [problem.what for problem in check_objects([object_of(row)])]
    assert ours == ([row["ours"]] if "ours" in row else [])


def test_a_right_pod_is_right() -> None:
    assert check_objects([{**RIGHT, "spec": MAIN}]) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder.name)
def test_nothing_is_wrong_with_what_is_rendered(case: Case) -> None:
    for server in case.servers:
        rendered = case.render(server)
        assert check_objects([*rendered.objects, *rendered.examples]) == []


def changed(case: str, kind: str, change: Any) -> list[str]:
    """What is said when the objects of this kind are changed."""
    rendered = next(c for c in CASES if c.folder.name == case).render()
    objects = yaml.safe_load(yaml.safe_dump(list(rendered.objects)))
    for item in objects:
        if item["kind"] == kind:
            change(item)
    return [problem.what for problem in check_objects(objects)]


def rename(item: dict[str, Any]) -> None:
    item["metadata"]["name"] += "s"


@pytest.mark.parametrize(
    ("case", "kind", "change", "reported"),
    [
        (
            "gpushare-private-registry", "ServiceAccount", rename,
            "Deployment kube-system/gpushare-extender: spec.template.spec.serviceAccountName is 'gpushare-extender', "
            "which is not among the others",
        ),
        (
            "gpushare-private-registry", "ClusterRole", rename,
            "ClusterRoleBinding gpunode-gpushare-extender: roleRef names ClusterRole gpunode-gpushare-extender, "
            "which is not among the others",
        ),
        (
            "gpushare-private-registry", "Service", lambda item: item["spec"]["selector"].update(app="x"),
            "Service kube-system/gpushare-extender: spec.selector matches no pod of the others",
        ),
        (
            "gpushare-private-registry", "Service", lambda item: item["spec"]["ports"][0].update(targetPort="web"),
            "Service kube-system/gpushare-extender: spec.ports: targetPort 'web' is no port of the pods",
        ),
        (
            "plain", "ConfigMap", rename,
            "DaemonSet gpunode/nvidia-device-plugin: spec.template.spec.volumes: ConfigMap device-plugin-config is not "
            "among the others",
        ),
    ],
)  # fmt: skip
def test_objects_that_do_not_fit_together_are_found(case: str, kind: str, change: Any, reported: str) -> None:
    assert reported in changed(case, kind, change)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder.name)
def test_every_component_may_do_what_it_does(case: Case) -> None:
    assert missing_rights(case.render().objects, KNOWN.needs) == []


def test_the_rights_of_gpushare_are_asked_for() -> None:
    """Without pods/binding a pod is annotated and never bound."""
    rendered = next(c for c in CASES if c.folder.name == "gpushare-private-registry").render()
    objects = yaml.safe_load(yaml.safe_dump(list(rendered.objects)))
    for item in objects:
        item["rules"] = [rule for rule in item.get("rules", ()) if "pods/binding" not in rule["resources"]]
    assert [problem.what for problem in missing_rights(objects, KNOWN.needs)] == [
        "Deployment kube-system/gpushare-extender: its ServiceAccount gpushare-extender may not create pods/binding"
    ]
    accounts = [item for item in objects if item["kind"] not in ("ClusterRole", "ClusterRoleBinding")]
    assert len(missing_rights(accounts, KNOWN.needs)) == len([*KNOWN.needs["gpushare-extender"]]) + len(
        [*KNOWN.needs["gpushare-device-plugin"]]
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("100m", "0.1"),
        ("1Gi", "1073741824"),
        ("1.5k", "1500"),
        (2, "2"),
        ("1e3", "1000"),
        ("2E", "2e18"),
        (".5", "0.5"),
    ],
)
def test_a_quantity_is_a_number(text: Any, number: str) -> None:
    assert amount(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "1GB", "1e999999999", "one", "1 Gi", True, None])
def test_what_is_no_quantity(text: Any) -> None:
    assert amount(text) is None


@given(st.text())
def test_words_are_right_or_said_to_be_wrong(text: str) -> None:
    assert all(isinstance(reported, str) for reported in (label_key(text), label_value(text), cel(text)))
    assert not label_value(text) or text in label_value(text) or repr(text) in label_value(text)
