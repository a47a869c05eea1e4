"""Whether a first plan resolves is asked of the node's package manager, repositories that the plan sets up included."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from test_provision import Node

pytestmark = pytest.mark.lab

OTHERS = " ".join(f"! -path '/var/{path}/*'" for path in ("log", "lib/dnf", "lib/rpm", "lib/systemd", "lib/YaST2"))
FILES = f"find /etc /usr /var /tmp -xdev -type f -newer /root/before {OTHERS}"


SETS_UP = ["debian:12", "rocky:9", "sles:15"]  # repositories; Arch has all in its own
LISTS = "/var/lib/pacman/sync/extra.db"


@pytest.fixture(scope="module", params=[*SETS_UP, "arch"])
def node(
    request: pytest.FixtureRequest, lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> Node:
    """A node that has never been asked for a package: without lists, and without NVIDIA's repositories."""
    lab = lab_up(distro=request.param, engines=())
    made = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), {})
    made.sh("sleep 2; touch /root/before")
    return made


def unresolved(node: Node) -> list[str]:
    return [text for text in node.json("plan", exit=3)["warnings"] if "not resolved" in text]


@pytest.mark.timeout(600)
def test_what_the_plan_sets_up_itself_is_resolved_and_the_node_stays_as_it_is(node: Node) -> None:
    # on EL a package sets up EPEL first, which has dkms: of the driver nothing can be asked before
    asked_later = ["repository nvidia-cuda: set up by this plan"] if node.sh("command -v dnf || true") else []
    found = unresolved(node)
    assert len(found) == len(asked_later) and all(why in text for why, text in zip(asked_later, found, strict=True))
    assert node.sh(FILES) == ""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("node", SETS_UP, indirect=True)
def test_a_version_that_the_repository_lacks_is_refused_in_the_package_managers_words(node: Node) -> None:
    node.set({"toolkit": {"version": "1.99.0"}})
    [problem] = node.json("plan", "--no-check-repositories", exit=5)["problems"]
    assert "cannot install it: " in problem["what"] and "1.99.0" in problem["what"]
    assert node.sh(FILES) == ""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("node", SETS_UP, indirect=True)
def test_the_nearest_versions_are_named_of_what_the_node_refuses_and_of_nothing_else(node: Node) -> None:
    node.set({"toolkit": {"version": "1.99.0"}})
    problems = node.json("plan", exit=5)["problems"]
    assert problems and all("1.99.0" in one["what"] and "1.20." in one["fix"] for one in problems), problems
    assert node.sh(FILES) == ""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("node", SETS_UP, indirect=True)
def test_a_repository_that_cannot_be_read_is_named_with_the_reason(node: Node) -> None:
    sources = yaml.safe_load(node.lab.spec.read_text())["sources"]
    for source in sources.values():
        source["url"] = source["url"].replace("http://", "http://127.0.0.1:9/")
    node.set({"sources": sources})
    [text] = unresolved(node)
    assert "the node cannot read it: " in text


@pytest.mark.timeout(600)
@pytest.mark.parametrize("node", ["arch"], indirect=True)
def test_what_the_lists_of_pacman_lack_is_refused_in_its_words_and_without_lists_nothing_is_resolved(
    node: Node,
) -> None:
    # the lists have 595, a production branch, and not the newest one known
    assert not [text for text in node.json("plan", exit=3)["warnings"] if "branch" in text]
    node.sh(f"mkdir /root/db && cd /root/db && tar xf {LISTS} && rm -r nvidia-utils-* && tar czf {LISTS} *")
    [problem] = node.json("plan", exit=5)["problems"]
    assert "cannot install it: error: target not found: nvidia-utils" in problem["what"]
    node.sh(f"rm {LISTS}")
    [text] = unresolved(node)
    assert "the node has no lists of these packages yet" in text
