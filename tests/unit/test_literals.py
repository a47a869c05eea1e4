"""tools.literals: a message is found in a source through the values that a format puts into it, and not by chance."""

from __future__ import annotations

from pathlib import Path

from tools.literals import found, source_text

C = r"""
    nv_printf(NV_DBG_ERRORS, "NVRM: GPU %04x:%02x:%02x.%x: RmInitAdapter "
        "failed! (0x%x:0x%x:%d)\n", domain, bus, slot, f);
    fmt.Errorf("no runtime for %q is configured", name)
    say("Module %s is in use by: %s")
"""
ROWS = [
    ("rminitadapter failed! (", True),
    ("no runtime for 'nvidia' is configured", True),
    ("module nvidia is in use by: ", True),
    ("kernel module is of another version", False),
    ("no such device", False),
]


def test_a_message_is_in_a_source_but_for_its_values(tmp_path: Path) -> None:
    (tmp_path / "nv.c").write_text(C)
    (tmp_path / "image.png").write_bytes(b"no such device")
    source = source_text(tmp_path)
    assert [(message, found(message, source)) for message, _ in ROWS] == ROWS
