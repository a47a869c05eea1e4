"""The files of kube-scheduler: what is in force in every case of tests/edits/scheduler, bad input, any input."""

from __future__ import annotations

import json
import posixpath
from dataclasses import replace
from typing import Any

import pytest
import yaml
from edit_cases import EditCase, applied, cases, over
from edit_cases import case as case_of
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.edits.kubernetes.scheduler import (
    SchedulerRequest,
    scheduler_target,
)
from gpunode.core.edits.kubernetes.scheduler_pod import host_path, pod_of
from gpunode.core.edits.kubernetes.schemas import scheduler_faults
from gpunode.core.edits.text import yamltext
from gpunode.core.edits.text.unitfile import program_of
from gpunode.core.errors import InputError
from gpunode.core.facts.flags import flags_in, last_value
from gpunode.core.knowledge.scheduler import minor_of
from gpunode.edge.load import load_scheduler_rules

RULES = load_scheduler_rules()
AFTER = cases("scheduler", having="after")
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"


def asked(case: EditCase) -> SchedulerRequest:
    return SchedulerRequest(**case.asked)


@over(AFTER)
def test_the_scheduler_would_start_and_has_the_extender_once(case: EditCase) -> None:
    after, request = case.done, asked(case)
    minor = minor_of(request.server_version)
    words = words_of(after, request)
    flags = flags_in(words)
    assert {flag.name for flag in flags} & set(RULES.gone_flags(minor)) == set()
    path = last_value(flags, "config") or ""
    if request.manifest:
        path = host_path(pod_of(request.manifest, after[request.manifest]), path) or ""
    printed = yaml.safe_load(after[path])
    assert scheduler_faults(printed, minor, RULES) == []
    (ours,) = (one for one in printed["extenders"] if RULES.resource in json.dumps(one))
    assert {ours["filterVerb"], ours["bindVerb"], ours["nodeCacheCapable"]} == {"filter", "bind", True}
    assert ours["urlPrefix"].endswith("/gpushare-scheduler")
    assert not ours.get("ignorable")
    assert "prioritizeVerb" not in ours


def words_of(after: dict[str, bytes], request: SchedulerRequest) -> list[str]:
    if request.unit:
        return program_of(after, request.unit, "kube-scheduler").words
    return list(pod_of(request.manifest, after[request.manifest]).words)


@over(AFTER)
def test_comments_and_all_other_lines_stay_in_their_order(case: EditCase) -> None:
    before, after = case.before, case.done
    for path, data in before.items():
        left = iter(after[path].decode().splitlines())
        comments = [line.partition("#")[2] for line in data.decode().splitlines() if "#" in line and "--" not in line]
        assert all(any(comment in line for line in left) for comment in comments), path


@over(AFTER)
def test_nothing_but_the_manifest_lies_in_the_folder_of_manifests(case: EditCase) -> None:
    """A further file there is one more pod: no copy, no configuration."""
    new = set(case.done) - set(case.before)
    folder = posixpath.dirname(asked(case).manifest)
    assert [path for path in new if posixpath.dirname(path) == folder] == []


@over(AFTER)
def test_without_a_record_the_extender_goes_and_the_scheduler_still_starts(case: EditCase) -> None:
    after, request = case.done, asked(case)
    left = applied(after, scheduler_target(request, RULES).unconfigure(after))
    if path := last_value(flags_in(words_of(left, request)), "config"):
        place = host_path(pod_of(MANIFEST, left[MANIFEST]), path) if request.manifest else path
        assert RULES.resource.encode() not in left[place or ""]
    assert scheduler_target(request, RULES).unconfigure(left).changes == {}


@pytest.mark.parametrize("change", [(b"ignorable: false", b"ignorable: true"), (b"x", b"x")])
def test_a_configuration_that_configure_did_not_create_loses_the_extender_alone(change: tuple[bytes, bytes]) -> None:
    """Path and keys are those that configure would write, and the file is a person's: the record says so."""
    case = case_of("scheduler", "kubeadm-1.30")
    request = asked(case)
    mine = dict(case.done)
    own = yaml.safe_load(mine[RULES.config_file])
    del own["extenders"]
    mine[RULES.config_file] = yaml.safe_dump(own).encode()
    edit = scheduler_target(request, RULES).configure(mine)
    after = applied(mine, edit)
    after[RULES.config_file] = after[RULES.config_file].replace(*change)
    for records in ([edit.undo], []):
        left = applied(after, scheduler_target(request, RULES).unconfigure(after, records))
        assert yaml.safe_load(left[RULES.config_file]) == own
        assert last_value(flags_in(words_of(left, request)), "config"), "its --config stays"
        assert left[MANIFEST] == mine[MANIFEST] != after[MANIFEST], "the kubelet starts the pod again"


BAD = [
    ({"server_version": "1.30"}, "a static pod's manifest or a unit"),
    ({"server_version": "1.30", "manifest": MANIFEST, "unit": "/x.service"}, "a static pod's manifest or a unit"),
    ({"server_version": "newest", "manifest": MANIFEST}, "server version 'newest'"),
    ({"server_version": "1.30", "manifest": "kube-scheduler.yaml"}, "path 'kube-scheduler.yaml'"),
    ({"server_version": "1.30", "manifest": MANIFEST, "config": "/etc/../x"}, "path '/etc/../x'"),
    ({"server_version": "1.30", "manifest": MANIFEST, "extender_url": "gpushare:80"}, "extender URL 'gpushare:80'"),
    ({"server_version": "1.30", "manifest": MANIFEST, "extender_url": "http://a b/"}, "extender URL 'http://a b/'"),
    ({"server_version": "1.30", "manifest": MANIFEST, "extender_url": "http://a?"}, "extender URL 'http://a?'"),
    ({"server_version": "1.30", "manifest": MANIFEST, "extender_url": "http://[::1/"}, "extender URL 'http://[::1/'"),
    (
        {"server_version": "1.30", "manifest": MANIFEST, "extender_url": "http://a\x07/"},
        r"extender URL 'http://a\x07/'",
    ),
]


@pytest.mark.parametrize(("request_", "what"), BAD, ids=[what for _, what in BAD])
def test_a_request_without_sense_is_an_input_error(request_: dict[str, str], what: str) -> None:
    with pytest.raises(InputError) as caught:
        scheduler_target(SchedulerRequest(**request_), RULES).configure({})  # type: ignore[arg-type]
    assert caught.value.what == what


def test_the_files_of_a_case_are_asked_for() -> None:
    case = case_of("scheduler", "config-in-a-folder")
    before, request = case.before, asked(case)
    read: dict[str, bytes] = {}
    while set(found := {path for path in scheduler_target(request, RULES).files(read) if path in before}) != set(read):
        read = {path: before[path] for path in found}
    assert read == before


def test_lines_that_others_added_since_stay_when_the_edit_is_undone() -> None:
    case = case_of("scheduler", "kubeadm-1.30")
    before, request = case.before, asked(case)
    edit = scheduler_target(request, RULES).configure(before)
    after = applied(before, edit)
    elect = b"    - --leader-elect=true\n"
    after[MANIFEST] = after[MANIFEST].replace(elect, elect + b"    - --v=5\n")
    left = applied(after, scheduler_target(request, RULES).unconfigure(after, [edit.undo]))
    assert left == {MANIFEST: before[MANIFEST].replace(elect, elect + b"    - --v=5\n")}


def test_a_configuration_that_changes_alone_has_the_kubelet_start_the_pod_again() -> None:
    """The kubelet looks at manifests: of a file that one mounts it knows nothing."""
    case = case_of("scheduler", "kubeadm-1.30")
    request = asked(case)
    after = case.done
    other = replace(request, extender_url="http://10.1.1.1/gpushare-scheduler")
    edit = scheduler_target(other, RULES).configure(after)
    assert set(edit.changes) == {MANIFEST, RULES.config_file}
    metadata = yaml.safe_load(edit.changes[MANIFEST] or b"")["metadata"]
    assert list(metadata["annotations"]) == ["gpunode-scheduler-config"]
    both = applied(after, edit)
    assert scheduler_target(other, RULES).configure(both).changes == {}
    back = applied(both, scheduler_target(request, RULES).unconfigure(both, [edit.undo]))
    assert back == after


# ---------------------------------------------------------------- any YAML

keys = st.text("abcxyz", min_size=1, max_size=3)
scalars = st.one_of(st.integers(-9, 99), st.booleans(), st.none(), st.text("ab #:'\"-\n", max_size=6))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=10
)
documents = st.dictionaries(keys, values, min_size=1, max_size=4)


heads = st.sampled_from(["", "---\n", "---\n# c\n---\n"])
tails = st.sampled_from(["", "---\n", "---\n# c\n---", "...\n---\n"])


@given(documents, keys, values, st.booleans(), heads, tails)
def test_a_value_set_in_any_yaml_is_there_and_all_else_as_before(
    data: dict[str, Any], key: str, value: Any, flow: bool, head: str, tail: str
) -> None:
    from gpunode.core.edits.target import Refusal

    text = head + yaml.safe_dump(data, default_flow_style=flow, sort_keys=False) + tail
    try:
        after = yamltext.set_value(text, (key,), value)
    except Refusal:
        return  # said, and nothing changed
    assert (after.startswith(head), after.endswith(tail)) == (True, True)
    assert printed(after) == [{**data, key: value}]
    gone = yamltext.remove(after, (key,))
    assert (printed(gone) or [{}]) == [{name: item for name, item in data.items() if name != key}]


def printed(text: str) -> list[Any]:
    """What the documents say that are not empty."""
    return [found for found in yaml.safe_load_all(text) if found is not None]


@given(st.lists(st.text("ab=-_ '\"\\$1", min_size=0, max_size=8), max_size=6))
def test_words_of_any_text_stand_where_they_are_said_to(parts: list[str]) -> None:
    from gpunode.core.facts.flags import change_flags, words_in

    text = " ".join(parts)
    words = words_in(text)
    assert all(0 <= word.start < word.end <= len(text) for word in words)
    assert [word.start for word in words] == sorted(word.start for word in words)
    change = change_flags([word.text for word in words], drop=("a", "b"))
    kept = [word.text for at, word in enumerate(words) if at not in change.gone]
    assert not {"a", "b"} & {flag.name for flag in flags_in(kept)} or "--" in kept or len(change.gone) > 0
