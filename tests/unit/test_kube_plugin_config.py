"""The device plugin's configuration: what is written for a spec, and what in a user's own one is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.kube.render.plugin_config import check_plugin_config, plugin_config, resource_name
from gpunode.core.spec import parse_spec

SHARED = "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: nvidia.com/gpu, replicas: 4}]\n"
FULL = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: true
  nvidiaDriverRoot: /
  gdsEnabled: false
  deviceDiscoveryStrategy: nvml
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: uuid
    sharedDevicesAllocationPolicy: packed
  gfd: {oneshot: false, sleepInterval: 1m30s}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, replicas: 2}
    - {name: nvidia.com/mig-1g.10gb, devices: all, replicas: 10}
imex: {channelIDs: [0], required: true}
"""


@pytest.mark.parametrize("text", ["version: v1\n", SHARED, FULL])
def test_a_right_configuration_is_right(text: str) -> None:
    assert check_plugin_config(yaml.safe_load(text)) == []


def test_mps_is_right_for_whole_gpus() -> None:
    assert check_plugin_config(yaml.safe_load(SHARED.replace("timeSlicing", "mps"))) == []


# What the plugin itself does with each is said in docs/kubernetes.md: it is silent about most of them.
@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("- 1", "the plugin's configuration is [1]"),
        ("flags: {}", "version is missing"),
        ("version: v2", "version is 'v2'"),
        ("version: v1\nFlags: {migStrategy: single}", "the configuration has the unknown key 'Flags'"),
        ("version: v1\nflags: {migstrategy: single}", "flags has the unknown key 'migstrategy'"),
        ("version: v1\nflags: {migStrategy: double}", "flags.migStrategy is 'double'"),
        ("version: v1\nflags: {failOnInitError: 'false'}", "flags.failOnInitError is 'false'"),
        ("version: v1\nflags: {plugin: {deviceListStrategy: [envvar, cdi]}}", "flags.plugin.deviceListStrategy is ['"),
        ("version: v1\nflags: {plugin: {deviceListStrategy: []}}", "flags.plugin.deviceListStrategy is []"),
        ("version: v1\nflags: {gfd: {sleepInterval: 60}}", "flags.gfd.sleepInterval is 60"),
        ("version: v1\nflags: {plugin: true}", "flags.plugin is True"),
        ("version: v1\nresources: {gpus: [{pattern: A100, name: a100}]}", "resources is {'gpus': "),
        (SHARED.replace("replicas", "rename: nvidia.com/a, replicas"), "sharing.timeSlicing.resources[0].rename is"),
        (SHARED.replace("replicas", "devices: [0], replicas"), "sharing.timeSlicing.resources[0].devices is [0]"),
        ("version: v1\nsharing: {timeSlicing: {}}", "sharing.timeSlicing has no resources"),
        ("version: v1\nsharing: {timeSlicing: {resources: []}}", "sharing.timeSlicing.resources is empty"),
        (SHARED.replace("replicas: 4", "replicas: 1"), "sharing.timeSlicing.resources[0].replicas is 1"),
        (SHARED.replace("replicas: 4", "replicas: yes"), "sharing.timeSlicing.resources[0].replicas is True"),
        (SHARED.replace("replicas", "replica"), "sharing.timeSlicing.resources[0] has the unknown key 'replica'"),
        (
            SHARED.replace("nvidia.com/gpu", "nvidia.com/GPU"),
            "sharing.timeSlicing.resources[0].name is 'nvidia.com/GPU'",
        ),
        (SHARED.replace("nvidia.com/gpu", "nvidia.com/" + "g" * 60), "sharing.timeSlicing.resources[0].name is"),
        (SHARED.replace("replicas", "devices: none, replicas"), "sharing.timeSlicing.resources[0].devices is 'none'"),
        (SHARED.replace("replicas", "devices: 0, replicas"), "sharing.timeSlicing.resources[0].devices is 0"),
        (
            SHARED.replace("timeSlicing", "mps").replace("com/gpu", "com/mig-1g.10gb"),
            "sharing.mps.resources[0].name is",
        ),
        (
            SHARED.replace("timeSlicing", "mps") + "flags: {migStrategy: mixed}",
            "sharing.mps with flags.migStrategy mixed",
        ),
        (
            SHARED + "  mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}",
            "sharing has timeSlicing and mps: the plugin takes mps and says nothing",
        ),
        ("version: v1\nimex: {channelIDs: [1]}", "imex.channelIDs is [1]"),
    ],
)
def test_a_wrong_configuration_is_reported(text: str, reported: str) -> None:
    found = check_plugin_config(yaml.safe_load(text))
    assert found[0].what.startswith(reported)
    assert all(problem.fix for problem in found)


def test_an_unknown_key_is_reported_with_the_nearest_known_one() -> None:
    (problem,) = [
        problem
        for problem in check_plugin_config(yaml.safe_load("version: v1\nflags: {plugin: {deviceliststrategy: envvar}}"))
        if "unknown" in problem.what
    ]
    assert problem.fix == "did you mean deviceListStrategy?"


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
    assert check_plugin_config(config) == []
    assert config["flags"]["migStrategy"] == mig
    kinds = {kind: [one["name"] for one in given["resources"]] for kind, given in config.get("sharing", {}).items()}
    assert (kinds or None) == shared


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["version", "flags", "sharing", "mps", "timeSlicing", "resources", "x"]), inner
        )
    ),
    max_leaves=8,
)


@given(ANYTHING)
def test_any_data_is_judged(data: Any) -> None:
    assert all(problem.what and problem.fix for problem in check_plugin_config(data))


@given(st.text(max_size=70))
def test_a_resource_name_that_is_right_is_one_that_kubernetes_takes(name: str) -> None:
    if not resource_name(name):
        full = name if name.startswith("nvidia.com/") else f"nvidia.com/{name}"
        assert len(full) <= 63
        assert full.isascii()
        assert full == full.lower()
