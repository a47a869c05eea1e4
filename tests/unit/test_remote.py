"""What node scripts print, read: lines by the script's own ends, without colours and control characters."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.items.activation import parse_activation
from gpunode.core.items.package import locked_by
from gpunode.core.items.smoke import parse_checks
from gpunode.core.model import Check
from gpunode.core.remote import STATUSES, fix_of, parse_outcome, program

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ANY = st.text(st.characters(blacklist_categories=()))


def test_colours_go_and_other_controls_become_visible() -> None:
    found = parse_outcome(
        "\x1b[1;31mE: \x1b[0mbroken\r\nReading 5%\rReading 100%\n"
        "gpunode\tstatus\tfailed\ngpunode\tmessage\tno \x1b]0;pwn\x07room\u202e\ngpunode\tfix\tmake\x9b it\n",
        1,
    )
    assert found.log == "E: broken\nReading 5%\nReading 100%"
    assert (found.message, found.fix) == ("no \\x1b]0;pwn\\x07room\\u202e", "make\\x9b it")


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_what_a_message_holds_cannot_pass_for_a_line_of_its_own(end: str) -> None:
    found = parse_outcome(f"gpunode\tmessage\tx{end}gpunode\tstatus\tchanged\n", 0)
    assert (found.status, found.changed) == ("failed", ())
    assert parse_checks(f"log{end}gpunode\tcheck\tdriver.smi|passed||\n", 0)[0].id == "smoke.ran"


@given(ANY, st.integers(-255, 255))
def test_any_output_is_an_outcome_without_controls(text: str, rc: int) -> None:
    for output in (text, f"gpunode\tmessage\t{text}\ngpunode\tcheck\t{text}\ngpunode\tstatus\tchanged\n"):
        found = parse_outcome(output, rc)
        checks = parse_checks(output, rc)
        printed = (found.message, found.fix, found.log, *found.changed, *found.notes, *found.stale, locked_by(output))
        printed += (parse_activation(output).reboot, parse_activation(output).boot_id)
        printed += tuple(word for check in checks for word in (check.id, check.message, check.fix))
        assert found.status in STATUSES
        assert CONTROL.search("".join(printed)) is None


def test_a_check_whose_id_is_no_id_is_a_failed_one() -> None:
    [check, _] = parse_checks("gpunode\tcheck\t{{x}}|passed|fine|\n", 0)
    assert check == Check(id="smoke.ran", status="failed", message="smoke.sh names a check '{{x}}': fine")


def test_a_boot_id_that_is_none_is_unknown() -> None:
    assert parse_activation("gpunode\tboot_id\t{{x}}\n").boot_id == ""


def test_a_node_without_room_is_told_apart_from_one_that_cannot_be_reached(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "none", full], capture_output=True)
    if mount.returncode:
        pytest.skip("needs the right to mount")
    try:
        (full / "one").touch()
        ran = subprocess.run(
            ["sh", "-s"], input=program("true", {"a": b"b"}), capture_output=True, text=True, env={"TMPDIR": str(full)}
        )
    finally:
        subprocess.run(["umount", full], check=True)
    assert ran.returncode == 2 and "df -i" in fix_of(ran.stderr)
    assert fix_of("Permission denied").startswith("check the connection")
