"""Fixtures of the tests on real engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from daemon_node import DISTROS, DaemonNode

from gpunode.lab import Lab

# Left to `make test-all`: what takes long.
EXTENDED = {
    f"test_{name}"
    for name in "air_gap driver_settings fabric_node families fleet_faults fleet_kill golden_image hostile_node "
    "aarch64 how_to metrics migration package_faults runfile selftest sharing shards "
    "ubuntu unattended_upgrades uninstall".split()
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        module = getattr(getattr(item, "module", None), "__name__", "").rpartition(".")[2]
        if module in EXTENDED or module.startswith("test_kubernetes"):
            item.add_marker("extended")


@pytest.fixture(scope="module", params=DISTROS)
def daemons(request: pytest.FixtureRequest, lab_up: Callable[..., Lab]) -> Iterator[DaemonNode]:
    """A node of each distribution in turn, with containerd, Docker and the container toolkit; one at a time."""
    stem = request.module.__name__.removeprefix("test_").replace("_", "-")
    name = f"t-{stem}-{request.param.partition(':')[2].replace('+', '-')}"
    with lab_up(1, name=name, distro=request.param, gpus=("h100", "h100")) as lab:
        node = DaemonNode(lab)
        node.install_toolkit()
        yield node
