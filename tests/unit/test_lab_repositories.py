"""The lab's stub repositories hold what the real ones hold, by what is recorded of the real indexes."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.model import Kernel, PackageWant
from gpunode.core.solve import SolveRequest, solve
from gpunode.core.spec import CudaSpec, DriverSpec
from gpunode.edge.load import load_knowledge
from gpunode.lab import images, packages_ubuntu
from gpunode.lab.images import COMMON, RELEASES
from gpunode.lab.packages import PLACES, build_restricted
from gpunode.lab.packages_table import Row, files_of, rows, texts_in
from gpunode.lab.packages_ubuntu import CODENAMES, ubuntu_rows

LAB = Path(__file__).parents[2] / "gpunode/lab"
KNOWLEDGE = load_knowledge()
H100 = "10de:2330"


def table(path: str) -> dict:
    return tomllib.loads((LAB / path).read_text())


def repositories() -> dict[tuple[str, str], list[Row]]:
    """The rows of each stub repository of NVIDIA by its distribution and source."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    apt = [row for path in sorted(LAB.glob("packages*.toml")) for row in rows(table(path.name))]
    served = {place.distro for place in PLACES if place.name == "nvidia-cuda"}
    for place in PLACES:
        for distro in served if not place.distro else {place.distro} & served:
            found[distro, place.name] += place.rows(apt)
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


def request(distro: str, **wishes: Any) -> SolveRequest:
    """What the solver is asked for such a node."""
    plain, _, variant = distro.partition("+")
    return SolveRequest(distro=plain, arch="aarch64" if variant == "arm64" else "x86_64", gpus=(H100,), **wishes)


def drivers(distro: str) -> set[int]:
    return {int(row.values["branch"]) for row in STUBS[distro, "nvidia-cuda"] if "branch" in row.values}


def toolkits(distro: str) -> set[str]:
    return {row.values["mm"] for row in STUBS[distro, "nvidia-cuda"] if "mm" in row.values}


@pytest.mark.parametrize("distro", DISTROS)
def test_the_driver_branches_are_those_that_the_index_of_the_real_repository_has(distro: str) -> None:
    row = KNOWLEDGE.distro(images.plain(distro))
    assert row is not None
    outside = drivers(distro) - set(row.branches)
    assert outside == set(), f"{row.dir} has {KNOWLEDGE.ranges(row.branches)}"
    assert drivers(distro) - outside, "a repository without a driver tests nothing"


@pytest.mark.parametrize("distro", DISTROS)
def test_the_cuda_toolkits_are_those_that_the_index_of_the_real_repository_has(distro: str) -> None:
    row = KNOWLEDGE.distro(images.plain(distro))
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
    r"dkms|gcc|make|kmod|kernel-default-devel|initramfs-tools|linux-initramfs-tool|dracut|.*-plugin-versionlock"
)


def lacking(distro: str, source: str, packages: Sequence[PackageWant]) -> list[PackageWant]:
    return [p for p in packages if not has(STUBS[distro, source], p) and not FROM_DISTRIBUTION.fullmatch(p.name)]


@pytest.mark.parametrize("distro", DISTROS)
@pytest.mark.parametrize("flavour", ["open", "proprietary"])
def test_what_the_solver_takes_of_the_driver_is_there_by_name_and_version(distro: str, flavour: str) -> None:
    for branch in sorted(drivers(distro)):
        if KNOWLEDGE.branches[branch].open == "only" and flavour == "proprietary":
            continue
        wish = DriverSpec(branch=str(branch), flavour=flavour)
        solution = solve(request(distro, driver=wish), KNOWLEDGE)
        assert solution.driver and solution.toolkit, solution.problems
        assert solution.driver.repository == "nvidia-cuda"
        assert lacking(distro, "nvidia-cuda", solution.driver.packages) == [], f"{branch} {flavour}"
        assert lacking(distro, "nvidia-container-toolkit", solution.toolkit.packages) == []


@pytest.mark.parametrize("distro", DISTROS)
def test_what_the_solver_takes_of_cuda_is_there_by_name_and_version(distro: str) -> None:
    for version in sorted(toolkits(distro)):
        wish = CudaSpec(versions=(version,))
        solution = solve(request(distro, cuda=wish), KNOWLEDGE)
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


def test_what_is_served_for_aarch64_is_made_for_it() -> None:
    texts = texts_in(LAB / "standins/packages")
    held = {row.name: row for source in ("nvidia-cuda", "kernels") for row in STUBS["debian:12+arm64", source]}
    assert {"linux-image-arm64", "linux-headers-arm64", "nvidia-open"} <= held.keys()
    assert not any("amd64" in name for name in held)
    files = files_of(held["libcuda1"].package, held["libcuda1"].values, texts)
    [library] = [file for path, file in files.items() if path.startswith("usr/lib/aarch64-linux-gnu/") and file.data]
    assert library.data[18:20] == b"\xb7\x00", "e_machine: EM_AARCH64"
    row = held["cuda-toolkit-12-8-config-common"]
    files = files_of(row.package, row.values, texts)
    assert files["usr/local/cuda-12.8/lib64"].target == "targets/sbsa-linux/lib"


# ---------------------------------------------------------------- Ubuntu's own kernels and drivers

CONTENTS = tomllib.loads((LAB / "ubuntu/contents.toml").read_text())
EXCERPTS = {version: (LAB / f"ubuntu/{version}.packages").read_text() for version in CODENAMES}
UBUNTU = {version: list(ubuntu_rows(version, text, CONTENTS)) for version, text in EXCERPTS.items()}
FROM_UBUNTU = re.compile(r"dkms|gcc|kmod|linux-base.*|coreutils|initramfs-tools|lib.*|crash|makedumpfile")


def choices(text: str) -> list[str]:
    return [word.split()[0] for word in text.split("|")]


@pytest.mark.parametrize("version", CODENAMES)
def test_every_dependency_of_ubuntus_stubs_leads_to_one_or_to_ubuntu_itself(version: str) -> None:
    names = {row.name for row in UBUNTU[version]}
    names |= {choices(text)[0] for row in UBUNTU[version] for text in row.package["provides"]}
    for row in UBUNTU[version]:
        for text in row.package["depends"]:
            assert any(c in names or FROM_UBUNTU.fullmatch(c) for c in choices(text)), f"{row.name}: {text}"


@pytest.mark.parametrize("flavour", ["open", "proprietary"])
@pytest.mark.parametrize("branch", ["580", "595"])
@pytest.mark.parametrize("version", CODENAMES)
def test_what_the_solver_takes_of_ubuntus_own_driver_is_in_ubuntus_index(
    version: str, branch: str, flavour: str
) -> None:
    images = [
        row.values["release"]
        for row in UBUNTU[version]
        if row.name.startswith("linux-image-") and "release" in row.values
    ]
    assert {image.rpartition("-")[2] for image in images} == {"generic", "aws", "azure", "nvidia"}
    for image in images:
        driver = DriverSpec(branch=branch, flavour=flavour, modules="precompiled")
        kernels = (Kernel(release=image, image=True),)
        request = SolveRequest(distro=f"ubuntu:{version}", gpus=(H100,), driver=driver, kernels=kernels)
        solution = solve(request, KNOWLEDGE)
        assert solution.driver, solution.problems
        lacking = [p for p in solution.driver.packages if not has(UBUNTU[version], p)]
        assert lacking == [] and f"linux-modules-nvidia-{branch}-server" in solution.driver.packages[0].name


@pytest.mark.parametrize("version", CODENAMES)
def test_the_modules_of_a_kernel_are_those_of_the_user_space_they_depend_on(version: str) -> None:
    texts = texts_in(LAB / "standins/packages")
    modules = [row for row in UBUNTU[version] if row.package.get("drivers")]
    kernels = len({row.values["release"] for row in modules})
    assert kernels == (5 if version == "26.04" else 6), "with one from before the last driver, where the archive has it"
    assert 25 <= len(modules) <= 5 * kernels, "two branches of two kinds and one of open modules alone"
    before: list[str] = []  # kernels from before the last driver
    for row in modules:
        utils = next(r for r in UBUNTU[version] if r.name == f"nvidia-utils-{row.values['branch']}-server")
        before += [row.values["release"]] * (not utils.version.startswith(f"{row.values['version']}-"))
        folder = f"usr/lib/modules/{row.values['release']}/kernel/nvidia-{row.values['branch']}srv"
        assert any(
            path.startswith(folder) and path.endswith("/nvidia.ko") for path in files_of(row.package, row.values, texts)
        )
    assert len(set(before)) == kernels - 5


USER_SPACE = {
    *("nvidia-utils-{}-server", "nvidia-compute-utils-{}-server", "nvidia-kernel-common-{}-server"),
    *("libnvidia-compute-{}-server", "libnvidia-cfg1-{}-server", "nvidia-firmware-{}-server"),
    *("nvidia-fabricmanager-{}", "nvidia-imex-{}", "libnvidia-nscq-{}"),
}


@pytest.mark.parametrize("version", CODENAMES)
def test_nvidias_user_space_is_fetched_as_ubuntu_has_it(version: str) -> None:
    real = [s for s in packages_ubuntu.stanzas(EXCERPTS[version]) if "SHA256" in s]
    names = {re.sub(r"-[0-9.]+$", "", s["Package"]) if "firmware" in s["Package"] else s["Package"] for s in real}
    assert names == {name.format(branch) for name in USER_SPACE for branch in packages_ubuntu.BRANCHES}
    assert all(re.fullmatch("[0-9a-f]{64}", s["SHA256"]) and s["Filename"].endswith(".deb") for s in real)
    libraries = [s for s in real if s["Package"].startswith("libnvidia-compute")]
    assert libraries and all("libssl3" in s["Depends"] and s["Replaces"] for s in libraries), "no relation is left out"


def test_what_is_fetched_goes_into_the_repository_unchanged(tmp_path: Path) -> None:
    excerpt = next(s for s in packages_ubuntu.stanzas(EXCERPTS["24.04"]) if s["Package"] == "nvidia-utils-580-server")
    deb = tmp_path / excerpt["Filename"].rpartition("/")[2]
    deb.write_bytes(b"what Canonical built")
    info = build_restricted(tmp_path / "r", "24.04", {excerpt["SHA256"]: deb}, log=lambda _: None)
    [source] = info.sources
    folder = tmp_path / "r" / source.path
    held = packages_ubuntu.stanzas((folder / "dists/noble-security/restricted/binary-amd64/Packages").read_text())
    mine = next(s for s in held if s["Package"] == excerpt["Package"])
    assert {**excerpt, "Filename": mine["Filename"]} == {**mine, "Component": "restricted"}
    assert (folder / mine["Filename"]).read_bytes() == b"what Canonical built"
    stub = next(s for s in held if s["Package"] == "libnvidia-compute-580-server")
    assert stub["SHA256"] not in {s.get("SHA256") for s in packages_ubuntu.stanzas(EXCERPTS["24.04"])}, "not fetched"


def test_a_new_node_has_the_kernel_before_the_newest_and_its_metapackage() -> None:
    for version, some in UBUNTU.items():
        first = [row for row in some if row.first]
        assert [re.sub(r"\d[\d.]*-\d+", "R", row.name) for row in first] == [
            "linux-image-R-generic",
            "linux-modules-R-generic",
            "linux-image-virtual",
        ]
        meta = [row for row in some if row.name == "linux-image-virtual"]
        assert [row.package["depends"] == [first[0].name] for row in meta] == [True, False], version


def test_an_excerpt_takes_the_newest_kernel_of_each_flavour_and_of_generic_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stanza(name: str, depends: str = "") -> dict[str, str]:
        return {
            "Package": name,
            "Version": "7.9.0-10.10",
            "Architecture": "amd64",
            "Component": "main",
            "Depends": depends,
        }

    kernels = [f"7.9.0-{n}-generic" for n in (3, 9, 10)] + [f"7.9.0-1001-{f}" for f in ("aws", "azure", "nvidia")]
    index = [stanza(f"linux-{kind}-{kernel}", "common-x, y") for kernel in kernels for kind in ("image", "headers")]
    index += [stanza(f"linux-image-{f}", f"linux-image-7.9.0-1001-{f}") for f in ("aws", "azure", "nvidia")]
    index += [stanza(f"linux-image-{f}", "linux-image-7.9.0-10-generic, z") for f in ("generic", "virtual")]
    index += [stanza("nvidia-kernel-common-595-server")]
    monkeypatch.setattr(packages_ubuntu, "read_index", lambda archive, codename: {s["Package"]: s for s in index})
    some = packages_ubuntu.stanzas(packages_ubuntu.excerpt("http://a.example", "x"))
    images = [s["Package"] for s in some if s["Package"].startswith("linux-image-7")]
    assert images == [f"linux-image-{kernel}" for kernel in kernels[1:]]
    generic = [s["Depends"] for s in some if s["Package"] == "linux-image-generic"]
    assert generic == ["linux-image-7.9.0-9-generic, z", "linux-image-7.9.0-10-generic, z"]


# ---------------------------------------------------------------- Debian's own driver

# of 2026-11-23: contrib, non-free, non-free-firmware and security
INDEXES = Path(__file__).parents[1] / "cases/indexes"
OWN = list(rows(table("packages_non_free.toml")))


@pytest.mark.parametrize("distro", ["debian:12", "debian:13"])
def test_debians_own_driver_is_what_debians_index_has(distro: str) -> None:
    real = packages_ubuntu.stanzas((INDEXES / f"{distro.replace(':', '-')}.packages").read_text())
    by_name = {(stanza["Package"], stanza["Version"]): stanza for stanza in real}
    mine = {(row.name, row.version): row for row in OWN if row.is_for(distro)}
    assert mine.keys() == by_name.keys(), "names and versions"
    for key, row in mine.items():
        assert row.package.get("component", "non-free") == by_name[key]["Component"], key
        for kind in ("Depends", "Recommends", "Conflicts"):
            stated = {text.format(**row.values) for text in row.package.get(kind.lower(), ())}
            assert stated <= {text.strip() for text in by_name[key].get(kind, "").split(",")}, (key, kind)


# ---------------------------------------------------------------- what a new node has

# What vendors' minimal cloud images lack: a driver's installation has to bring it.
NEVER = re.compile(
    r"dkms|gcc.*|g\+\+.*|make|build-essential|epel-release|linux-headers.*|kernel-devel.*|ubuntu-drivers.*|snapd"
)


@pytest.mark.parametrize("distro", [d for d, release in RELEASES.items() if not release.family])
def test_a_tree_holds_no_more_than_a_minimal_cloud_image(distro: str) -> None:
    assert [name for name in (*COMMON, *RELEASES[distro].packages) if NEVER.fullmatch(name)] == []


@pytest.mark.parametrize("family", ["rhel", "sles", "arch"])
def test_a_node_of_a_family_begins_with_its_release_files_its_kernel_and_what_makes_its_initramfs(family: str) -> None:
    base = table(f"families/{family}.toml")["base"]
    assert [name for name in base if NEVER.fullmatch(name.rpartition("-")[0] or name) or NEVER.fullmatch(name)] == []
    kernels = [name for name in base if name.startswith(("kernel", "linux"))]
    assert len(kernels) == 1 and len(base) <= 3
