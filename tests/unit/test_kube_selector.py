"""--nodes: the cluster's own nodes in place of an inventory, by a label selector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer
from click.testing import CliRunner, Result
from kube_cluster import mutating, node
from rows import over

from gpunode.cli.kube import kube
from gpunode.core.errors import Exit, InputError

pytest_plugins = ("kube_fixtures",)

SPEC = {"kubernetes": {"taint": True}, "sharing": {"strategy": "mps", "replicas": 4}}
POOL = "nvidia.com/device-plugin.config"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def run(server: ApiServer, tmp_path: Path, verb: str, *args: str, spec: Any = None) -> Result:
    (tmp_path / "gpunode.yml").write_text(yaml.safe_dump(SPEC if spec is None else spec))
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
    assert run(server, tmp_path, "remove").return_value == Exit.OK
    assert set(marks(server).values()) == {NONE}


@pytest.mark.usefixtures("nodes")
def test_only_the_chosen_nodes_have_to_offer_gpus(server: ApiServer, tmp_path: Path) -> None:
    run(server, tmp_path, "apply", "--nodes", "team=gpu", "--no-wait", spec={})
    lost = {"nvidia.com/gpu": "0"}
    server.edit("Node", "c", "", lambda item: item["status"].update(allocatable=lost))
    chosen = ("--no-smoke", "--nodes", "team=gpu")
    assert run(server, tmp_path, "verify", *chosen, spec={}).return_value == Exit.OK
    server.edit("Node", "a", "", lambda item: item["status"].update(allocatable=lost))
    failed = run(server, tmp_path, "verify", *chosen, spec={})
    assert failed.return_value == Exit.FAILED
    assert "a offers nothing of the kind gpu (none)" in " ".join(failed.output.split())


@pytest.mark.usefixtures("nodes")
def test_a_selector_that_chooses_no_node_changes_nothing(server: ApiServer, tmp_path: Path) -> None:
    done = run(server, tmp_path, "apply", "--nodes", "team=\x1b[31mgpus")
    assert isinstance(done.exception, InputError)
    assert done.exception.what == "no node of the cluster is chosen by 'team=\\x1b[31mgpus'"
    assert mutating(server) == []


@over([("apply", ("-i", "a,")), ("verify", ("--limit", "a")), ("watch", ("-i", "a,", "--once"))], name=str)
def test_a_selector_and_an_inventory_are_two_answers_to_one_question(verb: str, more: tuple[str, ...]) -> None:
    done = CliRunner().invoke(kube, [verb, "--nodes", "team=gpu", *more])
    assert done.exit_code == 2
    assert "leave out --inventory and --limit" in done.output
