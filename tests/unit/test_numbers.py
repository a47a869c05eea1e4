"""Numbers of any length in what a node sends: a value or a Problem, never an exception."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.edits import RuntimeRequest, configure_runtime
from gpunode.core.edits.text import toml
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.facts import parse_probe
from gpunode.core.numbers import HUGE, release, version_tuple, whole
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected
from gpunode.edge.fleet.workflow import plan_one
from gpunode.kube.core.quantity import quantity

MANY = "9" * 20_000
PROBES = Path(__file__).parents[1] / "cases/probes"


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("9" * 18, 10**18 - 1), ("9" * 19, HUGE), (MANY, HUGE), ("0" * 9000 + "1", 1)]
    + [(text, 0) for text in ("", "²", "٣", "-1", "1.0", "0x1", " 1")],
)
def test_digits_of_any_number_are_a_number(text: str, number: int) -> None:
    assert whole(text) == number


@given(st.text())
def test_any_text_is_a_number_or_none(text: str) -> None:
    assert 0 <= whole(text) <= HUGE


def test_versions_of_any_length_compare() -> None:
    assert version_tuple(f"580.{MANY}") > version_tuple("580.999")
    assert release(f"{MANY}.1") > release("2.3")
    assert quantity(f"1e{MANY}") == 0, "no quantity that an API gives"


@pytest.mark.parametrize(
    "number", [f"0x{'f' * 20_000}", f"0b{'1' * 64_000}", MANY, "0x1_0000_0000_0000_0000", str(2**63)]
)
def test_a_number_of_more_than_64_bits_is_no_toml(number: str) -> None:
    with pytest.raises(InputError, match=r"/etc/containerd/config\.toml"):
        toml.parse("/etc/containerd/config.toml", f"version = 2\n[a]\nb = [{{c = {number}}}]\n".encode())


def test_the_largest_numbers_of_64_bits_are_toml() -> None:
    text = f"a = {2**63 - 1}\nb = {-(2**63)}\nc = 0x7fff_ffff_ffff_ffff\n"
    assert toml.parse("x", text.encode())[1] == {"a": 2**63 - 1, "b": -(2**63), "c": 2**63 - 1}


@pytest.mark.parametrize("number", [f"0x{'f' * 20_000}", MANY, "-1", "1e999999999"])
def test_a_version_of_any_length_in_containerds_file_is_that_hosts_problem(number: str) -> None:
    files = {"/etc/containerd/config.toml": f"version = {number}\n".encode()}
    request = RuntimeRequest(runtime="containerd", version="1.6.20", config="/etc/containerd/config.toml")
    try:
        edit = configure_runtime(files, request)
    except GpunodeError:
        return
    assert edit.problems


@pytest.mark.parametrize("name", ["debian12-h100-fresh", "debian12-stock-engines", "ubuntu2404-k3s", "debian12-k0s"])
def test_long_numbers_in_place_of_a_probes_own_end_no_plan(name: str) -> None:
    """Each line of the probe in turn, its first number made 20,000 digits long."""
    import re

    lines = (PROBES / name / "probe.txt").read_text().splitlines()
    desired = DesiredState({}, to_run=False)
    desired._key = lambda repository, spec: b""  # type: ignore[method-assign]
    seen: set[str] = set()
    for at, line in enumerate(lines):
        kind = re.sub(r"\d+", "0", line)
        if not re.search(r"\d", line) or kind in seen:
            continue
        seen.add(kind)
        changed = [*lines[:at], re.sub(r"\d+", MANY, line, count=1), *lines[at + 1 :]]
        try:
            facts = parse_probe("\n".join(changed) + "\n")
        except InputError:
            continue
        error = plan_one(Detected(host="gpu1", facts=facts), desired).error
        assert error is None or "unexpected" not in error.what, (line, error)
