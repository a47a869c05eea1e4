"""runfile.sh with the lab's stand-ins of NVIDIA's installers, in a mount namespace of its own.

DKMS and modinfo are faked.  Needs root and takes seconds; test_runfile.py has the whole way on a node.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.items.runfile import runfile_request
from gpunode.core.model import Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.core.solve.runfile import installer_options
from gpunode.edge.load import load_knowledge
from gpunode.lab.packages_runfile import cuda_runfile, driver_runfile
from gpunode.lab.packages_table import texts_in
from gpunode.node import script

pytestmark = [pytest.mark.lab, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mounts")]

OLD, NEW = "570.211.01", "580.178.04"
KERNELS = ("6.1.0-1-amd64", "6.1.0-2-amd64")
TEXTS = texts_in(Path(str(files("gpunode.lab"))) / "standins" / "packages")
TOOLKIT = {"version": "12.8.2", "mm": "12.8", "driver": OLD, "nvcc": "12.8.93"}
# what DKMS keeps, as lines MODULE VERSION KERNEL in /var/lib/dkms/built; a module is the licence it would have
DKMS = """#!/bin/sh
mkdir -p /var/lib/dkms && touch /var/lib/dkms/built
verb=$1 module='' version='' kernel=''
while [ $# -gt 0 ]; do
  case $1 in -m) module=$2 ;; -v) version=$2 ;; -k) kernel=$2 ;; */*) module=${1%/*} version=${1#*/} ;; esac
  shift
done
case $verb in
status) sed 's/\\([^ ]*\\) \\([^ ]*\\) \\(.*\\)/\\1\\/\\2, \\3, x86_64: installed/' /var/lib/dkms/built ;;
build)
  [ ! -e /usr/broken-compiler ] || {
    mkdir -p "/var/lib/dkms/$module/$version/build"
    echo 'module.c:1:1: error: this compiler is broken' >"/var/lib/dkms/$module/$version/build/make.log"
    exit 10
  } ;;
install)
  mkdir -p "/lib/modules/$kernel/updates/dkms"
  cp "/usr/src/$module-$version/license.mk" "/lib/modules/$kernel/updates/dkms/nvidia.ko"
  echo "$module $version $kernel" >>/var/lib/dkms/built ;;
remove)
  rm -rf /lib/modules/*/updates "/var/lib/dkms/$module"
  sed -i "/^$module $version /d" /var/lib/dkms/built ;;
esac
"""
MODINFO = """#!/bin/sh
sed -n 's/LICENSE = //p' "/lib/modules/$2/updates/dkms/nvidia.ko" 2>/dev/null
"""
# modules as kmod treats them: what another is loaded upon, or a program uses, stays; lines NAME NEEDS in /usr/modules
MODPROBE = """#!/bin/sh
cd /sys/module
if [ "$1" = -r ]; then
  [ -d "$2" ] || exit 0
  [ -z "$(ls "$2/holders")" ] && [ ! -e "$2/busy" ] || { echo "modprobe: FATAL: Module $2 is in use." >&2 && exit 1; }
  rm -rf "$2" ./*/holders/"$2"
  exit
fi
needs=$(sed -n "s/^$1 //p" /usr/modules)
[ -n "$needs" ] || { echo "modprobe: FATAL: Module $1 not found in directory /lib/modules/6.1.0" >&2 && exit 1; }
mkdir -p "$1/holders" && echo 1 >"$1/version"
[ "$needs" = none ] || for need in $needs; do
  [ -d "$need" ] || modprobe "$need" || exit
  ln -s "../../$1" "$need/holders/$1"
done
"""
SYSTEMCTL = """#!/bin/sh
case $1 in
is-active) grep -qx "$3" /usr/active ;;
stop) sed -i "/^$2$/d" /usr/active ;;
start) echo "$2" >>/usr/active ;;
esac
"""
MODULES = {
    "nvidia": "none",
    "nvidia_modeset": "nvidia",
    "nvidia_drm": "nvidia_modeset",
    "nvidia_uvm": "nvidia",
    "nvidia_fs": "nvidia",
    "gdrdrv": "nvidia",
}
PREPARE = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$0"
for tree in usr var; do
  mkdir -p "$0/$tree" "$0/work-$tree"
  mount -t overlay overlay -o "lowerdir=/$tree,upperdir=$0/$tree,workdir=$0/work-$tree" "/$tree"
done
rm -rf /var/lib/gpunode /var/lib/dkms /var/lib/nvidia /lib/modules /usr/local/cuda*
for kernel in KERNELS; do mkdir -p "/lib/modules/$kernel/build"; done
echo ready
exec sleep infinity
"""


class Sandbox:
    """A mount namespace: /usr and /var may be written to, and nothing of that stays."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid, self.folder = pid, folder
        self.put("/usr/local/sbin/dkms", DKMS)
        self.put("/usr/local/sbin/modinfo", MODINFO)

    def sh(self, text: str) -> subprocess.CompletedProcess[str]:
        command = ["nsenter", "--mount", f"--target={self.pid}", "sh", "-s"]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    def put(self, path: str, text: str) -> None:
        self.sh(f"cat >{path} <<'END'\n{text}END\nchmod 755 {path}\n")

    def run(self, mode: str, value: dict[str, Any], given: Path | None = None) -> Outcome:
        request = runfile_request(mode, value, given=str(given or ""))
        done = self.sh(program(script("runfile.sh"), request))
        return parse_outcome(done.stdout, done.returncode)

    def install(self, value: dict[str, Any], data: bytes) -> Outcome:
        """Fetch and install, as the roles do."""
        file = self.folder / value["name"]
        file.write_bytes(data)
        fetched = self.run("fetch", value | {"sha256": hashlib.sha256(data).hexdigest()}, given=file)
        assert fetched.status in ("changed", "unchanged"), fetched
        return self.run("install", value)

    def journal(self) -> list[dict[str, Any]]:
        lines = self.sh("cat /var/lib/gpunode/journal.jsonl").stdout.splitlines()
        return [record for record in map(json.loads, lines) if record["op"] == "runfile"]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    mount = tmp_path / "mount"
    mount.mkdir()
    text = PREPARE.replace("KERNELS", " ".join(KERNELS))
    command = ["unshare", "--mount", "sh", "-c", text, str(mount)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        if process.stdout.readline() != "ready\n":
            pytest.skip("no mount namespace, or no overlay file system here")
        yield Sandbox(process.pid, tmp_path)
        process.kill()


def driver(version: str, modules: Any = "open", **more: Any) -> dict[str, Any]:
    options = installer_options(version, modules, load_knowledge().driver_runfile)
    name = f"NVIDIA-Linux-x86_64-{version}.run"
    return {"kind": "driver", "name": name, "version": version, "modules": modules, "options": list(options), **more}


def cuda() -> dict[str, Any]:
    options = [*load_knowledge().cuda_runfile["options"], "--toolkitpath=/usr/local/cuda-12.8"]
    return {"kind": "cuda", "name": "cuda.run", "version": "12.8", "options": options}


def status(sandbox: Sandbox) -> list[str]:
    return sorted(line.split(", x86_64")[0] for line in sandbox.sh("dkms status").stdout.splitlines())


def built(version: str) -> list[str]:
    return [f"nvidia/{version}, {kernel}" for kernel in KERNELS]


def test_a_driver_is_built_for_every_kernel_once_and_again_where_a_module_went_missing(sandbox: Sandbox) -> None:
    outcome = sandbox.install(driver(NEW), driver_runfile(NEW, TEXTS))
    assert (outcome.status, outcome.texts[0]) == ("changed", f"installed driver {NEW}")
    assert status(sandbox) == built(NEW)
    assert sandbox.sh("ls /var/lib/gpunode/runfile").stdout == ""
    assert sandbox.run("install", driver(NEW)).status == "unchanged"
    sandbox.sh(f"sed -i '/{KERNELS[0]}/d' /var/lib/dkms/built")
    again = sandbox.run("install", driver(NEW))
    assert again.texts == (f"built nvidia {NEW} {KERNELS[0]};",)
    assert status(sandbox) == built(NEW)
    assert [(r["phase"], r.get("version")) for r in sandbox.journal()] == [("intent", NEW), ("done", NEW)]


def test_another_version_and_another_flavour_take_the_place_of_the_old(sandbox: Sandbox) -> None:
    sandbox.install(driver(OLD), driver_runfile(OLD, TEXTS))
    newer = sandbox.install(driver(NEW), driver_runfile(NEW, TEXTS))
    assert newer.texts[0] == f"installed driver {NEW} in place of {OLD}"
    assert (status(sandbox), sandbox.sh(f"modinfo -k {KERNELS[0]}").stdout) == (built(NEW), "Dual MIT/GPL\n")
    other = sandbox.install(driver(NEW, "proprietary"), driver_runfile(NEW, TEXTS))
    assert other.status == "changed"
    assert {sandbox.sh(f"modinfo -k {kernel}").stdout for kernel in KERNELS} == {"NVIDIA\n"}


def test_a_compiler_that_fails_is_what_is_reported_and_the_file_stays_for_the_next_run(sandbox: Sandbox) -> None:
    sandbox.sh("touch /usr/broken-compiler")
    outcome = sandbox.install(driver(NEW), driver_runfile(NEW, TEXTS))
    assert (outcome.status, "error: this compiler is broken" in outcome.message) == ("failed", True)
    assert "/var/log/nvidia-installer.log" in outcome.fix
    assert (status(sandbox), sandbox.sh("ls /var/lib/nvidia/log").returncode) == ([], 2)
    assert sandbox.journal()[-1]["phase"] == "failed"
    sandbox.sh("rm /usr/broken-compiler")
    assert sandbox.run("install", driver(NEW)).status == "changed"
    assert status(sandbox) == built(NEW)


@pytest.fixture
def running(sandbox: Sandbox) -> Sandbox:
    """A driver with modules of others upon it, and a service that keeps it open."""
    sandbox.put("/usr/local/sbin/modprobe", MODPROBE)
    sandbox.put("/usr/local/sbin/systemctl", SYSTEMCTL)
    sandbox.put("/usr/modules", "".join(f"{name} {needs}\n" for name, needs in MODULES.items()))
    sandbox.put("/usr/active", "nvidia-dcgm\n")
    sandbox.sh("mount -t tmpfs tmpfs /sys/module")
    for name in MODULES:
        assert sandbox.sh(f"modprobe {name}").returncode == 0
    return sandbox


OLDER = "535.309.01"  # refuses to run while a driver is loaded


def loaded(sandbox: Sandbox) -> list[str]:
    return sandbox.sh("ls /sys/module").stdout.split()


def test_an_old_installer_finds_no_driver_loaded_and_all_that_was_is_loaded_again(running: Sandbox) -> None:
    outcome = running.install(driver(OLDER), driver_runfile(OLDER, TEXTS))
    assert outcome.status == "changed", outcome
    begun = outcome.texts.index(f"installed driver {OLDER}")
    before, after = outcome.texts[:begun], outcome.texts[begun:]
    assert {f"unloaded {name}" for name in MODULES} == set(before) and before[-1] == "unloaded nvidia"
    assert {"loaded gdrdrv", "loaded nvidia_fs"} < set(after)
    assert (loaded(running), running.sh("cat /usr/active").stdout) == (sorted(MODULES), "nvidia-dcgm\n")


def test_a_module_that_the_new_driver_has_not_is_said(running: Sandbox) -> None:
    running.sh("sed -i /^gdrdrv/d /usr/modules")
    outcome = running.install(driver(OLDER), driver_runfile(OLDER, TEXTS))
    assert (outcome.status, loaded(running)) == ("changed", sorted({*MODULES} - {"gdrdrv"}))
    assert any(
        note.startswith("gdrdrv was unloaded for a while, and does not load now: modprobe: ") for note in outcome.notes
    )


def test_a_driver_in_use_is_refused_and_stays_as_it_was(running: Sandbox) -> None:
    running.sh("touch /sys/module/nvidia_uvm/busy")
    outcome = running.install(driver(OLDER), driver_runfile(OLDER, TEXTS))
    assert (outcome.status, "while the module nvidia_uvm is loaded" in outcome.message) == ("refused", True)
    assert (loaded(running), running.sh("cat /usr/active").stdout) == (sorted(MODULES), "nvidia-dcgm\n")


def test_an_option_that_the_installer_does_not_know_is_said(sandbox: Sandbox) -> None:
    outcome = sandbox.install(driver(NEW, options=["--silent", "--dkms", "--no-such"]), driver_runfile(NEW, TEXTS))
    assert (outcome.status, "invalid option: --no-such" in outcome.message) == ("failed", True)


def test_the_files_of_a_package_are_not_written_over(sandbox: Sandbox) -> None:
    sandbox.put("/usr/local/sbin/dpkg", '#!/bin/sh\necho "libnvidia-ml1:amd64: $2"\n')
    sandbox.sh("mkdir -p /usr/lib/x86_64-linux-gnu && touch /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    outcome = sandbox.install(driver(NEW), driver_runfile(NEW, TEXTS))
    assert (outcome.status, "the package libnvidia-ml1:amd64 has" in outcome.message) == ("refused", True)
    assert sandbox.sh("ls /var/lib/nvidia").returncode == 2


def test_a_driver_is_taken_off_with_all_that_it_brought(sandbox: Sandbox) -> None:
    sandbox.install(driver(NEW), driver_runfile(NEW, TEXTS))
    gone = sandbox.run("uninstall", {"kind": "driver", "version": NEW})
    assert gone.texts == (f"took off the driver {NEW} that a runfile installed",)
    left = sandbox.sh("ls -d /var/lib/nvidia /usr/bin/nvidia-* /usr/src/nvidia-* 2>/dev/null").stdout
    assert (left, status(sandbox)) == ("", [])
    assert sandbox.run("uninstall", {"kind": "driver", "version": NEW}).status == "unchanged"


def test_a_toolkit_comes_and_goes(sandbox: Sandbox) -> None:
    outcome = sandbox.install(cuda(), cuda_runfile(TOOLKIT, TEXTS))
    assert outcome.texts == ("installed CUDA 12.8 in /usr/local/cuda-12.8",)
    assert "release 12.8, V12.8.93" in sandbox.sh("/usr/local/cuda/bin/nvcc --version").stdout
    assert sandbox.run("install", cuda()).status == "unchanged"
    assert sandbox.run("uninstall", {"kind": "cuda", "version": "12.8"}).status == "changed"
    assert sandbox.sh("ls -d /usr/local/cuda*").returncode == 2
