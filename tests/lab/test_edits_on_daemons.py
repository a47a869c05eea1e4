"""Edits and transactions on running daemons that have their stock files: there, past broken files, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from daemon_node import DaemonNode
from edit_cases import edit_request

from gpunode.core.edits import Activation, RuntimeRequest, activation, edit_runtime
from gpunode.core.edits.commit import FileChange, commit_request
from gpunode.core.model import Edit, NodeFacts, RuntimeName

pytestmark = pytest.mark.lab

EFFECTIVE = {
    "containerd": "containerd config dump 2>/dev/null | sed -n 's/.*default_runtime_name = //p' | tr -d '\\047\"'",
    "docker": "docker info --format '{{.DefaultRuntime}}'",
}
# what the daemon's own check finds; what only a start finds is in test_runtime_rollback.py
BROKEN = {"containerd": b"version = 2\nfoo = [\n", "docker": b"{\n"}


@pytest.mark.parametrize("engine", ["containerd", "docker"])
def test_an_engine_is_edited_survives_broken_configs_and_goes_back(daemons: DaemonNode, engine: RuntimeName) -> None:
    facts = daemons.facts()
    request = RuntimeRequest(runtime=engine)
    edit = edit_runtime(facts, request)
    assert daemons.commit(edit_request(facts, request, edit, check=True)).status == "changed"
    assert daemons.sh(EFFECTIVE[engine]).strip() in ("runc", "")

    assert daemons.commit(edit_request(facts, request, edit)).status == "changed"
    facts = daemons.facts()
    assert daemons.sh(EFFECTIVE[engine]).strip() == "nvidia"
    again = edit_runtime(facts, request)
    assert again == Edit(reasons=again.reasons, files=again.files)

    after = activation(facts, request, Edit())
    refuses(daemons, facts, after, BROKEN[engine])
    refuses(daemons, facts, dataclasses.replace(after, validate=()), BROKEN[engine])

    back = RuntimeRequest(runtime=engine, default_runtime="runc")
    assert daemons.commit(edit_request(facts, back, edit_runtime(facts, back))).status == "changed"
    assert daemons.sh(EFFECTIVE[engine]).strip() == "runc"


def refuses(daemons: DaemonNode, facts: NodeFacts, after: Activation, broken: bytes) -> None:
    expect = facts.files[after.config].sha256
    outcome = daemons.commit(commit_request([FileChange(path=after.config, data=broken, expect=expect)], after=after))
    assert outcome.status == "rolled_back"
    assert outcome.fix
    now = daemons.facts()
    assert now.files[after.config] == facts.files[after.config]
    assert daemons.sh(f"systemctl is-active {after.unit}") == "active\n"
    assert now.unfinished == ()


def test_a_full_and_a_read_only_file_system_leave_every_file_as_it_was(daemons: DaemonNode) -> None:
    daemons.sh(
        "mkdir -p /etc/full /etc/ro; mount -t tmpfs -o size=8k tmpfs /etc/full; echo old | tee /etc/full/a >/etc/ro/a;"
        "mount --bind /etc/ro /etc/ro; mount -o remount,ro,bind /etc/ro"
    )
    for folder, printed in (("full", "No space left on device"), ("ro", "Read-only file system")):
        first = FileChange(path="/etc/first", data=b"x")
        outcome = daemons.commit(commit_request([first, FileChange(path=f"/etc/{folder}/a", data=b"y" * 20_000)]))
        assert outcome.status == "rolled_back"
        assert printed in outcome.message
        assert (
            daemons.sh(f"cat /etc/{folder}/a; ls -A /etc/{folder} /etc/first 2>/dev/null; true")
            == f"old\n/etc/{folder}:\na\n"
        )
    daemons.sh("umount /etc/full /etc/ro")


def test_what_dockerd_says_against_its_file_is_a_problem_before_anything_is_touched(lab_up: Any) -> None:
    """Debian 13's dockerd has --validate, which Debian 12's lacks; it leaves nothing behind."""
    node = DaemonNode(lab_up(1, name="t-dockerd", distro="debian:13", gpus=("h100",), engines=("docker",)))
    node.put("/etc/docker", {"daemon.json": b'{"debug": true, "defaut-runtime": "nvidia"}\n'})
    node.sh("touch /tmp/before")
    edit = edit_runtime(node.facts(), RuntimeRequest(runtime="docker"))
    assert edit.changes == {} and edit.problems[0].what == (
        "dockerd does not start with /etc/docker/daemon.json: "
        "the following directives don't match any configuration option: defaut-runtime"
    )
    assert node.sh("find /etc /var /run -xdev -newer /tmp/before -path '*docker*'") == ""
    node.put("/etc/docker", {"daemon.json": b'{"debug": true}\n'})
    assert edit_runtime(node.facts(), RuntimeRequest(runtime="docker")).changes
