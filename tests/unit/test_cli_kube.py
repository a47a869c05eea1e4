"""gpunode kube render: what comes out where, and what is refused with one message."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpunode.core.errors import Exit, GpunodeError
from gpunode.kube.cli import kube


def render(tmp_path: Path, spec: Any, *args: str, version: str = "1.36") -> Result:
    file = tmp_path / "gpunode.yml"
    file.write_text(yaml.safe_dump(spec))
    given = ["--server-version", version] if version else []
    return CliRunner().invoke(kube, ["render", "-c", str(file), *given, *args], standalone_mode=False)


def refusal(tmp_path: Path, spec: Any, *args: str, version: str = "1.36") -> tuple[int, str]:
    """Exit code and message of a run that writes nothing."""
    run = render(tmp_path, spec, *args, version=version)
    assert run.stdout == ""
    if isinstance(run.exception, GpunodeError):
        return run.exception.exit, str(run.exception)
    read, _, reported = run.stderr.partition("\n")
    assert read.startswith("spec: ")
    return run.return_value, reported


def test_a_folder_gets_files_and_a_second_run_changes_none(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    spec = {"sharing": {"strategy": "gpushare"}}
    run = render(tmp_path, spec, "-o", str(folder))
    assert run.return_value == Exit.OK
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert sorted(line.removeprefix(f"{folder}/") for line in run.stdout.splitlines()) == written
    assert "20-gpushare-extender.yml" in written
    assert render(tmp_path, spec, "-o", str(folder)).stdout == f"{folder} is as it should be\n"
    render(tmp_path, {}, "-o", str(folder))
    assert not (folder / "20-gpushare-extender.yml").exists()


def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/00-namespace.yml").write_text("mine\n")
    code, reported = refusal(tmp_path, {}, "-o", str(tmp_path / "c"))
    assert code == Exit.REFUSED
    assert reported.startswith(f"{tmp_path}/c/00-namespace.yml exists, and gpunode did not write it\n")
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["00-namespace.yml"]


def test_standard_output_is_for_kubectl_and_notes_are_not(tmp_path: Path) -> None:
    run = render(tmp_path, {"sharing": {"strategy": "gpushare"}, "kubernetes": {"namespace": "kube-system"}})
    assert {item["kind"] for item in yaml.safe_load_all(run.stdout)} == {
        "RuntimeClass", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Service", "Deployment", "DaemonSet",
    }  # fmt: skip
    assert "note: gpushare counts memory, and limits no container: " in run.stderr
    assert "node: kubectl label nodes NODE gpushare=true --overwrite\n" in run.stderr


def test_json_holds_everything(tmp_path: Path) -> None:
    spec = {"sharing": {"strategy": "dra"}, "kubernetes": {"server_version": "1.33"}}
    data = json.loads(render(tmp_path, spec, "--format", "json", version="").stdout)
    assert data["server"] == "1.33"
    assert [release["chart"] for release in data["releases"]] == ["dra-driver-nvidia-gpu"]
    assert data["releases"][0]["values"]["resourceApiVersion"] == "resource.k8s.io/v1beta2"
    assert data["nodes"][0]["labels"] == {
        "nvidia.com/device-plugin.config": "default",
        "nvidia.com/gpu.present": "true",
    }
    assert data["problems"] == []


@pytest.mark.parametrize(("version", "reported"), [("1.32", True), ("1.33", True), ("1.34", False), ("1.37", False)])
def test_a_server_on_which_dra_is_off_is_reported(tmp_path: Path, version: str, reported: bool) -> None:
    run = render(tmp_path, {"sharing": {"strategy": "dra"}}, version=version)
    assert (f"note: DRA is off by default on {version}: " in run.stderr) is reported


SHARES = {"strategy": "time-slicing", "replicas": 4}
MEMORY = {"strategy": "dra", "dra": {"shares": "memory"}}


@pytest.mark.parametrize(
    ("spec", "version", "code", "reported"),
    [
        ({}, "", Exit.INPUT, "the server version is not given"),
        ({}, "latest", Exit.INPUT, "the server version is 'latest'"),
        ({}, "1.27", Exit.REFUSED, "kubernetes 1.27 is older than 1.28, the oldest that gpunode supports"),
        ({"sharing": {"strategy": "dra"}}, "1.31", Exit.REFUSED, "error: Kubernetes 1.31 has no DRA that NVIDIA's"),
        ({"sharing": {"strategy": "dra"}, "kubernetes": {"device_plugin": {"enabled": True}}}, "1.34", Exit.REFUSED,
         "error: the device plugin and the DRA driver on one node hand out the same GPUs"),
        ({"sharing": MEMORY}, "1.33", Exit.REFUSED,
         "error: Kubernetes 1.33 knows no shares of a device's memory (sharing.dra.shares)\n"
         "  do next:  upgrade to 1.34 or newer (1.36 has them on), or set sharing.strategy: gpushare"),
        ({"sharing": MEMORY, "kubernetes": {"images": {"names": {"dra-driver": "r.lan/dra:v0.4.1"}}}}, "1.36",
         Exit.REFUSED, "error: the DRA driver v0.4.1 offers whole devices alone; shares of memory came with 0.5.0"),
        ({"sharing": MEMORY, "kubernetes": {"images": {"names": {"dra-driver": "r.lan/dra:v25.12.0"}}}}, "1.36",
         Exit.REFUSED, "error: the DRA driver v25.12.0 offers whole devices alone"),
        ({"sharing": {"strategy": "gpushare", "dra": {"shares": "memory"}}}, "1.36", Exit.REFUSED,
         "error: pool default: sharing.dra.shares is memory, and strategy gpushare has no claims"),
        ({"sharing": {"strategy": "mps", "replicas": 1}}, "1.34", Exit.REFUSED,
         "error: pool default: sharing.replicas is 1 with mps"),
        ({"sharing": {"strategy": "mps", "replicas": 49}}, "1.34", Exit.REFUSED,
         "error: pool default: sharing.replicas is 49; "),
        ({"sharing": {"strategy": "mps", "replicas": 4, "mig": {"strategy": "mixed", "profiles": {"1g.10gb": 7}}}},
         "1.34", Exit.REFUSED, "error: pool default: sharing has MIG profiles with strategy mps"),
        ({"sharing": {"replicas": 4}}, "1.34", Exit.REFUSED,
         "error: pool default: sharing.replicas is 4, and strategy none has no replicas"),
        ({"sharing": {"strategy": "gpushare"}, "kubernetes": {"gpushare": {"kube_proxy": "ipvs"}}}, "1.34",
         Exit.REFUSED, "error: with kube-proxy's mode ipvs 127.0.0.1 does not lead to the extender"),
        ({"kubernetes": {"install": "helm", "namespace": "default"}}, "1.34", Exit.REFUSED,
         "error: NVIDIA's charts refuse the namespace default"),
        ({"kubernetes": {"images": {"names": {"device-plugin": "x:1"}}}}, "1.34", Exit.INPUT,
         "kubernetes.images.names has 'device-plugin'\n  expected: one of nvidia-device-plugin"),
        ({"kubernetes": {"images": {"names": {"dcgm-exporter": "X :1"}}}}, "1.34", Exit.INPUT,
         "kubernetes.images.names.dcgm-exporter: 'X :1' is no image"),
        ({"kubernetes": {"images": {"registry": "https://r.lan"}}}, "1.34", Exit.INPUT,
         "kubernetes.images.registry: 'https://r.lan' is no registry\n  do next:  write HOST[:PORT]"),
        ({"kubernetes": {"node_selector": {"nvidia.com/gpu.presnt": "true"}}}, "1.34", Exit.INPUT,
         "kubernetes.node_selector: 'nvidia.com/gpu.presnt' is no label that nodes carry\n"
         "  do next:  did you mean 'nvidia.com/gpu.present'?"),
        ({"kubernetes": {"node_selector": {"gpu node": "true"}}}, "1.34", Exit.INPUT,
         "kubernetes.node_selector: 'gpu node' is no label's key"),
        ({"kubernetes": {"node_selector": {"gpu": "A100/80"}}}, "1.34", Exit.INPUT,
         "kubernetes.node_selector: 'A100/80' is no label's value"),
        ({"kubernetes": {"namespace": "GPU"}}, "1.34", Exit.INPUT, "kubernetes.namespace: 'GPU' is no name"),
        ({"kubernetes": {"pool": "a b"}}, "1.34", Exit.INPUT, "kubernetes.pool: 'a b' is no label's value"),
        ({"kubernetes": {"runtime_class": {"handler": "Nvidia"}}}, "1.34", Exit.INPUT,
         "kubernetes.runtime_class.handler: 'Nvidia' is no name"),
        ({"kubernetes": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}, "1.34", Exit.INPUT,
         "kubernetes.tolerations: [a] has a value with the operator Exists"),
        ({"kubernetes": {"gpushare": {"extender_url": "10.0.0.1:32766"}}}, "1.34", Exit.INPUT,
         "kubernetes.gpushare.extender_url: '10.0.0.1:32766' is no URL"),
        ({"kubernetes": {"gpushare": {"node_port": 0}}}, "1.34", Exit.INPUT, "kubernetes.gpushare.node_port: 0 is no"),
        ({"kubernetes": {"monitoring": {"interval": "often"}}}, "1.34", Exit.INPUT,
         "kubernetes.monitoring.interval: 'often' is no duration"),
        ({"kubernetes": {"kubelet_dir": "kubelet"}}, "1.34", Exit.INPUT, "kubernetes.kubelet_dir: 'kubelet' is no"),
    ],
)  # fmt: skip
def test_bad_input_is_one_message_and_nothing_is_written(
    tmp_path: Path, spec: Any, version: str, code: int, reported: str
) -> None:
    exit_code, message = refusal(tmp_path, spec, "-o", str(tmp_path / "out"), version=version)
    assert (exit_code, message[: len(reported)]) == (code, reported)
    assert not (tmp_path / "out").exists()


def inventory(tmp_path: Path, **hosts: Any) -> str:
    file = tmp_path / "hosts.yml"
    file.write_text(yaml.safe_dump({"all": {"hosts": {host: {"gpunode_spec": spec} for host, spec in hosts.items()}}}))
    return str(file)


def test_pools_come_from_an_inventory(tmp_path: Path) -> None:
    sliced = {"kubernetes": {"pool": "sliced"}, "sharing": SHARES}
    hosts = inventory(tmp_path, a={}, b=sliced, c=sliced)
    run = render(tmp_path, {}, "-i", hosts)
    config = next(item for item in yaml.safe_load_all(run.stdout) if item["kind"] == "ConfigMap")
    assert list(config["data"]) == ["default", "sliced"]
    assert "kubectl label nodes b c nvidia.com/device-plugin.config=sliced --overwrite\n" in run.stderr


@pytest.mark.parametrize(
    ("other", "reported"),
    [
        ({"sharing": SHARES}, "b and a are both of pool default, and differ in `sharing`"),
        ({"kubernetes": {"pool": "b", "namespace": "gpu"}}, "kubernetes.namespace of b differs from that of a"),
    ],
)
def test_pools_that_contradict_each_other_are_refused(tmp_path: Path, other: Any, reported: str) -> None:
    code, message = refusal(tmp_path, {}, "-i", inventory(tmp_path, a={}, b=other))
    assert (code, message.splitlines()[0]) == (Exit.REFUSED, reported)


# ---------------------------------------------------------------- images that are of no registry


def test_locally_built_images_are_loaded_into_the_engines_of_the_nodes(tmp_path: Path) -> None:
    names = {"gpushare-extender": "extender:v1", "gpushare-device-plugin": "plugin:v1", "dcgm-exporter": "r.lan/dcgm:1"}
    spec = {"sharing": {"strategy": "gpushare"}, "kubernetes": {"namespace": "kube-system", "images": {"names": names}}}
    folder = tmp_path / "cluster"
    render(tmp_path, spec, "-i", inventory(tmp_path, n1={}, n2={}), "-o", str(folder))
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "docker").write_text('#!/bin/sh\necho "archive of $2"\n')
    (bin_ / "ssh").write_text(f'#!/bin/sh\n{{ echo "$1"; cat; }} >>{tmp_path}/log\n')
    for file in bin_.iterdir():
        file.chmod(0o755)
    env = {"PATH": f"{bin_}:/usr/bin:/bin", "CONTROL_PLANE": "m1 m2"}
    done = subprocess.run([str(folder / "images.sh")], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "plugin:v1 → n1", "plugin:v1 → n2", "extender:v1 → m1", "extender:v1 → m2",
    ]  # fmt: skip
    archives = [("n1", "plugin:v1"), ("n2", "plugin:v1"), ("m1", "extender:v1"), ("m2", "extender:v1")]
    assert (tmp_path / "log").read_text() == "".join(f"{host}\narchive of {image}\n" for host, image in archives)
    missing = subprocess.run([str(folder / "images.sh")], env={"PATH": env["PATH"]}, capture_output=True, check=False)
    assert missing.returncode != 0


def test_scripts_of_the_folder_are_clean(tmp_path: Path) -> None:
    spec = {"sharing": {"strategy": "gpushare"}, "kubernetes": {"images": {"names": {"gpushare-device-plugin": "p:1"}}}}
    render(tmp_path, spec, "-o", str(tmp_path / "c"))
    scripts = sorted(str(path) for path in (tmp_path / "c").glob("*.sh"))
    assert len(scripts) == 2
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
