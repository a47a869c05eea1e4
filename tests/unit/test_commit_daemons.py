"""node/commit/commit.sh has real containerds check what it writes.

GPUNODE_CONTAINERDS names containerd binaries (a list like PATH); without it there is nothing to run here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from commit_node import Node

from gpunode.core.edits import Activation, RuntimeRequest, configure_runtime, runtime_target
from gpunode.core.edits.commit import target_request
from gpunode.core.model import ConfigFile, Outcome

BINARIES = [Path(name) for name in os.environ.get("GPUNODE_CONTAINERDS", "").split(os.pathsep) if name]
pytestmark = pytest.mark.skipif(not BINARIES, reason="GPUNODE_CONTAINERDS names no containerd")

ROOT = """version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example/pause:1"
[plugins."io.containerd.grpc.v1.cri".registry.configs."registry.example".auth]
  password = "hunter2"
"""


def commit(node: Node, binary: Path, more: Mapping[bytes, bytes]) -> Outcome:
    """Configure nvidia, with the edit's bytes changed as `more` says."""
    request = RuntimeRequest(
        runtime="containerd",
        config=str(node.config),
        drop_in=str(node.root / "etc/conf.d/99-nvidia.toml"),
        version=binary.name.rpartition("-")[2],
    )
    files = {str(node.config): node.config.read_bytes()}
    edit = configure_runtime(files, request)
    changes = dict(edit.changes)
    for old, new in more.items():
        texts = {**files, **changes}
        path = next(path for path in (str(node.config), *texts) if old in (texts[path] or b""))  # 2.x: the drop-in
        changes[path] = (texts[path] or b"").replace(old, new)
    after = Activation(
        unit="",
        verb="",
        config=str(node.config),
        validate=(str(binary), "-c", "@FILE@", "config", "dump"),
        handlers=("nvidia",),
    )
    seen = {
        path: ConfigFile(path=path, sha256=hashlib.sha256(data).hexdigest(), data=data) for path, data in files.items()
    }
    made = type(edit)(changes=changes, undo=edit.undo, meant=edit.meant)
    return node.ask(target_request(runtime_target(request), made, seen, after))


@pytest.fixture(params=BINARIES, ids=lambda path: path.name)
def binary(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path / "node")
    found.config.write_text(ROOT)
    return found


def test_an_edit_of_gpunode_is_accepted(node: Node, binary: Path) -> None:
    outcome = commit(node, binary, {})
    assert (outcome.status, outcome.notes) == ("changed", ())


def test_a_runtime_that_the_daemon_does_not_see_is_named(node: Node, binary: Path) -> None:
    outcome = commit(node, binary, {b"runtimes.nvidia": b"runtimes.nvidia2"})
    assert outcome.status == "rolled_back"
    assert outcome.message.startswith("the daemon would not see the runtime nvidia:")
    assert "hunter" not in f"{outcome}{(node.state / 'journal.jsonl').read_text()}"
    assert node.config.read_text() == ROOT


def test_a_file_that_the_daemon_cannot_read_is_refused_in_its_own_words(node: Node, binary: Path) -> None:
    outcome = commit(node, binary, {b"version = 2": b"version = ["})
    assert outcome.status == "rolled_back"
    assert outcome.message.startswith("the new configuration is not valid: ")
    assert node.config.read_text() == ROOT
