"""--nodes: the cluster's own nodes in place of an inventory, by a label selector."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer
from click.testing import CliRunner, Result
from kube_cluster import mutating, node, rendered
from rows import over

from gpunode.core.errors import Exit, InputError, RefusedError
from gpunode.core.model import NodeFacts, PciDevice
from gpunode.core.spec.kubernetes import SharingSpec
from gpunode.edge.fleet.runs import HostRow, Runs
from gpunode.kube.cli import kube
from gpunode.kube.core.checks.preflight import pool_nodes
from gpunode.kube.core.cluster import Pool
from gpunode.kube.core.render.files import files_of

pytest_plugins = ("kube_fixtures",)

SPEC = {"kubernetes": {"taint": True}, "sharing": {"strategy": "mps", "replicas": 4}}
POOL = "nvidia.com/device-plugin.config"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def run(server: ApiServer, tmp_path: Path, verb: str, *args: str, spec: Any = None) -> Result:
    (tmp_path / "gpunode.yml").write_text(yaml.safe_dump(SPEC if spec is None else spec, sort_keys=False))
    config = server.kubeconfig(tmp_path / "kubeconfig")
    given = [verb, "--kubeconfig", str(config), "-c", str(tmp_path / "gpunode.yml"), *args]
    return CliRunner().invoke(kube, given, standalone_mode=False)


def marks(server: ApiServer) -> dict[str, tuple[str, bool]]:
    """Node → our label of the pool, and whether it has our taint."""
    found = {name: server.get("Node", name) for name in server.names("Node")}
    return {
        name: (item["metadata"].get("labels", {}).get(POOL, ""), TAINT in item["spec"].get("taints", []))
        for name, item in found.items()
        if item
    }


@pytest.fixture
def nodes(server: ApiServer) -> None:
    for name, labels in {"a": {"team": "gpu"}, "b": {"team": "gpu"}, "c": {"team": "web"}, "d": {}}.items():
        server.put(node(name, labels=labels, allocatable={"nvidia.com/gpu": "4"}))


NONE, OURS = ("", False), ("default", True)


@pytest.mark.usefixtures("nodes")
def test_the_nodes_that_a_selector_chooses_are_marked_and_given_back(server: ApiServer, tmp_path: Path) -> None:
    assert run(server, tmp_path, "apply", "--nodes", "team=gpu", "--no-wait").return_value == Exit.OK
    assert marks(server) == {"a": OURS, "b": OURS, "c": NONE, "d": NONE}
    again = run(server, tmp_path, "apply", "--nodes", "team=gpu", "--no-wait")
    assert "nothing to do" in again.stdout
    server.edit("Node", "b", "", lambda item: item["metadata"]["labels"].update(team="web"))
    server.edit("Node", "d", "", lambda item: item["metadata"].update(labels={"team": "gpu"}))
    assert run(server, tmp_path, "apply", "--nodes", "team=gpu", "--no-wait").return_value == Exit.OK
    assert marks(server) == {"a": OURS, "b": NONE, "c": NONE, "d": OURS}
    server.gone(("v1", "nodes", "", "d"))
    left = "node d: it was in a pool"
    assert left in " ".join(run(server, tmp_path, "verify", "--nodes", "team=gpu", "--timeout", "1").output.split())
    assert left in " ".join(run(server, tmp_path, "apply", "--nodes", "team=gpu", "--no-wait").output.split())
    assert left not in run(server, tmp_path, "apply", "--nodes", "team=gpu", "--no-wait").output
    assert run(server, tmp_path, "remove").return_value == Exit.OK
    assert set(marks(server).values()) == {NONE}


@pytest.mark.usefixtures("nodes")
def test_only_the_chosen_nodes_have_to_offer_gpus(server: ApiServer, tmp_path: Path) -> None:
    run(server, tmp_path, "apply", "--nodes", "team=gpu", "--no-wait", spec={})
    lost = {"nvidia.com/gpu": "0"}
    server.edit("Node", "c", "", lambda item: item["status"].update(allocatable=lost))
    chosen = ("--timeout", "1", "--nodes", "team=gpu")
    assert run(server, tmp_path, "verify", *chosen, spec={}).return_value == Exit.OK
    server.edit("Node", "a", "", lambda item: item["status"].update(allocatable=lost))
    failed = run(server, tmp_path, "verify", *chosen, spec={})
    assert failed.return_value == Exit.FAILED
    assert "FAILED kube.gpus node a: " in " ".join(failed.output.split())


@pytest.mark.usefixtures("nodes")
def test_a_selector_that_chooses_no_node_changes_nothing(server: ApiServer, tmp_path: Path) -> None:
    done = run(server, tmp_path, "apply", "--nodes", "team=gpus")
    assert isinstance(done.exception, InputError)
    assert done.exception.what == "no node of the cluster is chosen by 'team=gpus'"
    wrong = run(server, tmp_path, "apply", "--nodes", "team=\x1b[31mgpus")
    assert isinstance(wrong.exception, InputError)
    assert wrong.exception.what.startswith("--nodes: 'team=\\x1b[31mgpus' is no label selector")
    assert mutating(server) == []


# ---------------------------------------------------------------- several pools by label

POOLS: dict[str, Any] = {
    "sharing": {"strategy": "time-slicing", "replicas": 2},
    "kubernetes": {
        "taint": True,
        "pools": {
            "sliced": {"nodes": "team=gpu"},
            "mps": {"nodes": "team in (web, db)", "sharing": {"strategy": "mps", "replicas": 4}},
        },
    },
}


@pytest.mark.usefixtures("nodes")
def test_several_pools_by_label_are_applied_without_an_inventory(server: ApiServer, tmp_path: Path) -> None:
    assert run(server, tmp_path, "apply", "--no-wait", spec=POOLS).return_value == Exit.OK
    sliced, mps = ("sliced", True), ("mps", True)
    assert marks(server) == {"a": sliced, "b": sliced, "c": mps, "d": NONE}
    config = server.get("ConfigMap", "device-plugin-config", "gpunode")
    assert config is not None
    assert {name: "replicas: 2" in text for name, text in config["data"].items()} == {"sliced": True, "mps": False}
    server.edit("Node", "b", "", lambda item: item["metadata"]["labels"].update(team="db"))
    server.edit("Node", "c", "", lambda item: item["metadata"]["labels"].pop("team"))
    assert run(server, tmp_path, "apply", "--no-wait", spec=POOLS).return_value == Exit.OK
    assert marks(server) == {"a": sliced, "b": mps, "c": NONE, "d": NONE}
    assert "nothing to do" in run(server, tmp_path, "apply", "--no-wait", spec=POOLS).stdout


def test_pools_by_label_are_judged_one_by_one(server: ApiServer, tmp_path: Path) -> None:
    spec = {"kubernetes": {"pools": {"a": {"nodes": "team=gpu"}, "b": {"nodes": "team=web"}, "c": {"nodes": "x=y"}}}}
    for name, team in (("n1", "gpu"), ("n2", "web"), ("n3", "")):
        server.put(node(name, labels={"team": team}, allocatable={"nvidia.com/gpu": "4"}))
    run(server, tmp_path, "apply", "--no-wait", spec=spec)
    server.edit("Node", "n1", "", lambda item: item["status"].update(allocatable={"nvidia.com/gpu": "0"}))
    done = run(server, tmp_path, "verify", "--timeout", "1", "--format", "json", spec=spec)
    ((cluster),) = json.loads(done.stdout)["hosts"]
    found = {(one["id"], one["status"]): one["message"] for one in cluster["checks"]}
    lacks = "node n1: it offers no GPU, and should offer at least 1 nvidia.com/gpu (pool a)"
    assert found["kube.gpus", "failed"].startswith(lacks)
    assert found["kube.pool", "not-proven"] == "pool c: no node of the cluster is chosen by 'x=y'"


@pytest.mark.usefixtures("nodes")
def test_a_chosen_node_that_left_the_cluster_is_noted_until_the_next_apply(server: ApiServer, tmp_path: Path) -> None:
    """Renamed: the selector chooses one node less, and no object of the cluster tells of it."""
    spec = {"kubernetes": {"pools": {"p": {"nodes": "team"}}}}
    left = "node b: it was in a pool when gpunode kube apply last ran, and has left the cluster"

    def noted() -> list[str]:
        done = run(server, tmp_path, "verify", "--timeout", "1", "--format", "json", spec=spec)
        ((cluster),) = json.loads(done.stdout)["hosts"]
        return [one["message"] for one in cluster["checks"] if one["status"] == "not-proven"]

    run(server, tmp_path, "apply", "--no-wait", spec=spec)
    assert noted() == []
    server.gone(("v1", "nodes", "", "b"))
    server.put(node("b9", allocatable={"nvidia.com/gpu": "4"}))
    assert noted() == [left]
    again = run(server, tmp_path, "apply", "--no-wait", spec=spec)
    assert "note: node b: it was in a pool, and has left the cluster" in again.stderr
    assert noted() == []


@pytest.mark.usefixtures("nodes")
def test_status_names_the_nodes_of_pools_that_offer_something_else(server: ApiServer, tmp_path: Path) -> None:
    server.edit("Node", "c", "", lambda item: item["status"].update(allocatable={"nvidia.com/gpu": "3"}))
    done = run(server, tmp_path, "status", spec=POOLS)
    assert done.return_value == Exit.OK
    text = "node c: it offers 3 nvidia.com/gpu, and should offer at least 4 nvidia.com/gpu (pool mps)"
    assert done.stdout.endswith(f"Not ready:\n  {text}: DaemonSet gpunode/nvidia-device-plugin-mps is gone\n")
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(yaml.safe_dump({"all": {"hosts": {"c": {}, "d": {}}}}))
    by_host = run(server, tmp_path, "status", "-i", str(hosts), "d", spec={"sharing": {"strategy": "gpushare"}})
    assert "node d: it offers 4 nvidia.com/gpu, and should offer at least 1 aliyun" in by_host.stdout
    assert "node c" not in by_host.stdout


@pytest.mark.usefixtures("nodes")
def test_a_host_offers_as_many_gpus_as_its_last_good_run_found(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    gpus = [PciDevice(slot=f"0000:{n:02x}:00.0", id="10de:2330", class_code="0302", driver="nvidia") for n in range(8)]
    facts = NodeFacts(gpus=(*gpus[:6], *(replace(gpu, driver="vfio-pci") for gpu in gpus[6:])))
    journal = Runs()
    journal.keep({"key": facts})
    row = HostRow(run="run", host="d", pool="p", wave=1, plan="plan", state="done", found="key")
    journal.begin("run", "provision", {}, "here", [row])
    journal.close()
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(yaml.safe_dump({"all": {"hosts": {"c": {}, "d": {}}}}))
    done = run(server, tmp_path, "status", "-i", str(hosts), spec={"kubernetes": {}})
    assert "node d: it offers 4 nvidia.com/gpu, and should offer 6 nvidia" in done.stdout
    assert "node c" not in done.stdout


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("verb", ["apply", "verify"])
def test_a_node_of_two_pools_is_refused_with_its_name(server: ApiServer, tmp_path: Path, verb: str) -> None:
    pools = {"all": {"nodes": "team"}, "gpu": {"nodes": "team!=web"}}
    done = run(server, tmp_path, verb, spec={"kubernetes": {"pools": pools}})
    assert isinstance(done.exception, RefusedError)
    both = "is in the pools all (team) and gpu (team!=web)"
    assert done.exception.what == f"node a {both}; node b {both}"
    assert mutating(server) == []


@pytest.mark.usefixtures("nodes")
def test_pools_of_an_inventory_and_by_label_live_together(server: ApiServer, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(yaml.safe_dump({"all": {"hosts": {"d": {"gpunode_spec": {"sharing": {"replicas": 8}}}}}}))
    with_hosts = ("-i", str(hosts), "--no-wait")
    assert run(server, tmp_path, "apply", *with_hosts, spec=POOLS).return_value == Exit.OK
    found = {name: pool for name, (pool, _) in marks(server).items()}
    assert found == {"a": "sliced", "b": "sliced", "c": "mps", "d": "default"}
    assert "replicas: 2" in (server.get("ConfigMap", "device-plugin-config", "gpunode") or {})["data"]["sliced"]
    hosts.write_text(yaml.safe_dump({"all": {"hosts": {"a": {}}}}))
    both = run(server, tmp_path, "apply", *with_hosts, spec=POOLS).exception
    assert isinstance(both, RefusedError)
    assert both.what == "node a is in the pools default (by the inventory) and sliced (team=gpu)"
    hosts.write_text(yaml.safe_dump({"all": {"hosts": {"d": {"gpunode_spec": {"kubernetes": {"pool": "mps"}}}}}}))
    same = run(server, tmp_path, "apply", *with_hosts, spec=POOLS).exception
    assert isinstance(same, RefusedError)
    assert same.what == "the pool mps has hosts of the inventory (d) and a label selector"


@pytest.mark.usefixtures("nodes")
def test_nodes_and_pools_are_two_answers_to_one_question(server: ApiServer, tmp_path: Path) -> None:
    done = run(server, tmp_path, "apply", "--nodes", "team=gpu", spec=POOLS)
    assert isinstance(done.exception, InputError)
    assert "gpunode.yml has kubernetes.pools (sliced, mps)" in done.exception.what


@over(["", "a=", "a b", "=x", "a in b", "a in ()x", "a,,b", "a=b=c", "(a)", "a in (b", "-x", "a=-"], name=repr)
def test_what_is_no_selector_is_named_by_its_key(text: str) -> None:
    if text == "a=":
        rendered({"kubernetes": {"pools": {"p": {"nodes": text}}}})
        return
    with pytest.raises(InputError, match=r"kubernetes\.pools\.p\.nodes: .* is no label selector"):
        rendered({"kubernetes": {"pools": {"p": {"nodes": text}}}})


# as kubectl get nodes -l answers, on nodes a: {x: 1, y: 2}, b: {x: 3}, c: {}
CHOSEN: list[tuple[str, str]] = [
    ("x", "ab"), ("!x", "c"), ("x=1", "a"), ("x==1", "a"), ("x != 1", "bc"), ("x in (1, 3)", "ab"),
    ("x in (1),y", "a"), ("x notin (1,2)", "bc"), ("y=2,x=1", "a"), ("x=", ""), ("! y , x", "b"), ("y in (,2)", "a"),
]  # fmt: skip


@over(CHOSEN, name=lambda row: row[0])
def test_a_selector_chooses_as_kubectl_does(text: str, names: str) -> None:
    nodes = [node("a", labels={"x": "1", "y": "2"}), node("b", labels={"x": "3"}), node("c")]
    assert "".join(pool_nodes(Pool(name="p", sharing=SharingSpec(), selector=text), nodes)) == names


def test_a_folder_marks_nodes_by_their_labels() -> None:
    what = rendered(POOLS)
    assert files_of(what)["nodes.sh"].splitlines()[-4:] == [
        "kubectl label nodes -l team=gpu nvidia.com/device-plugin.config=sliced --overwrite",
        "kubectl taint nodes -l team=gpu nvidia.com/gpu=present:NoSchedule --overwrite",
        "kubectl label nodes -l 'team in (web, db)' nvidia.com/device-plugin.config=mps --overwrite",
        "kubectl taint nodes -l 'team in (web, db)' nvidia.com/gpu=present:NoSchedule --overwrite",
    ]


@over([("apply", ("-i", "a,")), ("verify", ("--limit", "a"))], name=str)
def test_a_selector_and_an_inventory_are_two_answers_to_one_question(verb: str, more: tuple[str, ...]) -> None:
    done = CliRunner().invoke(kube, [verb, "--nodes", "team=gpu", *more])
    assert done.exit_code == 2
    assert "leave out --inventory and --limit" in done.output
