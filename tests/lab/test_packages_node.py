"""The stand-ins at work in a node: one story from a bare kernel to a container with GPUs."""

import shlex

import pytest
from daemon_node import POD

from gpunode.lab import up

pytestmark = pytest.mark.lab

INSTALL = """
set -e
export DEBIAN_FRONTEND=noninteractive
base=$(sed -n 's|^URIs: \\(.*\\)/kernels.*|\\1|p' /etc/apt/sources.list.d/kernels.sources)
for key in nvidia-cuda nvidia-container-toolkit; do
    /usr/lib/apt/apt-helper download-file "$base/keys/$key.asc" "/usr/share/keyrings/$key.asc"
done
cat >/etc/apt/sources.list.d/nvidia.list <<SOURCES
deb [signed-by=/usr/share/keyrings/nvidia-cuda.asc] $base/cuda/repos/debian12/x86_64/ /
deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit.asc] $base/libnvidia-container/stable/deb/amd64 /
SOURCES
apt-get -qq update
apt-get -qq install nvidia-driver-pinning-580 linux-image-6.1.0-99-amd64 linux-headers-6.1.0-50-amd64 \\
    linux-headers-6.1.0-99-amd64
apt-get -qq install --no-install-recommends nvidia-open-580 cuda-toolkit-12-8 cuda-toolkit-12-4 nvidia-container-toolkit
"""
CONFIGURED = """
cat >>/etc/containerd/config.toml <<'TOML'
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
TOML
systemctl restart containerd
"""


@pytest.fixture(scope="module")
def node():
    with up(1, name="standins", gpus=("h100", "h100"), nouveau=True, log=lambda _: None) as lab:
        yield lambda command: lab.run("standins-1", command)


@pytest.fixture(scope="module")
def installed(node):
    done = node(INSTALL)
    assert done.returncode == 0, done.stdout + done.stderr
    return node


def test_a_driver_that_is_installed_is_built_for_every_kernel_by_the_real_dkms(installed):
    lines = installed("dkms status").stdout.splitlines()
    assert lines == [f"nvidia/580.178.04, 6.1.0-{abi}-amd64, x86_64: installed" for abi in (50, 99)]
    assert installed("modinfo -F license nvidia").stdout == "Dual MIT/GPL\n"


def test_the_module_does_not_load_while_nouveau_has_the_gpus_and_loads_after(installed):
    refused = installed("modprobe nvidia")
    assert (refused.returncode, refused.stderr) == (
        1,
        "modprobe: ERROR: could not insert 'nvidia': No such device\n",
    )
    failed = installed("nvidia-smi")
    assert (failed.returncode, "couldn't communicate with the NVIDIA driver" in failed.stdout) == (9, True)
    assert installed("modprobe -r nouveau && modprobe nvidia-uvm").returncode == 0
    listed = installed("nvidia-smi -L").stdout.splitlines()
    assert [line.partition(" (")[0] for line in listed] == [f"GPU {n}: NVIDIA H100 80GB HBM3" for n in (0, 1)]
    assert installed("lspci -k 2>/dev/null | grep -c 'in use: nvidia'").stdout == "2\n"


def test_a_module_in_use_cannot_be_removed(installed):
    installed("modprobe nvidia-uvm")
    held = installed("rmmod nvidia")
    assert (held.returncode, held.stderr) == (1, "rmmod: ERROR: Module nvidia is in use by: nvidia_uvm\n")


def test_a_library_of_another_version_than_the_module_is_reported(installed):
    installed("modprobe -r nouveau; modprobe nvidia")
    module = "/lab/sys/module/nvidia/version"
    shown = installed(f"echo 580.95.05 >{module}; nvidia-smi; echo $?; echo 580.178.04 >{module}").stdout
    assert shown.splitlines()[0] == "Failed to initialize NVML: Driver/library version mismatch"
    assert shown.splitlines()[-1] == "18"


def test_the_newest_cuda_is_the_default_through_the_alternatives(installed):
    assert installed("readlink -f /usr/local/cuda").stdout == "/usr/local/cuda-12.8\n"
    assert "release 12.8" in installed("/usr/local/cuda/bin/nvcc --version").stdout


def test_a_pod_of_the_nvidia_handler_gets_the_gpu_that_it_asked_for_and_leaves_a_trace(installed):
    installed("modprobe -r nouveau; modprobe nvidia")
    assert installed(CONFIGURED).returncode == 0
    for words in ("image", "run nvidia 'echo /dev/nvidia*' NVIDIA_VISIBLE_DEVICES=1"):
        shown = installed(f"sh -c {shlex.quote(POD)} pod.sh {words}")
    assert "/dev/nvidia1" in shown.stdout and "/dev/nvidia0" not in shown.stdout, shown.stdout + shown.stderr
    assert "NVIDIA_VISIBLE_DEVICES=1" in installed("cat /var/log/nvidia-container-runtime.trace").stdout


def test_an_absent_module_is_reported_in_kmods_words(node):
    missing = node("modprobe nosuch")
    assert missing.returncode == 1
    assert missing.stderr.startswith("modprobe: FATAL: Module nosuch not found in directory /lib/modules/6.1.0-")
