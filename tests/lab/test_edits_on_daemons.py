"""Edits and transactions on running daemons: stock containerd and docker of Debian 12 and 13."""

from __future__ import annotations

import dataclasses

import pytest

from gpunode.core.edits import Activation, activation, edit_runtime
from gpunode.core.facts import parse_probe
from gpunode.core.model import Edit, NodeFacts, Outcome, RuntimeName, RuntimeWish
from gpunode.core.remote import parse_outcome, program
from gpunode.core.requests import FileChange, commit_request, edit_request
from gpunode.node import script

pytestmark = pytest.mark.lab

EFFECTIVE = {
    "containerd": "containerd config dump 2>/dev/null | sed -n 's/.*default_runtime_name = //p' | tr -d '\"'",
    "docker": "docker info --format '{{.DefaultRuntime}}'",
}
BROKEN = {
    "containerd": (b"version = 2\nfoo = [\n", b'version = 2\nroot = "/proc/nope"\n'),
    "docker": (b"{\n", b'{"data-root": "/proc/nope"}\n', b'{"nonsense": 1}\n'),
}


class Node:
    def __init__(self, lab, name):
        self.lab, self.name = lab, name

    def sh(self, text: str) -> str:
        return self.lab.run(self.name, text).stdout

    def send(self, name: str, request: dict[str, bytes]):
        return self.lab.run(self.name, program(script(name), request))

    def facts(self) -> NodeFacts:
        return parse_probe(self.send("probe.sh", {}).stdout)

    def commit(self, request: dict[str, bytes]) -> Outcome:
        done = self.send("commit.sh", request)
        return parse_outcome(done.stdout, done.returncode)


@pytest.fixture(scope="module", params=["debian:12", "debian:13"])
def node(request, lab_up):
    stem = f"test-edits-{request.param.partition(':')[2]}"
    return Node(lab_up(1, name=stem, distro=request.param, gpus=()), f"{stem}-1")


@pytest.mark.parametrize("engine", ["containerd", "docker"])
def test_an_engine_is_edited_survives_broken_configs_and_goes_back(node: Node, engine: RuntimeName) -> None:
    facts = node.facts()
    wish = RuntimeWish(runtime=engine)
    edit = edit_runtime(facts, wish)
    assert node.commit(edit_request(facts, wish, edit, check=True)).status == "changed"
    assert node.sh(EFFECTIVE[engine]).strip() in ("runc", "")

    assert node.commit(edit_request(facts, wish, edit)).status == "changed"
    facts = node.facts()
    assert node.sh(EFFECTIVE[engine]).strip() == "nvidia"
    assert edit_runtime(facts, wish) == Edit(reasons=edit_runtime(facts, wish).reasons)

    after = activation(facts, wish, Edit())
    for broken in BROKEN[engine]:
        refuses(node, facts, after, broken)
    refuses(node, facts, dataclasses.replace(after, validate=()), BROKEN[engine][0])

    back = RuntimeWish(runtime=engine, default_runtime="runc")
    assert node.commit(edit_request(facts, back, edit_runtime(facts, back))).status == "changed"
    assert node.sh(EFFECTIVE[engine]).strip() == "runc"


def refuses(node: Node, facts: NodeFacts, after: Activation, broken: bytes) -> None:
    expect = facts.files[after.config].sha256
    outcome = node.commit(commit_request([FileChange(path=after.config, data=broken, expect=expect)], after=after))
    assert outcome.status == "rolled_back"
    assert outcome.fix
    now = node.facts()
    assert now.files[after.config] == facts.files[after.config]
    assert node.sh(f"systemctl is-active {after.unit}") == "active\n"
    assert now.unfinished == ()


def test_a_full_and_a_read_only_file_system_leave_every_file_as_it_was(node: Node) -> None:
    node.sh(
        "mkdir -p /etc/full /etc/ro; mount -t tmpfs -o size=8k tmpfs /etc/full; echo old | tee /etc/full/a >/etc/ro/a;"
        "mount --bind /etc/ro /etc/ro; mount -o remount,ro,bind /etc/ro"
    )
    for folder, said in (("full", "No space left on device"), ("ro", "Read-only file system")):
        first = FileChange(path="/etc/first", data=b"x")
        outcome = node.commit(commit_request([first, FileChange(path=f"/etc/{folder}/a", data=b"y" * 20_000)]))
        assert outcome.status == "rolled_back"
        assert said in outcome.message
        assert (
            node.sh(f"cat /etc/{folder}/a; ls -A /etc/{folder} /etc/first 2>/dev/null") == f"old\n/etc/{folder}:\na\n"
        )
    node.sh("umount /etc/full /etc/ro")
