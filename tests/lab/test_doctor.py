"""doctor on a node: silent after the first provision, and the cause first when something is broken, over real SSH."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_provision import Node

from gpunode.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
UNLOAD = (
    "systemctl stop nvidia-persistenced; for m in nvidia_peermem nvidia_uvm nvidia_drm nvidia_modeset nvidia; "
    "do rmmod $m 2>/dev/null || true; done; test ! -e /sys/module/nvidia; "
)
LOAD = "modprobe nvidia; systemctl start nvidia-persistenced"
MODULES = "$(find /lib/modules/$(uname -r) -name 'nvidia*.ko*')"
INSTALLER = "echo 'ERROR: The Nouveau kernel driver is currently in use by your system.' >/var/log/nvidia-installer.log"
RECIPE = """mkdir -p /var/lib/dkms/nvidia/1/build; """
RECIPE += (
    r"""printf 'echo >&2 "  ERROR: Kernel configuration is invalid.";\\\n' >/var/lib/dkms/nvidia/1/build/make.log"""
)
LIBRARY = "d=/usr/lib/x86_64-linux-gnu; f=$(ls $d/libnvidia-ml.so.[4-9]*)"
STATUS = "s=/var/lib/dpkg/status; cp -p $s /root/status"
CUDA = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
REFRESH = "/etc/systemd/system/nvidia-cdi-refresh.service.d"
WELL = "rm /lab/standin-health"
NO_SCHEDULER = "rm -r /etc/kubernetes"
EXTENDER = r"extenders:\n- urlPrefix: http://127.0.0.1:32766/gpushare-scheduler\n"


def ill(field: str, value: str) -> str:
    return rf"printf '0000:17:00.0\t{field}\t{value}\n' >/lab/standin-health"


def kernel(words: str) -> str:
    return f"echo '[  99.000000] NVRM: Xid (PCI:0000:17:00): {words}' >>/lab/dmesg"


def scheduler(minor: int, api: str, more: str = "") -> str:
    """A kube-scheduler's manifest and configuration, as kubeadm lays them."""
    manifest = (
        r"spec:\n  containers:\n  - command:\n    - kube-scheduler\n    - --config=/etc/kubernetes/s.yaml\n"
        rf"    image: registry.k8s.io/kube-scheduler:v1.{minor}.4\n"
    )
    return (
        "mkdir -p /etc/kubernetes/manifests; "
        rf"printf '{manifest}' >/etc/kubernetes/manifests/kube-scheduler.yaml; "
        rf"printf 'apiVersion: kubescheduler.config.k8s.io/{api}\n{more}' >/etc/kubernetes/s.yaml"
    )


# what is broken → how, how it is repaired, the root cause; "" where something only looks as if it were
BROKEN: dict[str, tuple[str, str, str]] = {
    "the module is not loaded": (UNLOAD, LOAD, "module-not-loaded"),
    "modprobe.d keeps it out": (
        UNLOAD + "echo 'install nvidia /bin/false' >/etc/modprobe.d/zz-no.conf",
        f"rm /etc/modprobe.d/zz-no.conf; {LOAD}",
        "modprobe-blocked",
    ),
    "the kernel has no module": (
        UNLOAD + f"mkdir /root/k; mv {MODULES} /root/k/; depmod",
        f"d=/lib/modules/$(uname -r)/updates/dkms; mkdir -p $d; mv /root/k/* $d/; rmdir /root/k; depmod; {LOAD}",
        "modprobe-not-found",
    ),
    "the next kernel has none": (
        "mkdir -p /lib/modules/9.9.9-test; : >/boot/vmlinuz-9.9.9-test",
        "rm -r /lib/modules/9.9.9-test /boot/vmlinuz-9.9.9-test",
        "module-next-kernel",
    ),
    "Docker is stopped": (
        "systemctl stop docker.socket docker",
        "systemctl start docker.socket docker",
        "engine-stopped",
    ),
    "daemon.json is torn": (
        "cp /etc/docker/daemon.json /root/d; echo '{,' >/etc/docker/daemon.json",
        "cp /root/d /etc/docker/daemon.json",
        "docker-daemon-json",
    ),
    "the default runtime is not there": (
        """cp /etc/docker/daemon.json /root/d; echo '{"default-runtime": "nvidia"}' >/etc/docker/daemon.json""",
        "cp /root/d /etc/docker/daemon.json",
        "docker-default-runtime-missing",
    ),
    "CDI is of another driver": (
        "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml 2>/dev/null; "
        r"sed -i 's/\.so\.[0-9][0-9.]*/.so.111.11/g' /etc/cdi/nvidia.yaml",
        "rm /etc/cdi/nvidia.yaml",
        "cdi-stale",
    ),
    "CDI is of somebody else": (
        "nvidia-ctk cdi generate --output=/etc/cdi/mine.yaml 2>/dev/null; "
        r"sed -i 's/\.so\.[0-9][0-9.]*/.so.111.11/g' /etc/cdi/mine.yaml",
        "rm /etc/cdi/mine.yaml",
        "cdi-foreign",
    ),
    "the daemon has crashed": (
        "systemctl kill -s SEGV nvidia-persistenced; sleep 1",
        "systemctl reset-failed; systemctl restart nvidia-persistenced",
        "persistenced-fail",
    ),
    "the plugin offers nothing": (
        f"mkdir -p $(dirname {CHECKPOINT}); "
        f"""echo '{{"Data":{{"RegisteredDevices":{{"nvidia.com/gpu":[]}}}}}}' >{CHECKPOINT}""",
        f"rm -r $(dirname {CHECKPOINT})",
        "plugin-no-devices",
    ),
    "the libraries are of another driver": (
        f"{LIBRARY}; mv $f $d/libnvidia-ml.so.610.1.1",
        f"{LIBRARY}; mv $d/libnvidia-ml.so.610.1.1 $d/libnvidia-ml.so.$(cat /sys/module/nvidia/version)",
        "nvml-version-mismatch",
    ),
    "no headers and no module": (
        UNLOAD + f"mkdir /root/k; mv {MODULES} /root/k/; depmod; mv /lib/modules/$(uname -r)/build /root/b",
        "mv /root/b /lib/modules/$(uname -r)/build; d=/lib/modules/$(uname -r)/updates/dkms; mv /root/k/* $d/; "
        f"rmdir /root/k; depmod; {LOAD}",
        "dkms-no-headers",
    ),
    "a held package stayed behind": (
        f"{STATUS}; sed -i '/^Package: nvidia-open$/,/^$/s/^Version: .*/Version: 610.1.1-1/' $s",
        "mv /root/status /var/lib/dpkg/status",
        "apt-held-broken",
    ),
    "a package is half configured": (
        f"{STATUS}; sed -i '/^Package: nvidia-driver$/,/^$/s/^Status: .*/Status: install ok half-configured/' $s",
        "mv /root/status /var/lib/dpkg/status",
        "dpkg-nvidia-configure",
    ),
    "a repository is set up twice": (
        f"for n in x y; do echo 'deb {CUDA} /' >/etc/apt/sources.list.d/$n.list; done",
        "rm /etc/apt/sources.list.d/x.list /etc/apt/sources.list.d/y.list",
        "apt-signed-by-conflict",
    ),
    "a device file is gone": (
        "mv /dev/nvidia0 /root/n",
        "mv /root/n /dev/nvidia0",
        "device-node-missing",
    ),
    "CDI is not made any more": (
        f"mkdir -p {REFRESH}; printf '[Service]\\nExecStart=\\nExecStart=/bin/false\\n' >{REFRESH}/no.conf; "
        "systemctl daemon-reload; systemctl start nvidia-cdi-refresh; sleep 9",  # until systemd does not start it again
        f"rm -r {REFRESH}; systemctl daemon-reload; systemctl reset-failed",
        "cdi-generate-failed",
    ),
    "the GPU asks for a reset": (ill("reset", "1"), WELL, "reset-required"),
    "the GPU is lost": (ill("lost", "1"), WELL, "gpu-lost"),
    "its memory cannot be repaired": (ill("remapped_rows.failure", "Yes"), WELL, "row-remap-failed"),
    "its board slows it down": (ill("clocks.reasons", "0x48"), WELL, "gpu-throttled"),
    "MIG without an instance": ("nvidia-smi -mig 1", "nvidia-smi -mig 0", "dp-mig-none"),
    "it has fallen off the bus": (
        f"cp /lab/dmesg /root/dmesg; {kernel('79, GPU has fallen off the bus.')}",
        "cat /root/dmesg >/lab/dmesg",
        "gpu-lost",
    ),
    "the scheduler's extender is away": (scheduler(31, "v1", EXTENDER), NO_SCHEDULER, "extender-refused"),
    "the scheduler's API is gone": (scheduler(31, "v1beta2"), NO_SCHEDULER, "sched-kind"),
    "the checkpoint is torn": (
        f"mkdir -p $(dirname {CHECKPOINT}); echo '{{\"Data\":' >{CHECKPOINT}",
        f"rm -r $(dirname {CHECKPOINT})",
        "kubelet-checkpoint",
    ),
    "a program's own Xid": (
        f"cp /lab/dmesg /root/dmesg; {kernel('13, pid=1, name=a.out, Graphics Exception')}",
        "cat /root/dmesg >/lab/dmesg",
        "",
    ),
    "a daemon that runs again": (
        "systemctl kill -s SEGV nvidia-persistenced; sleep 1; systemctl reset-failed; "
        "systemctl restart nvidia-persistenced",
        ":",
        "",
    ),
    "an extender that answers": (
        scheduler(31, "v1", EXTENDER) + "; busybox nc -l -p 32766 >/dev/null 2>&1 & sleep 1",
        NO_SCHEDULER,
        "",
    ),
    "an installer's old log": (INSTALLER, "rm /var/log/nvidia-installer.log", ""),
    "a recipe in make's log": (RECIPE, "rm -r /var/lib/dkms/nvidia/1", ""),
}
KEPT = "cat /root/dmesg >/lab/dmesg"


def printed(*lines: str) -> str:
    """The kernel's log with lines of the real driver at its end."""
    return f"cp /lab/dmesg /root/dmesg; cat >>/lab/dmesg <<'END'\n{chr(10).join(lines)}\nEND"


def cuda(call: str, code: int) -> str:
    return f"echo '{call} {code} all' >/lab/cuda"


FLOOD = "seq 3300 | sed 's/.*/[  99.0] NVRM: Xid (PCI:0000:17:00): 45, pid=&, name=python3, Ch 00000008/' >>/lab/dmesg"
# what the driver prints or answers → how, how it is repaired, the doctor's roots, the check of verify, its status
DRIVER: dict[str, tuple[str, str, set[str], str, str]] = {
    # NVIDIA/open-gpu-kernel-modules issue 1125
    "GSP does not answer after a suspend": (
        printed(
            "[37803.140477] NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 3856513292 heartbeat 0 "
            "heartbeatWithOffsetMs 0 diff 3856513292 timeout 5200",
            "[37803.140481] NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out",
        ),
        KEPT, {"driver-hang"}, "driver.kernel-log", "failed",
    ),
    # kubernetes-sigs/dra-driver-nvidia-gpu issue 982
    "a reset is required": (
        printed("[  99.000000] NVRM: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x0000006A)"),
        KEPT, {"reset-required"}, "driver.kernel-log", "warning",
    ),
    "a task hangs in it": (
        printed(
            "[  400.100000] INFO: task nvidia-smi:812 blocked for more than 120 seconds.", "[  400.100000] Call Trace:",
            "[  400.100000]  ? os_acquire_rwlock_write+0x35/0x40 [nvidia]",
        ),
        KEPT, {"driver-hang"}, "driver.kernel-log", "warning",
    ),
    "Xids 62 and 109, and a flood of 45": (
        printed(
            "[  98.000000] NVRM: Xid (PCI:0000:17:00): 62, 0cc0(2d50) 8503ffe7 ffffff80",
            "[  98.100000] NVRM: Xid (PCI:0000:17:00): 109, pid=7, name=python3, Ch 00000008, errorString CTX SWITCH "
            "TIMEOUT, Info 0x5c006",
        ) + f"\n{FLOOD}",
        KEPT, set(), "gpu.xid", "failed",
    ),
    # NVIDIA/open-gpu-kernel-modules issue 1010
    "it is off the bus": (
        printed(
            "[  99.0] NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "[  99.000001] NVRM: GPU 0000:17:00.0: GPU has fallen off the bus.",
        ),
        KEPT, {"gpu-lost"}, "gpu.xid", "failed",
    ),
    "CUDA does not start after a suspend": (cuda("cuInit", 999), "rm /lab/cuda", set(), "cuda.init", "failed"),
    "the fabric is not set up": (cuda("cuInit", 802), "rm /lab/cuda", set(), "cuda.init", "failed"),
    "the GPU is busy or unavailable": (cuda("cuCtxCreate", 46), "rm /lab/cuda", set(), "cuda.init", "failed"),
    "no memory is free": (cuda("cuMemAlloc", 2), "rm /lab/cuda", set(), "cuda.init", "not-proven"),
    "CUDA hangs": (cuda("cuInit", -1), "rm /lab/cuda", set(), "cuda.init", "failed"),
}  # fmt: skip
MENDED = (  # by doctor --fix, those of a line in one run
    ("CDI is of another driver", "Docker is stopped", "the module is not loaded"),
    ("the kernel has no module", "the default runtime is not there"),
)


def roots(node: Node) -> set[str]:
    return {one["id"] for one in node.json("doctor", exit=None)["findings"] if one["root"]}


@pytest.fixture(scope="module")
def node(provisioned: Callable[..., Lab], run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Debian 12 with containerd and Docker, provisioned and rebooted."""
    return Node(provisioned(name="t-doctor"), run_gpunode, tmp_path_factory.mktemp("spec"), {})


def test_of_a_provisioned_node_there_is_nothing_to_say(node: Node) -> None:
    found = node.json("doctor", exit=0)
    assert (found["findings"], found["xids"]) == ([], [])


@pytest.mark.parametrize("name", BROKEN)
def test_the_cause_is_named_first(node: Node, name: str) -> None:
    how, repair, cause = BROKEN[name]
    node.sh(how)
    try:
        assert roots(node) == ({cause} if cause else set())
    finally:
        node.sh(repair)


@pytest.mark.parametrize("name", DRIVER)
def test_what_the_driver_prints_or_answers_is_found_by_verify(node: Node, name: str) -> None:
    how, repair, causes, check, status = DRIVER[name]
    node.sh(how)
    try:
        assert roots(node) == causes
        host = node.json("verify", *(() if check == "cuda.init" else ("--no-smoke",)), exit=None)
        wrong = {one["id"]: one["status"] for one in host["checks"] if one["status"] not in ("passed", "skipped")}
        assert wrong.get(check) == status, wrong
    finally:
        node.sh(repair)


@pytest.mark.parametrize("names", MENDED, ids=", ".join)
def test_fix_mends_them_and_verify_is_green(
    node: Node, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        node.sh(BROKEN[name][0])
    assert node.json("plan", exit=3)["steps"]
    monkeypatch.chdir(node.spec.parent)
    Path("gpunode.yml").write_text(node.spec.read_text())
    node.gpunode("doctor", "--fix", "--yes")
    assert roots(node) == set()
    node.gpunode("verify", "--no-smoke")


def test_logs_of_a_node_without_a_driver_are_read(
    lab_up: Callable[..., Lab], run_gpunode: Callable[..., Any], tmp_path: Path
) -> None:
    lab = lab_up(1, nouveau=True)
    assert roots(Node(lab, run_gpunode, tmp_path, {})) == {"driver-missing"}, "nothing failed yet"
    assert lab.run(lab.nodes[0], INSTALLER).returncode == 0
    ran = run_gpunode("doctor", "-i", str(lab.inventory), "--format", "json", exit=1)
    (host,) = json.loads(ran.stdout)["hosts"]
    assert host["error"] is None and host["notes"] == []
    found = {finding["id"]: finding for finding in host["findings"]}
    assert any(line.startswith("nvidia-installer:1:") for line in found["nouveau-in-use"]["evidence"]), found
    assert "nvml-version-mismatch" not in found
