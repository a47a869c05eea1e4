"""gpunode.lock: what a class of hosts has, written, compared, and held to."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from test_ask import RESOLVES, said

from gpunode.cli.main import cli
from gpunode.core.errors import InputError, UnreachableError
from gpunode.core.facts import parse_probe
from gpunode.core.model import Distro, DriverState, Kernel, NodeFacts, PciDevice, Plan, Problem
from gpunode.core.plan.lockfile import (
    Lock,
    Locked,
    class_of,
    lock_differences,
    lock_text,
    locked_of,
    make_lock,
    name_lock,
    parse_lock,
    with_lock,
)
from gpunode.core.spec import Spec, parse_spec
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import workflow

PROBES = Path(__file__).parents[1] / "cases" / "probes"
GPU = PciDevice(slot="0000:17:00.0", id="10de:2330", class_code="0302")
FACTS = NodeFacts(
    arch="x86_64",
    distro=Distro(id="debian", version_id="12"),
    gpus=(GPU, replace(GPU, slot="0000:18:00.0")),
    kernels=(Kernel(release="6.1.0-28-amd64", running=True),),
    driver=DriverState(loaded="580.95.05"),
    toolkit="1.18.1",
)
KEY = "debian:12/x86_64/2x10de:2330"
LOCKED = Locked(driver="580.95.05", kernel="6.1.0-28-amd64", toolkit="1.18.1")


def test_hosts_of_one_class_make_one_row() -> None:
    assert class_of(FACTS) == KEY
    assert make_lock([("a", FACTS), ("b", FACTS)]) == {KEY: LOCKED}
    assert class_of(replace(FACTS, gpus=())) == "debian:12/x86_64/no-gpu"


def test_hosts_of_one_class_that_differ_are_named() -> None:
    other = replace(FACTS, toolkit="1.17.0")
    with pytest.raises(InputError, match=r"a and b are of the class .* differ: toolkit: a 1.18.1, b 1.17.0"):
        make_lock([("a", FACTS), ("b", other)])


WORDS = st.text("abc123.:-+~_/", max_size=12)
ROWS = st.builds(Locked, driver=WORDS, kernel=WORDS, toolkit=WORDS, cuda=st.lists(WORDS, max_size=3).map(tuple))


@given(st.dictionaries(WORDS, ROWS, max_size=4))
def test_what_is_written_is_read_again(lock: dict[str, Locked]) -> None:
    assert parse_lock(tomllib.loads(lock_text(lock)), "x") == lock
    assert lock_differences(lock, lock) == []


def test_differences_are_reported_by_class() -> None:
    new = {KEY: replace(LOCKED, driver="580.105.08"), "other": Locked()}
    assert lock_differences({KEY: LOCKED, "old": Locked()}, new) == [
        f"{KEY}: driver: 580.95.05 → 580.105.08",
        "old: not there any more",
        "other: new: driver none, kernel none, cuda none, toolkit none",
    ]


def test_the_spec_gets_the_locked_versions() -> None:
    spec, problems = with_lock(parse_spec({}), Lock({KEY: LOCKED}), FACTS)
    assert (spec.driver.version, spec.toolkit.version, problems) == ("580.95.05", "1.18.1", ())


def test_a_branch_that_is_not_the_locked_one_is_reported_as_the_locks_and_once() -> None:
    """The lock's version under driver.version would be a value that nobody wrote."""
    asked = parse_spec({"driver": {"branch": "595"}})
    spec, [problem] = with_lock(asked, Lock({KEY: LOCKED}), FACTS)
    assert problem.what == f"driver.branch is 595, gpunode.lock has 580 for {KEY}" and spec == asked
    assert problem.fix == "provision without --locked, then gpunode lock --update"


REFUSED: list[tuple[str, dict[str, Any], dict[str, Locked], NodeFacts, str]] = [
    ("class", {}, {}, FACTS, "has no class debian:12"),
    ("kernel", {}, {KEY: replace(LOCKED, kernel="6.1.0-27-amd64")}, FACTS, "gpunode.lock has 6.1.0-27"),
    ("driver", {"driver": {"version": "570.1.2"}}, {KEY: LOCKED}, FACTS, "driver.version is 570.1.2"),
    ("toolkit", {"toolkit": {"version": "1.17.0"}}, {KEY: LOCKED}, FACTS, "toolkit.version is 1.17.0"),
]


@pytest.mark.parametrize(("name", "spec", "lock", "facts", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_anything_else_is_refused(
    name: str, spec: dict[str, Any], lock: dict[str, Locked], facts: NodeFacts, message: str
) -> None:
    _, problems = with_lock(parse_spec(spec), Lock(lock), facts)
    assert len(problems) == 1 and message in problems[0].what


@pytest.mark.parametrize(
    "data", [{}, {"format": 2}, {"format": 1, "class": {"a": {"gpu": "x"}}}, {"format": 1, "class": {"a": "b"}}]
)
def test_another_file_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        parse_lock(data, "gpunode.lock")


def test_a_plan_that_is_refused_for_the_locks_versions_names_the_file() -> None:
    lock = parse_lock(tomllib.loads(lock_text({KEY: LOCKED})), "old.lock")
    plan = Plan(host="h", problems=(Problem(what="nvidia-cuda (http://a) has no nvidia-open", fix=""),))
    named = name_lock(plan, lock, FACTS, Spec(), Plan(host="h"))
    assert [problem.what for problem in named.problems[1:]] == [
        f"old.lock has driver 580.95.05 and toolkit 1.18.1 for {KEY}"
    ]
    assert named.problems[1].fix == "provision without --locked, then gpunode lock --update"
    assert name_lock(plan, lock, FACTS, Spec(), plan) == plan  # without the lock it is refused all the same
    other = parse_spec({"driver": {"version": "570.0"}})  # the problem is the lock's own, and names it
    assert name_lock(plan, lock, FACTS, other, Plan(host="h")) == plan


def test_a_host_that_is_refused_with_the_lock_is_planned_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = parse_probe((PROBES / "debian12-h100-provisioned" / "probe.txt").read_text())
    lock = Lock({class_of(facts): replace(locked_of(facts), driver="999.1")})
    monkeypatch.setattr(workflow, "_ask", lambda asked, _: {number: said(*RESOLVES) for number in asked})

    def problems(**spec: Any) -> list[str]:
        desired = DesiredState(spec, to_run=False, lock=lock)
        (host,) = workflow.plan_all([Detected(host="h", facts=facts)], Targets(hosts=("h",)), desired)
        assert host.planned
        return [problem.what for problem in host.planned.plan.problems]

    assert len(problems()) > 1 and problems()[-1].startswith("gpunode.lock has driver 999.1 and toolkit")
    assert len(problems(driver={"version": "580.95.05"})) == 1  # the lock's own problem names it


def test_a_plan_holds_to_the_lock() -> None:
    facts = parse_probe((PROBES / "debian12-h100-fresh" / "probe.txt").read_text())
    free = DesiredState(to_run=False).plan("h", facts).plan
    assert free.steps and not free.problems
    refused = DesiredState(to_run=False, lock=Lock()).plan("h", facts).plan
    assert not refused.steps and "has no class" in refused.problems[0].what


def test_the_command_writes_compares_and_updates(tmp_path: Path) -> None:
    probe, file = str(PROBES / "debian12-h100-provisioned" / "probe.txt"), tmp_path / "gpunode.lock"

    def lock(*more: str) -> tuple[int, dict[str, Any]]:
        args = ["lock", "--probe", probe, "-o", str(file), "--format", "json", *more]
        result = CliRunner().invoke(cli, args, standalone_mode=False)
        return result.return_value, json.loads(result.output)

    assert lock()[1]["written"] is True and lock()[0] == 0
    text = file.read_text()
    file.write_text(text.replace('driver = "', 'driver = "9'))
    code, data = lock()
    assert code == 3 and "driver" in data["differences"][0] and file.read_text() != text
    assert lock("--update")[0] == 0 and file.read_text() == text


def locked(monkeypatch: pytest.MonkeyPatch, file: Path, hosts: list[Detected], *args: str) -> tuple[int, str]:
    """`gpunode lock` where these hosts answer."""
    monkeypatch.setattr("gpunode.edge.detect.detect", lambda targets, **_: hosts)
    result = CliRunner().invoke(cli, ["lock", "-i", "a,b,", "-o", str(file), *args], standalone_mode=False)
    return (int(result.exception.exit), str(result.exception)) if isinstance(result.exception, InputError) else (
        result.return_value,
        result.output,
    )  # fmt: skip


OTHER = Detected(host="b", facts=replace(FACTS, gpus=()))
BOTH = [Detected(host="a", facts=FACTS), OTHER]
DOWN = Detected(host="a", error=UnreachableError("a: no answer"))


def test_an_update_of_some_hosts_keeps_the_classes_of_those_that_were_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpunode.lock"
    assert locked(monkeypatch, file, BOTH)[0] == 0
    text = file.read_text()
    canary = [Detected(host="a", facts=replace(FACTS, toolkit="1.19.0"))]
    assert locked(monkeypatch, file, canary, "--limit", "a", "--update")[0] == 0
    assert text != file.read_text()
    assert set(tomllib.loads(file.read_text())["class"]) == {KEY, "debian:12/x86_64/no-gpu"}
    assert locked(monkeypatch, file, [OTHER], "--update")[0] == 0  # the whole inventory
    assert set(tomllib.loads(file.read_text())["class"]) == {"debian:12/x86_64/no-gpu"}


@pytest.mark.parametrize("there", [True, False])
def test_hosts_that_do_not_answer_are_not_compared_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    file = tmp_path / "gpunode.lock"
    if there:
        locked(monkeypatch, file, BOTH)
    before = file.read_text() if there else None
    code, said = locked(monkeypatch, file, [DOWN, OTHER], "--update")
    assert code == 4 and f"{file}: not written; not compared: 1 of 2 hosts" in said
    assert "as the hosts" not in said and "any more" not in said and "--update" not in said
    assert (file.read_text() if file.exists() else None) == before
    data = json.loads(locked(monkeypatch, file, [DOWN, OTHER], "--format", "json")[1])
    assert len(data["errors"]) == 1 and data["written"] is False and (data["differences"] is None) == there


def test_in_json_no_difference_is_a_list_where_all_were_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpunode.lock"
    locked(monkeypatch, file, BOTH)
    assert json.loads(locked(monkeypatch, file, BOTH, "--format", "json")[1])["differences"] == []


@pytest.mark.parametrize("broken", ["", "format\n", "<<<<<<< HEAD\nformat = 1\n=======\n"])
def test_a_broken_file_is_repaired_by_the_command_that_the_error_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    file = tmp_path / "gpunode.lock"
    file.write_text(broken)
    code, said = locked(monkeypatch, file, BOTH)
    assert code == 2 and "remove it first: gpunode lock" in said and ("conflict" in said) == ("<<<" in broken)
    assert locked(monkeypatch, file, BOTH, "--update")[0] == 2 and file.read_text() == broken
    file.unlink()
    assert locked(monkeypatch, file, BOTH)[0] == 0
    assert parse_lock(tomllib.loads(file.read_text()), "x") == make_lock([(o.host, o.facts) for o in BOTH if o.facts])


def test_an_empty_file_is_called_empty() -> None:
    with pytest.raises(InputError, match="it is empty"):
        parse_lock({}, "x.lock")
