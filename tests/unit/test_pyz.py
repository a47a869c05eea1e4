"""gpunode.pyz (.ci/pyz): one file that runs without pip, from the packages that are installed here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

import gpunode
from gpunode.core.doctor.table import _automaton, _Searches

ROOT = Path(__file__).parents[2]
TARGET = f"cp3{sys.version_info[1]}-{os.uname().machine}"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"pyz_{name}", ROOT / ".ci/pyz" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pack, start = load("pack"), load("__main__")


def needed(name: str, seen: set[str]) -> Iterator[str]:
    """The packages of an installation of that package, each once."""
    if name in seen:
        return
    seen.add(name)
    yield name
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from needed(pack.plain(requirement.name), seen)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pip install --target would fill it."""
    site = tmp_path_factory.mktemp("site")
    for name in needed("gpunode", set()):
        for file in distribution(name).files or ():
            if ".." not in file.parts and file.suffix not in (".pth", ".pyc") and "ansible_test" not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), site / file)
    ignored = shutil.ignore_patterns("__pycache__", "collection")
    shutil.copytree(ROOT / "gpunode", site / "gpunode", dirs_exist_ok=True, ignore=ignored)
    shutil.copytree(ROOT / "gpunode/collection", site, dirs_exist_ok=True, ignore=ignored)
    return site


@pytest.fixture(scope="module")
def pyz(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pyz") / "gpunode.pyz"
    pack.pack({TARGET: site, "cp399-else": site}, file, 1790000000, level=1)
    return file


@pytest.fixture(scope="module")
def plain(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two machines that are not this one, and have only pure Python in common."""
    pure = tmp_path_factory.mktemp("pure")
    shutil.copytree(site, pure, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.so"))
    version = TARGET.partition("-")[0]
    file = tmp_path_factory.mktemp("plain") / "gpunode.pyz"
    pack.pack({f"{version}-one": site, f"{version}-other": pure}, file, 1790000000, level=1)
    return file


def run(pyz: Path, home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """By this Python without the packages of its environment."""
    given = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home.parent), "NO_COLOR": "1", **env}
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    command = [str(python), "-S", str(pyz), *words]
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False, cwd=home.parent)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (home := tmp_path / "home").mkdir(mode=0o700)
    return home


def test_one_file_runs_without_any_package_and_keeps_what_it_unpacked(pyz: Path, home: Path) -> None:
    done = run(pyz, home, "version")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.startswith(f"gpunode {gpunode.__version__}\n") and f"ansible-playbook {home}/.cache" in done.stdout
    )
    [folder] = (home / ".cache/gpunode/pyz").iterdir()
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in (folder, *folder.parents[:3]))
    before = folder.stat().st_mtime_ns, folder.stat().st_ino
    assert "--from" in run(pyz, home, "selftest", "--help").stdout
    [again] = (home / ".cache/gpunode/pyz").iterdir()
    assert (again.stat().st_mtime_ns, again.stat().st_ino) == before


def test_its_programs_know_their_packages(pyz: Path, home: Path) -> None:
    run(pyz, home, "version")
    [programs] = home.glob(".cache/gpunode/pyz/*/lib/bin")
    given = {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8"}
    for name in ("gpunode", "ansible-playbook"):
        done = subprocess.run([programs / name, "--version"], env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert str(programs.parent) in done.stdout


@pytest.mark.parametrize("why", ["no home", "a file", "others"])
def test_without_a_private_cache_it_uses_a_folder_that_goes_away(pyz: Path, home: Path, why: str) -> None:
    if why == "no home":
        home.rmdir()
        home.symlink_to("/proc")  # nobody can write there
    elif why == "a file":
        (home / ".cache").write_text("")
    else:
        (home / ".cache").mkdir()
        (home / ".cache").chmod(0o777)
    done = run(pyz, home, "version")
    assert done.returncode == 0, done.stderr
    assert "ansible-playbook " + str(home.parent / "gpunode-pyz-") in done.stdout
    assert [path for path in home.parent.iterdir() if path != home] == []


def test_where_no_program_may_run_there_is_what_needs_no_compiled_package(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr(start, "LAYERS", {"all": [TARGET, f"{TARGET}-else"]})
    monkeypatch.setattr(start, "unpack", lambda folder, *words: asked.append(words) or (folder / "lib").mkdir())
    monkeypatch.setattr(start, "machine", lambda: os.uname().machine)
    monkeypatch.setattr(start, "runs_programs", lambda folder: False)
    monkeypatch.setattr(start.tempfile, "tempdir", str(home))
    monkeypatch.setenv("HOME", str(home))
    folder, kept = start.ready()
    assert folder.parent == home and not kept and asked == [(TARGET.partition("-")[0], False)]


def test_for_another_machine_there_is_what_needs_no_compiled_package(plain: Path, home: Path) -> None:
    (log := home / "log").write_text("NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.\n")
    done = run(plain, home, "doctor", "--log", str(log))
    assert "fallen off" in done.stdout and done.returncode in (0, 1, 3), done.stdout + done.stderr
    done = run(plain, home, "solve", "--gpu", "10de:2330", "--distro", "ubuntu:24.04")
    assert done.returncode == 0, done.stderr
    (home.parent / "hosts.yml").write_text("all: {hosts: {gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    done = run(plain, home, "detect", "-i", "hosts.yml")
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "the Python package cryptography cannot be loaded" in done.stderr and "pip install gpunode" in done.stderr


def test_the_same_files_give_the_same_bytes_and_what_is_alike_is_in_it_once(tmp_path: Path) -> None:
    made = []
    for names in (("b", "a"), ("a", "b")):
        folder = tmp_path / names[0]
        for target in ("cp313-x86_64", "cp313-aarch64"):
            for name in names:
                (folder / target / name).mkdir(parents=True)
                (folder / target / name / "one.py").write_text("x = 1\n" * 100)
                (folder / target / name / "own.so").write_text(target)
        pack.pack({site.name: site for site in folder.iterdir()}, folder / "it.pyz", 1790000000)
        made.append((folder / "it.pyz").read_bytes())
    assert made[0] == made[1]
    with zipfile.ZipFile(tmp_path / "a/it.pyz") as outer:
        layers = [zipfile.ZipFile(outer.open(name)).namelist() for name in outer.namelist() if "layer" in name]
    assert layers == [["a/one.py", "b/one.py"], ["a/own.so", "b/own.so"], ["a/own.so", "b/own.so"]]


def test_an_old_python_names_what_is_needed_or_goes_on_in_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer"):
        start.newer()
    ran: list[Any] = []
    monkeypatch.setattr(start.shutil, "which", lambda name: f"/usr/bin/{name}" if name == "python3.12" else None)
    monkeypatch.setattr(start.os, "execv", lambda *words: ran.append(words) or sys.exit())
    with pytest.raises(SystemExit):
        start.newer()
    assert ran[0][0] == "/usr/bin/python3.12"


def test_each_python_and_machine_gets_its_own_layers_and_others_what_all_have(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [pack.name_of(*target) for target in pack.targets()]
    layers = {
        "all": every,
        "13": ["cp313-x86_64", "cp313-aarch64"],
        "14": ["cp314-x86_64", "cp314-aarch64"],
        "x": ["cp314-x86_64"],
        "a": [name for name in every if "aarch64" in name],
    }
    monkeypatch.setattr(start, "LAYERS", layers)
    assert start.target_of(13, "x86_64") == ("cp313-x86_64", True)
    assert start.layers_of("cp313-aarch64", True) == ["all", "13", "a"]
    assert start.target_of(13, "") == ("cp313", False) and start.layers_of("cp313", False) == ["all", "13"]
    assert start.target_of(16, "x86_64") == ("cp314", False) and start.layers_of("cp314", False) == ["all", "14"]


def test_a_package_that_lacks_another_ends_the_build(tmp_path: Path) -> None:
    (info := tmp_path / "one-1.dist-info").mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: one\nVersion: 1\nRequires-Dist: two>2\n"
        'Requires-Dist: three; python_version < "3.12"\nRequires-Dist: four; extra == "more"\n'
    )
    with pytest.raises(SystemExit, match=r"one needs two>2$"):
        pack.check_whole(tmp_path, "3.13", "x86_64")
    with pytest.raises(SystemExit, match="one needs two>2; one needs three"):
        pack.check_whole(tmp_path, "3.11", "x86_64")


@given(st.sets(st.text("ab", min_size=1, max_size=3), min_size=1), st.text("ab", max_size=12))
def test_without_the_compiled_library_the_same_words_are_found_in_the_same_order(words: set[str], text: str) -> None:
    values = {word: word for word in words}
    assert list(_Searches(values).iter(text)) == list(_automaton(values).iter(text))
