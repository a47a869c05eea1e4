"""NVIDIA's runfiles on a node: stand-ins of the installers, fetched over HTTP or given, with the real DKMS and apt."""

from __future__ import annotations

import hashlib
import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.core.model import ENDS
from gpunode.lab import Lab

pytestmark = pytest.mark.lab

TREE = (
    "find /etc /usr /boot /lib/modules /var/lib/dkms /var/lib/gpunode /var/lib/nvidia -xdev -type f -not -name lock "
    "-printf '%p %m %u %T@\\n' 2>/dev/null | sort"
)
OLD, NEW = "570.211.01", "580.178.04"
CUDA = "cuda_12.8.2_570.211.01_linux.run"


class Node:
    """One lab node, gpunode on it, and the lab's server of runfiles."""

    def __init__(self, lab: Lab, run: Any, tmp: Path) -> None:
        self.lab, self._run, self.tmp = lab, run, tmp
        self.base = yaml.safe_load(lab.spec.read_text())
        self.url = self.base["sources"]["nvidia-cuda"]["url"].partition("/cuda/")[0] + "/runfile"
        self.spec = tmp / "gpunode.yml"

    def set(self, **spec: Any) -> None:
        self.spec.write_text(yaml.safe_dump({**self.base, "toolkit": {"version": "none"}, **spec}))

    def gpunode(self, verb: str, *args: object, exit: int = 0) -> dict[str, Any]:
        arguments = (verb, "-i", self.lab.inventory, "-c", self.spec, *args, "--format", "json")
        done: subprocess.CompletedProcess[str] = self._run(*arguments, exit=exit)
        data = json.loads(done.stdout)
        assert "hosts" in data, data
        [host] = data["hosts"]
        return dict(host)

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def file(self, name: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}/{name}") as answer:
            return bytes(answer.read())

    def driver(self, version: str, **more: Any) -> dict[str, Any]:
        sha256 = hashlib.sha256(self.file(f"NVIDIA-Linux-x86_64-{version}.run")).hexdigest()
        url = f"{self.url}/NVIDIA-Linux-{{arch}}-{{version}}.run"
        runfile = {"url": url, "sha256": sha256, **more}
        return {"method": "runfile", "version": version, "runfile": runfile}


@pytest.fixture(scope="module")
def node(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Debian 12, one H100 that nouveau holds, no engine."""
    lab = lab_up(distro="debian:12", gpus=("h100",), nouveau=True, engines=())
    made = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"))
    made.sh("echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/lab")  # a machine of many tests is slow at fsync
    return made


def converged(node: Node) -> None:
    """Nothing left to do, a second run touches nothing, and verify's checks pass."""
    assert node.gpunode("plan")["converged"]
    before = node.sh(TREE)
    again = node.gpunode("provision", "--yes")
    assert again["changed"] == [] and "nothing to do" in again["message"]
    assert node.sh(TREE) == before
    checks = node.gpunode("verify")["checks"]
    assert [c["message"] for c in checks if c["status"] in ENDS] == []
    assert "driver.smi" in [c["id"] for c in checks if c["status"] == "passed"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("runfile", "says"),
    [
        ({"sha256": "ab" * 32}, "has the SHA-256 "),
        ({"url": "{root}/login.html", "sha256": "ab" * 32}, "is a web page, not an installer"),
        ({"url": "{root}/gone.run", "sha256": "ab" * 32}, "cannot be fetched"),
    ],
    ids=["wrong checksum", "HTML", "404"],
)
def test_a_wrong_file_is_one_message_and_the_node_is_untouched(node: Node, runfile: dict[str, str], says: str) -> None:
    refused(node, runfile, says)  # fetched by the controller: the node has no downloader
    node.sh(
        "command -v wget || mv /usr/bin/wget.away /usr/bin/wget || { apt-get -q update && apt-get -q install -y wget; }"
    )
    refused(node, runfile, says)  # and by the node itself
    node.sh("mv /usr/bin/wget /usr/bin/wget.away")


def refused(node: Node, runfile: dict[str, str], says: str) -> None:
    spec = node.driver(OLD)
    spec["runfile"] |= {key: text.replace("{root}", node.url) for key, text in runfile.items()}
    node.set(driver=spec)
    before = node.sh(f"{TREE} | grep -v /var/lib/gpunode")
    host = node.gpunode("provision", "--yes", exit=None)
    assert says in json.dumps(host)
    assert node.sh(f"{TREE} | grep -v /var/lib/gpunode") == before
    assert node.sh("ls /var/lib/gpunode/runfile 2>/dev/null; true") == ""


@pytest.mark.timeout(1800)
def test_the_runfile_is_run_and_its_modules_built_by_dkms(node: Node) -> None:
    node.set(driver=node.driver(OLD))
    before = node.sh(TREE)
    checked = node.gpunode("provision", "--check", exit=3)
    assert node.sh(TREE) == before
    assert f"fetch NVIDIA-Linux-x86_64-{OLD}.run" in checked["changed"]
    done = node.gpunode("provision", "--yes")
    assert f"installed driver {OLD}" in done["changed"]
    assert f"nvidia/{OLD}" in node.sh("dkms status").replace(", ", "/", 1)
    assert "Dual MIT/GPL" in node.sh("modinfo -F license nvidia")
    assert node.sh("cat /sys/module/nvidia/version").strip() == OLD
    assert node.sh("ls /var/lib/gpunode/runfile; ls -d /tmp/selfgz* 2>/dev/null; true") == ""
    converged(node)


@pytest.mark.timeout(1800)
def test_a_module_that_went_missing_is_built_again_without_the_file(node: Node) -> None:
    node.sh(f"dkms uninstall nvidia/{OLD} -k $(uname -r)")
    done = node.gpunode("provision", "--yes")
    assert any(line.startswith("built nvidia") for line in done["changed"]), done["changed"]
    converged(node)


@pytest.mark.timeout(1800)
def test_a_build_that_fails_is_said_with_its_log_and_the_next_run_converges(node: Node) -> None:
    node.set(driver=node.driver(NEW))
    header = "/lib/modules/$(uname -r)/build/include/generated/utsrelease.h"
    node.sh(f"cp {header} /root/header && echo '#error these headers are broken' >>{header}")
    host = node.gpunode("provision", "--yes", exit=None)
    assert "these headers are broken" in host["message"]
    node.sh(f"cp /root/header {header}")
    # a file on the controller, in place of the URL
    file = node.tmp / "given.run"
    file.write_bytes(node.file(f"NVIDIA-Linux-x86_64-{NEW}.run"))
    node.set(driver=node.driver(NEW, url="", path=str(file)))
    done = node.gpunode("provision", "--yes")
    assert any(f"installed driver {NEW}" in line for line in done["changed"]), done["changed"]
    assert node.sh("cat /sys/module/nvidia/version").strip() == NEW
    converged(node)


@pytest.mark.timeout(1800)
def test_cuda_comes_by_its_runfile_and_nvcc_is_on_the_path(node: Node) -> None:
    sha256 = hashlib.sha256(node.file(CUDA)).hexdigest()
    runfiles = {"12.8": {"url": f"{node.url}/{CUDA}", "sha256": sha256}}
    node.set(driver=node.driver(NEW), cuda={"versions": ["12.8"], "method": "runfile", "runfiles": runfiles})
    done = node.gpunode("provision", "--yes")
    assert "installed CUDA 12.8 in /usr/local/cuda-12.8" in done["changed"]
    assert node.sh("bash -lc 'nvcc --version'").splitlines()[-1] == "Cuda compilation tools, release 12.8, V12.8.93"
    converged(node)


@pytest.mark.timeout(1800)
def test_to_packages_and_back_one_driver_at_a_time(node: Node) -> None:
    node.set(driver={"branch": "580", "method": "auto"})
    assert "was installed by NVIDIA's runfile" in json.dumps(node.gpunode("plan", exit=5)["problems"])
    node.set(driver={"branch": "580", "method": "packages"})
    done = node.gpunode("provision", "--yes")
    assert f"took off the driver {NEW} that a runfile installed" in done["changed"]
    assert node.sh("ls /var/lib/nvidia/log /usr/bin/nvidia-uninstall 2>/dev/null; true") == ""
    assert "nvidia-driver-cuda" in node.sh("dpkg -S /usr/bin/nvidia-smi")
    converged(node)
    node.set(driver=node.driver(OLD))
    done = node.gpunode("provision", "--yes")
    assert f"installed driver {OLD}" in done["changed"]
    assert "libnvidia-ml1" not in node.sh("dpkg-query -W -f '${Package} ${db:Status-Abbrev}\\n' | grep ' ii' || true")
    converged(node)


def test_the_journal_reports_every_installer(node: Node) -> None:
    lines = [json.loads(line) for line in node.sh("cat /var/lib/gpunode/journal.jsonl").splitlines()]
    runs = [(r["phase"], r.get("version") or r.get("remove")) for r in lines if r["op"] == "runfile"]
    assert ("done", OLD) in runs and ("done", NEW) in runs and ("failed", None) in runs
    states = [(r["name"], r["from"], r["to"]) for r in lines if r.get("kind") == "runfile"]
    assert states[0] == ("driver", "absent", OLD)
    assert ("cuda-12.8", "absent", "12.8") in states
