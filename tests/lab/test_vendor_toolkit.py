"""NVIDIA's own container toolkit and mig-parted judge what gpunode makes and proves, on a node with two H100.

GPUNODE_VENDOR names a folder with nvidia-ctk, nvidia-cdi-hook, nvidia-container-runtime and
nvidia-container-runtime-hook, built from NVIDIA's sources; nvidia-mig-parted and nvidia-container-cli with its
libraries are asked where they are there.  nvidia-smi is NVIDIA's as well; the library that it asks is the lab's.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from daemon_node import DaemonNode
from test_gpu_containers import SMI_IMAGE

from gpunode.core.facts.cdi import KIND, read_spec
from gpunode.edge.load import load_questions

FOLDER = os.environ.get("GPUNODE_VENDOR", "")
SPECIFICATION = "/run/cdi/nvidia.yaml"
CONFIG = "/etc/nvidia-container-runtime/config.toml"
WAYS = ("containerd.binary", "containerd.cri-nvidia", "docker.runtime", "docker.gpus-all")

# mig-parted reads /proc/modules, which a kernel without modules lacks: a /proc of links that has the node's
_PROC = (
    "mkdir -p /run/p && mount --rbind /proc /run/p && mount -t tmpfs none /proc && "
    'for f in /run/p/*; do case ${f##*/} in [0-9]* | modules) ;; *) ln -s "$f" /proc/ ;; esac; done && '
    'ln -s /lab/proc/modules /proc/modules && exec "$@"'
)

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        not (Path(FOLDER) / "nvidia-ctk").is_file(), reason="GPUNODE_VENDOR names no folder with NVIDIA's nvidia-ctk"
    ),
]


class Vendor(DaemonNode):
    """A provisioned node with NVIDIA's programs."""

    gpunode: Callable[..., Any]

    def checks(self, exit: int | None = 0) -> dict[str, dict[str, str]]:
        done = self.gpunode("verify", "-i", self.lab.inventory, "-c", self.lab.spec, "--format", "json", exit=exit)
        [host] = json.loads(done.stdout)["hosts"]
        return {check["id"]: check for check in host["checks"]}

    def specification(self) -> str:
        return self.sh("nvidia-ctk cdi generate 2>/dev/null")

    @contextmanager
    def config(self, **settings: str) -> Iterator[None]:
        """The toolkit's settings, by its own nvidia-ctk; as before afterwards."""
        words = shlex.join(
            f"--set={key.replace('__', '.').replace('_', '-')}={value}" for key, value in settings.items()
        )
        self.sh(f"cp {CONFIG} /root/config.toml && nvidia-ctk config --in-place {words}")
        try:
            yield
        finally:
            self.sh(f"cp /root/config.toml {CONFIG}")


@pytest.fixture(scope="module")
def node(lab_up: Callable[..., Any], run_gpunode: Callable[..., Any]) -> Vendor:
    node = Vendor(lab_up(distro="debian:13", gpus=("h100", "h100"), vendor=FOLDER))
    if (Path(FOLDER) / "nvidia-container-cli").exists():
        node.sh("apt-get -qq update; apt-get -qq install libtirpc3t64 libseccomp2 libelf1t64 >/dev/null 2>&1")
    node.gpunode = run_gpunode
    run_gpunode("provision", "-i", node.lab.inventory, "-c", node.lab.spec, "--yes")
    if "stand-in" in node.sh("nvidia-smi --version"):
        pytest.skip("no network: the node has a script in place of NVIDIA's nvidia-smi, and no NVML")
    return node


def test_the_programs_that_judge_are_nvidia_s(node: Vendor) -> None:
    for program in ("nvidia-ctk", "nvidia-container-runtime"):
        said = node.sh(f"{program} --version")
        assert "commit: " in said
        assert "stand-in" not in said
    assert "NVIDIA CDI Hook" in node.sh("nvidia-cdi-hook --help")


def test_the_specification_is_read_right_and_fits(node: Vendor) -> None:
    spec = read_spec(SPECIFICATION, node.specification().encode())
    assert spec.kind == KIND
    uuids = node.sh("nvidia-smi --query-gpu=uuid --format=csv,noheader").split()
    assert set(spec.devices) == {"0", "1", "all", *uuids}
    assert spec.minors == (0, 1)
    assert spec.driver == node.sh("cat /sys/module/nvidia/version").strip()
    assert node.checks()["cdi.fresh"]["status"] == "passed"


STUB = "sed '/^own=/d; /\"$own\"/d' /usr/bin/nvidia-ctk >/tmp/ctk; sh /tmp/ctk cdi generate"


def test_the_stub_of_nvidia_ctk_writes_what_the_real_one_writes(node: Vendor) -> None:
    real, stub = (yaml.safe_load(said) for said in (node.specification(), node.sh(STUB)))
    edits = real["containerEdits"], stub["containerEdits"]
    assert stub["devices"] == real["devices"]
    for key in ("deviceNodes", "env"):
        assert edits[1][key] == edits[0][key]
    hooks = [{hook["args"][1]: hook for hook in edit["hooks"]} for edit in edits]
    assert list(hooks[1]) == list(hooks[0])
    for hook in ("enable-cuda-compat", "update-ldcache", "disable-device-node-modification"):
        assert hooks[1][hook] == hooks[0][hook]
    mounts = [{mount["containerPath"]: mount for mount in edit["mounts"]} for edit in edits]
    firmware = {path for path in mounts[0] if "/firmware/" in path}
    assert set(mounts[1]) == set(mounts[0]) - firmware
    assert all(mounts[1][path] == mounts[0][path] for path in mounts[1])


def test_the_stub_writes_the_toolkit_s_own_configuration(node: Vendor) -> None:
    node.sh("sed '/^own=/d; /\"$own\"/d' /usr/bin/nvidia-ctk >/tmp/ctk")
    real = node.sh("nvidia-ctk --quiet config --config=/nonexistent 2>/dev/null || nvidia-ctk --quiet config")
    stub = node.sh(f"mv {CONFIG} /root/kept; sh /tmp/ctk config; cat {CONFIG}; mv /root/kept {CONFIG}")
    assert stub.split() == real.split()


@pytest.mark.parametrize("mode", ["auto", "legacy", "cdi", "jit-cdi"])
def test_containers_see_the_gpus_in_each_mode_of_the_runtime(mode: str, node: Vendor) -> None:
    node.sh(f"mkdir -p /run/cdi && nvidia-ctk cdi generate --output={SPECIFICATION} 2>/dev/null")
    with node.config(nvidia_container_runtime__mode=mode):
        found = node.checks()
    by_hook = mode in ("auto", "legacy")
    for way in WAYS[:3] if not by_hook else WAYS:
        assert found[f"{way}.gpus"]["status"] == "passed", found[way]
        assert found[f"{way}.gpus"]["message"] == "the container sees all 2 GPUs"
    if not by_hook:
        assert found["docker.gpus-all"]["status"] == "not-proven"
        assert "NVIDIA Container Runtime Hook directly" in found["docker.gpus-all"]["message"]


def test_where_variables_are_not_taken_containers_ask_by_mounts(node: Vendor) -> None:
    refused = {"accept_nvidia_visible_devices_envvar_when_unprivileged": "false"}
    with node.config(**refused):
        found = node.checks()
        assert {found[f"{way}.gpus"]["status"] for way in WAYS} == {"not-proven"}
        assert "envvar-when-unprivileged = false" in found["docker.runtime.gpus"]["message"]
    with node.config(**refused, accept_nvidia_visible_devices_as_volume_mounts="true"):
        found = node.checks()
        assert {found[f"{way}.gpus"]["status"] for way in WAYS} == {"passed"}


@pytest.mark.parametrize(("ill", "words"), [("lost", "GPU is lost"), ("reset", "GPU requires reset")])
def test_a_gpu_that_cannot_be_asked_has_failed(ill: str, words: str, node: Vendor) -> None:
    health = node.node.hardware / "standin-health"
    health.write_text(f"0000:17:00.0\t{ill}\t1\n")
    try:
        check = node.checks(exit=1)["driver.smi"]
    finally:
        health.unlink()
    assert check["status"] == "failed"
    assert words in check["message"]
    assert node.checks()["driver.smi"]["status"] == "passed"


def test_nvidia_container_cli_finds_the_driver(node: Vendor) -> None:
    said = node.sh("nvidia-container-cli --version")
    if "stand-in" in said:
        pytest.skip("GPUNODE_VENDOR has no nvidia-container-cli")
    assert node.sh("nvidia-container-cli info").count("GPU UUID:") == 2
    assert "/usr/bin/nvidia-smi" in node.sh("nvidia-container-cli list").splitlines()


@pytest.mark.parametrize("program", ["nvidia-ctk", "nvidia-container-cli"])
def test_every_row_of_the_table_of_questions_is_taken(program: str, node: Vendor) -> None:
    if "stand-in" in node.sh(f"{program} --version"):
        pytest.skip(f"GPUNODE_VENDOR has no {program}")
    rows = [row for row in load_questions().commands if row.program == program]
    said = {row.words: node.run(f"{program} {' '.join(row.words).replace('FILE', '/tmp/q.yaml')}") for row in rows}
    failed = {words: done.stderr for words, done in said.items() if done.returncode}
    # the kernel's /proc/devices has no driver's numbers
    assert {words: text for words, text in failed.items() if "no NVIDIA devices found" not in text} == {}
    assert node.run(f"{program} --no-such-option").returncode != 0, "a word that it does not know is refused"


def test_a_container_gets_one_mig_device_by_the_specification(node: Vendor) -> None:
    node.sh("nvidia-smi -mig 1 && nvidia-smi mig -cgi 9,19,19 -C")
    try:
        devices = re.findall("MIG-[0-9a-f-]{36}", node.sh("nvidia-smi -L"))
        assert len(devices) == 6
        real, stub = (yaml.safe_load(said)["devices"] for said in (node.specification(), node.sh(STUB)))
        assert stub == real
        node.sh(f"mkdir -p /run/cdi && nvidia-ctk cdi generate --output={SPECIFICATION} 2>/dev/null")
        node.sh(SMI_IMAGE)
        run = "docker run --rm --network=none --runtime=nvidia"
        ask = f"{run} -e NVIDIA_VISIBLE_DEVICES={{}} smi nvidia-smi -L"
        with node.config(nvidia_container_runtime__mode="cdi"):
            for name, wanted in (("0:1", devices[1:2]), (devices[3], devices[3:4]), ("all", devices)):
                seen = node.sh(ask.format(f"{KIND}={name}"))
                assert re.findall("MIG-[0-9a-f-]{36}", seen) == wanted, (name, seen)
            found = node.checks(exit=None)
        assert found["cdi.fresh"]["status"] == "passed"
        assert found["containerd.cri-nvidia.gpus"]["status"] == "passed", found["containerd.cri-nvidia.gpus"]
    finally:
        node.sh("nvidia-smi mig -dci; nvidia-smi mig -dgi; nvidia-smi -mig 0")
        node.sh(f"nvidia-ctk cdi generate --output={SPECIFICATION} 2>/dev/null")


def test_mig_parted_and_the_specification_find_the_layout_that_gpunode_makes(node: Vendor) -> None:
    program = Path(FOLDER) / "nvidia-mig-parted"
    if not program.exists():
        pytest.skip("GPUNODE_VENDOR has no nvidia-mig-parted")
    spec = yaml.safe_load(node.lab.spec.read_text())
    layout = {"gpus": {"0": {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}, "1": {"1g.20gb": 3}}}
    path = node.lab.spec.with_name("mig.yml")
    path.write_text(yaml.safe_dump({**spec, "sharing": {"strategy": "mig", "mig": {"strategy": "mixed", **layout}}}))
    node.gpunode("provision", "-i", node.lab.inventory, "-c", path, "--yes")
    ask = shlex.join(("unshare", "-m", "sh", "-c", _PROC, "sh", f"/opt/nvidia/{program.name}"))
    done = node.run(f"{ask} assert -f /etc/gpunode/mig.yaml -c gpunode")
    assert "Selected MIG configuration currently applied" in done.stdout + done.stderr
    instances = {"0:0", "0:1", "0:2", "0:3", "1:0", "1:1", "1:2"}
    assert instances <= set(read_spec(SPECIFICATION, node.specification().encode()).devices)
    node.gpunode("provision", "-i", node.lab.inventory, "-c", node.lab.spec, "--yes")
