"""Running GPU containers: the checks, and the shell functions that judge them and spare them, from tables."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.edits import RuntimeRequest
from gpunode.core.facts import facts_hash, parse_probe
from gpunode.core.items.activation import Enabled, activate_request
from gpunode.core.items.gpu_containers import Links, container_checks, describe_gpu_containers, needs_links
from gpunode.core.model import ConfigFile, DeviceNode, GpuContainer, NodeFacts, Outcome, Plan, Runtime
from gpunode.core.remote import parse_outcome, program
from gpunode.node import script

SHELLS = [shell for shell in (["dash"], ["busybox", "sh"], ["bash"]) if shutil.which(shell[0])]
NODES = (
    DeviceNode(path="/dev/nvidia0", number="195:0", linked=True),
    DeviceNode(path="/dev/nvidia-uvm", number="510:0"),
)


def container(name: str, state: Any, *devices: str) -> GpuContainer:
    return GpuContainer(name=name, id="0" * 64, unit=f"docker-{name}.scope", state=state, devices=devices)


def running(driver: str) -> Runtime:
    """Docker with that cgroup driver."""
    flags = ("--exec-opt", f"native.cgroupdriver={driver}") if driver else ()
    return Runtime(name="docker", flags=flags)


def unread(driver: str) -> dict[str, ConfigFile]:
    """Docker's file, which was not read, where its driver is not to be known."""
    return {} if driver else {"/etc/docker/daemon.json": ConfigFile(path="/etc/docker/daemon.json")}


def found(**facts: Any) -> list[tuple[str, str, str]]:
    return [(c.id, c.status, c.message) for c in container_checks(NodeFacts(**facts))]


@pytest.mark.parametrize(
    ("driver", "nodes", "status"),
    [
        ("systemd", NODES, "failed"),
        ("", NODES, "warning"),
        ("systemd", NODES[:1], "passed"),
        ("cgroupfs", NODES, ""),
        ("systemd", (), ""),
    ],
)
def test_links_count_where_systemd_may_keep_the_devices(
    driver: str, nodes: tuple[DeviceNode, ...], status: str
) -> None:
    docker = running(driver)
    checks = found(device_nodes=nodes, runtimes=(docker,), toolkit="1.20.0", files=unread(driver))
    assert [c[:2] for c in checks] == ([("devices.char-links", status)] if status else [])
    assert found(device_nodes=nodes, runtimes=(docker,)) == [], "no toolkit, no container with a GPU"
    if status in ("failed", "warning"):
        assert "/dev/char/510:0 (/dev/nvidia-uvm)" in checks[0][2]
        assert "195:0" not in checks[0][2]


@pytest.mark.parametrize(
    ("states", "status", "message"),
    [
        (("kept",), "passed", "1 running GPU container keeps its GPUs"),
        (("kept", "kept"), "passed", "2 running GPU containers keep their GPUs"),
        (("kept", "keepable"), "warning", "at the next systemctl daemon-reload c1 would lose /dev/nvidia1"),
        (("exposed", "keepable"), "warning", "c0, c1 would lose /dev/nvidia0, /dev/nvidia1"),
        (("lost", "keepable"), "failed", "c0 lost /dev/nvidia0"),
    ],
)
def test_the_containers_are_named_that_lose_something(states: tuple[Any, ...], status: str, message: str) -> None:
    containers = tuple(container(f"c{n}", state, f"/dev/nvidia{n}") for n, state in enumerate(states))
    [(check, is_status, printed)] = found(gpu_containers=containers)
    assert (check, is_status) == ("containers.gpu-kept", status)
    assert message in printed


def test_the_command_that_keeps_the_gpus_of_a_container_is_said() -> None:
    facts = NodeFacts(gpu_containers=(container("web", "keepable", "/dev/nvidia0", "/dev/nvidiactl"),))
    [check] = container_checks(facts)
    devices = "'DeviceAllow=/dev/nvidia0 rw' 'DeviceAllow=/dev/nvidiactl rw'"
    assert f"systemctl set-property --runtime docker-web.scope {devices}" in check.fix


@pytest.mark.parametrize(
    ("unit", "look"),
    [
        (f"docker-{'0' * 64}.scope", "docker exec web nvidia-smi -L"),
        (f"libpod-{'0' * 64}.scope", "podman exec web nvidia-smi -L"),
        (f"cri-containerd-{'0' * 64}.scope", "crictl exec 000000000000 nvidia-smi -L"),
    ],
)
def test_after_a_reload_nobody_says_that_they_will_lose_what_they_may_have_lost(unit: str, look: str) -> None:
    """On a machine with an H100 (Ubuntu 24.04, cgroups of version 2) the GPU was gone while this was still foretold."""
    before = container("new", "keepable", "/dev/nvidia1")
    after = replace(container("web", "keepable", "/dev/nvidia0"), unit=unit, reloaded=True)
    [check] = container_checks(NodeFacts(gpu_containers=(before, after)))
    assert check.message == (
        "systemd has reloaded since web started, and may have taken /dev/nvidia0 from them already; "
        "at the next systemctl daemon-reload new would lose /dev/nvidia1"
    )
    assert check.fix.startswith(f"look: {look}; restart what has lost them; until they end: ")


@pytest.mark.parametrize(
    ("wanted", "has", "needed"),
    [
        ("", "systemd", True),
        ("", "", True),
        ("", "cgroupfs", False),
        ("systemd", "cgroupfs", True),
        ("cgroupfs", "", False),
    ],
)
def test_links_are_wanted_where_the_driver_will_be_systemd_or_is_unknown(wanted: Any, has: str, needed: bool) -> None:
    facts = NodeFacts(runtimes=(running(has),), files=unread(has))
    assert needs_links(facts, RuntimeRequest(runtime="docker", cgroup_driver=wanted)) is needed
    assert needs_links(NodeFacts(), RuntimeRequest(runtime="docker")) is True


@pytest.mark.parametrize(("role", "option", "again"), [("sharing", "mig", True), ("toolkit", "packages", False)])
def test_mig_instances_have_devices_that_are_linked_after_the_cut(role: str, option: str, again: bool) -> None:
    """Finding: a run that cut GPUs ended with links to make."""
    before = Enabled(role=role, option=option, unit="some.service")
    assert Links().follows({before.key: before}) is again


def test_device_files_count_in_the_hash_only_while_their_links_are_missing() -> None:
    facts = NodeFacts(device_nodes=NODES[:1])
    assert facts_hash(facts) == facts_hash(NodeFacts())
    assert facts_hash(replace(facts, device_nodes=NODES)) != facts_hash(NodeFacts())


def sh(shell: list[str], commands: str) -> str:
    """The last commands of a program that has devices.sh before them."""
    text = script("probe.sh").partition("#!/bin/sh")[0] + commands
    done = subprocess.run([*shell, "-s"], input=text, capture_output=True, text=True, timeout=20)
    assert done.stderr == ""
    return done.stdout.strip()


shells = pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
DOCKER = "DevicePolicy=strict\nDeviceAllow=/dev/char/1:3 rwm\nDeviceAllow=char-* m\nDeviceAllow=block-* m"


@shells
@pytest.mark.parametrize(
    ("noted", "version", "kept"),
    [
        ("all", 252, True),
        (DOCKER, 252, False),
        ("", 252, False),  # systemd did not answer
        (f"{DOCKER}\nDeviceAllow=/dev/char/9999:0 rwm", 252, True),
        (f"{DOCKER}\nDeviceAllow=/dev/char/9999:0 rwm", 239, False),  # it would need the link
        (f"{DOCKER}\nDeviceAllow=/dev/char/9999:0 m", 252, False),
        (f"{DOCKER}\nDeviceAllow=/dev/char/9999:01 rwm", 252, False),
        (f"{DOCKER}\nDeviceAllow=/dev/nvidia0 rw", 219, True),
        (f"{DOCKER}\nDeviceAllow=/dev/nvidia01 rw", 252, False),
        (f"{DOCKER}\nDeviceAllow=char-nvidia-frontend rwm", 252, True),
        (f"{DOCKER}\nDeviceAllow=char-pts rwm", 252, False),
    ],
)
def test_systemd_keeps_what_it_has_noted_for_the_scope(shell: list[str], noted: str, version: int, kept: bool) -> None:
    fakes = f"systemd_version() {{ echo {version}; }}\ndriver_name() {{ echo nvidia-frontend; }}\nnoted='{noted}'\n"
    assert sh(shell, f"{fakes}systemd_keeps 9999:0 /dev/nvidia0 && echo kept") == ("kept" if kept else "")


@shells
@pytest.mark.parametrize(
    ("allowed", "may"),
    [
        ("c 1:3 rwm\nc 195:0 rw", True),
        ("c 195:* rwm", True),
        ("a *:* rwm", True),
        ("c *:* m\nb *:* m\nc 1195:0 rwm\nc 195:01 rw", False),
    ],
)
def test_the_kernels_list_says_what_a_container_may(shell: list[str], allowed: str, may: bool) -> None:
    assert sh(shell, f"allowed='{allowed}'\ncgroup_allows 195:0 && echo may") == ("may" if may else "")


ID, INNER = "a" * 64, "b" * 64
CGROUPS = [
    (f"5:devices:/system.slice/docker-{ID}.scope", f"/system.slice/docker-{ID}.scope"),
    (f"0::/system.slice/docker-{ID}.scope", f"/system.slice/docker-{ID}.scope"),
    (f"11:cpuset,devices:/docker/{ID}", f"/docker/{ID}"),
    (f"0::/machine.slice/libpod-{ID}.scope/container", f"/machine.slice/libpod-{ID}.scope"),
    (
        f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope",
        f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope",
    ),
    (f"5:devices:/docker/{ID}/docker/{INNER}", f"/docker/{ID}"),
    (f"4:memory:/docker/{ID}", ""),
    ("0::/system.slice/ssh.service", ""),
]


@shells
@pytest.mark.parametrize(("line", "cgroup"), CGROUPS)
def test_a_container_is_known_by_its_outermost_cgroup(shell: list[str], line: str, cgroup: str) -> None:
    fake = f"grep() {{ printf '%s\\n' '/proc/17/cgroup:{line}' | command grep -E '^/proc/17/cgroup:'\"${{3#^}}\"; }}\n"
    assert sh(shell, f"{fake}container_processes") == (f"17 {cgroup}" if cgroup else "")


@shells
def test_podmans_containers_are_named_by_what_watches_them(shell: list[str], tmp_path: Path) -> None:
    """`podman ps` writes locks and its database; CRI-O's containers have such processes, too."""
    watcher = tmp_path / "conmon"
    watcher.write_text("#!/bin/sh\nread -r line\n")
    watcher.chmod(0o755)
    running = [
        subprocess.Popen(
            [
                watcher,
                "--api-version",
                "1",
                "-c",
                id,
                "-u",
                id,
                "-r",
                "/usr/bin/runc",
                "-n",
                name,
                "--exit-dir",
                "/run",
            ],
            stdin=subprocess.PIPE,
        )
        for id, name in ((ID, "web_1.gpu"), (INNER, "k8s_server_llm"))
    ]
    try:
        named = sh(shell, "podman() { echo asked; }\npodman_names").splitlines()
    finally:
        for one in running:
            one.communicate(b"\n")
    assert f"{ID} web_1.gpu" in named
    assert not [line for line in named if INNER in line or "asked" in line]


SPECIFICATION = (
    '{"linux":{"devices":[{"path":"/dev/nvidia0","type":"c"}]},"annotations":{"io.kubernetes.cri.%s-name":"%s"%s}}'
)
POD = SPECIFICATION % ("sandbox", "llm", ',"io.kubernetes.cri.container-name":"server"')
FORGED = r'{"process":{"env":["X=\\"path\\":\\"/dev/nvidia0\\""]}}'


@shells
@pytest.mark.parametrize(
    ("specification", "names", "noted", "line"),
    [
        (POD, "", DOCKER, "llm/server spec keepable /dev/nvidia0"),
        (POD, "", f"{DOCKER}\nDeviceAllow=/dev/nvidia0 rwm", "llm/server spec kept /dev/nvidia0"),
        (FORGED, "", DOCKER, f"{ID[:12]} spec exposed /dev/nvidia0"),
        ("", f"{INNER} other\n{ID} web", DOCKER, "web spec exposed /dev/nvidia0"),
        ("", f"{ID} web\n{INNER} other", "all", "web spec kept /dev/nvidia0"),
    ],
)
def test_with_cgroups_of_version_2_a_specification_gives_the_right(
    shell: list[str], specification: str, names: str, noted: str, line: str
) -> None:
    fakes = f"""
nodes='195:0 /dev/nvidia0
195:1 /dev/nvidia1'
names='{names}'
noted_devices() {{ printf '%s\\n' '{noted}'; }}
bundle() {{ printf '%s\\n' '{specification}'; }}
gpu_container $$ /none/docker-{ID}.scope '195:0 /dev/nvidia0'
"""
    words = sh(shell, fakes).split()
    assert words[0] == ID
    assert " ".join([words[1], *words[3:]]) == line


@shells
@pytest.mark.parametrize(
    ("last", "start", "version_1", "word"),
    [
        ("=321000000", "=255000000", "", " reloaded"),
        ("=0", "=255000000", "", ""),  # not since the boot
        ("=255000000", "=321000000", "", ""),
        ("", "=255000000", "", ""),  # systemd 247 has no such property
        ("=321000000", "=0", "", ""),
        ("=321000000", "=255000000", "c 195:0 rw", ""),  # the kernel says itself what it may open
    ],
)
def test_a_reload_since_the_container_started_is_seen(
    shell: list[str], last: str, start: str, version_1: str, word: str
) -> None:
    fakes = f"""
nodes='195:0 /dev/nvidia0' names='{ID} web'
noted_devices() {{ printf '%s\n' '{DOCKER}'; }}
bundle() {{ printf '%s\n' '{POD}'; }}
cat() {{ echo '{version_1}'; }}
briefly() {{
  case $* in
    *UnitsLoadTimestampMonotonic) echo '{f"UnitsLoadTimestampMonotonic{last}" if last else ""}' ;;
    *ActiveEnterTimestampMonotonic*docker-{ID}.scope) echo 'ActiveEnterTimestampMonotonic{start}' ;;
  esac
}}
gpu_container $$ /none/docker-{ID}.scope '195:0 /dev/nvidia0'
"""
    line = sh(shell, fakes)
    assert line == f"{ID} web docker-{ID}.scope spec keepable /dev/nvidia0{word}"


Activate = Callable[..., tuple[Outcome, list[str]]]
FAKES = """
systemd_runs() { true; }
gpu_containers() { cat "$GPUNODE_IN/.seen"; }
systemctl() {
  case $* in
    *set-property*docker-dead*) return 1 ;;
    *show*) echo NeedDaemonReload=yes ;;
    *is-active*) if grep -q '^start' "$CALLS"; then echo active; else echo inactive; fi ;;
    *is-enabled*) echo disabled ;;
  esac
  case $* in *show* | *is-*) ;; *) echo "$*" >>"$CALLS" ;; esac
}
need_root() { :; }
lock() { :; }
journal() { :; }
prior() { :; }
"""


WEB = "id1 web docker-web.scope hook keepable /dev/nvidia0,/dev/nvidiactl"
CALM = "id2 calm docker-calm.scope spec kept /dev/nvidia1"


@pytest.fixture(params=SHELLS, ids=" ".join)
def activate(request: pytest.FixtureRequest, tmp_path: Path) -> Activate:
    """activate.sh that is to start a service whose unit has changed, beside some containers; and what it asked for."""

    def run(*seen: str, check: bool = False) -> tuple[Outcome, list[str]]:
        head, mark, main = script("activate.sh").rpartition(
            "# ---------------------------------------------------------------- main"
        )
        text = f"{head}{FAKES}printf '%s\\n' '{chr(10).join(seen)}' >\"$GPUNODE_IN/.seen\"\n{mark}{main}"
        calls = tmp_path / "calls"
        calls.write_text("")
        done = subprocess.run(
            [*request.param, "-s"],
            input=program(text, activate_request({"services": ["docker"]}, check=check)),
            capture_output=True,
            text=True,
            timeout=20,
            env={**os.environ, "CALLS": str(calls)},
        )
        return parse_outcome(done.stdout, done.returncode), calls.read_text().splitlines()

    return run


def test_systemd_is_notified_of_the_gpus_before_it_reloads(activate: Activate) -> None:
    outcome, calls = activate(f"{WEB} reloaded", CALM)
    reported = "set-property --runtime docker-web.scope DeviceAllow=/dev/nvidia0 rw DeviceAllow=/dev/nvidiactl rw"
    assert calls == [reported, "daemon-reload", "--no-reload enable docker", "reset-failed docker", "start docker"]
    assert outcome.status == "changed"
    assert [n for n in outcome.notes if "web" in n] and not [n for n in outcome.notes if "calm" in n]


EXPOSED = "id web docker-web.scope spec exposed /dev/nvidia0"
DEAF = "id web docker-dead.scope hook keepable /dev/nvidia0"  # systemd refuses


@pytest.mark.parametrize("line", [EXPOSED, DEAF])
def test_nothing_reloads_next_to_a_container_that_cannot_be_helped(activate: Activate, line: str) -> None:
    outcome, calls = activate(line, CALM)
    assert outcome.status == "refused"
    assert "the running containers web would lose their GPUs" in outcome.message
    assert "CDI" in outcome.fix
    assert calls == []


def test_check_mode_notifies_systemd_nothing_and_foresees_the_refusal(activate: Activate) -> None:
    outcome, calls = activate(WEB, check=True)
    assert (outcome.status, calls) == ("changed", [])
    outcome, calls = activate(EXPOSED, check=True)
    assert (outcome.status, calls) == ("refused", [])


def test_a_plan_without_steps_has_nothing_to_say() -> None:
    facts = NodeFacts(gpu_containers=(container("web", "exposed", "/dev/nvidia0"),))
    assert describe_gpu_containers(Plan(host="n"), facts) == Plan(host="n")


def test_lines_of_the_probe_that_are_no_container_are_noted() -> None:
    lines = ["linked 195:0 /dev/nvidia0", f"container {ID} web - hook kept /dev/nvidia0", f"container {ID} web", "what"]
    lines += [f"container {ID} web - hook {words}" for words in ("sleeping /dev/nvidia0", "kept /dev/nvidia0 more")]
    lines.append(f"container {INNER} new - hook keepable /dev/nvidia0 reloaded")
    text = "#: gpunode-probe 1\n#: gpu_containers\n" + "".join(f"| {line}\n" for line in lines) + "#: end\n"
    facts = parse_probe(text)
    assert facts.device_nodes == NODES[:1]
    web = GpuContainer(name="web", id=ID, hook=True, devices=("/dev/nvidia0",))
    assert facts.gpu_containers == (replace(web, name="new", id=INNER, state="keepable", reloaded=True), web)
    assert len([note for note in facts.notes if "not understood" in note]) == 4
