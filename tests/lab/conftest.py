"""Fixtures of the tests on real engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from daemon_node import DISTROS, DaemonNode

from gpunode.lab import Lab


@pytest.fixture(scope="module", params=DISTROS)
def daemons(request: pytest.FixtureRequest, lab_up: Callable[..., Lab]) -> Iterator[DaemonNode]:
    """A node of each distribution in turn, with containerd, Docker and the container toolkit; one at a time."""
    stem = request.module.__name__.removeprefix("test_").replace("_", "-")
    name = f"t-{stem}-{request.param.partition(':')[2].replace('+', '-')}"
    with lab_up(1, name=name, distro=request.param, gpus=("h100", "h100")) as lab:
        node = DaemonNode(lab)
        node.install_toolkit()
        yield node
