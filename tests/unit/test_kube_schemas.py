"""What kube-scheduler and kubelet have against a configuration, by release."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.edits.kubernetes.schemas import kubelet_faults, scheduler_faults
from gpunode.edge.load import load_scheduler_rules

RULES = load_scheduler_rules()


def scheduler(api: str, text: str = "") -> Any:
    return yaml.safe_load(f"apiVersion: kubescheduler.config.k8s.io/{api}\nkind: KubeSchedulerConfiguration\n{text}")


def kubelet(text: str) -> Any:
    return yaml.safe_load(f"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}")


def fit(args: str) -> str:
    return f"profiles: [{{pluginConfig: [{{name: NodeResourcesFit, args: {args}}}]}}]"


@pytest.mark.parametrize("api", ["v1", "v1beta3", "v2"])
def test_one_version_of_the_configuration_is_known(api: str) -> None:
    assert [not scheduler_faults(scheduler(api), minor, RULES) for minor in (28, 36, 40)] == [api == "v1"] * 3


SCHEDULER = [
    (30, "profiles: [{schedulerName: a}, {schedulerName: b}]", ""),
    (30, "leaderElection: {leaderElect: true, leaseDuration: 15s}", ""),
    (30, "parallelism: 16\npercentageOfNodesToScore: 0", ""),
    (30, "profile: []", "profile: unknown field, near profiles"),
    (30, "Profiles: []", "Profiles: unknown field, near profiles"),
    (30, "profiles: {}", "profiles: {} is no list"),
    (30, "leaderElection: {leaderElect: 'true'}", "leaderElection.leaderElect: 'true' is no bool"),
    (30, "leaderElection: {leaseDuration: 15}", "leaderElection.leaseDuration: 15 is no duration"),
    (30, "clientConnection: {qps: fast}", "clientConnection.qps: 'fast' is no float"),
    (30, "profiles: [{schedulerName: a}, {schedulerName: a}]", "profiles[1].schedulerName: a stands twice"),
    (30, "healthzBindAddress: 0.0.0.0:10251", "healthzBindAddress: unknown field"),
    (
        30,
        "profiles: [{plugins: {score: {enabled: [{name: SelectorSpread}]}}}]",
        "profiles[0].plugins.score: the plugin SelectorSpread is gone",
    ),
    (
        30,
        fit("{scoringstrategy: {}}"),
        "profiles[0].pluginConfig[0].args.scoringstrategy: unknown field, near scoringStrategy",
    ),
    (30, "parallelism: 8.0", ""),
    (30, "clientConnection: {burst: -1}", "clientConnection.burst: -1 is less than 0"),
    (
        30,
        "leaderElection: {leaseDuration: 10s}",
        "leaderElection.leaseDuration: 10 s is not greater than renewDeadline, 10 s",
    ),
    (30, "leaderElection: {leaseDuration: 1m30s, renewDeadline: 1m}", ""),
    (30, "leaderElection: {leaseDuration: 0s}", ""),
    (
        30,
        "leaderElection: {retryPeriod: 9s}",
        "leaderElection.renewDeadline: 10 s is not greater than 1.2 × retryPeriod, 9 s",
    ),
    (30, "leaderElection: {leaderElect: false, leaseDuration: 1s}", ""),
    (30, "profiles: [{schedulerName: ''}]", "profiles[0].schedulerName: missing"),
    (30, "profiles: [{}]", ""),
    (30, "profiles: [{}, {schedulerName: b}]", "profiles[0].schedulerName: missing"),
    (
        30,
        "profiles: [{schedulerName: a, plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}, {schedulerName: b}]",
        "profiles: plugins.queueSort has to be the same in all of them",
    ),
    (
        30,
        "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]",
        "profiles[0].pluginConfig[0].args.hardPodAffinityWeight: 101 is not from 0 to 100",
    ),
    (
        30,
        fit("{scoringStrategy: {type: Most}}"),
        "profiles[0].pluginConfig[0].args.scoringStrategy.type: Most is none of",
    ),
    (
        30,
        fit("{scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 101}]}}"),
        "profiles[0].pluginConfig[0].args.scoringStrategy.resources[0].weight: 101 is not from 1 to 100",
    ),
    (
        30,
        fit("{apiVersion: kubescheduler.config.k8s.io/v1beta3}"),
        "profiles[0].pluginConfig[0].args.apiVersion: kubescheduler.config.k8s.io/v1beta3 is not kubescheduler.config.",
    ),
    (
        30,
        "extenders: [{urlPrefix: u, managedResources: [{name: requests.example.com/x}]}]",
        "extenders[0].managedResources: 'requests.example.com/x' is no name of an extended resource",
    ),
    (
        30,
        "extenders: [{urlPrefix: u, managedResources: [{name: example.kubernetes.io/x}]}]",
        "extenders[0].managedResources: 'example.kubernetes.io/x' is no name of an extended resource",
    ),
    (
        30,
        "extenders: [{urlPrefix: u, managedResources: [{name: example.com/x_}]}]",
        "extenders[0].managedResources: 'example.com/x_' is no name of an extended resource",
    ),
    (30, "profiles: [{pluginConfig: [{name: TheirOwn, args: {anything: 1}}]}]", ""),
    (30, "profiles: [{plugins: {filter: {enabled: [{name: EBSLimits}]}}}]", ""),
    (
        31,
        "profiles: [{plugins: {filter: {enabled: [{name: EBSLimits}]}}}]",
        "profiles[0].plugins.filter: the plugin EBSLimits is gone",
    ),
    (
        31,
        "profiles: [{pluginConfig: [{name: EBSLimits}]}]",
        "profiles[0].pluginConfig[0]: the plugin EBSLimits is gone",
    ),
    (30, "profiles: [{pluginConfig: [{name: A}, {name: A}]}]", "profiles[0].pluginConfig[1]: A stands twice"),
    (30, "percentageOfNodesToScore: 101", "percentageOfNodesToScore: 101 is not from 0 to 100"),
    (
        30,
        "profiles: [{percentageOfNodesToScore: -1}]",
        "profiles[0].percentageOfNodesToScore: -1 is not from 0 to 100",
    ),
    (30, "parallelism: 0", "parallelism: 0 is not greater than 0"),
    (30, "podInitialBackoffSeconds: 0", "podInitialBackoffSeconds: 0 is not greater than 0"),
    (30, "podInitialBackoffSeconds: 20", "podMaxBackoffSeconds: 10 is less than podInitialBackoffSeconds, 20"),
    (
        30,
        "leaderElection: {resourceLock: endpointsleases}",
        "leaderElection.resourceLock: endpointsleases is gone, write leases",
    ),
    (30, "leaderElection: {resourceLock: endpointsleases, leaderElect: false}", ""),
    (30, "extenders: [{filterVerb: filter}]", ""),
    (
        30,
        "extenders: [{urlPrefix: http://a, prioritizeVerb: p}]",
        "extenders[0].weight: a prioritizeVerb needs a positive weight",
    ),
    (30, "extenders: [{urlPrefix: http://a, prioritizeVerb: p, weight: 1}]", ""),
    (
        30,
        "extenders: [{urlPrefix: http://a, bindVerb: b}, {urlPrefix: http://b, bindVerb: b}]",
        "extenders: 2 of them bind, and only one can",
    ),
    (
        30,
        "extenders: [{urlPrefix: http://a, managedResources: [{name: gpu}]}]",
        "extenders[0].managedResources: 'gpu' is no name of an extended resource",
    ),
    (
        30,
        "extenders: [{urlPrefix: a, managedResources: [{name: a.b/c}]}, "
        "{urlPrefix: b, managedResources: [{name: a.b/c}]}]",
        "extenders[1].managedResources: a.b/c is managed by another extender too",
    ),
    (30, "extenders: [{urlPrefix: a, enableHttps: true}]", "extenders[0].enableHttps: unknown field"),
    (99, "somethingNew: 1", ""),
]


@pytest.mark.parametrize(("minor", "text", "fault"), SCHEDULER, ids=[row[1][:60] for row in SCHEDULER])
def test_what_kube_scheduler_has_against_it(minor: int, text: str, fault: str) -> None:
    found = scheduler_faults(scheduler("v1", text), minor, RULES)
    assert len(found) == bool(fault)
    assert all(one.startswith(fault) for one in found)


KUBELET = [
    (30, "cgroupDriver: systemd\nmaxPods: 110", ""),
    (30, "maxPods: '110'", "maxPods: '110' is no int"),
    (30, "failSwapOn: 'no'", "failSwapOn: 'no' is no bool"),
    (30, "cgroupDrivr: systemd", "cgroupDrivr: unknown field, near cgroupDriver"),
    (30, "featureGates: {A: true}", ""),
    (30, "featureGates: {A: 'true'}", "featureGates.A: 'true' is no bool"),
    (30, "systemReserved: {cpu: 100m}", ""),
    (30, "systemReserved: {cpu: 1}", "systemReserved.cpu: 1 is no string"),
    (30, "authentication: {webhook: {enabled: true, cacheTTL: 0s}}", ""),
    (28, "logging: {flushFrequency: 5s}", ""),
    (28, "imageMaximumGCAge: 24h", "imageMaximumGCAge: unknown field"),
    (29, "imageMaximumGCAge: 24h", ""),
    (99, "inTimesToCome: true", ""),
]


@pytest.mark.parametrize(("minor", "text", "fault"), KUBELET, ids=[f"{row[0]} {row[1][:50]}" for row in KUBELET])
def test_what_the_kubelet_has_against_it(minor: int, text: str, fault: str) -> None:
    found = kubelet_faults(kubelet(text), minor, RULES)
    assert len(found) == bool(fault)
    assert all(one.startswith(fault) for one in found)


OTHERS = [None, 1, [], {}, {"kind": "Pod"}, {"apiVersion": "v1", "kind": "KubeletConfiguration"}]


@pytest.mark.parametrize("data", OTHERS, ids=str)
def test_what_is_no_configuration_is_said_to_be_none(data: Any) -> None:
    assert len(scheduler_faults(data, 30, RULES)) == 1
    assert len(kubelet_faults(data, 30, RULES)) == 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(["profiles", "extenders", "leaderElection", "clientConnection", "parallelism"])


@given(st.dictionaries(fields | st.text(max_size=6), anything, max_size=4))
def test_any_data_has_faults_and_no_traceback(data: dict[str, Any]) -> None:
    known = {"profiles", "extenders", "leaderElection", "clientConnection", "parallelism"}
    printed = scheduler_faults({**scheduler("v1"), **data, "apiVersion": RULES.api}, 30, RULES)
    if set(data) - known - {"apiVersion", "kind"}:
        assert printed
    kubelet_faults({**kubelet(""), **data}, 30, RULES)
