"""GPU metrics for node_exporter: what the script writes, with an nvidia-smi that answers as real ones do."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.model import ConfigFile, NodeFacts, Plan, Service
from gpunode.core.spec import parse_spec
from gpunode.edge.desired import DesiredState, load_templates

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "gpunode/node/activate/metrics.sh"
SHELLS = [shell for shell in ("dash", "bash", "busybox sh") if shutil.which(shell.split()[0])]
FOLDER = "/var/lib/prometheus/node-exporter"

SMI = r"""#!/bin/sh
[ -e "$HERE/broken" ] && { echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9; }
case $1 in
  --query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure)
    [ -e "$HERE/old" ] && { echo "Invalid combination of input arguments. Please run 'nvidia-smi -h'."; exit 2; }
    if [ -e "$HERE/550" ]; then echo 'GPU-aaaa, 0, 1'; else echo 'GPU-aaaa, No, Yes'; fi
    echo 'GPU-bbbb, [N/A], [N/A]' ;;
  *remapped_rows*)
    echo 'Field "remapped_rows.pending" is not a valid field to query.'; exit 2 ;;
  *)
    echo '0, GPU-aaaa, NVIDIA A100-SXM4-80GB, 87, 1024, 81920, 51, 312.55, 1410, 3, 0'
    echo '1, GPU-bbbb, NVIDIA "T4", 0, 0, 15360, 38, [Not Supported], 300, [N/A], [N/A]' ;;
esac
"""
LOG = r"""#!/bin/sh
cat <<'END'
nvidia: module license 'NVIDIA' taints kernel.
NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
NVRM: Xid (PCI:0000:17:00): 31, pid=1234, name=python, Ch 00000008
NVRM: Xid (PCI:0000:17:00): 31, pid=1235, name=python, Ch 00000008
NVRM: Xid (PCI:0000:18:00 GPU-I:05): 94, pid=7194, name=python, Contained: SM (0x1). RST: No, D-RST: No
END
"""


class Host:
    """A folder with nvidia-smi, a kernel log and PCI devices."""

    def __init__(self, folder: Path) -> None:
        self.here, self.out = folder, folder / "out"
        (folder / "bin").mkdir()
        self.out.mkdir()
        (folder / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01\n")
        for name, text in (("nvidia-smi", SMI), ("journalctl", LOG)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        devices = (("17", "10de", "0302"), ("18", "10de", "0302"), ("19", "10de", "0680"), ("1a", "8086", "0300"))
        for slot, vendor, kind in devices:
            device = folder / f"pci/0000:{slot}:00.0"
            device.mkdir(parents=True)
            (device / "vendor").write_text(f"0x{vendor}\n")
            (device / "class").write_text(f"0x{kind}00\n")

    def run(self, shell: str) -> str:
        env = {"PATH": f"{self.here}/bin:/usr/bin:/bin", "HERE": str(self.here), "GPUNODE_PCI": f"{self.here}/pci"}
        env["GPUNODE_LOADED"] = f"{self.here}/version"
        done = subprocess.run(
            [*shell.split(), str(SCRIPT), str(self.out)], env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert [path.name for path in self.out.iterdir()] == ["gpunode.prom"]
        return (self.out / "gpunode.prom").read_text()


def samples(text: str) -> dict[str, float]:
    """Metric with labels → value; every metric has its HELP and TYPE right before it, and stands in one place."""
    found: dict[str, float] = {}
    name, done = "", set()
    for line in text.splitlines():
        words = line.split()
        if line.startswith("# HELP "):
            assert words[2] not in done
            name = words[2]
            done.add(name)
        elif line.startswith("# TYPE "):
            assert words[2] == name
            assert words[3] == ("counter" if name.endswith("_total") else "gauge")
        else:
            metric, _, value = line.rpartition(" ")
            assert metric.partition("{")[0] == name
            found[metric] = float(value)
    return found


A100 = '{gpu="0",UUID="GPU-aaaa",name="NVIDIA A100-SXM4-80GB"}'
T4 = '{gpu="1",UUID="GPU-bbbb",name="NVIDIA T4"}'
HOST = {"gpunode_driver_up": 1, "gpunode_gpus": 2, "gpunode_gpus_pci": 2}
XIDS = {
    'gpunode_gpu_xid_total{pci="0000:17:00",xid="31"}': 2,
    'gpunode_gpu_xid_total{pci="0000:17:00",xid="79"}': 1,
    'gpunode_gpu_xid_total{pci="0000:18:00",xid="94"}': 1,
}
BASE = {
    f"gpunode_gpu_utilization_ratio{A100}": 0.87,
    f"gpunode_gpu_utilization_ratio{T4}": 0,
    f"gpunode_gpu_memory_used_bytes{A100}": 1073741824,
    f"gpunode_gpu_memory_used_bytes{T4}": 0,
    f"gpunode_gpu_memory_total_bytes{A100}": 85899345920,
    f"gpunode_gpu_memory_total_bytes{T4}": 16106127360,
    f"gpunode_gpu_temperature_celsius{A100}": 51,
    f"gpunode_gpu_temperature_celsius{T4}": 38,
    f"gpunode_gpu_power_watts{A100}": 312.55,
    f"gpunode_gpu_sm_clock_hertz{A100}": 1410000000,
    f"gpunode_gpu_sm_clock_hertz{T4}": 300000000,
    f"gpunode_gpu_ecc_corrected_total{A100}": 3,
    f"gpunode_gpu_ecc_uncorrected_total{A100}": 0,
}
ROWS = {f"gpunode_gpu_row_remap_pending{A100}": 0, f"gpunode_gpu_row_remap_failed{A100}": 1}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_value_that_a_gpu_has_is_written(shell: str, tmp_path: Path) -> None:
    assert samples(Host(tmp_path).run(shell)) == {**HOST, **XIDS, **BASE, **ROWS}


@pytest.mark.parametrize("shell", SHELLS)
def test_older_drivers_say_0_and_1_of_remapped_rows(shell: str, tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "550").touch()
    assert samples(host.run(shell)) == {**HOST, **XIDS, **BASE, **ROWS}


def test_nvidia_smi_is_not_started_without_a_driver(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "version").unlink()
    (tmp_path / "bin/nvidia-smi").write_text('#!/bin/sh\ntouch "$HERE/started"\n')
    assert samples(host.run("sh")) == {**HOST, **XIDS, "gpunode_driver_up": 0, "gpunode_gpus": 0}
    assert not (tmp_path / "started").exists()


def test_a_driver_that_knows_no_row_remapping_loses_those_alone(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "old").touch()
    assert samples(host.run("sh")) == {**HOST, **XIDS, **BASE}


def test_a_broken_driver_is_a_metric(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.run("sh")
    (tmp_path / "broken").touch()
    assert samples(host.run("sh")) == {**HOST, **XIDS, "gpunode_driver_up": 0, "gpunode_gpus": 0}


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(["sh", str(SCRIPT), str(tmp_path / "no")], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert not (tmp_path / "no").exists()


# ---------------------------------------------------------------- on a node

UNITS = "/etc/systemd/system/gpunode-metrics"
FILES = (f"{UNITS}.service", f"{UNITS}.timer", "/usr/lib/gpunode/metrics")


def facts(**more: Any) -> NodeFacts:
    return replace(parse_probe((ROOT / "tests/cases/probes/debian12-h100-fresh/probe.txt").read_text()), **more)


def planned(node: NodeFacts) -> Plan:
    spec = {"driver": {"branch": "none"}, "toolkit": {"version": "none"}, "fabric": {"metrics": FOLDER}}
    return DesiredState(spec).plan("node1", node).plan


def test_a_node_gets_the_script_and_a_timer() -> None:
    steps = {step.id: step.value for step in planned(facts()).steps if step.role == "fabric"}
    assert [file["path"] for file in sorted(steps["fabric.files"], key=lambda file: file["path"])] == list(FILES)
    texts = {file["path"]: file["content"] for file in steps["fabric.files"]}
    assert texts[FILES[2]] == SCRIPT.read_text()
    assert f"ExecStart=/bin/sh /usr/lib/gpunode/metrics {FOLDER}\n" in texts[FILES[0]]
    assert steps["fabric.activate"] == {"services": ["gpunode-metrics.timer"]}


def test_a_node_that_measures_has_nothing_to_do() -> None:
    steps = {step.id: step.value for step in planned(facts()).steps if step.role == "fabric"}
    here = {}
    for file in steps["fabric.files"]:
        data = file["content"].encode()
        here[file["path"]] = ConfigFile(
            path=file["path"], data=data, sha256=hashlib.sha256(data).hexdigest(), mode=0o644
        )
    timer = {"gpunode-metrics.timer": Service(name="gpunode-metrics.timer", active="active", enabled="enabled")}
    assert [step.id for step in planned(facts(files=here, services=timer)).steps if step.role == "fabric"] == []


@pytest.mark.parametrize("folder", ["metrics", "/var/lib/a b", "/x;reboot", "/"])
def test_a_folder_that_is_no_plain_path_is_refused(folder: str) -> None:
    with pytest.raises(InputError, match=r"fabric\.metrics"):
        parse_spec({"fabric": {"metrics": folder}})


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    from gpunode.core.items.file import render

    templates = load_templates()
    for name in ("metrics.service", "metrics.timer"):
        (tmp_path / f"gpunode-{name}").write_text(render(templates[f"{name}.j2"], folder=FOLDER))
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "gpunode-metrics" in line] == []
