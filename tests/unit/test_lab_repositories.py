"""The lab's stub repositories hold what the real ones hold, by what is recorded of the real indexes."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpunode.core.model import PackageWant
from gpunode.core.solve import SolveRequest, solve
from gpunode.core.spec import CudaSpec, DriverSpec
from gpunode.edge.load import load_knowledge
from gpunode.lab.packages import PLACES
from gpunode.lab.packages_table import Row, rows

LAB = Path(__file__).parents[2] / "gpunode/lab"
KNOWLEDGE = load_knowledge()
H100 = "10de:2330"


def table(path: str) -> dict:
    return tomllib.loads((LAB / path).read_text())


def repositories() -> dict[tuple[str, str], list[Row]]:
    """The rows of each stub repository of NVIDIA by its distribution and source."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    apt = [row for path in sorted(LAB.glob("packages*.toml")) for row in rows(table(path.name))]
    distros = sorted({place.distro for place in PLACES if place.name == "nvidia-cuda"})
    for distro in distros:
        for row in apt:
            if row.is_for(distro):
                found[distro, row.source].append(row)
    for family in ("rhel", "sles"):
        some = table(f"families/{family}.toml")
        for distro in some["distros"]:
            for row in rows(some, distro):
                found[distro, row.source].append(row)
    return dict(found)


STUBS = repositories()
DISTROS = sorted({distro for distro, source in STUBS if source == "nvidia-cuda"})


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def drivers(distro: str) -> set[int]:
    return {int(row.values["branch"]) for row in STUBS[distro, "nvidia-cuda"] if "branch" in row.values}


def toolkits(distro: str) -> set[str]:
    return {row.values["mm"] for row in STUBS[distro, "nvidia-cuda"] if "mm" in row.values}


@pytest.mark.parametrize("distro", DISTROS)
def test_the_driver_branches_are_those_that_the_index_of_the_real_repository_has(distro: str) -> None:
    row = KNOWLEDGE.distro(distro)
    assert row is not None
    oldest, newest = row.branches
    outside = {branch for branch in drivers(distro) if branch < oldest or branch > (newest or branch)}
    assert outside == set(), f"{row.dir} has {oldest} to {newest or 'now'}"
    assert drivers(distro) - outside, "a repository without a driver tests nothing"


@pytest.mark.parametrize("distro", DISTROS)
def test_the_cuda_toolkits_are_those_that_the_index_of_the_real_repository_has(distro: str) -> None:
    row = KNOWLEDGE.distro(distro)
    assert row is not None
    oldest, newest = row.cuda
    held = toolkits(distro)
    assert held, "a repository without a toolkit tests nothing"
    outside = {v for v in held if numbers(v) < numbers(oldest or v) or numbers(v) > numbers(newest or v)}
    assert outside == set(), f"{row.dir} has {oldest or 'the first'} to {newest or 'now'}"


def has(held: list[Row], want: PackageWant) -> bool:
    """Whether a stub serves the wish, by name and version; an epoch and a release are what the wish leaves open."""
    pattern = re.escape(want.version).replace(r"\*", ".*")
    return any(
        row.name == want.name and (not want.version or re.fullmatch(rf"(\d+:)?{pattern}", row.version)) for row in held
    )


# What comes from the distribution itself.
FROM_DISTRIBUTION = re.compile(
    r"dkms|make|kmod|kernel-default-devel|initramfs-tools|linux-initramfs-tool|dracut|.*-plugin-versionlock"
)


def lacking(distro: str, source: str, packages: Sequence[PackageWant]) -> list[PackageWant]:
    return [p for p in packages if not has(STUBS[distro, source], p) and not FROM_DISTRIBUTION.fullmatch(p.name)]


@pytest.mark.parametrize("distro", DISTROS)
@pytest.mark.parametrize("flavour", ["open", "proprietary"])
def test_what_the_solver_takes_of_the_driver_is_there_by_name_and_version(distro: str, flavour: str) -> None:
    for branch in sorted(drivers(distro)):
        wish = DriverSpec(branch=str(branch), flavour=flavour)
        solution = solve(SolveRequest(distro=distro, gpus=(H100,), driver=wish), KNOWLEDGE)
        assert solution.driver and solution.toolkit, solution.problems
        assert solution.driver.repository == "nvidia-cuda"
        assert lacking(distro, "nvidia-cuda", solution.driver.packages) == [], f"{branch} {flavour}"
        assert lacking(distro, "nvidia-container-toolkit", solution.toolkit.packages) == []


@pytest.mark.parametrize("distro", DISTROS)
def test_what_the_solver_takes_of_cuda_is_there_by_name_and_version(distro: str) -> None:
    for version in sorted(toolkits(distro)):
        wish = CudaSpec(versions=(version,))
        solution = solve(SolveRequest(distro=distro, gpus=(H100,), cuda=wish), KNOWLEDGE)
        assert solution.cuda, solution.problems
        assert lacking(distro, "nvidia-cuda", solution.cuda.packages) == []


@pytest.mark.parametrize("distro", DISTROS)
def test_every_dependency_of_a_stub_leads_to_a_stub_or_to_the_distribution(distro: str) -> None:
    held = STUBS[distro, "nvidia-cuda"] + STUBS[distro, "nvidia-container-toolkit"]
    names = {row.name for row in held}
    for row in held:
        provided = [text.format(**row.values) for text in row.package.get("provides", ())]
        names |= {text.split()[0] for text in provided}
    for row in held:
        for text in row.package.get("depends", ()):
            choices = [word.split()[0] for word in text.format(**row.values).split("|")]
            assert any(c in names or FROM_DISTRIBUTION.fullmatch(c) for c in choices), f"{row.name}: {text}"
