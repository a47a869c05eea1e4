"""What runs in the engines: the probe's section, read into facts that no plan's hash covers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.core.facts import facts_hash, parse_probe
from gpunode.core.model import NodeFacts, Running
from gpunode.core.remote import program
from gpunode.node import script

SCRIPT = script("probe.sh")
SHELLS = [shell for shell in (["dash"], ["busybox", "sh"], ["bash"]) if shutil.which(shell[0])]
needs_no_systemd = pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd names the daemons here")


def text(containers: str, units: str = "") -> str:
    body = "".join(f"#: {name}\n{lines}" for name, lines in (("units", units), ("containers", containers)))
    return f"#: gpunode-probe 1\n{body}#: end\n"


DOCKER = """\
| docker started 1763700000
| docker hook 1763690000
| docker hook 1763690500
| docker count 2
| docker name web
| docker name db
| docker live_restore false
"""
UNIT = "| MainPID=901\n| Id=docker.service\n| CanReload=yes\n| \n"


def test_names_and_numbers_are_read_by_engine() -> None:
    facts = parse_probe(text(f"{DOCKER}| containerd count 1\n| containerd name kube-system/dns-1\n", UNIT))
    assert facts.containers == {
        "docker": Running(count=2, names=("web", "db"), live_restore=False, knows_hook=True, reloads=True),
        "containerd": Running(count=1, names=("kube-system/dns-1",)),
    }
    assert facts.notes == ()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", {}),
        ("| docker started 1763700000\n", {"docker": Running()}),
        (
            DOCKER.replace("1763690500", "1763700000"),
            {"docker": Running(count=2, names=("web", "db"), live_restore=False)},
        ),
        ("| docker count 0\n", {"docker": Running(count=0)}),
        ("| k3s tasks 12\n", {"k3s": Running(count=12)}),
        ("| docker count many\n| docker started 99999999999999999999\n| docker hook x\n", {"docker": Running()}),
        ("| docker rootless 1000\n", {}),
    ],
)
def test_what_is_not_said_is_not_known(lines: str, expected: dict[str, Running]) -> None:
    assert parse_probe(text(lines)).containers == expected


def test_a_rootless_docker_is_a_fact_and_noted() -> None:
    facts = parse_probe(text("| docker rootless 1000\n"))
    assert facts.rootless_docker == ("1000",)
    assert facts.notes == ("containers: user 1000 runs a rootless Docker, whose containers gpunode does not see",)


@pytest.mark.parametrize(
    "unit", ["", UNIT.replace("901", "0"), UNIT.replace("yes", "no"), UNIT.replace("docker", "ssh")]
)
def test_a_unit_that_cannot_be_reloaded_or_does_not_run_is_not_reloaded(unit: str) -> None:
    assert not parse_probe(text(DOCKER, unit)).containers["docker"].reloads


SNAP = """\
#: gpunode-probe 1
#: units
| MainPID=77
| ExecStart={ path=/usr/bin/snap ; argv[]=/usr/bin/snap run docker.dockerd ; ignore_errors=no }
| Id=snap.docker.dockerd.service
| LoadState=loaded
| ActiveState=active
| UnitFileState=enabled
| CanReload=no
|
| process 77\tdockerd\t--group\tdocker\t--config-file=/var/snap/docker/2932/config/daemon.json\t
#: runtimes
| binary docker /snap/docker/current/bin/dockerd
| Docker version 28.4.0, build 249d679
| socket /var/run/docker.sock
#: files
| docker_config /var/snap/docker/2932/config/daemon.json
#: end
"""


def test_the_docker_of_a_snap_has_its_own_unit_and_file() -> None:
    docker = parse_probe(SNAP).runtime("docker")
    assert docker is not None
    assert (docker.unit, docker.active, docker.version) == ("snap.docker.dockerd.service", True, "28.4.0")
    assert docker.config == "/var/snap/docker/2932/config/daemon.json"


def test_what_runs_changes_no_hash() -> None:
    facts = parse_probe(text(DOCKER, UNIT))
    assert facts_hash(facts) == facts_hash(dataclasses.replace(facts, containers={}))


# ---------------------------------------------------------------- the script


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Path]:
    """A folder of tools, in front of PATH, with a process called dockerd."""
    with dockerd(tmp_path):
        yield tmp_path


@contextlib.contextmanager
def dockerd(folder: Path) -> Iterator[None]:
    if not (folder / "dockerd").exists():
        shutil.copy("/bin/sleep", folder / "dockerd")
    with subprocess.Popen([folder / "dockerd", "60"]) as daemon:
        yield
        daemon.kill()


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def probe(shell: list[str], folder: Path, script: str = SCRIPT, sections: bytes = b"containers\n") -> NodeFacts:
    done = subprocess.run(
        [*shell, "-s"],
        input=program(script, {"sections": sections}),
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    return parse_probe(done.stdout)


@needs_no_systemd
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_docker_is_asked_for_names_alone_and_the_first_are_sent(machine: Path, shell: list[str]) -> None:
    tool(
        machine,
        "docker",
        'case "$*" in "-H unix:///var/run/docker.sock ps --format {{.Names}}") seq -f web-%g 30;; '
        "*LiveRestoreEnabled*) echo true io.containerd.runc.v2 nvidia runc;; *) echo secret; exit 1;; esac",
    )
    found = probe(shell, machine).containers["docker"]
    assert (found.count, found.names) == (30, tuple(f"web-{n}" for n in range(1, 21)))
    assert (found.live_restore, found.runtimes) == (True, ("io.containerd.runc.v2", "nvidia", "runc"))


@needs_no_systemd
def test_a_hook_older_than_dockerd_is_known_to_it_and_a_newer_one_is_not(tmp_path: Path) -> None:
    tool(tmp_path, "docker", "exit 0")
    with dockerd(tmp_path):
        tool(tmp_path, "nvidia-container-runtime-hook", "exit 0")
        assert probe(SHELLS[0], tmp_path).containers["docker"] == Running(count=0)
    known, end = False, time.monotonic() + 20  # times are in whole seconds, and one of them from a clock of its own
    while not known and time.monotonic() < end:
        with dockerd(tmp_path):
            known = probe(SHELLS[0], tmp_path).containers["docker"].knows_hook
    assert known


def test_systemd_says_which_process_is_dockerd(tmp_path: Path) -> None:
    """In the order in which systemctl prints properties, whether or not the section of units was printed before."""
    tool(tmp_path, "docker", "echo web")
    blocks = f"MainPID=0\\nId=containerd.service\\n\\nMainPID={os.getpid()}\\nId=docker.service\\nCanReload=yes\\n"
    tool(tmp_path, "systemctl", f"printf '{blocks}\\nMainPID=0\\nId=docker.socket\\n'")
    script = SCRIPT.replace("booted_systemd() { [ -d /run/systemd/system ]; }", "booted_systemd() { true; }")
    script = script.replace('exists "$folder/$unit" && break', "true && break")
    assert script.count("true && break") == 1
    for sections in (b"containers\n", b"units containers\n"):
        found = probe(SHELLS[0], tmp_path, script, sections).containers["docker"]
        assert (found.count, found.names) == (1, ("web",))
    assert found.reloads, "as the section of units says"


@pytest.mark.slow
@pytest.mark.timeout(60)
@needs_no_systemd
def test_a_hanging_docker_costs_seconds(machine: Path) -> None:
    tool(machine, "docker", "trap '' TERM\nsleep 500\nsleep 500")
    assert probe(SHELLS[0], machine).containers["docker"].count is None


@needs_no_systemd
def test_pods_are_named_with_their_namespace(tmp_path: Path) -> None:
    """crictl's table as crictl 1.32 prints it, and without its last column as it was before 1.20."""
    table = (
        "POD ID              CREATED             STATE               NAME                NAMESPACE           ATTEMPT"
        "             RUNTIME\n"
        "0a1b2c3d4e5f6       About an hour ago   Ready               web-7d9c-x2x        default             0"
        "                   (default)\n"
        "1a1b2c3d4e5f6       3 days ago          Ready               dns-1               kube-system         12"
        "                  nvidia\n"
    )
    script = SCRIPT.replace('[ -S "$socket" ] && pods', '[ "$socket" = /run/k3s/containerd/containerd.sock ] && pods')
    assert script != SCRIPT
    expected = Running(count=2, names=("default/web-7d9c-x2x", "kube-system/dns-1"))
    for shown in (table, re.sub(r" *(RUNTIME|\(default\)|nvidia)\n", "\n", table)):
        tool(tmp_path, "crictl", f"cat <<'EOF'\n{shown}EOF")
        assert probe(SHELLS[0], tmp_path, script).containers["k3s"] == expected
