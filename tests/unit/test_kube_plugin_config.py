"""The device plugin's configuration that is written for a spec."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.core.spec import parse_spec
from gpunode.kube.core.render.plugin_config import plugin_config


@pytest.mark.parametrize(
    ("sharing", "mig", "shared"),
    [
        ({}, "none", None),
        ({"strategy": "time-slicing", "replicas": 4}, "none", {"timeSlicing": ["nvidia.com/gpu"]}),
        ({"strategy": "mps", "replicas": 10}, "none", {"mps": ["nvidia.com/gpu"]}),
        ({"strategy": "mig", "mig": {"profiles": {"1g.10gb": 7}}}, "single", None),
        ({"strategy": "mig", "mig": {"strategy": "mixed", "profiles": {"1g.10gb": 7}}}, "mixed", None),
        (
            {"strategy": "time-slicing", "replicas": 2, "mig": {"profiles": {"1g.10gb": 7}}},
            "single",
            {"timeSlicing": ["nvidia.com/gpu"]},
        ),
        (
            {
                "strategy": "time-slicing",
                "replicas": 2,
                "mig": {
                    "strategy": "mixed",
                    "profiles": {"1g.10gb": 2},
                    "gpus": {"1": {"1g.10gb+me": 1, "1g.10gb": 6}},
                },
            },
            "mixed",
            {"timeSlicing": ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me"]},
        ),
    ],
)
def test_what_is_written_says_what_the_spec_says(sharing: Any, mig: str, shared: Any) -> None:
    spec = parse_spec({"sharing": sharing})
    config = plugin_config(spec.sharing, spec.kubernetes.device_plugin)
    assert config["flags"]["migStrategy"] == mig
    kinds = {kind: [one["name"] for one in given["resources"]] for kind, given in config.get("sharing", {}).items()}
    assert (kinds or None) == shared
