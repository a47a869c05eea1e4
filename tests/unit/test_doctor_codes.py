"""doctor: codes of the driver, as programs report them and as people tell of them; what the catalogues say of each."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gpunode.core.doctor import diagnose, diagnosis_data, scan
from gpunode.edge.doctor import load_faults

FAULTS = load_faults()

XIDS = [
    ("NVRM: Xid (PCI:0000:ca:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", [79]),
    ("[1.2] NVRM: Xid (0000:01:00): 31, Ch 00000010", [31]),
    ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9)", [94]),
    (
        "NVRM: GPU at PCI:0000:3b:00: GPU-1\nNVRM: Xid (PCI:0000:3b:00): 48, pid=1\nNVRM: Xid (PCI:0000:3b:00): 63, x",
        [48, 63],
    ),
    ("I keep getting Xid 79 errors on one of my cards", [79]),
    ("see table; Xid 48 is told of, but\nNVRM: Xid (PCI:0000:3b:00): 13, Graphics", [13]),
    ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", [20034]),
    ("NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) in this system has\nNVRM: fallen off the bus", [79]),
    ("the paxid 79 of our table", []),
    ("Xid 62/45 -> Xid 119 on the desktop", [62, 45, 119]),
    ("Xid 79 and 154 in dmesg, Xid 13 and 2 nodes", [79, 154, 13]),
    ("XID 149.37 (err status 0x00000000) NVLINK_NETIR_ERROR detected on GPU PCI:0019:01:00", [149]),
    ("SysLogsXIDErrorIsNotHealthy Message:ErrorCode:119 PCI:0002:00:00 GPU_UUID:GPU-1", [119]),
    ('XidCriticalError  True  Mon, 23 Jun 2025 18:45:43 +0000  {"31":true}  6e43a052', [31]),
    ("Warning  NvidiaXID31Warning  12m  eks-node-monitoring-agent", [31]),
    ("GPU Xid errors detected: 48", [48]),
    ("GPU 3 hat Xid-Fehler 79", [79]),
    ("XIDエラー 119 が出た", [119]),
    ("GPU报XID 48错误，之前出现了 13 号 XID", [48, 13]),
    ("Xid 오류 79 발생", [79]),
    ("XID errors found: XID {63} on GPU 0", [63]),
    ("GPU 先报 Xid 119，随后报 Xid 154", [119, 154]),
    ("越界时驱动会报 Xid 13", []),
    ('syslog_health_monitor_xid_errors{err_code="79",node="a"} 0', []),
    ("nvswitch0: SXid 20034 on dgx-03", [20034]),
    ('DCGM_EXP_XID_ERRORS_COUNT{gpu="0",xid="43"} 1', [43]),
    ('DCGM_EXP_XID_ERRORS_COUNT{gpu="0",xid="43"} 0', []),
    ("Xid 79 means that the GPU has fallen off the bus.", []),
    ("XID 31 号错误是由 MMU 报告的错误", []),
    ("the driver logs Xid 48 when a double bit error is detected", []),
    ("grep for Xid 79; it is not Xid 31, and unlike Xid 13 it stays", []),
    ("some codes (e.g. Xid 62) are not exported", []),
    ("the host has no Xid; others were traced to Xid 79", []),
    ("inject Xid 95 and wait\nGPU had an uncontained error (Xid 95)", []),
    ("Xid 13/31/43/45 are of programs", []),
    ("Xid 7777", []),
]


@pytest.mark.parametrize(("text", "codes"), XIDS)
def test_xid_codes_are_read(text: str, codes: list[int]) -> None:
    found = diagnose(FAULTS, [scan(FAULTS, "log", [text])]).xids
    assert [xid.code for xid in found] == codes


def test_a_code_is_counted_with_its_gpus_and_nvidias_actions() -> None:
    text = "".join(f"NVRM: Xid (PCI:0000:{bus}:00): 79, pid=1\n" for bus in ("3b", "3b", "86"))
    (row,) = diagnosis_data(diagnose(FAULTS, [scan(FAULTS, "log", [text])]), FAULTS)["xids"]
    assert (row["code"], row["count"], row["gpus"]) == (79, 3, ["0000:3b:00", "0000:86:00"])
    assert row["mnemonic"] and row["immediate"] and row["source"]


def test_a_code_of_an_nvswitch_has_its_class_and_counts_once_an_event() -> None:
    lines = "".join(
        f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, {rest}\n"
        for rest in ("Fatal, Link 60 LTSSM Fault Up", "Severity 1 Engine instance 60", "Data {0x1, 0x1}") * 2
    )
    (row,) = diagnosis_data(diagnose(FAULTS, [scan(FAULTS, "log", [lines])]), FAULTS)["xids"]
    assert (row["kind"], row["severity"], row["count"], row["gpus"]) == ("SXid", "fatal", 2, ["0000:05:00.0"])
    assert row["description"] == "LTSSM Fault Up" and row["immediate"] and "fabric-manager" in row["source"]


def test_every_sxid_says_what_it_means_and_the_fatal_ones_what_to_do() -> None:
    assert len(FAULTS.sxids) >= 90
    for sxid in FAULTS.sxids.values():
        assert sxid.plain and sxid.description, sxid.code
        assert sxid.immediate or sxid.severity in ("corrected", "non-fatal"), sxid.code
        assert 10_000 <= sxid.code < 100_000


def test_every_code_of_the_catalogue_is_known_by_a_line() -> None:
    assert len(FAULTS.xids) >= 110
    text = "".join(f"NVRM: Xid (PCI:0000:01:00): {code}, x\n" for code in FAULTS.xids)
    assert [x.code for x in diagnose(FAULTS, [scan(FAULTS, "log", [text])]).xids] == list(FAULTS.xids)


@pytest.mark.parametrize("kind", ["xid", "sxid"])
def test_the_tables_have_no_code_twice(kind: str) -> None:
    text = (Path(__file__).parents[2] / "gpunode" / "knowledge" / f"{kind}s.toml").read_text(encoding="utf-8")
    codes = [row["code"] for row in tomllib.loads(text)[kind]]
    assert len(codes) == len(set(codes))
