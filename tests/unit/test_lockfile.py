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

from gpunode.cli.main import cli
from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.model import Distro, DriverState, Kernel, NodeFacts, PciDevice
from gpunode.core.plan.lockfile import Locked, class_of, lock_differences, lock_text, make_lock, parse_lock, with_lock
from gpunode.core.spec import parse_spec
from gpunode.edge.desired import DesiredState

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
    with pytest.raises(InputError, match=r"b and a are of the class .* differ: toolkit: 1.18.1 → 1.17.0"):
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
        "other: new",
    ]


def test_the_spec_gets_the_locked_versions() -> None:
    spec, problems = with_lock(parse_spec({}), {KEY: LOCKED}, FACTS)
    assert (spec.driver.version, spec.toolkit.version, problems) == ("580.95.05", "1.18.1", ())


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
    _, problems = with_lock(parse_spec(spec), lock, facts)
    assert len(problems) == 1 and message in problems[0].what


@pytest.mark.parametrize(
    "data", [{}, {"format": 2}, {"format": 1, "class": {"a": {"gpu": "x"}}}, {"format": 1, "class": {"a": "b"}}]
)
def test_another_file_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        parse_lock(data, "gpunode.lock")


def test_a_plan_holds_to_the_lock() -> None:
    facts = parse_probe((PROBES / "debian12-h100-fresh" / "probe.txt").read_text())
    free = DesiredState(to_run=False).plan("h", facts).plan
    assert free.steps and not free.problems
    refused = DesiredState(to_run=False, lock={}).plan("h", facts).plan
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
