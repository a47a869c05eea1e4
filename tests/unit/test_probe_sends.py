"""What items compare with is what the probe sends: else a node that has converged would be changed at every run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from gpunode.core.facts import parse_probe
from gpunode.core.items.activation import Enabled, Module, ServiceItem
from gpunode.core.items.file import File, KeyFile
from gpunode.core.items.item import Item, Question
from gpunode.core.items.package import NoPackage, PackageItem
from gpunode.core.items.sysctl import Sysctl
from gpunode.core.model import NodeFacts
from gpunode.core.plan.steps import wanted
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.node import script

CASES = Path(__file__).parents[1] / "cases"
PLANS = sorted(path.parent for path in CASES.glob("plans/*/case.yml"))
PROBE = script("probe.sh")
# what goes wrong with a probe, and what no recorded node has (tests of their own have sections by hand)
NOT_RECORDED = {
    "malformed",
    "invalid",
    "not_started",
    "notes",
    "unread",
    "board",
    "kernel_faults",
    "lost_programs",
    "first_boot",
    "nvlink5_fabric",
    "sharing",
    "pcie",
    "hidden",
    "tuning",
    "rdma",
    "lease",
    "state_blocked",
    "rootless_docker",
}


def items_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Item]:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"(a key)")
    case = yaml.safe_load((folder / "case.yml").read_text())
    facts = parse_probe((CASES / "probes" / case["probe"] / "probe.txt").read_text())
    desired = DesiredState(case["spec"])
    planned = desired.plan("node1", facts)
    question = Question(facts=facts, spec=planned.spec, solution=planned.solution, templates=desired.templates)
    yield from wanted(question).items.values()


def variable(name: str) -> str:
    r"""What the probe gives a variable, with what it adds to it.

    >>> "dkms" in variable("CONCERN").split("\\|")
    True
    """
    parts = re.findall(rf"^{name}=(?:'([^']*)'|\"([^\"]*)\")", PROBE, re.MULTILINE)
    return "".join(re.sub(rf"\${name}\b", "", one or other) for one, other in parts)


UNITS = {*variable("UNITS").split(), *variable("ENGINE_UNITS").split()}
NAMES = re.compile(variable("CONCERN").replace(r"\|", "|"))
PATHS = [word for word in PROBE.split() if word.startswith("/")] + variable("ENGINE_FILES").split()


def is_sent(item: Item) -> bool:
    """Whether the probe sends what the item compares with; of other kinds the recorded nodes prove it."""
    if isinstance(item, File | KeyFile):
        return any(fnmatchcase(item.path, path) for path in PATHS)
    if isinstance(item, ServiceItem | Enabled):
        return item.unit in UNITS or f"{item.unit}.service" in UNITS
    if isinstance(item, Module):
        return item.module.replace("_", "[_-]") in PROBE or re.search(rf"\b{item.module}\b", PROBE) is not None
    if isinstance(item, PackageItem | NoPackage):
        return NAMES.match(item.name if isinstance(item, PackageItem) else item.package) is not None
    return not isinstance(item, Sysctl) or item.setting.removeprefix("net.") in PROBE


@pytest.mark.parametrize("folder", PLANS, ids=lambda path: path.name)
def test_the_probe_sends_what_every_item_compares_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsent = [item.name for item in items_of(folder, monkeypatch) if not is_sent(item)]
    assert unsent == [], "gpunode/node/probe/ sends nothing of these: a node would be changed at every run"


# packages of driver parts, as NVIDIA, RPM Fusion, negativo17, ELRepo, Debian and Arch call them
OTHERS = """
kmod-nvidia kmod-nvidia-580.95.05-5.14.0-570.22.1 kmod-nvidia-6.19.4-200.fc44.x86_64 kmod-nvidia-latest-dkms dkms-nvidia
dnf-plugin-nvidia akmod-nvidia akmod-nvidia-470xx akmods xorg-x11-drv-nvidia xorg-x11-drv-nvidia-470xx-cuda
nvidia-x11-drv nvidia-x11-drv-580xx-libs nvidia-kmod-common xorg-x11-nvidia glx-alternative-nvidia opencl-nvidia
lib32-nvidia-utils
lib32-opencl-nvidia cuda-drivers nvidia-open nvidia-open-kmod kmod-nvidia-open-6.17.9-300.fc43.x86_64
nvidia-fabric-manager nvidia-computeG05 x11-video-nvidiaG05 nvidia-vgpu-ubuntu-550 NVIDIA-vGPU-rhel
"""


def test_the_probe_sends_the_packages_of_drivers_whoever_made_them() -> None:
    assert [name for name in OTHERS.split() if not NAMES.match(name)] == []


def test_every_pattern_of_a_conflict_meets_a_package_that_the_probe_can_send() -> None:
    knowledge = load.load_knowledge()
    rhel = knowledge.packages["rhel"]
    rows = [*rhel["rivals"].values(), rhel["of_others"], [rhel["of_dkms"]]]
    rows.append([row.modules for row in knowledge.precompiled if row.modules])
    names = [*OTHERS.split(), "kmod-nvidia-open-dkms"]
    unmet = [pattern for row in rows for pattern in row if not any(re.fullmatch(pattern, name) for name in names)]
    assert unmet == []


def test_every_fact_was_sent_by_some_recorded_node() -> None:
    left = {one.name: one.default_factory() if one.default is MISSING else one.default for one in fields(NodeFacts)}  # type: ignore[misc]
    for path in sorted(CASES.glob("probes/*/probe.txt")):
        facts = parse_probe(path.read_text())
        left = {name: empty for name, empty in left.items() if getattr(facts, name) == empty}
    assert set(left) - NOT_RECORDED == set(), "no tests/cases/probes/*/probe.txt has lines of these fields of NodeFacts"
