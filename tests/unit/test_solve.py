"""The solver on tables of requests (tests/cases/solve/*.toml), and on arbitrary ones."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rows import over

from gpunode.cli.main import cli
from gpunode.core.errors import InputError
from gpunode.core.model import (
    Archive,
    ConfigFile,
    Distro,
    InstalledPackage,
    Kernel,
    NodeFacts,
    Offer,
    PackageWant,
    PciDevice,
    Solution,
)
from gpunode.core.solve import SolveRequest, find_gpu, parse_driver, request_of, solution_data, solve
from gpunode.core.solve.archive import names_to_ask
from gpunode.core.solve.families import header_packages
from gpunode.core.spec import CudaSpec, DriverSpec, SourceSpec, Spec, parse_spec
from gpunode.core.spec.toolkit import ToolkitConfigSpec, ToolkitSpec
from gpunode.edge.load import load_knowledge

CASES = [
    case
    for path in sorted((Path(__file__).parents[1] / "cases" / "solve").glob("*.toml"))
    for case in tomllib.loads(path.read_text())["case"]
]
KNOWLEDGE = load_knowledge()


def request(ask: dict[str, Any]) -> SolveRequest:
    """A row's `ask` as a request; words are those of the command line."""
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in ask.items()}
    fields["kernels"] = tuple(Kernel(release=k, image=True) for k in ask.get("kernels", ()))
    fields["driver"] = replace(parse_driver(ask.get("driver", "auto")), modules=fields.pop("modules", "auto"))
    fields["cuda"] = CudaSpec(versions=tuple(ask.get("cuda", ())))
    fields["toolkit"] = ToolkitSpec(
        version=ask.get("toolkit", "auto"), config=ToolkitConfigSpec(mode=fields.pop("toolkit_mode", None))
    )
    return SolveRequest(**fields)


def words(packages: tuple[PackageWant, ...]) -> list[str]:
    return [f"{p.name}={p.version}" if p.version else p.name for p in packages]


def answer(solution: Solution, expect: dict[str, Any]) -> dict[str, Any]:
    """The solution in the words of a row's `expect`; of sentences only whether one holds the expected text."""
    driver, cuda, toolkit = solution.driver, solution.cuda, solution.toolkit
    repository = next((r for r in solution.repositories if driver and r.name == driver.repository), None)
    found: dict[str, Any] = {
        "driver": f"{driver.branch} {driver.flavour}" if driver else "none",
        "cuda": words(cuda.packages) if cuda else [],
        "toolkit": toolkit.version if toolkit else "none",
        "toolkit_packages": words(toolkit.packages) if toolkit else [],
        "toolkit_remove": list(toolkit.remove) if toolkit else [],
        "repository": repository.url if repository else "",
        "fingerprint": repository.fingerprint if repository else "",
        "toolkit_repository": next(
            (r.url for r in solution.repositories if toolkit and r.name == toolkit.repository), ""
        ),
    }
    if driver:
        found |= {
            "version": driver.version,
            "repositories": words(driver.repository_packages),
            "builder": driver.builder,
            "packages": words(driver.packages),
            "headers": words(driver.kernel_packages),
            "services": list(driver.services),
            "modules": list(driver.modules),
            "remove": list(driver.remove),
            "stream": driver.stream,
            "pin": driver.pin,
        }
    sentences = {
        "reason": [r.why for r in solution.reasons],
        "problem": [p.what for p in solution.problems],
        "fix": [p.fix for p in solution.problems],
    }
    for key, texts in sentences.items():
        wanted = expect.get(key, "")
        found[key] = wanted if any(wanted in text for text in texts) else texts
    return {key: found[key] for key in expect}


@over(CASES, name=lambda case: str(case["ask"]))
def test_the_solver_answers_as_the_table_says(case: dict[str, Any]) -> None:
    solution = solve(request(case["ask"]), KNOWLEDGE)
    assert answer(solution, case["expect"]) == case["expect"]
    if "problem" not in case["expect"]:
        assert solution.problems == ()


@over(CASES, name=lambda case: str(case["ask"]))
def test_every_answer_says_why_and_every_refusal_what_to_do(case: dict[str, Any]) -> None:
    solution = solve(request(case["ask"]), KNOWLEDGE)
    assert all(r.what and r.why for r in solution.reasons)
    assert all(p.what and p.fix for p in solution.problems)
    assert solution.reasons or solution.problems
    assert (solution.driver is not None) <= any(r.what == "branch" for r in solution.reasons)


@pytest.mark.parametrize("driver", ["550-proprietary", "580.95.05-proprietary", "580.178.04-open"])
def test_the_proprietary_modules_resize_no_bar(driver: str) -> None:
    """Of Debian's 550.163.01 and Ubuntu's 580.178.04 only the open ones call pci_resize_resource (nv-pci.c)."""
    later = Kernel(release="6.12.118+deb12-amd64", image=True)
    asked = SolveRequest(gpus=("10de:2330",), distro="debian:12", driver=parse_driver(driver), kernels=(later,))
    assert not any("does not compile" in reason.why for reason in solve(asked, KNOWLEDGE).reasons)


def test_a_package_manager_that_judges_the_transaction_decides_on_a_branch_that_is_asked_for() -> None:
    """The table of NVIDIA's repository for EL 9 does not have 510; dnf is asked before the plan is shown."""
    asked = SolveRequest(
        gpus=("10de:2204",), distro="rocky:9", driver=parse_driver("510-proprietary"), cuda=CudaSpec(versions=("11.6",))
    )
    known = solve(asked, KNOWLEDGE)
    assert ["is not in NVIDIA's repository for rocky:9" in p.what for p in known.problems][:1] == [True]
    solution = solve(replace(asked, package_manager="dnf"), KNOWLEDGE)
    assert solution.problems == () and solution.driver and solution.driver.branch == 510
    assert any("whether it has 510, the package manager says" in r.why for r in solution.reasons)
    newest = replace(asked, distro="kylin:V10", driver=DriverSpec(), cuda=CudaSpec(versions=("newest",)))
    chosen = solve(replace(newest, package_manager="dnf"), KNOWLEDGE).cuda
    assert chosen and chosen.version == "13.0", "what nobody asked for by name is taken from the table"


def test_the_name_of_a_generation_is_that_of_its_models() -> None:
    with pytest.raises(InputError, match="'Rubin' is a name of") as error:
        find_gpu("Rubin", KNOWLEDGE)
    assert "10de:3002 GR100" in error.value.fix


CUDA = st.from_regex(r"[0-9]{1,3}\.[0-9]{1,3}", fullmatch=True) | st.sampled_from(sorted(KNOWLEDGE.cuda))
SPELLINGS = (
    st.sampled_from(sorted(KNOWLEDGE.gpus)) | st.text(max_size=12) | st.from_regex(r"10de:[0-9a-f]{4}", fullmatch=True)
)


@given(
    gpus=st.lists(SPELLINGS, max_size=4),
    distro=st.sampled_from(sorted(KNOWLEDGE.distros)) | st.text(max_size=12),
    arch=st.sampled_from(("x86_64", "aarch64", "riscv64", "")),
    kernels=st.lists(st.text(max_size=20) | st.sampled_from(("6.1.0-50-amd64", "3.10", "6.8.0-1-generic")), max_size=3),
    branch=st.sampled_from(("auto", "none", "distro", "999", *map(str, KNOWLEDGE.branches))),
    version=st.sampled_from(("", "580.95.05", "470.1")),
    flavour=st.sampled_from(("auto", "open", "proprietary")),
    method=st.sampled_from(("auto", "packages", "runfile", "preinstalled")),
    cuda=st.lists(CUDA, max_size=2),
    toolkit=st.text(max_size=8) | st.sampled_from(("auto", "none", "1.18.1")),
    switches=st.booleans(),
    secure_boot=st.sampled_from((None, False, True)),
)  # fmt: skip
def test_no_request_makes_the_solver_raise(
    gpus: list[str], distro: str, arch: str, kernels: list[str], branch: str, version: str, flavour: Any, method: Any,
    cuda: list[str], toolkit: str, switches: bool, secure_boot: bool | None,
) -> None:  # fmt: skip
    solution = solve(
        SolveRequest(
            gpus=tuple(gpus),
            distro=distro,
            arch=arch,
            kernels=tuple(Kernel(release=k, image=True) for k in kernels),
            driver=DriverSpec(branch=branch, version=version, flavour=flavour, method=method),
            cuda=CudaSpec(versions=tuple(cuda)),
            toolkit=ToolkitSpec(version=toolkit),
            nvswitches=("10de:22a3",) if switches else (),
            secure_boot=secure_boot,
        ),
        KNOWLEDGE,
    )
    json.dumps(solution_data(solution))


@pytest.mark.parametrize("distro", KNOWLEDGE.solved_distros())
def test_every_gpu_is_solved_or_refused_on_every_distribution(distro: str) -> None:
    # one GPU of all that only their names tell apart
    alike = {
        replace(m, id="", name="", chip="", source="", confidence=""): pci_id for pci_id, m in KNOWLEDGE.gpus.items()
    }
    for model, pci_id in alike.items():
        solution = solve(SolveRequest(gpus=(pci_id,), distro=distro), KNOWLEDGE)
        if model.kind != "not-a-gpu":
            assert (solution.driver is None) == bool(solution.problems), pci_id
        if solution.driver:
            assert solution.driver.flavour != "open" or model.open != "no"
            assert solution.driver.flavour == "open" or model.open != "only"


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("auto", DriverSpec()),
        ("580", DriverSpec(branch="580")),
        ("580-open", DriverSpec(branch="580", flavour="open")),
        ("580.178.04", DriverSpec(branch="580", version="580.178.04")),
        ("565.77-proprietary", DriverSpec(branch="565", version="565.77", flavour="proprietary")),
        ("open", DriverSpec(flavour="open")),
        ("proprietary", DriverSpec(flavour="proprietary")),
        ("distro", DriverSpec(branch="distro")),
        ("none", DriverSpec(branch="none")),
    ],
)
def test_the_driver_word_of_the_command_line_becomes_a_spec(text: str, spec: DriverSpec) -> None:
    assert parse_driver(text) == spec


@pytest.mark.parametrize(
    ("text", "says"), [("opne", "'open'"), ("58", "solve"), ("580-closed", "solve"), ("", "solve")]
)
def test_a_driver_word_that_means_nothing_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        parse_driver(text)
    assert says in error.value.fix


@pytest.mark.parametrize(
    ("text", "pci_id"),
    [
        ("10de:2330", "10de:2330"),
        ("10DE:2330", "10de:2330"),
        ("2330", "10de:2330"),
        ("H100 PCIe", "10de:2331"),
        ("nvidia b200", "10de:2901"),
        ("Tesla T4", "10de:1eb8"),
        ("8086:0000", "8086:0000"),
        ("9999", "10de:9999"),
    ],
)
def test_a_gpu_is_found_by_id_or_name(text: str, pci_id: str) -> None:
    assert find_gpu(text, KNOWLEDGE) == pci_id


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A100", "10de:20b5 NVIDIA A100 80GB PCIe"),
        ("4090", "10de:2684 NVIDIA GeForce RTX 4090"),
        ("H100 PCIi", "h100 pcie"),
        ("xyzzy", "lspci"),
        ("", "lspci"),
    ],
)
def test_a_gpu_that_is_none_or_several_is_refused_with_what_is_near(text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        find_gpu(text, KNOWLEDGE)
    assert says in error.value.fix


FACTS = NodeFacts(
    arch="x86_64",
    distro=Distro(id="debian", version_id="12"),
    kernels=(
        Kernel(release="6.1.0-50-amd64", running=True, image=True, module="580.95.05"),
        Kernel(release="6.1.0-40-amd64"),  # its image is gone: it cannot boot
    ),
    gpus=(PciDevice(slot="0000:17:00.0", id="10de:2330", class_code="0302"),),
    packages={"nvidia-docker2": InstalledPackage(name="nvidia-docker2", version="2.14.0-1")},
    files={"/etc/apt/sources.list": ConfigFile(path="/etc/apt/sources.list", data=b"deb http://x/ bookworm main\n")},
)


NEAR = {
    "h10": "did you mean 'h100'",
    "rtx 5009": "did you mean 'geforce rtx 5090'",
    "A100 PCI": "did you mean 'a100 80gb pcie' or 'a100-pcie-40gb'",
    "RTX 9999": "lspci -nn -d 10de:",
    "quantum": "lspci -nn -d 10de:",
    "UNKNOWN": "lspci -nn -d 10de:",
}


@over(NEAR.items())
def test_an_unknown_gpu_gets_names_that_are_near_and_no_others(text: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        find_gpu(text, KNOWLEDGE)
    assert caught.value.fix.startswith(fix) and "lspci -nn" in caught.value.fix


def test_the_request_of_a_node_names_what_can_boot_and_what_is_installed() -> None:
    found = request_of(FACTS, Spec(toolkit=ToolkitSpec(version="1.18.1")))
    assert found == SolveRequest(
        gpus=("10de:2330",),
        distro="debian:12",
        kernels=(Kernel(release="6.1.0-50-amd64", running=True, image=True),),
        installed=("nvidia-docker2",),
        components=("main",),
        toolkit=ToolkitSpec(version="1.18.1"),
    )


def test_components_are_read_from_deb822_sources_too() -> None:
    text = b"Types: deb\nURIs: http://x/\nSuites: trixie\nComponents: main contrib\n"
    path = "/etc/apt/sources.list.d/debian.sources"
    facts = replace(FACTS, files={path: ConfigFile(path=path, data=text)})
    assert request_of(facts, Spec()).components == ("contrib", "main")


def test_a_driver_that_is_there_is_left_alone_when_the_spec_says_so() -> None:
    asked = SolveRequest(
        gpus=("10de:2330",),
        distro="debian:12",
        loaded_driver="570.211.01",
        driver=DriverSpec(method="preinstalled"),
    )
    driver = solve(asked, KNOWLEDGE).driver
    assert driver is not None
    assert (driver.method, driver.branch, driver.version, driver.packages) == ("preinstalled", 570, "570.211.01", ())


def test_packages_of_the_driver_are_held_unless_the_spec_says_otherwise() -> None:
    asked = SolveRequest(gpus=("10de:2330",), distro="debian:12")
    for hold in (True, False):
        driver = solve(replace(asked, driver=DriverSpec(hold=hold)), KNOWLEDGE).driver
        assert driver is not None
        assert {p.hold for p in driver.packages} == {hold}


def test_a_mirror_takes_the_place_of_the_vendor_with_its_own_fingerprint() -> None:
    mirror = SourceSpec(url="http://mirror/cuda/", key="/k.asc", fingerprint="aa" * 20)
    asked = SolveRequest(gpus=("10de:2330",), distro="debian:12", sources={"nvidia-cuda": mirror})
    cuda, toolkit = solve(asked, KNOWLEDGE).repositories
    assert (cuda.url, cuda.fingerprint, cuda.suite) == ("http://mirror/cuda/", "AA" * 20, "/")
    assert toolkit.fingerprint == "C95B321B61E88C1809C4F759DDCAE044F796ECB0"


def test_a_mirror_for_a_repository_that_does_not_exist_is_a_problem() -> None:
    asked = SolveRequest(gpus=("10de:2330",), distro="debian:12", sources={"nvidia-cudo": SourceSpec(url="http://x/")})
    (problem,) = solve(asked, KNOWLEDGE).problems
    assert (problem.what, problem.fix) == (
        "sources.nvidia-cudo: there is no such repository",
        "did you mean 'nvidia-cuda'?",
    )


def test_the_command_prints_the_documented_json() -> None:
    result = CliRunner().invoke(
        cli, ["solve", "--gpu", "10de:2330", "--distro", "ubuntu:24.04", "--cuda", "12.8", "--format", "json"]
    )
    data = json.loads(result.output)
    assert result.exit_code == 0
    assert list(data) == ["driver", "cuda", "toolkit", "reasons", "problems"]
    assert data["driver"] == {
        "branch": 620,
        "flavour": "open",
        "version": "620.70.06",
        "method": "packages",
        "packages": ["linux-headers-generic", "nvidia-driver-pinning-620", "nvidia-open"],
        "repository": "nvidia-cuda",
    }
    assert data["cuda"] == {
        "version": "12.8",
        "packages": ["cuda-toolkit-12-8"],
        "method": "packages",
        "repository": "nvidia-cuda",
    }
    assert data["toolkit"]["version"] == "1.20.1"
    assert all(set(r) == {"what", "why", "source"} for r in data["reasons"])
    assert data["problems"] == []


def test_the_command_exits_5_with_problems_and_still_prints_the_json() -> None:
    arguments = ["solve", "--gpu", "10de:1b80", "--distro", "debian:12", "--driver", "open", "--format", "json"]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    data = json.loads(result.output)
    assert result.return_value == 5
    assert data["driver"] is None
    assert [set(p) for p in data["problems"]] == [{"what", "fix"}]


@pytest.mark.parametrize(
    ("words", "chosen"),
    [(["--distro", "ubuntu:23.10"], False), (["--distro", "debian:12", "--cuda", "11.0"], True)],
)
def test_a_refusal_comes_first_and_nothing_is_said_of_what_was_not_chosen(words: list[str], chosen: bool) -> None:
    printed = CliRunner().invoke(cli, ["solve", "--gpu", "10de:2330", *words]).stdout
    assert printed.startswith("problem: ") and "\n  do next: " in printed
    assert ("\n\ndriver " in printed) is chosen and ("\ncuda " in printed) is chosen


def test_an_nvswitch_may_be_named_like_a_gpu() -> None:
    result = CliRunner().invoke(cli, ["solve", "--gpu", "10de:2330", "--gpu", "10de:22a3", "--distro", "debian:12"])
    assert result.exit_code == 0
    assert "nvidia-fabricmanager=620.*" in result.output


def test_an_answer_without_a_node_says_how_old_it_is_and_that_nobody_was_asked() -> None:
    words = ["solve", "--gpu", "10de:2330", "--distro", "ubuntu:24.04", "--kernel", "6.8.0-151-generic"]
    theirs = CliRunner().invoke(cli, words).output
    assert "620 open, the newest, 620.70.06 as far as known" in theirs and "as of 2026-11-09, not asked" in theirs
    own = CliRunner().invoke(cli, [*words, "--secure-boot"]).output
    assert "as of 2026-11-24, not asked" in own and "595.99.02" not in own.partition("\n")[0], (
        "Ubuntu has its own version of 595"
    )


@pytest.mark.parametrize(
    ("branch", "loaded", "installed", "goes"),
    [
        (
            "580",
            "595.91.07",
            ("nvidia-driver-pinning-595", "nvidia-open"),
            {"nvidia-driver-pinning-595", "nvidia-open"},
        ),
        ("580", "580.95.05", ("nvidia-open",), set()),
        ("595", "580.95.05", ("nvidia-open-580",), {"nvidia-open-580"}),
        ("595", "595.91.07", ("nvidia-open", "nvidia-container-toolkit"), set()),
    ],
)
def test_packages_that_keep_another_branch_are_removed(
    branch: str, loaded: str, installed: tuple[str, ...], goes: set[str]
) -> None:
    spec = DriverSpec(branch=branch)
    request = SolveRequest(
        gpus=("10de:2330",), distro="debian:12", installed=installed, driver=spec, loaded_driver=loaded
    )
    driver = solve(request, load_knowledge()).driver
    assert driver is not None
    assert set(driver.remove) == goes


def test_auto_stays_on_the_installed_branch_while_it_is_supported() -> None:
    request = SolveRequest(gpus=("10de:2330",), distro="debian:12", loaded_driver="580.95.05")
    old = SolveRequest(gpus=("10de:2330",), distro="debian:12", loaded_driver="550.163.01")
    chosen = [solve(r, load_knowledge()).driver for r in (request, old)]
    assert [c and c.branch for c in chosen] == [580, 620]


ASK = ["solve", "--gpu", "10de:2330", "--distro", "ubuntu:24.04", "--format", "json"]


def answered(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, [*ASK, *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_the_file_says_what_no_option_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert answered()["driver"]["branch"] != 570
    text = 'driver: {branch: "570"}\ncuda: {versions: ["12.8"]}\ntoolkit: {version: none}\n'
    (tmp_path / "mine.yml").write_text(text)
    found = answered("-c", "mine.yml")
    assert (found["driver"]["branch"], found["cuda"]["version"], found["toolkit"]) == (570, "12.8", None)
    found = answered("-c", "mine.yml", "--driver", "580", "--toolkit", "auto")
    assert (found["driver"]["branch"], found["cuda"]["version"]) == (580, "12.8") and found["toolkit"]
    (tmp_path / "gpunode.yml").write_text(text)
    assert answered()["driver"]["branch"] == 570


def test_a_version_is_read_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpunode.yml").write_text("cuda: {versions: [12.10]}\n")
    result = CliRunner().invoke(cli, ASK)
    assert "12.10" in result.output and "12.1 " not in result.output.replace("12.10", "")
    with pytest.raises(InputError, match=r"cuda\.versions\[0\] is the number 12\.1"):
        parse_spec({"cuda": {"versions": [12.10]}})


def test_a_name_that_several_models_share_is_said_to_be_one_of_them() -> None:
    result = CliRunner().invoke(cli, ["solve", "--gpu", "H100", "--distro", "ubuntu:24.04", "--format", "json"])
    taken = find_gpu("H100", KNOWLEDGE)
    assert f"H100 is {taken}" in result.stderr and "10de:2330" in result.stderr
    assert json.loads(result.stdout)
    assert CliRunner().invoke(cli, ASK).stderr == ""


@pytest.mark.parametrize(
    ("distro", "release", "package", "headers"),
    [
        ("rocky:9", "6.12.30-1.el9.elrepo.x86_64", "kernel-lt-core", "kernel-lt-devel-6.12.30-1.el9.elrepo.x86_64"),
        ("rocky:9", "6.18.2-1.el9.elrepo.x86_64", "kernel-ml", "kernel-ml-devel-6.18.2-1.el9.elrepo.x86_64"),
        ("ol:9", "6.12.0-1.el9uek.aarch64+64k", "kernel-uek64k-core", "kernel-uek64k-devel-6.12.0-1.el9uek.aarch64"),
        ("azurelinux:3", "6.6.92.2-2.azl3", "kernel-hwe", "kernel-hwe-devel-6.6.92.2-2.azl3"),
        ("arch", "6.19.1-2-cachyos-lts", "linux-cachyos-lts", "linux-cachyos-lts-headers"),
    ],
)
def test_the_package_that_owns_a_kernel_names_its_headers(
    distro: str, release: str, package: str, headers: str
) -> None:
    wants = header_packages(KNOWLEDGE.distros[distro], Kernel(release=release, image=True, package=package))
    assert wants[0].name == headers
    assert "kernel-devel-matched" not in [want.name for want in wants], "that is the plain kernel's"


def test_a_name_is_whole_before_it_is_a_part_of_others() -> None:
    assert find_gpu("RTX 3090", KNOWLEDGE) == "10de:2204"
    assert find_gpu("geforce rtx 3090 ti", KNOWLEDGE) == "10de:2203"


def test_sources_are_printed_where_they_are_asked_for() -> None:
    asked = ["solve", "--gpu", "10de:2330", "--distro", "debian:12"]
    short, long = (CliRunner().invoke(cli, [*asked, *more]).output for more in ([], ["-vv"]))
    source = "\n      "  # the line below a reason
    assert source not in short.partition("\nwhy")[2] and source in long.partition("\nwhy")[2]


HWE = "generic-hwe-24.04"
LOST = [  # a kernel whose headers the archive has no more, what metapackages it has, which one comes
    ("ubuntu:24.04", "6.17.0-99-generic", {"generic": "6.8.0-60.63", HWE: "7.0.0-44.44"}, HWE),
    ("ubuntu:24.04", "6.17.0-99-generic", {"generic": "6.8.0-60.63", HWE: "6.17.0-14.14"}, ""),
    ("ubuntu:24.04", "6.8.0-31-generic", {"generic": "6.8.0-60.63"}, "generic"),
    ("ubuntu:24.04", "6.14.0-1012-aws", {"aws": "6.17.0-1010.10"}, "aws"),
    ("debian:12", "6.12.9+bpo-amd64", {"amd64": "6.1.178-1"}, ""),
    ("debian:12", "6.1.0-10-amd64", {"amd64": "6.1.178-1"}, "amd64"),
]  # fmt: skip


@pytest.mark.parametrize(("distro", "release", "there", "comes"), LOST)
def test_in_place_of_a_kernel_without_headers_one_comes_that_is_booted_before_it(
    distro: str, release: str, there: dict[str, str], comes: str
) -> None:
    row, old = KNOWLEDGE.distros[distro], "5.15.0-25-generic" if distro.startswith("ubuntu") else "5.10.0-8-amd64"
    kernels = (Kernel(release=release, running=True, image=True), Kernel(release=old, image=True))
    asked = SolveRequest(gpus=("10de:2330",), distro=distro, kernels=kernels)
    offers = [Offer(name=f"linux-{k}-{line}", version=v) for line, v in there.items() for k in ("image", "headers")]
    archive = Archive(asked=frozenset(names_to_ask(asked, KNOWLEDGE)), offers=tuple(offers))
    assert {offer.name for offer in offers} <= archive.asked, f"of {row.key} they would not be asked for"
    solution = solve(replace(asked, archive=archive), KNOWLEDGE)
    (driver, problems) = (solution.driver, [problem.what for problem in solution.problems])
    if comes:
        assert driver and (driver.without, problems) == ((release, old), [])
        assert [want.name for want in driver.kernel_packages] == [f"linux-{k}-{comes}" for k in ("image", "headers")]
    else:
        assert problems and f"the driver's module for kernel {release} cannot be built" in problems[0]


def test_a_kernel_of_mainline_is_none_of_ubuntus() -> None:
    for headers, problems in ((False, 1), (True, 0)):
        kernel = Kernel(release="6.18.3-061803-generic", image=True, headers=headers)
        asked = SolveRequest(gpus=("10de:2330",), distro="ubuntu:24.04", kernels=(kernel,))
        assert len(solve(asked, KNOWLEDGE).problems) == problems


@pytest.mark.parametrize(
    ("distro", "driver", "cuda", "offered"),
    [
        ("debian:13", "580", (), "nvidia-driver-pinning-580"),
        ("ubuntu:26.04", "580.178.04", (), "nvidia-driver-pinning-580"),
        ("ubuntu:24.04", "545", (), "cuda-drivers-545"),
        ("debian:12", "auto", ("12.2",), "cuda-toolkit-12-2"),
    ],
)
def test_what_is_known_of_nvidias_repository_refuses_nothing_that_the_nodes_lists_or_a_mirror_may_have(
    distro: str, driver: str, cuda: tuple[str, ...], offered: str
) -> None:
    asked = SolveRequest(
        gpus=("10de:2330",), distro=distro, driver=parse_driver(driver), cuda=CudaSpec(versions=cuda), secure_boot=False
    )
    names = frozenset(names_to_ask(asked, KNOWLEDGE))
    lacks = replace(asked, archive=Archive(asked=names))
    has = replace(asked, archive=Archive(asked=names, offers=(Offer(name=offered, version="1"),)))
    mirror = replace(asked, sources={"nvidia-cuda": SourceSpec(url="http://mirror/cuda/", fingerprint="AA" * 20)})
    assert offered in names
    assert [bool(solve(one, KNOWLEDGE).problems) for one in (asked, lacks, has, mirror)] == [True, True, False, False]
