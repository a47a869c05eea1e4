"""What a node's package manager says changes its plan, or stops it, before anybody is asked to apply it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from apt_roots import by_version, root
from asked_nodes import answer, desired, node, planned

from gpunode.core.model import InstalledPackage, NodeFacts, Problem
from gpunode.core.plan.question import OFFERS, Request, Transaction, question, read_answer
from gpunode.core.remote import program
from gpunode.core.report.text import chosen_text, plan_text
from gpunode.edge.ask import Talk, settle
from gpunode.edge.desired import Planned
from gpunode.node import script

OLD, NEW = "6.8.0-134-generic", "6.8.0-151-generic"
COMMON = "nvidia-kernel-common-{}-server"
MODULES = "linux-modules-nvidia-{}-server-open-{}"
RESOLVES = ("resolved 1", "status changed", "message 3 change(s) to packages would be made")


def said(*lines: str, fresh: bool = True) -> tuple[str, int]:
    """An answer of packages.sh, of `KEY VALUE` lines."""
    found = [*(["fresh 1"] if fresh else []), *lines]
    text = "".join("gpunode\t{}\t{}\n".format(*line.partition(" ")[::2]) for line in found)
    return text, 1 if "status failed" in found else 5 if "status refused" in found else 0


def cannot(why: str) -> tuple[str, ...]:
    return (f"unresolvable {why}", "status failed", "message words for a person", "fix see the plan's package list")


def module(branch: int, release: str, version: str) -> str:
    common = COMMON.format(branch)
    return f"offer {MODULES.format(branch, release)} 6.8 {common} <= {version}-1 {common} >= {version}"


def common(branch: int, *versions: str) -> list[str]:
    return [f"offer {COMMON.format(branch)} {version}-0ubuntu0.24.04.1" for version in versions]


ARCHIVE = (
    *common(595, "595.91.07"),
    *common(580, "580.178.04"),
    module(595, NEW, "595.91.07"),
    module(595, OLD, "595.71.05"),
    module(580, NEW, "580.178.04"),
    f"offer {MODULES.format(595, 'generic')} 6.8.0-151.151",
    f"offer {MODULES.format(580, 'generic')} 6.8.0-151.151",
)


def asked(
    facts: NodeFacts, answers: Sequence[tuple[str, int] | str], lacking: Sequence[Problem] = ()
) -> tuple[Planned, list[Request]]:
    """The plan after these answers, one a round, and the questions that they were to."""
    left = list(answers)
    requests: list[Request] = []
    talk = Talk(
        planned=desired().plan("gpu1", facts),
        knowledge=desired().knowledge,
        replan=lambda archive: desired().plan("gpu1", facts, archive=archive),
        lacking=lambda *_: lacking,
    )

    def ask(round_: Mapping[int, Request]) -> dict[int, tuple[str, int] | str]:
        requests.extend(round_.values())
        return {number: left.pop(0) for number in round_}

    settle([talk], ask)
    assert left == []
    return talk.planned, requests


def ubuntu(*kernels: str) -> NodeFacts:
    return node("ubuntu:24.04", "10de:2330", kernels, secure_boot=True)


def packages(planned: Planned) -> list[str]:
    [step] = [step for step in planned.plan.steps if step.id == "driver.packages"]
    return [f"{one['name']} {one.get('version', '')}".strip() for one in step.value["install"]]


def test_a_plan_that_resolves_is_asked_about_once() -> None:
    planned, requests = asked(ubuntu(NEW), [said(*ARCHIVE, *RESOLVES)])
    assert len(requests) == 1 and requests[0]["check"] == requests[0]["ask"] == b"1\n"
    assert f"{MODULES.format(595, NEW)} - hold\n".replace("hold", "-").encode() in requests[0]["install"]
    assert packages(planned)[0] == MODULES.format(595, NEW)


def test_a_kernel_whose_modules_are_of_another_driver_gets_none_and_is_named() -> None:
    planned, _ = asked(ubuntu(NEW, OLD), [said(*ARCHIVE, *cannot("unmet dependencies")), said(*ARCHIVE, *RESOLVES)])
    assert MODULES.format(595, OLD) not in packages(planned) and MODULES.format(595, NEW) in packages(planned)
    [warning] = [text for text in planned.plan.warnings if text.startswith("kernel: ")]
    assert OLD in warning and "595.71.05-1" in warning and "booted, it has no GPU" in warning


def test_a_node_that_has_all_but_what_its_archive_lacks_has_converged() -> None:
    """Else what can never be installed would stay in its plan for ever."""
    facts = replace(
        ubuntu(NEW, OLD),
        kernels=(replace(ubuntu(NEW).kernels[0], module="595.91.07", flavour="open"), ubuntu(OLD).kernels[0]),
        packages={
            name: InstalledPackage(name=name, version="595.91.07-0ubuntu0.24.04.1", held=True)
            for name in (
                *(MODULES.format(595, kernel) for kernel in (NEW, "generic")),
                *(f"nvidia-{part}-595-server" for part in ("utils", "compute-utils")),
                "nvidia-headless-no-dkms-595-server-open",
            )
        },
    )
    planned, _ = asked(facts, [said(*ARCHIVE, *cannot("unmet dependencies")), said(*ARCHIVE, *RESOLVES)])
    assert planned.plan.problems == ()
    assert [step.id for step in planned.plan.steps if step.role == "driver" and step.option == "packages"] == []


def test_where_it_runs_the_newest_kernel_has_to_be_booted() -> None:
    planned, _ = asked(ubuntu(OLD), [said(*ARCHIVE, *cannot("unmet dependencies")), said(*ARCHIVE, *RESOLVES)])
    assert MODULES.format(595, "generic") in packages(planned)
    assert any("once the newest kernel, which comes along, has been booted" in text for text in planned.plan.warnings)


def test_what_is_known_of_an_archive_refuses_no_node_whose_own_has_the_modules() -> None:
    odd = "6.11.0-1016-nvidia"
    known, _ = asked(ubuntu(odd), [said()])
    assert odd in known.plan.problems[0].what and known.plan.steps == ()
    there = (*ARCHIVE, module(595, odd, "595.91.07"))
    planned, requests = asked(ubuntu(odd), [said(*there, *RESOLVES)] * 2)
    assert planned.plan.problems == () and MODULES.format(595, odd) in packages(planned)
    assert requests[0].get("install", b"") == b"", "a refused plan has no transaction: names are asked alone"


def test_a_branch_that_the_archive_has_by_now_needs_no_row() -> None:
    there = (*ARCHIVE, *common(620, "620.70.06"), module(620, NEW, "620.70.06"))
    planned, requests = asked(ubuntu(NEW), [said(*there, *RESOLVES)] * 2)
    assert COMMON.format(620) in requests[0]["names"].decode().split()
    assert planned.plan.problems == () and MODULES.format(620, NEW) in packages(planned)
    assert COMMON.format(590) not in requests[0]["names"].decode(), "of a kind that nothing takes unasked"


def test_a_branch_that_the_archive_has_no_more_is_not_chosen() -> None:
    there = (*common(580, "580.178.04"), module(580, NEW, "580.178.04"))
    planned, _ = asked(ubuntu(NEW), [said(*there, *RESOLVES)] * 2)
    assert planned.plan.problems == () and MODULES.format(580, NEW) in packages(planned)


def test_the_proprietary_modules_are_taken_where_the_archive_has_no_open_ones_that_fit() -> None:
    closed = MODULES.format(595, OLD).replace("-open", "")
    there = (*ARCHIVE, f"offer {closed} 6.8 {COMMON.format(595)} >= 595.91.07")
    planned, _ = asked(ubuntu(OLD), [said(*there, *cannot("unmet dependencies")), said(*there, *RESOLVES)])
    assert planned.solution.driver and planned.solution.driver.flavour == "proprietary"
    assert closed in packages(planned) and not planned.plan.warnings


def test_proprietary_modules_of_an_older_driver_are_not_taken_though_apt_would() -> None:
    """Canonical's objects for 6.8.0-138 are of 595.71.05, and depend on that version or a later one."""
    closed = MODULES.format(595, OLD).replace("-open", "")
    there = (*ARCHIVE, f"offer {closed} 6.8 {COMMON.format(595)} >= 595.71.05")
    planned, _ = asked(ubuntu(OLD), [said(*there, *cannot("unmet dependencies")), said(*there, *RESOLVES)])
    assert planned.solution.driver and planned.solution.driver.flavour == "open" and closed not in packages(planned)
    assert any("once the newest kernel, which comes along, has been booted" in text for text in planned.plan.warnings)


def test_a_line_of_kernels_whose_newest_has_modules_of_an_older_driver_brings_none_along() -> None:
    """So nvidia-6.11 of Ubuntu 24.04: its last modules of 595 are of 595.71.05."""
    meta = f"offer {MODULES.format(595, 'generic')} 6.8.0-138.138 {COMMON.format(595)} >= 595.71.05"
    there = (*common(595, "595.91.07"), module(595, OLD, "595.71.05"), meta)
    planned, _ = asked(ubuntu(OLD), [said(*there, *cannot("unmet dependencies"))])
    assert planned.plan.problems and planned.plan.steps == ()


def test_an_older_version_that_all_kernels_take_is_left_for_apt_brings_none_of_its_dependencies() -> None:
    older = (*ARCHIVE, *common(595, "595.71.05"), module(595, NEW, "595.71.05"))
    planned, _ = asked(ubuntu(NEW, OLD), [said(*older, *cannot("unmet dependencies")), said(*older, *RESOLVES)])
    assert "nvidia-utils-595-server 595.*" in packages(planned)
    assert MODULES.format(595, OLD) not in packages(planned) and MODULES.format(595, NEW) in packages(planned)


def test_a_branch_that_all_kernels_have_modules_of_comes_before_a_newer_one() -> None:
    both = (*ARCHIVE, module(580, OLD, "580.178.04"))
    planned, _ = asked(ubuntu(NEW, OLD), [said(*both, *cannot("unmet dependencies")), said(*both, *RESOLVES)])
    assert planned.solution.driver and planned.solution.driver.branch == 580
    assert any(r.what == "branch" and "595.71.05-1" in r.why for r in planned.plan.reasons)


def test_what_cannot_be_installed_gives_way_to_the_next_branch_with_both_reasons() -> None:
    first = said(*ARCHIVE, *cannot("nvidia-utils-595-server : Conflicts: x"))
    planned, requests = asked(ubuntu(NEW), [first, said(*ARCHIVE, *RESOLVES)])
    assert len(requests) == 2
    assert planned.solution.driver and planned.solution.driver.branch == 580
    stated = [reason.why for reason in planned.plan.reasons]
    assert any("595" in why and "Conflicts: x" in why for why in stated)
    assert any(why.startswith("580: the newest long-term branch") for why in stated)


def test_where_nothing_can_be_installed_the_refusal_quotes_the_package_manager() -> None:
    never = said(*ARCHIVE, *cannot("libc6 : Breaks: everything"))
    planned, requests = asked(ubuntu(NEW), [never] * 2)
    assert planned.plan.steps == ()
    asked_first = desired().plan("gpu1", ubuntu(NEW)).solution
    assert len(requests) == 2 and planned.solution == asked_first, "the plan is that whose refusal is quoted"
    [problem] = planned.plan.problems
    assert problem.what == "the node's package manager cannot install it: libc6 : Breaks: everything"
    lacks = (Problem(what="cuda has no nvidia-open 590.*", fix="nearest there: nvidia-open 595.91.07-1"),)
    assert asked(ubuntu(NEW), [never] * 2, lacks)[0].plan.problems == lacks, "what the index says is more"


def test_a_removal_that_the_plan_does_not_show_is_refused_before_it_begins() -> None:
    surprise = ("status refused", "message the package manager would also remove xorg", "fix remove it yourself")
    planned, _ = asked(ubuntu(NEW), [said(*ARCHIVE, *surprise)])
    assert [(p.what, p.fix) for p in planned.plan.problems] == [(surprise[1][8:], surprise[2][4:])]


def test_the_versions_that_packages_would_get_are_the_node_s_own() -> None:
    gone = "package\tnvidia-utils-595-server\t580.178.04-0ubuntu0.24.04.1\t595.91.07-0ubuntu0.24.04.1\tprose"
    sly = "package\tx\t\t1 \x1b[2J\tprose"
    planned, _ = asked(ubuntu(NEW), [said(*ARCHIVE, f"changed {gone}", f"changed {sly}", *RESOLVES)])
    text = plan_text(planned.plan, chosen=chosen_text(planned.solution))
    assert text.splitlines()[0].startswith("gpu1: driver 595.91.07 open, ")
    assert "nvidia-utils-595-server 580.178.04-0ubuntu0.24.04.1 → 595.91.07-0ubuntu0.24.04.1" in text
    assert list(planned.plan.resolved) == ["nvidia-utils-595-server"]


NOT_RESOLVED = {
    "old lists": (
        said(*cannot("no such package"), fresh=False),
        "older than a day or than its sources: no such package",
    ),
    "no lists": (said("unasked the node has no lists of these packages yet", *RESOLVES[1:]), "no lists"),
    "killed": (said(fresh=False), "the node's script ended early"),
    "not reached": ("the package manager was not asked: gpu1: timed out", "timed out"),
}


@pytest.mark.parametrize(("answer", "says"), NOT_RESOLVED.values(), ids=NOT_RESOLVED.keys())
def test_what_could_not_be_resolved_is_said_first(answer: tuple[str, int] | str, says: str) -> None:
    # a node that answers is asked again, without the repositories that come
    planned, _ = asked(ubuntu(NEW), [answer] if isinstance(answer, str) else [answer, answer])
    assert planned.plan.steps and planned.plan.warnings[0].startswith("not resolved by the node's package manager: ")
    assert says in planned.plan.warnings[0]


def test_repositories_that_the_plan_sets_up_are_sent_along_as_they_would_be_written() -> None:
    facts = node("debian:12", "10de:2330", ("6.1.0-50-amd64",), secure_boot=False)
    planned, [request] = asked(facts, [said("offer linux-headers-6.1.0-50-amd64 6.1", *RESOLVES)])
    assert {"nvidia-open", "nvidia-container-toolkit"} <= {*request["install"].decode().split()}
    files = {path: name for name, path in (line.split() for line in request["coming"].decode().splitlines())}
    sources = request[files["/etc/apt/sources.list.d/gpunode-nvidia-cuda.sources"]].decode()
    assert "Signed-By: /usr/share/keyrings/gpunode-nvidia-cuda.asc" in sources
    assert files["/usr/share/keyrings/gpunode-nvidia-cuda.asc"] in request
    assert not [text for text in planned.plan.warnings if "not resolved" in text]


def test_of_repositories_that_the_node_cannot_read_the_headers_alone_are_asked_about() -> None:
    facts = node("debian:13", "10de:2330", ("6.12.94+deb13-amd64",), secure_boot=False)
    image = "offer linux-image-amd64 6.12.118", "offer linux-headers-amd64 6.12.118"
    words = "Failed to fetch https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/InRelease"
    away = said(f"unasked the node cannot read it: {words}", "status failed", "message not asked")
    planned, requests = asked(facts, [away, said(*image, *cannot("Unable to locate")), said(*image, *RESOLVES)])
    assert "coming" in requests[0]
    assert [request["install"].decode().split()[::3] for request in requests[1:]] == [
        ["linux-headers-6.12.94+deb13-amd64"],
        ["linux-image-amd64", "linux-headers-amd64"],
    ]
    assert planned.plan.warnings[0].startswith(
        "not resolved by the node's package manager: repositories nvidia-cuda, nvidia-container-toolkit: "
        f"set up by this plan, and the node cannot read it: {words} (--check-repositories); from there: "
    )
    assert {"nvidia-open", "libnvidia-container1"} <= {*planned.plan.warnings[0].replace(",", "").split()}
    assert "not resolved" not in planned.plan.warnings[1]
    assert any("linux-headers-6.12.94+deb13-amd64 is neither" in reason.why for reason in planned.plan.reasons)


def test_on_arch_the_branch_is_that_of_the_nodes_own_lists() -> None:
    facts = replace(node("arch", "10de:2330", ("6.19.2-arch1-1",), secure_boot=False), package_manager="pacman")
    planned, [request] = asked(facts, [said("offer nvidia-utils 595.91.07-1", *RESOLVES)])
    assert request["names"] == b"nvidia-utils\n"
    assert planned.solution.driver and planned.solution.driver.branch == 595 and planned.plan.warnings == ()
    never_heard_of, _ = asked(facts, [said("offer nvidia-utils 999.1-1", *RESOLVES)])
    assert never_heard_of.solution.driver and never_heard_of.solution.driver.branch == 615


def test_headers_without_a_newer_kernel_are_refused() -> None:
    facts = node("debian:13", "10de:2330", ("6.12.94+deb13-amd64",), secure_boot=False)
    nothing = said("offer linux-image-cloud-amd64 1", "offer linux-image-amd64 1", *cannot("Unable to locate"))
    planned, _ = asked(facts, [nothing])
    [problem] = planned.plan.problems
    assert problem.what.startswith("linux-headers-6.12.94+deb13-amd64 is neither on the node nor in its archive")
    assert planned.plan.steps == ()


@pytest.mark.parametrize("there", [True, False])
def test_one_line_says_what_is_not_known_of_a_node_without_lists(there: bool) -> None:
    facts = node("rocky:9", "10de:2330", ("5.14.0-570.el9.x86_64",), secure_boot=False)
    headers = ("kernel-devel-5.14.0-570.el9.x86_64", "kernel-devel-matched", "kernel-headers")
    if there:
        facts = replace(facts, packages={name: InstalledPackage(name=name, version="5.14") for name in headers})
    none = said("unasked the node has no lists of these packages yet", *RESOLVES[1:])
    planned, _ = asked(facts, [none, none])
    [line] = [text for text in planned.plan.warnings if "not resolved" in text]
    assert "repositories nvidia-cuda, nvidia-container-toolkit: set up by this plan" in line
    assert (", ".join(headers) + ": the node has no lists" in line) != there


def test_a_converged_node_is_not_asked() -> None:
    planned, requests = asked(NodeFacts(root=True, package_manager="apt", arch="x86_64"), [])
    assert requests == [] and planned.plan.steps == ()


HOSTILE = (
    "offer other-package 1",
    "offer name 1 nvidia-kernel-common-595-server <= 1; rm -rf /",
    "offer name -1",
    "offer name $(id)",
    "offer name 1 a",
    "offer name",
    "offer",
    f"offer name {'9' * 300}",
)


def test_an_answer_that_is_none_names_nothing() -> None:
    text, rc = said(*HOSTILE, *["offer name 2"] * (OFFERS * 2), *RESOLVES)
    found = read_answer(text, rc, ["name"])
    assert {offer.version for offer in found.archive.offers} == {"2"} and len(found.archive.offers) <= OFFERS
    text, rc = said(*cannot("x" * 10_000 + "\x1b]0;title\x07"))
    assert len(read_answer(text, rc, ["name"]).why) <= 400


@pytest.mark.skipif(not shutil.which("apt-get"), reason="needs apt")
@pytest.mark.parametrize("state", ["no lists", "sources after the lists", "lists"])
@pytest.mark.slow
def test_only_lists_of_all_sources_say_that_something_is_missing(tmp_path: Path, state: str) -> None:
    """A machine whose lists were never fetched, or before its newest source came, lacks nothing that is known."""
    lists = tmp_path / "lists"
    for folder in (lists, tmp_path / "etc", tmp_path / "dpkg"):
        folder.mkdir()
    (tmp_path / "dpkg/status").touch()
    sources = tmp_path / "etc/sources.list"
    sources.touch()
    os.utime(sources, (0, 0))
    if state != "no lists":
        (lists / "archive_main_binary-amd64_Packages").write_text("Package: a\nVersion: 1\n\n")
    if state == "sources after the lists":
        os.utime(lists, (1, 1))
        sources.touch()
    (tmp_path / "apt.conf").write_text(
        f'Dir::State "{tmp_path}";\nDir::State::lists "{lists}";\nDir::State::status "{tmp_path}/dpkg/status";\n'
        f'Dir::Etc::sourcelist "{sources}";\nDir::Etc::sourceparts "-";\nDir::Cache "{tmp_path}";\n'
    )
    environment = {**os.environ, "APT_CONFIG": str(tmp_path / "apt.conf"), "DPKG_ADMINDIR": str(tmp_path / "dpkg")}
    text = program(script("packages.sh"), question(Transaction(value={}), ["linux-headers-6.1.0-50-amd64"]))
    done = subprocess.run(["sh", "-s"], input=text, env=environment, capture_output=True, text=True, check=False)
    assert ("gpunode\tfresh\t1" in done.stdout) == (state == "lists"), done.stderr


@pytest.mark.slow
def test_on_the_real_archive_of_debian_13_a_kernel_without_headers_gets_the_newest() -> None:
    """The node's own script, with the real apt."""
    there = root("debian:13")
    kernels = [release for release in there.kernels() if not release.endswith("-unsigned")]
    newest = max((k for k in kernels if k.endswith("-amd64") and "-cloud" not in k and "-rt" not in k), key=by_version)
    lost = [k for k in kernels if f"linux-headers-{k}" not in there.names and k.startswith("6.12.")]
    if not lost or answer(there, {"ask": b"1\n", "check": b"1\n"})[0].count("fresh") == 0:
        pytest.skip("needs lists of apt that are not older than a day, and a kernel without headers")
    plans = [planned(there, node("debian:13", "10de:2330", (k,), secure_boot=False)) for k in (newest, lost[0])]
    for one, without in zip(plans, ((), (lost[0],)), strict=True):
        driver = one.solution.driver
        assert driver and one.plan.problems == () and driver.without == without
        assert there.fault(driver.kernel_packages) == ""
