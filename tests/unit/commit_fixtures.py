"""Nodes for tests of node/commit/commit.sh."""

from __future__ import annotations

from pathlib import Path

import pytest
from commit_node import SHELLS, Node


@pytest.fixture(params=SHELLS)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(tmp_path / "a root with spaces", request.param)


@pytest.fixture
def dash(tmp_path: Path) -> Node:
    return Node(tmp_path / "node", "dash")
