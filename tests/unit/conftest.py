"""Which unit tests `make check` leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_smi import RealSmi, make

# They run shells, daemons, browsers and whole commands, or hold all we make against the schema of every server.
SLOW = {
    f"test_{name}"
    for name in "awx bundle_create bundle_push bundle_verify cdi_sh cli_detect cli_kube_scheduler cli_runtime cluster "
    "collection commit commit_await commit_faults commit_kill commit_restore commit_service connect docker_any "
    "fleet_simulated hostile_results init kube_apply kube_render kube_verify probe_script real_smi release runfile_sh "
    "role_tags runner scheduler_extender shells wheel".split()
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker("slow")


@pytest.fixture
def real_smi(tmp_path: Path) -> RealSmi:
    """NVIDIA's real nvidia-smi of a branch, on GPUs that the test names: see real_smi.py."""
    return make(tmp_path)
