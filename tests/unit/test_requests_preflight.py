"""What preflight compares, and a plan as role variables."""

import pytest

from gpunode.core.errors import InputError
from gpunode.core.items.preflight import mismatches
from gpunode.core.model import Distro, Kernel, NodeFacts, PciDevice, Plan, Step
from gpunode.core.plan.steps import STEPS, role_variables

FACTS = NodeFacts(
    arch="x86_64",
    distro=Distro(id="debian", version_id="12"),
    kernels=(Kernel(release="6.1.0-50-amd64", running=True),),
    gpus=(
        PciDevice(slot="0000:65:00.0", id="10de:2330", class_code="0302"),
        PciDevice(slot="0000:17:00.0", id="10de:2330", class_code="0302"),
    ),
)
SAME = {
    "distro": "debian:12",
    "arch": "x86_64",
    "kernel": "6.1.0-50-amd64",
    "gpus": ["0000:17:00.0=10de:2330", "0000:65:00.0=10de:2330"],
}


def test_the_node_of_the_plan_has_no_mismatch() -> None:
    assert mismatches(SAME, FACTS) == []


def test_what_the_plan_does_not_name_is_not_compared() -> None:
    assert mismatches({}, FACTS) == mismatches({"gpus": [], "kernel": ""}, FACTS) == []


def test_a_misspelt_key_is_refused_and_not_taken_for_one_that_is_not_compared() -> None:
    with pytest.raises(InputError, match="kernl") as refused:
        mismatches({"kernl": "6.1.0-1-amd64"}, FACTS)
    assert refused.value.fix == "did you mean 'kernel'?"


def test_each_difference_is_one_sentence() -> None:
    other = SAME | {"distro": "debian:13", "gpus": ["0000:17:00.0=10de:2330"]}
    assert mismatches(other, FACTS) == [
        "distro is debian:12, the plan expects debian:13",
        "gpus is 0000:17:00.0=10de:2330, 0000:65:00.0=10de:2330, the plan expects 0000:17:00.0=10de:2330",
    ]


def test_a_plan_sets_every_variable_of_every_role() -> None:
    step = Step(role="driver", option="packages", title="t", value={"install": [{"name": "a"}]})
    variables = role_variables(Plan(host="h", steps=(step,)))
    assert list(variables) == [row.variable for row in STEPS]
    assert variables.pop("driver_packages") == {"install": [{"name": "a"}]}
    assert not any(variables.values())
