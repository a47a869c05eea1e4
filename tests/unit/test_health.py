"""What the probe alone says of a node's health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.checks.health import Expected, health_checks
from gpunode.core.facts import parse_probe
from gpunode.core.model import Check, DriverState, KernelFault, PciDevice, PciLink, Service, Xid
from gpunode.core.spec import VerifySpec
from gpunode.edge.load import load_knowledge

CASES = Path(__file__).parents[1] / "cases/probes"


@pytest.mark.parametrize(("wanted", "status"), [(True, "failed"), (False, "not-proven")])
def test_a_driver_that_nobody_wants_is_not_missed(wanted: bool, status: str) -> None:
    text = (CASES / "debian12-h100-fresh/probe.txt").read_text()
    found = {check.id: check.status for check in health_checks(parse_probe(text), load_knowledge(), driver=wanted)}
    assert found["driver.loaded"] == status


@pytest.mark.parametrize(
    ("ecc", "status", "message"),
    [
        ("Enabled", "not-proven", "GPU 0: not read"),
        ("", "not-proven", "GPU 0: not read"),
        ("Disabled", "passed", "ECC is off: GPU 0 counts no memory errors"),
        ("N/A", "passed", "GPU 0: has no ECC"),
    ],
)
def test_a_gpu_whose_errors_are_not_counted_is_not_called_free_of_them(ecc: str, status: str, message: str) -> None:
    [check] = judged([{"ecc_current": ecc, "ecc_uncorrected": None}], "gpu.ecc")
    assert (check.status, check.message) == (status, message)


def test_a_real_gpu_at_its_power_limit_is_well() -> None:
    """700 W of 700 W, the clock held down by that alone, its NVLinks switched off for the virtual machine."""
    facts = parse_probe((CASES / "ubuntu2404-h100-vm-busy/probe.txt").read_text())
    assert facts.nvml[0].event_reasons == "0x0000000000000004" and facts.driver.parameters["NvLinkDisable"] == "1"
    checks = health_checks(facts, load_knowledge())
    assert "the driver sees the GPU of PCI" in {check.message for check in checks}
    found = {check.id: check.status for check in checks}
    assert set(found.values()) == {"passed"} and {"gpu.slowdown", "pcie.generation", "driver.versions-match"} < set(
        found
    )


@pytest.mark.parametrize(("virtualization", "status"), [("kvm", "skipped"), ("none", "warning")])
def test_nvlinks_that_somebody_switched_off_are_not_called_unread(virtualization: str, status: str) -> None:
    """As for the real one above; nvidia-smi nvlink -s printed nothing there, and ended well."""
    driver = DriverState(loaded="580.159.04", parameters={"NvLinkDisable": "1"})
    [check] = judged([{}, {}], "nvlink.down", driver=driver, virtualization=virtualization)
    assert (check.status, "NVreg_NvLinkDisable=1" in check.message) == (status, True)


def judged(said: Sequence[Mapping[str, Any]], check_id: str, **more: Any) -> list[Check]:
    """The check of that id, of a node with GPUs that are well but for what is said of each."""
    facts = parse_probe((CASES / "debian12-h100-provisioned/probe.txt").read_text())
    [gpu], [pci] = facts.nvml, facts.gpus
    nvml = tuple(replace(gpu, index=n, slot=f"0000:{n:02x}:00.0", **{**WELL, **own}) for n, own in enumerate(said))
    pcis = tuple(replace(pci, slot=gpu.slot, id=more.get("id", pci.id)) for gpu in nvml)
    more.pop("id", None)
    facts = replace(facts, **{"nvml": nvml, "gpus": pcis, "unread": (), **more})
    return [check for check in health_checks(facts, load_knowledge()) if check.id == check_id]


WELL: Mapping[str, Any] = {
    **dict.fromkeys(("mig_current", "mig_pending"), "Disabled"),
    **dict.fromkeys(("remap_pending", "remap_failure"), "No"),
    "retired_pending": "N/A",
    "ecc_current": "Enabled",
    "ecc_uncorrected": 0,
    "fabric_state": "Completed",
    "fabric_status": "Success",
    "recovery": "None",
}
DUMB = dict.fromkeys(("fabric_state", "fabric_status"), "N/A")
SILENT = dict.fromkeys(("fabric_state", "fabric_status"), "")
MANAGER = Service(name="nvidia-fabricmanager", active="active")
SWITCH = PciDevice(slot="0000:c1:00.0", id="10de:22a3", class_code="0680")
UP = {"nvlinks_up": 18, "nvlink_speed": "26.562"}
LINKED = {
    "pcie_generation": "5",
    "pcie_generation_max": "5",
    "pcie_width": "16",
    "pcie_width_max": "16",
    "pstate": "P0",
}
CARD = PciDevice(slot="0000:00:00.0", id="10de:2330", class_code="0302")
# what the GPUs say, what else is there, check → status and message; None: no such check
JUDGED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str, tuple[str, str] | None]] = {
    "all well": ([{}, {}], {}, "gpu.fault", None),
    "reset": (
        [{}, {"fault": "GPU requires reset"}],
        {},
        "gpu.fault",
        ("failed", "GPU 1: the driver says «GPU requires reset»"),
    ),
    "lost": ([{"fault": "GPU is lost"}, {}], {}, "gpu.fault", ("failed", "GPU 0: the driver says «GPU is lost»")),
    "error": ([{"fault": "ERR!"}], {}, "gpu.fault", ("failed", "GPU 0: the driver says «ERR!»")),
    "fields of a lost GPU": (
        [{"fault": "GPU is lost", "remap_failure": ""}, {}],
        {},
        "gpu.remap-failure",
        ("not-proven", "GPU 0: not read: GPU is lost"),
    ),
    "nothing recommended": (
        [{}, {}],
        {},
        "gpu.recovery",
        ("passed", "the driver recommends no reset and no reboot"),
    ),
    "drain": (
        [{}, {"recovery": "Drain and Reset"}],
        {},
        "gpu.recovery",
        ("failed", "GPU 1: the driver recommends «Drain and Reset»"),
    ),
    "an action of tomorrow": (
        [{"recovery": "Replace"}],
        {},
        "gpu.recovery",
        ("failed", "GPU 0: the driver recommends «Replace»"),
    ),
    "not asked": ([{"recovery": ""}, {"recovery": ""}], {}, "gpu.recovery", None),
    "one not read": ([{"recovery": ""}, {}], {}, "gpu.recovery", ("not-proven", "GPU 0: not read")),
    "remap failed": ([{}, {"remap_failure": "Yes"}], {}, "gpu.remap-failure", ("failed", "GPU 1: a row remap failed")),
    "remap not read": ([{"remap_pending": ""}, {}], {}, "gpu.remap-pending", ("not-proven", "GPU 0: not read")),
    "no remapping": ([{"remap_pending": "N/A"}, {}], {}, "gpu.remap-pending", ("passed", "none; GPU 0: reports none")),
    "remapping under MIG": (
        [{"remap_pending": "N/A", "mig_current": "Enabled", "mig_pending": "Enabled"}],
        {},
        "gpu.remap-pending",
        ("skipped", "GPU 0: not reported while MIG is on"),
    ),
    "joined": ([{}, {}], {}, "fabric.state", ("passed", "all GPUs have joined the NVLink fabric")),
    "guest, B200": ([{"fabric_state": "In Progress"}, {}], {}, "fabric.state", ("failed", "GPU 0: In Progress")),
    "not started": (
        [{"fabric_state": "Not Started"}] * 2,
        {"nvlink5_fabric": True},
        "fabric.state",
        ("failed", "GPU 0, 1: Not Started"),
    ),
    "no success": (
        [{}, {"fabric_status": "Unknown Error"}],
        {},
        "fabric.state",
        ("failed", "GPU 1: Completed without success: Unknown Error"),
    ),
    "status not read": (
        [{}, {"fabric_status": ""}],
        {},
        "fabric.state",
        ("not-proven", "GPU 1: Completed, and whether with success was not read"),
    ),
    "no fabric": ([DUMB, DUMB], {}, "fabric.state", None),
    "A100 with NVSwitches": (
        [DUMB, DUMB],
        {"nvswitches": (SWITCH,)},
        "fabric.state",
        ("not-proven", "GPU 0, 1: reports no fabric state"),
    ),
    "A100 with the fabric manager": (
        [DUMB, DUMB],
        {"nvswitches": (SWITCH,), "services": {"nvidia-fabricmanager": MANAGER}},
        "fabric.state",
        ("skipped", "GPU 0, 1: reports no fabric state; nvidia-fabricmanager runs"),
    ),
    "NVSwitches, nothing read": (
        [SILENT, {}],
        {"nvswitches": (SWITCH,)},
        "fabric.state",
        ("not-proven", "GPU 0: not read"),
    ),
    "one of the fabric does not say": ([SILENT, {}], {}, "fabric.state", ("not-proven", "GPU 0: not read")),
    "links up": ([UP, UP], {}, "nvlink.down", ("passed", "NVLinks up of each GPU: 18 of 18")),
    "one link down": (
        [UP, {**UP, "nvlinks_up": 17}],
        {"nvlink_inactive": ("GPU 1 link 3",)},
        "nvlink.down",
        ("failed", "GPU 1 has 17 of 18 NVLinks up (down: 3)"),
    ),
    "a slow link": (
        [UP, {**UP, "nvlink_speed": "13.281"}],
        {},
        "nvlink.down",
        ("failed", "GPU 1 has an NVLink at 13.281 of 26.562 GB/s"),
    ),
    "all links of all down": (
        [{"nvlinks_up": 0}, {"nvlinks_up": 0}],
        {"virtualization": "none"},
        "nvlink.down",
        ("failed", "GPU 0 has 0 of 18 NVLinks up; GPU 1 has 0 of 18 NVLinks up"),
    ),
    "a guest without NVSwitches": (
        [{"nvlinks_up": 0}, {"nvlinks_up": 0}],
        {"virtualization": "kvm"},
        "nvlink.down",
        (
            "not-proven",
            "GPU 0: all are down; without NVSwitches for this guest that is right; "
            "GPU 1: all are down; without NVSwitches for this guest that is right",
        ),
    ),
    "12 of 18 links of H100 NVL": (
        [{"nvlinks_up": 12}, {"nvlinks_up": 12}],
        {"id": "10de:2321", "nvlink_inactive": ("GPU 0 link 4", "GPU 1 link 4")},
        "nvlink.down",
        ("passed", "NVLinks up of each GPU: 12 of 12"),
    ),
    "a wide link": (
        [LINKED, LINKED],
        {},
        "pcie.width",
        ("passed", "PCIe links are as wide as they can be"),
    ),
    "a narrow link among others of its model": (
        [LINKED, {**LINKED, "pcie_width": "8"}],
        {},
        "pcie.width",
        ("failed", "GPU 1 has x8, and others of its model x16"),
    ),
    "a cloud's T4, x8 of x16": (
        [{**LINKED, "pcie_width": "8"}],
        {"virtualization": "kvm"},
        "pcie.width",
        ("not-proven", "GPU 0 has x8 of x16, and what its slot has is not seen"),
    ),
    "a slot with 8 lanes": (
        [{**LINKED, "pcie_width": "8"}],
        {
            "virtualization": "none",
            "pcie": (
                PciLink(slot="0000:00:00.0", parent="0000:ff:01.0"),
                PciLink(slot="0000:ff:01.0", width=8, max_width=8),
            ),
        },
        "pcie.width",
        ("passed", "PCIe links are as wide as they can be; GPU 0 has x8, all that its slot has"),
    ),
    "8 lanes in a slot with 16": (
        [{**LINKED, "pcie_width": "8"}],
        {
            "virtualization": "none",
            "pcie": (
                PciLink(slot="0000:00:00.0", parent="0000:ff:01.0"),
                PciLink(slot="0000:ff:01.0", width=8, max_width=16),
            ),
        },
        "pcie.width",
        ("failed", "GPU 0 has x8, and its slot and it can x16"),
    ),
    "asleep": (
        [{**LINKED, "pcie_generation": "1", "pstate": "P8"}],
        {},
        "pcie.generation",
        ("skipped", "GPU 0 sleeps (P8) at Gen 1 of 5: its link counts while it works"),
    ),
    "slow while it works": (
        [LINKED, {**LINKED, "pcie_generation": "1"}],
        {},
        "pcie.generation",
        ("failed", "GPU 1 runs at Gen 1, and its slot and it can Gen 5"),
    ),
    "a vGPU": (
        [dict.fromkeys(LINKED, "N/A")],
        {},
        "pcie.width",
        ("passed", "PCIe links are as wide as they can be; GPU 0 reports none"),
    ),
    "SRAM beyond the limit": (
        [{}, {"sram_exceeded": "Yes"}],
        {},
        "gpu.sram",
        ("failed", "GPU 1: more uncorrected SRAM errors than NVIDIA's limit for a replacement"),
    ),
    "SRAM by the number, before 580": (
        [{"sram_uncorrected": "5"}],
        {},
        "gpu.sram",
        ("failed", "GPU 0: 5 uncorrected SRAM errors, and more than 4 are reason for a replacement"),
    ),
    "persistenced without persistence": (
        [{"persistence": "Disabled"}],
        {"services": {"nvidia-persistenced": Service(name="nvidia-persistenced", active="active")}},
        "gpu.persistence",
        (
            "warning",
            "persistence mode is off: the driver initializes GPU 0 for each first program; nvidia-persistenced runs "
            "without it (--no-persistence-mode)",
        ),
    ),
    "hidden from this session": (
        [{}],
        {"hidden": ("/dev/nvidia1",), "gpus": (CARD, CARD)},
        "gpu.count",
        (
            "not-proven",
            "this session may not open /dev/nvidia1: its device cgroup hides them (DeviceAllow of sshd)",
        ),
    ),
    "H800, which has 8": (
        [{"nvlinks_up": 8, "nvlink_speed": "26.562"}, {"nvlinks_up": 7, "nvlink_speed": "26.562"}],
        {"id": "10de:2324"},
        "nvlink.down",
        ("failed", "GPU 1 has 7 of 8 NVLinks up"),
    ),
    "B300, with 18 of the 36 that it names": (
        [{"nvlinks_up": 18, "nvlink_speed": "53.125"}] * 2,
        {"id": "10de:3182", "nvlink_inactive": ("GPU 0 link 18", "GPU 1 link 18")},
        "nvlink.down",
        ("passed", "NVLinks up of each GPU: 18 of 18"),
    ),
    "links of a GPU down": (
        [{}, {}],
        {"nvlink_inactive": ("GPU 1: all links",)},
        "nvlink.down",
        ("failed", "NVLinks inactive: GPU 1: all links"),
    ),
    "links not read": (
        [{}, {}],
        {"unread": ("nvlink",)},
        "nvlink.down",
        ("not-proven", "the state of the NVLinks was not read"),
    ),
    "no Xid": ([{}], {}, "gpu.xid", ("passed", "no Xid since boot")),
    "a compute mode that lets no program in": (
        [{"compute_mode": "Default"}, {"compute_mode": "Prohibited"}],
        {},
        "gpu.compute-mode",
        ("warning", "GPU 1: no program can use CUDA, the compute mode is Prohibited"),
    ),
    "one program at a time": ([{"compute_mode": "Exclusive_Process"}], {}, "gpu.compute-mode", None),
    "45 alone": (
        [{}],
        {"xids": (Xid(code=45, slot="0000:17:00.0", count=50),)},
        "gpu.xid",
        ("passed", "no Xid since boot but 45 (50×), which only follows the end of a program"),
    ),
    "45 alone in what is left of the log": (
        [{}],
        {"xids": (Xid(code=45, count=50),), "unread": ("xids",)},
        "gpu.xid",
        ("not-proven", "the kernel log was not read, or has lost a part"),
    ),
    "45 after its cause": (
        [{}],
        {"xids": (Xid(code=62), Xid(code=45, count=3300), Xid(code=109, count=2))},
        "gpu.xid",
        ("failed", "Xids since boot: 62 (1×), 109 (2×)"),
    ),
    "a firmware that does not answer": (
        [{}],
        {"kernel_faults": (KernelFault(kind="gsp", line="NVRM: Heartbeat timed out", count=7),)},
        "driver.kernel-log",
        ("failed", "a GPU's firmware (GSP) does not answer (7×): NVRM: Heartbeat timed out"),
    ),
    "a reset that is required": (
        [{"recovery": "GPU Reset"}],
        {"kernel_faults": (KernelFault(kind="reset", line="x"),)},
        "driver.kernel-log",
        ("failed", "the driver refuses work until a GPU is reset (1×): x"),
    ),
    "a reset that was done": (
        [{"recovery": "None"}],
        {"kernel_faults": (KernelFault(kind="reset", line="x"),)},
        "driver.kernel-log",
        ("warning", "the driver refuses work until a GPU is reset (1×): x"),
    ),
    "a task that hung": (
        [{}],
        {"kernel_faults": (KernelFault(kind="hung", line="x"),)},
        "driver.kernel-log",
        ("warning", "a GPU, or a task in the driver, hung (1×): x"),
    ),
    "log not read": (
        [{}],
        {"unread": ("xids",)},
        "gpu.xid",
        ("not-proven", "the kernel log was not read, or has lost a part"),
    ),
}


@pytest.mark.parametrize("case", JUDGED)
def test_what_is_said_of_gpus(case: str) -> None:
    gpus, more, check_id, wanted = JUDGED[case]
    found = [(check.status, check.message) for check in judged(gpus, check_id, **more)]
    assert found == ([wanted] if wanted else [])


@pytest.mark.parametrize(
    ("word", "way"),
    [
        ("GPU requires reset", "--gpu-reset"),
        ("GPU is lost", "cold start"),
        ("Unknown Error", "dmesg"),
    ],
)
def test_what_to_do_with_a_gpu_that_the_driver_cannot_speak_for(word: str, way: str) -> None:
    [check] = judged([{"fault": word}], "gpu.fault")
    assert way in check.fix


@pytest.mark.parametrize(
    ("action", "way"),
    [
        ("Reset", "--gpu-reset"),
        ("Reboot", "then reboot it"),
        ("Drain P2P", "peer-to-peer"),
        ("Bus Reset", "nvidia-smi -r bus -i INDEX"),
        ("Recover IMEX Domain", "nvidia-imex.service"),
        ("System Reboot", "reboot it"),
        ("OS Reboot", "reboot it"),
        ("Drain and Reset", "start nothing new"),
    ],
)
def test_what_to_do_where_the_driver_recommends_it(action: str, way: str) -> None:
    [check] = judged([{"recovery": action}], "gpu.recovery")
    assert way in check.fix


H100, NONE = "debian12-h100-provisioned", "debian12-no-gpu"  # one GPU, in slot 0000:17:00.0; none
BEFORE = {"0000:17:00.0": "10de:2330", "0000:65:00.0": "10de:2330"}
PRESENCE = {  # node, expected → id: status
    "none at all": (NONE, Expected(spec=VerifySpec()), {"gpu.present": "pending"}),
    "none, and allowed": (NONE, Expected(spec=VerifySpec(allow_no_gpu=True)), {"gpu.present": "skipped"}),
    "none, as expected": (NONE, Expected(spec=VerifySpec(expect_gpus=0)), {"gpu.present": "skipped"}),
    "fewer than expected": (H100, Expected(spec=VerifySpec(expect_gpus=8)), {"gpu.expected": "failed"}),
    "more than expected": (H100, Expected(spec=VerifySpec(expect_gpus=0)), {"gpu.expected": "failed"}),
    "as many as expected": (H100, Expected(spec=VerifySpec(expect_gpus=1)), {}),
    "one is gone": (H100, Expected(spec=VerifySpec(), run="r1", before=BEFORE), {"gpu.gone": "failed"}),
    "one was removed": (H100, Expected(spec=VerifySpec(expect_gpus=1), run="r1", before=BEFORE), {}),
    "the last one is gone": (
        NONE,
        Expected(spec=VerifySpec(allow_no_gpu=True), run="r1", before=BEFORE),
        {"gpu.present": "skipped", "gpu.gone": "failed"},
    ),
    "no journal": (H100, Expected(spec=VerifySpec(), unknown="damaged"), {"gpu.gone": "not-proven"}),
}


@pytest.mark.parametrize("case", PRESENCE)
def test_gpus_that_are_not_there_are_missed(case: str) -> None:
    node, expected, want = PRESENCE[case]
    facts = parse_probe((CASES / node / "probe.txt").read_text())
    found = {c.id: c.status for c in health_checks(facts, load_knowledge(), expected=expected)}
    assert {k: v for k, v in found.items() if k in ("gpu.present", "gpu.expected", "gpu.gone")} == want


def test_a_gpu_that_is_gone_is_named_with_its_slot_and_the_way_to_say_so() -> None:
    facts = parse_probe((CASES / H100 / "probe.txt").read_text())
    before = {gpu.slot: gpu.id for gpu in facts.gpus} | {"0000:65:00.0": facts.gpus[0].id}
    [check] = [
        c
        for c in health_checks(facts, load_knowledge(), expected=Expected(spec=VerifySpec(), run="r1", before=before))
        if c.id == "gpu.gone"
    ]
    assert check.message == "1 GPU gone since run r1: 0000:65:00.0"
    assert "--expect-gpus 1" in check.fix


@pytest.mark.parametrize(
    ("modules", "five", "says"),
    [
        ((), True, "ib_umad is not loaded; NVLink 5 needs ib_umad, mlx5_ib and nvlsm"),
        (("ib_umad",), True, "NVLink 5 needs ib_umad, mlx5_ib and nvlsm"),
        ((), False, "systemctl status nvidia-fabricmanager"),
    ],
)
def test_a_fabric_of_nvlink_5_that_was_not_joined_names_what_its_manager_needs(
    modules: tuple[str, ...], five: bool, says: str
) -> None:
    gpus = [{"fabric_state": "In Progress", "fabric_status": "N/A"}]
    [check] = judged(gpus, "fabric.state", modules=modules, nvlink5_fabric=five)
    assert check.status == "failed" and check.fix.startswith(says)
