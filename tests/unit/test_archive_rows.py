"""Each row that a decision rests on, asked of the archives that can be reached; what differs is listed.

Of amd64 all of it, of arm64 the names: Debian's by its own indexes, Ubuntu's by the lists of its source packages, since
ports.ubuntu.com is another server.
"""

from __future__ import annotations

import functools
import lzma
import re
import urllib.request
from collections.abc import Iterator, Mapping

import pytest
from apt_roots import CODENAMES, root
from test_archives import newest_kernels
from test_solve_matrix import asked, driver_of

from gpunode.core.model import Kernel
from gpunode.core.solve import SolveRequest, solve
from gpunode.core.solve.archive import kernel_lines
from gpunode.edge.load import load_knowledge
from gpunode.edge.tables import knowledge_text
from gpunode.lab import machine
from gpunode.lab.packages_ubuntu import read_index
from tools.published import update_debian, update_own
from tools.read_published import read_versions

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]

KNOWLEDGE = load_knowledge()
UBUNTU = [name for name in CODENAMES if name.startswith("ubuntu")]
DEBIAN = [name for name in CODENAMES if name.startswith("debian")]
ARCHS = {"amd64": "x86_64", "arm64": "aarch64"}
EVERY = [(distro, arch) for distro in CODENAMES for arch in ARCHS]
archive = functools.cache(root)


@functools.cache
def there(distro: str, arch: str) -> frozenset[str]:
    """The names of all packages that the archive has for an architecture."""
    archive(distro)  # its test ends here where none can be reached
    if arch == "amd64" or distro in DEBIAN:
        return archive(distro, arch).names
    found: set[str] = set()
    for suite in (CODENAMES[distro], f"{CODENAMES[distro]}-updates"):
        for component in ("main", "restricted", "universe", "multiverse"):
            url = f"{machine.archive().ubuntu}/dists/{suite}/{component}/source/Sources.xz"
            with urllib.request.urlopen(url) as answer:  # this machine's archive
                text = lzma.decompress(answer.read()).decode()
            lines = re.findall(r"^ (\S+) deb \S+ \S+ arch=(\S+)", text, re.M)
            found |= {name for name, archs in lines if {"any", "all", "arm64", "linux-any"} & {*archs.split(",")}}
    return frozenset(found)


def versions(distro: str, name: str) -> list[str]:
    return re.findall(r"^Version: (\S+)$", archive(distro).apt("apt-cache", "show", name).stdout, re.M)


def wrong_names(distro: str, arch: str) -> Iterator[str]:
    """What the rows name and the archive lacks, and what it has against them."""
    row, own = KNOWLEDGE.distros[distro].on(ARCHS[arch]), KNOWLEDGE.packages[f"{distro.partition(':')[0]}-own"]
    family, names = KNOWLEDGE.packages[row.family], there(distro, arch)
    wanted = ["dkms", "infiniband-diags", family["headers_meta"][ARCHS[arch]]]
    for branch in row.own_dkms or row.own:
        only = row.own_flavours.get(branch)
        kinds = ["open", "proprietary"] if only is None else [only]
        words = [{"branch": branch, "open": "-open" * (kind == "open")} for kind in kinds]
        if row.family == "ubuntu":
            both = [*own["userspace"], own["dkms"]]
            built = [own["modules_meta"], *own["fabric"]] if branch in row.own else []
            wanted += [name.format(flavour="generic", **one) for one in words for name in (*both, *built)]
            other = {"branch": branch, "open": "-open" * (only == "proprietary")}
            against = own["dkms"].format(**other)
            if (
                only
                and against in names
                and "(transitional" not in archive(distro).apt("apt-cache", "show", against).stdout
            ):
                yield f"{against} is there, and the row says that {branch} is {only} alone"
        elif branch in own["tesla"].get(distro, ()):
            tesla = [own["tesla_proprietary"], *own["tesla_userspace"]]
            wanted += [name.format(branch=branch) for name in tesla]
        else:
            wanted += [own[kind] for kind in kinds] + own["userspace"] + [own["gsp"]] * (branch >= 535)
    if arch == "arm64":  # no machine of arm64 has NVSwitches that Ubuntu's own driver drives
        wanted = [name for name in wanted if not name.startswith("libnvidia-nscq")]
    yield from (f"{name} is not there" for name in dict.fromkeys(wanted) if name not in names)


@pytest.mark.parametrize(("distro", "arch"), EVERY)
def test_the_names_of_packages_are_those_of_the_archive(distro: str, arch: str) -> None:
    assert ARCHS[arch] in KNOWLEDGE.distros[distro].archs
    assert list(wrong_names(distro, arch)) == []


def test_branches_and_kernels_are_those_of_the_archive_today() -> None:
    ours = machine.archive()
    for distro in CODENAMES:
        archive(distro)
    text = knowledge_text("repos")
    indexes = {distro: read_index(ours.ubuntu, CODENAMES[distro]) for distro in UBUNTU}
    assert update_own(text, indexes).splitlines() == text.splitlines()
    held = {distro: read_versions(ours.main, CODENAMES[distro]) for distro in DEBIAN}
    assert update_debian(text, held).splitlines() == text.splitlines()


@pytest.mark.parametrize("distro", CODENAMES)
def test_a_release_began_with_the_kernel_that_its_row_names(distro: str) -> None:
    row, name = KNOWLEDGE.distros[distro], f"linux-image-{'generic' if distro in UBUNTU else 'amd64'}"
    assert {version.startswith(f"{row.ga_kernel}.") for version in versions(distro, name)} == {True}
    assert {row.codename} == {CODENAMES[distro]}


@pytest.mark.parametrize("distro", UBUNTU)
def test_metapackages_of_the_first_line_follow_it(distro: str) -> None:
    row, names = KNOWLEDGE.distros[distro], there(distro, "amd64")
    flavours = [one for one in KNOWLEDGE.packages["ubuntu"]["first_line"] if f"linux-image-{one}" in names]
    newest = {flavour: versions(distro, f"linux-image-{flavour}")[0] for flavour in flavours}
    assert {f: v for f, v in newest.items() if not v.startswith(f"{row.ga_kernel}.")} == {}


@pytest.mark.parametrize("distro", UBUNTU)
def test_kernels_have_a_package_of_extra_modules_but_for_those_that_are_named(distro: str) -> None:
    row, names = KNOWLEDGE.distros[distro], there(distro, "amd64")
    before = float(KNOWLEDGE.packages["ubuntu"]["modules_extra_before"])
    wrong = {}
    for (line, flavour), releases in newest_kernels(archive(distro)).items():
        has = f"linux-modules-extra-{releases[-1]}" in names
        if line in row.built_for and has != (float(line) < before and flavour not in row.no_extra):
            wrong[line, flavour] = "has extra modules" if has else "has none"
    assert wrong == {}


def kernels_of_arm64(distro: str) -> Iterator[str]:
    """Of each line and flavour the newest kernel that has modules of a branch of the row."""
    row, newest = KNOWLEDGE.distros[distro], dict[tuple[str, str], str]()
    pattern = rf"linux-modules-nvidia-(?:{'|'.join(map(str, row.own))})-server-((\d+\.\d+)\.\d+-(\d+)-(\S+))"
    for name in there(distro, "arm64"):
        match = re.fullmatch(pattern, name)
        if match and match[4].removesuffix("-64k") in row.built_for.get(match[2], ()):
            kind = (match[2], match[4])
            newest[kind] = max(
                newest.get(kind, ""), match[1], key=lambda one: [int(n) for n in re.findall(r"\d+", one)]
            )
    yield from sorted(newest.values())


@pytest.mark.parametrize("distro", UBUNTU)
def test_the_modules_of_kernels_of_arm64_are_those_of_ubuntu(distro: str) -> None:
    kernels, lacking = list(kernels_of_arm64(distro)), dict[str, list[str]]()
    assert len(kernels) > 10 and any(release.endswith("-64k") for release in kernels)
    for release in kernels:
        kernel = Kernel(release=release, image=True, running=True)
        wish = SolveRequest(gpus=("10de:2342",), distro=distro, arch="aarch64", secure_boot=True, kernels=(kernel,))
        driver = solve(wish, KNOWLEDGE).driver
        assert driver and not driver.repository, release
        if names := [want.name for want in driver.packages if want.name not in there(distro, "arm64")]:
            lacking[release] = names
    assert lacking == {}


@pytest.mark.parametrize("distro", UBUNTU)
def test_one_of_the_lines_of_each_kernel_of_arm64_exists(distro: str) -> None:
    row, family = KNOWLEDGE.distros[distro], KNOWLEDGE.packages["ubuntu"]
    request = SolveRequest(gpus=(), distro=distro, arch="aarch64")
    first: Mapping[str, str] = {one: kernel_lines(row, request, family, one)[0] for one in kernels_of_arm64(distro)}
    names = there(distro, "arm64")
    assert {k: line for k, line in first.items() if f"linux-image-{line}" not in names} == {}


@pytest.mark.parametrize("distro", DEBIAN)
def test_the_answers_for_arm64_can_be_installed(distro: str) -> None:
    wishes = [
        (f"{gpu} {choice}", SolveRequest(gpus=(gpu,), distro=distro, arch="aarch64", driver=driver_of(choice)))
        for name, gpu, choice in asked()
        if name == distro and choice == "distro"
    ]
    faults = {}
    for name, wish in wishes:
        solution = solve(wish, KNOWLEDGE)
        if solution.driver and not solution.problems:
            faults[name] = archive(distro, "arm64").fault([*solution.driver.kernel_packages, *solution.driver.packages])
    assert len(faults) > 5
    assert {name: text for name, text in faults.items() if text} == {}
