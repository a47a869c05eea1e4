"""NVIDIA's real nvidia-smi, of 390 to 615, on the lab's own NVML: what it prints for GPUs that are well, and ill."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from real_smi import RealSmi, branches, since

from gpunode.lab import vendor

SLOT = "00000000:17:00.0"
LOST = r"Unable to determine the device handle for gpu ?0?:? ?00000000:17:00.0: GPU is lost\."


def fields(text: str) -> list[list[str]]:
    return [line.split(", ") for line in text.splitlines() if line]


@pytest.mark.parametrize("branch", branches())
def test_healthy_gpus_answer_every_question(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch)
    for words in (
        (),
        ("-L",),
        ("-q",),
        ("topo", "-m"),
        ("nvlink", "--status"),
        ("-q", "-d", "TEMPERATURE,PERFORMANCE"),
    ):
        rc, text = smi(*words)
        assert rc == 0, (words, text)
        assert "ERR!" not in text
        assert "Function Not Found" not in text
    asked = "index,name,uuid,pci.bus_id,memory.total,ecc.mode.current,ecc.errors.uncorrected.volatile.total"
    rc, text = smi(f"--query-gpu={asked},retired_pages.pending", "--format=csv,noheader")
    assert rc == 0, text
    assert [row[0] for row in fields(text)] == ["0", "1"]
    assert fields(text)[0][1:2] + fields(text)[0][3:] == [
        *("NVIDIA H100 80GB HBM3", SLOT, "81559 MiB", "Enabled", "0"),
        "[Not Supported]" if int(branch) < 418 else "[N/A]",
    ]


RECORD = Path(__file__).parents[1] / "cases/selftest/h100-80gb-hbm3-vm"
# what is of one board, one machine or one moment, and what the lab's GPU is asked for behind nvml.h's back
OWN = """
driver_version timestamp persistence_mode serial uuid pdi vbios_version board_id board_part_number gpu_part_number
module_id virtualization_mode gsp_firmware_version pci_bus pci_device pci_bus_id tx_util rx_util sparse_operation_mode
gpu_temp gpu_temp_tlimit memory_temp average_power_draw instant_power_draw video_clock state status cliqueId clusterUuid
supported_clocks
""".split()


def answers(xml: str) -> list[tuple[str, str]]:
    """Each tag with its text, in their order."""
    log = ElementTree.fromstring(xml)
    for gone in log.findall(".//supported_clocks"):
        gone.clear()
    return [(one.tag, "" if one.tag in OWN else (one.text or "").strip()) for one in log.iter()]


def test_a_gpu_of_the_lab_says_what_a_real_one_said(real_smi: RealSmi) -> None:
    """An H100, asked by programs of one branch."""
    smi = real_smi("580", gpus=("h100",))
    _, xml = smi("-q", "-x")
    assert answers(xml) == answers((RECORD / "nvidia-smi.xml").read_text())
    assert smi("mig", "-lgip") == (0, (RECORD / "mig-profiles.txt").read_text())
    assert smi("mig", "-lgi") == (0, (RECORD / "mig-instances.txt").read_text())


@pytest.mark.parametrize("branch", branches())
def test_the_xml_has_every_gpu_and_no_ghosts(real_smi: RealSmi, branch: str) -> None:
    rc, text = real_smi(branch, gpus=("h100", "t4"))("-q", "-x")
    assert rc == 0, text
    log = ElementTree.fromstring(text)
    assert log.findtext("driver_version") == vendor.nvidia_smi(branch).version
    assert [gpu.findtext("product_name") for gpu in log.iter("gpu")] == ["NVIDIA H100 80GB HBM3", "Tesla T4"]
    assert not log.findall(".//process_info")
    assert "requires reset" not in text
    t4 = log.findall("gpu")[1]
    assert t4.findtext("retired_pages/pending_retirement") or t4.findtext("retired_pages/pending_blacklist") == "No"


@pytest.mark.parametrize("branch", branches())
def test_processes_are_those_that_the_table_names(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch, ill={1: {"processes": f"{os.getpid()}:512"}})
    rc, text = smi("-q", "-x")
    assert rc == 0, text
    found = ElementTree.fromstring(text).findall(".//process_info")
    assert [(one.findtext("pid"), one.findtext("used_memory")) for one in found] == [(str(os.getpid()), "512 MiB")]


@pytest.mark.parametrize("branch", branches())
def test_links_are_up_down_or_not_there(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch, gpus=("a100", "a100", "t4"), ill={0: {"nvlink.3": "down"}, 1: {"nvlink": "down"}})
    rc, text = smi("nvlink", "--status")
    assert rc == 0, text
    first = text.partition("GPU 1:")[0]
    most = 6 if int(branch) < 450 else 12  # what such a driver can count
    assert first.count("25 GB/s") == most - 1
    assert re.findall(r"Link (\d+): <inactive>", first) == ["3"]
    second = text.partition("GPU 1:")[2].partition("GPU 2:")[0]
    assert "all links are inactive" in second.lower() or second.count("<inactive>") == most
    if int(branch) >= 450:
        smi.makes_ill({})
        assert re.search(r"^GPU0\s+X\s+NV12\s+PHB", smi("topo", "-m")[1], re.M)


@pytest.mark.parametrize("branch", branches())
def test_a_lost_gpu_ends_the_command_or_leaves_the_others(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch, ill={0: {"lost": "1"}})
    rc, text = smi("-L")
    assert (rc, bool(re.search(LOST, text, re.I))) == (15, True), text
    rc, text = smi("--query-gpu=index,memory.total", "--format=csv,noheader")
    assert re.search(LOST, text, re.I), text
    # up to 550 nobody else is listed; from 580 on the others are, and the status says that all is well
    assert (rc, "1, 81559 MiB" in text) == ((15, False) if int(branch) < 580 else (0, True))


@pytest.mark.parametrize("branch", branches())
def test_a_gpu_that_requires_a_reset_says_so_in_every_field_with_exit_status_0(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch, ill={0: {"reset": "1"}})
    asked = "index,name,memory.total,ecc.errors.uncorrected.volatile.total"
    rc, text = smi(f"--query-gpu={asked}", "--format=csv,noheader")
    word = "[GPU requires reset]"
    assert (rc, fields(text)[0]) == (0, ["0", "NVIDIA H100 80GB HBM3", word, word])
    assert fields(text)[1] == ["1", "NVIDIA H100 80GB HBM3", "81559 MiB", "0"]
    table = smi()[1]
    assert "GPU requires reset" in table
    assert "ERR!" in table


@pytest.mark.parametrize("branch", since(450))
def test_remapped_rows(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch, ill={0: {"remapped_rows.pending": "Yes"}, 1: {"remapped_rows.failure": "Yes"}})
    words = ("--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure", "--format=csv,noheader")
    rc, text = smi(*words)
    yes, no = ("1", "0") if int(branch) < 580 else ("Yes", "No")
    assert (rc, [row[1:] for row in fields(text)]) == (0, [[yes, no], [no, yes]])
    rc, text = smi("--query-gpu=remapped_rows.pending", "--format=csv,noheader")
    assert (rc, "not a valid field" in text) == ((2, True) if int(branch) < 580 else (0, False))


@pytest.mark.parametrize("branch", since(525))
def test_the_fabric(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(
        branch,
        gpus=("h100", "h100", "h100", "a100"),
        ill={1: {"fabric.state": "In Progress"}, 2: {"fabric.status": "Unknown Error"}},
    )
    rc, text = smi("--query-gpu=fabric.state,fabric.status", "--format=csv,noheader")
    plain = [["Completed", "Success"], ["In Progress", "N/A"], ["Completed", "Unknown Error"], ["[N/A]", "[N/A]"]]
    with_names = [[f"state  {row[0]}", f"status {row[1]}"] for row in plain[:3]] + plain[3:]
    assert (rc, fields(text)) == (0, with_names if int(branch) < 580 else plain)


@pytest.mark.parametrize("branch", branches("580", "595", "615"))
def test_what_the_driver_recommends(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch)
    words = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
    for word in words:
        smi.makes_ill({0: {"gpu_recovery_action": word}})
        rc, text = smi("--query-gpu=gpu_recovery_action", "--format=csv,noheader")
        assert (rc, fields(text)) == (0, [[word], ["None"]])


@pytest.mark.parametrize("branch", branches())
def test_throttling(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch, ill={0: {"clocks.reasons": "0x48"}})  # hardware, thermal
    rc, text = smi("-q", "-d", "PERFORMANCE")
    assert rc == 0
    active = re.findall(r"^ *([\w ]+?) *: Active", text.partition(":1E:")[0], re.M)
    assert [one for one in active if "Slowdown" in one] == ["HW Slowdown", "HW Thermal Slowdown"]


@pytest.mark.parametrize("branch", since(450))
def test_mig_from_its_mode_to_devices_and_back(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch)
    state = smi.root / "mig/0000:17:00.0"

    def says(*words: str) -> str:
        rc, text = smi(*words)
        assert rc == 0, (words, text)
        return text

    assert f"Enabled MIG Mode for GPU {SLOT}" in says("-i", "0", "-mig", "1")
    assert (state / "current").read_text() == "Enabled\n"
    assert re.search(r"\|   0  MIG 1g\.10gb +19 +7/7 +9\.75", says("mig", "-lgip"))
    assert "GPU  0 Profile ID  9 Placements: {0,4}:4" in says("mig", "-lgipp")
    made = says("mig", "-i", "0", "-cgi", "9,14,19", "-C")
    assert made.count("Successfully created GPU instance ID") == 3
    assert (state / "gi/1").read_text() == "3g.40gb 9 0 4\n0\n"
    assert re.search(r"\|   0  MIG 2g\.20gb +14 +2 +4:2", says("mig", "-lgi"))
    assert re.search(r"\|   0 +1 +MIG 3g\.40gb +2 +0 +0:3", says("mig", "-lci"))
    listed = re.findall(r"  MIG (\S+) +Device +(\d): \(UUID: (MIG-[0-9a-f-]{36})\)", says("-L"))
    assert [(name, number) for name, number, _ in listed] == [("3g.40gb", "0"), ("2g.20gb", "1"), ("1g.10gb", "2")]
    assert len({uuid for *_, uuid in listed}) == 3
    xml = ElementTree.fromstring(says("-q", "-x"))
    if int(branch) > 450:  # whose XML has no MIG devices
        assert [one.findtext("index") for one in xml.iter("mig_device")] == ["0", "1", "2"]
    rc, text = smi("mig", "-i", "0", "-cgi", "9")
    assert (rc, "Insufficient Resources" in text) == (23, True)
    rc, text = smi("-i", "0", "-mig", "0")
    assert "In use by another client" in text
    assert (state / "current").read_text() == "Enabled\n"
    says("mig", "-i", "0", "-dci")
    assert says("mig", "-i", "0", "-dgi").count("Successfully destroyed GPU instance ID") == 3
    says("-i", "0", "-mig", "0")
    assert (state / "current").read_text() == "Disabled\n"


@pytest.mark.parametrize("branch", branches())
def test_without_a_driver_or_with_the_library_of_another(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch)
    none = replace(smi, program=replace(smi.program, version=""))
    assert (none("-L")[0], "couldn't communicate with the NVIDIA driver" in none("-L")[1]) == (9, True)
    other = smi.root / "lib/libnvidia-ml.so.999.10.01"
    other.parent.mkdir()
    shutil.copy(smi.library, other)
    (other.parent / "libnvidia-ml.so.1").symlink_to(other.name)
    rc, text = replace(smi, library=other.parent / "libnvidia-ml.so.1")("-L")
    assert (rc, "Driver/library version mismatch" in text) == (rc or 18, True), text  # 18, 231 or 255


@pytest.mark.parametrize("branch", since(450))
def test_a_reset_cures_what_it_can_and_makes_a_pending_mode_true(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(
        branch, gpus=("a100", "a100"), ill={0: {"reset": "1", "remapped_rows.failure": "Yes"}, 1: {"reset": "1"}}
    )
    rc, text = smi("--gpu-reset", "-i", "0")
    assert (rc, f"GPU {SLOT} was successfully reset." in text) == (0, True), text
    assert (smi.root / "standin-health").read_text() == (
        "0000:17:00.0\tremapped_rows.failure\tYes\n0000:1e:00.0\treset\t1\n"
    )
    smi.makes_ill({0: {"in-use": "1"}})
    assert "MIG mode is in pending enable state" in smi("-i", "0", "-mig", "1")[1]
    rc, text = smi("--gpu-reset", "-i", "0")
    assert rc != 0
    assert f"GPU {SLOT}: In use by another client" in text
    smi.makes_ill({})
    assert smi("--gpu-reset")[0] == 0
    assert (smi.root / "mig/0000:17:00.0/current").read_text() == "Enabled\n"
    (smi.root / "no-gpu-reset").touch()
    rc, text = smi("--gpu-reset", "-i", "0")
    assert rc != 0
    assert f"GPU {SLOT}: Not Supported" in text
    assert "Reboot the system or try nvidia-smi --gpu-reset" in smi("-i", "0", "-mig", "0")[1]
    assert (smi.root / "mig/0000:17:00.0/current").read_text() == "Enabled\n"


@pytest.mark.parametrize("branch", branches())
def test_what_is_set_is_what_the_next_one_reads_and_only_of_that_gpu(real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch)
    for words in (("-pm", "1"), ("-pl", "450"), ("-c", "EXCLUSIVE_PROCESS"), ("-e", "0")):
        rc, text = smi("-i", "1", *words)
        assert rc == 0, (words, text)
    fields = "persistence_mode,power.limit,enforced.power.limit,compute_mode,ecc.mode.current,ecc.mode.pending"
    asked = (f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    first, second = smi(*asked)[1].splitlines()
    assert first == "Disabled, 700.00, 700.00, Default, Enabled, Enabled"
    assert second == "Enabled, 450.00, 450.00, Exclusive_Process, Enabled, Disabled"
    rc, text = smi("-i", "1", "-pl", "9000")
    assert rc != 0
    assert "is not a valid power limit which should be between 200.00 W and 700.00 W" in text
    assert smi("-i", "1", "-pm", "0")[0] == 0
    if int(branch) >= 450:  # the reset of an H100 by older ones
        assert smi("--gpu-reset", "-i", "1")[0] == 0
        assert smi(*asked)[1].splitlines()[1] == "Disabled, 450.00, 450.00, Exclusive_Process, Disabled, Disabled"
    if int(branch) >= 418:
        assert smi("-i", "0", "-lgc", "1410,1410")[0] == 0
        clocks = ("--query-gpu=clocks.sm", "--format=csv,noheader,nounits")
        assert smi(*clocks)[1].split() == ["1410", "345"]
        assert smi("-i", "0", "-rgc")[0] == 0
        assert smi(*clocks)[1].split() == ["345", "345"]
