"""The stand-in repositories, judged by the real apt, dpkg and kmod of this machine.

None of these needs a node: apt reads the repository by file:// into a root of its own.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpunode.core.remote import program
from gpunode.lab.packages import build_repository, built_once
from gpunode.lab.packages_elf import module_elf
from gpunode.node import script

needs_apt = pytest.mark.skipif(not (shutil.which("apt-get") and shutil.which("gpg")), reason="needs apt and gpg")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return build_repository(tmp_path_factory.mktemp("repository"), log=lambda _: None)


@pytest.fixture
def apt(repository, tmp_path):
    """Run apt in an empty root that knows the stand-ins for Debian 12 alone."""
    root = tmp_path / "root"
    for folder in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d"):
        (root / folder).mkdir(parents=True)
    (root / "status").touch()
    sources = [
        f"deb [signed-by={repository.directory / source.key}] "
        f"file://{repository.directory / source.path} {source.suite}\n"
        for source in repository.sources
        if source.distro in ("", "debian:12") and source.name != "non-free"
    ]
    # What comes from Debian itself.
    (root / "status").write_text(
        "".join(installed(name) for name in ("dkms", "kmod", "linux-compiler-gcc-12-x86", "make"))
    )
    (root / "sources.list").write_text("".join(sources))
    places = {
        "Dir::State": root / "state",
        "Dir::State::status": root / "status",
        "Dir::Cache": root / "cache",
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": root / "etc/preferences.d",
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
        "APT::Install-Recommends": "false",
        "Debug::NoLocking": "true",
    }
    (root / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in places.items()))

    def run(*words, **options):
        environment = os.environ | {"APT_CONFIG": str(root / "apt.conf"), "LC_ALL": "C.UTF-8"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, **options)
        return done.returncode, done.stdout + done.stderr

    run.root = root
    status, printed = run("apt-get", "update")
    assert status == 0 and "W:" not in printed, printed
    return run


def installed(name):
    fields = {"Package": name, "Status": "install ok installed", "Version": "999", "Architecture": "all"}
    return "".join(f"{key}: {value}\n" for key, value in fields.items()) + "Maintainer: x\nDescription: x\n\n"


def would_install(printed):
    return {line.split()[1]: line.split("(")[1].split()[0] for line in printed.splitlines() if line.startswith("Inst ")}


@needs_apt
def test_apt_refuses_a_repository_whose_bytes_were_changed(apt, repository, tmp_path):
    copy = tmp_path / "copy"
    source = next(source for source in repository.sources if source.name == "nvidia-container-toolkit")
    shutil.copytree(repository.directory / source.path, copy)
    release = copy / "InRelease"
    release.write_text(release.read_text().replace("Origin:", "Origin: not"))
    (copy / "Release.gpg").unlink()
    key = repository.directory / source.key
    (apt.root / "sources.list").write_text(f"deb [signed-by={key}] file://{copy} /\n")
    status, printed = apt("apt-get", "update")
    assert status != 0
    assert "BADSIG" in printed or "invalid" in printed


@needs_apt
def test_the_newest_driver_comes_without_a_pin_and_the_older_branch_with_its_pin(apt, repository):
    _, printed = apt("apt-get", "-s", "install", "nvidia-open")
    assert would_install(printed)["nvidia-kernel-open-dkms"] == "620.70.06-1"
    status, printed = apt("apt-get", "-s", "install", "nvidia-open-580")
    assert (status, "nvidia-driver (< 581) but 620.70.06-1 is to be installed" in printed) == (100, True)
    pin = unpacked(
        repository, "nvidia-driver-pinning-580_580.178.04-1_amd64.deb", "etc/apt/preferences.d/nvidia-driver-pin"
    )
    (apt.root / "etc/preferences.d/nvidia-driver-pin").write_bytes(pin)
    _, printed = apt("apt-get", "-s", "install", "nvidia-open-580")
    chosen = would_install(printed)
    assert {chosen["nvidia-open-580"], chosen["nvidia-kernel-open-dkms"], chosen["libcuda1"]} == {"580.178.04-1"}
    assert "nvidia-kernel-dkms" not in chosen


@needs_apt
def test_a_version_that_a_pin_of_the_node_forbids_is_no_offer(apt):
    request = {"ask": b"1\n", "names": b"nvidia-open\nnvidia-open-580\n", "check": b"1\n"}

    def offers():
        _, printed = apt("sh", "-s", input=program(script("packages.sh"), request))
        return {tuple(line.split()[2:4]) for line in printed.splitlines() if line.startswith("gpunode\toffer\t")}

    every = offers()
    (apt.root / "etc/preferences.d/own").write_text("Package: nvidia-open\nPin: version 620.*\nPin-Priority: -1\n")
    assert every - offers() == {("nvidia-open", "620.70.06-1")} and len(offers()) > 3


@needs_apt
@pytest.mark.parametrize("install", [b"nvidia-open - -\n", b""], ids=["a package", "what there is"])
def test_a_node_without_lists_reads_them_for_the_question_alone(apt, install):
    request = {"ask": b"1\n", "names": b"nvidia-open\n", "check": b"1\n", "install": install}
    lists = apt.root / "state/lists"
    shutil.rmtree(lists)
    lists.mkdir()
    status, printed = apt("sh", "-s", input=program(script("packages.sh"), request))
    assert {"gpunode\tfresh\t1", "gpunode\tresolved\t1"} <= {*printed.splitlines()}
    assert "gpunode\toffer\tnvidia-open 620.70.06-1" in printed and status == 0
    (apt.root / "sources.list").write_text("deb [trusted=yes] file:///nonexistent /\n")
    status, printed = apt("sh", "-s", input=program(script("packages.sh"), request))
    assert "gpunode\tunasked\tthe node has no lists of packages, and cannot read them: " in printed and status == 1
    assert list(lists.iterdir()) == []


@needs_apt
def test_the_pin_of_a_whole_version_brings_an_older_driver_with_all_that_belongs_to_it(apt, repository):
    deb = "nvidia-driver-pinning-580.95.05_580.95.05-1_amd64.deb"
    pin = unpacked(repository, deb, "etc/apt/preferences.d/nvidia-driver-pin")
    (apt.root / "etc/preferences.d/nvidia-driver-pin").write_bytes(pin)
    _, printed = apt("apt-get", "-s", "install", "nvidia-open-580")
    versions = {name: version for name, version in would_install(printed).items() if not name.startswith("dkms")}
    assert set(versions.values()) == {"580.95.05-1"}
    assert {"nvidia-kernel-open-dkms", "firmware-nvidia-gsp", "libnvidia-ml1"} <= set(versions)


@needs_apt
def test_open_and_proprietary_modules_are_not_installed_together(apt):
    status, printed = apt("apt-get", "-s", "install", "nvidia-kernel-open-dkms", "nvidia-kernel-dkms")
    assert (status, "Conflicts" in printed) == (100, True)


@needs_apt
def test_the_toolkit_at_an_older_version_needs_its_companions_at_that_version(apt):
    status, printed = apt("apt-get", "-s", "install", "nvidia-container-toolkit=1.18.1-1")
    assert (status, "nvidia-container-toolkit-base (= 1.18.1-1)" in printed) == (100, True)
    names = (
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    )
    status, printed = apt("apt-get", "-s", "install", *(f"{name}=1.18.1-1" for name in names))
    assert would_install(printed) == dict.fromkeys(names, "1.18.1-1")


@needs_apt
def test_every_package_can_be_installed_by_itself_when_it_is_the_newest(apt):
    _, printed = apt("apt-cache", "pkgnames")
    names = [name for name in printed.split() if name.startswith(("cuda-t", "nvidia-", "lib", "firmware-", "linux-"))]
    pinned = {"nvidia-open-570", "nvidia-open-580", "nvidia-kernel-dkms"}  # 620 has no proprietary modules
    # an id of each name: what is only in an older branch has its own test above
    failed = [name for name in names if name not in pinned and apt("apt-get", "-s", "install", name)[0] != 0]
    assert failed == []
    assert len(names) > 40


@needs_apt
def test_the_packages_of_a_new_node_are_the_first_kernel_without_the_newest(repository):
    names = [path.name for path in repository.base_packages("debian:12")]
    assert names[1:] == ["linux-image-6.1.0-50-amd64_6.1.176-1_amd64.deb", "linux-image-amd64_6.1.176-1_amd64.deb"]
    assert all(path.exists() for path in repository.base_packages("debian:13"))


@needs_apt
def test_every_stub_says_that_it_is_one(repository):
    for package in repository.directory.rglob("*.deb"):
        shown = subprocess.run(["dpkg-deb", "-f", package, "Description"], capture_output=True, text=True, check=True)
        assert "stand-in" in shown.stdout, package.name


@needs_apt
def test_a_second_build_of_the_same_table_changes_nothing(repository):
    def state():
        files = [path for path in repository.directory.rglob("*") if path.is_file()]
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before, printed = state(), []
    assert build_repository(repository.directory, log=printed.append) == repository
    assert (state(), printed) == (before, [])


@needs_apt
def test_a_build_from_other_contents_leaves_what_nodes_take_packages_from(tmp_path):
    """Labs of two versions of gpunode run next to each other: each keeps its packages, keys and paths."""
    first = build_repository(tmp_path, log=lambda _: None)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = build_repository(tmp_path, programs={"libcuda": b"another library"}, log=lambda _: None)
    assert {path: path.read_bytes() for path in before} == before
    assert {s.path for s in first.sources}.isdisjoint(s.path for s in other.sources)
    assert all((tmp_path / one.key).is_file() and (tmp_path / one.path).is_dir() for one in other.sources)


def test_a_build_that_failed_leaves_no_repository_and_is_made_again(tmp_path):
    def failing(folder):
        (folder / "half").write_text("")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        built_once(tmp_path, "0" * 64, failing)
    made = built_once(tmp_path, "0" * 64, lambda folder: ([], {"debian:12": [str(len([*folder.iterdir()]))]}))
    assert made.base == {"debian:12": (f"{'0' * 12}/0",)}, "nothing of the first try"


def test_a_repository_that_nothing_asked_for_in_days_goes_with_the_next_build(tmp_path):
    for name in "abc":
        built_once(tmp_path, name * 12, lambda folder: ([], {}))
    for name in "ab":
        os.utime(tmp_path / (name * 12), (0, 0))
    built_once(tmp_path, "a" * 12, lambda folder: ([], {}))
    built_once(tmp_path, "d" * 12, lambda folder: ([], {}))
    assert {path.name for path in tmp_path.iterdir()} == {name * 12 for name in "acd"}


@needs_apt
def test_nvcc_says_its_release_and_that_it_is_a_stub(repository, tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_bytes(unpacked(repository, "cuda-nvcc-12-8_12.8.1-1_amd64.deb", "usr/local/cuda-12.8/bin/nvcc"))
    shown = subprocess.run(["sh", nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    assert "release 12.8, V12.8.93" in shown and "stand-in" in shown


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf")
def test_a_module_is_an_object_whose_information_readelf_can_read(tmp_path):
    module = tmp_path / "x.ko"
    module.write_bytes(module_elf(["version=580.95.05", "license=Dual MIT/GPL"]))
    shown = subprocess.run(["readelf", "-h", "-p", ".modinfo", module], capture_output=True, text=True, check=True)
    assert "REL (Relocatable file)" in shown.stdout and "version=580.95.05" in shown.stdout
    assert shown.stderr == ""


def unpacked(repository, deb: str, path: str) -> bytes:
    """One file of a package of the CUDA repository for Debian 12."""
    package = next(repository.directory.glob(f"*/cuda/repos/debian12/**/{deb}"))
    tree = Path(repository.directory).parent / f"{package.stem}.tree"
    subprocess.run(["dpkg-deb", "-x", package, tree], check=True)
    return (tree / path).read_bytes()


@needs_apt
def test_debian_12s_own_open_modules_are_of_an_older_version_than_its_driver(apt, repository):
    source = next(s for s in repository.sources if (s.name, s.distro) == ("non-free", "debian:12"))
    line = f"file://{repository.directory / source.path} {source.suite} {' '.join(source.components)}"
    (apt.root / "sources.list").write_text(f"deb [signed-by={repository.directory / source.key}] {line}\n")
    status, said = apt("apt-get", "update")
    assert status == 0, said
    own = ("nvidia-driver", "nvidia-smi", "libcuda1", "nvidia-persistenced", "firmware-nvidia-gsp")
    _, said = apt("apt-get", "-s", "install", *own)
    assert would_install(said)["nvidia-kernel-dkms"] == "535.309.01-0+deb12u1"
    status, said = apt("apt-get", "-s", "install", "nvidia-driver", "nvidia-open-kernel-dkms", "nvidia-kernel-dkms-")
    assert status == 100, "no open modules go with Debian 12's newest driver"
