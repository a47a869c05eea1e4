"""doctor: codes of the driver, as programs report them; what the catalogues say of each."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from rows import over

from gpunode.core.doctor import diagnose, diagnosis_data, scan
from gpunode.edge.doctor import load_faults

FAULTS = load_faults()

LINES = [
    ("NVRM: Xid (PCI:0000:ca:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", [79]),
    ("[1.2] NVRM: Xid (0000:01:00): 31, Ch 00000010", [31]),
    ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9)", [94]),
    (
        "NVRM: GPU at PCI:0000:3b:00: GPU-1\nNVRM: Xid (PCI:0000:3b:00): 48, pid=1\nNVRM: Xid (PCI:0000:3b:00): 63, x",
        [48, 63],
    ),
    ("NVRM: Xid\n> (PCI:0000:3b:00): 48, pid=1", [48]),
    ("see table; Xid 48 is told of, but\nNVRM: Xid (PCI:0000:3b:00): 13, Graphics", [13]),
    ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", [20034]),
    ('DCGM_EXP_XID_ERRORS_COUNT{gpu="0",xid="43"} 0', []),
    ('DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1"} 0', []),
    ("I keep getting Xid 79 errors on one of my cards", []),
    ("the driver logs Xid 48 when a double bit error is detected", []),
]


@over([*LINES, *[(report.line, None) for report in FAULTS.reports]])
def test_codes_that_programs_report_are_read_and_no_others(text: str, codes: list[int] | None) -> None:
    found = [xid.code for xid in diagnose(FAULTS, [scan(FAULTS, "log", [text])]).xids]
    assert found == codes if codes is not None else found


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
    assert len(FAULTS.codes.sxids) >= 90
    for sxid in FAULTS.codes.sxids.values():
        assert sxid.plain and sxid.description, sxid.code
        assert sxid.immediate or sxid.severity in ("corrected", "non-fatal"), sxid.code
        assert 10_000 <= sxid.code < 100_000


def test_every_code_of_the_catalogue_is_known_by_a_line() -> None:
    assert len(FAULTS.codes.xids) >= 110
    text = "".join(f"NVRM: Xid (PCI:0000:01:00): {code}, x\n" for code in FAULTS.codes.xids)
    assert [x.code for x in diagnose(FAULTS, [scan(FAULTS, "log", [text])]).xids] == list(FAULTS.codes.xids)


@pytest.mark.parametrize("kind", ["xid", "sxid"])
def test_the_tables_have_no_code_twice(kind: str) -> None:
    text = (Path(__file__).parents[2] / "gpunode" / "knowledge" / f"{kind}s.toml").read_text(encoding="utf-8")
    codes = [row["code"] for row in tomllib.loads(text)[kind]]
    assert len(codes) == len(set(codes))
