"""What takes packages back: from a journal and a present."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from journal_text import back, packages, recall_text, state

import gpunode.node
from gpunode.core.undo.requests import undo_requests


def plan_package_undo(*journal: dict[str, Any], **present: Any) -> dict[str, Any]:
    found = back(recall_text(journal, **present))
    return {"value": found.packages.value, "notes": found.notes, "problems": [p.what for p in found.problems]}


@pytest.mark.parametrize(
    ("journal", "present", "value"),
    [
        ({"added": {"a": "1"}}, {"installed": {"a": "1"}}, {"remove": ["a"], "purge": ["a"]}),
        ({"added": {"a": "1"}}, {"installed": {"a": "2"}}, {"remove": ["a"], "purge": ["a"]}),
        ({"added": {"a": "1"}}, {"installed": {}}, {}),
        ({"added": {"a": "1"}}, {"more": [("remnant", "a")]}, {"purge": ["a"]}),
        (
            {"changed": {"a": ("1", "2")}},
            {"installed": {"a": "2"}, "available": {"a": ["1", "2"]}},
            {"install": [{"name": "a", "version": "1", "hold": False}]},
        ),
        ({"changed": {"a": ("1", "2")}}, {"installed": {"a": "1"}}, {}),
        (
            {"removed": {"a": "1"}, "unheld": ["a"]},
            {"available": {"a": ["1"]}},
            {"install": [{"name": "a", "version": "1", "hold": True}]},
        ),
        ({"held": ["a"]}, {"installed": {"a": "1 hold"}}, {"unhold": ["a"]}),
        ({"held": ["a"]}, {"installed": {"a": "1"}}, {}),
        ({"unheld": ["a"]}, {"installed": {"a": "1"}}, {"install": [{"name": "a", "version": "1", "hold": True}]}),
        ({"marks": ["manual a"]}, {"installed": {"a": "1"}, "more": [("mark", "manual a")]}, {"automatic": ["a"]}),
        ({"marks": ["key gpg-pubkey-1"]}, {"more": [("mark", "key gpg-pubkey-1")]}, {"keys": ["gpg-pubkey-1"]}),
        ({"marks": ["key gpg-pubkey-1"]}, {}, {}),
    ],
)
def test_a_package_transaction_is_undone(
    journal: dict[str, Any], present: dict[str, Any], value: dict[str, Any]
) -> None:
    assert plan_package_undo(packages("p", **journal), **present) == {"value": value, "notes": (), "problems": []}


def test_an_upgrade_keeps_its_hold_when_it_is_undone() -> None:
    text = recall_text(
        [packages("p1", added={"a": "1"}, held=["a"], run="r1"), packages("p2", changed={"a": ("1", "2")}, run="r2")],
        installed={"a": "2 hold"},
        available={"a": ["1", "2"]},
    )
    assert back(text, "rollback").packages.value == {"install": [{"name": "a", "version": "1", "hold": True}]}
    assert back(text).packages.value == {"remove": ["a"], "unhold": ["a"], "purge": ["a"]}


@pytest.mark.parametrize(
    ("journal", "marks", "automatic"),
    [
        ({"changed": {"a": ("1", "2")}}, ["manual app"], ["a"]),
        ({"changed": {"a": ("1", "2")}}, ["manual app", "manual a"], []),
        ({"changed": {"a": ("1", "2")}, "marks": ["manual a"]}, ["manual app", "manual a"], ["a"]),
        ({"removed": {"a": "1"}}, ["manual app"], ["a"]),
        ({"removed": {"a": "1"}, "unmarked": ["manual a"]}, ["manual app"], []),
        ({"changed": {"a": ("1", "2")}}, [], []),
    ],
    ids=[
        "a dependency",
        "asked for",
        "asked for by gpunode alone",
        "a dependency that went",
        "asked for, and gone",
        "a manager without marks",
    ],
)
def test_a_package_comes_back_as_it_was_asked_for(
    journal: dict[str, Any], marks: list[str], automatic: list[str]
) -> None:
    found = plan_package_undo(
        packages("p", **journal),
        installed={"a": "2"} if "changed" in journal else {},
        available={"a": ["1"]},
        more=[("mark", mark) for mark in marks],
    )
    assert [item["name"] for item in found["value"]["install"]] == ["a"]
    assert found["value"].get("automatic", []) == automatic


GONE = packages("p1", removed={"a": "1"}, unmarked=["manual a"])
AGAIN = packages("p2", added={"a": "2", "b": "1"}, marks=["manual a"])
NAMED = packages("p3", changed={"a": ("2", "3")}, marks=["manual a"])
COMES = packages("p2", added={"a": "2", "b": "1"}, marks=["manual b"])
OLDER = packages("p2", added={"a": "2", "b": "1"})


@pytest.mark.parametrize(
    ("journal", "version", "marked", "automatic"),
    [
        ([GONE, AGAIN], "2", False, ["a"]),
        ([GONE, AGAIN, NAMED], "3", True, ["a"]),
        ([GONE, AGAIN], "2", True, []),
        ([GONE, COMES], "2", False, []),
        ([GONE, OLDER], "2", False, []),
    ],
    ids=["by a person", "by a person, and named since", "by none", "by its place as a dependency", "not recorded"],
)
def test_a_package_that_was_gone_is_a_dependency_only_if_a_person_has_marked_it_so(
    journal: list[dict[str, Any]], version: str, marked: bool, automatic: list[str]
) -> None:
    marks = [("mark", "manual app"), *([("mark", "manual a")] if marked else [])]
    text = recall_text(journal, installed={"a": version, "b": "1"}, available={"a": ["1"]}, more=marks)
    assert back(text).packages.value.get("automatic", []) == automatic


def test_a_version_that_nobody_has_any_more_is_a_problem() -> None:
    found = plan_package_undo(packages("p", changed={"a": ("1", "2")}), installed={"a": "2"}, available={"a": ["2"]})
    assert found["problems"] == ["no repository of this node has these packages any more: a 1"]


def test_versions_that_are_gone_are_one_problem_that_names_each_package_once() -> None:
    changed = {"nvidia-open": ("580-1", "595-1"), "nvidia-smi": ("580-1", "595-1"), "dkms": ("3.1", "3.2")}
    found = plan_package_undo(
        packages("p", changed=changed), installed={name: new for name, (_, new) in changed.items()}, available={}
    )
    assert found["problems"] == [
        "no repository of this node has these packages any more: nvidia-open, nvidia-smi 580-1; dkms 3.1"
    ]


def test_what_packages_made_goes_but_for_what_one_that_stays_speaks_of() -> None:
    """g++, which came later, needs gcc: the user and the CDI file are not gcc's."""
    made = [("user", "nvidia-persistenced"), ("cdi", "/var/run/cdi/nvidia.yaml"), ("group", "gcc-users")]
    journal = [packages("p", added={"nvidia": "1", "gcc": "1"}), *(state(*key, "absent", "present") for key in made)]
    more = [("needs", "g++", "gcc"), ("gives", "gcc", "gcc"), ("mention", "gcc", "gcc-users")]
    more.append(("mention", "nvidia", "nvidia-persistenced"))
    installed = {"nvidia": "1", "gcc": "1", "g++": "1"}
    found = back(recall_text(journal, states=dict.fromkeys(made, "present"), installed=installed, more=more))
    assert (found.packages.remove, found.packages.kept) == (("nvidia",), ("gcc",))
    assert found.settings == {"user": {made[0][1]: "absent"}, "cdi": {made[1][1]: "absent"}}
    assert [note for note in found.notes if "made by" in note] == [
        "made by scripts of packages that stay, and left as long as they do: group gcc-users"
    ]


def test_what_dpkg_knows_of_a_package_is_its_scripts_and_files(tmp_path: Path) -> None:
    for name in ("libgpu1:amd64.list", "libgpu1:amd64.postinst", "gcc-12.list", "gcc-12-base.list"):
        (tmp_path / name).write_text(f"of {name}\n")
    text = (Path(gpunode.node.__file__).parent / "undo/undo_packages.sh").read_text()
    text = text.replace("/var/lib/dpkg/info", str(tmp_path))
    done = subprocess.run(
        ["sh", "-c", f"{text}\napt_texts libgpu1 gcc-12 none"], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        *("@@libgpu1", "of libgpu1:amd64.list", "@@libgpu1", "of libgpu1:amd64.postinst"),
        *("@@gcc-12", "of gcc-12.list"),
    ]


def test_a_package_that_somebody_has_changed_since_stays() -> None:
    found = plan_package_undo(packages("p", changed={"a": ("1", "2")}), installed={"a": "3"}, available={"a": ["1"]})
    assert found == {
        "value": {},
        "notes": ("a stays at 3: changed since, not by gpunode",),
        "problems": [],
    }


def test_a_package_that_others_need_stays_with_what_it_needs_itself() -> None:
    found = plan_package_undo(
        packages("p", added={"cuda": "1", "libcuda": "1", "dkms": "1"}),
        installed={"cuda": "1", "libcuda": "1", "dkms": "1", "app": "1"},
        more=[
            ("needs", "app", "cuda-runtime|cuda"),
            ("needs", "cuda", "libcuda"),
            *(("gives", name, name) for name in ("cuda", "libcuda", "dkms")),
        ],
    )
    assert found["value"] == {"remove": ["dkms"], "purge": ["dkms"]}
    assert found["notes"] == ("cuda stays: app needs it", "libcuda stays: cuda needs it")


def test_of_many_that_need_a_package_some_are_named() -> None:
    users = {f"user{n}": "1" for n in range(9)}
    more = [("gives", "a", "a"), *(("needs", name, "a") for name in users)]
    found = back(recall_text([packages("p", added={"a": "1"})], installed={"a": "1", **users}, more=more))
    assert found.notes == ("a stays: user0, user1, user2, user3, user4, another one needs it",)


def test_one_of_two_that_serve_a_need_may_go() -> None:
    found = plan_package_undo(
        packages("p", added={"new": "1"}),
        installed={"new": "1", "old": "1", "app": "1"},
        more=[("needs", "app", "word"), ("gives", "new", "word"), ("gives", "old", "word")],
    )
    assert found["value"]["remove"] == ["new"]


def test_configuration_that_somebody_has_edited_is_not_purged() -> None:
    found = plan_package_undo(
        packages("p", added={"a": "1"}), installed={"a": "1"}, more=[("edited", "a", "/etc/a.conf")]
    )
    assert found["value"] == {"remove": ["a"]}
    assert found["notes"] == ("the configuration of a stays: changed since: /etc/a.conf",)


def test_kernel_headers_next_to_those_that_were_there_go_alone() -> None:
    found = plan_package_undo(
        packages(
            "p",
            added={"kernel-devel-5.14.0-2.x86_64": "5.14.0-2"},
            changed={"kernel-devel": ("5.14.0-1", "5.14.0-2")},
        ),
        manager="dnf",
        installed={"kernel-devel": "5.14.0-2", "kernel-devel-5.14.0-2.x86_64": "5.14.0-2"},
    )
    headers = ["kernel-devel-5.14.0-2.x86_64"]
    assert found["value"] == {"remove": headers, "purge": headers}


PERSISTENCED = "nvidia-persistenced.service"


@pytest.mark.parametrize("verb", ["uninstall", "rollback"])
@pytest.mark.parametrize("now", ["active", "inactive"])
def test_a_unit_that_stood_still_is_stopped_again_once_packages_are_back(verb: str, now: str) -> None:
    """The scripts of the former version start it, too."""
    journal = [
        packages("p0", run="r1"),
        packages("p1", run="r2", changed={"nvidia-persistenced": ("1", "2")}),
        state("active", PERSISTENCED, "inactive", "active", run="r2"),
    ]
    text = recall_text(
        journal,
        installed={"nvidia-persistenced": "2"},
        available={"nvidia-persistenced": ["1"]},
        states={("active", PERSISTENCED): now},
    )
    asks = undo_requests(back(text, verb))
    stops = [(ask.script, ask.request["stop"]) for ask in asks if "stop" in ask.request]
    line = f"{PERSISTENCED}\n".encode()
    assert [ask.script for ask in asks][-2:] == ["packages.sh", "restore.sh"]
    assert stops == [("restore.sh", line)] * (2 if now == "active" else 1)
    assert "stop" in asks[-1].request
    printed = [ask for ask in undo_requests(back(text, verb), check=True) if "stop" in ask.request]
    assert len(printed) == (1 if now == "active" else 0)  # check mode says it once


def test_a_unit_that_ran_before_is_not_stopped() -> None:
    journal = [packages("p1", changed={"a": ("1", "2")}), state("active", PERSISTENCED, "active", "inactive")]
    text = recall_text(
        journal, installed={"a": "2"}, available={"a": ["1"]}, states={("active", PERSISTENCED): "active"}
    )
    assert back(text).idle == ()


def test_a_transaction_that_failed_half_way_is_undone_as_far_as_it_came() -> None:
    found = plan_package_undo(packages("p", phase="failed", added={"a": "1"}), installed={"a": "1"})
    assert found["value"]["remove"] == ["a"]
