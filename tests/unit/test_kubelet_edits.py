"""The files of the kubelet: what is in force in every case of tests/edits/kubelet, bad input, any input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from edit_cases import EditCase, cases, over, write_tree
from edit_cases import case as case_of

from gpunode.cli.main import cli
from gpunode.core.edits.kubernetes.kubelet import (
    KubeletRequest,
    kubelet_target,
)
from gpunode.core.edits.kubernetes.schemas import kubelet_faults
from gpunode.core.edits.text.unitfile import program_of
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.facts.flags import flags_in, last_value
from gpunode.core.knowledge.scheduler import minor_of
from gpunode.core.model import Edit
from gpunode.edge.load import load_scheduler_rules

RULES = load_scheduler_rules()
AFTER = cases("kubelet", having="after")


def asked(case: EditCase) -> KubeletRequest:
    return KubeletRequest(**case.asked)


@over(AFTER)
def test_what_was_asked_is_in_force(case: EditCase) -> None:
    after, request = case.done, asked(case)
    minor = minor_of(request.server_version)
    flags = flags_in(program_of(after, request.unit, "kubelet").words)
    path, folder = last_value(flags, "config") or "", last_value(flags, "config-dir")
    printed = yaml.safe_load(after[path]) if path in after else {}
    for drop_in in sorted(one for one in after if folder and one.startswith(f"{folder}/")):
        for key, value in yaml.safe_load(
            after[drop_in]
        ).items():  # maps are merged, as kubernetes.io says of --config-dir
            printed[key] = {**printed.get(key, {}), **value} if isinstance(value, dict) else value
    assert [fault for fault in kubelet_faults(printed, minor, RULES) if "unknown" not in fault] == [] or not printed
    if request.cgroup_driver:
        assert (last_value(flags, "cgroup-driver") or printed["cgroupDriver"]) == request.cgroup_driver
    for flag, key in (("system-reserved", "systemReserved"), ("kube-reserved", "kubeReserved")):
        wanted = getattr(request, flag.replace("-", "_"))
        given_ = last_value(flags, flag)
        found = dict(one.split("=") for one in given_.split(",")) if given_ else printed.get(key, {})
        assert wanted.items() <= found.items()
    labels = dict(one.split("=") for one in (last_value(flags, "node-labels") or "x=x").split(","))
    assert request.node_labels.items() <= labels.items()


@over(AFTER)
def test_comments_stay(case: EditCase) -> None:
    before, after = case.before, case.done
    for path, data in before.items():
        assert set(re.findall(rb"#.*", data)) - {b"# for the GPUs"} <= set(re.findall(rb"#.*", after[path])), path


LABELS = [
    ("gpushare", "true", True),
    ("nvidia.com/gpu.present", "true", True),
    ("node.kubernetes.io/pool", "gpu", True),
    ("x.node.kubernetes.io/pool", "gpu", True),
    ("kubernetes.io/hostname", "n1", True),
    ("node-role.kubernetes.io/gpu", "", False),
    ("kubernetes.io/role", "gpu", False),
    ("node.k8s.io/pool", "gpu", False),
    ("-gpu", "true", False),
    ("gpu", "very nice", False),
    ("gpu", "groß", False),
    ("Example.com/gpu", "true", False),
    ("a/b/c", "1", False),
]


@pytest.mark.parametrize(("key", "value", "taken"), LABELS)
def test_labels_that_a_kubelet_does_not_start_with_are_refused(key: str, value: str, taken: bool) -> None:
    request = KubeletRequest(server_version="1.30", unit="/u", node_labels={key: value})
    with pytest.raises(GpunodeError) as caught:
        kubelet_target(request, RULES).configure({})
    assert isinstance(caught.value, InputError) is not taken  # else it says that /u is not there


@pytest.mark.parametrize("key", ["gpu=1", "memory=lots", "cpu=-1", "hugepages-2Mi=1Gi"])
def test_a_reservation_that_is_no_quantity_is_an_input_error(key: str) -> None:
    name, _, value = key.partition("=")
    with pytest.raises(InputError):
        kubelet_target(KubeletRequest(server_version="1.30", unit="/u", kube_reserved={name: value}), RULES).configure(
            {}
        )


def test_the_files_of_a_case_are_asked_for() -> None:
    case = case_of("kubelet", "kubeadm-1.30")
    before, request = case.before, asked(case)
    read: dict[str, bytes] = {}
    while True:
        patterns = [
            pattern.replace("*.conf", "10-kubeadm.conf") for pattern in kubelet_target(request, RULES).files(read)
        ]
        found = {path for path in patterns if path in before}
        if found == set(read):
            break
        read = {path: before[path] for path in found}
    assert read == before


def test_the_kubelet_is_restarted_asked_and_its_units_read_again_where_they_changed() -> None:
    case = case_of("kubelet", "kubeadm-1.30")
    before, request = case.before, asked(case)
    target = kubelet_target(request, RULES)
    found = target.activation(before, target.configure(before))
    assert (found.unit, found.verb, found.reread) == ("kubelet.service", "restart", False)
    assert [words[-1] for words in found.health[:2]] == ["http://127.0.0.1:10248/healthz"] * 2
    assert found.health[2][-3:] == ("http", "127.0.0.1", "10248")
    assert target.activation(before, Edit(changes={request.unit: before[request.unit]})).reread


def test_without_a_record_nothing_is_taken_away() -> None:
    case = case_of("kubelet", "kubeadm-1.30")
    assert kubelet_target(asked(case), RULES).unconfigure(case.done) == Edit()


# ---------------------------------------------------------------- the command


def run(verb: str, root: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, ["kube", "kubelet", verb, "--root", str(root), *args], standalone_mode=False)


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.mark.slow
def test_configure_then_unconfigure_gives_every_byte_back(tmp_path: Path) -> None:
    case = case_of("kubelet", "labels-merged-in-their-flag")
    write_tree(case.before, tmp_path)
    before = tree(tmp_path)
    args = ("--server-version", "1.30", "--node-label", "gpushare=true", "--kube-reserved", "cpu=200m")
    assert run("diff", tmp_path, *args).return_value == 3
    done = run("configure", tmp_path, *args, "--format", "json")
    assert (done.return_value, json.loads(done.output)["outcome"]["status"]) == (0, "changed")
    assert run("diff", tmp_path, *args).return_value == 0
    assert run("unconfigure", tmp_path).return_value == 0
    assert {path: data for path, data in tree(tmp_path).items() if not path.startswith("var/lib/gpunode/")} == before


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ((), 2, "--server-version"),
        (("--server-version", "1.30", "--node-label", "gpu"), 2, "--node-label 'gpu'"),
        (("--server-version", "1.30", "--node-label", "node-role.kubernetes.io/gpu="), 2, "kubectl label node"),
        (("--server-version", "1.30", "--unit", "/x.service"), 5, "/x.service is not there"),
    ],
)
def test_bad_input_is_one_clear_message(tmp_path: Path, args: tuple[str, ...], code: int, words: str) -> None:
    write_tree(case_of("kubelet", "kubeadm-1.30").before, tmp_path)
    done = run("diff", tmp_path, *args)
    assert getattr(done.exception, "exit", done.return_value) == code
    assert words in f"{done.output}{done.exception}"
