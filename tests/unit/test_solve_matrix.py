"""What solve() chooses for every distribution and GPU generation: tests/cases/solve/matrix.txt, a line for each.

GPUNODE_WRITE_CASES=1 writes the file again; then read the difference.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.model import PackageWant
from gpunode.core.solve import SolveRequest, parse_driver, solve
from gpunode.core.spec import DriverSpec, parse_spec
from gpunode.edge.load import load_knowledge
from gpunode.node import script
from tools.docs.pages import GENERATIONS

FILE = Path(__file__).parents[1] / "cases/solve/matrix.txt"
KNOWLEDGE = load_knowledge()
HEAD = (
    "# distribution | GPU | asked for | driver | what sets up repositories >, installer, packages, headers behind /"
    " | problem\n"
)


def asked() -> Iterator[tuple[str, str, str]]:
    """(distribution, PCI id, choice), each once."""
    for distro, row in KNOWLEDGE.distros.items():
        for pci_id in GENERATIONS:
            yield distro, pci_id, "auto"
            yield distro, pci_id, "runfile"
            if row.own and row.dir:
                yield distro, pci_id, "distro"


def names(packages: tuple[PackageWant, ...]) -> str:
    return " ".join(f"{p.name}={p.version}" if p.version else p.name for p in packages)


def driver_of(choice: str) -> DriverSpec:
    return DriverSpec(method="runfile") if choice == "runfile" else parse_driver(choice)


def line(distro: str, pci_id: str, choice: str) -> str:
    solution = solve(SolveRequest(gpus=(pci_id,), distro=distro, driver=driver_of(choice)), KNOWLEDGE)
    driver = solution.driver
    stream = f" {driver.stream}" if driver and driver.stream else ""
    chosen = f"{driver.branch} {driver.flavour}{stream}" if driver else "-"
    file = f"{driver.runfile.name} " if driver and driver.runfile else ""
    before = f"{names(driver.repository_packages)} > " if driver and driver.repository_packages else ""
    packages = f"{before}{file}{names(driver.packages)} / {names(driver.kernel_packages)}".strip() if driver else "-"
    problem = "; ".join(p.what for p in solution.problems) or "-"
    return f"{distro} | {pci_id} | {choice} | {chosen} | {packages} | {problem}\n"


RECORDED = (
    {tuple(row.split(" | ")[:3]): row + "\n" for row in FILE.read_text().splitlines()[1:]} if FILE.exists() else {}
)


@pytest.mark.parametrize("distro", KNOWLEDGE.distros)
def test_the_choice_for_each_generation_is_the_recorded_one(distro: str) -> None:
    lines = {case: line(*case) for case in asked() if case[0] == distro}
    assert lines == {case: row for case, row in RECORDED.items() if case[0] == distro}


def test_the_matrix_is_wide_and_has_no_line_too_many() -> None:
    assert set(RECORDED) == set(asked())
    assert len(RECORDED) >= 300


def test_the_probe_looks_for_every_package_that_can_be_wanted() -> None:
    spec = parse_spec({"fabric": {"dcgm": "auto", "imex_nodes": ["10.0.7.1", "10.0.7.2"]}}, where="gpunode.yml")
    wanted = set()
    for distro, pci_id, choice in asked():
        request = SolveRequest(gpus=(pci_id,), distro=distro, driver=driver_of(choice), fabric=spec.fabric)
        rack = replace(request, nvswitches=("10de:22a3",), nvlink5_fabric=True)
        for solution in (solve(request, KNOWLEDGE), solve(rack, KNOWLEDGE)):
            parts = (solution.driver, solution.toolkit, solution.fabric)
            wanted |= {p.name for part in parts if part for p in part.packages}
            if solution.driver:
                wanted |= {p.name for p in (*solution.driver.kernel_packages, *solution.driver.repository_packages)}
    wanted |= {"cuda-toolkit-13-0", "cuda-compat-13-0"}
    concern = "\n".join(row for row in script("probe.sh").splitlines() if row.startswith("CONCERN="))
    left = subprocess.run(
        ["sh", "-c", f'{concern}\nsed "/^\\($CONCERN\\)/d"'],
        input="\n".join(sorted(wanted)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(wanted) > 60 and left.stdout == ""


if __name__ == "__main__" and os.environ.get("GPUNODE_WRITE_CASES"):
    FILE.write_text(HEAD + "".join(line(*case) for case in asked()))
