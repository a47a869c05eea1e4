"""Pools by label, MIG labels and the watch on a real API server, with its rights and defaults.

GPUNODE_KUBERNETES names the folder with the programs.  No controller makes pods: only what the API keeps is judged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, control_plane, wait_for
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from kube_cluster import node, put, quick, rendered
from urllib3.exceptions import ProtocolError

from gpunode.core.errors import GpunodeError
from gpunode.core.model import Kubernetes, NodeFacts
from gpunode.core.spec.rollout import DrainSpec
from gpunode.kube.core import render
from gpunode.kube.core.checks.preflight import with_nodes
from gpunode.kube.core.cluster import CLIENT_LABEL, GPUSHARE_LABEL, MIG_LABEL, POOL_LABEL
from gpunode.kube.core.judge import findings
from gpunode.kube.core.marks import node_key
from gpunode.kube.core.owned import OWNED_SELECTOR, ObjectKey, shown
from gpunode.kube.core.render import Rendered
from gpunode.kube.edge.apply import mark_node, remove
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect
from gpunode.kube.edge.nodes import ClusterNodes
from gpunode.kube.edge.reading import read

PROGRAMS = os.environ.get("GPUNODE_KUBERNETES", "")
pytestmark = pytest.mark.skipif(not PROGRAMS, reason="GPUNODE_KUBERNETES names no folder with Kubernetes' programs")

DAY = timedelta(days=1)
CUT = {"strategy": "mig", "mig": {"manager": "mig-manager", "profiles": {"1g.10gb": 7}}}
SPEC: dict[str, Any] = {
    "kubernetes": {
        "taint": True,
        "pools": {"cut": {"nodes": "team in (a)", "sharing": CUT}, "whole": {"nodes": "team=b"}},
    }
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("real")
    signed(folder, "ca", DAY)
    flags = ("--allow-privileged=true", f"--client-ca-file={folder}/ca.crt")
    with control_plane(Path(PROGRAMS), folder / "plane", *flags) as found:
        yield found


def signed(folder: Path, name: str, lasts: timedelta) -> None:
    """A key and a certificate of an administrator in `folder`, from two days ago, signed by ca, which it may be."""
    key = ec.generate_private_key(ec.SECP256R1())
    parts = ((NameOID.ORGANIZATION_NAME, "system:masters"), (NameOID.COMMON_NAME, name))
    subject = issuer = x509.Name([x509.NameAttribute(*part) for part in parts])
    by: Any = key
    if name != "ca":
        issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()).subject
        by = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    begins = datetime.now(UTC) - 2 * DAY
    made = x509.CertificateBuilder(issuer, subject, key.public_key(), 1, begins, begins + 2 * DAY + lasts)
    made = made.add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
    (folder / f"{name}.crt").write_bytes(made.sign(by, hashes.SHA256()).public_bytes(Encoding.PEM))
    (folder / f"{name}.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    """The API with two nodes, one of which has a first MIG label of the GPU Operator's."""
    for name, team in (("n1", "a"), ("n2", "b")):
        plane.api.request("POST", "/api/v1/nodes", body=node(name, labels={"team": team}))
    labels = {"metadata": {"labels": {MIG_LABEL: "all-disabled"}}}
    plane.api.request(
        "PATCH", plane.api.path(node_key("n1")), query={"fieldManager": "gpu-operator"}, body=labels,
        content="application/merge-patch+json",
    )  # fmt: skip
    yield quick(connect(str(plane.kubeconfig)))
    remove(connect(str(plane.kubeconfig)), "gpunode", notify=lambda _: None)
    for name in ("n1", "n2"):
        plane.api.delete(node_key(name))


def of_now(api: Api, spec: dict[str, Any]) -> Rendered:
    what = rendered(spec, version=".".join(api.version().removeprefix("v").split(".")[:2]))
    return render(with_nodes(what.cluster, api.items("/api/v1/nodes")))


def labels_of(api: Api, name: str) -> dict[str, str]:
    found = api.find(api.path(node_key(name))) or {}
    return {key: value for key, value in found["metadata"]["labels"].items() if "nvidia" in key}


def drift(api: Api, what: Rendered) -> dict[str, str]:
    reading, unread = read(api, what)
    assert unread == ()
    return {one.about: one.message for one in findings(reading) if one.check in ("kube.drift", "kube.pool")}


def test_everything_is_taken_kept_and_given_back(api: Api) -> None:
    """Also what a server makes of it: its defaults are no difference, in a second apply nor for the watch."""
    what = of_now(api, SPEC)
    applied = put(api, what, wait=False)
    assert (applied.problems, applied.error) == ((), None)
    client = {CLIENT_LABEL: "true"}
    assert labels_of(api, "n1") == {POOL_LABEL: "cut", MIG_LABEL: "cut", **client}
    assert labels_of(api, "n2") == {POOL_LABEL: "whole", **client}
    again = put(api, of_now(api, SPEC), wait=False)
    assert {str(one.key): one.diff for one in again.changes if one.how != "unchanged"} == {}
    assert drift(api, what) == {}
    whole = {**SPEC, "kubernetes": {**SPEC["kubernetes"], "pools": {"whole": {"nodes": "team in (a, b)"}}}}
    assert put(api, of_now(api, whole), wait=False).error is None
    assert (labels_of(api, "n1"), labels_of(api, "n2")) == ({POOL_LABEL: "whole"}, {POOL_LABEL: "whole"})
    assert remove(api, "gpunode", notify=lambda _: None).error is None
    assert api.items("/apis/apps/v1/namespaces/gpunode/daemonsets") == []


def cut_after(api: Api, writes: int) -> list[str]:
    """Let so many writes through, then nothing any more; the writes are in the list."""
    send, done = api._send, list[str]()

    def counted(method: str, path: str, query: Any, body: Any, content: str, timeout: float) -> Any:
        if len(done) == writes:
            raise ProtocolError("cut")
        if method != "GET" and "dryRun" not in (query or {}) and not path.endswith("accessreviews"):
            done.append(f"{method} {path}")
        return send(method, path, query, body, content, timeout)

    api._send = counted  # type: ignore[method-assign]
    return done


def everything(api: Api) -> list[str]:
    """What is gpunode's in the cluster, and the nodes with who wrote them."""
    paths = (
        "/api/v1/namespaces",
        "/api/v1/configmaps",
        "/apis/apps/v1/daemonsets",
        "/apis/node.k8s.io/v1/runtimeclasses",
    )
    found = [shown(item) for path in paths for item in api.items(path, labelSelector=OWNED_SELECTOR)]
    for item in api.items("/api/v1/nodes"):
        managers = sorted(entry["manager"] for entry in item["metadata"]["managedFields"])
        found.append(f"{shown(item)}{managers}")
    return found


@pytest.mark.extended
@pytest.mark.parametrize(("namespace", "last"), [("default", 99), ("gpunode", 2)])  # the end of a namespace takes long
def test_what_ends_after_any_of_its_writes_is_finished_by_the_next_run(
    namespace: str, last: int, plane: ControlPlane, api: Api
) -> None:
    pools = {"a": {"nodes": "team=a"}}
    what = of_now(api, {"kubernetes": {"taint": True, "pools": pools, "namespace": namespace}})
    for name in ("n1", "n2"):  # with a writer that stays: the API keeps the last one
        api.request("PATCH", api.path(node_key(name)), query={"fieldManager": "kubelet"},
                    body={"metadata": {"annotations": {"a": "b"}}}, content="application/merge-patch+json")  # fmt: skip

    def both(writes: int) -> tuple[int, list[str]]:
        """apply and remove, cut off after so many writes, then run again: how many writes there are, what was made."""
        nonlocal bare
        apis = [quick(connect(str(plane.kubeconfig))) for _ in range(2)]
        applied, removed = (cut_after(one, writes) for one in apis)
        broken = put(apis[0], what, wait=False).error is not None
        assert broken or len(applied) < writes
        assert put(api, what, wait=False).error is None
        there = everything(api)
        remove(apis[1], namespace, notify=lambda _: None)
        remove(api, namespace, notify=lambda _: None)
        wait_for(lambda: len(everything(api)) == 2, f"the end of a removal that ended after {removed}", plane)
        left = everything(api)
        assert left == (bare := bare or left), f"remove ended after {removed}"
        return max(len(applied), len(removed)), there

    bare = list[str]()  # the two nodes, after a first apply and removal
    most, whole = both(1000)
    assert most > 7
    for writes in range(1, min(most, last + 1)):
        assert both(writes)[1] == whole, f"apply ended after {writes} writes"


def test_a_node_does_not_remember_gpunode_after_it_was_removed(api: Api) -> None:
    def managers(name: str) -> set[str]:
        return {entry["manager"] for entry in (api.find(api.path(node_key(name))) or {})["metadata"]["managedFields"]}

    for name in ("n1", "n2"):
        api.request(
            "PATCH", api.path(node_key(name)), query={"fieldManager": "kubelet"},
            body={"metadata": {"annotations": {"a": "b"}}}, content="application/merge-patch+json",
        )  # fmt: skip
    put(api, of_now(api, SPEC), wait=False)
    assert managers("n1") == managers("n2") == {"gpunode", "kubelet"}
    assert remove(api, "gpunode", notify=lambda _: None).error is None
    assert managers("n1") == managers("n2") == {"kubelet"}


def test_a_node_that_was_proven_keeps_its_label_over_applies_and_the_taints_of_others(api: Api) -> None:
    foreign = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
    mine = {"key": "gpunode/unproven", "value": "true", "effect": "NoSchedule"}
    api.merge(node_key("n1"), {"spec": {"taints": [mine, foreign]}})
    assert mark_node(api, "n1", label=True, taint=False) and not mark_node(api, "n9", label=True, taint=False)
    gated = {**SPEC, "kubernetes": {**SPEC["kubernetes"], "gate": True}}
    for _ in range(2):
        assert put(api, of_now(api, gated), wait=False).error is None
        live = api.find(api.path(node_key("n1"))) or {}
        taints = {taint["key"] for taint in live["spec"]["taints"]}
        assert (live["metadata"]["labels"]["gpunode/proven"], taints) == ("true", {"dedicated", "nvidia.com/gpu"})
    assert remove(api, "gpunode", notify=lambda _: None).error is None
    live = api.find(api.path(node_key("n1"))) or {}
    assert "gpunode/proven" not in live["metadata"]["labels"] and live["spec"]["taints"] == [foreign]


def test_a_read_only_account_finds_what_nobody_wants_any_more(plane: ControlPlane, api: Api) -> None:
    put(api, of_now(api, SPEC), wait=False)
    less = {**SPEC, "kubernetes": {**SPEC["kubernetes"], "feature_discovery": False}}
    plane.api.request("POST", "/api/v1/nodes", body=node("n3", labels={"team": "b"}))
    try:
        found = drift(api, of_now(api, less))
    finally:
        plane.api.delete(node_key("n3"))
    assert found.pop("node n3").startswith(f"the label {POOL_LABEL} is nothing, not whole; ")
    stale = {about for about, text in found.items() if text.startswith("applied earlier")}
    gone = {str(c.key) for c in put(api, of_now(api, less), dry_run=True).changes if c.how == "deleted"}
    assert stale == gone != set()
    assert {*found} == stale
    lacking = {one.about: one.message for one in findings(read(api, of_now(api, less))[0]) if one.check == "kube.gpus"}
    assert {about: text.partition(",")[0] for about, text in lacking.items()} == dict.fromkeys(
        ("node n1", "node n2"), "it offers no GPU"
    )


@pytest.mark.parametrize("value", [None, "other"])
def test_a_pools_label_that_another_took_off_or_changed_is_found(api: Api, value: str | None) -> None:
    """What is gone is given back; who has set another value has to give it up."""
    what = of_now(api, SPEC)
    assert put(api, what, wait=False).error is None
    body = {"metadata": {"labels": {POOL_LABEL: value}}}
    api.request("PATCH", api.path(node_key("n2")), query={"fieldManager": "kubectl-label"}, body=body,
                content="application/merge-patch+json")  # fmt: skip
    assert drift(api, what) == {"node n2": f"the label {POOL_LABEL} is {value or 'nothing'}, not whole"}
    again = put(api, of_now(api, SPEC), wait=False)
    problems = [(one.what, one.fix) for one in again.problems]
    assert len(problems) == bool(value) and ("kubectl-label" in str(problems)) == bool(value), problems
    assert labels_of(api, "n2")[POOL_LABEL] == (value or "whole")


def test_a_plan_asks_for_evictions_and_evicts_nobody(api: Api) -> None:
    """Pod a is free to go, pod b has a budget that nobody has counted yet."""
    api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "team"}})
    account = ObjectKey("v1", "ServiceAccount", "team", "default")  # a controller makes it
    assert api.follow(account, lambda found: True if found else None, 30)
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "b"}}}
    path = "/apis/policy/v1/namespaces/team/poddisruptionbudgets"
    api.request("POST", path, body={"metadata": {"name": "calm"}, "spec": budget})
    for name in ("a", "b"):
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "1", "controller": True}
        metadata = {"name": name, "labels": {"app": name}, "ownerReferences": [owner]}
        spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "none"}]}
        api.request("POST", "/api/v1/namespaces/team/pods", body={"metadata": metadata, "spec": spec})
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        place = f"/api/v1/namespaces/team/pods/{name}/status"
        api.request("PATCH", place, body=status, content="application/merge-patch+json")
    facts = NodeFacts(hostname="n1", kubernetes=Kubernetes(kind="kubeadm", kubelet="v1.36.2"))
    preview = ClusterNodes(lambda: api, lambda text: None).preview("n1", facts, DrainSpec(when="always"))
    assert (preview.evicts, preview.refuses) == (("team/a", "team/b"), ())
    (wait,) = preview.waits
    assert wait.startswith("team/b: ") and "disruption budget" in wait
    left = api.items("/api/v1/namespaces/team/pods")
    assert [pod["metadata"]["name"] for pod in left if not pod["metadata"].get("deletionTimestamp")] == ["a", "b"]


def test_a_cluster_of_ipv6_alone_takes_everything_and_finds_its_nodes(tmp_path: Path) -> None:
    """The API server, services and nodes."""
    flags = ("--allow-privileged=true", "--service-cluster-ip-range=fd00:10:96::/112", "--advertise-address=fd00::1")
    spec = {"kubernetes": {"monitoring": {"enabled": True}}, "sharing": {"strategy": "gpushare"}}
    with control_plane(Path(PROGRAMS), tmp_path / "plane", *flags, host="::1") as plane:
        there = {"metadata": {"name": "n1"}}
        plane.api.request("POST", "/api/v1/nodes", body=there)
        status = {"status": {"addresses": [{"type": "InternalIP", "address": "fd00::7"}]}}
        kind = "application/merge-patch+json"
        plane.api.request("PATCH", "/api/v1/nodes/n1/status", body=status, content=kind)
        what = rendered(spec, **{"fd00::7": {}})
        assert not put(plane.api, what, wait=False).problems
        assert {change.how for change in put(plane.api, what, wait=False).changes} == {"unchanged"}
        services = plane.api.items("/api/v1/namespaces/gpunode/services")
        assert services and {tuple(one["spec"]["ipFamilies"]) for one in services} == {("IPv6",)}
        found = plane.api.find("/api/v1/nodes/n1")
        assert found and found["metadata"]["labels"][GPUSHARE_LABEL] == "true"


def test_an_older_release_takes_everything_and_sees_no_drift(plane: ControlPlane, tmp_path: Path) -> None:
    if int(plane.api.version().split(".")[1]) < 34:
        pytest.skip("it emulates no other release, and is an older one itself")
    with control_plane(
        Path(PROGRAMS), tmp_path / "plane", "--allow-privileged=true", "--emulated-version=1.33"
    ) as older:
        api = quick(older.api)
        api.request("POST", "/api/v1/nodes", body=node("n1", labels={"team": "a"}))
        api.request("POST", "/api/v1/nodes", body=node("n2", labels={"team": "b"}))
        what = of_now(api, SPEC)
        assert str(what.cluster.server) == "1.33"
        applied = put(api, what, wait=False)
        assert (applied.problems, applied.error) == ((), None)
        assert {change.how for change in put(api, what, wait=False).changes} == {"unchanged"}
        assert drift(api, what) == {}


def by_certificate(plane: ControlPlane, name: str) -> Api:
    path = plane.write_kubeconfig(plane.folder / f"{name}.conf", "")
    config, folder = json.loads(path.read_text()), plane.folder.parent
    files = {"client-certificate": f"{folder}/{name}.crt", "client-key": f"{folder}/{name}.key"}
    config["users"] = [{"name": "bench", "user": files}]
    path.write_text(json.dumps(config))
    return connect(str(path))


@pytest.mark.parametrize("by", ["token", "certificate"])
def test_a_login_that_has_ended_is_told_as_such(plane: ControlPlane, by: str) -> None:
    if by == "token":
        old = connect(str(plane.write_kubeconfig(plane.folder / "old.conf", "of-another-day")))
    else:
        for name, lasts in (("good", DAY), ("old", -DAY)):
            signed(plane.folder.parent, name, lasts)
        assert isinstance(by_certificate(plane, "good").items("/api/v1/nodes"), list)
        old = by_certificate(plane, "old")
    with pytest.raises(GpunodeError) as caught:
        old.items("/api/v1/nodes")
    assert caught.value.outcome == "unreachable" and "have expired: log in again" in caught.value.fix


def test_the_gpu_operators_policy_is_found_where_its_kind_is_served(plane: ControlPlane, api: Api) -> None:
    """By its own definition, beside objects of ours that were there before."""
    what = of_now(api, SPEC)
    assert put(api, what, wait=False).error is None
    name, schema = "clusterpolicies.nvidia.com", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "ClusterPolicy", "plural": "clusterpolicies"}
    spec = {"group": "nvidia.com", "scope": "Cluster", "names": names, "versions": [version]}
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.request("POST", definitions, body={"metadata": {"name": name}, "spec": spec})
    try:
        wait_for(lambda: api.served("/apis/nvidia.com/v1"), "ClusterPolicy", plane)
        policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
        api.request("POST", "/apis/nvidia.com/v1/clusterpolicies", body=policy)
        (problem,) = put(connect(str(plane.kubeconfig)), what, wait=False).problems
        assert "GPU Operator runs here (ClusterPolicy cluster-policy)" in problem.what
    finally:
        api.request("DELETE", f"{definitions}/{name}")
