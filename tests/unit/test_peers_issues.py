"""States of nodes in public reports about roles that do the same work, and what gpunode does there."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kubespray import RELEASES, snippet, written
from rows import over

from gpunode.cli.main import cli
from gpunode.core.edits import RuntimeRequest, configure_runtime
from gpunode.core.solve import SolveRequest, parse_driver, solve
from gpunode.edge.load import load_knowledge

PROBES = Path(__file__).parents[1] / "cases" / "probes"
DAEMON, CONFIG = "/etc/docker/daemon.json", "/etc/containerd/config.toml"
# report → daemon.json there, and arguments of dockerd's unit
DOCKER: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "github NVIDIA/ansible-role-nvidia-docker issue 9: the file is replaced by the role's": (
        {"log-driver": "json-file", "log-opts": {"max-size": "10m"}},
        (),
    ),
    "github geerlingguy/ansible-role-docker issue 84: the runtime as a role's option": (
        {"default-runtime": "nvidia", "default-shm-size": "8G", "runtimes": {"nvidia": {"path": "nvidia-x"}}},
        (),
    ),
    "github NVIDIA/nvidia-docker issue 490: hosts are lost": (
        {"hosts": ["tcp://127.0.0.1:2375", "unix:///var/run/docker.sock"]},
        (),
    ),
    "github NVIDIA/nvidia-docker issue 504: storage options are lost": (
        {"storage-driver": "devicemapper", "storage-opts": ["dm.thinpooldev=/dev/mapper/docker-thinpool"]},
        (),
    ),
    "github NVIDIA/deepops pull 351: DGX OS gives options by the unit": (
        {},
        ("-H", "fd://", "-s", "overlay2", "--default-shm-size=1G"),
    ),
}


@over(DOCKER.items())
def test_docker_keeps_what_its_file_says(_report: str, state: tuple[dict[str, Any], tuple[str, ...]]) -> None:
    before, flags = state
    files = {DAEMON: json.dumps(before, indent=4).encode()}
    edit = configure_runtime(files, RuntimeRequest(runtime="docker", version="20.10.24", flags=flags))
    after = json.loads(edit.changes[DAEMON] or b"")
    assert not edit.problems and after == {**before, "default-runtime": "nvidia", "runtimes": after["runtimes"]}
    assert after["runtimes"]["nvidia"]["path"] == "/usr/bin/nvidia-container-runtime"


@pytest.mark.parametrize("release", RELEASES)
def test_what_kubespray_overwrites_comes_back_and_its_own_option_is_left_alone(release: str) -> None:
    """github kubernetes-sigs/kubespray issues 12277 and 9195."""
    request = RuntimeRequest(runtime="containerd", version=RELEASES[release][1], default_runtime="keep")
    edit = configure_runtime({CONFIG: written(release, [])}, request)
    assert not edit.problems and any(b"nvidia-container-runtime" in (data or b"") for data in edit.changes.values())
    assert configure_runtime({CONFIG: written(release, snippet())}, request).changes == {}


def test_a_file_of_format_3_stays_one_where_containerd_knows_4() -> None:
    """github NVIDIA/cloud-native-stack issue 142: kubespray 2.31 writes 3 for containerd 2.3.1."""
    request = RuntimeRequest(runtime="containerd", version="2.3.1", in_place=True)
    after = configure_runtime({CONFIG: written("2.31.0", [])}, request).changes[CONFIG]
    data = tomllib.loads((after or b"").decode())
    assert data["version"] == 3
    assert data["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["default_runtime_name"] == "nvidia"


def test_a_runtime_without_the_kubelets_cgroup_driver_gets_it() -> None:
    """github NVIDIA/nvidia-docker issue 1788: pods crash after a restart, as the file of nvidia-ctk lacks it."""
    text = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""
    request = RuntimeRequest(runtime="containerd", version="1.7.24", cgroup_driver="systemd", in_place=True)
    after = configure_runtime({CONFIG: text.encode()}, request).changes[CONFIG]
    plugin = tomllib.loads((after or b"").decode())["plugins"]["io.containerd.grpc.v1.cri"]
    assert plugin["containerd"]["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True


# report → GPU, distribution and branch there, and what the refusal says
DRIVERS = {
    "github NVIDIA/ansible-role-nvidia-driver issue 60: no cuda-drivers-510": (
        ("10de:20b5", "ubuntu:24.04", "510"),
        "driver branch 510 is not in NVIDIA's repository for ubuntu:24.04",
    ),
    "github NVIDIA/ansible-role-nvidia-driver issue 47: branch 340": (
        ("10de:20b5", "ubuntu:20.04", "340"),
        "driver branch 340",
    ),
    "github NVIDIA/ansible-role-nvidia-driver pull 88: cuda-drivers-515 on Ubuntu 24.04": (
        ("10de:2330", "ubuntu:24.04", "515"),
        "driver branch 515",
    ),
}


@over(DRIVERS.items())
def test_a_branch_that_a_repository_lacks_is_refused_before_the_package_manager_fails(
    _report: str, state: tuple[tuple[str, str, str], str]
) -> None:
    (gpu, distro, branch), says = state
    request = SolveRequest(gpus=(gpu,), distro=distro, driver=parse_driver(branch))
    problems = solve(request, load_knowledge()).problems
    assert any(says in one.what for one in problems) and all(one.fix for one in problems)


def test_a_driver_that_is_loaded_in_another_version_is_named_with_where_it_is_from() -> None:
    """Like github illinois-scicomp/machine-shop-maintenance issue 70, Driver/library version mismatch; by a runfile."""
    probe = PROBES / "debian12-driver-mismatch/probe.txt"
    done = CliRunner().invoke(cli, ["plan", "--probe", str(probe)], standalone_mode=False)
    assert done.return_value == 5 and "driver 535.247.01 was installed by NVIDIA's runfile" in done.output
