"""EPEL and the builders' repository: set up in a step of their own, before the packages that come from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.facts import parse_probe
from gpunode.core.model import ConfigFile, InstalledPackage, NodeFacts, Plan
from gpunode.core.solve.repo_files import enabled_repositories, has_secret, sections, with_enabled
from gpunode.edge import load
from gpunode.edge.desired import DesiredState

PROBE = Path(__file__).parents[1] / "cases/probes/rocky9-h100-fresh/probe.txt"
PROBED = parse_probe(PROBE.read_text(encoding="utf-8"))
DEVEL = "/etc/yum.repos.d/rocky.repo"
FRESH = replace(PROBED, files={path: file for path, file in PROBED.files.items() if path != DEVEL})
KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n(a key)\n-----END PGP PUBLIC KEY BLOCK-----\n"
CRB = "[crb]\nname=Rocky Linux $releasever - CRB\nbaseurl=https://mirror/crb\ngpgcheck=1\nenabled=0\ncountme=1\n"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: KEY)


def plan(facts: NodeFacts, spec: dict[str, Any] | None = None) -> Plan:
    return DesiredState(spec or {}).plan("node1", facts).plan


def with_file(text: str, path: str = DEVEL, facts: NodeFacts = FRESH) -> NodeFacts:
    file = ConfigFile(path=path, sha256="1" * 64, mode=0o600, size=len(text), data=text.encode())
    return replace(facts, files={**facts.files, path: file})


def values(found: Plan) -> dict[str, Any]:
    return {step.id: step.value for step in found.steps}


def test_no_step_installs_a_repository_together_with_what_comes_from_it() -> None:
    steps = plan(PROBED).steps
    names = [[item["name"] for item in step.value["install"]] for step in steps if "install" in step.value]
    ids = [step.id for step in steps]
    assert names[:2] == [["epel-release"], [*names[1]]] and "nvidia-open" in names[1]
    assert not [some for some in names if "epel-release" in some and len(some) > 1]
    assert ids.index("driver.repositories") + 1 == ids.index("driver.packages")
    assert values(plan(FRESH))["driver.packages"]["after"] == ["epel-release"]


def test_a_node_with_epel_has_no_such_step() -> None:
    there = replace(
        FRESH, packages={**FRESH.packages, "epel-release": InstalledPackage(name="epel-release", version="0:9-7")}
    )
    found = values(plan(there))
    assert "driver.repositories" not in found and "after" not in found["driver.packages"]


def test_a_repository_in_place_of_the_nodes_own_makes_epel_needless() -> None:
    mirror = {"url": "http://mirror/{distro}", "key": "http://mirror/key.asc", "fingerprint": "A" * 40}
    assert "driver.repositories" not in values(plan(with_file(CRB), {"sources": {"distribution": mirror}}))


def test_the_builders_repository_is_enabled_in_its_file_and_the_rest_of_the_file_stays() -> None:
    found = plan(with_file(f"[baseos]\nenabled=1\n\n{CRB}[crb-debug]\nenabled=0\n"))
    (file,) = [file for file in values(found)["driver.sources"] if file["path"] == DEVEL]
    on = CRB.replace("enabled=0", "enabled=1")
    assert file["content"] == f"[baseos]\nenabled=1\n\n{on}[crb-debug]\nenabled=0\n"
    assert file["mode"] == "0600"
    (step,) = [step for step in found.steps if step.id == "driver.sources"]
    assert "-enabled=0\n+enabled=1\n" in step.diff
    assert ("crb", "has what packages of EPEL need, and is not enabled") in [(r.what, r.why) for r in step.reasons]


@pytest.mark.parametrize(
    "text", [CRB.replace("enabled=0", "enabled=1"), CRB.replace("enabled=0\n", ""), "[other]\nenabled=0\n"]
)
def test_a_file_that_is_as_it_should_be_is_in_no_plan(text: str) -> None:
    assert DEVEL not in [file["path"] for file in values(plan(with_file(text)))["driver.sources"]]


@pytest.mark.parametrize("secret", ["password=hunter2", "username = joe", "baseurl=https://joe:hunter2@mirror/crb"])
def test_a_file_with_a_password_is_not_copied_into_a_plan(secret: str) -> None:
    found = plan(with_file(f"{CRB}{secret}\n"))
    assert found.steps == () and "hunter2" not in str(found)
    (problem,) = found.problems
    assert DEVEL in problem.what and problem.fix == "enable it on the node: dnf config-manager --set-enabled crb"


def test_a_file_that_is_no_utf8_is_left_alone() -> None:
    file = ConfigFile(path=DEVEL, sha256="1" * 64, size=9, data=b"[crb]\nenabled=0\n\xff\n")
    assert plan(replace(FRESH, files={**FRESH.files, DEVEL: file})).problems == ()


def test_only_repositories_that_are_on_count() -> None:
    facts = with_file("[epel]\nenabled=1\n[epel-testing]\nenabled=0\n[corp]\nname=x\n", "/etc/yum.repos.d/epel.repo")
    assert enabled_repositories(facts.files) == ("epel", "corp")


LINES = st.sampled_from(
    [
        "[crb]",
        "[CRB]",
        "[epel]",
        "enabled=0",
        "enabled = 1",
        "Enabled=no",
        "enabled=",
        "#[crb]",
        " enabled=0",
        "[a]b",
        "",
    ]
) | st.text(max_size=12)


@given(st.lists(LINES, max_size=12))
def test_enabling_a_repository_switches_that_one_and_nothing_else(lines: list[str]) -> None:
    text = "\n".join(lines)
    after = with_enabled(text, "crb")
    mine = [section.enabled for section in sections(after) if section.id.lower() == "crb"]
    assert all(mine)
    others = [section for section in sections(text) if section.id.lower() != "crb"]
    assert [section for section in sections(after) if section.id.lower() != "crb"] == others
    assert with_enabled(after, "crb") == after
    old, new = text.split("\n"), after.split("\n")
    assert len(old) == len(new) and all(a == b or "nabled" in a for a, b in zip(old, new, strict=True))


@given(st.text())
def test_looking_for_secrets_never_fails(text: str) -> None:
    assert has_secret(f"{text}\npassword=x\n")


def test_a_repository_that_a_wanted_package_brings_is_no_rival() -> None:
    url = "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/"
    brought = "/etc/yum.repos.d/nvidia-cuda.repo"
    node = replace(FRESH, distro=replace(FRESH.distro, id="almalinux"))
    node = with_file(f"[nvidia-cuda]\nbaseurl={url}\n", brought, node)
    cuda = {"versions": ["12.8"]}

    def removed(modules: str) -> bool:
        sources = values(plan(node, {"driver": {"modules": modules}, "cuda": cuda})).items()
        assert sources, "the plan was not refused"
        files = [file for step, value in sources if step.endswith(".sources") for file in value]
        return any(file["path"] == brought and file.get("content") is None for file in files)

    assert removed("dkms") and not removed("precompiled")


SLES = parse_probe((PROBE.parents[1] / "sles15-h100-fresh/probe.txt").read_text(encoding="utf-8"))
HUB = "[SUSE_Package_Hub_15_SP6_x86_64:SUSE-PackageHub-15-SP6-Pool-for-SLE]\nenabled=1\n"


@pytest.mark.parametrize(("text", "warned"), [("", True), (HUB, False), (HUB.replace("=1", "=0"), True)])
def test_the_package_hub_is_asked_for_until_it_is_there(text: str, warned: bool) -> None:
    node = with_file(text, "/etc/zypp/repos.d/SUSE_Package_Hub_15_SP6_x86_64.repo", SLES) if text else SLES
    found = plan(node)
    assert found.steps and any("SUSEConnect --product PackageHub/15.6/x86_64" in w for w in found.warnings) is warned
