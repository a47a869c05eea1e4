"""Parameters of the driver's modules: the file, and what of it the loaded module has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.model import ConfigFile, NodeFacts
from gpunode.core.spec import parse_spec
from gpunode.core.spec.module_parameters import CONF, not_in_force
from gpunode.edge import load
from gpunode.edge.desired import DesiredState

PROBE = Path(__file__).parents[1] / "cases/probes/debian12-h100-provisioned/probe.txt"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> NodeFacts:
    """A node with its driver loaded."""
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    return parse_probe(PROBE.read_text(encoding="utf-8"))


def values(facts: NodeFacts, parameters: dict[str, Any]) -> dict[str, Any]:
    plan = DesiredState({"driver": {"module_parameters": parameters}}).plan("node1", facts).plan
    return {step.id: step.value for step in plan.steps}


def test_the_file_has_a_line_for_each_module(node: NodeFacts) -> None:
    wanted = {
        "nvidia": {"NVreg_EnableGpuFirmware": 0, "NVreg_PreserveVideoMemoryAllocations": 1},
        "nvidia_drm": {"modeset": 1},
    }
    [file] = [f for f in values(node, wanted)["driver.files"] if f["path"] == CONF]
    assert file["content"] == (
        "# written by gpunode from driver.module_parameters\n"
        "options nvidia NVreg_EnableGpuFirmware=0 NVreg_PreserveVideoMemoryAllocations=1\n"
        "options nvidia_drm modeset=1\n"
    )


def test_the_loaded_module_is_exchanged_where_it_has_another_value(node: NodeFacts) -> None:
    loaded = replace(
        node, driver=replace(node.driver, parameters={"EnableGpuFirmware": "18", "RmProfilingAdminOnly": "1"})
    )
    activate = values(loaded, {"nvidia": {"NVreg_EnableGpuFirmware": 0}})["driver.activate"]
    assert (activate["parameters"], activate["initramfs"]) == ({"EnableGpuFirmware": "0"}, True)


@pytest.mark.parametrize(
    ("name", "value", "has", "differs"),
    [
        ("NVreg_EnableGpuFirmware", "18", "18", False),
        ("NVreg_EnableGpuFirmware", "0x12", "18", False),
        ("NVreg_EnableGpuFirmware", "0", "18", True),
        ("NVreg_ResmanDebugLevel", "-1", "4294967295", False),
        ("NVreg_RegistryDwords", "PowerMizerEnable=0x1", '"PowerMizerEnable=0x1"', False),
        ("NVreg_RestrictProfilingToAdminUsers", "0", "1", True),
        ("NVreg_Unknown", "1", "", False),
    ],
)
def test_a_value_is_compared_as_the_module_shows_it(name: str, value: str, has: str, differs: bool) -> None:
    shown = {"NVreg_RestrictProfilingToAdminUsers": "RmProfilingAdminOnly"}.get(name, name.removeprefix("NVreg_"))
    loaded = {shown: has} if has else {}
    assert not_in_force({"nvidia": {name: value}}, loaded) == ([f"{shown} is {has}, wanted {value}"] if differs else [])


def test_a_file_that_nobody_wants_any_more_goes(node: NodeFacts) -> None:
    file = ConfigFile(path=CONF, sha256="1" * 64, data=b"options nvidia NVreg_EnableGpuFirmware=0\n")
    found = values(replace(node, files={**node.files, CONF: file}), {})
    assert {"path": CONF, "content": None, "mode": "0644"} in found["driver.files"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"nouveau": {"modeset": 0}}, "the module 'nouveau'"),
        ({"nvidia": {"NVreg X": 0}}, "NVreg X='0'"),
        ({"nvidia": {"NVreg_X": "1\ninstall nvidia /bin/sh"}}, "NVreg_X="),
        ({"nvidia": {"NVreg_X": ""}}, "NVreg_X=''"),
    ],
)
def test_what_cannot_stand_in_the_file_is_refused(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_spec({"driver": {"module_parameters": parameters}})
    assert words in refused.value.what and refused.value.fix


def test_the_kernels_other_driver_is_unloaded_where_it_is_loaded(node: NodeFacts) -> None:
    facts = replace(node, driver=replace(node.driver, nova=True))
    assert values(facts, {})["driver.activate"]["unload"] == ["nouveau", "nova_core"]


def test_the_probe_reads_what_the_module_shows() -> None:
    text = '#: gpunode-probe 1\n#: driver\n| parameter EnableGpuFirmware: 18\n| parameter RegistryDwords: ""\n#: end\n'
    assert parse_probe(text).driver.parameters == {"EnableGpuFirmware": "18", "RegistryDwords": '""'}
