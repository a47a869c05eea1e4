"""node/accept/accept.sh with stubs of the tools, which print what recorded ones printed (tests/cases/accept)."""

from __future__ import annotations

import base64
import os
import subprocess
import time
from pathlib import Path

import pytest

from gpunode.core.remote import parse_outcome, program, values_of
from gpunode.node import script

CASES = Path(__file__).parents[1] / "cases/accept"
OUTPUT = (CASES / "nvbandwidth-0.2-8-rtx4090.case").read_text().partition("---\n")[2]
POD = "0a1b2c3d-1111-2222-3333-444455556666"
CHECKPOINT = (  # as kubelets write it
    '{"Data":{"PodDeviceEntries":[{"PodUID":"%s","ContainerName":"c","ResourceName":"%s","DeviceIDs":{"0":["GPU-1"]},'
    '"AllocResp":"CgA="}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-1"]}},"Checksum":123}'
)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "state").mkdir()
    stub(tmp_path, "nvidia-smi", 'case $1 in --query-gpu=*) echo "0, 60, 70, 5, 5, 16, 16, 0x0000000000000001" ;; esac')
    return tmp_path


def stub(node: Path, name: str, body: str) -> Path:
    path = node / "bin" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def command(node: Path, **more: str) -> tuple[str, dict[str, str]]:
    request = {"programs": "nvbandwidth", "arguments": "-t\na b", "environment": "NCCL_DEBUG=INFO", "seconds": "20",
               "sample": "index", "controller": "here-000000", "state": str(node / "state"), **more}  # fmt: skip
    text = program(
        script("accept.sh").replace("/usr/local/nvidia/bin", f"{node}/nvidia"),
        {name: f"{value}\n".encode() for name, value in request.items() if value},
    )
    environment = {
        "PATH": f"{node}/bin:/usr/bin:/bin",
        "TMPDIR": str(node),
        "KUBELET": str(node / "kubelet"),
        "PROC": str(node / "proc"),
    }
    return text, environment


def run(node: Path, **more: str) -> subprocess.CompletedProcess[str]:
    text, environment = command(node, **more)
    return subprocess.run(
        ["sh", "-s"], input=text, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_tool_gets_its_words_and_its_output_comes_back_whole(node: Path) -> None:
    stub(
        node,
        "nvbandwidth",
        f'cat <<"END"\n{OUTPUT}END\necho "<$1> <$2> $NCCL_DEBUG"; echo to stderr >&2; sleep 2; exit 7',
    )
    ran = run(node)
    assert parse_outcome(ran.stdout, ran.returncode).status == "unchanged"
    assert values_of(ran.stdout, "ended") == ["7"]
    [output] = values_of(ran.stdout, "output")
    assert base64.b64decode(output).decode() == f"{OUTPUT}<-t> <a b> INFO\nto stderr\n"
    assert set(values_of(ran.stdout, "sample")) == {"0, 60, 70, 5, 5, 16, 16, 0x0000000000000001"}
    assert sorted(path.name for path in node.iterdir()) == ["bin", "state"]  # nothing stays
    assert not list((node / "state").iterdir())


def test_a_tool_that_reads_files_beside_its_program_is_started_there(node: Path) -> None:
    (node / "burn").mkdir()
    stub(node, "../burn/gpu_burn", "cat compare.fatbin")
    (node / "burn/compare.fatbin").write_text("kernel")
    (node / "bin/gpu_burn").symlink_to("../burn/gpu_burn")
    for own, said in (("yes", b"kernel"), ("", b"cat: compare.fatbin: No such file or directory\n")):
        [output] = values_of(run(node, programs="gpu_burn", own_folder=own).stdout, "output")
        assert base64.b64decode(output) == said


def test_the_newest_of_several_paths_is_taken_and_a_folder_is_none(node: Path) -> None:
    for version in ("cuda12", "cuda13"):
        (node / "plugins" / version).mkdir(parents=True)
        path = node / "plugins" / version / "nvbandwidth"
        path.write_text(f"#!/bin/sh\necho {version}\n")
        path.chmod(0o755)
    (node / "plugins" / "cuda14" / "nvbandwidth").mkdir(parents=True)
    ran = run(node, programs=f"{node}/plugins/*/nvbandwidth")
    assert values_of(ran.stdout, "program") == [f"{node}/plugins/cuda13/nvbandwidth"]


def test_a_missing_tool_is_reported_as_missing(node: Path) -> None:
    ran = run(node, programs="no-such-tool")
    assert values_of(ran.stdout, "missing") == ["yes"]


def test_the_tool_of_an_image_is_run_where_the_node_has_none_and_nothing_is_fetched(node: Path) -> None:
    stub(node, "docker", 'case $1 in image) exit 0 ;; run) printf "%s|" "$@"; exit 0 ;; esac')
    ran = run(node, programs="all_reduce_perf", image="nvcr.io/nvidia/pytorch:25.10-py3")
    words = base64.b64decode(values_of(ran.stdout, "output")[0]).decode().split("|")
    assert "--pull=never" in words
    assert words[-5:-1] == ["all_reduce_perf", "nvcr.io/nvidia/pytorch:25.10-py3", "-t", "a b"]
    stub(node, "docker", "exit 1")  # the image is not on the node
    ran = run(node, programs="all_reduce_perf", image="a/b")
    assert values_of(ran.stdout, "missing") == ["yes"]


def refused(node: Path) -> str:
    stub(node, "nvbandwidth", f"touch {node}/ran")
    ran = run(node)
    outcome = parse_outcome(ran.stdout, ran.returncode)
    assert outcome.status == "refused", ran.stdout
    assert not (node / "ran").exists()
    return outcome.message


def test_never_beside_a_program_on_a_gpu(node: Path) -> None:
    smi = stub(node, "nvidia-smi", 'case $1 in --query-compute-apps=*) echo "4711, python3" ;; esac')
    assert refused(node).endswith("programs use its GPUs: 4711, python3")
    (node / "nvidia").mkdir()
    smi.rename(node / "nvidia/nvidia-smi")  # of a driver that an image brought: not on the PATH that sshd gives
    assert refused(node).endswith("programs use its GPUs: 4711, python3")


def runs(node: Path) -> None:
    """A pod that runs has a cgroup with processes; its entries in the kubelet's lists outlive it."""
    (node / "proc/4711").mkdir(parents=True)
    (node / "proc/4711/cgroup").write_text(f"0::/kubepods/besteffort/pod{POD}/1\n")


def test_never_beside_a_pod_that_has_gpus(node: Path) -> None:
    (node / "kubelet/device-plugins").mkdir(parents=True)
    runs(node)
    (node / "kubelet/device-plugins/kubelet_internal_checkpoint").write_text(CHECKPOINT % (POD, "nvidia.com/gpu"))
    assert f"a pod has GPUs on it ({POD})" in refused(node)


def test_never_beside_a_pod_with_a_resource_claim(node: Path) -> None:
    runs(node)
    (node / "kubelet").mkdir()
    claims = (CASES.parent / "kubelet/dra_manager_state").read_text()
    (node / "kubelet/dra_manager_state").write_text(claims.replace("0b5c4ab1-8e8e-4b2e-9a31-5a4b8a1c7d11", POD))
    assert f"a pod has GPUs on it ({POD})" in refused(node)


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu"])
def test_what_is_left_of_a_pod_that_is_gone_keeps_nobody_off_nor_other_devices(resource: str, node: Path) -> None:
    (node / "kubelet/device-plugins").mkdir(parents=True)
    if resource != "nvidia.com/gpu":
        runs(node)
    (node / "kubelet/device-plugins/kubelet_internal_checkpoint").write_text(CHECKPOINT % (POD, resource))
    stub(node, "nvbandwidth", "echo ran")
    assert values_of(run(node).stdout, "ended") == ["0"]


def test_never_beside_a_job_of_slurm(node: Path) -> None:
    with subprocess.Popen(["bash", "-c", "exec -a 'slurmstepd: [4711.batch]' sleep 30"]) as step:
        try:
            wait_for(lambda: b"slurmstepd" in Path(f"/proc/{step.pid}/cmdline").read_bytes())
            assert "a job of Slurm runs on it" in refused(node)
        finally:
            step.kill()


def test_slurms_own_daemon_is_no_job(node: Path) -> None:
    stub(node, "nvbandwidth", "echo ran")
    with subprocess.Popen(["bash", "-c", "exec -a '/usr/sbin/slurmstepd infinity' sleep 30"]) as step:
        try:
            wait_for(lambda: b"slurmstepd" in Path(f"/proc/{step.pid}/cmdline").read_bytes())
            assert values_of(run(node).stdout, "ended") == ["0"]
        finally:
            step.kill()


def test_never_on_a_node_that_another_controller_works_on(node: Path) -> None:
    (node / "state/lease").write_text(f"{int(time.time()) + 100} other-123456 run1 5\n")
    assert "the controller other-123456 is at work on this node" in refused(node)


def test_who_started_it_is_gone_and_so_is_the_tool_and_its_children(node: Path) -> None:
    """A killed connection closes the pipe; the next line cannot be written, and nothing stays."""
    stub(node, "nvbandwidth", f"sleep 300 & echo $! >{node}/child; echo $$ >{node}/tool; wait")
    text, environment = command(node, seconds="300")
    with subprocess.Popen(["sh", "-s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as shell:
        assert shell.stdin
        assert shell.stdout
        shell.stdin.write(text.encode())
        shell.stdin.close()
        wait_for((node / "tool").exists)
        shell.stdout.close()
        shell.wait(30)
    for name in ("tool", "child"):
        pid = int((node / name).read_text())
        wait_for(lambda p=pid: not alive(p))  # type: ignore[misc]
    assert not list(node.glob("gpunode.*"))


def test_a_tool_that_does_not_end_is_ended_and_what_it_printed_counts(node: Path) -> None:
    stub(node, "nvbandwidth", f"echo half; echo $$ >{node}/tool; trap '' INT; sleep 300")
    ran = run(node, seconds="2")
    assert values_of(ran.stdout, "ended") == ["timeout"]
    assert base64.b64decode(values_of(ran.stdout, "output")[0]) == b"half\n"
    assert not alive(int((node / "tool").read_text()))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]


def wait_for(there: object, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not there():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


CPU = str(min(os.sched_getaffinity(0)))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs: on one everything runs beside the card")
@pytest.mark.parametrize(("cpus", "near"), [(CPU, [CPU]), (f"{CPU}; id", []), ("", [])])
def test_a_tool_of_a_network_card_runs_on_the_cpus_beside_it(cpus: str, near: list[str], node: Path) -> None:
    device = node / "rdma/mlx5_0/device"
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text(f"{cpus}\n")
    stub(node, "nvbandwidth", "sed -n s/^Cpus_allowed_list:.//p /proc/$$/status")
    text, environment = command(node, near="mlx5_0")
    ran = subprocess.run(
        ["sh", "-s"], input=text, env=environment | {"RDMA": str(node / "rdma")}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert values_of(ran.stdout, "near") == near
    allowed = base64.b64decode(values_of(ran.stdout, "output")[0]).decode().strip()
    assert (allowed == CPU) is bool(near), allowed
