"""A release (.ci/release.py): the same bytes from the same sources, one version, a collection that installs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import gpunode

ROOT = Path(__file__).parents[2]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load(ROOT / ".ci" / "release.py")


def command(*args: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """In an environment without Python's and Ansible's settings."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANSIBLE_", "PYTHON"))} | env
    return subprocess.run(args, cwd=cwd, env=clean, capture_output=True, text=True, check=False)


def build(root: Path, target: Path, **env: str) -> dict[str, bytes]:
    done = command(sys.executable, root / ".ci/release.py", "build", target, SOURCE_DATE_EPOCH="1790000000", **env)
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in target.iterdir()}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("first")
    build(ROOT, target)
    return target


@pytest.fixture(scope="module")
def unpacked(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(next(first.glob("gpunode-*.tar.gz"))) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
        archive.extractall(folder)
    return next(folder.iterdir())


def test_a_release_is_a_wheel_an_sdist_and_a_collection_of_one_version(first: Path) -> None:
    version = gpunode.__version__
    assert {path.name for path in first.iterdir()} == {
        f"gpunode-{version}-py3-none-any.whl",
        f"gpunode-{version}.tar.gz",
        f"gpunode-node-{version}.tar.gz",
    }


@pytest.mark.timeout(300)
def test_the_unpacked_sdist_gives_the_same_bytes_on_another_day_in_another_place(
    first: Path, unpacked: Path, tmp_path: Path
) -> None:
    for path in unpacked.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    old = os.umask(0o077)
    try:
        again = build(unpacked, tmp_path / "again", TZ="Asia/Tokyo", LC_ALL="C", HOME=str(tmp_path))
    finally:
        os.umask(old)
    assert {name: hashlib.sha256(data).hexdigest() for name, data in again.items()} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in first.iterdir()
    }


def test_the_sdist_has_the_layout_of_the_sources(unpacked: Path) -> None:
    tops = {path.name for path in unpacked.iterdir()}
    wanted = {
        "gpunode",
        "tests",
        "docs",
        "molecule",
        "benchmarks",
        ".ci",
        "Makefile",
        "CHANGELOG.md",
    }
    assert wanted <= tops
    assert (unpacked / "gpunode/collection/ansible_collections/gpunode/node/roles/driver/tasks/main.yml").is_file()
    assert not (unpacked / "roles").exists()  # one copy; `make install` makes the link


def test_ansible_galaxy_installs_the_collection_and_finds_it_whole(first: Path, tmp_path: Path) -> None:
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    paths = {"ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "HOME": str(tmp_path)}
    paths["ANSIBLE_COLLECTIONS_SCAN_SYS_PATH"] = "no"
    tarball = next(first.glob("gpunode-node-*.tar.gz"))
    done = command(galaxy, "collection", "install", "--offline", "-p", tmp_path, tarball, cwd=tmp_path, **paths)
    installed = tmp_path / "ansible_collections/gpunode/node"
    assert done.returncode == 0 and (installed / "roles/driver").is_dir(), done.stdout + done.stderr
    done = command(galaxy, "collection", "verify", "--offline", "gpunode.node", cwd=tmp_path, **paths)
    assert done.returncode == 0, done.stdout + done.stderr
    (installed / "roles/driver/tasks/main.yml").write_text("[]\n")
    done = command(galaxy, "collection", "verify", "--offline", "gpunode.node", cwd=tmp_path, **paths)
    assert done.returncode != 0


def test_the_collection_that_a_clone_gives_has_its_roles_playbooks_and_licence(tmp_path: Path) -> None:
    """As `ansible-galaxy collection install git+…#/gpunode/collection/…` builds it: links out of it are left out."""
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    source = ROOT / "gpunode/collection/ansible_collections/gpunode/node"
    done = command(galaxy, "collection", "build", "--output-path", tmp_path, source, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = set(archive.getnames())
    assert {"roles/driver/tasks/main.yml", "playbooks/provision.yml", "LICENSE", "plugins/action/plan.py"} <= names
    assert (source / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_collection_has_what_galaxy_and_ansible_builder_ask_for(first: Path) -> None:
    with tarfile.open(next(first.glob("gpunode-node-*.tar.gz"))) as archive:
        names = set(archive.getnames())
        info = json.loads(archive.extractfile("MANIFEST.json").read())["collection_info"]  # type: ignore[union-attr]
    assert {"LICENSE", "CHANGELOG.md", "README.md", "meta/execution-environment.yml", "requirements.txt"} <= names
    assert all(info[key] for key in ("repository", "documentation", "homepage", "issues", "tags", "license"))


def test_a_collection_of_another_version_than_the_package_fails_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.gpunode.node.plugins.plugin_utils import node

    monkeypatch.setattr(node, "VERSION", "9.9.9")
    monkeypatch.setattr(node.ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(node.NodeAction, "__init__", lambda self: None)
    result = node.NodeAction().run()
    words = f"gpunode.node 9.9.9 does not work with the installed Python package gpunode {gpunode.__version__}"
    assert result["failed"] and words in result["msg"]
    assert "in one version" in result["fix"]


def test_files_of_a_collection_come_in_order_whatever_the_file_system_gives(first: Path) -> None:
    with tarfile.open(next(first.glob("gpunode-node-*.tar.gz"))) as archive:
        names = archive.getnames()
        stream = archive.extractfile("FILES.json")
        assert stream
        listed = [file["name"] for file in json.load(stream)["files"]]
        assert {member.mtime for member in archive.getmembers()} == {1790000000}
    assert names == sorted(names) and listed == sorted(listed)


# ---------------------------------------------------------------- the version


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    for name in release.VERSIONS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_version_is_written_wherever_it_stands_and_nothing_else_changes(copies: Path) -> None:
    before = {name: (copies / name).read_text() for name in release.VERSIONS}
    release.set_version(copies, "12.34.56")
    assert release.version(copies) == "12.34.56"
    release.set_version(copies, gpunode.__version__)
    assert {name: (copies / name).read_text() for name in release.VERSIONS} == before


@pytest.mark.parametrize("name", release.VERSIONS)
def test_versions_that_differ_are_refused(name: str, copies: Path) -> None:
    text = (copies / name).read_text()
    (copies / name).write_text(text.replace(gpunode.__version__, "9.9.9"))
    with pytest.raises(SystemExit, match=r"9\.9\.9"):
        release.version(copies)


@pytest.mark.parametrize("new", ["1.2", "v1.2.3", "1.2.3rc1", ""])
def test_what_is_no_version_is_refused(new: str, copies: Path) -> None:
    with pytest.raises(SystemExit, match="expected one like"):
        release.set_version(copies, new)


# ---------------------------------------------------------------- the changelog


def test_fragments_become_the_section_of_a_release_above_those_before(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md", "changelog.d", "gpunode/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for fragment in (tmp_path / "changelog.d").glob("+*"):  # of the next release
        fragment.unlink()
    (tmp_path / "changelog.d/+one.added.md").write_text("One thing more.\n")
    (tmp_path / "changelog.d/+two.fixed.md").write_text("One fault less.\n")
    towncrier = Path(sys.executable).with_name("towncrier")
    done = command(towncrier, "build", "--yes", "--version", "98.7.6", "--date", "2030-01-02", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, _, older = (tmp_path / "CHANGELOG.md").read_text().partition("## 98.7.6, 2030-01-02\n")
    assert older.startswith("\n### Added\n- One thing more.\n\n### Fixed\n- One fault less.\n\n## ")
    before = (ROOT / "CHANGELOG.md").read_text()
    assert before.startswith(head.rstrip()) and older.endswith(before[before.index("\n## ") :])
    assert not list((tmp_path / "changelog.d").glob("+*"))


def test_every_fragment_has_a_kind_that_the_changelog_knows() -> None:
    kinds = {"added", "changed", "fixed", "removed", "security"}
    names = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name not in ("README.md", "template.md")]
    assert [name for name in names if name.split(".")[-2:-1] == [] or name.split(".")[-2] not in kinds] == []


# ---------------------------------------------------------------- the audit


@pytest.mark.parametrize(
    ("prints", "code", "printed", "left"),
    [
        (
            'echo \'{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}\'',
            None,
            "1 packages audited, 0",
            True,
        ),
        (
            'echo \'{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}]}\'',
            1,
            "a 1: CVE-1",
            True,
        ),
        ("echo no route to host >&2; exit 1", None, "NOT AUDITED, pip-audit could not ask: no route to host", False),
    ],
    ids=["clean", "a hole", "no network"],
)
def test_an_audit_that_nobody_answered_is_distinguished_from_one_that_found_nothing(
    prints: str, code: int | None, printed: str, left: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "pip-audit").write_text(f"#!/bin/sh\n{prints}\n")
    (tmp_path / "pip-audit").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ended: list[int | None] = []
    ask: Callable[[Path, Path], None] = release._audit
    try:
        ask(Path(sys.executable), tmp_path / "audit.json")
    except SystemExit as end:
        ended.append(int(end.code or 0))
    output = capsys.readouterr()
    assert ended == ([code] if code else []) and printed in output.out + output.err
    assert (tmp_path / "audit.json").exists() is left


def test_checksums_are_those_that_sha256sum_takes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    release.sums(tmp_path)
    done = command("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == "a: OK\nb: OK\n"
