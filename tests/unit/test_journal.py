"""The journal of a node, read: records, runs, and what a rollback leaves standing."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_text import OLD, OURS, line, packages, recall_text, state, wrote

from gpunode.core.errors import InputError
from gpunode.core.undo.journal import after_run, parse_recall, runs, signature, standing


def records(*lines: dict[str, object]) -> tuple:  # type: ignore[type-arg]
    return parse_recall(recall_text(lines)).records


def run(name: str, at: str = "2026-11-22T01:00:00Z") -> dict[str, object]:
    return packages(f"p-{name}", run=name, part="driver") | {"at": at}


def back(name: str, to: str) -> dict[str, object]:
    return line("rollback", id=f"r-{name}", run=name, part="rollback", to=to)


def cut_off(name: str) -> dict[str, object]:
    """What a rollback did that did not come to its end."""
    return packages(f"p-{name}", run=name, part="rollback", phase="failed")


def test_a_recall_has_the_journal_and_the_present() -> None:
    found = parse_recall(
        recall_text(
            [
                *wrote("t1", ("/etc/a", OLD, OURS), run="r1", part="driver"),
                state("module", "nvidia", "absent", "loaded"),
            ],
            files={"/etc/a": OURS},
            kept=[("t1", "/etc/a")],
            states={("module", "nvidia"): "loaded"},
            installed={"dkms": "3.0 hold"},
            more=[
                ("mark", "manual dkms"),
                ("needs", "app", "dkms|other"),
                ("gives", "dkms", "dkms"),
                ("driver", "595.1"),
            ],
        )
    )
    assert [(r.op, r.phase, r.run, r.part) for r in found.records] == [
        ("files", "intent", "r1", "driver"),
        ("files", "done", "r1", "driver"),
        ("state", "done", "", ""),
    ]
    assert found.records[0].more == {"files": [{"path": "/etc/a", "before": OLD, "after": OURS}]}
    assert found.copies["t1", "/etc/a"].held == "t1/0.old"
    assert found.files == {"/etc/a": OURS}
    assert found.states == {("module", "nvidia"): "loaded"}
    assert found.packages == {"dkms": ("3.0", "hold")}
    assert found.marks == {"manual dkms"}
    assert found.needs == (("app", frozenset({"dkms", "other"})),)
    assert found.gives == {"dkms": frozenset({"dkms"})}
    assert found.driver == "595.1"


def test_a_line_that_the_power_cut_off_is_passed_over() -> None:
    whole = line("activate", id="a")
    text = recall_text([whole]).replace("recall\tmanager", 'recall\tjournal\t{"v":1,"id":"b","at":"20\nrecall\tmanager')
    assert [r.id for r in parse_recall(text).records] == ["a"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "cut off"),
        ("recall\tmanager\tapt\n", "cut off"),
        ('recall\tjournal\t{"v":2,"id":"b"}\ngpunode\tstatus\tunchanged\n', "format"),
        ("recall\tcopy\tid\ngpunode\tstatus\tunchanged\n", "cannot be read"),
        ("recall\tundo\tid\tnot-base64\ngpunode\tstatus\tunchanged\n", "cannot be read"),
    ],
)
def test_what_this_gpunode_did_not_write_is_refused(text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        parse_recall(text)


@given(st.lists(st.tuples(st.sampled_from(["journal", "copy", "file", "package", "undo", "follow", "x"]), st.text())))
def test_any_text_is_read_or_refused_with_an_input_error(rows: list[tuple[str, str]]) -> None:
    text = "".join(f"recall\t{kind}\t{rest}\n" for kind, rest in rows) + "gpunode\tstatus\tunchanged\n"
    with contextlib.suppress(InputError):
        parse_recall(text)


def test_neighbouring_records_of_one_run_are_one_run_and_those_of_none_too() -> None:
    found = runs(records(line("baseline", id="b"), run("r1"), run("r1"), line("activate", id="x"), run("r2")))
    assert [(one.name, one.first, one.last) for one in found] == [("r1", 1, 2), ("x", 3, 3), ("r2", 4, 4)]
    assert found[0].parts == ("driver",) and found[0].counts == {"packages": 2}


def test_what_stands_before_an_uninstall_is_over() -> None:
    assert [one.name for one in runs(records(run("r1"), line("uninstall", id="u", run="r2"), run("r3")))] == ["r3"]


@pytest.mark.parametrize(
    ("journal", "names"),
    [
        ([run("r1"), run("r2")], ["r1", "r2"]),
        ([run("r1"), run("r2"), run("r3"), back("r4", "r2")], ["r1", "r2"]),
        ([run("r1"), run("r2"), back("r3", "r1"), run("r4")], ["r1", "r4"]),
        ([run("r1"), run("r2"), back("r3", "")], []),
        ([run("r1"), run("r2"), run("r3"), back("r4", "r2"), back("r5", "r1")], ["r1"]),
        ([run("r1"), run("r2"), cut_off("r3")], ["r1", "r2"]),
        ([run("r1"), run("r2"), cut_off("r3"), cut_off("r4"), back("r4", "r1")], ["r1"]),
        ([run(""), back("", ""), run("")], ["p-"]),
    ],
    ids=[
        "all",
        "one back",
        "back and on",
        "back to the beginning",
        "back twice",
        "back, cut off",
        "back, cut off and again",
        "without names of runs",
    ],
)
def test_what_a_rollback_took_back_does_not_stand(journal: list[dict[str, object]], names: list[str]) -> None:
    assert [one.name for one in standing(records(*journal))] == names


JOURNAL = (run("r1", "2026-11-22T01:00:00Z"), run("r2", "2026-11-22T02:00:00Z"), run("r3", "2026-11-22T03:00:00Z"))


@pytest.mark.parametrize(
    ("to", "position", "name"),
    [
        (None, 2, "r2"),
        ("r1", 1, "r1"),
        ("r3", 3, "r3"),
        ("2026-11-22T02:30:00Z", 2, "r2"),
        ("2026-11-21", 0, ""),
        ("", 0, ""),
    ],
)
def test_a_rollback_goes_back_to_a_run_or_a_time(to: str | None, position: int, name: str) -> None:
    assert after_run(records(*JOURNAL), to) == (position, name)


def test_a_second_rollback_goes_one_further_back() -> None:
    assert after_run(records(*JOURNAL, back("r4", "r2")), None) == (1, "r1")


def test_after_a_rollback_that_failed_the_next_one_takes_the_same_run_back() -> None:
    assert after_run(records(*JOURNAL, cut_off("r4")), None) == (2, "r2")
    assert after_run(records(*JOURNAL, cut_off("r4"), back("r5", "r2")), None) == (1, "r1")


def test_an_unknown_run_and_an_empty_journal_are_named() -> None:
    with pytest.raises(InputError, match="no run 'r9'") as error:
        after_run(records(*JOURNAL), "r9")
    assert error.value.expected == "one of r1, r2, r3"
    with pytest.raises(InputError, match="no run to take back"):
        after_run((), None)


def test_the_signature_of_a_request_is_plain_words() -> None:
    assert signature(run="20261122T010000Z-abc", part="driver") == {
        "run": b"20261122T010000Z-abc\n",
        "part": b"driver\n",
    }
    assert signature() == {}
    with pytest.raises(InputError):
        signature(run='a"b')
