"""The solver's plans on the real archives of Debian and Ubuntu: every package is there, and apt can install them.

Only what comes from the distribution itself can be asked here: of a plan from NVIDIA's repository its headers alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from apt_roots import CODENAMES, LEFT_BEHIND, Root, by_kind, by_version, root
from asked_nodes import desired, node, planned, quick_answer
from test_solve_matrix import asked, driver_of

from gpunode.core.model import DriverChoice, InstalledPackage, Kernel, PackageWant
from gpunode.core.solve import SolveRequest, solve
from gpunode.edge.load import load_knowledge

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]

KNOWLEDGE = load_knowledge()
GPUS = {"H100": "10de:2330", "V100": "10de:1db4"}
archive = functools.cache(root)


def fault(there: Root, driver: DriverChoice) -> str:
    """What the archive says against the part of a plan that comes from it."""
    own = () if driver.repository or driver.runfile else driver.packages
    lacking = there.lacking([*driver.kernel_packages, *own])
    return f"not there: {' '.join(lacking)}" if lacking else there.fault([*driver.kernel_packages, *own])


def matrix(distro: str) -> Iterator[tuple[str, SolveRequest]]:
    for name, pci_id, choice in asked():
        if name == distro and choice != "runfile":
            yield f"{pci_id} {choice}", SolveRequest(gpus=(pci_id,), distro=distro, driver=driver_of(choice))


def newest_kernels(there: Root) -> dict[tuple[str, str], list[str]]:
    """Of each line and flavour the kernels, oldest first."""
    return by_kind(there.kernels())


@pytest.mark.parametrize("distro", CODENAMES)
def test_the_answers_of_the_matrix_can_be_installed(distro: str) -> None:
    there = archive(distro)
    answers = {name: solve(wish, KNOWLEDGE) for name, wish in matrix(distro)}
    found = {name: fault(there, s.driver) for name, s in answers.items() if s.driver and not s.problems}
    assert len(found) >= 10
    assert {name: text for name, text in found.items() if text} == {}


@pytest.mark.parametrize("distro", [name for name in CODENAMES if name.startswith("ubuntu")])
def test_the_newest_kernel_of_each_flavour_has_its_modules_by_what_is_known_of_the_archive(distro: str) -> None:
    there, bad, row = archive(distro), {}, KNOWLEDGE.distros[distro]
    known = {(line, flavour) for line in row.built_for for flavour in row.built_for[line]}
    kernels = [releases[-1] for kind, releases in newest_kernels(there).items() if kind in known]
    assert len(kernels) > 8
    for release in kernels:
        for name in ("H100", "V100"):
            wish = SolveRequest(
                gpus=(GPUS[name],), distro=distro, secure_boot=True, kernels=(Kernel(release=release, image=True),)
            )
            driver = solve(wish, KNOWLEDGE).driver
            assert driver and not driver.repository, release
            if text := fault(there, driver):
                bad[release, name] = text
    assert bad == {}


def some_of_each(there: Root) -> Iterator[str]:
    """Of each line of kernels and flavour the newest kernel, and the one before; of the most usual the oldest, too."""
    for (_, flavour), releases in sorted(newest_kernels(there).items()):
        usual = flavour in ("generic", "amd64", "aws")
        yield from dict.fromkeys((releases[-1], *releases[-2:-1], *(releases[:1] if usual else ())))


CASES = (("H100", True), ("V100", True), ("V100", False))  # signed modules, open or not, and those of DKMS


@pytest.mark.parametrize(("gpu", "secure_boot"), CASES)
@pytest.mark.parametrize("distro", CODENAMES)
def test_every_plan_resolves_or_is_refused_truly(distro: str, gpu: str, secure_boot: bool) -> None:
    there = archive(distro)
    found = {release: wrong(there, distro, release, gpu, secure_boot) for release in some_of_each(there)}
    assert len(found) > 6
    assert {release: text for release, text in found.items() if text} == {}


@pytest.mark.parametrize(("distro", "release"), [(name, one) for name, some in LEFT_BEHIND.items() for one in some])
def test_a_kernel_that_the_archive_has_left_behind_gets_the_newest_of_its_line(distro: str, release: str) -> None:
    there, ubuntu = archive(distro), distro.startswith("ubuntu")
    one = planned(there, node(distro, GPUS["H100"], (release,), secure_boot=ubuntu), quick_answer)
    driver = one.solution.driver
    assert driver and not one.plan.problems
    assert driver.without == (release,)
    (said,) = (text for text in one.plan.warnings if text.startswith("kernel: "))
    assert f"{release} runs and gets no module" in said and "the newest kernel, which comes along," in said

    assert fault(there, driver) == ""
    own = driver.packages if ubuntu else ()
    words = [want.name for want in (*driver.kernel_packages, *own)]
    found = re.findall(r"^Inst (\S+)", there.apt("apt-get", "--simulate", "install", *words).stdout, re.M)
    (comes,) = (name.removeprefix("linux-image-") for name in found if re.match(r"linux-image-\d", name))
    assert by_version(comes) > by_version(release)
    needs = f"linux-modules-nvidia-{driver.branch}-server-open" if ubuntu else "linux-headers"
    assert f"{needs}-{comes}" in found


def wrong(there: Root, distro: str, release: str, gpu: str, secure_boot: bool) -> str:
    """What is wrong with the plan of a node with that kernel, once its package manager was asked."""
    one = planned(there, node(distro, GPUS[gpu], (release,), secure_boot=secure_boot), quick_answer)
    if one.plan.problems:
        module = offered_module(there, release) if distro.startswith("ubuntu") else ""
        return module and f"refused, and {module} could be installed: {one.plan.problems[0].what}"
    return fault(there, one.solution.driver) if one.solution.driver else "neither a driver nor a problem"


def offered_module(there: Root, release: str) -> str:
    """Modules of a supported branch for that kernel, of the driver's newest version, which apt would install."""
    for branch in (595, 580):
        common = f"nvidia-kernel-common-{branch}-server"
        version = there.apt("apt-cache", "policy", common).stdout.partition("Candidate: ")[2].partition("-")[0]
        for name in (f"linux-modules-nvidia-{branch}-server{kind}-{release}" for kind in ("-open", "")):
            shown = there.apt("apt-cache", "show", name).stdout if name in there.names else ""
            if f"{common} (>= {version})" in shown and not there.fault([PackageWant(name=name)]):
                return name
    return ""


INSTALLED = [  # what the node has, its GPU, Secure Boot
    (("nvidia-driver-580-open", "linux-modules-nvidia-580-open-generic"), "H100", True),
    (("nvidia-driver-580", "linux-modules-nvidia-580-generic"), "V100", True),
    (("nvidia-driver-580-open", "nvidia-dkms-580-open"), "H100", False),
    (("nvidia-driver-580-open", "nvidia-dkms-580-open"), "H100", True),
    (("nvidia-headless-no-dkms-595-server", "linux-modules-nvidia-595-server-generic", "nvidia-utils-595-server"),
     "H100", True),
]  # fmt: skip


@pytest.mark.parametrize(("packages", "gpu", "secure_boot"), INSTALLED)
def test_a_plan_names_all_that_apt_removes_of_a_driver_of_ubuntu(
    packages: tuple[str, ...], gpu: str, secure_boot: bool, tmp_path: Path
) -> None:
    there = archive("ubuntu:24.04")
    done = there.apt("apt-get", "--simulate", "install", *packages, "linux-image-generic").stdout
    found = dict(re.findall(r"^Inst (\S+) \((\S+)", done, re.M))
    (release,) = (name.removeprefix("linux-image-") for name in found if re.match(r"linux-image-\d", name))
    version = next(version.partition("-")[0] for name, version in found.items() if name.startswith("nvidia-utils-"))
    facts = node("ubuntu:24.04", GPUS[gpu], (release,), secure_boot=secure_boot)
    facts = replace(
        facts,
        packages={n: InstalledPackage(name=n, version=v) for n, v in found.items() if "nvidia" in n},
        driver=replace(facts.driver, loaded=version if secure_boot else ""),  # else another branch comes
    )
    driver = desired().plan("gpu1", facts).solution.driver
    assert driver
    gone = removed_by(there, found, driver, tmp_path)
    assert gone and gone - {*driver.remove, *driver.may_go} == set()


def removed_by(there: Root, found: dict[str, str], driver: DriverChoice, folder: Path) -> set[str]:
    """What apt removes on a node with these packages for the part of a plan that comes from the archive."""
    texts = there.apt("apt-cache", "show", *(f"{name}={version}" for name, version in found.items())).stdout
    status = folder / "status"
    status.write_text(re.sub(r"^Package: .*", r"\g<0>\nStatus: install ok installed", texts, flags=re.M))
    own = () if driver.repository else (want.name for want in driver.packages)
    words = [*own, *(f"{name}-" for name in driver.remove)]
    done = there.apt("apt-get", "--simulate", "-o", f"Dir::State::status={status}", "install", *words)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^Remv (\S+)", done.stdout, re.M))
