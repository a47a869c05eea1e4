"""Lab nodes are machines of their own: they boot, are reached by ssh, run containers, restart, and go away whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpunode import lab
from gpunode.core.errors import InputError
from gpunode.lab import labs, machine, network, nodes
from gpunode.lab.machine import podman

pytestmark = pytest.mark.lab

# A container image from the node's own busybox: no registry is asked.
IMAGE = """set -e
mkdir -p /root/image/bin
cp /bin/busybox /root/image/bin/busybox
ln -sf busybox /root/image/bin/echo
tar -C /root/image -c . | docker import - tiny:1 >/dev/null
docker save tiny:1 | ctr image import - >/dev/null
"""


@pytest.fixture(scope="module")
def pair(lab_up):
    return lab_up(2, name="t-nodes", gpus=("h100", "10de:2204"))


@pytest.fixture(scope="module")
def trixie(lab_up):
    return lab_up(1, name="t-trixie", distro="debian:13")


def printed(some_lab, node, command):
    done = some_lab.run(node, command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def boot_id(some_lab, node):
    return printed(some_lab, node, "cat /proc/sys/kernel/random/boot_id")


def wait_for_new_boot(some_lab, node, before):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done = some_lab.run(node, "cat /proc/sys/kernel/random/boot_id")
        if done.returncode == 0 and done.stdout.strip() != before:
            return
        time.sleep(0.2)
    pytest.fail(f"{node.name} did not come back")


# ---------------------------------------------------------------- what a node is


def test_systemd_is_process_1_and_nothing_failed(pair):
    for node in pair.nodes:
        assert printed(pair, node, "cat /proc/1/comm; systemctl is-system-running") == "systemd\nrunning"


def test_each_node_has_host_keys_of_its_own_and_known_hosts_has_them(pair):
    keys = [printed(pair, node, "cut -d ' ' -f 1,2 /etc/ssh/ssh_host_ed25519_key.pub") for node in pair.nodes]
    assert keys[0] != keys[1]
    known = pair.known_hosts.read_text()
    assert all(f"{n.name},{n.address} {key}\n" in known for n, key in zip(pair.nodes, keys, strict=True))


def test_the_user_admin_becomes_root_by_sudo(pair):
    command = ["ssh", "-F", str(pair.ssh_config), "-l", "admin", pair.nodes[0].name, "id -un; sudo -n id -un"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "admin\nroot\n"


def test_passwords_do_not_log_in(pair):
    assert "passwordauthentication no" in printed(pair, pair.nodes[0], "sshd -T")


def test_gpus_are_on_the_bus_and_one_can_fall_off(pair):
    node = pair.nodes[1]
    assert printed(pair, node, "lspci -n -d 10de: | cut -d ' ' -f 3 | sort") == "10de:2204\n10de:2330"
    slot = next(d for d in (node.hardware / "sys/bus/pci/devices").iterdir() if "2204" in (d / "device").read_text())
    shutil.rmtree(slot)
    assert printed(pair, node, "lspci -n -d 10de: | cut -d ' ' -f 3") == "10de:2330"
    assert "10de:2204" in printed(pair, pair.nodes[0], "lspci -n")


def test_apt_reads_debians_archive_and_the_labs_kernels(pair):
    printed(pair, pair.nodes[0], "apt-get -q update")
    policy = printed(pair, pair.nodes[0], "apt-cache policy linux-image-amd64")
    assert "1000 http://10." in policy
    assert printed(pair, pair.nodes[0], "apt-cache policy tree | grep -c 'bookworm/main'") == "1"


def test_this_machines_kernel_settings_cannot_be_written_from_a_node(pair):
    assert pair.run(pair.nodes[0], "echo 1 > /proc/sys/kernel/pid_max").returncode != 0
    assert pair.run(pair.nodes[0], "echo 1 > /proc/sys/vm/swappiness").returncode != 0


def test_the_inventory_and_the_spec_name_the_nodes_and_the_labs_repository(pair):
    inventory = yaml.safe_load(pair.inventory.read_text())
    assert list(inventory["all"]["children"]["t_nodes"]["hosts"]) == ["t-nodes-1", "t-nodes-2"]
    sources = yaml.safe_load(pair.spec.read_text())["sources"]
    assert set(sources) == {"nvidia-cuda", "nvidia-container-toolkit"}
    for source in sources.values():
        printed(pair, pair.nodes[0], f"busybox wget -q -O - {source['key']} | grep -q 'BEGIN PGP PUBLIC KEY'")


@pytest.mark.parametrize(
    ("which", "containerd", "docker"), [("pair", "1.6.", "20.10."), ("trixie", "1.7.", "26.1.")], ids=["12", "13"]
)
def test_containerd_and_docker_run_containers(which, containerd, docker, request):
    some = request.getfixturevalue(which)
    node = some.nodes[0]
    assert printed(some, node, "containerd --version | cut -d ' ' -f 3").startswith(containerd)
    assert printed(some, node, "docker version --format '{{.Server.Version}}'").startswith(docker)
    printed(some, node, IMAGE)
    assert printed(some, node, "docker run --rm tiny:1 /bin/echo hello") == "hello"
    assert printed(some, node, "ctr run --rm docker.io/library/tiny:1 one /bin/echo hello") == "hello"


def test_a_node_without_python_and_engines_has_neither_and_is_sound(lab_up):
    bare = lab_up(1, name="t-bare", python=False, engines=(), gpus=())
    node = bare.nodes[0]
    assert bare.run(node, "command -v python3 docker containerd runc").stdout == ""
    assert printed(bare, node, "dpkg --audit; apt-get -q check >/dev/null; systemctl is-system-running") == "running"
    assert printed(bare, node, "lspci") == ""


# ---------------------------------------------------------------- restart


def test_reboot_starts_the_newest_kernel_with_a_new_boot_id_and_the_same_address(pair):
    node = pair.nodes[0]
    first, kernel = boot_id(pair, node), printed(pair, node, "uname -r")
    printed(pair, node, "apt-get -q update && apt-get -q -y install linux-image-amd64 </dev/null && touch /root/kept")
    newest = printed(pair, node, "ls /boot/vmlinuz-* | sort -V | tail -n 1").removeprefix("/boot/vmlinuz-")
    assert printed(pair, node, "uname -r") == kernel != newest
    pair.run(node, "systemctl reboot")
    wait_for_new_boot(pair, node, first)
    assert printed(pair, node, "uname -r; cat /proc/sys/kernel/osrelease") == f"{newest}\n{newest}"
    assert printed(pair, node, "cat /root/kept; hostname -I").startswith(node.address)
    assert f"vmlinuz-{newest} " in printed(pair, node, "cat /proc/cmdline")


def test_nouveau_drives_the_gpus_until_it_is_blacklisted(lab_up):
    some = lab_up(1, name="t-nouveau", nouveau=True)
    node = some.nodes[0]
    assert (
        printed(some, node, "ls /sys/module | grep nouveau; lspci -k -d 10de: | grep -c 'in use: nouveau'")
        == "nouveau\n1"
    )
    before = boot_id(some, node)
    printed(some, node, "echo 'blacklist nouveau' > /etc/modprobe.d/x.conf; update-initramfs -u")
    some.run(node, "systemctl reboot")
    wait_for_new_boot(some, node, before)
    assert printed(some, node, "ls /sys/module | grep nouveau || true") == ""


# ---------------------------------------------------------------- reset, down, and what is left


def test_reset_gives_a_fresh_node_of_the_same_name_and_address_and_leaves_the_others(lab_up):
    some = lab_up(2, name="t-reset", gpus=())
    changed, other = some.nodes
    printed(some, changed, "touch /root/gone; hostname >/var/lib/docker/gone")
    printed(some, other, "touch /root/kept")
    nodes.save(replace(changed, sources={}))  # of repositories that were built again since
    some.reset(changed.name)
    fresh = labs.load_lab("t-reset").nodes[0]
    assert (fresh.name, fresh.address) == (changed.name, changed.address)
    assert fresh.host_keys != changed.host_keys
    assert fresh.sources == other.sources
    assert printed(some, fresh, "ls /root /var/lib/docker | grep gone || true; hostname") == changed.name
    assert printed(some, other, "ls /root") == "kept"


def test_up_again_keeps_what_is_there_and_adds_what_is_missing(lab_up):
    first = lab_up(1, name="t-again", gpus=())
    printed(first, first.nodes[0], "touch /root/kept")
    both = lab_up(2, name="t-again", gpus=())
    assert [node.name for node in both.nodes] == ["t-again-1", "t-again-2"]
    assert printed(both, "t-again-1", "ls /root") == "kept"
    with pytest.raises(InputError, match="t-again-1 is there already"):
        lab_up(1, name="t-again", gpus=("h100",))


def test_down_takes_away_what_it_is_reported_and_nothing_else():
    some = lab.up(2, name="t-down", gpus=())
    lab.down(["t-down-1"])
    assert [node.name for node in labs.load_lab("t-down").nodes] == ["t-down-2"]
    assert printed(some, "t-down-2", "hostname") == "t-down-2"
    lab.down(["t-down"])
    assert left_of("t-down") == []
    with pytest.raises(InputError, match="no node 't-down'"):
        lab.down(["t-down"])


def left_of(name):
    """Whatever of that lab is on this machine: records, folders, containers."""
    folders = [path.name for path in machine.places().nodes.glob(f"*{name}-*")]
    containers = podman("ps", "--all", "--format", "{{.Names}}", "--filter", f"name=^{name}-").stdout.split()
    return [*folders, *containers]


@pytest.fixture
def starting():
    """A `gpunode lab up` in a process group of its own, caught while its containers come up."""
    made = []

    def start(name):
        command = [sys.executable, "-m", "gpunode", "lab", "up", "4", "--name", name, "--gpu", "none"]
        process = subprocess.Popen(
            command,
            start_new_session=True,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        made.append(process)
        deadline = time.monotonic() + 300  # the image may have to be built first
        while not podman("ps", "--quiet", "--filter", f"name=^{name}-").stdout:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_up_leaves_no_half_node(number, starting):
    process = starting("t-stop")
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "what was started has been removed" in errors
    assert left_of("t-stop") == []


def test_what_a_killed_up_left_is_removed_by_the_next_command(starting, lab_up):
    process = starting("t-kill")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert left_of("t-kill")
    lab_up(1, name="t-after", gpus=())
    assert left_of("t-kill") == []


def test_two_labs_start_at_the_same_time_and_do_not_meet(lab_up):
    command = [sys.executable, "-m", "gpunode", "lab", "up", "2", "--gpu", "none", "--name"]
    both = [subprocess.Popen([*command, name], stdout=subprocess.DEVNULL) for name in ("t-one", "t-two")]
    try:
        assert [process.wait(300) for process in both] == [0, 0]
        addresses = {node.address for name in ("t-one", "t-two") for node in labs.load_lab(name).nodes}
        assert len(addresses) == 4
        lab.down(["t-one"])
        assert printed(labs.load_lab("t-two"), "t-two-2", "hostname") == "t-two-2"
    finally:
        for name in ("t-one", "t-two"):
            labs.load_lab(name).down()


def kill_with_its_monitor(container):
    """As the kernel does it that is short of memory: podman goes on to count the container as running."""
    pids = podman("inspect", "--format", "{{.State.ConmonPid}} {{.State.Pid}}", container).stdout.split()
    for pid in map(int, pids):
        os.kill(pid, signal.SIGKILL)


def test_labs_of_two_state_folders_get_along(lab_up, tmp_path):
    """Of the same names, as two users have them: neither takes a node or the package server of the other away."""
    mine = lab_up(1, name="t-same", gpus=())
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}

    def other(*words):
        done = subprocess.run(
            [sys.executable, "-m", "gpunode", "lab", *words],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    try:
        made = json.loads(other("up", "1", "--name", "t-same", "--gpu", "none", "--format", "json"))
        assert made["nodes"][0]["address"] != mine.nodes[0].address
        assert other("ssh", "t-same-1", "--", "hostname") == "t-same-1\n"
        before = mine.spec.read_text()
        suffix = machine.Places(state=tmp_path / "gpunode/lab", cache=tmp_path).suffix
        server = next(iter(yaml.safe_load(Path(made["spec"]).read_text())["sources"].values()))["url"] + "/nothing"
        kill_with_its_monitor(f"gpunode-lab-repository{suffix}")
        with pytest.raises(OSError) as gone:
            urllib.request.urlopen(server, timeout=10)
        assert not isinstance(gone.value, urllib.error.HTTPError), "refused, or reset"
        other("up", "2", "--name", "t-same", "--gpu", "none")
        with pytest.raises(urllib.error.HTTPError, match="404"):  # podman had not noticed, the lab has
            urllib.request.urlopen(server, timeout=10)
    finally:
        other("down", "--all")
    assert mine.spec.read_text() == before
    url = next(iter(mine.nodes[0].sources.values()))["url"]
    assert printed(mine, "t-same-1", "hostname") == "t-same-1"
    with pytest.raises(urllib.error.HTTPError, match="404"):  # it answers
        urllib.request.urlopen(f"{url}/nothing-of-this-name", timeout=10)


def test_an_address_that_podman_never_gives_back_keeps_no_lab_from_starting(pair, tmp_path, monkeypatch):
    """Podman of another network backend removes a container and leaves its address allocated, also in a new network.

    Where plain podman has the lab's own backend, the address is free again and may be the same.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    image = pair.nodes[0].image

    def serve():
        return network.ensure_repository(image, tmp_path, network.ensure_network(), log=print)

    try:
        serve()
        subprocess.run(["podman", "rm", "--force", "--time=0", network.repository_name()], check=False)
        second = serve()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{second}/nothing", timeout=10)
        assert serve() == second
    finally:
        network.remove_if_unused()


def test_a_node_for_molecule_is_described_and_removed_by_name():
    entry = lab.platform("t-molecule", gpus=("h100",))
    try:
        assert podman("image", "exists", entry["image"], check=False).returncode == 0
        assert all(Path(volume.split(":")[0]).is_dir() for volume in entry["volumes"])
        assert [node.name for node in nodes.load_nodes() if node.lab == "t-molecule"] == ["t-molecule"]
    finally:
        lab.down(["t-molecule"])
    assert left_of("t-molecule") == []


# ---------------------------------------------------------------- the real driver


@pytest.mark.real_driver
def test_debians_real_driver_is_built_by_dkms_for_the_nodes_kernel(lab_up):
    some = lab_up(1, name="t-real", real_driver=True, engines=())
    node = some.nodes[0]
    install = "DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install"
    printed(some, node, f"apt-get -q update && {install} linux-headers-amd64 nvidia-kernel-dkms nvidia-smi </dev/null")
    kernel = printed(some, node, "uname -r")
    assert f"{kernel}, x86_64: installed" in printed(some, node, "dkms status")
    smi = some.run(node, "nvidia-smi")
    assert smi.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in smi.stdout
