"""A plan's packages are looked up in the indexes of their repositories before a node is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from apt_server import Server
from click.testing import CliRunner
from index_sites import PACK, apt_index, rpm_index

from gpunode.cli.main import cli
from gpunode.core.bundle.index import Index, lacking, nearest_versions, newest_of_all
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import GpunodeError
from gpunode.core.facts import parse_probe
from gpunode.core.late import replace
from gpunode.core.model import InstalledPackage, NodeFacts, PackageWant, Plan
from gpunode.core.report.text import chosen_text
from gpunode.edge import load
from gpunode.edge.bundle import lookup
from gpunode.edge.bundle.lookup import read_index
from gpunode.edge.desired import DesiredState

PROBES = Path(__file__).parents[1] / "cases/probes"
KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n(a key)\n-----END PGP PUBLIC KEY BLOCK-----\n"
DRIVER = [
    (name, f"{version}-1")
    for version in ("580.178.04", "590.48.01", "595.71.05", "595.99.02", "610.57.04")
    for name in ("nvidia-open", "nvidia-persistenced", f"nvidia-driver-pinning-{version[:3]}", "libnvidia-compute")
]
CUDA = [(f"cuda-toolkit-{v}", f"{v.replace('-', '.')}.1-1") for v in ("12-6", "12-8", "12-9", "13-0")]
TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)


def toolkit(*versions: str) -> list[tuple[str, str]]:
    return [(name, f"{version}-1") for version in versions for name in TOOLKIT]


EL_STREAMS = {
    f"{branch}-{flavour}": [(name, f"{version}-1.el9") for name in names]
    for branch, version in (("580", "3:580.178.04"), ("590", "3:590.48.01"))
    for flavour, names in (("open", ("nvidia-open", "kmod-nvidia-open-dkms")), ("dkms", ("cuda-drivers",)))
}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: KEY)
    monkeypatch.setattr(lookup.shutil, "which", lambda name: None)  # as without gpgv; test_lookup_signed.py is with it
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "site")
    yield server
    server.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "site"


def probed(name: str) -> NodeFacts:
    return parse_probe((PROBES / name / "probe.txt").read_text(encoding="utf-8"))


DEBIAN, ROCKY = probed("debian12-h100-fresh"), probed("rocky9-h100-fresh")


def spec(url: str, **more: Any) -> dict[str, Any]:
    names = {"nvidia-cuda": "cuda", "nvidia-container-toolkit": "toolkit"}
    sources = {name: {"url": f"{url}/{folder}/"} for name, folder in names.items()}
    return {"driver": {"branch": "595"}, "sources": sources, **more}


def plan(facts: NodeFacts, url: str, **more: Any) -> Plan:
    return DesiredState(spec(url, **more), look_up=True).plan("node1", facts).plan


def installs(found: Plan, name: str) -> str:
    steps = [step.value["install"] for step in found.steps if step.option == "packages"]
    return next(str(one.get("version", "")) for install in steps for one in install if one["name"] == name)


def fill(root: Path, cuda: Sequence[tuple[str, str]], tools: Sequence[tuple[str, str]], **form: Any) -> None:
    apt_index(root / "cuda", cuda, **form)
    apt_index(root / "toolkit", tools)


@pytest.mark.parametrize("by_hash", [False, True])
@pytest.mark.parametrize("form", PACK)
def test_an_index_of_apt_is_read_in_every_form(form: str, by_hash: bool, root: Path, site: Server) -> None:
    fill(root, [*DRIVER, *CUDA], toolkit("1.19.1", "1.20.1", "1.20.2"), form=form, by_hash=by_hash)
    found = plan(DEBIAN, site.url, cuda={"versions": ["12.8"]})
    assert (found.problems, found.warnings) == ((), DesiredState(spec(site.url)).plan("node1", DEBIAN).plan.warnings)
    assert installs(found, "nvidia-open") == "595.*"
    asked = {name for name, _ in site.asked}
    assert any(len(name) == 64 for name in asked) is by_hash


def test_an_index_as_large_as_the_vendors_is_read_once_for_many_hosts(root: Path, site: Server) -> None:
    filler = [(f"libcublas-dev-12-{n}", f"12.{n}.{m}-1") for n in range(90) for m in range(90)]
    fill(root, [*DRIVER, *filler], toolkit("1.20.1", "1.20.2"))
    desired = DesiredState(spec(site.url), look_up=True)
    assert desired.plan("node1", DEBIAN).plan.problems == desired.plan("node2", DEBIAN).plan.problems == ()
    assert [name for name, _ in site.asked].count("Packages.gz") == 2  # one of each repository


def test_no_index_is_read_for_a_node_that_has_its_packages(root: Path, site: Server) -> None:
    fill(root, DRIVER, toolkit("1.20.1"))
    facts = probed("debian12-h100-provisioned")
    there = {name: InstalledPackage(name=name, version="1.20.1-1") for name in TOOLKIT}
    plan(replace(facts, packages={**facts.packages, **there}), site.url, driver={"branch": "none"})
    assert site.asked == []


def test_what_is_not_there_is_a_problem_with_the_nearest_and_nothing_is_done(root: Path, site: Server) -> None:
    fill(root, [one for one in DRIVER if "595" not in "".join(one)], toolkit("1.20.1", "1.20.2"))
    found = plan(DEBIAN, site.url)
    assert found.steps == ()
    printed = {problem.what.partition("has no ")[2]: problem.fix for problem in found.problems}
    assert set(printed) == {"nvidia-driver-pinning-595", "nvidia-open 595.*", "nvidia-persistenced 595.*"}
    assert "nearest there: nvidia-open 610.57.04-1, nvidia-open 590.48.01-1" in printed["nvidia-open 595.*"]
    assert "nearest there: nvidia-driver-pinning-590, " in printed["nvidia-driver-pinning-595"]
    assert all(f"({site.url}/cuda/)" in problem.what for problem in found.problems)


def test_a_cuda_release_that_is_not_there_names_those_that_are(root: Path, site: Server) -> None:
    fill(root, [*DRIVER, *CUDA], toolkit("1.20.1", "1.20.2"))
    (problem,) = plan(DEBIAN, site.url, cuda={"versions": ["12.5"]}).problems
    assert problem.fix.startswith("nearest there: cuda-toolkit-12-6, cuda-toolkit-12-8, cuda-toolkit-12-9;")


def test_auto_takes_the_newest_toolkit_of_a_repository_that_lacks_the_newest_known(root: Path, site: Server) -> None:
    tools = [*toolkit("1.18.1", "1.19.1"), ("nvidia-container-toolkit", "1.19.9-1")]  # alone: not whole yet
    fill(root, DRIVER, tools)
    found = plan(DEBIAN, site.url)
    assert found.problems == ()
    assert {installs(found, name) for name in TOOLKIT} == {"1.19.1-1"}
    asked = plan(DEBIAN, site.url, toolkit={"version": "1.18.0"})
    assert "libnvidia-container1 1.18.0-1" in " ".join(problem.what for problem in asked.problems)


@pytest.mark.parametrize(("held", "words"), [("595.71.05", "driver 595.71.05 open"), (None, "driver 595 open")])
def test_the_headline_names_the_driver_that_the_repository_has(
    held: str | None, words: str, root: Path, site: Server
) -> None:
    fill(root, [one for one in DRIVER if "595.99.02-1" not in one], toolkit("1.20.1"))
    planned = DesiredState(spec(site.url), look_up=bool(held)).plan("node1", DEBIAN)
    assert chosen_text(planned.solution).split(", ")[0] == words


def test_a_repository_that_is_not_reached_from_here_is_a_warning(root: Path, site: Server) -> None:
    apt_index(root / "toolkit", toolkit("1.20.1", "1.20.2"))
    found = plan(DEBIAN, site.url)
    assert found.problems == () and found.steps
    (warning,) = [text for text in found.warnings if "not resolved" in text]
    assert warning.startswith("not resolved: repository nvidia-cuda, whose index was not read: ")
    assert "/cuda has neither InRelease" in warning


def test_a_list_that_its_release_does_not_name_is_not_believed(root: Path, site: Server) -> None:
    fill(root, DRIVER, toolkit("1.20.1", "1.20.2"))
    (root / "cuda/Packages.gz").write_bytes(PACK[".gz"](b""))
    assert any("is not the one that the signed Release names" in text for text in plan(DEBIAN, site.url).warnings)


def test_a_list_by_its_hash_is_right_while_the_server_is_updated(root: Path, site: Server) -> None:
    fill(root, DRIVER, toolkit("1.20.1", "1.20.2"), by_hash=True)
    (root / "cuda/Packages.gz").write_bytes(PACK[".gz"](b""))
    assert plan(DEBIAN, site.url).problems == ()


@pytest.mark.parametrize("form", PACK)
def test_module_streams_of_an_rpm_repository_are_read_in_every_form(form: str, root: Path, site: Server) -> None:
    rpm_index(root / "cuda", CUDA, form=form, streams=EL_STREAMS)
    rpm_index(root / "toolkit", toolkit("1.20.1", "1.20.2"), form=form)
    assert plan(ROCKY, site.url, driver={"branch": "580"}).problems == ()
    (problem,) = plan(ROCKY, site.url).problems
    assert problem.what.endswith("has no module stream nvidia-driver:595-open")
    assert problem.fix.startswith("nearest there: nvidia-driver:590-open, nvidia-driver:580-open;")


def test_a_package_of_another_stream_does_not_count(root: Path, site: Server) -> None:
    rpm_index(root / "cuda", [], streams=EL_STREAMS | {"595-open": [("kmod-nvidia-open-dkms", "3:595.99.02-1.el9")]})
    rpm_index(root / "toolkit", toolkit("1.20.1", "1.20.2"))
    (problem,) = plan(ROCKY, site.url).problems
    assert problem.what.endswith("has no nvidia-open 595.*")


def test_a_repository_without_modules_has_no_streams(root: Path, site: Server) -> None:
    rpm_index(root / "cuda", [("nvidia-open", "3:595.71.05-1.fc43"), ("nvidia-open", "3:595.99.02-1.fc43")])
    found = read_index(Upstream(url=f"{site.url}/cuda/"), "x86_64", deb=False)
    assert (found.streams, found.packages["nvidia-open"]) == ((), ("3:595.99.02-1.fc43", "3:595.71.05-1.fc43"))
    with pytest.raises(GpunodeError, match="is not there"):
        read_index(Upstream(url=f"{site.url}/none/"), "x86_64", deb=False)


def test_another_architectures_packages_do_not_count(root: Path, site: Server) -> None:
    apt_index(root / "cuda", DRIVER, arch="arm64")
    assert read_index(Upstream(url=f"{site.url}/cuda/"), "x86_64", deb=True).packages == {}
    assert "nvidia-open" in read_index(Upstream(url=f"{site.url}/cuda/"), "aarch64", deb=True).packages


def test_what_the_distribution_brings_is_not_looked_up_at_nvidias(root: Path, site: Server) -> None:
    rpm_index(root / "cuda", [], streams={"595-open": [("nvidia-open", "3:595.99.02-1.el9")]})
    rpm_index(root / "toolkit", toolkit("1.20.1", "1.20.2"))
    found = plan(ROCKY, site.url)
    assert found.problems == () and installs(found, "python3-dnf-plugin-versionlock") == ""


def test_what_a_node_cannot_install_is_looked_up_then(root: Path, site: Server) -> None:
    fill(root, [one for one in DRIVER if not one[1].startswith("590")], toolkit("1.20.1", "1.20.2"))
    wanted, words = spec(site.url, driver={"branch": "590"}), "E: Version '590.*' for 'nvidia-open' was not found"
    for look_up in (False, None):
        desired = DesiredState(wanted, look_up=look_up)
        planned = desired.plan("node1", DEBIAN)
        assert (planned.plan.problems, site.asked) == ((), [])
        found = [f"{one.what}; {one.fix}" for one in desired.lacking(planned, words)]
    [text] = found
    assert "has no nvidia-open 590.*; nearest there: nvidia-open 595" in text, "the others have not been refused"
    assert DesiredState(wanted, look_up=False).lacking(planned, words) == ()


@pytest.mark.parametrize(
    ("words", "exit", "looks"),
    [((), 3, False), (("--check-repositories",), 5, True), (("-o", "OUT"), 5, True),
     (("-o", "OUT", "--no-check-repositories"), 3, False)],
)  # fmt: skip
def test_plan_looks_up_with_an_output_or_when_asked(
    words: tuple[str, ...], exit: int, looks: bool, tmp_path: Path, root: Path, site: Server
) -> None:
    fill(root, CUDA, toolkit("1.20.1", "1.20.2"))
    (tmp_path / "gpunode.yml").write_text(json.dumps(spec(site.url)))
    probe = tmp_path / "node1.probe"
    probe.write_text((PROBES / "debian12-h100-fresh/probe.txt").read_text())
    given = [str(tmp_path / word) if word == "OUT" else word for word in words]
    args = ["plan", "--probe", str(probe), "-c", str(tmp_path / "gpunode.yml"), *given]
    done = CliRunner().invoke(cli, args, standalone_mode=False)
    assert done.return_value == exit, done.output
    assert ("has no nvidia-open 595.*" in done.output) is looks is bool(site.asked)


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("580.*", ["595.58.03-1", "570.211.01-1"]),
        ("999.*", ["595.58.03-1"]),
        ("1.*", ["570.211.01-1"]),
        ("595.58.03-1", ["595.58.03-1"]),
    ],
)
def test_the_nearest_versions_are_those_on_both_sides(pattern: str, near: list[str]) -> None:
    assert nearest_versions(pattern, ["595.58.03-1", "570.211.01-1"]) == near


def test_a_name_that_is_nowhere_near_has_no_neighbours() -> None:
    index = Index(repository="nvidia-cuda", url="http://x/", packages={"zlib": ("1-1",)})
    (problem,) = lacking([PackageWant(name="nvlsm")], index)
    assert "nearest" not in problem.fix and problem.fix
    assert newest_of_all(["nvlsm", "zlib"], index) == ""
