"""gpunode kube handover: keys that the charts have, with what the hosts have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kube_cases import KNOWN

from gpunode.core.errors import Exit
from gpunode.kube.cli import kube

CHARTS = yaml.safe_load((Path(__file__).parents[1] / "cases/kube/handover.yml").read_text(encoding="utf-8"))
PLAIN: dict[str, Any] = {}
K0S = {
    "kubernetes": {
        "kubelet_dir": "/var/lib/k0s/kubelet",
        "runtime_class": {"name": "gpu"},
        "device_plugin": {"device_list_strategy": ["cdi-cri"]},
    },
    "runtimes": {"containerd": {"default_runtime": "runc"}},
}
WITHOUT_TOOLKIT = {"toolkit": {"version": "none"}}
RESET = "janitor.config.controllers.gpuReset.resetJob"


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def handover(tmp_path: Path, program: str, spec: Any) -> dict[str, Any]:
    file = tmp_path / "gpunode.yml"
    file.write_text(yaml.safe_dump(spec))
    args = ["handover", program, "-c", str(file), "--server-version", "1.36"]
    run = CliRunner().invoke(kube, args, standalone_mode=False)
    assert (run.exception, run.return_value) == (None, Exit.OK)
    return dict(leaves(yaml.safe_load(run.stdout)))


@pytest.mark.parametrize("program", CHARTS)
def test_the_chart_has_each_key_with_such_a_value(tmp_path: Path, program: str) -> None:
    chart = CHARTS[program]
    assert KNOWN.handovers[program].chart == chart["chart"]
    for key, value in handover(tmp_path, program, PLAIN).items():
        assert type(value) is type(chart["keys"].get(key)), key


def test_every_program_can_be_asked_for() -> None:
    assert set(KNOWN.handovers) == set(CHARTS)


@pytest.mark.parametrize(
    ("program", "spec", "expected"),
    [
        ("gpu-operator", PLAIN, {
            "driver.enabled": False, "toolkit.enabled": False, "hostPaths.rootFS": "/",
            "hostPaths.kubeletRootDir": "/var/lib/kubelet", "operator.runtimeClass": "nvidia", "cdi.enabled": False,
        }),
        ("gpu-operator", K0S, {
            "driver.enabled": False, "toolkit.enabled": False, "hostPaths.rootFS": "/",
            "hostPaths.kubeletRootDir": "/var/lib/k0s/kubelet", "operator.runtimeClass": "gpu", "cdi.enabled": True,
        }),
        ("gpu-operator", WITHOUT_TOOLKIT, {
            "driver.enabled": False, "toolkit.enabled": True, "hostPaths.rootFS": "/",
            "hostPaths.kubeletRootDir": "/var/lib/kubelet", "operator.runtimeClass": "nvidia", "cdi.enabled": False,
        }),
        ("dra-driver", K0S, {
            "nvidiaDriverRoot": "/",
            "kubeletPlugin.kubeletRegistrarDirectoryPath": "/var/lib/k0s/kubelet/plugins_registry",
            "kubeletPlugin.kubeletPluginsDirectoryPath": "/var/lib/k0s/kubelet/plugins",
        }),
        ("nvsentinel", PLAIN, {
            "labeler.assumeDriverInstalled": True, "metadata-collector.runtimeClassName": "",
            f"{RESET}.runtimeClassName": "", f"{RESET}.hostDriverRootPath": "/",
        }),
        ("nvsentinel", K0S, {
            "labeler.assumeDriverInstalled": True, "metadata-collector.runtimeClassName": "gpu",
            f"{RESET}.runtimeClassName": "gpu", f"{RESET}.hostDriverRootPath": "/",
        }),
        ("hami", K0S, {
            "devicePlugin.runtimeClassName": "gpu", "devicePlugin.createRuntimeClass": False,
            "devicePlugin.gpuOperatorToolkitReady.enabled": False,
        }),
    ],
)  # fmt: skip
def test_values_say_what_the_hosts_have(tmp_path: Path, program: str, spec: Any, expected: dict[str, Any]) -> None:
    assert handover(tmp_path, program, spec) == expected
