"""tools/refresh.py --from: a copy of NVIDIA's servers, by folder and by address, into the tables."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apt_server import Server
from click.testing import CliRunner
from index_sites import apt_index, rpm_index

from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.knowledge import Knowledge, parse_knowledge
from gpunode.core.knowledge.kubernetes import parse_kube_knowledge
from gpunode.core.openpgp import fingerprint
from gpunode.core.solve import SolveRequest, solve
from gpunode.core.spec import DriverSpec
from gpunode.edge.load import knowledge_tables, load_knowledge
from gpunode.edge.tables import knowledge_text
from tools.pciids import PciGpu, add_gpus
from tools.published import (
    ChartRelease,
    Held,
    ServedKey,
    held,
    parse_chart,
    parse_listing,
    parse_redistrib,
    parse_releases,
    update_cuda,
    update_debian,
    update_drivers,
    update_kubernetes,
    update_own,
    update_repos,
)
from tools.refresh import refresh as command

# as published: releases.json of 2026-09-28 by its form, redistrib_620.70.06.json of 2026-11-04 by its keys
RELEASES = {
    "580": {
        "type": "lts branch",
        "driver_info": [
            {"release_version": "580.190.02", "release_date": "2026-11-02", "architectures": ["x86_64", "sbsa"]},
            {"release_version": "580.178.04", "release_date": "", "runfile_url": {"x86_64": "https://…run"}},
        ],
    },
    "595": {"type": "production branch", "driver_info": [{"release_version": "595.91.07", "release_date": ""}]},
    "620": {
        "type": "production branch",
        "driver_info": [{"release_version": "620.70.06", "release_date": "2026-11-04"}],
    },
    "625": {
        "type": "new feature branch",
        "driver_info": [{"release_version": "625.30.01", "release_date": "2026-12-01"}],
    },
}
DRIVER = "developer.download.nvidia.com/compute/nvidia-driver/redist"
CUDA = "developer.download.nvidia.com/compute/cuda/redist"
REPOS = "developer.download.nvidia.com/compute/cuda/repos"
TOOLKIT = "nvidia.github.io/libnvidia-container/stable"


def redistrib(product: str, version: str, driver: str, date: str) -> str:
    parts = {"name": "NVIDIA Linux Driver", "version": driver, "linux-x86_64": {"size": "1"}}
    return json.dumps(
        {"release_date": date, "release_label": version, "release_product": product, "nvidia_driver": parts}
    )


def packages(drivers: list[str], cuda: list[str], release: str = "-1") -> list[tuple[str, str]]:
    names = ("nvidia-open", "cuda-drivers", "libnvidia-cfg1")
    return [
        *((name, f"{version}{release}") for version in drivers for name in names),
        *((f"cuda-toolkit-{one.replace('.', '-')}", f"{one}.1-1") for one in cuda),
        ("datacenter-gpu-manager-4-core", "1:4.6.1-1"),
    ]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the servers by host name."""
    root = tmp_path / "copy"
    for folder, product, versions in (
        (DRIVER, "nvidia-driver", {"595.99.03": "2026-11-20", "595.71.05": "2026-04-24", "620.70.06": "2026-11-04"}),
        (CUDA, "cuda", {"12.8.1": "2025-03-04", "13.6.0": "2026-12-01"}),
    ):
        (root / folder).mkdir(parents=True)
        for version, date in versions.items():
            driver = version if product == "nvidia-driver" else "625.30.01"
            (root / folder / f"redistrib_{version}.json").write_text(redistrib(product, version, driver, date))
    (root / "docs.nvidia.com/datacenter/tesla/drivers").mkdir(parents=True)
    (root / "docs.nvidia.com/datacenter/tesla/drivers/releases.json").write_text(json.dumps(RELEASES))
    new = ["580.190.02", "595.99.03", "625.30.01"]
    apt_index(root / REPOS / "debian13/x86_64", packages(new, ["13.1", "13.5", "13.6"]), form=".gz")
    apt_index(root / REPOS / "debian13/sbsa", packages(new, ["13.1", "13.5", "13.6"]), form=".xz", arch="arm64")
    fedora = packages(["3:595.45.04", "3:595.99.03"], ["13.2"], "-1.fc43")
    rpm_index(root / REPOS / "fedora43/x86_64", fedora, form=".zst")
    streams = {f"{v[:3]}-open": [("nvidia-open", f"3:{v}-1.el9")] for v in ("515.105.01", *new)}
    rpm_index(root / REPOS / "rhel9/x86_64", packages([], ["11.7", "12.8", "13.6"]), streams=streams)
    later = packages(new, ["12.0", "13.6"], "-1.el9")
    rpm_index(root / REPOS / "rhel9/sbsa", later, arch="aarch64")
    apt_index(root / TOOLKIT / "deb/amd64", [("nvidia-container-toolkit", f"{v}-1") for v in ("1.20.1", "1.21.0")])
    return root


@pytest.fixture
def site(copy: Path) -> Iterator[Server]:
    server = Server(copy)
    yield server
    server.close()


def refresh(place: object, out: Path, *more: str) -> str:
    done = CliRunner().invoke(command, ["--from", str(place), "-o", str(out), *more], standalone_mode=False)
    assert done.exception is None, f"{done.output}{done.exception}"
    return str(done.output)


def read(out: Path) -> Knowledge:
    tables = {name: tomllib.loads((out / f"{name}.toml").read_text()) for name in ("drivers", "cuda", "repos")}
    return parse_knowledge(**knowledge_tables() | tables)


def test_what_is_published_becomes_branches_releases_and_ranges(copy: Path, tmp_path: Path) -> None:
    answer = refresh(copy, tmp_path / "own")
    fresh = read(tmp_path / "own")
    assert (fresh.branches[580].latest, fresh.branches[595].latest) == ("580.190.02", "595.99.03")
    assert (fresh.branches[620].kind, fresh.branches[625].kind) == ("PB", "NFB")
    assert (fresh.branches[625].open, fresh.branches[625].max_arch) == ("only", "Rubin")
    assert (fresh.cuda["13.6"].native, fresh.cuda["13.6"].compat) == ("625.30.01", "580.65.06")
    ranges = {
        key: (fresh.distros[key].branches, fresh.distros[key].cuda) for key in ("debian:13", "fedora:43", "rhel:9")
    }
    assert ranges == {
        "debian:13": ((580, 595, 625), ("13.1", "")),
        "fedora:43": ((595,), ("13.2", "13.2")),
        "rhel:9": ((515, 580, 595, 625), ("11.7", "")),
    }
    assert fresh.distros["rhel:9"].on("aarch64").cuda == ("12.0", "")
    assert fresh.distros["debian:13"].by_arch == {}
    assert fresh.packages["container-toolkit"]["newest"] == "1.21.0"
    assert "+branch = 625" in answer and '+native = "625.30.01"' in answer
    assert re.search("^not read: .*/ubuntu2404/x86_64", answer, re.M)  # not in the copy: its row stays
    assert fresh.distros["ubuntu:24.04"] == load_knowledge().distros["ubuntu:24.04"]


def test_by_address_it_is_the_same_as_by_folder(copy: Path, site: Server, tmp_path: Path) -> None:
    for folder in (DRIVER, CUDA):
        names = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in (copy / folder).iterdir())
        (copy / folder / "index.html").write_text(f"<html>{names}</html>")
    handler: Any = site.server.RequestHandlerClass
    plain = handler.do_GET

    def with_pages(self: Any) -> None:
        self.path += "index.html" if self.path.endswith("/") else ""
        plain(self)

    handler.do_GET = with_pages
    refresh(copy, tmp_path / "folder")
    refresh(site.url, tmp_path / "address")
    for name in ("drivers", "cuda", "repos"):
        assert (tmp_path / f"folder/{name}.toml").read_text() == (tmp_path / f"address/{name}.toml").read_text()


def test_comments_and_what_only_people_know_stay(copy: Path, tmp_path: Path) -> None:
    refresh(copy, tmp_path / "own")
    for name in ("drivers", "cuda", "repos"):
        before, after = knowledge_text(name).splitlines(), (tmp_path / f"own/{name}.toml").read_text().splitlines()
        lost = [line for line in before if line.lstrip().startswith("#") and line not in after]
        assert lost == []
    known, fresh = load_knowledge(), read(tmp_path / "own")
    assert {b: row.eol for b, row in known.branches.items()} == {b: fresh.branches[b].eol for b in known.branches}
    assert fresh.distros["rocky:9"].kernels == known.distros["rocky:9"].kernels
    assert fresh.keys == known.keys
    raw = tomllib.loads((tmp_path / "own/drivers.toml").read_text())
    dated = {row["branch"]: row.get("source_date") for row in raw["branches"]}
    assert (dated[580], dated[470]) == ("2026-11-02", None)


def test_refreshed_twice_is_refreshed_once(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    refresh(copy, tmp_path / "own")
    before = {path.name: path.read_text() for path in (tmp_path / "own").iterdir()}
    monkeypatch.setenv("GPUNODE_KNOWLEDGE", str(tmp_path / "own"))
    load_knowledge.cache_clear()
    request.addfinalizer(load_knowledge.cache_clear)
    assert not re.search(r"^[+-]", refresh(copy, tmp_path / "own"), re.M)
    assert {path.name: path.read_text() for path in (tmp_path / "own").iterdir()} == before


def test_the_solver_decides_by_what_was_refreshed(copy: Path, tmp_path: Path) -> None:
    refresh(copy, tmp_path / "own")
    fresh = read(tmp_path / "own")
    pascal = SolveRequest(gpus=("10de:1b80",), distro="debian:13")
    drivers = [solve(pascal, known).driver for known in (load_knowledge(), fresh)]
    assert [driver and driver.branch for driver in drivers] == [550, 580]
    unread = SolveRequest(gpus=("10de:2330",), distro="debian:12", driver=DriverSpec(branch="625"))
    assert solve(unread, fresh).driver is None, "625 is known, and its repository for Debian 12 was not read"


def test_one_distribution_reads_one_repository(copy: Path, tmp_path: Path) -> None:
    answer = refresh(copy, tmp_path / "own", "--distro", "fedora:43")
    assert not re.search("^not read: .*/repos/", answer, re.M)


@pytest.mark.parametrize(
    ("words", "exit", "says"),
    [
        (("--from", "NOWHERE"), 2, "is no folder"),
        (("--from", "EMPTY"), 1, "nothing could be read from"),
        (("--from", "EMPTY", "--distro", "debain:13"), 2, "one of ubuntu:20.04"),
        ((), 2, "nothing to refresh from"),
    ],
)
def test_a_place_with_nothing_is_refused_and_nothing_is_written(
    words: tuple[str, ...], exit: int, says: str, tmp_path: Path
) -> None:
    (tmp_path / "EMPTY").mkdir()
    given = [str(tmp_path / word) if word.isupper() else word for word in words]
    done = CliRunner().invoke(command, [*given, "-o", str(tmp_path / "own")], standalone_mode=False)
    assert isinstance(done.exception, GpunodeError) and says in str(done.exception)
    assert done.exception.exit == exit
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"580": 1}', '{"580": {"type": "lts branch", "driver_info": [{}]}}'])
def test_a_list_of_another_form_is_bad_input(text: str) -> None:
    with pytest.raises(InputError):
        parse_releases(text)
    with pytest.raises(InputError):
        parse_redistrib(text)


def test_what_canonical_builds_for_is_read_from_its_archive() -> None:
    """A flavour counts where its newest kernel takes the driver that the archive has."""
    common = {"nvidia-kernel-common-595-server": {"Version": "595.91.07-0ubuntu0.24.04.1"}}

    def kernel(release: str, version: str) -> dict[str, dict[str, str]]:
        needs = f"nvidia-kernel-common-595-server (<= {version}-1), nvidia-kernel-common-595-server (>= {version})"
        modules = f"linux-modules-nvidia-595-server-open-{release}", f"linux-modules-nvidia-595-server-{release}"
        return {f"linux-image-{release}": {}, modules[0]: {"Depends": needs}, modules[1]: {}}

    index = common | kernel("6.8.0-138-generic", "595.71.05") | kernel("6.8.0-151-generic", "595.91.07")
    index |= kernel("6.14.0-37-generic", "595.71.05") | {"linux-image-6.8.0-1030-oem": {}}
    tables = tomllib.loads(update_own(knowledge_text("repos"), {"ubuntu:24.04": index}))
    [row] = [row for row in tables["distros"] if row["keys"] == ["ubuntu:24.04"]]
    assert (row["own"], row["built_for"]) == ([595], {"6.8": ["generic"]})


def test_the_branches_of_debians_own_driver_are_read_from_its_archive() -> None:
    held = {"nvidia-driver": "550.163.01-2", "nvidia-tesla-535-driver": "535.309.01-1"}
    tables = tomllib.loads(update_debian(knowledge_text("repos"), {"debian:12": held, "debian:13": held}))
    own = {row["keys"][0]: row.get("own") for row in tables["distros"]}
    assert own["debian:12"] == [535, 550], "470 has gone, 550 has come"
    assert own["debian:13"] == [550], "a branch that nobody chose stays out"


def test_nothing_becomes_older() -> None:
    text, day = knowledge_text("drivers"), "2026-12-01"
    row = {"type": "production branch", "driver_info": [{"release_version": "595.1"}]}
    there = [Held(branches={595: "595.45.04", 12: "12.1"})]
    assert update_drivers(text, parse_releases(json.dumps({"595": row})), [], there, today=day) == (text, [])
    cuda, old = knowledge_text("cuda"), parse_redistrib(redistrib("cuda", "12.7.9", "565.1", ""))
    assert update_cuda(cuda, [old], today=day) == (cuda, [])
    repos = knowledge_text("repos")
    assert update_repos(repos, {}, [Held(toolkit="1.0.0")], today=day) == (repos, [])


def test_what_a_repository_holds_is_read_off_its_packages() -> None:
    names = {
        "nvidia-open": ("3:595.99.02-1.el9", "3:595.71.05-1.el9"),
        "cuda-drivers-580": ("580.178.04-1",),
        "kmod-nvidia-latest-dkms": ("3:570.211.01-1.el9",),
        "nvidia-open-kernel-source": ("1-1",),
        "cuda-toolkit-12-8": ("12.8.1-1",),
        "cuda-toolkit-12-10": ("12.10.0-1",),
        "cuda-toolkit-config-common": ("1-1",),
        "nvidia-container-toolkit": ("1.9.0-1", "1.18.2-1"),
    }
    found = held(names, date="2026-11-04")
    assert found.branches == {570: "570.211.01", 580: "580.178.04", 595: "595.99.02"}
    assert (found.cuda, found.toolkit) == (("12.8", "12.10"), "1.18.2")
    assert parse_listing("redistrib_12.9.1.json redistrib_12.10.0.json x.json") == ("12.9.1", "12.10.0")


def test_a_new_gpu_has_the_marks_of_compatible_ones() -> None:
    gpus = [
        PciGpu(id="10de:31c4", chip="GB110", name="GB300 288GB", source="p"),
        PciGpu(id="10de:233e", chip="GH100", name="H100 SXM5 120GB", source="p"),
        PciGpu(id="10de:2349", chip="GH100", name="GH200 96GB", source="p"),
        PciGpu(id="10de:26bc", chip="AD102", name="L40Z", source="p"),
    ]
    text, added, unknown = add_gpus(knowledge_text("gpus"), gpus, load_knowledge(), sources={"p": "a list"})
    assert (len(added), unknown) == (4, [])
    fresh = parse_knowledge(**knowledge_tables() | {"gpus": tomllib.loads(text)}).gpus
    marks = {gpu.id: (fresh[gpu.id].mig, fresh[gpu.id].fabric, fresh[gpu.id].open) for gpu in gpus}
    assert marks == {
        "10de:31c4": ("chip", "imex", "only"),
        "10de:233e": ("chip", "nvswitch", "yes"),
        "10de:2349": ("chip", "", "only"),
        "10de:26bc": ("", "", "yes"),
    }


# ---------------------------------------------------------------- keys, DCGM, charts

KEY = Path(__file__).parents[1] / "cases/keys/one.asc"
PLUGIN = """apiVersion: v1
entries:
  nvidia-device-plugin:
    - {version: 0.21.0, appVersion: 0.21.0}
    - {version: 0.22.0-rc.1, appVersion: 0.22.0-rc.1}
    - {version: 0.9.0, appVersion: 0.9.0}
"""


def test_the_newest_dcgm_is_read_off_the_repositories(copy: Path, tmp_path: Path) -> None:
    apt_index(copy / REPOS / "debian13/x86_64", [("datacenter-gpu-manager-4-core", "1:4.10.0-1")])
    refresh(copy, tmp_path / "own", "--distro", "debian:13")
    assert read(tmp_path / "own").packages["dcgm"]["newest"] == "4.10.0"


def test_charts_and_the_images_that_follow_them_are_refreshed(copy: Path, tmp_path: Path) -> None:
    (copy / "nvidia.github.io/k8s-device-plugin").mkdir(parents=True)
    (copy / "nvidia.github.io/k8s-device-plugin/index.yaml").write_text(PLUGIN)
    answer = refresh(copy, tmp_path / "own")
    table = tomllib.loads((tmp_path / "own/kubernetes.toml").read_text())
    versions = {row["name"]: row["version"] for row in table["charts"]}
    images = {row["component"]: row["image"] for row in table["images"]}
    assert versions["nvidia-device-plugin"] == "0.21.0"
    assert images["gpu-feature-discovery"] == "nvcr.io/nvidia/k8s-device-plugin:v0.21.0"
    before = tomllib.loads(knowledge_text("kubernetes"))
    same = {row["component"]: row["image"] for row in before["images"]}
    assert {name for name in images if images[name] != same[name]} == {
        "nvidia-device-plugin", "gpu-feature-discovery", "mps-control-daemon",
    }  # fmt: skip
    assert parse_kube_knowledge(table, {}).charts["nvidia-device-plugin"].version == "0.21.0"
    assert re.search("^not read: .*helm.ngc.nvidia.com", answer, re.M)


def test_charts_and_images_of_registries_are_refreshed_by_their_tags(copy: Path, tmp_path: Path) -> None:
    listed = {
        "registry.k8s.io/v2/nfd/charts/node-feature-discovery": ["0.19.0", "0.20.0-rc.1", "0.19.10", "0.9.0"],
        "registry.k8s.io/v2/nfd/node-feature-discovery": ["v0.19.10", "v0.19.10-full", "master", "v0.20.0-devel"],
        "nvcr.io/v2/nvidia/k8s/dcgm-exporter": [
            "4.10.0-4.9.0-distroless",
            "4.10.0-4.9.0-ubi9",
            "4.6.1-4.8.4-distroless",
        ],
        "registry.k8s.io/v2/dra-driver-nvidia/dra-driver-nvidia-gpu": ["v0.4.0", 5, None],
    }
    for name, tags in listed.items():
        (copy / name / "tags").mkdir(parents=True)
        (copy / name / "tags/list").write_text(json.dumps({"name": name.partition("/v2/")[2], "tags": tags}))
    (copy / "registry.k8s.io/v2/dra-driver-nvidia/charts/dra-driver-nvidia-gpu/tags").mkdir(parents=True)
    (copy / "registry.k8s.io/v2/dra-driver-nvidia/charts/dra-driver-nvidia-gpu/tags/list").write_text("[]")
    answer = refresh(copy, tmp_path / "own")
    kube = answer[answer.index("+++ kubernetes.toml") if "+++ kubernetes.toml" in answer else 0 :]
    added = re.findall(r'^\+(?:version|image) = "(.*)"', kube, re.M)
    assert {one for one in added if "0.19.10" in one or "dcgm-exporter" in one} == {
        "0.19.10",
        "registry.k8s.io/nfd/node-feature-discovery:v0.19.10",
        "nvcr.io/nvidia/k8s/dcgm-exporter:4.10.0-4.9.0-distroless",
    }
    assert "dra-driver-nvidia-gpu/tags/list is no JSON object" in answer


def test_a_chart_never_becomes_older() -> None:
    text = knowledge_text("kubernetes")
    old = {"gpu-operator": ChartRelease(version="v26.3.0", app="v26.3.0")}
    assert update_kubernetes(text, old, today="2026-12-01") == (text, [])


@pytest.mark.parametrize("text", ["", "[", "[]", "entries: 1", "entries: {a: [1]}", "entries: {a: [{}]}"])
def test_an_index_of_charts_of_another_form_is_bad_input(text: str) -> None:
    with pytest.raises(InputError):
        parse_chart(text, "a")


def test_a_new_key_of_a_directory_is_taken_with_its_fingerprint(copy: Path, tmp_path: Path) -> None:
    served = fingerprint(KEY.read_bytes())
    (copy / REPOS / f"debian13/x86_64/{served[-8:]}.pub").write_bytes(KEY.read_bytes())
    answer = refresh(copy, tmp_path / "own", "--distro", "debian:13")
    fresh = read(tmp_path / "own")
    assert fresh.keys[served[-8:]].fingerprint == served and fresh.distros["debian:13"].signed_by == served[-8:]
    assert "compared with nothing else" in fresh.keys[served[-8:]].source
    assert f'+signed_by = "{served[-8:]}"' in answer


def test_a_key_that_is_known_is_never_exchanged(copy: Path, tmp_path: Path) -> None:
    (copy / REPOS / "debian13/x86_64/8793F200.pub").write_bytes(KEY.read_bytes())
    answer = refresh(copy, tmp_path / "own", "--distro", "debian:13")
    fresh, known = read(tmp_path / "own"), load_knowledge()
    assert fresh.keys == known.keys and fresh.distros["debian:13"].signed_by == "8793F200"
    assert re.search("^not read: .*8793F200.pub has fingerprint.*not taken", answer, re.M)


def test_a_key_whose_name_is_not_its_own_is_left_out() -> None:
    text = knowledge_text("repos")
    keys = {"debian13": [ServedKey(id="0BADC0DE", fingerprint="A" * 40)]}
    assert update_repos(text, {}, [], today="2026-12-01", keys=keys) == (text, [])
