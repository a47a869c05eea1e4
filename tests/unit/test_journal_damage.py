"""A journal that a power cut, a full disk or somebody has damaged, judged on the controller."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_text import line, recall_text, state, wrote
from test_journal_sh import SHELLS

from gpunode.core.errors import GpunodeError
from gpunode.core.model.journal import Damage, JournalSnapshot
from gpunode.core.remote import program
from gpunode.core.undo import journal as journals
from gpunode.core.undo.journal import damage_of, parse_snapshot, present_request
from gpunode.edge.fleet import standing
from gpunode.edge.ssh.many import Ran
from gpunode.edge.ssh.shell import Target
from gpunode.node import script

AT = "2026-11-22T01:00:00Z"
BASELINE = json.dumps(line("baseline", id="20261122T010000Z-baseline", at=AT, driver=""), separators=(",", ":"))
STATE = json.dumps(
    line("state", id="20261122T010001Z-state-1", at=AT, kind="sysctl", name="a.b", **{"from": "0", "to": "1"}),
    separators=(",", ":"),
)
WHOLE = f"{BASELINE}\n{STATE}\n".encode()
OLD = "20261121T010000Z-baseline"
GONE = "20261121T010000Z-files-000004"
KILLED = "20261122T020000Z-files-000002"  # by a run that ended before its first record
FIRST = "20261121T010000Z-files-000000"
GARBAGE = bytes(range(128, 256)) + b"\n\x1b[31m\n"


def recalled(
    folder: Path, journal: bytes | None, backups: tuple[str, ...], shell: list[str], request: Mapping[str, bytes] = {}
) -> tuple[JournalSnapshot, str]:
    state = folder / "state"
    for name in backups:
        (state / "backup" / name).mkdir(parents=True)
    state.mkdir(exist_ok=True)
    if journal is not None:
        (state / "journal.jsonl").write_bytes(journal)
    text = program(script("read_journal.sh"), {"state": f"{state}\n".encode(), **request})
    done = subprocess.run([*shell, "-s"], input=text.encode(), capture_output=True, check=False)
    printed = done.stdout.decode()  # no byte of garbage comes along
    assert done.stderr == b""
    return parse_snapshot(printed), printed


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_things_that_the_journal_names_are_looked_at_when_they_are_asked_for(tmp_path: Path, shell: list[str]) -> None:
    there, gone = tmp_path / "a file", tmp_path / "gone"
    there.write_bytes(b"now\n")
    lines = [
        *wrote("20261122T010002Z-files-000001", (str(there), "1" * 64, "2" * 64), (str(gone), "1" * 64, "2" * 64)),
        state("sysctl", "kernel.ostype", "absent", "Linux"),
        state("link", str(gone), "absent", "/x"),
    ]
    journal = b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in lines)
    alone, _ = recalled(tmp_path, journal, (), shell)
    assert (len(alone.records), alone.files, alone.states) == (4, {}, {})
    found, _ = recalled(tmp_path, journal, (), shell, present_request(alone.records))
    assert found.files == {str(there): hashlib.sha256(b"now\n").hexdigest(), str(gone): "absent"}
    assert found.states["sysctl", "kernel.ostype"] == "Linux"
    assert found.states["link", str(gone)] == "absent"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@pytest.mark.parametrize(
    ("journal", "backups", "records", "damage", "refused"),
    [
        (WHOLE, ("20261122T010000Z-baseline",), 2, Damage(), ""),
        (None, (), 0, None, ""),
        (b"", (), 0, Damage(empty=True, readable=False), ""),
        (b"", (FIRST,), 0, Damage(empty=True, readable=False), ""),
        (b"", (OLD,), 0, Damage(empty=True, readable=False, lost=(OLD,)), "is empty"),
        (None, (GONE,), 0, Damage(missing=True, readable=False, lost=(GONE,)), "is gone"),
        (WHOLE, (KILLED,), 2, Damage(), ""),
        (WHOLE, (GONE, OLD), 2, Damage(lost=(OLD, GONE)), "has lost its first records"),
        (WHOLE + b"\0\0\0\0", (), 2, Damage(nul=4), ""),
        (b"\0" * 4096, (), 0, Damage(nul=4096, readable=False), "cannot be read"),
        (WHOLE + STATE[:40].encode(), (), 2, Damage(torn=1), ""),
        (WHOLE[:60], (), 0, Damage(torn=1, readable=False), ""),
        (STATE[:40].encode() + b"\0\0" + WHOLE, (), 2, Damage(torn=1, nul=2), ""),
        (WHOLE + GARBAGE, (), 2, Damage(garbage=2), ""),
        (GARBAGE, (), 0, Damage(garbage=2, readable=False), "cannot be read"),
        (GARBAGE, (OLD,), 0, Damage(garbage=2, readable=False, lost=(OLD,)), "cannot be read"),
        (b"{torn by a disk}\n" + WHOLE, (), 2, Damage(torn=1), ""),
    ],
    ids=[
        "whole",
        "no journal",
        "begun on a full disk",
        "a run killed before the first record",
        "emptied",
        "taken away",
        "a later run killed before its record",
        "emptied, and begun again",
        "a NUL tail",
        "all NUL bytes",
        "the last line cut off",
        "the first line cut off",
        "a line cut off, NUL bytes, and records behind",
        "garbage at its end",
        "all garbage",
        "garbage, and copies",
        "no JSON",
    ],
)
def test_damage_is_distinguished_and_a_journal_that_cannot_be_read_is_not_an_empty_one(
    journal: bytes | None,
    backups: tuple[str, ...],
    records: int,
    damage: Damage | None,
    refused: str,
    shell: list[str],
    tmp_path: Path,
) -> None:
    recall, printed = recalled(tmp_path, journal, backups, shell)
    assert len(recall.records) == records
    if damage is not None:
        assert recall.damage == damage
    assert (refused in recall.damage.problem.what) if recall.damage.problem else not refused
    assert bool(recall.damage.notes) is bool(damage and (damage.nul or damage.torn or damage.garbage))
    try:
        standing._standing("node", Ran(target=Target(name="node", address="node"), rc=0, stdout=printed))
    except GpunodeError as error:
        assert refused and refused in error.what and error.fix
    else:
        assert not refused


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@pytest.mark.parametrize("tail", [b"", b"\0\0\0\0", b'{"v":1,"id":"torn', GARBAGE, b"\0" + GARBAGE])
def test_a_record_is_whole_whatever_stands_before_it_and_there_is_no_second_baseline(
    tail: bytes, shell: list[str], tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/journal.jsonl").write_bytes(WHOLE + tail)
    common = script("common.sh").replace("/var/lib/gpunode", f"{tmp_path}/lib")
    text = program(f"{common}\nprior sysctl c.d 0 1\nunfinished state\njournal_lines >$GPUNODE_IN/l\n")
    subprocess.run([*shell, "-s"], input=text, text=True, check=True)
    journal = (tmp_path / "lib/journal.jsonl").read_bytes()
    assert journal.startswith(WHOLE + tail)
    last = json.loads(journal.splitlines()[-1])
    assert (last["op"], last["name"]) == ("state", "c.d")
    assert journal.count(b'"op":"baseline"') == 1


@pytest.mark.parametrize("tail", [b"\0\0\0\0", GARBAGE])
def test_what_gpunode_holds_is_known_behind_bytes_that_are_no_text(tail: bytes, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    held = b'{"v":1,"id":"p","op":"packages","phase":"done","held":["nvidia-open"]}\n'
    (tmp_path / "lib/journal.jsonl").write_bytes(held + tail)
    for name, text in (
        (".before", "nvidia-open 580 hold\n"),
        (".would", "install nvidia-open 595\n"),
        (".to_remove", ""),
    ):
        (tmp_path / name).write_text(text)
    program_text = script("packages.sh").rpartition("\nmain\n")[0].replace("/var/lib/gpunode", f"{tmp_path}/lib")
    done = subprocess.run(
        ["sh", "-s"],
        input=f"{program_text}\nmanager=apt\nrefuse_surprises\necho went on\n",
        text=True,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "GPUNODE_IN": str(tmp_path)},
        check=False,
    )
    assert done.stdout == "went on\n", done


@given(
    st.lists(st.tuples(st.sampled_from(["nul", "torn", "garbage", "empty", "new"]), st.integers(0, 9).map(str))),
    st.lists(st.from_regex(r"\d{8}T\d{6}Z-(baseline|files-\d{6}|state-1)", fullmatch=True)),
    st.lists(st.tuples(st.text(max_size=9), st.text(max_size=20))),
)
def test_any_counts_make_a_damage(
    counts: list[tuple[str, str]], backups: list[str], records: list[tuple[str, str]]
) -> None:
    damage = damage_of(counts, backups, records)
    assert set(damage.lost) <= set(backups)
    assert damage.problem is None or damage.problem.fix


def test_a_journal_that_no_node_can_have_filled_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MOST_RECORDS", 3)
    records = [state("sysctl", "a.b", "0", "1")] * 3
    assert len(parse_snapshot(recall_text(records)).records) == 3
    text = recall_text([*records, *records])
    with pytest.raises(GpunodeError) as found:
        standing._standing("gpu1", Ran(target=Target(name="gpu1", address="gpu1"), rc=0, stdout=text))
    assert found.value.what == "gpu1: the journal of this node has 6 records"
    assert "may be moved away" in found.value.fix
