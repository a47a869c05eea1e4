"""The journal of a node, read: records, runs, and what a rollback leaves standing."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_text import OLD, OURS, coded, line, packages, recall_text, state, wrote

from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.remote import signature
from gpunode.core.undo.journal import after_run, parse_snapshot, present_request, runs, standing
from gpunode.core.undo.plan import plan_undo
from gpunode.core.undo.requests import undo_requests
from gpunode.core.undo.scope import scope_of


def records(*lines: dict[str, object]) -> tuple:  # type: ignore[type-arg]
    return parse_snapshot(recall_text(lines)).records


def run(name: str, at: str = "2026-11-22T01:00:00Z") -> dict[str, object]:
    return packages(f"p-{name}", run=name, part="driver") | {"at": at}


def back(name: str, to: str) -> dict[str, object]:
    return line("rollback", id=f"r-{name}", run=name, part="rollback", to=to)


def cut_off(name: str) -> dict[str, object]:
    """What a rollback did that did not come to its end."""
    return packages(f"p-{name}", run=name, part="rollback", phase="failed")


def test_the_present_is_asked_for_by_the_names_in_the_journal() -> None:
    found = records(
        *wrote("t1", ("/etc/b", OLD, OURS), ("/etc/a b", OLD, OURS)),
        state("sysctl", "net.ipv4.ip_forward", "0", "1"),
        state("enabled", 'a"quoted.service', "disabled", "enabled"),
        state("enabled", 'a"quoted.service', "enabled", "disabled"),
        state("later", "of another version", "", ""),
        packages("p1", added={"dkms": "3"}, changed={"libc6": ("1", "2")}, removed={"old": "1"}, held=["kept"]),
    )
    assert present_request(found) == {
        "states": b'enabled\ta"quoted.service\nsysctl\tnet.ipv4.ip_forward\n',
        "paths": b"/etc/a b\n/etc/b\n",
        "packages": b"dkms\nlibc6\nold\n",
        "changed": b"libc6\nold\n",
        "configs": b"/etc/containerd/config.toml\n/etc/docker/daemon.json\n/etc/crio/crio.conf\n"
        b"/etc/containers/containers.conf\n",
    }


def test_a_recall_has_the_journal_and_the_present() -> None:
    found = parse_snapshot(
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
    assert found.copies["t1", "/etc/a"] == "t1/0.old"
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
    assert [r.id for r in parse_snapshot(text).records] == ["a"]


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
        parse_snapshot(text)


@given(st.lists(st.tuples(st.sampled_from(["journal", "copy", "file", "package", "undo", "follow", "x"]), st.text())))
def test_any_text_is_read_or_refused_with_an_input_error(rows: list[tuple[str, str]]) -> None:
    text = "".join(f"recall\t{kind}\t{rest}\n" for kind, rest in rows) + "gpunode\tstatus\tunchanged\n"
    with contextlib.suppress(InputError):
        parse_snapshot(text)


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
    for day in ("2026-13-01", "2026-11-31", "2026-11-22T24:10"):
        with pytest.raises(InputError, match=f"no run '{day}'"):
            after_run(records(*JOURNAL), day)


def test_a_rollback_finds_nothing_to_undo_where_no_run_stands() -> None:
    """As an uninstall does: exit code 0; what an uninstall has undone, or left, is not undone once more."""
    assert after_run((), None) == (0, "")
    for lines in ((), (*JOURNAL, back("r4", "")), (*JOURNAL, cut_off("r4"), back("r5", ""))):
        found = scope_of(parse_snapshot(recall_text(lines)), verb="rollback")
        assert (found.records, found.to) == ((), "")


def test_the_signature_of_a_request_is_plain_words() -> None:
    assert signature(run="20261122T010000Z-abc", part="driver") == {
        "run": b"20261122T010000Z-abc\n",
        "part": b"driver\n",
    }
    assert signature() == {}
    with pytest.raises(InputError):
        signature(run='a"b')


# ---------------------------------------------------------------- a hostile node's journal

HOSTILE = ("{{lookup('pipe','id')}}", "{%x%}", "{#x#}", "a\x1b[31m", "a\x00b", "a\x9bb", "a" * 5000)


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize(
    "lines",
    [
        lambda w: wrote("t1", (f"/etc/{w}", OLD, OURS)),
        lambda w: wrote("t1", ("/etc/a", OLD, w)),
        lambda w: wrote(w, ("/etc/a", OLD, OURS)),
        lambda w: [packages("p", added={w: "1"})],
        lambda w: [packages("p", changed={"a": (w, "2")})],
        lambda w: [packages("p", held=[w])],
        lambda w: [packages("p", marks=[f"manual {w}"])],
        lambda w: [state("module", w, "absent", "loaded")],
        lambda w: [state("sysctl", "net.ipv4.ip_forward", w, "1")],
        lambda w: [packages("p", run=w)],
        lambda w: [line("rollback", id="r", to=w)],
    ],
)
def test_a_record_with_a_name_that_cannot_be_one_is_refused_with_the_name_escaped(lines: object, word: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_snapshot(recall_text(lines(word)))  # type: ignore[operator]
    assert caught.value.what.startswith("the journal cannot be read: ")
    assert not {"\x1b", "\x00", "\x9b"} & set(caught.value.what)
    assert len(caught.value.what) < 400


@pytest.mark.parametrize(
    "more",
    [
        ("file", "/etc/{{x}}", OLD),
        ("file", "/etc/a", "{{x}}"),
        ("package", "{{x}}", "1", "-"),
        ("package", "dkms", "{{x}}", "-"),
        ("module", "{{x}}", "loaded"),
        ("copy", "../../etc", "0", "kept", "-", "/etc/a"),
        ("copy", "t1", "../0", "kept", "-", "/etc/a"),
        ("available", "dkms", "{%x%}"),
        ("mark", "manual {{x}}"),
        ("follow", "t1", coded(b"unit {{x}}\n")),
        ("follow", "t1", coded(b"unit \xff\n")),
        ("undo", "t1", coded(b"[" * 100_000)),
        ("driver", "{{x}}"),
    ],
)
def test_a_present_that_cannot_be_is_refused(more: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="the journal cannot be read"):
        parse_snapshot(recall_text([], more=[more]))


@pytest.mark.parametrize(
    "record",
    [
        {"op": "state", "kind": "module", "name": "nvidia"},
        {"op": "state", "kind": ["module"], "name": "a", "from": "b", "to": "c"},
        {"op": "files", "files": {"path": "/etc/a"}},
        {"op": "files", "files": [{"path": "/etc/a"}]},
        {"op": "files", "files": ["/etc/a"]},
        {"op": "packages", "added": "nvidia"},
        {"op": "packages", "added": [{"name": 1, "version": "1"}]},
        {"id": ["x"]},
    ],
)
def test_a_record_of_another_shape_is_refused(record: dict[str, object]) -> None:
    with pytest.raises(InputError, match="the journal cannot be read"):
        parse_snapshot(recall_text([line("state", id="s") | record]))


def test_deep_json_and_unknown_operations_take_nothing_else_along() -> None:
    text = recall_text([*wrote("t1", ("/etc/a", OLD, OURS)), line("of another version", id="x", what={"a": [1]})])
    assert len(records(*wrote("t1", ("/etc/a", OLD, OURS)))) == 2
    with pytest.raises(InputError):
        parse_snapshot(text)
    deep = text.replace('"of another version"', '"later"').replace(
        "recall\tjournal", "recall\tjournal\t" + "[" * 99_999, 1
    )
    assert [(r.op, dict(r.more)) for r in parse_snapshot(deep).records if r.op == "later"] == [("later", {})]


@given(st.text(st.characters(blacklist_categories=())), st.sampled_from(range(1, 60)))
def test_any_word_in_a_journal_gives_what_is_to_be_undone_or_an_error_to_act_on(word: str, at: int) -> None:
    text = recall_text(
        [
            *wrote("t1", ("/etc/a", OLD, OURS)),
            packages("p", added={"dkms": "1"}),
            state("module", "a", "absent", "loaded"),
        ],
        files={"/etc/a": OURS},
        installed={"dkms": "1"},
    )
    parts = text.split('"')
    parts[at % len(parts)] = word
    with contextlib.suppress(GpunodeError):
        undo_requests(plan_undo(recall := parse_snapshot('"'.join(parts)), scope_of(recall, verb="uninstall")))
