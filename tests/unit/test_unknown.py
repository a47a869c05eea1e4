"""What was not read proves nothing: without a fact no check passes that did not pass with it, or that rests on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.checks.health import Expected, health_checks
from gpunode.core.facts import parse_probe
from gpunode.core.model import (
    Cdi,
    CdiGpu,
    CdiSpec,
    DeviceNode,
    FirstBoot,
    GpuContainer,
    Kubernetes,
    MigInstance,
    NodeFacts,
    NvmlGpu,
    PciDevice,
    PciLink,
    RdmaPort,
    Runtime,
    Service,
    Sharing,
    Tuning,
    Xid,
)
from gpunode.core.spec import VerifySpec
from gpunode.edge.load import load_knowledge

CASES = Path(__file__).parents[1] / "cases/probes"
# field of NodeFacts → its section, which is among the unread ones where it could not be read
SECTIONS = {
    "xids": "xids",
    "kernel_faults": "xids",
    "nvlink_inactive": "nvlink",
    "cdi": "cdi",
    "gpu_containers": "gpu_containers",
    "device_nodes": "gpu_containers",
    "sharing": "sharing",
    "files": "files",
}
# fields that cannot be missing by themselves, with the reason
TOGETHER: Mapping[tuple[type, str], str] = {
    **{(CdiSpec, one.name): "a specification is read whole, or has an error" for one in fields(CdiSpec)},
    (CdiGpu, "mig_devices"): "a number of files, of which there may be none",
    (Cdi, "missing"): "goes with cdi as a whole",
    (MigInstance, "computes"): "a number of rows, of which there may be none",
    (Runtime, "files"): "found with `files`",
    (Runtime, "effective_error"): "an error is no answer that could be missing",
    (Runtime, "distribution"): "the engine's own name",
    (Kubernetes, "cgroup_driver"): "read from `files`; that they name none is an answer",
    (Kubernetes, "cgroup_from_cri"): "read from `files`; that they name none is an answer",
    (FirstBoot, "armed"): "systemd's word about a unit whose program was read",
    (NodeFacts, "nvlink5_fabric"): "a sign that is there or not",
    (NodeFacts, "unread"): "says itself what was not read",
    (Sharing, "mig_status"): "of a unit that has not run there is none; the GPUs' own modes count",
    (GpuContainer, "state"): "a line without it is no container",
    (PciLink, "parent"): "without a bridge above it is at the root",
    (PciLink, "correctable"): "is only said, as no vendor names a limit",
}
NIC, SWITCH, ABOVE_GPU, ABOVE_NIC = "0000:18:00.0", "0000:16:00.0", "0000:16:01.0", "0000:16:02.0"
GOOD: dict[str, Any] = {
    "mig_current": "Disabled",
    "mig_pending": "Disabled",
    "ecc_current": "Enabled",
    "ecc_uncorrected": 0,
    "retired_pending": "N/A",
    "remap_pending": "No",
    "remap_failure": "No",
    "fabric_state": "Completed",
    "fabric_status": "Success",
    "recovery": "None",
    "persistence": "Enabled",
    "pstate": "P0",
    "pcie_generation": "5",
    "pcie_generation_max": "5",
    "pcie_width": "16",
    "pcie_width_max": "16",
    "sram_exceeded": "No",
    "nvlinks_up": 18,
    "nvlink_speed": "26.562",
    "fault": "",
}


def recorded(name: str) -> NodeFacts:
    """A recorded node whose GPUs are well, and where everything was read."""
    facts = parse_probe((CASES / name / "probe.txt").read_text())
    nvml = tuple(replace(gpu, **GOOD) for gpu in facts.nvml)
    return replace(facts, nvml=nvml, nvlink_inactive=(), xids=(), unread=())


def link(slot: str, parent: str = "", **more: Any) -> PciLink:
    well = {"speed": "32.0", "max_speed": "32.0", "width": 16, "max_width": 16, "acs": "0x0001", "iommu": "identity"}
    return PciLink(slot=slot, parent=parent, **{**well, "fatal": 0, "nonfatal": 0, "correctable": 7, **more})


def full() -> NodeFacts:
    """Two GPUs, one of them cut, behind an NVSwitch, with containers, a CDI specification and a finished first boot."""
    facts = recorded("debian12-h100-provisioned")
    [gpu], [pci] = facts.nvml, facts.gpus
    other = replace(gpu, index=1, uuid="GPU-1", slot="0000:65:00.0", mig_current="Enabled", mig_pending="Enabled")
    switch = PciDevice(slot="0000:07:00.0", id="10de:22a3", class_code="0680", driver="nvidia")
    spec = CdiSpec(
        path="/var/run/cdi/nvidia.yaml",
        kind="nvidia.com/gpu",
        devices=("0", gpu.uuid, "1:0", "all"),
        minors=(0, 1),
        driver=facts.driver.loaded,
        needs=("/usr/bin/nvidia-smi",),
        version="0.5.0",
    )
    runtime = Runtime(name="docker", version="27.0.0", binary="/usr/bin/dockerd", active=True)
    podman = Runtime(name="podman", version="5.0.0", binary="/usr/bin/podman")
    mig = Service(name="gpunode-mig", active="active", enabled="enabled")
    engine = Service(name="docker", active="active", enabled="enabled", memlock="infinity")
    imex = Service(name="nvidia-imex", active="inactive", enabled="masked")
    return replace(
        facts,
        nvml=(gpu, other),
        gpus=(pci, replace(pci, slot=other.slot)),
        nvswitches=(switch,),
        toolkit="1.18.0",
        runtimes=(runtime, podman),
        services={"gpunode-mig": mig, "docker": engine, "nvidia-imex": imex},
        virtualization="none",
        driver=replace(facts.driver, loaded_flavour="open"),
        pcie=(
            *(link("0000:15:00.0"), link(SWITCH, "0000:15:00.0"), link(ABOVE_GPU, SWITCH), link(ABOVE_NIC, SWITCH)),
            *(link(gpu.slot, ABOVE_GPU), link(NIC, ABOVE_NIC), link("0000:64:00.0"), link(other.slot, "0000:64:00.0")),
        ),
        rdma=(RdmaPort(device="mlx5_0", port=1, slot=NIC, state="ACTIVE", rate="400", layer="InfiniBand"),),
        tuning=Tuning(governors=("performance",), kernel_options={"PCI_P2PDMA": "y"}, imex_dra=True),
        device_nodes=(DeviceNode(path="/dev/nvidia0", number="195:0", linked=True),),
        gpu_containers=(GpuContainer(name="web", id="0" * 64, state="kept"),),
        cdi=Cdi(specs=(spec,), gpus=(CdiGpu(minor=0, uuid=gpu.uuid), CdiGpu(minor=1, uuid="GPU-1", mig_devices=1))),
        sharing=Sharing(
            instances=(MigInstance(gpu=1, id=1, profile="7g.80gb", start=0, size=8, computes=1),),
            mig_program="0" * 64,
            mig_status="success",
            mps_daemons=("4711",),
        ),
        first_boot=FirstBoot(program="0" * 64, status="passed", at="2026-01-01", message="well"),
    )


NODES = {
    "full": full,
    **{
        name: lambda name=name: recorded(name)  # type: ignore[misc]
        for name in (
            "debian12-h100-provisioned",
            "debian12-crio-podman",
            "debian12-gpu-containers",
            "ubuntu2404-k3s",
            "ubuntu2204-rke2",
            "ubuntu2004-cri-dockerd",
            "ubuntu2204-hgx-h100-kubelet",
            "ubuntu2404-two-models",
            "debian12-k0s",
        )
    },
}
ILLS: Mapping[str, dict[str, Any]] = {  # what one GPU says → each is a failure
    "requires a reset": {"fault": "GPU requires reset"},
    "is lost": {"fault": "GPU is lost"},
    "does not answer": {"fault": "ERR!"},
    "recovery": {"recovery": "Reboot"},
    "remap waits": {"remap_pending": "Yes"},
    "remap failed": {"remap_failure": "Yes"},
    "page waits": {"retired_pending": "Yes"},
    "ECC": {"ecc_uncorrected": 3},
    "fabric": {"fabric_state": "In Progress"},
    "fabric without success": {"fabric_status": "Unknown Error"},
    "MIG waits": {"mig_pending": "Disabled"},
    "SRAM": {"sram_exceeded": "Yes"},
    "narrow": {"pcie_width": "8"},
    "slow while it works": {"pcie_generation": "1"},
    "NVLinks": {"nvlinks_up": 17},
    "a slow NVLink": {"nvlink_speed": "12.5"},
}
SLOW: Mapping[str, dict[str, Any]] = {  # of the whole node → not passed, nor without any fact
    "pcie.width": {"pcie": {NIC: {"width": 8}}},
    "pcie.generation": {"pcie": {SWITCH: {"speed": "8.0"}}},
    "pcie.errors": {"pcie": {NIC: {"nonfatal": 2}}},
    "pcie.acs": {"pcie": {ABOVE_NIC: {"acs": "0x001d"}}},
    "iommu.mode": {"pcie": {NIC: {"iommu": "DMA-FQ"}}},
    "rdma.port": {"rdma": (RdmaPort(device="mlx5_0", port=1, slot=NIC, state="INIT"),)},
    "gpudirect.rdma": {"tuning": Tuning(governors=("performance",), kernel_options={"PCI_P2PDMA": "n"})},
    "cpu.governor": {"tuning": Tuning(governors=("performance", "powersave"))},
    "fabric.imex": {
        "services": {"nvidia-imex": Service(name="nvidia-imex", active="active", enabled="enabled")},
        "tuning": Tuning(imex_dra=True),
    },
    "engine.memlock": {"services": {"docker": Service(name="docker", active="active", memlock="8388608")}},
    "gpu.persistence": {"nvml": {"persistence": "Disabled"}},
}


def without(facts: Any) -> Iterator[tuple[str, Any]]:
    """(what is missing, the value without it) for every fact, however deep."""
    for one in fields(facts):
        value = getattr(facts, one.name)
        default = one.default if one.default is not MISSING else None
        if one.default_factory is not MISSING:
            default = one.default_factory()
        required = one.default is MISSING and one.default_factory is MISSING
        if not required and value != default and (type(facts), one.name) not in TOGETHER:
            yield one.name, replace(facts, **{one.name: default})
        for where, inner in _inside(value):
            yield f"{one.name}{where}", replace(facts, **{one.name: inner})


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value):
        yield from ((f".{where}", inner) for where, inner in without(value))
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            for where, inner in _inside(one):
                yield f"[{number}]{where}", (*value[:number], inner, *value[number + 1 :])
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if not isinstance(one, str):  # a setting that is not there is an answer
                yield f"[{key}]", {name: other for name, other in value.items() if name != key}
            for where, inner in _inside(one):
                yield f"[{key}]{where}", {**value, key: inner}


def unread(facts: NodeFacts) -> Iterator[tuple[str, NodeFacts]]:
    """The node as it would be if one thing had not been read."""
    for where, left in without(facts):
        section = SECTIONS.get(where)
        yield where, replace(left, unread=(*left.unread, section)) if section else left
    for name in dict.fromkeys(SECTIONS.values()):
        yield f"unread {name}", replace(facts, unread=(*facts.unread, name))


@cache
def _knowledge() -> Any:
    return load_knowledge()


def statuses(facts: NodeFacts) -> dict[str, str]:
    expected = Expected(spec=VerifySpec(allow_no_gpu=True))
    return {check.id: check.status for check in health_checks(facts, _knowledge(), expected=expected)}


def newly_passed(facts: NodeFacts) -> list[str]:
    before = statuses(facts)
    return [
        f"without {where} {check_id} is passed; before: {before.get(check_id, 'not there')}"
        for where, left in unread(facts)
        for check_id, status in statuses(left).items()
        if status == "passed" and before.get(check_id) != "passed"
    ]


@pytest.mark.parametrize("node", NODES)
def test_no_check_passes_because_a_fact_is_missing(node: str) -> None:
    facts = NODES[node]()
    assert newly_passed(facts) == []


@pytest.mark.parametrize("ill", ILLS)
def test_what_is_wrong_with_a_gpu_fails_and_is_not_mended_by_a_missing_fact(ill: str) -> None:
    facts = full()
    facts = replace(facts, nvml=(facts.nvml[0], replace(facts.nvml[1], **ILLS[ill])))
    assert "failed" in statuses(facts).values() and "failed" not in statuses(full()).values()
    assert newly_passed(facts) == []


@pytest.mark.parametrize("check_id", SLOW)
def test_what_slows_a_node_down_is_not_passed_and_not_by_a_missing_fact(check_id: str) -> None:
    facts = full()
    changed = dict(SLOW[check_id])
    if isinstance(links := changed.get("pcie"), dict):
        changed["pcie"] = tuple(replace(one, **links.get(one.slot, {})) for one in facts.pcie)
    if isinstance(gpus := changed.get("nvml"), dict):
        changed["nvml"] = tuple(replace(one, **gpus) for one in facts.nvml)
    facts = replace(facts, **changed)
    assert statuses(full())[check_id] == "passed"
    assert statuses(facts)[check_id] in ("failed", "warning")
    assert newly_passed(facts) == []


def test_xids_links_and_containers_that_are_lost_are_not_mended_by_a_missing_fact() -> None:
    facts = replace(
        full(),
        xids=(Xid(code=79, line="x"),),
        nvml=tuple(replace(gpu, nvlinks_up=17) for gpu in full().nvml),
        nvlink_inactive=("GPU 0 link 3",),
        gpu_containers=(GpuContainer(name="web", id="0" * 64, state="lost", devices=("/dev/nvidia0",)),),
        device_nodes=(DeviceNode(path="/dev/nvidia0", number="195:0"),),
    )
    found = statuses(facts)
    assert {"gpu.xid", "nvlink.down", "containers.gpu-kept", "devices.char-links"} <= {
        name for name, status in found.items() if status == "failed"
    }
    assert newly_passed(facts) == []


# check → facts without which it must not pass, as `unread` names them
RESTS: Mapping[str, tuple[str, ...]] = {
    "driver.loaded": ("driver", "driver.loaded"),
    "driver.versions-match": ("driver", "driver.loaded", "driver.userspace"),
    "gpu.count": ("driver", "nvml"),
    "gpu.recovery": ("nvml", "nvml[0].recovery", "nvml[1].recovery"),
    "gpu.remap-pending": ("nvml", "nvml[0].remap_pending", "nvml[1].remap_pending"),
    "gpu.remap-failure": ("nvml", "nvml[0].remap_failure", "nvml[1].remap_failure"),
    "gpu.retirement-pending": ("nvml", "nvml[0].retired_pending", "nvml[1].retired_pending"),
    "gpu.ecc": ("nvml", "nvml[0].ecc_uncorrected", "nvml[1].ecc_uncorrected"),
    "fabric.state": ("nvml", "nvml[0].fabric_state", "nvml[1].fabric_state", "nvml[0].fabric_status"),
    "gpu.sram": ("nvml", "nvml[0].sram_exceeded", "nvml[1].sram_exceeded"),
    "gpu.persistence": ("nvml", "nvml[0].persistence", "nvml[1].persistence"),
    "pcie.width": ("nvml", "nvml[0].pcie_width", "nvml[1].pcie_width_max"),
    "pcie.generation": ("nvml", "nvml[0].pcie_generation", "nvml[1].pcie_generation_max"),
    "pcie.errors": ("pcie", "pcie[0].fatal", "pcie[5].nonfatal"),
    "pcie.acs": ("pcie", "pcie[2].acs", "pcie[3].acs", "rdma", "virtualization"),
    "iommu.mode": ("pcie", "pcie[4].iommu", "pcie[5].iommu", "rdma"),
    "nvlink.down": ("nvml", "nvml[0].slot", "nvml[0].nvlinks_up", "nvml[1].nvlink_speed", "gpus"),
    "rdma.port": ("rdma", "rdma[0].state", "rdma[0].rate"),
    "gpudirect.rdma": ("rdma", "kernels", "driver.loaded_flavour", "tuning.kernel_options"),
    "engine.memlock": ("rdma", "services", "services[docker].memlock"),
    "cpu.governor": ("tuning", "tuning.governors", "gpus"),
    "fabric.imex": ("tuning", "tuning.imex_dra"),
    "gpu.xid": ("unread xids", "driver", "driver.loaded"),
    "driver.kernel-log": ("unread xids", "driver", "driver.loaded"),
    "image.first-boot": ("first_boot", "first_boot.program", "first_boot.status"),
    "sharing.mig": (
        *("nvml", "nvml[0].mig_current", "nvml[1].mig_current", "nvml[1].mig_pending", "sharing"),
        *("sharing.instances", "unread sharing", "services", "services[gpunode-mig]"),
    ),
    "sharing.mps": ("sharing", "sharing.mps_daemons"),
    "devices.char-links": ("device_nodes", "device_nodes[0].linked", "runtimes", "toolkit"),
    "containers.gpu-kept": ("gpu_containers",),
    "cgroup.driver-match": ("kubernetes", "runtimes"),
    "kubernetes.sysctl": ("sysctl", "files", "unread files"),
    "cdi.fresh": (
        *("cdi", "cdi.specs", "cdi.gpus", "cdi.gpus[0].uuid", "nvml", "nvml[0].uuid"),
        *("unread cdi", "runtimes[1].version"),
    ),
}


@pytest.mark.parametrize("node", ["full", "ubuntu2404-k3s", "ubuntu2204-rke2", "ubuntu2004-cri-dockerd"])
def test_a_check_does_not_pass_without_what_it_rests_on(node: str) -> None:
    facts = NODES[node]()
    passed = {name for name, status in statuses(facts).items() if status == "passed"}
    assert passed and passed <= RESTS.keys(), "RESTS of test_unknown.py has no row of these"
    after = {where: statuses(left) for where, left in unread(facts)}
    kept = [
        f"{check_id} passes without {where}"
        for check_id in sorted(passed)
        for where in RESTS[check_id]
        if where in after and after[where].get(check_id) == "passed"
    ]
    assert kept == []


def test_what_a_check_rests_on_is_there_in_some_node() -> None:
    there = {where for node in ("full", "ubuntu2404-k3s", "ubuntu2204-rke2") for where, _ in unread(NODES[node]())}
    assert {where for each in RESTS.values() for where in each} <= there
    everywhere = {name for node in NODES for name, status in statuses(NODES[node]()).items() if status == "passed"}
    assert everywhere == RESTS.keys(), "RESTS and the checks that pass on a node of NODES differ"


def test_a_gpu_that_was_never_asked_proves_nothing() -> None:
    facts = recorded("debian12-h100-provisioned")
    bare = replace(facts, nvml=(NvmlGpu(index=0, slot=facts.gpus[0].slot),), unread=tuple(SECTIONS.values()))
    passed = {name for name, status in statuses(bare).items() if status == "passed"}
    assert passed <= {"driver.loaded", "driver.versions-match", "gpu.count"}, "these pass by a fact that was not read"
