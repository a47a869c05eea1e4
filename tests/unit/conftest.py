"""Which unit tests `make check` leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_smi import RealSmi, make

# They run shells, servers, browsers, programs of others and whole commands, take the time, are of a maintainer's
# tool, or hold all that gpunode makes against the schema of every server.
SLOW = {
    f"test_{name}"
    for name in "accept_sh activate_sh apt_marks awx bundle_agree bundle_create bundle_extras bundle_push "
    "bundle_verify cdi_sh cli_detect cli_knowledge cli_kube_scheduler cli_runtime cluster cluster_nodes "
    "collection commit commit_await commit_faults commit_kill commit_restore commit_service connect "
    "containers default_inventory docker_any drain fleet_simulated generated_values gpu_containers "
    "health_real hostile_node_programs hostile_results init isolate journal_damage journal_sh "
    "kube_apply kube_hostile kube_judge kube_mig kube_refusals kube_render kube_selector kube_verify "
    "kubectl lease linear lookup mig_sh mps_real nvml package_managers packages_repository packages_sh pause_sh "
    "probe_dkms probe_script putback_sh pyz questions_real real_smi refresh release remote_sweep "
    "role_tags role_variables runfile_sh runner saved_plan scheduler_extender share shells "
    "side_effects_sh smi_stub smoke_image smoke_sh state state_mounts supervise support sysctl "
    "two_controllers wheel".split()
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Not even imported where nothing of them is run: that takes as long as many a test."""
    return True if collection_path.stem in SLOW and "not slow" in config.option.markexpr else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker("slow")


@pytest.fixture
def real_smi(tmp_path: Path) -> RealSmi:
    """NVIDIA's real nvidia-smi of a branch, on GPUs that the test names: see real_smi.py."""
    return make(tmp_path)
