"""Fixtures: the API of api_server.py, and the real client connected to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import ApiServer, workloads_become_ready
from kube_cluster import quick

from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API whose workloads become ready at once; the test fails on requests that nobody prepared."""
    found = ApiServer()
    found.controllers.append(workloads_become_ready)
    yield found
    found.close()
    assert found.unexpected == []


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    return quick(connect(str(server.kubeconfig(tmp_path / "kubeconfig")), timeout=2))
