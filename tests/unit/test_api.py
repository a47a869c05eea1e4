"""The public API: what stands in `gpunode.__all__`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpunode


@pytest.mark.parametrize("name", gpunode.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(gpunode, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'doctr'"):
        _ = gpunode.doctr


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, gpunode; print(sorted({'paramiko', 'ansible', 'rich', 'yaml', 'click'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_facts_from_a_saved_probe_give_a_plan_without_any_host() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[1] / "cases/probes/debian12-stock-engines/probe.txt").read_text()
    planned = gpunode.DesiredState({"driver": {"branch": "none"}, "toolkit": {"version": "none"}}).plan(
        "node1", gpunode.parse_probe(text)
    )
    assert planned.plan.converged
