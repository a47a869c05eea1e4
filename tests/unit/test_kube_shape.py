"""Answers of a cluster with wrong types anywhere: one sentence that says where, never another exception."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from api_server import ApiServer
from fuzz_targets import ODD, TARGETS, objects
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.errors import GpunodeError
from gpunode.kube.core.shape import checked_object
from gpunode.kube.core.usage import usage
from gpunode.kube.edge.client import Api

pytest_plugins = ("kube_fixtures",)
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
META = {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1"}


@pytest.mark.parametrize(
    ("plural", "item", "what"),
    [
        ("pods", [], "the answer is '[]', not object"),
        ("pods", {}, "it has no metadata"),
        ("pods", {"metadata": {**META, "name": 3}}, "metadata.name is '3', not text"),
        ("pods", {"metadata": META}, "it has no spec"),
        ("pods", {"metadata": META, "spec": {"containers": {}}}, "spec.containers is '{}', not list"),
        (
            "pods",
            {"metadata": META, "spec": {"containers": [{"name": "c", "resources": {"limits": {"g": [1]}}}]}},
            "spec.containers[0].resources.limits.g is '[1]', not text or number",
        ),
        ("nodes", {"metadata": META, "spec": {"unschedulable": 1}}, "spec.unschedulable is '1', not yes or no"),
        (
            "nodes",
            {"metadata": META, "status": {"conditions": [{"type": "Ready"}]}},
            "it has no status.conditions[0].status",
        ),
        ("daemonsets", {"metadata": META, "spec": {"replicas": True}}, "spec.replicas is 'True', not number"),
        ("secrets", {"metadata": {**META, "labels": {"\x1b[31m": 1}}}, "metadata.labels.\\x1b[31m is '1', not text"),
    ],
)
def test_a_wrong_type_is_named_with_its_place(plural: str, item: Any, what: str) -> None:
    with pytest.raises(GpunodeError) as caught:
        checked_object(item, plural, "https://api")
    assert caught.value.what == f"https://api answers with what is no Kubernetes object: {what}"


def test_nulls_count_as_what_is_not_there_and_other_keys_stay() -> None:
    item = {"metadata": {**META, "labels": None}, "spec": {"nodeName": None, "more": [None]}, "status": None, "x": 1}
    assert checked_object(item, "pods", "") == {"metadata": META, "spec": {"more": [None]}, "x": 1}


[CLUSTER] = (target for target in TARGETS if target.what == "objects of a Kubernetes API")
JSON = st.recursive(st.sampled_from(ODD) | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(st.sampled_from(objects()), st.data())
def test_any_value_in_place_of_any_other_gives_an_answer_or_an_error_to_act_on(text: str, data: st.DataObject) -> None:
    at = value = json.loads(text)["item"]
    while isinstance(at, dict | list) and at:
        place: Any = data.draw(st.sampled_from([*at] if isinstance(at, dict) else range(len(at))))
        if data.draw(st.integers(0, 3)) == 0 or not isinstance(at[place], dict | list):
            at[place] = data.draw(JSON)
            break
        at = at[place]
    try:
        CLUSTER.run(json.dumps({"plural": json.loads(text)["plural"], "item": value}))
    except GpunodeError as error:
        assert CONTROL.search(error.what) is None


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        *(("items", answer) for answer in ([], {"items": 3}, {"items": [3]}, {"items": [{"metadata": 1}]})),
        *(("find", answer) for answer in ([], {}, {"metadata": []}, {"metadata": META, "status": 1})),
        *(("served", answer) for answer in ([1], {"resources": [{"name": "pods"}]}, {"resources": {}})),
    ],
)
def test_a_server_of_odd_answers_is_no_cluster(
    server: ApiServer, api: Api, ask: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "request", lambda *_, **__: answer)
    with pytest.raises(GpunodeError, match="answers with what is no Kubernetes object"):
        getattr(api, ask)("/api/v1/nodes/a" if ask == "find" else "/api/v1/nodes")


def test_a_count_of_gpus_without_end_takes_no_time() -> None:
    node = {"metadata": META, "status": {"allocatable": {"aliyun.com/gpu-mem": "9E", "aliyun.com/gpu-count": "9E"}}}
    [found] = usage([node], []).nodes
    assert len(found.uses[0].gpus) == 1024
