"""The package brings the collection: wheel, sdist and editable install."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLLECTION = "ansible_collections/gpunode/node"
ROLES = sorted(p.name for p in (ROOT / "roles").iterdir() if p.is_dir())


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command in a clean environment: nothing of Ansible's or Python's settings leaks in."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("ANSIBLE_", "PYTHON"))}
    done = subprocess.run(command, cwd=cwd, env=keep, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind: str, source: Path, target: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target, cwd=source)
    return next(target.glob("*.whl" if kind == "wheel" else "*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, folder)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
        archive.extractall(folder / "unpacked")
    return next((folder / "unpacked").iterdir())


def source_files(folder: str) -> set[str]:
    listing = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        return set(listing.stdout.split())
    return {str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*") if p.is_file()}


def test_the_wheel_holds_every_role_playbook_script_and_table(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = source_files(f"gpunode/collection/{COLLECTION}")
    in_collection = {name.removeprefix("gpunode/collection/") for name in sources}
    in_package = {n for f in ("node", "knowledge", "templates", "lab") for n in source_files(f"gpunode/{f}")}
    assert (in_collection | in_package | {f"{COLLECTION}/galaxy.yml", "gpunode/py.typed"}) - names == set()


def test_the_wheel_holds_nothing_but_the_package_and_the_collection(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"gpunode", "ansible_collections"}


def test_the_sdist_holds_the_sources_as_they_lie(unpacked_sdist: Path) -> None:
    wanted = {n for f in ("gpunode", "docs", "tests/unit", "LICENSE", "Makefile") for n in source_files(f)}
    assert {name for name in wanted if not (unpacked_sdist / name).is_file()} == set()


PLANTED = {
    "gpunode/__pycache__/x.cpython-311.pyc": b"x", "gpunode/core/__pycache__/y.pyc": b"x", "gpunode/.env": b"TOKEN=x",
    "gpunode/node/id_ed25519": b"-----BEGIN OPENSSH PRIVATE KEY-----", "gpunode/lab/server.key": b"x",
    "gpunode/lab/server.pem": b"-----BEGIN PRIVATE KEY-----", "gpunode/.pytest_cache/v/x": b"x", ".mypy_cache/x": b"x",
    "gpunode/runs.sqlite": b"x", "gpunode/knowledge/.gpus.toml.swp": b"x", "gpunode/node/commit/commit.sh.orig": b"x",
    "gpunode/edge/state.py~": b"x",
}  # fmt: skip
SECRETS = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\r?\n[A-Za-z0-9+/=\r\n]{100}|\b(ghp_\w{30}|AKIA[0-9A-Z]{16}|nvapi-\w{20})"
)


def modes(archive: Path) -> dict[str, int]:
    if archive.suffix == ".whl":
        return {info.filename: info.external_attr >> 16 for info in zipfile.ZipFile(archive).infolist()}
    with tarfile.open(archive) as tar:
        kinds = {tarfile.REGTYPE: stat.S_IFREG, tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK}
        return {member.name: kinds[member.type] | member.mode for member in tar}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_lies_about_in_a_checkout_is_not_in_it(kind: str, unpacked_sdist: Path, tmp_path: Path) -> None:
    """Caches, keys, leftovers of editors; and modes of a checkout that everybody may write into."""
    source = shutil.copytree(unpacked_sdist, tmp_path / "source", symlinks=True)
    for name, data in PLANTED.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    for path in source.rglob("*"):
        path.chmod(0o777 if path.is_dir() or path.stat().st_mode & 0o111 else 0o666)
    there = modes(build(kind, source, tmp_path / "out"))
    assert [name for name in there for planted in PLANTED if name.endswith(planted)] == []
    assert {oct(mode) for name, mode in there.items() if mode & 0o022 or stat.S_IMODE(mode) & 0o7000} == set()
    assert {stat.S_IFMT(mode) for mode in there.values()} <= {
        stat.S_IFREG,
        stat.S_IFDIR,
        0,
    }  # 0: a text of hatchling's own


def test_a_wheel_has_no_tests_no_links_and_no_secrets(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    parts = {part for name in names for part in Path(name).parts}
    assert (
        parts & {"tests", "test", "__pycache__", ".git", ".github", "molecule", "benchmarks", "docs", "conftest.py"}
        == set()
    )
    assert [name for name in names if name.startswith("/") or ".." in Path(name).parts] == []
    assert [name for name in names if SECRETS.search(archive.read(name))] == []
    assert len(names) == len(set(names)) == len({name.lower() for name in names})
    ran = [name for name, mode in modes(wheel).items() if mode & 0o111]
    assert [name for name in ran if not archive.read(name).startswith(b"#!")] == []
    assert all(archive.getinfo(name).file_size < 4 << 20 for name in names), "nothing that somebody packed by mistake"


def test_a_wheel_built_from_the_sdist_is_the_same(wheel: Path, unpacked_sdist: Path, tmp_path: Path) -> None:
    again = zipfile.ZipFile(build("wheel", unpacked_sdist, tmp_path))
    first = zipfile.ZipFile(wheel)
    assert sorted(again.namelist()) == sorted(first.namelist())
    assert [n for n in first.namelist() if first.read(n) != again.read(n)] == []


def test_an_editable_install_is_links_alone_so_that_nothing_hides_the_collections_plugins(tmp_path: Path) -> None:
    make = "import sys; from hatchling.builders.wheel import WheelBuilder as W; "
    make += "[*W('.').build(directory=sys.argv[1], versions=['editable'])]"
    run(sys.executable, "-c", make, str(tmp_path), cwd=ROOT)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert [name for name in names if ".dist-info/" not in name] == ["_gpunode.pth"]


def test_ansible_galaxy_verifies_the_collection_that_pip_installed(wheel: Path, tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run(*pip, "--target", packages, wheel, cwd=tmp_path)
    assert list((packages / COLLECTION).rglob("*.pyc")), "pip compiles: those folders are none that somebody added"
    settings = (f"ANSIBLE_COLLECTIONS_PATH={packages}", "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH=no", f"HOME={tmp_path}")
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    verify = ("env", *settings, galaxy, "collection", "verify", "--offline", "gpunode.node")
    assert "Successfully verified" in run(*verify, cwd=tmp_path)
    changed = packages / COLLECTION / "roles/driver/tasks/main.yml"
    changed.write_text("[]\n")
    done = subprocess.run(["env", *settings, *verify[len(settings) + 1 :]], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "roles/driver/tasks/main.yml" in done.stdout


@pytest.mark.timeout(600)
def test_a_fresh_environment_with_the_wheel_runs_the_playbook_by_name(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "v", with_pip=True)
    bin_ = tmp_path / "v/bin"
    run(bin_ / "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=tmp_path)
    run(bin_ / "gpunode", "--version", cwd=tmp_path)
    path = f"{bin_}:{os.environ['PATH']}"
    listed = run(
        "env",
        f"PATH={path}",
        "ansible-playbook",
        "-i",
        "localhost,",
        "gpunode.node.provision",
        "--list-tasks",
        cwd=tmp_path,
    )
    assert "gpunode" in listed
    assert "TAGS" in listed


def test_an_editable_install_shows_an_edit_in_roles_at_once(tmp_path: Path) -> None:
    """`dev-mode-dirs` puts the collection's folder on sys.path."""
    where = "import sys; print(*[p for p in sys.path if p], sep='\\n')"
    folders = [Path(p) / COLLECTION for p in run(sys.executable, "-c", where, cwd=tmp_path).split("\n")]
    found = next((f for f in folders if (f / "roles").is_dir()), None)
    if found is None or not found.is_relative_to(ROOT):
        pytest.skip("gpunode is not installed as editable from this checkout")
    assert (found / "roles").resolve() == (ROOT / "roles").resolve()
    assert shutil.which("ansible-doc", path=str(Path(sys.executable).parent)) is not None
    roles = run(Path(sys.executable).parent / "ansible-doc", "-t", "role", "-l", "gpunode.node", cwd=tmp_path)
    assert [role for role in ROLES if f"gpunode.node.{role}" not in roles] == []
